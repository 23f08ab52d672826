"""Counters of share groups; `metrics.share` exposes them."""

from __future__ import annotations

from shoal.server.metrics.registry import Samples, label


class ShareTopicMeter:
    """Share requests for one topic since the start, counted by partition."""

    __slots__ = ("acknowledgements", "failed_acknowledgements", "failed_fetches", "fetches")

    def __init__(self) -> None:
        self.fetches = self.failed_fetches = 0
        self.acknowledgements = self.failed_acknowledgements = 0


class Mean:
    """Number and sum of observations by group."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[int, int]] = {}

    def note(self, group_id: str, value: int) -> None:
        """Count one observation."""
        count, total = self.sums.get(group_id, (0, 0))
        self.sums[group_id] = (count + 1, total + value)

    def samples(self, at: int) -> Samples:
        """By group: the count (0) or the sum (1)."""
        return [(label(group=group), sums[at]) for group, sums in self.sums.items()]


class FetchMeter:
    """How long fetches had a share partition to themselves. Kafka takes a lock for that; here it
    is the time of the loop. `ratio_sum` adds up, in hundredths, the part of each fetch of the time
    since the end of the one before; `batches` counts ranges acquired."""

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
