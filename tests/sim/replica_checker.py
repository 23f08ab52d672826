"""Invariants of a replicated partition, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.record.batch import iter_headers
from shoal.record.records import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.log.log import Log
    from shoal.replication.partition import Partition


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Batch(NamedTuple):
    """A committed batch: its place, its epoch and its producer."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    base_sequence: int
    crc: int


def batches(log: Log, start: int, end: int) -> Iterator[Batch]:
    """Yield the batches of a log within [start, end)."""
    offset = start
    while offset < end:
        found = log.read(offset, 1 << 20, max_offset=end)
        if not found.data:
            return
        for _, h in iter_headers(found.data):
            yield Batch(
                h.base_offset, h.last_offset, h.leader_epoch, h.producer_id, h.base_sequence, h.crc
            )
        offset = found.next_offset


class Checker:
    """The committed log of each partition as first seen, and the responses to clients."""

    def __init__(self, partitions: int) -> None:
        self.committed: list[dict[int, Batch]] = [{} for _ in range(partitions)]
        self.ends = [0] * partitions
        self.sequences: list[dict[tuple[int, int], int]] = [{} for _ in range(partitions)]
        self.leaders: dict[tuple[int, int], int] = {}
        self.high_watermarks: dict[tuple[int, int, int], int] = {}
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        self.latest: dict[int, tuple[int, int]] = {}
        self.acknowledged_count = 0

    def leads(self, partition: Partition) -> None:
        """A broker considers itself the leader."""
        key = (partition.index, partition.leader_epoch)
        if self.leaders.setdefault(key, partition.node_id) != partition.node_id:
            raise Violation("one_leader", f"{self.leaders[key]} and {partition.node_id} in {key}")

    def served(self, partition: Partition) -> None:
        """A leader has answered a follower's fetch without an error."""
        epoch = partition.log.latest_epoch
        if epoch != partition.leader_epoch:
            raise Violation(
                "noted_epoch",
                f"{partition.node_id} serves in {partition.leader_epoch}, its log ends in {epoch}",
            )

    def advanced(self, partition: Partition, incarnation: int) -> None:
        """A high watermark has moved, on a leader or a follower."""
        key = (partition.node_id, incarnation, partition.index)
        index, end = partition.index, partition.high_watermark
        if end > partition.log.log_end_offset:
            raise Violation("high_watermark_in_log", f"{key}: {end} is past the log's end")
        before = self.high_watermarks.get(key)
        if before is not None and end < before:
            raise Violation("monotone_high_watermark", f"{key}: {end} after {before}")
        self.high_watermarks[key] = end
        start = before if before is not None else partition.log.log_start_offset
        known = self.committed[index]
        for batch in batches(partition.log, start, end):
            first = known.setdefault(batch.base_offset, batch)
            if first != batch:
                raise Violation("committed_prefix", f"{key}: {batch} where {first} was committed")
            if batch.base_sequence >= 0:
                sequence = (batch.producer_id, batch.base_sequence)
                at = self.sequences[index].setdefault(sequence, batch.base_offset)
                if at != batch.base_offset:
                    raise Violation("no_duplicate", f"{sequence} is at {at} and at {batch}")
        self.ends[index] = max(self.ends[index], end)

    def note_acknowledged(self, index: int, offset: int, value: bytes) -> None:
        """A producer got a response that its record is at `offset`."""
        if self.acknowledged[index].setdefault(offset, value) != value:
            raise Violation("acknowledged", f"two records were acknowledged at {index}/{offset}")
        self.acknowledged_count += 1

    def listed(self, index: int, leader_epoch: int, latest: int) -> None:
        """ListOffsets returned the end of a partition; a client ignores older epochs."""
        epoch, before = self.latest.get(index, (-1, 0))
        if leader_epoch < epoch:
            return
        if latest < before:
            raise Violation("offsets_back", f"{index}: {latest} in {leader_epoch} after {before}")
        self.latest[index] = (leader_epoch, latest)

    def converged(self, index: int, replicas: list[Partition]) -> None:
        """Check after the faults that all replicas have one log with all acknowledged records."""
        first = list(batches(replicas[0].log, 0, replicas[0].log.log_end_offset))
        for other in replicas[1:]:
            theirs = list(batches(other.log, 0, other.log.log_end_offset))
            if theirs != first:
                raise Violation("same_log", f"{index} on {other.node_id}, {replicas[0].node_id}")
        values = dict(_values(replicas[0].log))
        for offset, value in sorted(self.acknowledged[index].items()):
            if values.get(offset) != value:
                raise Violation("acknowledged", f"{value!r} is not at {index}/{offset}")


def _values(log: Log) -> Iterator[tuple[int, bytes]]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 20)
        for position, _ in iter_headers(found.data):
            for record in read_records(found.data, position):
                yield record.offset, bytes(record.value or b"")
        offset = found.next_offset
