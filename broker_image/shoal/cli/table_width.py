"""The widths of a table's columns on a terminal: which are shortened, and which are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: Columns between two columns of a table.
GAP = 3
#: A column of text is shortened to this width at least, before a column is left out.
SHORT_MIN = 12


class TableColumn(NamedTuple):
    """A column of a table: its name, the width of its widest cell, and whether the width may
    shrink.
    """

    name: str
    width: int
    shortens: bool


def fit(
    columns: Sequence[TableColumn], room: int, expendable: Sequence[str] = ()
) -> Mapping[str, int]:
    """Return the widths of the columns that fit into `room` characters, in their order.

    Text is shortened first, the widest column most. If that is not enough, columns are left out:
    those in `expendable` in that order, then the last ones. The first column stays, whole if
    possible.
    """
    remaining = list(columns)
    while len(remaining) > 1 and _compute_least_width(remaining) > room:
        names = [column.name for column in remaining[1:]]
        remaining.remove(
            remaining[1 + names.index(next((n for n in expendable if n in names), names[-1]))]
        )
    widths = {column.name: column.width for column in remaining}
    widths[remaining[0].name] = min(remaining[0].width, room)
    shortens = [column.name for column in remaining[1:] if column.shortens]
    excess = sum(widths.values()) + GAP * (len(remaining) - 1) - room
    while excess > 0 and shortens:
        widest = max(shortens, key=lambda name: widths[name])
        widths[widest] -= 1
        excess -= 1
    return widths


def _compute_least_width(columns: Sequence[TableColumn]) -> int:
    """Return the width of a table whose text is as short as it may be."""
    first, *others = columns
    texts = (min(c.width, SHORT_MIN) if c.shortens else c.width for c in others)
    return first.width + sum(texts) + GAP * len(others)
