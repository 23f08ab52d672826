"""What a `shoal up` in the foreground shows: at a terminal kubectl's tables, redrawn in place, with
the last events below them; elsewhere a line for each change."""

from __future__ import annotations

import asyncio
import datetime
import signal
import sys
import time
from itertools import groupby
from typing import TYPE_CHECKING, Any

from shoal.cli.terminal import say

from shoal_operator.local import printing
from shoal_operator.local.definitions import find_definition, load_definitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from shoal_operator.local.addresses import Addresses
    from shoal_operator.local.api import Key

#: Seconds from a change to a new drawing, which has all changes until then; and from one drawing to
#: the next without a change, because ages grow.
DRAW_SECONDS, AGE_SECONDS = 0.25, 10.0
#: Events below the tables: so many if there is room, and so many of them before tables are cut.
EVENTS_MAX, EVENTS_MIN = 10, 3
#: Characters that a column keeps where there is no room for all.
COLUMN_MIN = 6


class LineView:
    """Prints a resource when its condition Ready changes, and the events about it."""

    def __init__(self) -> None:
        self._shown: dict[Key, str] = {}
        self._began, self._said_ready = time.monotonic(), False
        self.addresses: Addresses | None = None
        #: The objects, once the manifests have been applied.
        self.objects: Mapping[Key, dict[str, Any]] | None = None

    def start(self, objects: Mapping[Key, dict[str, Any]]) -> None:
        """Begin to show these objects: the manifests have been applied."""
        self.objects = objects

    def close(self) -> None:
        """End the drawing. What was shown stays."""

    def on_change(self, manifest: dict[str, Any], deleted: bool, /) -> None:
        """Print what is new about an object."""
        kind, meta = manifest["kind"], manifest["metadata"]
        if kind == "Event" and not deleted:
            involved = manifest["involvedObject"]
            self._print(
                f"{involved['kind'].lower()}/{involved['name']}",
                f"{manifest['type']} {manifest['reason']}: {manifest['message']}",
            )
        if kind not in load_definitions() or deleted:
            self._say_when_ready()
            return
        conditions = manifest.get("status", {}).get("conditions", [])
        ready = next((c for c in conditions if c["type"] == "Ready"), None)
        key = (kind, meta["namespace"], meta["name"])
        text = f"{ready['reason']}: {ready['message']}" if ready else ""
        if text and self._shown.get(key) != text:
            self._shown[key] = text
            sign = "ready" if ready and ready["status"] == "True" else "not ready"
            self._print(f"{kind.lower()}/{meta['name']}", f"{sign}, {text}")
        self._say_when_ready()

    def _say_when_ready(self) -> None:
        """Print once that all resources are ready, and after how long."""
        if self._said_ready or self.objects is None or list_unready(self.objects):
            return
        self._said_ready = True
        say(f"All resources are ready after {time.monotonic() - self._began:.1f} s.", flush=True)

    def _print(self, subject: str, text: str) -> None:
        now = datetime.datetime.now().strftime("%H:%M:%S")
        say(f"{now} {subject} {self._translate(text)}", flush=True)

    def _translate(self, text: str) -> str:
        return text if self.addresses is None else self.addresses.translate(text)


