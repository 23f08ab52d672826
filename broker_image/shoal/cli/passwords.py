"""Passwords for commands: from a prompt, from standard input, or from a file. Never from a flag."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.prompts import interruptible
from shoal.cli.session import USAGE, CommandError
from shoal.client.security.secret import Secret

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file with the password; '-' is standard input. Default: ask at the terminal.",
    ),
]


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
