"""`shoal`: the broker and the tools, one command each.

A command's module is imported when the command runs. So `shoal --help` is instant, and `shoal
server` starts without the imports of the tools.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from shoal import __version__
from shoal.cli.terminal import say


class CommandModule(NamedTuple):
    """The module whose `app` (a `typer.Typer`) is the command, and its line in `shoal --help`."""

    module: str
    help: str


#: The commands, in the order of `shoal --help`. One without a module is a plug-in (`PLUGINS`).
COMMANDS: dict[str, CommandModule] = {
    "server": CommandModule("shoal.cli.commands.server", "Run a broker."),
    "cluster": CommandModule(
        "shoal.cli.commands.cluster", "Run a test cluster here, or describe any cluster."
    ),
    "topics": CommandModule(
        "shoal.cli.commands.topics",
        "Manage topics, move their replicas, and delete old records.",
    ),
    "queue": CommandModule(
        "shoal.cli.commands.queue",
        "Create, list, describe and delete queues: topic, group and dead letters in one.",
    ),
    "produce": CommandModule(
        "shoal.cli.commands.produce", "Send records from standard input or a file."
    ),
    "consume": CommandModule(
        "shoal.cli.commands.consume", "Read records, by offset or in a consumer group."
    ),
    "share-consume": CommandModule(
        "shoal.cli.commands.share_consume", "Acquire records from a share group and settle them."
    ),
    "worker": CommandModule(
        "shoal.cli.commands.worker", "Run the handlers of an application for its topics."
    ),
    "schedule": CommandModule(
        "shoal.cli.commands.schedule", "Produce records at the times of cron expressions."
    ),
    "groups": CommandModule(
        "shoal.cli.commands.groups", "List, describe, reset and delete groups; show their lag."
    ),
    "dlq": CommandModule("shoal.cli.commands.dlq", "List, show, redrive and delete dead letters."),
    "share": CommandModule(
        "shoal.cli.commands.share",
        "Show records in flight, and pause or resume delivery to a group.",
    ),
    "transactions": CommandModule(
        "shoal.cli.commands.transactions",
        "List and describe transactions; find and end those that hang.",
    ),
    "profile": CommandModule(
        "shoal.cli.commands.profile", "Create, choose, show and delete named clusters."
    ),
    "configs": CommandModule(
        "shoal.cli.commands.configs", "Show and change configs of topics, groups and brokers."
    ),
    "acls": CommandModule(
        "shoal.cli.commands.acls", "List, add and remove access control entries."
    ),
    "users": CommandModule(
        "shoal.cli.commands.users", "List, add and remove users with SCRAM passwords."
    ),
    "tokens": CommandModule(
        "shoal.cli.commands.tokens", "Create, renew, end and list delegation tokens."
    ),
    "quotas": CommandModule(
        "shoal.cli.commands.quotas", "List, set and remove quotas of users, clients and addresses."
    ),
    "storage": CommandModule(
        "shoal.cli.commands.storage",
        "Show and check the object store, and restore a lost cluster.",
    ),
    "whoami": CommandModule(
        "shoal.cli.commands.whoami", "Show how the cluster has authenticated you."
    ),
    "explain": CommandModule(
        "shoal.cli.commands.explain", "Show the rule that decides what a user may do."
    ),
    "debug": CommandModule("shoal.cli.commands.debug", "Collect a support bundle without secrets."),
    "top": CommandModule(
        "shoal.cli.commands.top", "Watch throughput, lag, records in flight and redeliveries."
    ),
    "console": CommandModule(
        "shoal.cli.commands.console", "Serve a web page that shows the queues of a cluster."
    ),
    "demo": CommandModule(
        "shoal.cli.commands.demo", "Run the image pipeline with Spark on this machine."
    ),
    "up": CommandModule("", "Run a folder of manifests on this machine, without Kubernetes."),
    "get": CommandModule("", "Show the resources of `shoal up`, as kubectl does."),
    "describe": CommandModule("", "Show a resource of `shoal up` with its events."),
    "apply": CommandModule("", "Create or change resources of `shoal up`."),
    "delete": CommandModule("", "Delete resources of `shoal up`."),
    "logs": CommandModule("", "Print what consumers and brokers of `shoal up` have printed."),
    "down": CommandModule("", "End `shoal up`, and keep its data."),
    "dump": CommandModule(
        "shoal.cli.commands.dump", "Print log segments and internal topics as JSON."
    ),
}

#: Commands of other packages, by entry points of this group: the engine does not import them.
PLUGINS = "shoal.commands"
#: The extra of the package that brings a command of the group.
_EXTRA = "shoal[up]"


class _Commands(TyperGroup):
    """The group of all commands. Listing imports no command; running one imports that one."""

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        stub = COMMANDS.get(cmd_name)
        return stub and TyperCommand(cmd_name, help=stub.help, rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, remaining_args = super().resolve_command(ctx, args)
        if name is None or stub is None:
            return name, stub, remaining_args
        command = typer.main.get_command(load_app(name))
        command.name = name
        return name, command, remaining_args


def load_app(name: str) -> typer.Typer:
    """Return the application of a command. A plug-in that is not installed ends the process with
    what to install."""
    if COMMANDS[name].module:
        loaded: typer.Typer = importlib.import_module(COMMANDS[name].module).app
        return loaded
    missing = ""
    for entry in importlib.metadata.entry_points(group=PLUGINS, name=name):
        try:
            return entry.load()
        except ModuleNotFoundError as error:
            missing = f": there is no module {error.name}"
    say(
        f"shoal: `shoal {name}` is not installed{missing}. Install it with "
        f"`pip install '{_EXTRA}'`.",
        file=sys.stderr,
    )
    raise typer.Exit(1)


app = typer.Typer(
    name="shoal",
    cls=_Commands,
    help="A work queue that speaks Kafka.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        say(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def _shoal(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """A work queue that speaks Kafka."""
    del version


def main() -> None:
    """Run the console script."""
    try:
        app()
    except SystemExit as ended:
        if "obstore" not in sys.modules or "shoal.server.process" in sys.modules:
            raise
        # Threads of the library may still release Python's objects after its last answer. If the
        # interpreter is finalized meanwhile, they abort the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else ended.code is not None)
