"""When the boundaries of key ranges follow the measured load (ADR 121).

Members report how many records they got of each part of a partition that they share. The
coordinator adds the reports of a *window*. A partition is divided again when that was worth it in
each of `WINDOWS` windows one after the other. Windows with few records, and those in which the
owners have changed, do not count. So a burst moves nothing, and boundaries that have moved stay for
`WINDOWS` windows at least.

All of it is soft state of the group's coordinator. It decides when to divide and how, never who
owns what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.group.key_ranges import key_range_balance
from shoal.coordinator.group.key_ranges.key_slots import SLOTS, iterate_slots, overlapping_slots
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.features import KEY_HASH_MAX, KEY_RANGES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.group.assignment import TopicIdPartition

#: The windows in a row in which a new division must be worth it.
WINDOWS = 3
#: The least number of records in a window, for each owner. Fewer say little about the load.
RECORDS_MIN = 200


class KeyRangeLoad(NamedTuple):
    """How many records a member got of a key range."""

    first_hash: int
    last_hash: int
    records: int


#: The reports of one heartbeat, by partition.
Report = dict["TopicIdPartition", "Sequence[KeyRangeLoad]"]
NO_REPORT: Report = {}


def check(report: Report) -> None:
    """Raise INVALID_REQUEST for a report that no member sends."""
    for (topic, partition), loads in report.items():
        if len(loads) > KEY_RANGES_MAX:
            reason = f"{len(loads)} key ranges, at most {KEY_RANGES_MAX} are allowed"
        elif not all(0 <= a <= b <= KEY_HASH_MAX and n >= 0 for a, b, n in loads):
            reason = f"a key range outside of 0-{KEY_HASH_MAX}, or fewer than 0 records"
        else:
            continue
        raise ApiError(
            ErrorCode.invalid_request,
            f"The load of partition {partition} of topic {topic} has {reason}. Report the records "
            "of assigned ranges.",
        )


@dataclass(slots=True)
class _Window:
    """The records of each slot of a partition, since a time and with these owners."""

    since_ms: int
    owners: Mapping[str, int]
    records: list[int] = field(default_factory=lambda: [0] * SLOTS)
    #: The records of the windows before in which a new division was worth it, and their number.
    before: list[int] = field(default_factory=lambda: [0] * SLOTS)
    count: int = 0


class KeyRangeLoads:
    """The loads of the partitions that the members of one group share."""

    def __init__(self) -> None:
        self._windows: dict[TopicIdPartition, _Window] = {}
        #: What the next assignments use: the loads of the last window with enough records.
        self.measured_loads: dict[TopicIdPartition, Sequence[int]] = {}
        #: Partitions that the next assignment divides again.
        self.due_partitions: set[TopicIdPartition] = set()
        self._next_close_ms = 0

    def add(self, report: Report, owned: Mapping[TopicIdPartition, int]) -> None:
        """Add the report of a member. What it says about slots of others is ignored."""
        for topic_partition, loads in report.items():
            window = self._windows.get(topic_partition)
            if window is None:
                continue
            for load in loads:
                slots = overlapping_slots(load.first_hash, load.last_hash) & owned.get(
                    topic_partition, 0
                )
                count = slots.bit_count()
                for slot in iterate_slots(slots):
                    window.records[slot] += load.records // count

    def is_time_to_close(self, now_ms: int, interval_ms: int) -> bool:
        """Whether to call `close_windows`, which costs by members: ten times in a window."""
        if now_ms < self._next_close_ms:
            return False
        self._next_close_ms = now_ms + interval_ms // 10
        return True

    def close_windows(
        self,
        targets: Mapping[TopicIdPartition, Mapping[str, int]],
        now_ms: int,
        interval_ms: int,
    ) -> None:
        """Close the windows that are over, and note which partitions are to be divided again.

        `targets` has the owners of the shared partitions by the last assignment.
        """
        for topic_partition in self._windows.keys() - targets.keys():
            del self._windows[topic_partition]
            self.measured_loads.pop(topic_partition, None)
        for topic_partition, owners in targets.items():
            window = self._windows.get(topic_partition)
            if window is None or window.owners != owners:
                self._windows[topic_partition] = _Window(now_ms, owners)
            elif now_ms >= window.since_ms + interval_ms:
                self._close(topic_partition, window, now_ms)

    def _close(self, topic_partition: TopicIdPartition, window: _Window, now_ms: int) -> None:
        after = self._windows[topic_partition] = _Window(now_ms, window.owners)
        if sum(window.records) < RECORDS_MIN * len(window.owners):
            return
        self.measured_loads[topic_partition] = window.records
        if sum(slots.bit_count() for slots in window.owners.values()) != SLOTS:
            return  # A plain member has not given up its part yet.
        divided = key_range_balance.balance(window.owners, window.records)
        if not key_range_balance.is_worth_it(window.owners, divided, window.records):
            return
        after.before = [a + b for a, b in zip(window.before, window.records, strict=True)]
        after.count = window.count + 1
        if after.count == WINDOWS:
            self.measured_loads[topic_partition] = after.before
            self.due_partitions.add(topic_partition)
