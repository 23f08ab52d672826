"""Appends of producers: what a log accepts, what it refuses, and the offsets it assigns."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Never

import pytest
from shoal.log import resent, validation
from shoal.log.appends import AppendOrigin
from shoal.log.config import LogConfig
from shoal.log.errors import AppendRefused, LogOffline
from shoal.log.memory import MemoryStorage
from shoal.log.segment import Segment
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import assign, check_crc, iter_headers, read_header, sign
from shoal.record.records import build_batch, read_records
from support.storage.log_material import NOW_MS, batch, fill, keyed, open_log, records

if TYPE_CHECKING:
    from shoal.log.log import Log

HOUR_MS = 3_600_000


def log_of(**config: object) -> Log:
    return open_log(MemoryStorage(), LogConfig(**config))  # type: ignore[arg-type]


def refusal(
    log: Log, data: bytes | bytearray, origin: AppendOrigin = AppendOrigin.CLIENT
) -> ErrorCode:
    """Return the error of an append that must be refused and change nothing."""
    before = (log.log_end_offset, log.size_bytes, len(log.producers), log.latest_epoch)
    with pytest.raises(AppendRefused) as refused:
        log.append(data, now_ms=NOW_MS, leader_epoch=0, origin=origin)
    assert (log.log_end_offset, log.size_bytes, len(log.producers), log.latest_epoch) == before
    return refused.value.code


def changed(data: bytearray, at: int, new: bytes) -> bytearray:
    """Return the batch with other bytes and a new CRC."""
    data = bytearray(data)
    data[at : at + len(new)] = new
    sign(data)
    return data


def test_batches_are_placed_one_behind_the_other() -> None:
    log = log_of()
    first = log.append(batch(b"a", b"b"), now_ms=NOW_MS, leader_epoch=3)
    second = log.append(batch(b"c", compression="zstd"), now_ms=NOW_MS, leader_epoch=4)
    assert (first.base_offset, first.last_offset, first.append_time_ms) == (0, 1, -1)
    assert (second.base_offset, second.last_offset, second.duplicate) == (2, 2, False)
    assert [r.value for r in records(log)] == [b"a", b"b", b"c"]
    data = log.read(0, 1 << 20).data
    assert [h.leader_epoch for _, h in iter_headers(data)] == [3, 4]
    assert all(check_crc(data, at, h) for at, h in iter_headers(data))


def test_the_callers_bytes_are_left_alone() -> None:
    log, data = log_of(message_timestamp_type="LogAppendTime"), batch(b"a")
    before = bytes(data)
    for given in (data, memoryview(data), before):
        log.append(given, now_ms=NOW_MS, leader_epoch=1)
    assert data == before
    assert log.log_end_offset == 3


def test_log_append_time() -> None:
    log = log_of(message_timestamp_type="LogAppendTime")
    done = log.append(batch(b"a", timestamp_ms=5), now_ms=NOW_MS, leader_epoch=0)
    assert done.append_time_ms == NOW_MS
    assert [r.timestamp_ms for r in records(log)] == [NOW_MS]


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", ["none", "gzip", "zstd"])
def test_compression_type_of_the_topic(codec: str, sent: str) -> None:
    log = log_of(compression_type=codec)
    log.append(batch(b"a" * 99, b"b", compression=sent), now_ms=NOW_MS, leader_epoch=0)
    header = read_header(log.read(0, 1 << 20).data)
    assert header.compression == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(codec)
    assert [r.value for r in records(log)] == [b"a" * 99, b"b"]


def test_refusals_of_broken_batches() -> None:
    log, good = log_of(), batch(b"a", b"b")
    flipped = bytearray(good)
    flipped[-3] ^= 1
    assert refusal(log, flipped) is ErrorCode.corrupt_message
    assert refusal(log, good[:-1]) is ErrorCode.invalid_record
    assert refusal(log, good[:40]) is ErrorCode.invalid_record
    assert refusal(log, b"") is ErrorCode.invalid_record
    assert refusal(log, good + good) is ErrorCode.invalid_record
    for magic in (0, 1):
        assert refusal(log, changed(good, 16, bytes([magic]))) is ErrorCode.invalid_record
    assert refusal(log, changed(good, 16, bytes([3]))) is ErrorCode.corrupt_message


def test_refusals_of_attributes_that_clients_may_not_set() -> None:
    log, good = log_of(), batch(b"a", b"b")
    assert refusal(log, changed(good, 57, (3).to_bytes(4, "big"))) is ErrorCode.invalid_record
    assert refusal(log, changed(good, 57, bytes(4))) is ErrorCode.invalid_record
    assert refusal(log, changed(good, 21, b"\0\x20")) is ErrorCode.invalid_record  # control
    assert refusal(log, changed(good, 21, b"\0\x10")) is ErrorCode.invalid_record  # no producer
    assert refusal(log, changed(good, 21, b"\0\x05")) is ErrorCode.unsupported_compression_type
    assert refusal(log, batch(b"a", producer=(5, 0, -1))) is ErrorCode.invalid_record
    many = changed(changed(good, 57, b"\0\0\xff\xff"), 23, b"\0\0\xff\xfe")
    assert refusal(log, many) is ErrorCode.invalid_record


def test_refusals_by_size() -> None:
    log = log_of(max_message_bytes=200, segment_bytes=100)
    assert refusal(log, batch(b"x" * 200)) is ErrorCode.message_too_large
    assert refusal(log, batch(b"x" * 80)) is ErrorCode.record_list_too_large


def test_timestamps_too_far_ahead_and_behind() -> None:
    ahead = batch(b"a", timestamp_ms=NOW_MS + HOUR_MS + 1)
    assert refusal(log_of(), ahead) is ErrorCode.invalid_timestamp
    log_of(message_timestamp_type="LogAppendTime").append(ahead, now_ms=NOW_MS, leader_epoch=0)
    ahead = batch(b"a", timestamp_ms=NOW_MS + 6)
    assert refusal(log_of(message_timestamp_after_max_ms=5), ahead) is ErrorCode.invalid_timestamp
    log = log_of(message_timestamp_before_max_ms=1000)
    rows = [(NOW_MS, None, b"a", ()), (NOW_MS - 1001, None, b"b", ())]
    assert refusal(log, build_batch(rows)) is ErrorCode.invalid_timestamp
    fill(log, [batch(b"a", timestamp_ms=NOW_MS - 1000), batch(b"a", timestamp_ms=-1)])


def test_the_header_of_a_stored_batch_has_the_records_largest_timestamp() -> None:
    log = log_of()
    good = batch(b"a", b"b")
    log.append(changed(good, 35, (NOW_MS + 9).to_bytes(8, "big")), now_ms=NOW_MS, leader_epoch=0)
    log.append(changed(good, 21, b"\0\x08"), now_ms=NOW_MS, leader_epoch=0)
    data = log.read(0, 1 << 20).data
    assert [(h.max_timestamp, h.attributes) for _, h in iter_headers(data)] == [(NOW_MS, 0)] * 2
    assert all(check_crc(data, at, h) for at, h in iter_headers(data))


def test_a_recompressed_batch_is_held_to_the_size_limit() -> None:
    log = log_of(max_message_bytes=500, compression_type="uncompressed")
    assert refusal(log, batch(b"x" * 600, compression="zstd")) is ErrorCode.message_too_large


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_expands_past_the_bound_is_refused(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "EXPANDED_BYTES_MAX", 4096)
    log, data = log_of(), batch(bytes(5000), compression=codec)
    if codec == "none":
        log.append(data, now_ms=NOW_MS, leader_epoch=0)
    else:
        assert refusal(log, data) is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_compacted_topic_refuses_records_without_keys(codec: str) -> None:
    log = log_of(cleanup_policy=("compact",))
    rows = [(NOW_MS, b"k", b"v", ()), (NOW_MS, None, b"v", ())]
    assert refusal(log, build_batch(rows, compression=codec)) is ErrorCode.invalid_record
    fill(log, [build_batch(rows[:1], compression=codec)])


def test_a_coordinator_may_send_many_batches_at_once() -> None:
    log = log_of()
    data = bytes(keyed((b"a", b"1")) + keyed((b"b", b"2"), (b"c", b"3")))
    done = log.append(data, now_ms=NOW_MS, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    assert (done.base_offset, done.last_offset) == (0, 2)
    assert refusal(log, data[:-1], AppendOrigin.COORDINATOR) is ErrorCode.corrupt_message


@pytest.mark.parametrize(
    "config", [{}, {"compression_type": "zstd"}, {"message_timestamp_type": "LogAppendTime"}]
)
def test_a_coordinators_records_stand_as_a_batch_of_theirs_would(config: dict[str, str]) -> None:
    pairs = [(b"k%d" % n, b"v" * n if n else None) for n in range(3)]
    made, whole = log_of(**config), log_of(**config)
    for _ in range(2):
        done = made.append_records(pairs, now_ms=NOW_MS, leader_epoch=5)
        data = build_batch([(NOW_MS, key, value, ()) for key, value in pairs])
        again = whole.append(data, now_ms=NOW_MS, leader_epoch=5, origin=AppendOrigin.COORDINATOR)
        assert done == again
        assert done.base_offset + 2 == done.last_offset
    assert made.read(0, 9_999).data == whole.read(0, 9_999).data
    assert made.latest_epoch == 5


def test_a_follower_keeps_the_leaders_offsets_and_epochs() -> None:
    one, two = batch(b"a", b"b"), batch(b"c")
    assign(one, 0, 10, 4)
    assign(two, 0, 15, 6)  # a gap, as compaction leaves it
    log = log_of()
    log.truncate_fully_and_start_at(10)
    log.append_as_follower(bytes(one + two) + bytes(two)[:30])
    assert [(r.offset, r.value) for r in records(log)] == [(10, b"a"), (11, b"b"), (15, b"c")]
    assert log.find_epoch_end_offset(5) == (4, 15)
    with pytest.raises(AppendRefused) as refused:
        log.append_as_follower(bytes(two))
    assert refused.value.code is ErrorCode.offset_out_of_range
    two[-1] ^= 1
    assign(two, 0, 16, 6)
    with pytest.raises(AppendRefused) as refused:
        log.append_as_follower(bytes(two))
    assert refused.value.code is ErrorCode.corrupt_message


# Idempotence (KIP-98)


def send(log: Log, sequence: int, *, epoch: int = 0, count: int = 1, now_ms: int = NOW_MS) -> int:
    """Append a batch of producer 7; return its base offset, negative for a duplicate."""
    data = batch(*[b"v"] * count, producer=(7, epoch, sequence))
    done = log.append(data, now_ms=now_ms, leader_epoch=0)
    return -done.base_offset if done.duplicate else done.base_offset


def send_refused(log: Log, sequence: int, *, epoch: int = 0) -> ErrorCode:
    return refusal(log, batch(b"v", producer=(7, epoch, sequence)))


def test_the_five_last_batches_are_answered_again() -> None:
    log = log_of()
    assert [send(log, i * 2, count=2) for i in range(7)] == [0, 2, 4, 6, 8, 10, 12]
    assert [send(log, i * 2, count=2) for i in range(2, 7)] == [-4, -6, -8, -10, -12]
    assert send_refused(log, 2) is ErrorCode.out_of_order_sequence_number
    assert log.log_end_offset == 14


def test_sequences_must_follow_one_another() -> None:
    log = log_of()
    send(log, 0)
    assert send_refused(log, 2) is ErrorCode.out_of_order_sequence_number
    assert send(log, 1) == 1


def test_a_sequence_wraps() -> None:
    log = log_of()
    last = 2**31 - 1
    assert send(log, last - 1, count=2) == 0  # an unknown producer may begin with any sequence
    assert send(log, 0) == 2
    assert send(log, last - 1, count=2) == 0


def test_epochs_fence() -> None:
    log = log_of()
    send(log, 0, epoch=3)
    assert send_refused(log, 1, epoch=2) is ErrorCode.invalid_producer_epoch
    assert send_refused(log, 1, epoch=4) is ErrorCode.out_of_order_sequence_number
    assert send(log, 0, epoch=4) == 1
    assert send_refused(log, 1, epoch=3) is ErrorCode.invalid_producer_epoch


def test_silent_producers_are_forgotten() -> None:
    log = log_of()
    send(log, 0, now_ms=NOW_MS)
    assert log.expire_producers(NOW_MS + 999, 1000) == 0
    assert log.expire_producers(NOW_MS + 1000, 1000) == 1
    assert send(log, 40) == 1


@pytest.mark.parametrize("clean", [True, False])
def test_duplicates_are_known_after_a_restart(clean: bool) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    for sequence in range(7):
        send(log, sequence)
    if clean:
        log.close()
    else:
        storage.crash(lambda n: n - 1)
    log = open_log(storage, clean=clean)
    assert send_refused(log, 8) is ErrorCode.out_of_order_sequence_number
    # A snapshot has only the last batch, so the log is searched for the other four.
    assert [send(log, i) for i in (2, 3, 4, 5, 6)] == [-2, -3, -4, -5, -6]
    assert send_refused(log, 1) is ErrorCode.out_of_order_sequence_number
    assert send(log, 7) == 7
    assert send(log, 3) == -3
    assert send_refused(log, 2) is ErrorCode.out_of_order_sequence_number


#: A segment of about two batches of one record, each in the offset index.
SHORT_SEGMENTS = LogConfig(segment_bytes=150, index_interval_bytes=0)


@pytest.mark.parametrize("config", [LogConfig(), SHORT_SEGMENTS], ids=["one", "many"])
def test_earlier_batches_are_found_between_those_of_others(config: LogConfig) -> None:
    storage = MemoryStorage()
    log = open_log(storage, config)
    for sequence in range(5):
        send(log, sequence)
        for other in (8, -1):
            log.append(batch(b"v", producer=(other, 0, sequence)), now_ms=NOW_MS, leader_epoch=0)
    log.close()
    log = open_log(storage, config, clean=True)
    assert [send(log, i) for i in range(5)] == [0, -3, -6, -9, -12]
    assert send(log, 5) == 15


def test_batches_of_an_earlier_epoch_are_no_duplicates_after_a_restart() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    for sequence in range(3):
        send(log, sequence, epoch=0)
    send(log, 0, epoch=1)
    log.close()
    log = open_log(storage, clean=True)
    assert send_refused(log, 2, epoch=1) is ErrorCode.out_of_order_sequence_number
    assert send(log, 0, epoch=1) == -3
    assert send(log, 1, epoch=1) == 4


def test_earlier_batches_are_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search reads a bounded part of the log, and a client cannot trigger it repeatedly."""
    monkeypatch.setattr(resent, "SEARCHED_MAX", 9)
    storage = MemoryStorage()
    log = open_log(storage)
    for sequence in range(3):
        send(log, sequence)
    fill(log, [batch(b"v")] * 8)
    send(log, 3)
    log.close()
    log = open_log(storage, clean=True)
    assert send(log, 2) == -2
    assert send_refused(log, 1) is ErrorCode.out_of_order_sequence_number
    monkeypatch.setattr(resent, "SEARCHED_MAX", 100)
    assert send_refused(log, 1) is ErrorCode.out_of_order_sequence_number


