"""What a worker counts, and how Prometheus reads it.

A handler counts in plain integers, because a metric object of the library costs more than a small
job. `collect` makes metric families of the counts of all processes of a worker.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from shoal.worker.jobs import Delivery

#: Upper bounds of the buckets of times, in seconds: from a cache lookup to a long render.
BOUNDS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
#: The ways in which a job ends. `timed_out` is a release, or a rejection, after `timeout`. `lost`
#: counts a lock that ended, or an outcome that came too late, beside what the outcome was.
#: `cancelled` jobs were given back because somebody has cancelled their records.
OUTCOMES = ("accepted", "released", "rejected", "timed_out", "lost", "returned", "cancelled")


class Histogram:
    """Counts of times by bucket, and their sum."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, times_s: list[float]) -> None:
        """Count times. Most of a list are usually in one bucket, which needs no look at each."""
        self.sum_s += sum(times_s)
        first, last = (bisect_left(BOUNDS_S, edge(times_s)) for edge in (min, max))
        if first == last:
            self.counts[first] += len(times_s)
            return
        for time_s in times_s:
            self.counts[bisect_left(BOUNDS_S, time_s)] += 1


class HandlerMetrics:
    """The counts of one handler in one process."""

    def __init__(self, group: str, handler: str) -> None:
        self.labels = (group, handler)
        self.accepted = 0
        #: The other outcomes.
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.redeliveries = 0
        #: The time of the last jobs, in seconds; below 0 before the first.
        self.average_run_s = -1.0
        self._wall_offset_s = time.time() - time.monotonic()
        self.run = Histogram()
        #: From the record's timestamp to the start of its handler.
        self.wait = Histogram()

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Count jobs that have ended, at least one. Small ones come in thousands, so each takes
        few steps here."""
        offset_s = self._wall_offset_s
        run_s = [d.ended_s - d.started_s for d in deliveries]
        self.run.add(run_s)
        # A producer's clock may be ahead of this one.
        wait_s = [d.started_s + offset_s - d.raw.timestamp_ms / 1000 for d in deliveries]
        self.wait.add(wait_s if min(wait_s) >= 0 else [max(each_s, 0.0) for each_s in wait_s])
        if any(hold.delivery_count > 1 for hold in {d.hold for d in deliveries}):
            self.redeliveries += sum(d.hold.delivery_count > 1 for d in deliveries)
        # A moving average over some twenty jobs.
        mean_s, average_s = sum(run_s) / len(run_s), self.average_run_s
        weight = 1.0 if average_s < 0 else 1 - 0.95 ** len(run_s)
        self.average_run_s = average_s + weight * (mean_s - average_s)

    def snapshot(self, in_flight: int, running: int) -> dict[str, Any]:
        """Return the counts as JSON has them, for another process, with the records that are locked
        and have no outcome yet, and the jobs that run."""
        return {
            "labels": list(self.labels),
            "outcomes": self.outcomes | {"accepted": self.accepted},
            "redeliveries": self.redeliveries,
            "run": [*self.run.counts, self.run.sum_s],
            "wait": [*self.wait.counts, self.wait.sum_s],
            "in_flight": in_flight,
            "running": running,
        }


def add_snapshots(snapshots: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add the counts of several processes by handler."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for snapshot in snapshots:
        total = sums.get(tuple(snapshot["labels"]))
        if total is None:
            sums[tuple(snapshot["labels"])] = dict(snapshot)
            continue
        total["outcomes"] = {n: c + snapshot["outcomes"][n] for n, c in total["outcomes"].items()}
        for name in ("redeliveries", "in_flight", "running"):
            total[name] += snapshot[name]
        for name in ("run", "wait"):
            total[name] = [a + b for a, b in zip(total[name], snapshot[name], strict=True)]
    return list(sums.values())


def end_snapshot(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of a process that has ended: it holds nothing anymore."""
    return {**snapshot, "in_flight": 0, "running": 0}


class _Collector:
    def __init__(self, snapshots: list[dict[str, Any]]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Metric]:
        names = ["group", "handler"]
        jobs = CounterMetricFamily(
            "shoal_worker_jobs", "Jobs that ended, by outcome.", labels=[*names, "outcome"]
        )
        again = CounterMetricFamily(
            "shoal_worker_redeliveries", "Jobs that were not a first delivery.", labels=names
        )
        held = GaugeMetricFamily(
            "shoal_worker_in_flight", "Records that this worker has locked.", labels=names
        )
        running = GaugeMetricFamily("shoal_worker_running", "Jobs that run now.", labels=names)
        run = HistogramMetricFamily(
            "shoal_worker_run_seconds", "Time that handlers ran.", labels=names
        )
        wait = HistogramMetricFamily(
            "shoal_worker_wait_seconds",
            "Time from a record's timestamp to the start of its handler.",
            labels=names,
        )
        for snapshot in self._snapshots:
            for outcome, count in snapshot["outcomes"].items():
                jobs.add_metric([*snapshot["labels"], outcome], count)
            again.add_metric(snapshot["labels"], snapshot["redeliveries"])
            held.add_metric(snapshot["labels"], snapshot["in_flight"])
            running.add_metric(snapshot["labels"], snapshot["running"])
            for family, numbers in ((run, snapshot["run"]), (wait, snapshot["wait"])):
                family.add_metric(snapshot["labels"], list(_cumulate(numbers[:-1])), numbers[-1])
        yield from (jobs, again, held, running, run, wait)


def _cumulate(counts: Iterable[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], counts, strict=True):
        total += count
        yield bound, total


def render(snapshots: list[dict[str, Any]]) -> bytes:
    """Return the counts in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(snapshots))
    return generate_latest(registry)
