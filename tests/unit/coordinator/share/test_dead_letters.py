"""Dead letters: which records get one, its content, and that its record waits for it."""

from __future__ import annotations

import pytest
from shoal.coordinator.share.acquisition import AcquireRequest, acquire
from shoal.coordinator.share.batches import scan
from shoal.coordinator.share.dead_letters import (
    RecordSource,
    build_dead_letters,
    infer_cause,
    split_after,
    split_at,
)
from shoal.coordinator.share.delivery_failure import DeadLetterRange, FailureCause, FailurePolicy
from shoal.coordinator.share.settings import ShareSettings
from shoal.coordinator.share.share_partition import SharePartition
from shoal.coordinator.share.states import RecordState
from shoal.record.records import Record, build_batch

ON_FAILURE = FailurePolicy(0, lambda: 0.5, dead_letters=True)
SETTINGS = ShareSettings(delivery_count_limit=2, dead_letters=True)
GAP, ACCEPT, RELEASE, REJECT = (bytes([kind]) for kind in range(4))


def fetched(data: bytes | None = None) -> SharePartition:
    share = SharePartition(0)
    again(share, data)
    return share


def again(share: SharePartition, data: bytes | None = None) -> None:
    data = data or bytes(build_batch([(0, None, b"x", ())] * 4, base_offset=0))
    begin = share.find_next_fetch_offset()
    acquire(share, 0, AcquireRequest("m", 10, 10), scan(data, begin), SETTINGS, begin)


def test_a_rejected_record_holds_the_window_until_its_letter_is_written() -> None:
    share = fetched()
    changes = share.acknowledge(
        0, "m", [(0, 0, REJECT), (1, 3, ACCEPT)], SETTINGS, ON_FAILURE
    ).changes
    assert changes[0] == (0, 0, RecordState.ARCHIVING, 1)
    assert share.dead_letters == [DeadLetterRange(0, 0, 1, FailureCause.REJECTED, "m")]
    assert (share.start_offset, share.in_flight, share.complete) == (0, 4, 3)
    assert share.complete_archiving(0, 0) == [(0, 0, RecordState.ARCHIVED, 1)]
    assert (share.start_offset, share.complete) == (4, 0)


def test_a_record_at_its_limit_gets_a_dead_letter_when_it_comes_back() -> None:
    share = fetched()
    share.acknowledge(0, "m", [(0, 3, RELEASE)], SETTINGS, ON_FAILURE)
    assert not share.dead_letters
    again(share)
    share.expire(30_000, 2, ON_FAILURE)
    assert share.dead_letters == [DeadLetterRange(0, 3, 2, FailureCause.LIMIT, "m")]


def test_a_gap_is_no_record_and_gets_no_letter() -> None:
    share = fetched()
    share.acknowledge(0, "m", [(0, 3, GAP)], SETTINGS, ON_FAILURE)
    assert (share.dead_letters, share.start_offset) == ([], 4)


def test_a_corrupt_redelivered_batch_gets_a_dead_letter() -> None:
    data = bytes(build_batch([(0, None, b"x", ())] * 4, base_offset=0))
    share = fetched(data)
    settings = ShareSettings(dead_letters=True)
    share.release("m", 5, on_failure=ON_FAILURE)
    acquire(share, 0, AcquireRequest("m", 9, 9), scan(data[:-1] + b"?", 0), settings, 0)
    assert share.dead_letters == [DeadLetterRange(0, 3, 1, FailureCause.CORRUPT, "")]


def test_a_new_leader_finds_records_that_wait_for_a_dead_letter() -> None:
    loaded = SharePartition.from_state_batches(
        0,
        [(0, 1, 3, 5), (2, 3, 2, 1)],
        state_epoch=0,
        leader_epoch=0,
        log_start_offset=0,
        log_end_offset=4,
    )
    assert list(loaded.iterate_archiving()) == [(0, 1, 5)]
    assert (loaded.start_offset, loaded.complete) == (0, 2)


@pytest.mark.parametrize(("count", "cause"), [(4, FailureCause.REJECTED), (5, FailureCause.LIMIT)])
def test_the_cause_is_inferred_from_the_count(count: int, cause: FailureCause) -> None:
    assert infer_cause(count, 5) is cause


def test_a_dead_letter_keeps_the_record_and_appends_headers_with_the_reason() -> None:
    dead_letter = DeadLetterRange(7, 8, 3, FailureCause.LIMIT, "m", "worker-1")
    found = {7: Record(7, 99, b"k", b"v", (("h", b"1"),))}
    whole, bare = build_dead_letters(RecordSource("g", "t", 2), [dead_letter], found, now_ms=500)
    why = [
        ("__dlq.errors.topic", b"t"),
        ("__dlq.errors.partition", b"2"),
        ("__dlq.errors.offset", b"7"),
        ("__dlq.errors.group", b"g"),
        ("__dlq.errors.delivery.count", b"3"),
        ("__dlq.errors.message", b"Offset delivery count exceeded the threshold."),
        ("__dlq.errors.disposition", b"MAX_DELIVERY_ATTEMPTS_REACHED"),
        ("__dlq.errors.timestamp", b"500"),
        ("__dlq.errors.member", b"m"),
        ("__dlq.errors.client.id", b"worker-1"),
    ]
    assert whole == (99, b"k", b"v", [("h", b"1"), *why])
    assert bare[:3] == (500, None, None)
    assert dict(bare[3])["__dlq.errors.offset"] == b"8"


def test_a_record_does_not_bring_the_headers_of_a_dead_letter() -> None:
    """A producer wrote where the record came from, in front of the true headers."""
    forged = ("__dlq.errors.topic", b"salaries"), ("__dlq.errors.mine", b"1"), ("h", b"1")
    found = {7: Record(7, 99, b"k", b"v", forged)}
    ranges = [DeadLetterRange(7, 7, 3, FailureCause.LIMIT, "")]
    (letter,) = build_dead_letters(RecordSource("g", "t", 2), ranges, found, now_ms=500)
    headers = list(letter[3])
    assert headers[:2] == [("h", b"1"), ("__dlq.errors.topic", b"t")]
    assert len(dict(headers)) == len(headers)


def test_a_batch_of_dead_letters_ends_within_a_range() -> None:
    one, two = (
        DeadLetterRange(0, 3, 1, FailureCause.LIMIT, ""),
        DeadLetterRange(8, 9, 1, FailureCause.LIMIT, ""),
    )
    assert split_after([one, two], 5) == ([one, two._replace(last=8)], [two._replace(first=9)])
    assert split_after([one, two], 4) == ([one], [two])
    assert split_after([one, two], 2) == ([one._replace(last=1)], [one._replace(first=2), two])
    assert split_after([one, two], 9) == ([one, two], [])


def test_dead_letters_are_split_at_an_offset() -> None:
    one, two = (
        DeadLetterRange(8, 9, 1, FailureCause.LIMIT, ""),
        DeadLetterRange(0, 3, 1, FailureCause.LIMIT, ""),
    )
    assert split_at([one, two], 9) == ([one._replace(last=8), two], [one._replace(first=9)])
    assert split_at([one, two], 2) == ([two._replace(last=1)], [one, two._replace(first=2)])