def test_a_search_that_the_disk_refuses_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    for sequence in range(3):
        send(log, sequence)
    log.close()
    log = open_log(storage, clean=True)
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "read_headers", _disk_fails)
        assert send_refused(log, 1) is ErrorCode.kafka_storage_error
    assert send(log, 1) == -1


def test_a_search_ends_where_an_index_leads_to_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, config = MemoryStorage(), LogConfig(index_interval_bytes=0)
    log = open_log(storage, config)
    for sequence in range(3):
        send(log, sequence)
    log.close()
    log = open_log(storage, config, clean=True)
    monkeypatch.setattr(Segment, "read_headers", lambda segment, position=0: iter(()))
    assert send_refused(log, 1) is ErrorCode.out_of_order_sequence_number


def _disk_fails(_segment: Segment, _position: int = 0) -> Never:
    raise OSError(errno.EIO, "Input/output error")


def test_truncation_takes_the_producers_back() -> None:
    log = log_of()
    for sequence in range(5):
        send(log, sequence)
    log.truncate(2)
    assert send_refused(log, 4) is ErrorCode.out_of_order_sequence_number
    assert send(log, 2) == 2


# The disk


def test_a_full_disk_refuses_and_the_log_recovers_when_there_is_room() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a")])
    used = storage.count_used_bytes()
    for room in range(0, 60, 7):
        storage.capacity_bytes = used + room
        assert refusal(log, batch(b"b" * 50)) is ErrorCode.kafka_storage_error
        assert [r.value for r in records(log)] == [b"a"]
    storage.capacity_bytes = None
    fill(log, [batch(b"c")])
    assert [r.value for r in records(log)] == [b"a", b"c"]
    storage.crash(lambda n: n - 1)
    assert [r.value for r in records(open_log(storage))] == [b"a", b"c"]


