"""Compaction: KIP-58 (lag), KIP-354 (maximum lag), KIP-534 (delete horizon), and crashes in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from shoal.log.appends import AppendOrigin
from shoal.log.cleaner import ENTRY_BYTES, Aside
from shoal.log.compaction import measure_log_to_clean
from shoal.log.config import LogConfig
from shoal.log.memory import MemoryStorage
from shoal.record.batch import iter_headers
from shoal.record.control import build_marker
from shoal.record.records import build_batch
from support.storage.log_material import NOW_MS, batch, compact, fill, keyed, open_log, records

if TYPE_CHECKING:
    from shoal.log.log import Log
    from shoal.log.syncs import Sync

DELAY_MS = 1000


def log_of(storage: MemoryStorage | None = None, **config: object) -> Log:
    settings: dict[str, object] = {
        "cleanup_policy": ("compact",),
        "delete_retention_ms": DELAY_MS,
        "segment_bytes": 500,
        "index_interval_bytes": 0,
        **config,
    }
    return open_log(storage or MemoryStorage(), LogConfig(**settings))  # type: ignore[arg-type]


def closed(log: Log) -> Log:
    """Move all records into closed, durable segments."""
    if log.active.size:
        log.roll(log.log_end_offset, NOW_MS)
    log.sync()
    return log


def contents(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in records(log)]


def contents_from(log: Log, offset: int) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in records(log, offset)]


def test_the_last_record_of_each_key_stays_where_it_was() -> None:
    log = log_of()
    fill(log, [keyed((b"a", b"1"), (b"b", b"2")), keyed((b"a", b"3")), keyed((b"c", b"4"))] * 5)
    closed(log)
    assert compact(log)
    assert contents(log) == [(17, b"b", b"2"), (18, b"a", b"3"), (19, b"c", b"4")]
    assert log.cleaned_to == 20
    assert not compact(log)


def test_the_active_segment_is_never_touched() -> None:
    log = log_of(segment_bytes=1 << 20)
    fill(log, [keyed((b"a", b"1"))] * 10)
    log.sync()
    assert not compact(log)
    assert len(contents(log)) == 10


def test_records_from_the_high_watermark_on_are_never_compacted() -> None:
    log = log_of(segment_bytes=75)
    fill(log, [keyed((b"a", b"1"))] * 10)
    closed(log)
    assert measure_log_to_clean(log, NOW_MS, 4).end_offset == 4
    assert measure_log_to_clean(log, NOW_MS, 10).end_offset == 10


def test_min_compaction_lag_keeps_the_young() -> None:
    log = log_of(segment_bytes=75, min_compaction_lag_ms=100)
    fill(log, [keyed((b"a", b"1"), timestamp_ms=NOW_MS + i) for i in range(10)])
    closed(log)
    assert measure_log_to_clean(log, NOW_MS + 104, 10).end_offset == 5


def test_the_dirty_ratio_decides_and_the_largest_lag_overrules_it() -> None:
    log = log_of(min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=100)
    fill(log, [keyed((b"%d" % i, b"1")) for i in range(20)])
    closed(log)
    assert compact(log)
    fill(log, [keyed((b"1", b"2"))])
    closed(log)
    assert measure_log_to_clean(log, NOW_MS, 21).ratio < 0.9
    assert not compact(log, NOW_MS + 100)
    assert compact(log, NOW_MS + 101)


def test_a_tombstone_stays_for_its_delay_and_is_then_removed() -> None:
    log = log_of()
    fill(log, [keyed((b"a", b"1")), keyed((b"a", None)), keyed((b"b", b"2"))])
    closed(log)
    assert compact(log)
    assert contents(log) == [(1, b"a", None), (2, b"b", b"2")]
    [(_, header)] = [(at, h) for at, h in iter_headers(log.read(1, 60).data)]
    assert header.delete_horizon_ms == NOW_MS + DELAY_MS
    assert [r.timestamp_ms for r in records(log)] == [NOW_MS, NOW_MS]
    assert not compact(log, NOW_MS + DELAY_MS - 1)
    assert compact(log, NOW_MS + DELAY_MS)  # nothing is dirty, but the tombstone is due
    assert contents(log) == [(2, b"b", b"2")]
    assert not compact(log, NOW_MS + 10 * DELAY_MS)


def test_the_last_batch_of_a_round_stays_be_it_empty() -> None:
    """It keeps the next offset when no record follows in the segment."""
    log = log_of()
    fill(log, [keyed((b"b", b"2")), keyed((b"a", None))])
    closed(log)
    assert compact(log)
    assert compact(log, NOW_MS + DELAY_MS)
    assert contents(log) == [(0, b"b", b"2")]
    counts = [(h.base_offset, h.record_count) for _, h in log.segments[0].read_headers()]
    assert counts == [(0, 1), (1, 0)]
    assert log.segments[0].find_next_offset() == 2


def test_small_segments_become_one() -> None:
    log = log_of(segment_bytes=800, min_cleanable_dirty_ratio=0.0)
    fill(log, [keyed((b"%d" % (i % 3), b"x" * 50)) for i in range(60)])
    closed(log)
    assert len(log.segments) == 11
    assert compact(log)
    assert [s.size > 0 for s in log.segments] == [False] * 9 + [True, False]
    fill(log, [keyed((b"3", b""))])
    closed(log)
    assert compact(log)
    assert log.bases == [0, 61]
    assert [k for _, k, _ in contents(log)] == [b"0", b"1", b"2", b"3"]


def test_memory_bounds_a_round_and_rounds_go_on() -> None:
    log = log_of(min_cleanable_dirty_ratio=0.0)
    fill(log, [keyed((b"%d" % (i % 7), b"%d" % i)) for i in range(50)])
    closed(log)
    rounds = 0
    while compact(log, memory_bytes=3 * ENTRY_BYTES):
        rounds += 1
    assert rounds > 5
    assert [at for at, _, _ in contents(log)] == [43, 44, 45, 46, 47, 48, 49]


def test_a_producers_last_batch_stays_be_it_empty() -> None:
    """Its sequence must be kept as long as the producer's state."""
    log = log_of()
    fill(log, [batch(b"1", key=b"a", producer=(5, 0, 0)), keyed((b"a", b"2")), keyed((b"b", b"3"))])
    closed(log)
    assert compact(log)
    assert contents(log) == [(1, b"a", b"2"), (2, b"b", b"3")]
    counts = [
        (h.base_offset, h.record_count, h.last_sequence) for _, h in log.segments[0].read_headers()
    ]
    assert counts == [(0, 0, 0), (1, 1, -1), (2, 1, -1)]
    log.producers.clear()
    fill(log, [keyed((b"b", b"4"))] * 9)
    closed(log)
    assert compact(log)
    assert [h.base_offset for s in log.segments for _, h in s.read_headers()] == [1, 11]