class TableView(LineView):
    """Draws the tables at a terminal. What is printed meanwhile goes above them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        from rich.live import Live

        self._loop: asyncio.AbstractEventLoop
        self._console, self._is_due = console, False
        self._drawn: tuple[object, ...] = ()
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=sys.stderr.isatty())

    def start(self, objects: Mapping[Key, dict[str, Any]]) -> None:
        """Draw, and draw again after changes."""
        super().start(objects)
        self._live.start()
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGWINCH, self._draw_soon)
        self._draw_always()

    def close(self) -> None:
        """End the drawing. What was shown stays."""
        self._live.stop()

    def on_change(self, *_: object) -> None:
        """Draw soon, with all that has changed until then."""
        self._say_when_ready()
        self._draw_soon()

    def _draw_soon(self) -> None:
        if self._live.is_started and not self._is_due:
            self._is_due = True
            self._loop.call_later(DRAW_SECONDS, self._draw)

    def _draw_always(self) -> None:
        if self._live.is_started:
            self._draw()
            self._loop.call_later(AGE_SECONDS, self._draw_always)

    def _draw(self) -> None:
        from rich.text import Text

        self._is_due = False
        if not self._live.is_started:
            return
        size = self._console.size
        # The cursor has a line of its own at the end.
        lines = fit_lines(*self._format(), size.height - 1)
        if self._drawn != (size, lines):
            self._drawn = (size, lines)
            text = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
            self._live.update(text, refresh=True)

    def _format(self) -> tuple[list[list[str]], list[str]]:
        """Return the lines of each table, and those of the events, the newest last."""
        now, of_kinds = datetime.datetime.now(datetime.UTC), []
        resources = [resource for _, resource in sorted((self.objects or {}).items(), key=_get_key)]
        for kind, of_kind in groupby(resources, lambda resource: str(resource["kind"])):
            if definition := load_definitions().get(kind):
                rows = printing.format_rows(definition, list(of_kind), now)
                # The kind is the head of the names: before each name, it would need half a line.
                rows[0][0] = definition.singular.upper()
                of_kinds.append(rows)
        events = [resource for resource in resources if resource["kind"] == "Event"]
        events.sort(key=lambda event: str(event["lastTimestamp"]))
        definition = find_definition("event")
        assert definition is not None, "the commands show events"
        rows = printing.format_rows(definition, events[-EVENTS_MAX:], now) if events else []
        return [self._format_table(rows) for rows in of_kinds], self._format_table(rows)

    def _format_table(self, rows: Iterable[Sequence[str]]) -> list[str]:
        """Return the lines of a table, whose cells have one line each; the console makes them
        visible."""
        cells = [[" ".join(self._translate(c).split()) for c in row] for row in rows]
        return fit_table(cells, self._console.size.width) if cells else []


def _get_key(entry: tuple[Key, dict[str, Any]]) -> Key:
    return entry[0]


def make_view() -> LineView:
    """Return what is right for standard output."""
    if sys.stdout.isatty():
        from shoal.cli.safe_console import SafeConsole

        console = SafeConsole(highlight=False)
        if console.is_interactive:  # A dumb terminal is not: its cursor does not move.
            return TableView(console)
    return LineView()


def fit_lines(tables: Sequence[Sequence[str]], events: Sequence[str], height: int) -> list[str]:
    """Return the lines that fit into a height: the tables, and below them the newest of the events,
    whose first line is their head."""
    lines = [line for table in tables for line in ("", *table)][1:]
    head, *rows = events or [""]
    room = height - (min(len(rows), EVENTS_MIN) + 2 if rows else 0)
    if len(lines) > room:
        shown = max(room - 1, 0)
        lines[shown:] = [f"{len(lines) - shown} more lines: see `shoal get all`."]
    if rows and (free := height - len(lines) - 2) > 0:
        lines += ["", head, *rows[-free:]]
    return lines[: max(height, 1)]


def fit_table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines of a table. The widest columns are cut until the line fits, none to less
    than `COLUMN_MIN`, and the names only if all others are cut so."""
    names, *columns = printing.measure_columns(rows)
    room = width - len(printing.GAP) * len(columns)
    while names + sum(columns) > room and max(columns) > COLUMN_MIN:
        columns[columns.index(max(columns))] -= 1
    columns = [min(names, max(room - sum(columns), COLUMN_MIN)), *columns]
    return printing.format_table(
        [[_cut(cell, column) for cell, column in zip(row, columns, strict=True)] for row in rows],
        columns,
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def list_unready(objects: Mapping[Key, dict[str, Any]]) -> list[str]:
    """Return the resources that are not ready."""
    unready = []
    for (kind, _, name), resource in objects.items():
        status = resource.get("status", {})
        if kind in ("StatefulSet", "Deployment"):
            # A status of an earlier run says nothing about the processes of this one.
            if status.get("readyReplicas", 0) < resource["spec"]["replicas"]:
                unready.append(f"{kind.lower()}/{name} Starting")
        if kind not in load_definitions():
            continue
        ready: dict[str, Any] = next(
            (c for c in status.get("conditions", []) if c["type"] == "Ready"), {}
        )
        current = status.get("observedGeneration") == resource["metadata"]["generation"]
        if not current or ready.get("status") != "True":
            unready.append(f"{kind.lower()}/{name} {ready.get('reason', 'Unknown')}")
    return unready
