"""Dead letters as a reader finds them, their redriving, and its recorded progress."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.client.net.cluster import TopicPartition
from shoal.coordinator.share.dead_letters import RecordSource, build_dead_letters
from shoal.coordinator.share.delivery_failure import DeadLetterRange, FailureCause
from shoal.dead_letters.records import (
    DeadLetter,
    DeadLetterFilter,
    get_redrive_source,
    make_redriven_headers,
    parse_dead_letter,
)
from shoal.dead_letters.redrive_ledger import RedriveState, Sending
from shoal.record.offset_set import OffsetSet, to_ranges
from shoal.record.records import Record

_OFFSETS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)))


@given(_OFFSETS, st.integers(0, 70))
def test_a_set_of_offsets_is_as_a_plain_one(added: list[tuple[int, int]], below: int) -> None:
    found, plain = OffsetSet(), set[int]()
    for first, more in added:
        found.add(first, first + more)
        plain |= set(range(first, first + more + 1))
    assert sorted(plain) == list(found) == list(OffsetSet.parse(str(found)))
    assert len(found) == len(plain)
    assert [offset in found for offset in range(70)] == [offset in plain for offset in range(70)]
    assert all(
        a[1] + 1 < b[0]
        for a, b in zip(found.iter_ranges(), [*found.iter_ranges()][1:], strict=False)
    )
    assert list(found.iter_ranges()) == to_ranges(sorted(plain))
    parts = list(found.cut(below, 65))
    assert [x for a, b, _ in parts for x in range(a, b + 1)] == list(range(below, 66))
    assert all((x in plain) is within for a, b, within in parts for x in range(a, b + 1))
    assert all(one[2] is not other[2] for one, other in pairwise(parts))
    missing = next(offset for offset in range(below, 200) if offset not in plain)
    assert found.find_first_missing(below) == missing
    found.forget(below)
    assert list(found) == sorted(offset for offset in plain if offset >= below)


@pytest.mark.parametrize("text", ["x", "3-", "7-3", "-1", "1;2"])
def test_an_invalid_set_of_offsets_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        OffsetSet.parse(text)


def written(cause: FailureCause = FailureCause.REJECTED, *, copied: bool = True) -> DeadLetter:
    """Return a dead letter as the broker writes it, at offset 3 of the dead-letter topic."""
    dead_letter = DeadLetterRange(7, 7, 2, cause, "m-1", "worker")
    record = Record(7, 99, b"k", b"v", (("h", b"1"), ("__dlq.redrive.count", b"1")))
    (made,) = build_dead_letters(
        RecordSource("g", "t", 5), [dead_letter], {7: record} if copied else {}, now_ms=500
    )
    timestamp_ms, key, value, headers = made
    letter = parse_dead_letter("dlq.t", 1, Record(3, timestamp_ms, key, value, tuple(headers)))
    assert letter is not None
    return letter


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (FailureCause.REJECTED, "rejected"),
        (FailureCause.LIMIT, "limit"),
        (FailureCause.CORRUPT, "corrupt"),
    ],
)
def test_a_letter_is_read_as_it_was_written(cause: FailureCause, reason: str) -> None:
    letter = written(cause)
    assert (letter.source_topic, letter.source_partition, letter.source_offset) == ("t", 5, 7)
    assert (letter.group, letter.delivery_count, letter.reason) == ("g", 2, reason)
    assert (letter.member_id, letter.client_id, letter.timestamp_ms) == ("m-1", "worker", 500)
    assert not letter.is_bare
    assert written(copied=False).is_bare


def test_a_letter_of_kafka_has_no_more_than_its_headers() -> None:
    fields = {"topic": b"t", "partition": b"0", "offset": b"1", "group": b"g", "message": b"?"}
    headers = tuple((f"__dlq.errors.{name}", value) for name, value in fields.items())
    letter = parse_dead_letter("dlq.t", 0, Record(0, 42, None, None, headers))
    assert letter is not None
    assert (letter.reason, letter.timestamp_ms, letter.client_id) == ("other", 42, "")


def letter_at(partition: bytes, offset: bytes) -> tuple[tuple[str, bytes], ...]:
    fields = {"topic": b"t", "partition": partition, "offset": offset}
    return tuple((f"__dlq.errors.{name}", value) for name, value in fields.items())


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("__dlq.errors.topic", b"t"),),
        letter_at(b"-1", b"0"),
        letter_at(b"2147483648", b"0"),
        letter_at(b"0", b"-1"),
        letter_at(b"0", b"9223372036854775808"),
    ],
)
def test_other_records_are_no_letters(headers: tuple[tuple[str, bytes], ...]) -> None:
    assert parse_dead_letter("dlq.t", 0, Record(0, 0, b"k", b"v", headers)) is None


def test_a_redriven_record_names_its_origin() -> None:
    letter = written()
    headers = make_redriven_headers(letter, letter.record, now_ms=900, note="fixed")
    assert headers == (
        ("h", b"1"),
        ("__dlq.redrive.from", b"dlq.t-1@3"),
        ("__dlq.redrive.time", b"900"),
        ("__dlq.redrive.count", b"2"),
        ("__dlq.redrive.original.timestamp", b"99"),
        ("__dlq.redrive.note", b"fixed"),
    )
    assert get_redrive_source(headers) == letter.name
    assert get_redrive_source(()) == ""
    edited = make_redriven_headers(letter, letter.record, now_ms=900, is_edited=True)
    assert dict(edited)["__dlq.redrive.edited"] == b"true"


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (DeadLetterFilter(), True),
        (DeadLetterFilter(reasons=["rejected"]), True),
        (DeadLetterFilter(reasons=["limit"]), False),
        (DeadLetterFilter(groups=["other"]), False),
        (DeadLetterFilter(source_topics=["t"], keys=[b"k"]), True),
        (DeadLetterFilter(keys=[b"other"]), False),
        (DeadLetterFilter(headers={"h": b"1", "__dlq.errors.group": None}), True),
        (DeadLetterFilter(headers={"h": b"2"}), False),
        (DeadLetterFilter(headers={"missing": None}), False),
        (DeadLetterFilter(since_ms=500, until_ms=501), True),
        (DeadLetterFilter(since_ms=501), False),
        (DeadLetterFilter(until_ms=500), False),
        (DeadLetterFilter(partitions=[1], offsets=OffsetSet([3])), True),
        (DeadLetterFilter(partitions=[0]), False),
        (DeadLetterFilter(offsets=OffsetSet([4])), False),
    ],
)
def test_a_filter_takes(wanted: DeadLetterFilter, taken: bool) -> None:
    assert wanted.matches(written()) is taken


def test_recorded_progress_is_read_as_it_was_written() -> None:
    ends = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 0}
    state = RedriveState("dlq.t", 1, OffsetSet([1, 2, 9]), {"g": 3}, Sending(3, 8, ends))
    found = RedriveState.parse(state.to_json())
    assert (str(found.redriven), found.counts, found.sending) == ("1-2,9", {"g": 3}, state.sending)
    state.sending = None
    assert RedriveState.parse(state.to_json()).sending is None
