"""Tables for people, and JSON or YAML for programs, made from the same rows."""

from __future__ import annotations

import json
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from uuid import UUID

import typer

from shoal.cli.terminal import make_visible, say
from shoal.client.queues.timestamps import DATE_MS_MAX

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of a pipe, which has no width. A wider table gets what it needs.
PIPE_WIDTH = 4_000
#: Columns between two columns of a table.
GAP = 3
#: A column of text is shortened to this width at least, before a column is left out.
SHORT_MIN = 12
#: Characters that do not occur in text: control characters except tab, newline, carriage return.
_CONTROL = frozenset(map(chr, {*range(32), 127} - {9, 10, 13}))


class Format(StrEnum):
    """The format of results."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[Format, typer.Option("--format", "-o", help="table, json or yaml.")]
Row = Mapping[str, Any]


def make_console(*, stderr: bool = False, width: int = 0) -> Console:
    """Return a console: with colours on a terminal; without colours in a pipe, `width` wide or
    more.
    """
    from shoal.cli.safe_console import SafeConsole

    stream = sys.stderr if stderr else sys.stdout
    columns = None if stream.isatty() else max(width, PIPE_WIDTH)
    return SafeConsole(file=stream, width=columns, highlight=False, soft_wrap=False)


def print_rows(
    format: Format,
    records: Sequence[Row],
    columns: Sequence[str] | None = None,
    *,
    empty: str = "",
    title: str = "",
    expendable: Sequence[str] = (),
) -> None:
    """Print rows. A table shows the keys in `columns`; JSON and YAML show all of them."""
    if format is not Format.TABLE:
        print_document(format, [dict(row) for row in records])
        return
    if not records:
        if empty:
            say(empty)
        return
    print_table(records, columns or list(records[0]), title, expendable)


def print_document(format: Format, document: Any) -> None:
    """Print lists, mappings and values as JSON or YAML."""
    text = json.dumps(document, default=to_plain, indent=2)
    if format is Format.YAML:
        import yaml

        text = yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True).rstrip("\n")
    say(text)


def print_table(
    records: Sequence[Row],
    columns: Sequence[str],
    title: str = "",
    expendable: Sequence[str] = (),
) -> None:
    """Print a table. On a terminal it fits the width: text is shortened, then columns are left out,
    those in `expendable` first and then the last ones. Anything else gets the whole table.
    """
    from rich.table import Table
    from rich.text import Text

    # Escaped before the widths are known; the console would escape them afterwards.
    escape = make_visible if sys.stdout.isatty() else str
    texts = {name: [escape(format_cell(row.get(name))) for row in records] for name in columns}
    wide = [_measure_column(name, texts[name], _is_number(records, name)) for name in columns]
    out = make_console(width=sum(column.width + GAP for column in wide))
    widths = fit_columns(wide, out.width, expendable)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index, column in enumerate(wide):
        width = widths.get(column.name)
        if width is not None:
            table.add_column(
                _format_heading(column.name),
                justify="left" if column.shortens else "right",
                # The first column names the row: a long name is wrapped, not cut.
                no_wrap=index > 0,
                overflow="ellipsis" if index else "fold",
                width=width,
            )
    for row in zip(*(texts[name] for name in widths), strict=True):
        table.add_row(*map(Text, row))
    if title:
        out.print(Text(title, style="bold"))
    out.print(table)
    left_out = [_format_heading(name) for name in columns if name not in widths]
    if left_out:
        say(f"Too narrow for {', '.join(left_out)}. -o json shows everything.", file=sys.stderr)


def _is_number(records: Sequence[Row], name: str) -> bool:
    return all(isinstance(row.get(name), int | float | None) for row in records)


def _format_heading(name: str) -> str:
    return name.replace("_", " ").upper()


class TableColumn(NamedTuple):
    """A column of a table: its name, the width of its widest cell, and whether the width may
    shrink.
    """

    name: str
    width: int
    shortens: bool


def fit_columns(
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


def _measure_column(name: str, texts: Sequence[str], is_number: bool) -> TableColumn:
    from rich.cells import cell_len

    lines = (line for text in (_format_heading(name), *texts) for line in text.split("\n"))
    return TableColumn(name, max(map(cell_len, lines)), not is_number)


def format_cell(value: Any) -> str:
    """Format a value for a table; unknown is a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)


def to_plain(value: Any) -> Any:
    """Convert a value that `json` cannot encode; bytes become text if possible, else hex."""
    if isinstance(value, bytes | bytearray | memoryview):
        return to_text_or_hex(bytes(value))
    if isinstance(value, UUID):
        return format_topic_id(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)


def to_text_or_hex(value: bytes | None) -> str | None:
    """Decode bytes as UTF-8 text, or as `0x…` if they are not readable text."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return text if text.isprintable() or _CONTROL.isdisjoint(text) else "0x" + value.hex()


def format_topic_id(value: UUID | None) -> str | None:
    """Format a topic id as Kafka's tools do: 22 characters of URL-safe base 64."""
    return None if value is None else urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def format_timestamp(timestamp_ms: int) -> str | None:
    """Format a timestamp as ISO 8601 in UTC; None for none. Far ones remain milliseconds."""
    if timestamp_ms < 0:
        return None
    if timestamp_ms > DATE_MS_MAX:
        return str(timestamp_ms)
    instant = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def progress(
    total: int | None, label: str, *, prints: bool = False, types: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error; yield the function that advances it.

    No bar appears without a terminal, for a command that `prints` on the same terminal, or while a
    user `types` there.
    """
    if not sys.stderr.isatty() or types or (prints and sys.stdout.isatty()):
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=make_console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)
