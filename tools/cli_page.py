"""Generate `docs/reference/cli.md` from the commands: `python tools/cli_page.py`."""

from __future__ import annotations

import re

import typer
from shoal.cli.main import COMMANDS, load_app
from typer.cli import get_docs_for_click

INTRODUCTION = """\
# Commands

This page lists all commands of `shoal` with their arguments and options, as `--help` shows them. It
is generated from the code. The quick starts and guides show what to do with them. Options that
connect to a cluster are the same for all commands;
[Clients and security](../security.md#where-properties-come-from) says where else you can set them.

| command | |
| --- | --- |
"""
#: The sections of the subcommands follow, with their whole help.
_SUBCOMMANDS = re.compile(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n?")
_USAGE = re.compile(r"^```console\n\$ (.*?)\n```$", re.MULTILINE)


def build_page() -> str:
    """Return the page."""
    rows = "".join(
        f"| [`shoal {name}`](#shoal-{name}) | {command.help} |\n"
        for name, command in COMMANDS.items()
    )
    return f"{INTRODUCTION}{rows}\n" + "\n".join(map(describe, COMMANDS))


def describe(name: str) -> str:
    """Return the section of a command."""
    command = typer.main.get_command(load_app(name))
    context = typer.Context(command, info_name=f"shoal {name}")
    text = get_docs_for_click(obj=command, ctx=context, indent=1, name=name, call_prefix="shoal")
    text = _USAGE.sub(r"```\n\1\n```", text)
    # The help of each command lists --help.
    text = text.replace("* `--help`: Show this message and exit.\n", "")
    text = _SUBCOMMANDS.sub("", text).replace("**Options**:\n\n\n", "")
    return text.strip("\n") + "\n"


if __name__ == "__main__":
    print(build_page(), end="")
