"""Records that a share-group member has acquired, and its acknowledgements of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.batches import decode
from shoal.record.batch import HEADER_SIZE, BatchHeader, headers, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from shoal.client.errors import ClientError


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


class Refusal(NamedTuple):
    """An acknowledgement that the broker rejected, usually because the lock had expired."""

    acknowledgement: Acknowledgement
    error: ClientError


class SharedRecord(NamedTuple):
    """A record as a share consumer sees it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Acquired:
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
            return (header for _, header in headers(self.data))
        places = range(0, len(self.data) - HEADER_SIZE + 1, HEADER_SIZE)
        return (read_header(self.data, at) for at in places)

    def records(self) -> Iterator[SharedRecord]:
        """Decode the locked records and skip all others in the batches.

        Raises `ValueError` if the fetch asked for no payload.
        """
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
                yield SharedRecord(self.topic, self.partition, *record, current.delivery_count)

    def acknowledge(self, type: AcknowledgeType, *, delay_ms: int = -1) -> list[Acknowledgement]:
        """Return one acknowledgement for each range; `delay_ms` as in `Acknowledgement`."""
        topic, partition = self.topic, self.partition
        return [
            Acknowledgement(topic, partition, r.first_offset, r.last_offset, type, delay_ms)
            for r in self.ranges
        ]


@dataclass(frozen=True, slots=True)
class Acquisition:
    """The result of `ShareSession.acquire`. `lock_timeout_ms` is 0 if nothing was acquired."""

    acquired: tuple[Acquired, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    lock_timeout_ms: int = 0

    def __iter__(self) -> Iterator[Acquired]:
        return iter(self.acquired)

    @property
    def count(self) -> int:
        return sum(a.count for a in self.acquired)
