"""Which records a cleaning keeps: the last one of each key (KIP-58, KIP-534).

A cleaning maps the digest of each key to its last offset, up to a memory limit, in the batches of
the dirty part. Then it filters batches: those of the dirty part, and older ones. It drops records
that a later one of the same key replaces, expired tombstones, and records of aborted transactions.
Offsets, sequences and epochs do not change.

`log.compaction` cleans the local log in this way, and `server.tiered.cleaning` remote segments.
Methods are generators that yield after each bounded step. A few kilobytes of a batch may expand to
128 MB, so a step is bounded in what batches expand to, and leaves larger ones to an `Aside`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shoal.record.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    CorruptBatch,
    check_crc,
    seal,
)
from shoal.record.compression import OutputFull, compress
from shoal.record.control import ControlType, read_marker
from shoal.record.records import (
    Span,
    decompress_records,
    iter_spans,
    put_span,
    read_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from shoal.log.config import LogConfig
    from shoal.log.indexes import AbortedTransaction, TransactionIndex

#: Bytes per key in the map: a 16-byte digest, an offset, and the slot of the dict.
#: Measured with tracemalloc: 116 when full, 141 at its emptiest, 159 while it grows.
ENTRY_BYTES = 160
#: Records between two yields, about 3 µs each.
_STEP_RECORDS = 512
#: Bytes of batches, and of what they expand to, between two yields.
_STEP_BYTES = 1 << 20
#: Records are removed from a larger batch in an `Aside`: more bytes or records take too long.
_REBUILT_BYTES_MAX, _REBUILT_RECORDS_MAX = 256 << 10, 2000

T = TypeVar("T")


@dataclass(slots=True)
class CleanedTransactionMetadata:
    """The open transactions of a scan in offset order, and whether the scan has met their data."""

    #: Aborted transactions ahead of the scan, by first offset.
    upcoming: list[tuple[int, AbortedTransaction]] = field(default_factory=list)
    aborted: dict[int, AbortedTransaction] = field(default_factory=dict)
    with_data: dict[int, None] = field(default_factory=dict)
    committed: dict[int, None] = field(default_factory=dict)

    def add(self, transactions: list[AbortedTransaction]) -> None:
        for transaction in transactions:
            heapq.heappush(self.upcoming, (transaction.first_offset, transaction))

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._begin_until(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self.aborted:
            self.with_data[header.producer_id] = None
            return True
        self.committed[header.producer_id] = None
        return False

    def end(
        self,
        header: BatchHeader,
        data: bytes,
        retained_index: TransactionIndex | None,
        *,
        keeps_all: bool = False,
    ) -> bool:
        """End a transaction at its control batch. Return whether the scan met none of its data, so
        that the marker is not needed. An abort that is needed is added to `retained_index`. With
        `keeps_all` each is, because its data may be elsewhere."""
        self._begin_until(header.last_offset)
        if not header.record_count:
            return True
        marker = read_marker(data)
        if marker is None:
            return False
        if marker.control_type is ControlType.COMMIT:
            return self.committed.pop(header.producer_id, self) is self
        transaction = self.aborted.pop(header.producer_id, None)
        unseen = self.with_data.pop(header.producer_id, self) is self
        if transaction is None or (unseen and not keeps_all):
            return True
        if retained_index is not None:
            retained_index.extend([transaction])
        return False

    def _begin_until(self, offset: int) -> None:
        while self.upcoming and self.upcoming[0][0] <= offset:
            _, transaction = heapq.heappop(self.upcoming)
            self.aborted.setdefault(transaction.producer_id, transaction)


class Aside(Generic[T]):
    """Work on one batch that takes too long for the event loop. A step yields it, and `run_once`
    may run in another thread before the next step."""

    __slots__ = ("_call", "_error", "_found")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call: Callable[[], T] | None = call
        self._error: CorruptBatch | None = None
        self._found: T | None = None

    def run_once(self) -> None:
        """Do the work unless it is done."""
        call, self._call = self._call, None
        if call is None:
            return
        try:
            self._found = call()
        except CorruptBatch as error:
            self._error = error

    def result(self) -> T:
        """Return what the work found, doing it now if nobody has. Raises `CorruptBatch`."""
        self.run_once()
        if self._error is not None:
            raise self._error
        return self._found  # type: ignore[return-value]


Step = Aside[Any] | None


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

    def _should_pause(self, records: int, size: int = 0) -> bool:
        """Whether the work since the last pause has reached the limit of one step."""
        self.steps += records * (_STEP_BYTES // _STEP_RECORDS) + size
        if self.steps < _STEP_BYTES:
            return False
        self.steps = 0
        return True

    def _do_aside(self, call: Callable[[], T]) -> Generator[Aside[T], None, T]:
        """Return what `call` returns, which may run in another thread."""
        aside = Aside(call)
        self.steps = 0
        yield aside
        self.check()
        return aside.result()

    def _expand(self, header: BatchHeader, data: bytes) -> Generator[Step, None, bytes]:
        """Return the records of a batch. Raises `CorruptBatch`."""
        if not header.compression:
            return decompress_records(data, 0, header)
        try:
            body = decompress_records(data, 0, header, bytes_max=_STEP_BYTES)
        except OutputFull:
            return (yield from self._do_aside(partial(decompress_records, data, 0, header)))
        if self._should_pause(0, len(body)):
            yield None
            self.check()
        return body

    def _digest(self, body: bytes, span: Span) -> Generator[Step, None, bytes]:
        """Return the digest of a large key."""
        return (yield from self._do_aside(partial(_digest_of, body, span)))

    # The map

    def build_offset_map(
        self,
        batches: Iterable[tuple[int, BatchHeader, bytes]],
        transactions: CleanedTransactionMetadata,
    ) -> Iterator[Step]:
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
            if self._should_pause(1, header.size):
                yield None
                self.check()

    def _map_batch(self, header: BatchHeader, data: bytes) -> Iterator[Step]:
        body = yield from self._expand(header, data)
        base_offset, latest, start = header.base_offset, self.latest, self.start
        for span in iter_spans(body, header.record_count):
            if span.key_size >= 0 and base_offset + span.offset_delta >= start:
                if span.key_size <= _STEP_BYTES:
                    digest = _digest_of(body, span)
                else:
                    digest = yield from self._digest(body, span)
                latest[digest] = base_offset + span.offset_delta
                if len(latest) > self.entries_max and self.mapped_to >= start:
                    self.is_full = True
                    return
            if self._should_pause(1, span.key_size):
                yield None
                self.check()

    # The filter

    def filter_batch(
        self,
        header: BatchHeader,
        data: bytes,
        transactions: CleanedTransactionMetadata,
        index: TransactionIndex,
    ) -> Generator[Step, None, tuple[bytes, int] | None]:
        """Return (the retained batch, its largest timestamp), or None to drop the batch."""
        if not check_crc(data, 0, header):
            raise CorruptBatch(f"the CRC of the batch at offset {header.base_offset}")
        horizon = header.delete_horizon_ms
        past_horizon = horizon is not None and horizon <= self.now_ms and not self.keeps_tombstones
        if header.is_control:
            keeps_all = self.keeps_tombstones
            unneeded = transactions.end(header, data, index, keeps_all=keeps_all)
            drop, tombstone = unneeded and past_horizon, unneeded and not past_horizon
            # A marker may have stayed without its record, for its offset.
            body, retained = (
                decompress_records(data, 0, header),
                bytearray(b"\1" * header.record_count),
            )
        else:
            drop, tombstone = transactions.is_aborted(header), False
            body, retained = b"", bytearray()
            if not drop and header.record_count:
                body = yield from self._expand(header, data)
                retained, tombstone = yield from self._find_kept(header, body, past_horizon)
        if drop or 1 not in retained:
            return drop_records(header) if self._should_retain_empty(header) else None
        new_horizon = self._set_delete_horizon(horizon) if tombstone else None
        if new_horizon == horizon or new_horizon is None:
            if 0 not in retained:
                return data, header.max_timestamp
            new_horizon = horizon
        rebuild = partial(keep_records, header, body, retained, new_horizon)
        if len(body) > _REBUILT_BYTES_MAX or len(retained) > _REBUILT_RECORDS_MAX:
            return (yield from self._do_aside(rebuild))
        return rebuild()

    def _find_kept(
        self, header: BatchHeader, body: bytes, past_horizon: bool
    ) -> Generator[Step, None, tuple[bytearray, bool]]:
        """Return 1 for each record of a batch that stays and 0 for the others, and whether a
        tombstone stays."""
        kept = bytearray()
        tombstone = False
        for span in iter_spans(body, header.record_count):
            offset = header.base_offset + span.offset_delta
            stays = offset > self.mapped_to
            if not stays and span.key_size >= 0:
                if span.key_size <= _STEP_BYTES:
                    digest = _digest_of(body, span)
                else:
                    digest = yield from self._digest(body, span)
                stays = offset >= self.latest.get(digest, -1) and (
                    span.value_size >= 0 or not past_horizon
                )
            kept.append(stays)
            tombstone = tombstone or (stays and span.value_size < 0)
            if self._should_pause(1, span.key_size):
                yield None
                self.check()
        return kept, tombstone

    def _set_delete_horizon(self, horizon: int | None) -> int:
        """Return the delete horizon of a batch with a tombstone, and schedule a round at it."""
        delete_horizon = (
            self.now_ms + self.config.delete_retention_ms if horizon is None else horizon
        )
        self._schedule_round(delete_horizon)
        return delete_horizon

    def _schedule_round(self, horizon: int) -> None:
        """Schedule the next round at or before `horizon`, when a tombstone expires."""
        if horizon > self.now_ms and not self.keeps_tombstones:
            self.next_horizon_ms = min(horizon, self.next_horizon_ms or horizon)

    def _should_retain_empty(self, header: BatchHeader) -> bool:
        if header.next_offset == self.end:
            return True
        last = self.last_of_producers.get(header.producer_id)
        if last is None:
            return False
        last_offset, epoch = last
        if last_offset >= 0:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == epoch


def _digest_of(body: bytes, span: Span) -> bytes:
    """Return the digest of a record's key."""
    return blake2b(read_key(body, span) or b"", digest_size=16).digest()


