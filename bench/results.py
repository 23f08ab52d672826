"""The figures of a run by load and side, and the document made from them.

A side is "shoal" or its peer, which is "kafka" in most documents. Those of `make bench-deployed`
have several peers: a goal there names its own. A run without a peer has one side. The document is
JSON: what ran, where and when, and a row for each figure with the median, the range and the goal.
`report.py` shows it, `pages.py` publishes it.
"""

from __future__ import annotations

import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Figures = dict[str, Any]
Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
#: The peers by side. A ratio is to the first peer that ran, unless its goal names another one.
PEERS = {"kafka": "Kafka", "nats": "NATS", "redis": "Redis"}


class Goal(NamedTuple):
    """A bound of a figure's ratio to `peer`, or of the figure itself (`alone`)."""

    value: float
    more: bool = True
    alone: bool = False
    peer: str = "kafka"

    def met(self, ours: float, ratio: float | None) -> bool | None:
        """Whether a median meets the goal; None without a peer's figure."""
        found = ours if self.alone else ratio
        if found is None:
            return None
        return found >= self.value if self.more else found <= self.value


class Results:
    """Figures of all rounds, and the first error of each failed load."""

    def __init__(self) -> None:
        self._rounds: dict[str, dict[str, list[Figures]]] = {}
        self._failures: dict[str, dict[str, str]] = {}
        #: Sentences about the run, for its page.
        self.notes: list[str] = []

    @property
    def failed(self) -> bool:
        return bool(self._failures)

    def has_failed(self, load: str) -> bool:
        return load in self._failures

    def add(self, load: str, side: str, figures: Figures) -> None:
        self._rounds.setdefault(load, {}).setdefault(side, []).append(figures)

    def fail(self, load: str, side: str, error: object) -> None:
        """Note that a round failed. The load then has a row with the error and no figures."""
        # Some errors have no text.
        text = str(error) or repr(error)
        print(f"FAILED: {load}, {side}: {text}", flush=True)
        self._failures.setdefault(load, {}).setdefault(side, text[-500:])

    def rows(self, figures: Iterable[str], goal_of: Callable[[str, str], Goal | None]) -> list[Row]:
        """Return rows in the order of the loads, failed ones last."""
        kept = [load for load in self._rounds if load not in self._failures]
        found = [
            row
            for load in kept
            for figure in figures
            if (row := self._row(load, figure, goal_of(load, figure))) is not None
        ]
        return found + [
            {"load": load, "figure": "", "failed": errors}
            for load, errors in self._failures.items()
        ]

    def _row(self, load: str, figure: str, goal: Goal | None) -> Row | None:
        rounds = self._rounds[load].items()
        sides = {s: sorted(one[figure] for one in ones if figure in one) for s, ones in rounds}
        medians = {side: statistics.median(values) for side, values in sides.items() if values}
        ran = [peer for peer in PEERS if peer in sides]
        if "shoal" not in medians or (ran == ["kafka"] and "kafka" not in medians):
            return None
        ours = medians.pop("shoal")
        first = next((peer for peer in ran if peer in medians), "kafka")
        peer = goal.peer if goal and not goal.alone else first
        ratio = ratio_of(ours, medians.get(peer))
        return {
            "load": load,
            "figure": figure,
            "shoal": ours,
            "kafka": None,
            **medians,
            "ratio": ratio,
            **({} if peer == "kafka" else {"peer": peer}),
            "spread": {side: [found[0], found[-1]] for side, found in sides.items() if found},
            "rounds": len(sides["shoal"]),
            "goal": goal and goal._asdict(),
            "met": goal and goal.met(ours, ratio),
        }


def ratio_of(ours: float, theirs: float | None) -> float | None:
    """Return the ratio; None without a peer's figure, or if only the peer's is 0."""
    if theirs is None or (not theirs and ours):
        return None
    return ours / theirs if theirs else 1.0


class Clock:
    """The start of a run, and the load of the machine at that time.

    It makes SIGTERM end the process like an exit, so that no broker outlives the bench.
    """

    def __init__(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.began = time.time()
        self.load = os.getloadavg()[0]

    @property
    def seconds(self) -> int:
        return round(time.time() - self.began)

    def took(self) -> str:
        return f"{self.seconds // 60} min {self.seconds % 60} s in all"


def document(bench: str, clock: Clock, rows: list[Row], **more: Any) -> dict[str, Any]:
    """Return the document for `docs/benchmarks`. `more` has fields of this bench only."""
    return {
        "bench": bench,
        "date": time.strftime("%Y-%m-%d", time.gmtime(clock.began)),
        "commit": _commit(),
        "machine": machine(),
        "load_before": round(clock.load, 1),
        "seconds": clock.seconds,
        **more,
        "rows": rows,
    }


def machine() -> str:
    """Return a general description of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, {platform.machine()}, Linux"


def _commit() -> str:
    """Return the commit, with a plus sign if the tree has changes; empty outside a repository."""
    words = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*words, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*words, "status", "--porcelain", "--untracked-files=no"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return f"{head}+" if head and changed else head
