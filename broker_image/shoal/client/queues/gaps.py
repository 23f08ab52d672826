"""The lowest unfinished records of consumer groups with individual commits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.queues.key_range_owners import WHOLE, RangeOwner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.net.cluster import TopicPartition
    from shoal.record.key_ranges import KeyRanges


@dataclass(frozen=True, slots=True)
class Gap:
    """The unfinished offsets below finished ones, of a partition or of key ranges of it.

    They begin at the position of the ranges, which is the stable offset of a partition that is not
    shared. `member` owns the ranges; None without an owner.
    """

    partition: TopicPartition
    first: int
    last: int
    finished: int
    ranges: int
    age_s: float
    member: str | None
    key_ranges: KeyRanges

    def to_row(self) -> dict[str, object]:
        """Return the row for the output. Numbers of offsets include those of other key ranges."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "gap": str(self.first) if self.first == self.last else f"{self.first}-{self.last}",
            "age_s": self.age_s,
            "finished_above": self.finished,
            "ranges": self.ranges,
            "member": self.member,
            "key_ranges": None if self.key_ranges == WHOLE else str(self.key_ranges),
        }


def find_gaps(owners: Iterable[RangeOwner]) -> list[Gap]:
    """Return the lowest gap of each partition, or of its key ranges, the oldest first."""
    now_ms = time.time() * 1000
    lowest_gaps = [
        Gap(
            owner.partition,
            owner.position,
            owner.finished.first - 1,
            len(owner.finished),
            owner.finished.count,
            max(0.0, (now_ms - owner.gap_timestamp_ms) / 1000),
            owner.member,
            owner.ranges,
        )
        for owner in owners
        if owner.finished.count
    ]
    return sorted(lowest_gaps, key=_get_sort_key)


def _get_sort_key(gap: Gap) -> tuple[float, TopicPartition]:
    return -gap.age_s, gap.partition