def test_steps_are_bounded() -> None:
    log = log_of(segment_bytes=1 << 20)
    rows = [(b"%d" % i, b"") for i in range(5000)]
    fill(log, [keyed(*rows)] * 2)
    closed(log)
    steps = log.begin_compaction(NOW_MS, high_watermark=10_000, memory_bytes=1 << 20)
    assert steps is not None
    assert sum(1 for _ in steps) > 3 * 5000 // 512


def steps_over(*batches: bytearray) -> tuple[Log, list[Aside[Any] | Sync | None]]:
    """Compact a log of these batches. Return it with its steps."""
    log = log_of(segment_bytes=1 << 20)
    fill(log, batches)
    closed(log)
    steps = log.begin_compaction(NOW_MS, high_watermark=log.log_end_offset, memory_bytes=1 << 20)
    assert steps is not None
    return log, list(steps)


def test_a_step_expands_about_a_megabyte() -> None:
    """A batch of 60 bytes may expand to 900 KB. Both passes read it."""
    bombs = [batch(bytes(900_000), key=b"%d" % at, compression="zstd") for at in range(20)]
    log, steps = steps_over(*bombs)
    assert len(steps) >= 2 * 20 * 900_000 // (2 << 20)
    assert not [step for step in steps if isinstance(step, Aside)]
    assert [key for _, key, _ in contents(log)] == [b"%d" % at for at in range(20)]


