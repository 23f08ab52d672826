"""A command's connection to a cluster: common options, event loop and error messages.

`command` registers an async function as a command. Its first argument is a `Client`; the common
options are added after its own. Exit codes: 0 done, 1 refused by the cluster (in part or in whole),
2 wrong usage, 3 no broker reached, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer

from shoal.cli import prompts
from shoal.cli.client_properties import ClusterOptions, load_client_settings
from shoal.cli.failures import INTERRUPTED as INTERRUPTED
from shoal.cli.failures import REFUSED as REFUSED
from shoal.cli.failures import UNREACHABLE as UNREACHABLE
from shoal.cli.failures import USAGE as USAGE
from shoal.cli.failures import CommandError as CommandError
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.errors import ClientError, Unreachable
from shoal.client.settings import DEFAULT_BOOTSTRAP
from shoal.monitoring import remedies
from shoal.record.batch import CorruptBatch

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        # The second name is that of earlier versions.
        envvar=["SHOAL_BOOTSTRAP_SERVERS", "SHOAL_BOOTSTRAP"],
        help="Brokers of the cluster. Default: bootstrap.servers of the properties, or"
        f" {DEFAULT_BOOTSTRAP}.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="SHOAL_COMMAND_CONFIG",
        help="A file with Kafka client properties, such as security.protocol. Others can be set"
        " as variables: SHOAL_CLIENT_SASL_PASSWORD sets sasl.password.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="SHOAL_PROFILE",
        help="A named cluster; see `shoal profile`. Default: the one in use, if the command names"
        " no cluster.",
    ),
]
Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property", "-X", metavar="NAME=VALUE", help="A client property, but not a secret."
    ),
]


#: Typer gives its context to this parameter.
_CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def make_app(help: str) -> typer.Typer:
    """Return a Typer application with plain help and plain tracebacks."""
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def command(
    app: typer.Typer, name: str | None = None
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Register `async def f(client, ...)` as a command with the connection options added.

    A parameter whose type is a NamedTuple stands for its fields: options of several commands.
    """

    def register(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        groups = {p.name: p.annotation for p in own if hasattr(p.annotation, "_fields")}
        shared = inspect.signature(_define_connection_options, eval_str=True).parameters.values()
        options = [option for p in own for option in (_list_fields(p) if p.name in groups else [p])]
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*options, *shared, _CONTEXT)]

        @functools.wraps(function)
        def run(**parameters: Any) -> None:
            connection = {p.name: parameters.pop(p.name) for p in shared}
            for group, kind in groups.items():
                parameters[group] = kind(**{name: parameters.pop(name) for name in kind._fields})
            cluster = ClusterOptions(**{name: connection[name] for name in ClusterOptions._fields})
            variables = _find_variables(parameters.pop(_CONTEXT.name))
            perform(
                lambda client: function(client, **parameters),
                cluster,
                variables,
                connection["property"],
            )

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        del run.__wrapped__
        app.command(name)(run)
        return function

    return register


def _list_fields(group: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the fields of a NamedTuple as parameters."""
    kind = group.annotation
    hints = get_type_hints(kind, include_extras=True)
    defaults = kind._field_defaults
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=hints[name],
        )
        for name in kind._fields
    ]


def _define_connection_options(
    bootstrap_server: Bootstrap = None,
    command_config: CommandConfig = None,
    profile: Profile = None,
    property: Property = None,
) -> None:
    """Define the options that every command has; only the signature is used."""


def perform(
    call: Callable[[Client], Awaitable[None]],
    cluster: ClusterOptions,
    variables: frozenset[str],
    properties: list[str] | None,
) -> None:
    """Run one command against a cluster; end the process on failure. `variables` are the fields of
    `cluster` that environment variables set.
    """
    try:
        cluster = cluster.drop_variables(variables)
        settings = load_client_settings(cluster, properties)
    except CommandError as error:
        fail(str(error), error.code)
    except (ValueError, ClientError) as error:
        fail(f"{error}.", USAGE)
    except OSError as error:
        fail(f"cannot read {cluster.command_config}: {error.strerror}.", USAGE)

    async def main() -> None:
        async with Client(settings) as client:
            try:
                await call(client)
            except ClientError as error:
                raise CommandError(
                    await remedies.format_sentence(error, client.cluster), _get_exit_code(error)
                ) from error

    run_guarded(lambda: asyncio.run(main()))


def _find_variables(context: typer.Context) -> frozenset[str]:
    """Return the fields of `Cluster` that environment variables set."""
    sources = {name: context.get_parameter_source(name) for name in ClusterOptions._fields}
    return frozenset(n for n, source in sources.items() if source and source.name == "ENVIRONMENT")


def run_guarded(call: Callable[[], None]) -> None:
    """Run `call`. A failure becomes a sentence on standard error and an exit code."""
    try:
        call()
        sys.stdout.flush()
    except CommandError as error:
        fail(str(error), error.code)
    except ClientError as error:
        fail(f"{error}.", _get_exit_code(error))
    except CorruptBatch as error:
        fail(f"the broker sent records that cannot be read: {error}.")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except typer.Abort as aborted:
        if prompts.is_interrupt(aborted):
            raise typer.Exit(INTERRUPTED) from None
        raise
    except BrokenPipeError:
        # The reader (head, less) has ended. Discard the rest of the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def fail(sentence: str, code: int = REFUSED) -> NoReturn:
    """Print the error, behind all other output, and exit with this code."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    say(f"shoal: {sentence}", file=sys.stderr)
    raise typer.Exit(code)


def warn(sentence: str) -> None:
    """Print a warning on standard error."""
    say(f"shoal: {sentence}", file=sys.stderr)


def _get_exit_code(error: ClientError) -> int:
    return UNREACHABLE if isinstance(error, Unreachable) else REFUSED


async def require_shoal(client: Client, feature: str) -> None:
    """Raise `CommandError` if the cluster is not Shoal's; `feature` is what only Shoal has."""
    link = await client.cluster.get_any_connection()
    if not any(name.startswith("shoal.") for name in link.features):
        raise CommandError(f"this cluster is Apache Kafka: it has no {feature}.")
