"""Options in tables of the documentation are those of the commands."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from shoal.cli.main import COMMANDS, load_app

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[3]
#: Tables of it have options of `manage.py`.
DJANGO = ROOT / "docs" / "django.md"
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {DJANGO})]
_OPTION = re.compile(r"`(--?[a-z][a-z-]*)")


def commands(found: Any) -> Iterator[Any]:
    """Yield a command, or those of a group."""
    if hasattr(found, "commands"):
        for one in found.commands.values():
            yield from commands(one)
    else:
        yield found


def options_of_commands() -> dict[str, set[str]]:
    """Return the options of all commands, and the other names of each."""
    found: dict[str, set[str]] = defaultdict(set)
    for word in COMMANDS:
        app = load_app(word)
        for command in commands(typer.main.get_command(app)):
            for parameter in command.params:
                names = [*parameter.opts, *parameter.secondary_opts]
                for name in names:
                    found[name].update(names)
    return found


def faults(lines: Iterable[str], options: dict[str, set[str]]) -> Iterator[str]:
    """Yield what is wrong in the tables of a page."""
    for line in lines:
        given = _OPTION.findall(line.split("|")[1]) if line.startswith("| `-") else []
        long = [name for name in given if name.startswith("--")]
        for name in given:
            if name not in options:
                yield f"no option {name}"
            elif not options[name].intersection(long):
                yield f"{name} for {long}"


def test_options_in_tables() -> None:
    options = options_of_commands()
    wrong = [
        f"{page.relative_to(ROOT)}: {fault}"
        for page in PAGES
        for fault in faults(page.read_text().splitlines(), options)
    ]
    assert not wrong, "\n".join(wrong)


def test_each_fault_of_a_table_is_found() -> None:
    options = {"--group": {"--group", "-g"}, "-g": {"--group", "-g"}, "--topic": {"--topic"}}
    lines = ["| `--group`, `-g` | |", "| `--topics` | |", "| `--topic`, `-g` | |"]
    assert list(faults(lines, options)) == ["no option --topics", "-g for ['--topic']"]