@pytest.mark.parametrize("large", ["key", "value"])
def test_larger_batches_are_work_for_a_thread(large: str) -> None:
    """Expanding in both passes, the digests of keys beyond a megabyte, and a batch that loses a
    record."""
    long = bytes(2 << 20)
    pairs = [(long, b"1"), (long, b"2")] if large == "key" else [(b"a", long), (b"a", b"2")]
    records = [(NOW_MS, key, value, ()) for key, value in pairs]
    log, steps = steps_over(build_batch(records, compression="zstd"))
    digests = 4 if large == "key" else 0
    assert sum(isinstance(step, Aside) for step in steps) == 2 + digests + 1
    assert [(offset, value) for offset, _, value in contents(log)] == [(1, b"2")]


def test_truncation_under_a_round_ends_it() -> None:
    log = log_of(segment_bytes=75)
    fill(log, [keyed((b"a", b"%d" % i)) for i in range(2000)])
    closed(log)
    steps = log.begin_compaction(NOW_MS, high_watermark=2000, memory_bytes=1 << 20)
    assert steps is not None
    next(steps)
    assert log.begin_compaction(NOW_MS, high_watermark=2000, memory_bytes=1 << 20) is None
    log.truncate(3)
    assert list(steps) == []
    assert not log.compacting
    assert [at for at, _, _ in contents(log)] == [0, 1, 2]
    assert not [n for n in log.storage.list_directory(log.directory) if n.endswith(".cleaned")]


def test_a_corrupt_log_is_left_alone() -> None:
    log = log_of()
    fill(log, [keyed((b"a", b"1"))] * 20)
    closed(log)
    log.segments[0].file.write(65, [b"\xff"])
    compact(log)
    assert "CRC of the batch at offset 0" in log.uncleanable
    assert not compact(log)
    assert log.segments[0].size


@pytest.mark.parametrize("fail_at", range(40))
def test_a_crash_at_any_step_of_a_round_loses_and_doubles_nothing(fail_at: int) -> None:
    """Interrupt the round after each operation on the disk, and run it again."""
    storage = MemoryStorage()
    log = log_of(storage, segment_bytes=400)
    fill(log, [keyed((b"%d" % (i % 4), b"%d" % i)) for i in range(24)])
    log = closed(log)
    # Now all segments fit into one, and are replaced together.
    log.config = replace(log.config, segment_bytes=1 << 20)
    assert len(log.segments) > 4
    last = {b"%d" % (i % 4): i for i in range(24)}
    countdown = [fail_at]

    def fault(operation: str, path: str) -> None:
        if operation != "read":
            countdown[0] -= 1
            if countdown[0] < 0:
                raise OSError(5, "the process ends here", path)

    storage.fault = fault
    try:
        compact(log)
    except OSError:
        pass
    storage.fault = lambda operation, path: None
    storage.crash(lambda n: n - 1)
    again = open_log(
        storage,
        log.config,
        recovery_point=log.recovery_point,
        cleaned_to=log.cleaned_to,
    )
    found = contents(again)
    assert [at for at, _, _ in found] == sorted({at for at, _, _ in found})
    assert {key: at for at, key, _ in found} == last
    assert again.log_end_offset == 24
    for offset in range(24):
        [first, *_] = again.read_batches(offset, 25)
        assert first[1].last_offset >= offset
        expected = next((at for at, _, _ in found if at >= offset), None)
        assert next((at for at, _, _ in contents_from(again, offset)), None) == expected
    names = again.storage.list_directory(again.directory)
    assert not [n for n in names if n.endswith((".cleaned", ".swap", ".deleted"))]
    closed(again)
    compact(again)
    assert [at for at, _, _ in contents(again)] == [20, 21, 22, 23]


def in_transaction(log: Log, producer_id: int, sequence: int, key: bytes, value: bytes) -> None:
    producer = (producer_id, 0, sequence)
    fill(log, [batch(value, key=key, producer=producer, transactional=True)])


