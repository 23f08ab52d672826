"""The state of a log's producers: idempotence, fencing and open transactions (KIP-98).

Each producer id has an epoch, its last five batches, and the start of its open transaction. A batch
is checked before it is written (`check`) and noted afterwards (`note`), each in constant time. A
`.snapshot` file in Kafka's format stores the state at an offset, with the last batch of each
producer. Recovery loads the newest snapshot and replays the batches behind it. `log.resent` finds
the other four when a producer sends one of them again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from shoal.log.errors import AppendRefused
from shoal.log.indexes import AbortedTransaction
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    BatchHeader,
    advance_sequence,
)
from shoal.record.control import ControlType, EndTransactionMarker
from shoal.record.crc import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Batches kept of each producer: max.in.flight.requests.per.connection with idempotence.
BATCHES_MAX = 5
#: Kafka's default of producer.id.expiration.ms.
EXPIRATION_MS = 86_400_000

_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1
_CRC_FROM = 6


class CorruptSnapshot(Exception):
    """An invalid snapshot file. Recovery takes an older one."""


class BatchMetadata(NamedTuple):
    """A written batch, which its producer may send again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @classmethod
    def from_header(cls, header: BatchHeader, base_offset: int) -> BatchMetadata:
        """The batch with that header, which stands at `base_offset`."""
        delta = header.last_offset_delta
        return cls(header.last_sequence, base_offset + delta, delta, header.max_timestamp)

    @property
    def first_sequence(self) -> int:
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + SEQUENCE_MAX + 1

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerStateEntry:
    """The state of one producer id."""

    __slots__ = (
        "abridged",
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "producer_id",
        "seen_ms",
        "transaction_start",
    )

    def __init__(self, producer_id: int, seen_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = -1
        #: The largest timestamp of the last batch or marker, as DescribeProducers shows it.
        self.last_timestamp = -1
        #: When it last wrote, by the broker's clock. Expiry counts from this time.
        self.seen_ms = seen_ms
        #: The first offset of its open transaction, -1 without one.
        self.transaction_start = -1
        self.batches: list[BatchMetadata] = []
        #: Whether `batches` may lack earlier ones of this epoch, which a snapshot leaves out.
        self.abridged = False

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The last offset of its data, -1 without any."""
        return self.batches[-1].last_offset if self.batches else -1

    def enter_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.abridged = False
            self.epoch = epoch


class ProducerStateManager:
    """The producers of one log, and the transactions that bound its last stable offset."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerStateEntry] = {}
        #: First offset -> producer id of open transactions, in ascending order.
        self._open: dict[int, int] = {}
        #: (first, last) offsets of ended transactions that may lie above the high watermark.
        self._ended: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerStateEntry]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def check(self, header: BatchHeader, *, client: bool) -> BatchMetadata | None:
        """Check a data batch before its append. Return the earlier batch if this is a duplicate.

        Only clients' batches have sequences to check. Raises `AppendRefused`.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        epoch, first = header.producer_epoch, header.base_sequence
        if epoch == producer.epoch and client:
            last = header.last_sequence
            for batch in reversed(producer.batches):
                if batch.last_sequence == last and batch.first_sequence == first:
                    return batch
            expected = advance_sequence(producer.last_sequence, 1)
            if first != expected and producer.epoch != NO_PRODUCER_EPOCH:
                raise AppendRefused(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id} sent sequence {first} where {expected} is next",
                )
        elif epoch < producer.epoch:
            raise _build_fenced_error(header.producer_id, epoch, producer.epoch)
        elif client and first != 0 and producer.epoch not in (NO_PRODUCER_EPOCH, epoch):
            raise AppendRefused(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} began epoch {epoch} with sequence {first}, not 0",
            )
        if producer.transaction_start >= 0 and not header.is_transactional:
            raise AppendRefused(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} wrote outside of its open transaction",
            )
        return None

    def check_marker(self, header: BatchHeader, marker: EndTransactionMarker) -> None:
        """Check a transaction marker before its append. Raises `AppendRefused`."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            raise _build_fenced_error(header.producer_id, header.producer_epoch, producer.epoch)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise AppendRefused(
                ErrorCode.transaction_coordinator_fenced,
                f"the marker of producer {header.producer_id} has coordinator epoch "
                f"{marker.coordinator_epoch}, {producer.coordinator_epoch} is known",
            )

    def note(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Note a producer's data batch that was written at `base_offset`."""
        producer = self._get_or_add(header.producer_id, now_ms)
        producer.enter_epoch(header.producer_epoch)
        batches = producer.batches
        if len(batches) == BATCHES_MAX:
            del batches[0]
            producer.abridged = False
        batches.append(BatchMetadata.from_header(header, base_offset))
        producer.last_timestamp = header.max_timestamp
        if header.is_transactional and producer.transaction_start < 0:
            producer.transaction_start = base_offset
            self._open[base_offset] = header.producer_id

    def note_marker(
        self, header: BatchHeader, marker: EndTransactionMarker, offset: int, now_ms: int
    ) -> AbortedTransaction | None:
        """Note a marker that was written at `offset`. Return the transaction that it aborted.

        A marker of a transaction without data in this log ends nothing.
        """
        producer = self._get_or_add(header.producer_id, now_ms)
        producer.enter_epoch(header.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        first, producer.transaction_start = producer.transaction_start, -1
        if first < 0:
            return None
        # The transactions still open before this one bound the last stable offset.
        stable = next((start for start in self._open if start != first), offset + 1)
        del self._open[first]
        self._ended.append((first, offset))
        if marker.control_type is not ControlType.ABORT:
            return None
        return AbortedTransaction(header.producer_id, first, offset, stable)

    def _get_or_add(self, producer_id: int, now_ms: int) -> ProducerStateEntry:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = ProducerStateEntry(producer_id, now_ms)
        producer.seen_ms = now_ms
        return producer

    def find_first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the transactions that are open, or ended above the high
        watermark."""
        ended = self._ended
        if ended and ended[0][1] < high_watermark:
            ended[:] = [t for t in ended if t[1] >= high_watermark]
        first = next(iter(self._open), None)
        if ended:
            oldest = min(t[0] for t in ended)
            return oldest if first is None else min(first, oldest)
        return first

    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> int:
        """Remove silent producers without an open transaction. Return how many."""
        expired_ids = [
            p.producer_id
            for p in self._producers.values()
            if p.transaction_start < 0 and now_ms - p.seen_ms >= expiration_ms
        ]
        for producer_id in expired_ids:
            del self._producers[producer_id]
        return len(expired_ids)

    def clear(self) -> None:
        self._producers.clear()
        self._open.clear()
        self._ended.clear()

    def to_snapshot(self) -> bytes:
        """Return the state as the bytes of a `.snapshot` file."""
        body = bytearray()
        for p in self._producers.values():
            last = p.batches[-1] if p.batches else BatchMetadata(NO_SEQUENCE, -1, 0, -1)
            body += _ENTRY.pack(
                p.producer_id,
                p.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                p.last_timestamp,
                p.coordinator_epoch,
                p.transaction_start,
            )
        count = len(self._producers).to_bytes(4, "big")
        return _HEAD.pack(_VERSION, crc32c(count + body), len(self._producers)) + body

    def load(self, data: bytes, now_ms: int) -> None:
        """Load the state of a `.snapshot` file. Raises `CorruptSnapshot`; then nothing has changed.

        The last write of each producer counts as made at `now_ms`, because timestamps may be old.
        """
        if len(data) < _HEAD.size:
            raise CorruptSnapshot(f"{len(data)} bytes")
        version, crc, count = _HEAD.unpack_from(data)
        if version != _VERSION or crc != crc32c(memoryview(data)[_CRC_FROM:]):
            raise CorruptSnapshot(f"version {version} or its checksum")
        if len(data) != _HEAD.size + count * _ENTRY.size:
            raise CorruptSnapshot(f"{count} entries in {len(data)} bytes")
        self.clear()
        for entry in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start = entry
            producer = self._get_or_add(producer_id, now_ms)
            producer.epoch = epoch
            producer.last_timestamp = timestamp
            producer.coordinator_epoch = coordinator_epoch
            producer.transaction_start = start
            if offset >= 0:
                producer.batches.append(BatchMetadata(sequence, offset, delta, timestamp))
                producer.abridged = True
        starts = ((p.transaction_start, p.producer_id) for p in self if p.transaction_start >= 0)
        self._open = dict(sorted(starts))


def _build_fenced_error(producer_id: int, epoch: int, known_epoch: int) -> AppendRefused:
    return AppendRefused(
        ErrorCode.invalid_producer_epoch,
        f"producer {producer_id} wrote with epoch {epoch}, but epoch {known_epoch} has been seen",
    )
