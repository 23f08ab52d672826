"""Samples of a demo's pipeline, and the check of its promises.

Pure. `PipelineWatch` collects samples. `failures` returns sentences about broken promises.
"""

from __future__ import annotations

import collections
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

#: Seconds over which throughput is averaged.
WINDOW_S = 5.0
#: Maximum number of keys that a sentence names.
NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class PipelineSample:
    """One sample: seconds since the feed began, and counts of records and workers."""

    at_s: float
    backlog: int
    wanted: int
    workers: int
    results: int
    dead_letters: int


@dataclass(slots=True)
class PipelineWatch:
    """The samples of a run. `broken` tasks cannot be processed; `workers` names what runs the
    tasks. `is_scaled` says whether the number of workers follows a wanted number. `state` is what
    happens now, and `verdict` what a good run has shown.
    """

    fed: int
    broken: int
    partitions: int
    workers: str = "executors"
    is_scaled: bool = True
    state: str = ""
    verdict: str = ""
    #: The most workers at any time, if that was counted more often than samples were taken.
    most_seen: int = 0
    samples: list[PipelineSample] = field(default_factory=list)

    @property
    def last(self) -> PipelineSample:
        return self.samples[-1] if self.samples else PipelineSample(0.0, 0, 0, 0, 0, 0)

    @property
    def most_workers(self) -> int:
        return max((self.most_seen, *(s.workers for s in self.samples)))

    @property
    def is_settled(self) -> bool:
        """Whether every task has ended with a result or a dead letter."""
        last = self.last
        return last.backlog == 0 and last.results + last.dead_letters >= self.fed

    def get_series(self, name: str) -> list[float]:
        """Return a count over time, or `compute_throughput` in records per second."""
        if name == "throughput":
            return self.compute_throughput()
        return [float(getattr(s, name)) for s in self.samples]

    def compute_throughput(self) -> list[float]:
        """Return the completed records per second at each sample, averaged over the seconds before
        it.
        """
        rates, begin = [], 0
        for s in self.samples:
            while s.at_s - self.samples[begin].at_s > WINDOW_S:
                begin += 1
            first = self.samples[begin]
            ended = s.results + s.dead_letters - first.results - first.dead_letters
            rates.append(ended / max(s.at_s - first.at_s, 1.0))
        return rates


def list_failures(watch: PipelineWatch, distinct_results: int) -> list[str]:
    """Return broken promises. `distinct_results` is the number of tasks with a result.

    A record may be processed twice if a process was killed, so total counts prove nothing.
    """
    failures, last, good = [], watch.last, watch.fed - watch.broken
    if last.backlog:
        failures.append(f"{last.backlog} tasks are left in the queue")
    if distinct_results < good:
        failures.append(f"{good - distinct_results} results are missing")
    if last.dead_letters < watch.broken:
        failures.append(f"{watch.broken - last.dead_letters} dead letters are missing")
    return failures + judge_workers(watch)


def judge_workers(watch: PipelineWatch) -> list[str]:
    """Return a sentence if workers never outnumbered partitions."""
    if watch.most_workers > watch.partitions:
        return []
    partitions = format_count(watch.partitions, "partition")
    return [
        f"{watch.workers} never outnumbered the {partitions}: there were {watch.most_workers} at "
        "most"
    ]


def compare_keys(noun: str, expected: Collection[str], keys: Iterable[str]) -> list[str]:
    """Return a sentence for keys that are missing, and one for those that came more than once.

    `expected` are the keys that must come once each; `noun` names them in the plural.
    """
    counts = collections.Counter(keys)
    kinds = {
        "lost": sorted(set(expected) - counts.keys()),
        "there twice or more": sorted(key for key, count in counts.items() if count > 1),
        "there without a task": sorted(counts.keys() - set(expected)),
    }
    return [
        f"{len(names):,} of {len(expected):,} {noun} are {kind}: {_list_some(names)}"
        for kind, names in kinds.items()
        if names
    ]


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: 1 partition, 2,000 partitions."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _list_some(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")


def shrink(values: Sequence[float], width: int) -> list[float]:
    """Reduce values to `width` columns, each the maximum of its values."""
    if len(values) <= width:
        return list(values)
    edges = [n * len(values) // width for n in range(width + 1)]
    return [max(values[a:b]) for a, b in itertools.pairwise(edges)]