def test_a_disk_that_cannot_even_cut_keeps_refusing_until_it_can() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a")])

    def fault(operation: str, path: str) -> None:
        if operation in ("write", "truncate"):
            raise OSError(errno.EIO, "Input/output error", path)

    storage.fault = fault
    for _ in range(2):
        assert refusal(log, batch(b"b")) is ErrorCode.kafka_storage_error
    storage.fault = lambda operation, path: None
    fill(log, [batch(b"c")])
    assert [r.value for r in records(log)] == [b"a", b"c"]


def test_a_failed_fsync_takes_the_log_offline() -> None:
    """The kernel reports a lost page once, so a later successful fsync proves nothing."""
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, [batch(b"a")])

    def fault(operation: str, path: str) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, "Input/output error", path)

    storage.fault = fault
    with pytest.raises(OSError, match="Input/output error"):
        log.sync()
    storage.fault = lambda operation, path: None
    assert refusal(log, batch(b"b")) is ErrorCode.kafka_storage_error
    assert log.recovery_point == 0
    with pytest.raises(LogOffline):
        log.begin_sync()
    assert [r.value for r in records(log)] == [b"a"]


@pytest.mark.parametrize("fail_at", range(12))
def test_a_roll_that_fails_at_any_step_is_done_again(fail_at: int) -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=200, index_interval_bytes=0))
    fill(log, [batch(b"a" * 50), batch(b"b" * 50)])
    countdown = [fail_at]

    def fault(_operation: str, path: str) -> None:
        countdown[0] -= 1
        if countdown[0] == -1:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    storage.fault = fault
    try:
        fill(log, [batch(b"c" * 50)])
    except AppendRefused as refused:
        if refused.code is not ErrorCode.kafka_storage_error:
            raise
        fill(log, [batch(b"c" * 50)])
    storage.fault = lambda operation, path: None
    assert [r.value[:1] for r in records(log) if r.value] == [b"a", b"b", b"c"]
    storage.crash(lambda n: n - 1)
    again = open_log(storage, log.config)
    assert [r.value[:1] for r in records(again) if r.value] == [b"a", b"b", b"c"]
    assert list(read_records(again.read(2, 1000).data))
