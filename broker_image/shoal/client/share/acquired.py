"""Records that a share-group member has acquired, and its acknowledgements of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.net.batches import decode
from shoal.record.batch import HEADER_SIZE, BatchHeader, iter_headers, read_header
from shoal.record.offset_set import to_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from shoal.client.errors import ClientError
    from shoal.protocol.reasons import FailureReason
    from shoal.record.records import Record


_get_offset = attrgetter("offset")


class AcknowledgeType(IntEnum):
    """Kafka's numbers. GAP marks an offset of an acquired range that holds no record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(IntEnum):
    """Acquire whole batches, which may exceed `max_records`, or never more than that (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class AcquiredRange(NamedTuple):
    """Offsets (both inclusive) locked for this member, with their delivery count."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """What to do with a range of acquired offsets, both inclusive."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    type: AcknowledgeType = AcknowledgeType.ACCEPT
    #: For a release: milliseconds until the records are available again. -1 uses the group's
    #: back-off. The maximum is the group's `share.redelivery.backoff.max.ms`.
    delay_ms: int = -1
    #: For a release or a rejection: why. Brokers of Apache Kafka do not get it.
    reason: FailureReason | None = None


class RejectedAcknowledgement(NamedTuple):
    """An acknowledgement that the broker rejected, usually because the lock had expired."""

    acknowledgement: Acknowledgement
    error: ClientError


class SharedRecord(NamedTuple):
    """A record as a share consumer sees it. `timestamp_ms` is in milliseconds since 1970, and
    `delivery_count` is 1 at the first delivery."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int


@dataclass(frozen=True, slots=True)
class AcquiredRecords:
    """Records that one fetch locked in one partition: ranges in offset order, and batch bytes."""

    topic: str
    topic_id: UUID
    partition: int
    ranges: tuple[AcquiredRange, ...]
    data: bytes = field(repr=False)
    has_payload: bool = True
    #: Id of the broker that holds the locks; -1 if unknown.
    leader_id: int = -1

    @property
    def count(self) -> int:
        """The number of locked offsets, including gaps in the log."""
        return sum(r.last_offset - r.first_offset + 1 for r in self.ranges)

    def batches(self) -> Iterator[BatchHeader]:
        """Yield the headers of the log's batches that hold the ranges: offsets and sizes."""
        if self.has_payload:
            return (header for _, header in iter_headers(self.data))
        places = range(0, len(self.data) - HEADER_SIZE + 1, HEADER_SIZE)
        return (read_header(self.data, position) for position in places)

    def records(self) -> Iterator[SharedRecord]:
        """Decode the locked records and skip all others in the batches.

        Raises `ValueError` if the fetch asked for no payload.
        """
        topic, partition = self.topic, self.partition
        for record, delivery_count in self.iterate_with_counts():
            yield SharedRecord(topic, partition, *record, delivery_count)

    def iterate_with_counts(self) -> Iterator[tuple[Record, int]]:
        """Yield the same as records of the log, with their delivery counts. Raises the same."""
        if not self.has_payload:
            raise ValueError("these records were acquired without their payload")
        ranges = iter(self.ranges)
        current = next(ranges, None)
        for record in decode(self.data):
            while current is not None and record.offset > current.last_offset:
                current = next(ranges, None)
            if current is None:
                return
            if record.offset >= current.first_offset:
                yield record, current.delivery_count

    def list_by_range(self) -> list[tuple[AcquiredRange, list[Record]]]:
        """Return the ranges with their records of the log, decoded at once. Raises the same."""
        if not self.has_payload:
            raise ValueError("these records were acquired without their payload")
        last = self.ranges[-1].last_offset if self.ranges else -1
        records = list(decode(self.data, last=last))
        by_range, end = [], 0
        for r in self.ranges:
            start = bisect_left(records, r.first_offset, end, key=_get_offset)
            end = bisect_right(records, r.last_offset, start, key=_get_offset)
            by_range.append((r, records[start:end]))
        return by_range

    def acknowledge(
        self, type: AcknowledgeType, *, delay_ms: int = -1, reason: FailureReason | None = None
    ) -> list[Acknowledgement]:
        """Return one acknowledgement for each range; the options as in `Acknowledgement`."""
        topic, partition = self.topic, self.partition
        return [
            Acknowledgement(topic, partition, r.first_offset, r.last_offset, type, delay_ms, reason)
            for r in self.ranges
        ]

    def find_gaps(self, present: set[int]) -> list[Acknowledgement]:
        """Return acknowledgements of the locked offsets that hold no record; `present` are those
        that do."""
        missing = [
            (self.topic, self.partition, offset)
            for r in self.ranges
            for offset in range(r.first_offset, r.last_offset + 1)
            if offset not in present
        ]
        return merge_places(missing, AcknowledgeType.GAP)


def merge_places(
    places: Iterable[tuple[str, int, int]], kind: AcknowledgeType
) -> list[Acknowledgement]:
    """Return acknowledgements of (topic, partition, offset), one for each range of offsets."""
    by_partition: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in sorted(places):
        by_partition.setdefault((topic, partition), []).append(offset)
    return [
        Acknowledgement(topic, partition, first, last, kind)
        for (topic, partition), offsets in by_partition.items()
        for first, last in to_ranges(offsets)
    ]


@dataclass(frozen=True, slots=True)
class Acquisition:
    """The result of `ShareSession.acquire`. `lock_timeout_ms` is 0 if nothing was acquired."""

    acquired: tuple[AcquiredRecords, ...] = ()
    refusals: tuple[RejectedAcknowledgement, ...] = ()
    lock_timeout_ms: int = 0

    def __iter__(self) -> Iterator[AcquiredRecords]:
        return iter(self.acquired)

    @property
    def count(self) -> int:
        return sum(a.count for a in self.acquired)
