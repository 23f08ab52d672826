"""`shoal users`: users with SCRAM credentials. Their passwords do not leave this machine.

A password comes from a prompt, from standard input or from a file, never from a flag.
"""

from __future__ import annotations

import getpass
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.output import Format, FormatOption
from shoal.cli.prompts import interruptible
from shoal.cli.session import USAGE, CommandError, command, make_app
from shoal.cli.terminal import say
from shoal.client.admin.security_admin import (
    ITERATIONS,
    SALT_SIZE,
    ScramInfo,
    ScramMechanism,
    ScramUpsertion,
)
from shoal.client.client import Client
from shoal.client.errors import KafkaError
from shoal.client.security.scram import ITERATIONS_MAX, ITERATIONS_MIN
from shoal.client.security.secret import Secret
from shoal.monitoring import remedies
from shoal.protocol.errors import ErrorCode

app = make_app("List, add and remove users with SCRAM passwords.")

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file with the password; '-' is standard input. Default: ask at the terminal.",
    ),
]


class Mechanism(StrEnum):
    """The mechanisms for passwords that the cluster stores."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def mechanism(self) -> ScramMechanism:
        return ScramMechanism[self.name]


Name = Annotated[str, typer.Argument(metavar="USER", help="The name of the user.")]
Names = Annotated[list[str], typer.Argument(metavar="USER", help="Names of users.")]
Mechanisms = Annotated[
    list[Mechanism] | None,
    typer.Option("--mechanism", "-m", case_sensitive=False, help="May be repeated."),
]


@command(app, "list")
async def list_users(client: Client, format: FormatOption = Format.TABLE) -> None:
    """List users. Those of certificates and access tokens are not stored in the cluster."""
    credentials = await client.admin.users.describe()
    output.print_rows(
        format,
        _make_rows(credentials),
        empty="There are no users. Add one with `shoal users add USER`.",
    )


@command(app, "describe")
async def describe(client: Client, users: Names, format: FormatOption = Format.TABLE) -> None:
    """Show the mechanisms and iterations of users' credentials."""
    credentials = await client.admin.users.describe(users)
    output.print_rows(format, _make_rows(credentials))
    _fail_for(credentials)


@command(app, "add")
async def add(
    client: Client,
    user: Name,
    mechanism: Mechanisms = None,
    iterations: Annotated[
        int, typer.Option(help=f"{ITERATIONS_MIN} to {ITERATIONS_MAX}.")
    ] = ITERATIONS,
    password_file: PasswordFile = None,
) -> None:
    """Add a user, or set a new password. Default: for SCRAM-SHA-512."""
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise CommandError(
            f"--iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {iterations}.", USAGE
        )
    password = read_password(password_file, user)
    results = await client.admin.users.alter(
        [
            ScramUpsertion.from_password(
                user, choice.mechanism, password, os.urandom(SALT_SIZE), iterations
            )
            for choice in dict.fromkeys(mechanism or [Mechanism.SCRAM_SHA_512])
        ]
    )
    _fail_for(results)
    say(f"Set the password of {user}.")


@command(app, "remove")
async def remove(
    client: Client,
    users: Names,
    mechanism: Mechanisms = None,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Ignore users that do not exist.")
    ] = False,
) -> None:
    """Remove the credentials of users: all, or those for a mechanism.

    Entries for the users stay: `shoal acls remove -p USER`.
    """
    credentials = await client.admin.users.describe(users)
    mechanisms = {choice.value for choice in mechanism or ()}
    failures = {n: e for n, e in credentials.items() if isinstance(e, KafkaError)}
    if if_exists:
        failures = {n: e for n, e in failures.items() if e.code != ErrorCode.resource_not_found}
    deletions = [
        (name, Mechanism(info.mechanism).mechanism)
        for name, infos in credentials.items()
        for info in (() if isinstance(infos, KafkaError) else infos)
        if not mechanisms or info.mechanism in mechanisms
    ]
    results = await client.admin.users.alter(deletions=deletions) if deletions else {}
    for name, error in results.items():
        if error is None:
            say(f"Removed {', '.join(str(m) for n, m in deletions if n == name)} of {name}.")
        else:
            failures[name] = error
    _fail_for(failures)


def _make_rows(credentials: dict[str, tuple[ScramInfo, ...] | KafkaError]) -> list[dict[str, Any]]:
    return [
        {"user": name, "mechanism": info.mechanism, "iterations": info.iterations}
        for name, infos in credentials.items()
        for info in (() if isinstance(infos, KafkaError) else infos)
    ]


def _fail_for(results: dict[str, Any]) -> None:
    errors = [error for error in results.values() if isinstance(error, KafkaError)]
    if errors:
        raise CommandError(" ".join(remedies.format_remedy(error) for error in errors))


def read_password(file: Path | None, user: str) -> Secret:
    """Return the new password of a user. A line break at the end is not part of it.

    Raises `CommandError` without a terminal and a file, and for an empty password.
    """
    if file is None and not sys.stdin.isatty():
        raise CommandError(
            "there is no terminal to ask for the password. Name a file with --password-file, or"
            " use --password-file - for standard input.",
            USAGE,
        )
    password = _ask(user) if file is None else _read_content(file)
    if not password:
        raise CommandError("the password is empty.", USAGE)
    return password


def _ask(user: str) -> Secret:
    with interruptible():
        first = Secret(getpass.getpass(f"New password of {user}: "))
        second = Secret(getpass.getpass("Again: "))
    if second != first:
        raise CommandError("the passwords differ. Nothing was changed.", USAGE)
    return first


def _read_content(file: Path) -> Secret:
    try:
        with interruptible():
            text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except OSError as error:
        reason = error.strerror
    except ValueError:
        reason = "it is not a text file"
    else:
        return Secret(text.removesuffix("\n").removesuffix("\r"))
    raise CommandError(f"cannot read {file}: {reason}.", USAGE)
