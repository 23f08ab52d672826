"""Opens a log: finds its files, completes what a crash interrupted, and finds its end.

After a clean shutdown the files are listed and the last batch is found through the index; nothing
is scanned. Otherwise the CRC and order of each batch above the recovery point are checked, and the
log is truncated at the first invalid batch. That batch was never acknowledged as durable. Batches
below the recovery point are not read.

`.deleted` and `.cleaned` files are removed. A `.log.swap` file of a compaction is complete, and
replaces the segments that it was made from. Its indexes are rebuilt.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from shoal.log import producer_recovery, rolling, truncation
from shoal.log.dedup_file import SUFFIX
from shoal.log.segment import (
    CLEANED,
    DELETED,
    FILES,
    INDEX,
    LOG,
    SWAP,
    TIME_INDEX,
    Segment,
    format_file_name,
)
from shoal.record.batch import CorruptBatch, check_crc

if TYPE_CHECKING:
    from shoal.log.state import LogState

_ASIDE = ".tmp"


def load(
    log: LogState, now_ms: int, clean: bool, recovery_point: int, log_start_offset: int
) -> None:
    """Load a new log from its directory, which is created if necessary. Raises `OSError`."""
    log.storage.make_directory(log.directory)
    _finish_swaps(log, now_ms)
    _open_segments(log, now_ms, log_start_offset)
    # A checkpoint may be older than the first segment. Of the producers below that segment only the
    # snapshot at its base is left.
    recovery_point = max(recovery_point, log.bases[0])
    if clean:
        log.log_end_offset = log.active.find_next_offset()
        if recovery_point < log.log_end_offset:
            recovery_point = log.log_end_offset
    else:
        recovery_point = _recover(log, recovery_point)
    log.recovery_point = min(recovery_point, log.log_end_offset)
    if log.log_end_offset < log_start_offset:
        # The lost records had been deleted before the crash. Do not reuse their offsets.
        truncation.truncate_fully(log, log_start_offset)
        return
    if log.config.remote_storage_enable:
        # Lower records may be in the object store.
        log.log_start_offset = log_start_offset
    else:
        log.log_start_offset = max(log_start_offset, log.bases[0])
    log.unsynced_since_ms = now_ms if log.recovery_point < log.log_end_offset else None
    log.active.find_first_timestamp()
    log.names_changed = not clean
    log.epochs.truncate_from_end(log.log_end_offset)
    log.epochs.truncate_from_start(log.log_start_offset)
    # Replay from the recovery point, to find the aborted transactions above it again.
    producer_recovery.rebuild(
        log, now_ms, at_most=log.log_end_offset if clean else log.recovery_point
    )


def _finish_swaps(log: LogState, now_ms: int) -> None:
    """Complete or undo an interrupted compaction or deletion."""
    storage, directory = log.storage, log.directory
    names = storage.list_directory(directory)
    cleaned = {n[: -len(CLEANED)] for n in names if n.endswith(CLEANED)}
    for name in names:
        stem, dot, suffix = name.rpartition(".")
        if dot + suffix in (DELETED, CLEANED, _ASIDE):
            storage.remove(f"{directory}/{name}")
        elif dot + suffix == SWAP and stem.partition(".")[0] + LOG in cleaned:
            # The .log file was not renamed to .swap, so all original segments are there.
            storage.remove(f"{directory}/{name}")
        elif name.endswith(SUFFIX) and not log.config.deduplicates:
            storage.remove(f"{directory}/{name}")
    for name in storage.list_directory(directory):
        if name.endswith(LOG + SWAP) and name[:20].isdigit():
            _finish_swap(log, int(name[:20]), now_ms)
    for name in storage.list_directory(directory):
        if name.endswith(SWAP):
            storage.rename(f"{directory}/{name}", f"{directory}/{name[: -len(SWAP)]}")


def _finish_swap(log: LogState, base_offset: int, now_ms: int) -> None:
    """Remove the segments that a complete `.swap` segment replaces, and rename it."""
    storage, directory = log.storage, log.directory
    swapped = Segment(storage, directory, base_offset, now_ms=now_ms, suffix=SWAP)
    swapped.rebuild(interval_bytes=log.config.index_interval_bytes)
    swapped.flush()
    storage.sync_directory(directory)
    end = max(swapped.find_next_offset(), base_offset + 1)
    for name in storage.list_directory(directory):
        if name.endswith(LOG) and name[:20].isdigit() and base_offset <= int(name[:20]) < end:
            for kind in FILES:
                storage.remove(f"{directory}/{format_file_name(int(name[:20]), kind)}")
    swapped.rename("")


def _open_segments(log: LogState, now_ms: int, log_start_offset: int) -> None:
    storage, directory = log.storage, log.directory
    names = storage.list_directory(directory)
    present = set(names)
    for name in names:
        stem, dot, kind = name.partition(".")
        if not stem.isdigit() or len(stem) != 20:
            continue
        if dot + kind == LOG:
            segment = Segment(storage, directory, int(stem), now_ms=now_ms)
            log.segments.append(segment)
            log.bases.append(segment.base_offset)
        elif dot + kind in FILES and stem + LOG not in present:
            storage.remove(f"{directory}/{name}")
    if not log.segments:
        fresh = rolling.create_segment(
            log.storage, log.directory, log.config, log_start_offset, now_ms
        )
        log.segments.append(fresh)
        log.bases.append(log_start_offset)
    # A crash may have left reserved space behind the records.
    log.segments[-1].preallocated = log.config.preallocate
    for segment in log.segments:
        stem = f"{segment.base_offset:020d}"
        if segment.size and not {stem + INDEX, stem + TIME_INDEX} <= present:
            segment.rebuild(interval_bytes=log.config.index_interval_bytes)


def _recover(log: LogState, recovery_point: int) -> int:
    """Check the log above the recovery point. Return the point, or the log end if that is less."""
    first = max(0, bisect_right(log.bases, recovery_point) - 1)
    if first:
        # It may have been closed after the last sync, which had no last time entry then.
        log.segments[first - 1].find_times()
        log.segments[first - 1].seal_times()
    expected = log.segments[first].base_offset
    index = first
    while index < len(log.segments):
        segment = log.segments[index]
        # A gap means that the previous segment lost its unsynced end, except after compaction.
        if segment.base_offset < expected or (
            segment.base_offset > expected and index > first and not log.config.compact
        ):
            break
        is_whole = _recover_segment(log, segment, recovery_point)
        expected = max(expected, log.log_end_offset)
        index += 1
        if not is_whole:
            break
    for segment in log.segments[index:]:
        segment.remove()
    del log.segments[index:], log.bases[index:]
    return min(recovery_point, log.log_end_offset)


def _recover_segment(log: LogState, segment: Segment, recovery_point: int) -> bool:
    """Check and index the segment's batches from the recovery point on. Truncate it behind the
    last valid one. Return whether all were valid."""
    if not segment.offset_index.is_sound(segment.size):
        segment.offset_index.truncate(segment.base_offset)
        segment.time_index.truncate(segment.base_offset)
    segment.offset_index.truncate(recovery_point)
    segment.time_index.truncate(recovery_point)
    segment.txn_index.truncate(recovery_point)
    position = start = segment.offset_index.get_last_position()
    segment.largest_timestamp, segment.largest_at = segment.time_index.get_last_entry()
    end_offset = segment.base_offset
    try:
        for batch_position, header, data in segment.read_batches(position):
            if not check_crc(data, 0, header) or header.base_offset < end_offset:
                break
            if header.base_offset < segment.base_offset or not segment.can_hold_offset(
                header.last_offset
            ):
                break
            segment.note(
                batch_position,
                header.size,
                header.last_offset,
                header.max_timestamp,
                # The index has the batch at `start` already.
                log.config.index_interval_bytes if batch_position > start else 1 << 62,
            )
            log.epochs.assign(header.leader_epoch, header.base_offset)
            end_offset = header.next_offset
            position = batch_position + header.size
    except CorruptBatch:
        pass
    log.log_end_offset = end_offset
    segment.seal_times()
    if position == segment.size:
        return True
    segment.file.truncate(position)
    segment.size = position
    return False
