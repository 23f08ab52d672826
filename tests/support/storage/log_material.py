"""Batches, and logs in memory, for tests of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.search import TimestampOffset, find_in_batch
from shoal.record.batch import iter_headers
from shoal.record.records import Record, build_batch, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.log.memory import MemoryStorage

NOW_MS = 1_700_000_000_000
DIRECTORY = "data/t-0"


def batch(
    *values: bytes | None,
    key: bytes | None = None,
    timestamp_ms: int = NOW_MS,
    compression: str = "none",
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytearray:
    """Return a client's batch; `producer` is (id, epoch, base sequence)."""
    return build_batch(
        [(timestamp_ms, key, value, ()) for value in values],
        compression=compression,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )


def keyed(*pairs: tuple[bytes, bytes | None], timestamp_ms: int = NOW_MS) -> bytearray:
    """Return a batch of keys and values."""
    return build_batch([(timestamp_ms, key, value, ()) for key, value in pairs])


def open_log(
    storage: MemoryStorage,
    config: LogConfig | None = None,
    *,
    now_ms: int = NOW_MS,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    cleaned_to: int = 0,
) -> Log:
    """Open the only log of a storage in memory."""
    return Log.open(
        storage,
        DIRECTORY,
        config or LogConfig(),
        now_ms=now_ms,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        cleaned_to=cleaned_to,
    )


def fill(log: Log, batches: Iterable[bytes | bytearray], *, now_ms: int = NOW_MS) -> None:
    """Append each batch as a client's, in leader epoch 0."""
    for data in batches:
        log.append(data, now_ms=now_ms, leader_epoch=0)


def records(log: Log, offset: int | None = None, *, max_bytes: int = 1 << 20) -> list[Record]:
    """Return all records from `offset` (default: log start) on, through consecutive reads."""
    at = log.log_start_offset if offset is None else offset
    first, out = at, []
    while at < log.log_end_offset:
        found = log.read(at, max_bytes)
        if not found.data:
            break
        for position, _ in iter_headers(found.data):
            out += [r for r in read_records(found.data, position) if r.offset >= first]
        assert found.next_offset > at, "a read that makes no progress"
        at = found.next_offset
    return out


def find_since(log: Log, timestamp_ms: int) -> TimestampOffset | None:
    """Return the first record whose timestamp is at least `timestamp_ms`."""
    next_offset: int | None = 0
    while next_offset is not None:
        next_offset, data = log.search(timestamp_ms, next_offset, None)
        found = find_in_batch(data, timestamp_ms, log.log_start_offset) if data else None
        if found is not None:
            return found
    return None


def compact(log: Log, now_ms: int = NOW_MS, *, memory_bytes: int = 1 << 20) -> bool:
    """Run one round of compaction to its end; return whether there was one."""
    steps = log.begin_compaction(
        now_ms, high_watermark=log.log_end_offset, memory_bytes=memory_bytes
    )
    if steps is None:
        return False
    for _ in steps:
        pass
    for gone in log.tick_retention(now_ms, high_watermark=log.log_end_offset):
        gone.remove()
    return True
