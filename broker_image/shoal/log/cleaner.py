"""Which records a cleaning keeps: the last one of each key (KIP-58, KIP-534).

A cleaning maps the digest of each key to its last offset, up to a memory limit, in the batches of
the dirty part. Then it filters batches: those of the dirty part, and older ones. It drops records
that a later one of the same key replaces, expired tombstones, and records of aborted transactions.
Offsets, sequences and epochs do not change.

`log.compaction` cleans the local log in this way, and `server.tiered.cleaning` remote segments.
Methods are generators that yield after each bounded step.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from shoal.record.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    CorruptBatch,
    check_crc,
    seal,
)
from shoal.record.compression import compress
from shoal.record.control import ControlType, read_marker
from shoal.record.records import Span, key_of, put_span, records_body, spans

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from shoal.log.config import LogConfig
    from shoal.log.indexes import AbortedTransaction, TransactionIndex

#: Bytes per key in the map: a 16-byte digest, an offset, and the slot of the dict.
#: Measured with tracemalloc: 116 when full, 141 at its emptiest, 159 while it grows.
ENTRY_BYTES = 160
#: Records between two yields, about 3 µs each.
_STEP_RECORDS = 512
#: Bytes of unchanged batches between two yields.
_STEP_BYTES = 1 << 20


@dataclass(slots=True)
class Transactions:
    """The open transactions of a scan in offset order, and whether the scan has met their data."""

    #: Aborted transactions ahead of the scan, by first offset.
    ahead: list[tuple[int, AbortedTransaction]] = field(default_factory=list)
    aborted: dict[int, AbortedTransaction] = field(default_factory=dict)
    seen: dict[int, None] = field(default_factory=dict)
    committed: dict[int, None] = field(default_factory=dict)

    def add(self, found: list[AbortedTransaction]) -> None:
        for one in found:
            heapq.heappush(self.ahead, (one.first_offset, one))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._pass(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self.aborted:
            self.seen[header.producer_id] = None
            return True
        self.committed[header.producer_id] = None
        return False

    def end(
        self,
        header: BatchHeader,
        data: bytes,
        kept: TransactionIndex | None,
        *,
        keeps_all: bool = False,
    ) -> bool:
        """End a transaction at its control batch. Return whether the scan met none of its data, so
        that the marker is not needed. An abort that is needed is added to `kept`. With `keeps_all`
        each is, because its data may be elsewhere."""
        self._pass(header.last_offset)
        if not header.record_count:
            return True
        marker = read_marker(data)
        if marker is None:
            return False
        if marker.control_type is ControlType.COMMIT:
            return self.committed.pop(header.producer_id, self) is self
        one = self.aborted.pop(header.producer_id, None)
        unseen = self.seen.pop(header.producer_id, self) is self
        if one is None or (unseen and not keeps_all):
            return True
        if kept is not None:
            kept.extend([one])
        return False

    def _pass(self, offset: int) -> None:
        while self.ahead and self.ahead[0][0] <= offset:
            _, one = heapq.heappop(self.ahead)
            self.aborted.setdefault(one.producer_id, one)


class Cleaner:
    """One cleaning: its map, and what it has decided so far."""

    def __init__(
        self,
        config: LogConfig,
        *,
        now_ms: int,
        start: int,
        end: int,
        entries_max: int,
        keeps_tombstones: bool = False,
    ) -> None:
        """The dirty part is [start, end). With `keeps_tombstones`, records that tombstones delete
        may be elsewhere, and tombstones and markers stay."""
        self.config = config
        self.now_ms = now_ms
        self.start = start
        self.end = end
        self.entries_max = entries_max
        self.keeps_tombstones = keeps_tombstones
        #: Digest of a key -> its last offset in the dirty part.
        self.latest: dict[bytes, int] = {}
        #: The last offset in the map; records above it stay.
        self.mapped_to = start - 1
        #: Whether the map has no room for more of the dirty part.
        self.is_full = False
        self.next_horizon_ms: int | None = None
        self.steps = 0
        #: Bytes read, and written to new segments.
        self.io_bytes = 0
        #: Producer id -> (last offset, epoch) of the batches that stay, if only without records.
        self.last_of_producers: dict[int, tuple[int, int]] = {}

    def check(self) -> None:
        """Called after each pause: may raise, which ends the cleaning."""

    def _pause(self, records: int, size: int = 0) -> bool:
        """Whether the work since the last pause has reached the limit of one step."""
        self.steps += records * (_STEP_BYTES // _STEP_RECORDS) + size
        if self.steps < _STEP_BYTES:
            return False
        self.steps = 0
        return True

    # The map

    def map(
        self, batches: Iterable[tuple[int, BatchHeader, bytes]], transactions: Transactions
    ) -> Iterator[None]:
        """Add batches of the dirty part to the map, in order. Raises `CorruptBatch`."""
        for _, header, data in batches:
            self.io_bytes += header.size
            if not check_crc(data, 0, header):
                raise CorruptBatch(f"the CRC of the batch at offset {header.base_offset}")
            if header.is_control:
                transactions.end(header, data, None)
            elif not transactions.is_aborted(header):
                yield from self._map_batch(header, data)
                if self.is_full:
                    return  # The map has only a part of this batch, so its end stays below.
            self.mapped_to = header.last_offset
            if self._pause(1, header.size):
                yield None
                self.check()

    def _map_batch(self, header: BatchHeader, data: bytes) -> Iterator[None]:
        body = records_body(data, 0, header)
        base_offset, latest, start = header.base_offset, self.latest, self.start
        for span in spans(body, header.record_count):
            key = key_of(body, span)
            if key is not None and base_offset + span.offset_delta >= start:
                latest[_digest(key)] = base_offset + span.offset_delta
                if len(latest) > self.entries_max and self.mapped_to >= start:
                    self.is_full = True
                    return
            if self._pause(1):
                yield None
                self.check()

    # The filter

    def filter(
        self,
        header: BatchHeader,
        data: bytes,
        transactions: Transactions,
        index: TransactionIndex,
    ) -> Generator[None, None, tuple[bytes, int] | None]:
        """Return (the retained batch, its largest timestamp), or None to drop the batch."""
        if not check_crc(data, 0, header):
            raise CorruptBatch(f"the CRC of the batch at offset {header.base_offset}")
        horizon = header.delete_horizon_ms
        past_horizon = horizon is not None and horizon <= self.now_ms and not self.keeps_tombstones
        if header.is_control:
            keeps_all = self.keeps_tombstones
            unneeded = transactions.end(header, data, index, keeps_all=keeps_all)
            drop, tombstone = unneeded and past_horizon, unneeded and not past_horizon
            # None keeps all. A marker may have stayed without its record, for its offset.
            kept: list[Span] | None = None if header.record_count else []
            body = b""
        else:
            drop, tombstone = transactions.is_aborted(header), False
            kept, body = [], b""
            if not drop and header.record_count:
                body = records_body(data, 0, header)
                kept, tombstone = yield from self._retained(header, body, past_horizon)
        if drop or kept == []:
            return emptied(header) if self._stays_empty(header) else None
        new_horizon = self._tombstone_horizon(horizon) if tombstone else None
        if new_horizon == horizon or new_horizon is None:
            if kept is None or len(kept) == header.record_count:
                return data, header.max_timestamp
            new_horizon = horizon
        if kept is None:
            body = records_body(data, 0, header)
            kept = list(spans(body, header.record_count))
        return _rebuilt(header, body, kept, new_horizon)

    def _retained(
        self, header: BatchHeader, body: bytes, past_horizon: bool
    ) -> Generator[None, None, tuple[list[Span], bool]]:
        """Return the retained records of a batch, and whether a tombstone is among them."""
        kept: list[Span] = []
        tombstone = False
        for span in spans(body, header.record_count):
            if self._stays(header, body, span, past_horizon):
                kept.append(span)
                tombstone = tombstone or span.value_size < 0
            if self._pause(1):
                yield None
                self.check()
        return kept, tombstone

    def _tombstone_horizon(self, horizon: int | None) -> int:
        """Return the delete horizon of a batch with a tombstone, and schedule a round at it."""
        found = self.now_ms + self.config.delete_retention_ms if horizon is None else horizon
        self._expect(found)
        return found

    def _expect(self, horizon: int) -> None:
        """Schedule the next round at or before `horizon`, when a tombstone expires."""
        if horizon > self.now_ms and not self.keeps_tombstones:
            self.next_horizon_ms = min(horizon, self.next_horizon_ms or horizon)

    def _stays(self, header: BatchHeader, body: bytes, span: Span, past_horizon: bool) -> bool:
        offset = header.base_offset + span.offset_delta
        if offset > self.mapped_to:
            return True
        key = key_of(body, span)
        if key is None:
            return False
        return offset >= self.latest.get(_digest(key), -1) and (
            span.value_size >= 0 or not past_horizon
        )

    def _stays_empty(self, header: BatchHeader) -> bool:
        if header.next_offset == self.end:
            return True
        last = self.last_of_producers.get(header.producer_id)
        if last is None:
            return False
        last_offset, epoch = last
        if last_offset >= 0:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == epoch


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()


def emptied(header: BatchHeader) -> tuple[bytes, int]:
    """Return the batch without records, with its offsets, sequences and epochs."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    if header.record_count == 0:
        attributes = header.attributes
    bare = header._replace(attributes=attributes, record_count=0)
    return bytes(seal(bare, b"")), header.max_timestamp


def _rebuilt(
    header: BatchHeader, body: bytes, kept: list[Span], horizon: int | None
) -> tuple[bytes, int]:
    """Return the batch with only the records of `kept`. A new delete horizon becomes the base of
    the records' timestamp deltas (KIP-534)."""
    base = header.base_timestamp
    attributes = header.attributes
    if horizon is not None and header.delete_horizon_ms != horizon:
        attributes |= DELETE_HORIZON_BIT
        out = bytearray()
        for span in kept:
            put_span(out, body, span, base + span.timestamp_delta - horizon)
        new_base = horizon
    else:
        out = bytearray(b"".join(body[span.start : span.end] for span in kept))
        new_base = base
    if attributes & LOG_APPEND_TIME_BIT:
        max_timestamp = header.max_timestamp
    else:
        max_timestamp = base + max(span.timestamp_delta for span in kept)
    changed = header._replace(
        attributes=attributes,
        base_timestamp=new_base,
        max_timestamp=max_timestamp,
        record_count=len(kept),
    )
    return bytes(seal(changed, compress(header.compression, out))), max_timestamp
