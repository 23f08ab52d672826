"""Appends of batches from clients, coordinators and leaders, with the checks for each.

A batch stays the bytes that were received. A leader's log writes the offset and the leader epoch
into the first bytes, which the CRC does not cover. A follower's log keeps both. `LogState.write`
then writes the batch at the end of the log. After `AppendRefused` nothing of that batch is in the
log.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from shoal.log import resent
from shoal.log.errors import AppendRefused
from shoal.log.validation import ValidatedBatch, check_follower_batch, recompress, validate
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import (
    CONTROL_BIT,
    NO_PRODUCER_ID,
    OVERHEAD,
    BatchHeader,
    Buffer,
    CorruptBatch,
    TimestampType,
    assign,
    build_prefix,
    iter_headers,
    read_header,
)
from shoal.record.control import EndTransactionMarker, read_marker
from shoal.record.records import build_batch, build_own_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.log.producers import BatchMetadata
    from shoal.log.state import LogState

#: The first bytes of a batch, which an append replaces and the CRC does not cover.
_PREFIX_SIZE = 16


class AppendOrigin(IntEnum):
    """Who appends, which determines the checks."""

    CLIENT = 0
    COORDINATOR = 1


class LogAppendInfo(NamedTuple):
    """The position of an appended batch. `append_time_ms` is -1 under create time. `duplicate` is
    set if the batch was there before. `size` is the bytes that a leader's append has added.
    `known_offset` is that of the first record, if ids show that it was there before."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    size: int = 0
    known_offset: int = -1


def append_client_batch(
    log: LogState, batch: Buffer | ValidatedBatch, now_ms: int, leader_epoch: int
) -> LogAppendInfo:
    """Append one batch of a producer, or return the position of an earlier duplicate."""
    if not isinstance(batch, ValidatedBatch):
        batch = validate(batch, log.config, now_ms)
    header, data = batch.header, batch.data
    if header.producer_id != NO_PRODUCER_ID:
        duplicate = resent.check(log, header)
        if duplicate is not None:
            return build_duplicate_info(log, duplicate)
    return _write_checked_batch(log, data, header, now_ms, leader_epoch)


def append_coordinator_batches(
    log: LogState, data: Buffer, now_ms: int, leader_epoch: int
) -> LogAppendInfo:
    """Append one or more batches that this broker has built."""
    try:
        batches = [(position, header) for position, header in iter_headers(data)]
    except CorruptBatch as error:
        raise AppendRefused(ErrorCode.corrupt_message, str(error)) from None
    if not batches or batches[-1][0] + batches[-1][1].size != len(data):
        raise AppendRefused(ErrorCode.corrupt_message, f"no whole batches in {len(data)} bytes")
    view = memoryview(data)
    last = LogAppendInfo(-1, -1, -1, log.log_start_offset)
    base_offset = log.log_end_offset
    for position, header in batches:
        if header.producer_id != NO_PRODUCER_ID and not header.is_control:
            log.producers.check(header, client=False)
        batch, header = recompress(view[position : position + header.size], header, log.config)
        last = _write_checked_batch(log, batch, header, now_ms, leader_epoch)
    return last._replace(base_offset=base_offset, size=len(data))


def append_coordinator_records(
    log: LogState, records: Sequence[tuple[bytes, bytes | None]], now_ms: int, leader_epoch: int
) -> LogAppendInfo:
    """Append a coordinator's records as one batch, built in its final form without checks."""
    config, base_offset = log.config, log.log_end_offset
    if config.compression_type != "producer" or config.message_timestamp_type != "CreateTime":
        batch = build_batch((now_ms, key, value, ()) for key, value in records)
        return append_coordinator_batches(log, batch, now_ms, leader_epoch)
    if leader_epoch > log.epochs.latest:
        log.write_epoch(leader_epoch, base_offset)
    data = build_own_batch(
        records, timestamp_ms=now_ms, base_offset=base_offset, leader_epoch=leader_epoch
    )
    last_offset = base_offset + len(records) - 1
    log.write((data,), len(data), base_offset, last_offset, now_ms, now_ms)
    return LogAppendInfo(base_offset, last_offset, -1, log.log_start_offset, False, len(data))


