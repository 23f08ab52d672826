"""Segments: rolling, retention, log start, syncs and recovery."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from shoal.log.appends import AppendOrigin
from shoal.log.config import LogConfig
from shoal.log.errors import AppendRefused, OffsetOutOfRange
from shoal.log.memory import MemoryStorage
from shoal.record.control import build_marker
from support.storage.log_material import (
    DIRECTORY,
    NOW_MS,
    batch,
    fill,
    find_since,
    open_log,
    records,
)

if TYPE_CHECKING:
    from shoal.log.log import Log

DAY_MS = 86_400_000


def log_of(**config: object) -> Log:
    return open_log(MemoryStorage(), LogConfig(**config))  # type: ignore[arg-type]


def names(log: Log, ending: str = "") -> list[str]:
    return [n for n in log.storage.list_directory(DIRECTORY) if n.endswith(ending)]


# Rolling


def test_a_segment_rolls_before_it_grows_past_its_size() -> None:
    size = len(batch(b"a"))
    log = log_of(segment_bytes=3 * size)
    fill(log, [batch(b"a")] * 7)
    assert log.bases == [0, 3, 6]
    assert names(log, ".log") == [f"{base:020d}.log" for base in (0, 3, 6)]
    assert names(log, ".snapshot") == [f"{base:020d}.snapshot" for base in (3, 6)]


def test_a_segment_rolls_by_its_records_time() -> None:
    log = log_of(segment_ms=1000, message_timestamp_after_max_ms=DAY_MS)
    times = [NOW_MS, NOW_MS + 1000, NOW_MS + 1001, NOW_MS + 1500]
    fill(log, [batch(b"a", timestamp_ms=at) for at in times])
    assert log.bases == [0, 2]


def test_an_idle_segment_rolls_by_the_brokers_clock() -> None:
    log = log_of(segment_ms=1000)
    assert not log.roll_if_due(NOW_MS + DAY_MS)  # it is empty
    fill(log, [batch(b"a", timestamp_ms=5)])
    assert not log.roll_if_due(NOW_MS + 1000)
    assert log.roll_if_due(NOW_MS + 1001)
    assert log.bases == [0, 1]


def test_max_compaction_lag_bounds_a_compacted_segments_age() -> None:
    """KIP-354: a segment must be closed to be cleaned in time."""
    config = LogConfig(cleanup_policy=("compact",), segment_ms=DAY_MS, max_compaction_lag_ms=50)
    assert config.roll_ms == 50
    assert LogConfig(segment_ms=DAY_MS, max_compaction_lag_ms=50).roll_ms == DAY_MS


def test_jitter_rolls_earlier_and_the_same_in_every_run() -> None:
    ages = []
    for _ in range(2):
        log = log_of(segment_ms=100_000, segment_jitter_ms=50_000)
        fill(log, [batch(b"a")])
        age = next(ms for ms in range(0, 100_002, 100) if log.roll_if_due(NOW_MS + ms))
        ages.append(age)
    assert ages[0] == ages[1]
    assert 50_000 <= ages[0] <= 100_100


def test_a_full_index_rolls() -> None:
    log = log_of(segment_index_bytes=8 * 5, index_interval_bytes=0)
    fill(log, [batch(b"a")] * 20)
    assert len(log.segments) > 3
    assert all(len(s.offset_index) <= 5 for s in log.segments)


def test_an_offset_too_large_for_the_indexes_rolls() -> None:
    log = log_of()
    fill(log, [batch(b"a")])
    log.log_end_offset = 2**31
    fill(log, [batch(b"b")])
    assert log.bases == [0, 2**31]


# Retention


def test_retention_by_time_takes_whole_segments_below_the_high_watermark() -> None:
    log = log_of(retention_ms=1000, segment_bytes=100)
    fill(log, [batch(b"x" * 20, timestamp_ms=NOW_MS + i) for i in range(5)])
    assert log.tick_retention(NOW_MS + 1000, high_watermark=5) == []
    gone = log.tick_retention(NOW_MS + 1003, high_watermark=2)
    assert [(d.base_offset, d.reason) for d in gone] == [(0, "retention.ms"), (1, "retention.ms")]
    assert log.log_start_offset == 2
    with pytest.raises(OffsetOutOfRange):
        log.read(1, 100)
    deleted = names(log, ".deleted")
    assert len(deleted) == 6
    for segment in gone:
        segment.remove()
    assert names(log, ".deleted") == []


def test_retention_by_time_takes_an_active_segment_too() -> None:
    log = log_of(retention_ms=1000)
    fill(log, [batch(b"a")] * 3)
    [gone] = log.tick_retention(NOW_MS + 1001, high_watermark=3)
    assert (gone.base_offset, log.log_start_offset, log.log_end_offset) == (0, 3, 3)
    assert log.tick_retention(NOW_MS + DAY_MS, high_watermark=3) == []
    fill(log, [batch(b"b")])
    assert [r.offset for r in records(log)] == [3]


def test_retention_by_size_keeps_at_least_so_much() -> None:
    size = len(batch(b"x" * 20))
    log = log_of(retention_bytes=3 * size, segment_bytes=size)
    fill(log, [batch(b"x" * 20)] * 5)
    gone = log.tick_retention(NOW_MS, high_watermark=5)
    assert [d.base_offset for d in gone] == [0, 1]
    assert log.size_bytes == 3 * size


def test_a_compacted_log_keeps_its_age() -> None:
    log = log_of(cleanup_policy=("compact",), retention_ms=1, retention_bytes=1, segment_bytes=100)
    fill(log, [batch(b"x" * 20, key=b"k")] * 5)
    assert log.tick_retention(NOW_MS + DAY_MS, high_watermark=5) == []


def test_delete_records_moves_the_start_and_then_whole_segments_go() -> None:
    log = log_of(segment_bytes=200)
    fill(log, [batch(b"x" * 20)] * 10)
    assert log.advance_log_start(5)
    assert not log.advance_log_start(4)
    assert [r.offset for r in records(log)] == [5, 6, 7, 8, 9]
    gone = log.tick_retention(NOW_MS, high_watermark=10)
    assert [d.reason for d in gone] == ["log start offset"] * 2
    assert log.bases[0] <= 5 < log.bases[1]
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(11)


def test_the_log_start_survives_a_crash_that_took_all_behind_it() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a")] * 3)
    storage.crash(lambda n: 0)
    log = open_log(storage, log_start_offset=2)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)


# Leader epochs


def test_epochs_end_where_the_next_begins() -> None:
    log = log_of()
    for epoch in (1, 1, 4, 6):
        log.append(batch(b"a"), now_ms=NOW_MS, leader_epoch=epoch)
    assert [log.find_epoch_end_offset(e) for e in range(8)] == [
        (0, 0),
        (1, 2),
        (1, 2),
        (1, 2),
        (4, 3),
        (4, 3),
        (6, 4),
        (-1, -1),
    ]
    assert [log.epochs.find_epoch(at) for at in range(4)] == [1, 1, 4, 6]
    assert log.storage.read_file(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n3\n1 0\n4 2\n6 3\n"
    log.truncate(3)
    assert log.latest_epoch == 4
    log.advance_log_start(1)
    assert log.epochs.entries == [(1, 1), (4, 2)]


def test_an_epoch_begins_before_its_first_record() -> None:
    log = log_of()
    fill(log, [batch(b"a")])
    log.begin_epoch(3)
    log.begin_epoch(3)
    assert log.find_epoch_end_offset(3) == (3, 1)
    assert log.find_epoch_end_offset(0) == (0, 1)


def test_epochs_past_the_recovery_point_are_found_in_the_batches() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    for epoch in (1, 2, 5):
        log.append(batch(b"a"), now_ms=NOW_MS, leader_epoch=epoch)
    storage.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
    assert open_log(storage).epochs.entries == [(1, 0), (2, 1), (5, 2)]


# Syncs


def test_what_a_sync_covers_survives_and_what_it_does_not_may_go() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a")])
    sync = log.begin_sync()
    assert sync is not None
    fill(log, [batch(b"b")])
    sync.run()
    log.finish_sync(sync)
    assert log.recovery_point == 1
    assert log.unsynced_messages == 1
    log.sync()
    assert log.begin_sync() is None
    fill(log, [batch(b"c")])
    storage.crash(lambda n: 0)
    log = open_log(storage, recovery_point=2)
    assert [r.value for r in records(log)] == [b"a", b"b"]


def test_a_truncation_makes_a_running_sync_void() -> None:
    log = log_of()
    fill(log, [batch(b"a")] * 3)
    sync = log.begin_sync()
    assert sync is not None
    log.truncate(1)
    sync.run()
    log.finish_sync(sync)
    assert log.recovery_point == 0


def test_flush_messages_and_flush_ms() -> None:
    log = log_of(flush_messages=2, flush_ms=100)
    assert not log.is_sync_due(NOW_MS)
    fill(log, [batch(b"a")])
    assert not log.is_sync_due(NOW_MS + 99)
    assert log.is_sync_due(NOW_MS + 100)
    fill(log, [batch(b"a")])
    assert log.is_sync_due(NOW_MS)
    log.sync()
    assert not log.is_sync_due(NOW_MS + DAY_MS)


def test_a_closed_segment_asks_for_a_sync() -> None:
    log = log_of(segment_bytes=100)
    log.sync()
    fill(log, [batch(b"x" * 20)] * 2)
    assert log.is_sync_due(NOW_MS)


# Recovery


def reads_of(storage: MemoryStorage) -> list[int]:
    """Return a list that counts the bytes read from `.log` files from now on."""
    total = [0]
    read = storage.open

    def open_counted(path: str, *, create: bool = False) -> object:
        file = read(path, create=create)
        if ".log" in path:
            inner = file.read

            class Counted:
                def __getattr__(self, name: str) -> object:
                    return getattr(file, name)

                def read(self, at: int, size: int) -> bytes:
                    data = inner(at, size)
                    total[0] += len(data)
                    return data

            return Counted()
        return file

    storage.open = open_counted  # type: ignore[method-assign,assignment]
    return total


def big_log(storage: MemoryStorage) -> Log:
    log = open_log(storage, LogConfig(segment_bytes=200_000))
    fill(log, [batch(b"x" * 1000)] * 1000)
    log.sync()
    fill(log, [batch(b"y" * 1000)] * 10)
    return log


def test_a_clean_start_scans_nothing() -> None:
    storage = MemoryStorage()
    log = big_log(storage)
    log.close()
    total = reads_of(storage)
    again = open_log(storage, log.config, clean=True)
    assert again.log_end_offset == 1010
    assert total[0] < 50_000


def test_a_log_that_was_synced_before_it_closed_keeps_its_times() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a", timestamp_ms=NOW_MS)])
    log.sync()
    log.close()
    again = open_log(storage, clean=True, recovery_point=1)
    assert find_since(again, NOW_MS) == (NOW_MS, 0, 0)
    assert again.active.find_age_timestamp() == NOW_MS


def test_a_start_after_kill_9_scans_from_the_recovery_point() -> None:
    storage = MemoryStorage()
    log = big_log(storage)
    storage.crash(lambda n: n - 1)
    total = reads_of(storage)
    again = open_log(storage, log.config, recovery_point=1000)
    assert again.log_end_offset == 1010
    # The scan itself, and the producers' replay over the headers of the last segment.
    assert total[0] < 2 * 200_000


@pytest.mark.parametrize("part", [0, 1, 30, 60, 61, 62, 100])
def test_a_torn_tail_is_cut(part: int) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a"), batch(b"b" * 40)])
    end, torn = log.size_bytes, bytes(batch(b"c" * 100))[:part]
    log.active.file.write(end, [torn])
    log = open_log(storage)
    assert [r.value for r in records(log)] == [b"a", b"b" * 40]
    assert log.active.file.size() == end
    fill(log, [batch(b"d")])
    assert [r.offset for r in records(log)] == [0, 1, 2]


def test_a_failed_append_leaves_no_torn_end_in_a_closed_segment() -> None:
    """Recovery would treat it as the end of the log, and drop the segments after it."""
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a")])
    storage.capacity_bytes = storage.count_used_bytes() + 30
    with pytest.raises(AppendRefused):
        fill(log, [batch(b"b" * 50)])
    storage.capacity_bytes = None
    assert log.roll_if_due(NOW_MS + 30 * DAY_MS)
    fill(log, [batch(b"c")])
    storage.crash(lambda n: n - 1)
    assert [r.value for r in records(open_log(storage))] == [b"a", b"c"]


def test_a_batch_that_is_damaged_ends_the_log_there() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=150))
    fill(log, [batch(b"x" * 20)] * 6)
    damaged = log.segments[1]
    damaged.file.write(70, [b"\xff"])
    log = open_log(storage, log.config)
    assert log.log_end_offset == damaged.base_offset
    assert log.bases == [0, damaged.base_offset]


def test_missing_or_invalid_indexes_are_rebuilt() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=2000, index_interval_bytes=100))
    fill(log, [batch(b"x" * 20, timestamp_ms=NOW_MS + i) for i in range(100)])
    log.sync()
    first = log.segments[0].build_path(".index")
    before = storage.read_file(first)
    storage.remove(first)
    last = log.active.build_path(".index")
    storage.replace_file(last, b"\xff" * 800, sync=True)
    log = open_log(storage, log.config, recovery_point=log.recovery_point)
    log.sync()
    log.segments[0].flush()
    assert storage.read_file(first) == before
    assert [log.read(at, 1).next_offset for at in range(100)] == list(range(1, 101))
    assert find_since(log, NOW_MS + 50) == (NOW_MS + 50, 50, 0)


def test_closed_segments_that_were_scanned_keep_their_times() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a")])
    log.roll(1, NOW_MS)
    storage.crash(lambda n: n - 1)
    open_log(storage).close()
    again = open_log(storage, clean=True, recovery_point=1)
    assert find_since(again, NOW_MS) == (NOW_MS, 0, 0)


def test_files_without_a_segment_go() -> None:
    storage = MemoryStorage()
    storage.make_directory(DIRECTORY)
    for name in ("5.index", "7.log.deleted", "7.log.cleaned", "9.timeindex"):
        stem, _, kind = name.partition(".")
        storage.replace_file(f"{DIRECTORY}/{int(stem):020d}.{kind}", b"x", sync=True)
    log = open_log(storage)
    assert names(log) == ["00000000000000000000.log"]


# Transactions


def transactional(log: Log, producer_id: int, sequence: int = 0) -> int:
    data = batch(b"v", b"w", producer=(producer_id, 0, sequence), transactional=True)
    return log.append(data, now_ms=NOW_MS, leader_epoch=0).base_offset


def end_transaction(log: Log, producer_id: int, *, committed: bool) -> int:
    marker = build_marker(
        committed=committed,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=NOW_MS,
    )
    done = log.append(marker, now_ms=NOW_MS, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    return done.base_offset


@pytest.mark.parametrize("restart", ["none", "clean", "kill"])
def test_open_transactions_hold_the_stable_offset_back(restart: str) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a")])
    assert transactional(log, 1) == 1
    assert transactional(log, 2) == 3
    assert end_transaction(log, 2, committed=False) == 5
    if restart == "clean":
        log.close()
    if restart != "none":
        storage.crash(lambda n: n - 1)
        log = open_log(storage, clean=restart == "clean")
    assert log.find_last_stable_offset(6) == 1
    assert end_transaction(log, 1, committed=True) == 6
    assert log.find_last_stable_offset(6) == 1  # the high watermark is at the marker
    assert log.find_last_stable_offset(7) == 7
    [aborted] = log.find_aborted_transactions(0, 7)
    assert aborted == (2, 3, 5, 1)
    assert log.find_aborted_transactions(6, 7) == []


def test_aborted_transactions_of_closed_segments_are_found_again_after_a_kill() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=200))
    transactional(log, 1)
    end_transaction(log, 1, committed=False)
    fill(log, [batch(b"x" * 60)] * 4)
    assert len(log.segments) > 2
    storage.crash(lambda n: n - 1)
    again = open_log(storage, log.config)
    assert again.find_aborted_transactions(0, 9) == [(1, 0, 2, 3)]


def test_the_high_watermark_bounds_the_stable_offset() -> None:
    log = log_of()
    transactional(log, 1)
    assert log.find_last_stable_offset(0) == 0
    log.advance_log_start(1)
    assert log.find_last_stable_offset(2) == 1


def test_a_start_that_the_disk_refused_to_move_can_be_moved_again() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig())
    for epoch in range(3):
        log.append(batch(b"v"), now_ms=NOW_MS, leader_epoch=epoch)

    def refuse(operation: str, _path: str) -> None:
        if operation == "write":
            raise OSError(errno.ENOSPC, "full")

    storage.fault = refuse
    with pytest.raises(OSError, match="full"):
        log.advance_log_start(2)
    storage.fault = lambda _operation, _path: None
    assert log.log_start_offset == 0
    assert log.advance_log_start(2)
    assert log.epochs.entries == [(2, 2)]
