"""Options in tables of the documentation are those of the commands."""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from shoal.cli.main import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_OPTION = re.compile(r"`(--?[a-z][a-z-]*)")


def commands(found: Any) -> Iterator[Any]:
    """Yield a command, or those of a group."""
    if hasattr(found, "commands"):
        for one in found.commands.values():
            yield from commands(one)
    else:
        yield found


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """The options of all commands, and the other names of each."""
    found: dict[str, set[str]] = defaultdict(set)
    for named in COMMANDS.values():
        app = importlib.import_module(named.module).app
        for command in commands(typer.main.get_command(app)):
            for parameter in command.params:
                names = [*parameter.opts, *parameter.secondary_opts]
                for name in names:
                    found[name].update(names)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_options_in_tables(page: Path, options: dict[str, set[str]]) -> None:
    wrong = []
    for line in page.read_text().splitlines():
        given = _OPTION.findall(line.split("|")[1]) if line.startswith("| `-") else []
        long = [name for name in given if name.startswith("--")]
        wrong += [f"no option {name}" for name in given if name not in options]
        known = [name for name in given if name in options]
        wrong += [f"{name} for {long}" for name in known if not options[name].intersection(long)]
    assert not wrong
