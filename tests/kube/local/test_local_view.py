"""What `shoal up` shows at a terminal: tables that are redrawn in place. No process runs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from typing import TYPE_CHECKING, Any

import pytest
from shoal.cli.safe_console import SafeConsole
from shoal_operator.local.api import LocalApi
from shoal_operator.local.changes import apply_manifests
from shoal_operator.local.live_view import (
    AGE_SECONDS,
    DRAW_SECONDS,
    TableView,
    fit_lines,
    fit_table,
)
from support.brokers.local_up import make_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_TOKEN = re.compile(r"\x1b\[(\??\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Loop(asyncio.SelectorEventLoop):
    """A loop whose timers the test runs."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Any) -> Any:  # type: ignore[override]
        self.timers.append((delay, callback))


def read_screen(output: str) -> list[str]:
    """Return the lines that a terminal shows after this output."""
    lines, row, column = [""], 0, 0
    for token in _TOKEN.finditer(output):
        text = token[0]
        if text == "\r":
            column = 0
        elif text == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif token[2] == "A":
            row -= int(token[1])
        elif token[2] == "K":
            lines[row] = ""
        elif token[2] is None:
            lines[row] = lines[row][:column].ljust(column) + text
            column += len(text)
        else:
            assert token[2] in "lhm", f"unknown: {text!r}"
    return lines


class Screen:
    """A view of a cluster, a topic and a group at a terminal of 80 columns and 20 lines."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self._output, self._loop = io.StringIO(), loop
        self.api = LocalApi(folder)
        wanted = make_queue(["true"])[:3]
        for manifest in wanted:
            manifest["metadata"]["namespace"] = "default"
        assert apply_manifests(self.api, wanted).errors == []
        console = SafeConsole(
            file=self._output,
            force_terminal=True,
            force_interactive=True,
            width=80,
            height=20,
            highlight=False,
        )
        self.view = TableView(console)

    @property
    def text(self) -> str:
        return self._output.getvalue()

    @property
    def lines(self) -> list[str]:
        return read_screen(self.text)

    def run_timers(self, seconds: float) -> int:
        """Run the timers of this delay; return how many there were."""
        due = [timer for delay, timer in self._loop.timers if delay == seconds]
        self._loop.timers = [row for row in self._loop.timers if row[0] != seconds]
        for timer in due:
            timer()
        return len(due)


@contextlib.contextmanager
def show(folder: Path) -> Iterator[Screen]:
    """It is no fixture, because pytest replaces standard output before a test."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Loop)
        screen = Screen(folder, loop)

        async def start() -> None:
            screen.view.start(screen.api.objects)

        runner.run(start())
        try:
            yield screen
        finally:
            screen.view.close()


def test_the_tables_are_drawn_over_the_former_ones(tmp_path: Path) -> None:
    with show(tmp_path) as screen:
        before = screen.lines
        tables = ["QUEUECLUSTER", "main", "QUEUETOPIC", "jobs", "SHAREGROUP", "workers"]
        assert [line.split()[0] for line in before if line] == tables
        (cluster,) = screen.api.iterate("QueueCluster")
        screen.api.warn(cluster, "Broken", "")
        ((key, event),) = [one for one in screen.api.objects.items() if one[0][0] == "Event"]
        screen.api.write(key, {**event, "message": "a\nb\x1b[2Jc\x1b]0;title\x07"})
        screen.view.on_change(cluster, False)
        screen.run_timers(DRAW_SECONDS)
        assert screen.lines[: len(before)] == before
        gap, head, row = screen.lines[len(before) :]
        assert gap == ""
        assert head.split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
        assert row.split()[1:3] == ["Warning", "Broken"]
        assert r"   a b\u001b[2Jc" in row
        assert len(row) <= 80
        assert "\x1b]" not in screen.text


def test_many_changes_are_one_drawing_and_none_writes_nothing(tmp_path: Path) -> None:
    with show(tmp_path) as screen:
        (cluster,) = screen.api.iterate("QueueCluster")
        for _ in range(100):
            screen.view.on_change(cluster, False)
        before = screen.text
        assert screen.run_timers(DRAW_SECONDS) == 1
        assert screen.text == before
        screen.api.warn(cluster, "Broken", "none")
        assert screen.run_timers(AGE_SECONDS) == 1
        assert screen.text != before, "ages grow without changes"


def test_what_is_printed_meanwhile_stays_above(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with show(tmp_path) as screen:
        before = screen.lines
        print("queuetopic.shoal.dev/jobs configured")
        assert screen.lines == ["queuetopic.shoal.dev/jobs configured", *before]
        screen.view.close()
        assert screen.lines == ["queuetopic.shoal.dev/jobs configured", *before, ""]
        screen.view.on_change({}, True)
        print("stopping")
        assert capsys.readouterr().out == "stopping\n"
        assert screen.run_timers(DRAW_SECONDS) == 0


TABLES = [["HEAD A", "a"], ["HEAD B", "b", "c"]]
EVENTS = ["HEAD", *map(str, range(10))]


@pytest.mark.parametrize(
    ("height", "wanted"),
    [
        (30, ["HEAD A", "a", "", "HEAD B", "b", "c", "", *EVENTS]),
        (13, ["HEAD A", "a", "", "HEAD B", "b", "c", "", "HEAD", *"56789"]),
        (11, ["HEAD A", "a", "", "HEAD B", "b", "c", "", "HEAD", *"789"]),
        (8, ["HEAD A", "a", "4 more lines: see `shoal get all`.", "", "HEAD", *"789"]),
        (1, ["6 more lines: see `shoal get all`."]),
    ],
)
def test_tables_give_way_to_three_events(height: int, wanted: list[str]) -> None:
    assert fit_lines(TABLES, EVENTS, height) == wanted


def test_tables_without_events_have_all_lines() -> None:
    assert fit_lines(TABLES, [], 6) == ["HEAD A", "a", "", "HEAD B", "b", "c"]
    assert fit_lines([], [], 6) == []


TABLE = [
    ["QUEUECLUSTER", "BROKERS", "READY", "BOOTSTRAP", "AGE"],
    ["production-cluster", "3", "True", "production-bootstrap.default.svc:9092", "12s"],
]


@pytest.mark.parametrize(
    ("width", "cells"),
    [
        (90, TABLE[1]),
        (80, [*TABLE[1][:3], "production-bootstrap.default.svc:9…", "12s"]),
        (51, [*TABLE[1][:3], "produc…", "12s"]),
        (48, ["production-clus…", "3", "True", "produ…", "12s"]),
        (10, ["produ…", "3", "True", "produ…", "12s"]),
    ],
)
def test_a_table_shows_each_column_at_any_width(width: int, cells: list[str]) -> None:
    """Names are cut last."""
    head, row = fit_table(TABLE, width)
    assert row.split() == cells
    assert len(head) <= max(width, 40)