def append_leader_batches(log: LogState, data: Buffer, now_ms: int) -> LogAppendInfo:
    """Append a leader's batches with their offsets and epochs, ignoring a partial last one.
    Batches before a refused one stay."""
    view, first = memoryview(data), -1
    try:
        for position, header in iter_headers(data):
            check_follower_batch(data, position, header, log.log_end_offset)
            marker = _read_end_marker(data, position, header)
            if header.leader_epoch > log.epochs.latest:
                log.write_epoch(header.leader_epoch, header.base_offset)
            log.write(
                [view[position : position + header.size]],
                header.size,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                now_ms,
            )
            if header.producer_id != NO_PRODUCER_ID:
                _note_producer(log, header, marker, header.base_offset, now_ms)
            first = header.base_offset if first < 0 else first
    except CorruptBatch as error:
        raise AppendRefused(ErrorCode.corrupt_message, str(error)) from None
    return LogAppendInfo(first, log.log_end_offset - 1, -1, log.log_start_offset)


def _note_producer(
    log: LogState,
    header: BatchHeader,
    marker: EndTransactionMarker | None,
    base_offset: int,
    now_ms: int,
) -> None:
    """Note a producer's batch that was written to the active segment."""
    if not header.attributes & CONTROL_BIT:
        log.producers.note(header, base_offset, now_ms)
    elif marker is not None:
        aborted = log.producers.note_marker(header, marker, base_offset, now_ms)
        if aborted is not None:
            log.active.txn_index.extend([aborted])


def _write_checked_batch(
    log: LogState, data: Buffer, header: BatchHeader, now_ms: int, leader_epoch: int
) -> LogAppendInfo:
    """Set a checked batch's offset, epoch and perhaps time, and write it."""
    config = log.config
    base_offset = log.log_end_offset
    append_time = -1
    if config.message_timestamp_type == "LogAppendTime":
        append_time = now_ms
        data = bytearray(data)
        assign(data, 0, base_offset, leader_epoch, now_ms)
        header = read_header(data)
    marker = _read_end_marker(data, 0, header)
    if marker is not None:
        log.producers.check_marker(header, marker)
    if leader_epoch > log.epochs.latest:
        log.write_epoch(leader_epoch, base_offset)
    head = build_prefix(data, 0, base_offset, leader_epoch)
    size, last_offset = header.batch_length + OVERHEAD, base_offset + header.last_offset_delta
    log.write(
        [head, memoryview(data)[_PREFIX_SIZE:]],
        size,
        base_offset,
        last_offset,
        header.max_timestamp,
        now_ms,
    )
    if header.producer_id != NO_PRODUCER_ID:
        _note_producer(log, header, marker, base_offset, now_ms)
    return LogAppendInfo(base_offset, last_offset, append_time, log.log_start_offset, False, size)


def build_duplicate_info(log: LogState, batch: BatchMetadata) -> LogAppendInfo:
    """Return the position of a batch that is in the log already."""
    append_time = log.config.timestamp_type is TimestampType.LOG_APPEND_TIME
    return LogAppendInfo(
        batch.base_offset,
        batch.last_offset,
        batch.timestamp if append_time else -1,
        log.log_start_offset,
        True,
    )


def _read_end_marker(
    data: Buffer, position: int, header: BatchHeader
) -> EndTransactionMarker | None:
    """Return the transaction marker of a control batch, or None. Raises `AppendRefused`."""
    if not header.attributes & CONTROL_BIT or header.producer_id == NO_PRODUCER_ID:
        return None
    try:
        return read_marker(data, position)
    except CorruptBatch as error:
        raise AppendRefused(ErrorCode.corrupt_message, str(error)) from None
