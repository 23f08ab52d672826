"""What a demo has seen of its pipeline, and whether it keeps the promises.

Pure. `Watch` gathers samples; `failures` says in sentences what went wrong, if anything did.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Throughput is the mean over so many seconds.
WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: seconds since the feed began, and counts of records and of workers."""

    at_s: float
    backlog: int
    wanted: int
    workers: int
    results: int
    dead_letters: int


@dataclass(slots=True)
class Watch:
    """Tasks of which `broken` cannot be done; `workers` is what runs them, in people's words."""

    fed: int
    broken: int
    partitions: int
    workers: str = "executors"
    state: str = ""
    samples: list[Sample] = field(default_factory=list)

    @property
    def last(self) -> Sample:
        return self.samples[-1] if self.samples else Sample(0.0, 0, 0, 0, 0, 0)

    @property
    def most_workers(self) -> int:
        return max((s.workers for s in self.samples), default=0)

    @property
    def settled(self) -> bool:
        """Whether every task has ended, one way or the other."""
        last = self.last
        return last.backlog == 0 and last.results + last.dead_letters >= self.fed

    def series(self, name: str) -> list[float]:
        """A count over time, or `throughput` in records a second."""
        if name == "throughput":
            return self.throughput()
        return [float(getattr(s, name)) for s in self.samples]

    def throughput(self) -> list[float]:
        """Records that ended in a second, at each sample, over the seconds before it."""
        found, begin = [], 0
        for s in self.samples:
            while s.at_s - self.samples[begin].at_s > WINDOW_S:
                begin += 1
            first = self.samples[begin]
            ended = s.results + s.dead_letters - first.results - first.dead_letters
            found.append(ended / max(s.at_s - first.at_s, 1.0))
        return found


def failures(watch: Watch, distinct_results: int) -> list[str]:
    """Promises not kept. `distinct_results` are tasks with a result, however often they have one.

    Records may come twice where something was killed, so counts alone prove nothing.
    """
    found, last, good = [], watch.last, watch.fed - watch.broken
    if last.backlog:
        found.append(f"{last.backlog} tasks are left in the queue")
    if distinct_results < good:
        found.append(f"{good - distinct_results} results are missing")
    if last.dead_letters < watch.broken:
        found.append(f"{watch.broken - last.dead_letters} dead letters are missing")
    if watch.most_workers <= watch.partitions:
        found.append(
            f"{watch.workers} never outnumbered the {watch.partitions} partitions: "
            f"there were {watch.most_workers} at most"
        )
    return found


def shrunk(values: Sequence[float], width: int) -> list[float]:
    """As many values as fit `width`: each the largest of those that it stands for."""
    if len(values) <= width:
        return list(values)
    edges = [n * len(values) // width for n in range(width + 1)]
    return [max(values[a:b]) for a, b in itertools.pairwise(edges)]
