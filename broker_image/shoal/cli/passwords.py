"""Passwords for commands: from a prompt, from standard input, or from a file. Never from a flag."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.prompts import interruptible
from shoal.cli.session import USAGE, Failed
from shoal.client.secret import Secret

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file with the password; '-' is standard input. Default: ask at the terminal.",
    ),
]


def read(file: Path | None, user: str) -> Secret:
    """Return the new password of a user. A line break at the end is not part of it.

    Raises `Failed` without a terminal and a file, and for an empty password.
    """
    if file is None and not sys.stdin.isatty():
        raise Failed(
            "there is no terminal to ask for the password. Name a file with --password-file, or"
            " use --password-file - for standard input.",
            USAGE,
        )
    found = _ask(user) if file is None else _content(file)
    if not found:
        raise Failed("the password is empty.", USAGE)
    return found


def _ask(user: str) -> Secret:
    with interruptible():
        first = Secret(getpass.getpass(f"New password of {user}: "))
        second = Secret(getpass.getpass("Again: "))
    if second != first:
        raise Failed("the passwords differ. Nothing was changed.", USAGE)
    return first


def _content(file: Path) -> Secret:
    try:
        with interruptible():
            text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except OSError as error:
        reason = error.strerror
    except ValueError:
        reason = "it is not a text file"
    else:
        return Secret(text.removesuffix("\n").removesuffix("\r"))
    raise Failed(f"cannot read {file}: {reason}.", USAGE)
