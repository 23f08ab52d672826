"""Retry back-off: its length, that the record keeps its place, and that a restart keeps it."""

from __future__ import annotations

from uuid import UUID

import pytest
from shoal.coordinator.contract import RecordOrigin
from shoal.coordinator.share import records
from shoal.coordinator.share.acquisition import AcquireRequest, acquire
from shoal.coordinator.share.backoff import Delay, RedeliveryBackoff
from shoal.coordinator.share.batches import scan
from shoal.coordinator.share.delivery_failure import FailurePolicy
from shoal.coordinator.share.records import ShareKey, ShareUpdate
from shoal.coordinator.share.settings import ShareSettings
from shoal.coordinator.share.share_partition import SharePartition
from shoal.coordinator.share.state_store import ShareStateShard, StateStoreConfig
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch

KEY = ShareKey("g", UUID(int=3), 0)
PLAIN = RedeliveryBackoff(100, 1000)
RELEASE = b"\x02"


def on_failure(now_ms: int) -> FailurePolicy:
    return FailurePolicy(now_ms, lambda: 0.5, PLAIN)


def fetch(share: SharePartition, now_ms: int, *, size: int = 4) -> list[tuple[int, int, int]]:
    share.end_waits(now_ms)
    data = bytes(build_batch([(0, None, b"x", ())] * size, base_offset=0))
    begin = share.find_next_fetch_offset()
    if begin >= size:
        return []
    got = acquire(
        share, now_ms, AcquireRequest("m", 10, 10), scan(data, begin), ShareSettings(), begin
    )
    return list(got.records)


def release(share: SharePartition, now_ms: int, first: int, last: int) -> None:
    acks = [(first, last, RELEASE)]
    outcome = share.acknowledge(now_ms, "m", acks, ShareSettings(), on_failure(now_ms))
    assert outcome.error is ErrorCode.none


@pytest.mark.parametrize(
    ("count", "delay_ms"), [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (25, 1000)]
)
def test_waits_double_up_to_the_maximum(count: int, delay_ms: int) -> None:
    assert PLAIN.compute_delay_ms(count, lambda: 0.0) == delay_ms


def test_jitter_makes_waits_shorter_and_longer_but_never_longer_than_the_maximum() -> None:
    backoff = RedeliveryBackoff(100, 1000, 2.0, 0.5)
    assert [backoff.compute_delay_ms(1, iter([x]).__next__) for x in (0.0, 0.5, 0.75)] == [
        50,
        100,
        125,
    ]
    assert backoff.compute_delay_ms(9, lambda: 0.99) == 1000


def test_a_released_record_is_available_when_its_wait_is_over_and_not_before() -> None:
    share = SharePartition(0)
    assert fetch(share, 0) == [(0, 3, 1)]
    release(share, 10, 1, 2)
    assert (share.backing_off, share.next_deadline_ms) == (2, 110)
    assert fetch(share, 109) == []
    assert fetch(share, 110) == [(1, 2, 2)]
    release(share, 120, 1, 2)
    assert share.next_deadline_ms == 320


def test_a_record_whose_lock_ended_waits_too() -> None:
    share = SharePartition(0)
    fetch(share, 0)
    assert share.expire(30_000, 5, on_failure(30_000))[0] == 4
    assert (fetch(share, 30_099), fetch(share, 30_100)) == ([], [(0, 3, 2)])


def test_locks_and_waits_are_numbered_apart() -> None:
    share = SharePartition(0)
    fetch(share, 0)
    release(share, 0, 0, 0)
    assert list(share.waits.live) == list(share.locks.live)
    assert share.expire(30_000, 5, on_failure(30_000))[0] == 3


def test_a_waiting_record_keeps_its_place_in_the_window() -> None:
    share = SharePartition(0)
    fetch(share, 0)
    release(share, 0, 0, 0)
    acks = [(1, 3, b"\x01")]
    assert share.acknowledge(0, "m", acks, ShareSettings()).error is ErrorCode.none
    assert (share.start_offset, share.in_flight, share.complete) == (0, 4, 3)


