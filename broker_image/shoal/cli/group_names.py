"""Which groups a command may use, and which ones lists show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from shoal.cli.failures import USAGE, CommandError
from shoal.client.queues import reserved_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

_Group = TypeVar("_Group")
AllGroups = Annotated[
    bool,
    typer.Option("--all", help="Include the groups that redrives use, named redrive.TOPIC."),
]


def check_group(group: str) -> None:
    """Raise `CommandError` for a group that belongs to the tools."""
    if reserved_groups.is_reserved(group):
        raise CommandError(f"{reserved_groups.format_refusal(group)}.", USAGE)


def select_groups(groups: Mapping[str, _Group], *, show_all: bool) -> dict[str, _Group]:
    """Return the groups to list, by name."""
    return {
        name: group
        for name, group in groups.items()
        if show_all or not reserved_groups.is_reserved(name)
    }