def drop_records(header: BatchHeader) -> tuple[bytes, int]:
    """Return the batch without records, with its offsets, sequences and epochs."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    if header.record_count == 0:
        attributes = header.attributes
    bare = header._replace(attributes=attributes, record_count=0)
    return bytes(seal(bare, b"")), header.max_timestamp


def keep_records(
    header: BatchHeader,
    body: bytes,
    kept: bytearray,
    horizon: int | None = None,
    level: int | None = None,
) -> tuple[bytes, int]:
    """Return the batch with only the records that `kept` has a 1 for, and its largest timestamp. A
    new delete horizon becomes the base of the records' timestamp deltas (KIP-534). `level` is that
    of the codec, None for its default."""
    base, attributes = header.base_timestamp, header.attributes
    is_moved = horizon is not None and header.delete_horizon_ms != horizon
    new_base = horizon if is_moved and horizon is not None else base
    out = bytearray()
    largest_delta: int | None = None
    for span, stays in zip(iter_spans(body, header.record_count), kept, strict=True):
        if not stays:
            continue
        if is_moved:
            put_span(out, body, span, base + span.timestamp_delta - new_base)
        else:
            out += body[span.start : span.end]
        if largest_delta is None or span.timestamp_delta > largest_delta:
            largest_delta = span.timestamp_delta
    assert largest_delta is not None
    if is_moved:
        attributes |= DELETE_HORIZON_BIT
    if attributes & LOG_APPEND_TIME_BIT:
        max_timestamp = header.max_timestamp
    else:
        max_timestamp = base + largest_delta
    changed = header._replace(
        attributes=attributes,
        base_timestamp=new_base,
        max_timestamp=max_timestamp,
        record_count=sum(kept),
    )
    return bytes(seal(changed, compress(header.compression, out, level))), max_timestamp