def test_a_record_at_its_limit_does_not_wait() -> None:
    share = SharePartition(0)
    fetch(share, 0)
    limit = ShareSettings(delivery_count_limit=1)
    share.acknowledge(0, "m", [(0, 3, RELEASE)], limit, on_failure(0))
    assert (share.start_offset, share.backing_off) == (4, 0)


def test_a_wait_below_the_new_start_of_the_log_is_gone() -> None:
    share = SharePartition(0)
    fetch(share, 0)
    release(share, 0, 0, 3)
    share.advance_log_start(3)
    assert (share.backing_off, fetch(share, 100)) == (1, [(3, 3, 2)])


@pytest.mark.parametrize("updates_per_snapshot", [0, 500])
@pytest.mark.parametrize("replay", [False, True])
def test_a_new_leader_keeps_waits(updates_per_snapshot: int, replay: bool) -> None:
    shards = [ShareStateShard(StateStoreConfig(updates_per_snapshot), lambda _: 1) for _ in "ab"]
    log = [shards[0].initialize(0, KEY, state_epoch=0, start_offset=0).record]
    assert log[0] is not None
    shards[0].replay(log[0], RecordOrigin(0, 0))
    share = SharePartition(0)
    fetch(share, 0)
    release(share, 0, 0, 3)
    log.append(
        shards[0]
        .write(
            0,
            KEY,
            state_epoch=0,
            leader_epoch=0,
            start_offset=0,
            delivery_complete_count=0,
            batches=[(0, 3, 0, 1)],
            delays=share.delays,
        )
        .record
    )
    for shard in shards[replay:]:
        for offset, record in enumerate(log[1 - replay :]):
            assert record is not None
            shard.replay(record, RecordOrigin(offset, 0))
    state, _ = shards[replay].read(0, KEY, 0)
    assert state is not None
    loaded = SharePartition.from_state_batches(
        0,
        state.batches,
        state_epoch=0,
        leader_epoch=0,
        log_start_offset=0,
        log_end_offset=4,
        delays=state.delays,
    )
    assert (loaded.backing_off, loaded.next_deadline_ms) == (4, 100)
    assert (fetch(loaded, 99), fetch(loaded, 100)) == ([], [(0, 3, 2)])


def test_a_wait_before_a_further_delivery_is_ignored() -> None:
    loaded = SharePartition.from_state_batches(
        0,
        [(0, 3, 0, 2)],
        state_epoch=0,
        leader_epoch=0,
        log_start_offset=0,
        log_end_offset=4,
        delays=[Delay(0, 3, 1, 9000), Delay(2, 2, 2, 500)],
    )
    assert loaded.backing_off == 1
    assert fetch(loaded, 0) == [(0, 1, 3), (3, 3, 3)]


def test_of_two_waits_with_one_delivery_count_the_later_one_counts() -> None:
    """A delivery between them was taken back, since it never left the broker."""
    loaded = SharePartition.from_state_batches(
        0,
        [(0, 0, 0, 1)],
        state_epoch=0,
        leader_epoch=0,
        log_start_offset=0,
        log_end_offset=1,
        delays=[Delay(0, 0, 1, 1_000), Delay(0, 0, 1, 2_000)],
    )
    assert loaded.end_waits(1_999) == []
    assert loaded.end_waits(2_000) == [(0, 0)]


def test_waits_are_a_tag_of_an_update() -> None:
    plain = ShareUpdate(1, 2, 3, 4, [(5, 6, 0, 1)])
    delayed = plain._replace(delays=(Delay(5, 6, 1, 77),))
    assert records.read_update(records.encode_update(delayed)) == delayed
    assert records.read_update(records.encode_update(plain)) == plain
    # Tag 1000, 28 bytes: one range, compactly encoded, without tags.
    assert bytes.fromhex("e8071c02") in records.encode_update(delayed)
