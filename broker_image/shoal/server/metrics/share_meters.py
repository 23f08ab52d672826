"""Counters of share groups; `metrics.share` exposes them."""

from __future__ import annotations

from shoal.server.metrics.registry import Samples, label


class ShareTopicMeter:
    """Share requests for one topic since the start, counted by partition."""

    __slots__ = ("acknowledgements", "failed_acknowledgements", "failed_fetches", "fetches")

    def __init__(self) -> None:
        self.fetches = self.failed_fetches = 0
        self.acknowledgements = self.failed_acknowledgements = 0


class GroupedMean:
    """The number and the sum of observations, by group."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[int, int]] = {}

    def note(self, group_id: str, value: int) -> None:
        """Count one observation."""
        count, total = self.sums.get(group_id, (0, 0))
        self.sums[group_id] = (count + 1, total + value)

    def collect(self, column: int) -> Samples:
        """Return by group the number (0) or the sum (1) of observations."""
        return [(label(group=group), sums[column]) for group, sums in self.sums.items()]


class FetchMeter:
    """How long fetches used a share partition exclusively. Kafka measures the time under a lock;
    here it is the time on the event loop. `ratio_sum` is the sum of the ratios, in percent, of the
    time of a fetch to the time since the previous fetch ended. `batches` counts acquired ranges.
    """

    __slots__ = ("_ended_ns", "batches", "count", "ratio_sum", "time_ns")

    def __init__(self) -> None:
        self.batches = self.count = self.time_ns = self._ended_ns = 0
        self.ratio_sum = 0.0

    def note(self, begun_ns: int, ended_ns: int) -> None:
        """Count one fetch."""
        took_ns = ended_ns - begun_ns
        since_ns = ended_ns - (self._ended_ns or begun_ns)
        self.count += 1
        self.time_ns += took_ns
        self.ratio_sum += 100 * took_ns / max(since_ns, 1)
        self._ended_ns = ended_ns
