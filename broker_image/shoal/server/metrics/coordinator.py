"""Metrics of one coordinator's runtime, under Kafka's names (`CoordinatorRuntimeMetricsImpl`).

A coordinator of Kafka has threads with a queue before them. Here the one thread of the event loop
decides when a request comes: only what waits for the coordinator's topic to be made is queued, and
idle is what the loop is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from shoal.coordinator.runtime import Phase, Runtime
from shoal.server.metrics.registry import Metrics, Samples, label

#: The idle ratio is of the time since a look that is at least so old.
IDLE_WINDOW_S = 1.0


class IdleRatio:
    """The part of the time in which the thread that asks was not at work, by its CPU time.

    `clock` and `busy` give seconds: of the wall, and of the thread's work.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._busy = clock, busy
        self._seen = (clock(), busy())
        self._ratio = 1.0

    def __call__(self) -> float:
        """0 to 1, since the last look that was a second ago or more."""
        now, busy = self._clock(), self._busy()
        elapsed = now - self._seen[0]
        if elapsed >= IDLE_WINDOW_S:
            self._ratio = min(max(1 - (busy - self._seen[1]) / elapsed, 0.0), 1.0)
            self._seen = (now, busy)
        return self._ratio


#: By FindCoordinator's number of a coordinator's keys.
_KINDS = ("group", "transaction", "share")


class CoordinatorPort(Protocol):
    """One coordinator of this broker."""

    #: FindCoordinator's number of the kind of its keys.
    key_type: ClassVar[int]
    #: Partitions of its topic that were loaded, and the sum of the times in milliseconds.
    load_times: tuple[int, int]

    @property
    def runtime(self) -> Runtime[Any]: ...
    @property
    def queued(self) -> int:
        """Requests that wait until its topic is created."""


def register(metrics: Metrics, service: CoordinatorPort) -> None:
    """Add the families of a coordinator."""
    prefix = f"kafka_server_{_KINDS[service.key_type]}_coordinator_metrics_"
    idle = IdleRatio()
    metrics.add(
        f"{prefix}num_partitions",
        "gauge",
        "Partitions of the coordinator's topic that are led here, by state.",
        lambda: _phases(service),
    )
    loads = f"{prefix}partition_load_time_ms"
    help = "Time to load a partition of the coordinator's topic."
    metrics.add(f"{loads}_count", "counter", help, lambda: [((), service.load_times[0])])
    metrics.add(f"{loads}_sum", "counter", help, lambda: [((), service.load_times[1])])
    metrics.gauge(
        f"{prefix}event_queue_size",
        "Requests that wait for the coordinator's topic to be made; others are decided at once.",
        lambda: service.queued,
    )
    metrics.gauge(f"{prefix}thread_idle_ratio_avg", "Part of the time the loop was idle.", idle)


def _phases(service: CoordinatorPort) -> Samples:
    loading = len(service.runtime.loading_partitions)
    active = len(service.runtime.active())
    counts = ((Phase.LOADING, loading), (Phase.ACTIVE, active))
    return [(label(state=phase.value), count) for phase, count in counts]
