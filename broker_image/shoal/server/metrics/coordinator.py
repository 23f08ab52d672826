"""Metrics of one coordinator's runtime, under Kafka's names (`CoordinatorRuntimeMetricsImpl`).

In Kafka, a coordinator has threads and a queue. Here the thread of the event loop decides each
request at once. So only requests that wait for the coordinator's topic to be created count as
queued, and the idle ratio is that of the loop.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from shoal.coordinator.runtime import CoordinatorRuntime, ShardPhase
from shoal.server.metrics.registry import MetricRegistry, Samples, label

if TYPE_CHECKING:
    from collections.abc import Callable

#: The shortest time over which the idle ratio is measured.
IDLE_WINDOW_S = 1.0


class IdleRatio:
    """The part of the time in which the calling thread did not use the CPU.

    `clock` and `busy` return seconds: of wall-clock time, and of the thread's CPU time.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._busy = clock, busy
        self._last_reading = (clock(), busy())
        self._ratio = 1.0

    def __call__(self) -> float:
        """Return the ratio, 0 to 1, since a call at least one second ago."""
        now, busy = self._clock(), self._busy()
        elapsed = now - self._last_reading[0]
        if elapsed >= IDLE_WINDOW_S:
            self._ratio = min(max(1 - (busy - self._last_reading[1]) / elapsed, 0.0), 1.0)
            self._last_reading = (now, busy)
        return self._ratio


#: The coordinators, by the key type of FindCoordinator.
_KINDS = ("group", "transaction", "share")


class CoordinatorPort(Protocol):
    """One coordinator of this broker."""

    #: Its key type in FindCoordinator.
    key_type: ClassVar[int]
    #: The number of partitions loaded, and the sum of the load times in milliseconds.
    load_times: tuple[int, int]

    @property
    def runtime(self) -> CoordinatorRuntime[Any]: ...
    @property
    def queued(self) -> int:
        """Requests that wait until its topic is created."""


def register(metrics: MetricRegistry, service: CoordinatorPort) -> None:
    """Add the families of a coordinator."""
    prefix = f"kafka_server_{_KINDS[service.key_type]}_coordinator_metrics_"
    idle = IdleRatio()
    metrics.add(
        f"{prefix}num_partitions",
        "gauge",
        "Partitions of the coordinator's topic that this broker leads, by state.",
        lambda: _count_phases(service),
    )
    loads = f"{prefix}partition_load_time_ms"
    description = "Time to load a partition of the coordinator's topic."
    metrics.add(f"{loads}_count", "counter", description, lambda: [((), service.load_times[0])])
    metrics.add(f"{loads}_sum", "counter", description, lambda: [((), service.load_times[1])])
    metrics.add_gauge(
        f"{prefix}event_queue_size",
        "Requests that wait until the coordinator's topic is created.",
        lambda: service.queued,
    )
    metrics.add_gauge(
        f"{prefix}thread_idle_ratio_avg", "Part of the time in which the event loop was idle.", idle
    )


def _count_phases(service: CoordinatorPort) -> Samples:
    loading = len(service.runtime.loading_partitions)
    active = len(service.runtime.list_active())
    counts = ((ShardPhase.LOADING, loading), (ShardPhase.ACTIVE, active))
    return [(label(state=phase.value), count) for phase, count in counts]