def ended(log: Log, producer_id: int, *, committed: bool) -> None:
    marker = build_marker(
        committed=committed,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=NOW_MS,
    )
    log.append(marker, now_ms=NOW_MS, leader_epoch=0, origin=AppendOrigin.COORDINATOR)


def control_offsets(log: Log) -> list[int]:
    found = log.read(log.log_start_offset, 1 << 20).data
    return [header.base_offset for _, header in iter_headers(found) if header.is_control]


def test_an_aborted_record_replaces_nothing_and_goes_with_its_marker() -> None:
    """The last value of a key is the last committed one. The marker of an abort stays while readers
    may still meet its data, and is removed delete.retention.ms after the data."""
    log = log_of(segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.0)
    in_transaction(log, 1, 0, b"a", b"committed")  # 0
    ended(log, 1, committed=True)  # 1
    in_transaction(log, 2, 0, b"a", b"aborted")  # 2
    in_transaction(log, 1, 1, b"b", b"committed, too")  # 3
    in_transaction(log, 2, 1, b"c", b"aborted")  # 4
    ended(log, 2, committed=False)  # 5
    in_transaction(log, 2, 2, b"d", b"committed")  # 6
    ended(log, 2, committed=True)  # 7
    ended(log, 1, committed=True)  # 8
    closed(log)
    assert [a.first_offset for a in log.find_aborted_transactions(0, 9)] == [2]
    assert compact(log)
    data = [c for c in contents(log) if c[0] not in control_offsets(log)]
    assert data == [(0, b"a", b"committed"), (3, b"b", b"committed, too"), (6, b"d", b"committed")]
    assert 5 in control_offsets(log)
    # A round after the delay: the data is gone, so the marker marks nothing and is due to go.
    for rounds in (1, 2):
        fill(log, [keyed((b"e", b"%d" % rounds))])
        closed(log)
        assert compact(log, now_ms=NOW_MS + rounds * (DELAY_MS + 1))
    assert 5 not in control_offsets(log)
    assert {1, 7, 8} <= set(control_offsets(log))
    assert not log.find_aborted_transactions(0, log.log_end_offset)
    assert data == [c for c in contents(log) if c[1] in (b"a", b"b", b"d")]


def test_aborted_records_go_if_their_marker_is_in_a_later_segment() -> None:
    """Otherwise the marker goes first, and the records look as if they were committed."""
    log = log_of(segment_bytes=150, min_cleanable_dirty_ratio=0.0)
    fill(log, [keyed((b"a", b"x" * 60))])  # 0
    in_transaction(log, 2, 0, b"a", b"aborted" * 9)  # 1
    ended(log, 2, committed=False)  # 2
    in_transaction(log, 2, 1, b"d", b"y" * 60)  # 3
    ended(log, 2, committed=True)  # 4
    closed(log)
    assert log.bases[:3] == [0, 1, 2]
    for rounds in range(3):
        fill(log, [keyed((b"e", b"%d" % rounds))])
        closed(log)
        assert compact(log, now_ms=NOW_MS + rounds * (DELAY_MS + 1))
        found = {offset: key for offset, key, _ in contents(log)}
        assert found[0] == b"a"
        assert found[3] == b"d"
        assert 1 not in found
        # The marker stays until delete.retention.ms, for readers that have met the records.
        hidden = [a.first_offset for a in log.find_aborted_transactions(0, 9)]
        assert (2 in found, hidden) == ((True, [1]) if rounds == 0 else (rounds == 1, []))


def test_a_marker_that_is_kept_without_its_record_is_cleaned_again() -> None:
    """The last batch of a round stays, if only for its offset, also if it is a marker."""
    log = log_of(segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.0)
    fill(log, [keyed((b"a", b"1"))])
    ended(log, 5, committed=True)
    closed(log)
    for rounds in range(3):
        assert compact(log, now_ms=NOW_MS + rounds * (DELAY_MS + 1)) == (rounds < 2)
    fill(log, [keyed((b"b", b"2"))])
    closed(log)
    assert compact(log, now_ms=NOW_MS + 3 * (DELAY_MS + 1))
    assert [key for _, key, _ in contents(log)] == [b"a", b"b"]
    assert log.uncleanable == ""
