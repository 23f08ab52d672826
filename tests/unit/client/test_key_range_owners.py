"""What `shoal groups describe` makes of key ranges: owners, positions, and gaps."""

from __future__ import annotations

from typing import Any

from shoal.client.admin.groups import (
    CONSUMER,
    CommittedOffset,
    CommittedRange,
    GroupDescription,
    GroupMember,
)
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues.gaps import find_gaps
from shoal.client.queues.key_range_owners import RangeOwner, find_owners, select_sharing
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.key_ranges import KeyRanges

WHERE = TopicPartition("orders", 0)
#: Lower ends of the four quarters of the hashes, and the end.
Q = [(KEY_HASH_MAX + 1) * n // 4 for n in range(5)]


def quarters(first: int, last: int) -> tuple[int, int]:
    """The hashes of some quarters, from 0 on."""
    return Q[first], Q[last + 1] - 1


def progress(
    first: int, last: int, position: int, finished: list[tuple[int, int]] | None = None
) -> CommittedRange:
    done = FinishedOffsets.from_ranges(finished or [])
    return CommittedRange(*quarters(first, last), position, done, 1 if finished else -1)


def group(ranges: dict[str, list[tuple[int, int]]], whole: str | None = None) -> GroupDescription:
    members = [
        GroupMember(name, "c", "h", (WHERE,), key_ranges={WHERE: KeyRanges(some)})
        for name, some in ranges.items()
    ]
    if whole is not None:
        members.append(GroupMember(whole, "c", "h", (WHERE,)))
    return GroupDescription("billing", CONSUMER, "Stable", "uniform", 1, tuple(members))


def committed(*pieces: CommittedRange) -> dict[TopicPartition, CommittedOffset]:
    return {WHERE: CommittedOffset(min(p.position for p in pieces), key_ranges=pieces)}


def rows(found: list[RangeOwner], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(one.to_row()[name] for name in columns) for one in select_sharing(found)]


def test_the_lowest_position_is_first_and_holds_the_stable_offset() -> None:
    two = group({"a": [quarters(0, 1)], "b": [quarters(2, 3)]})
    found = find_owners(two, committed(progress(0, 1, 90), progress(2, 3, 40)), {WHERE: 100})
    columns = ("member", "share", "position", "lag", "finished_above_stable", "holds_stable")
    assert rows(found, *columns) == [
        ("b", "50.0 %", 40, 60, 0, True),
        ("a", "50.0 %", 90, 10, 50, False),
    ]
    assert find_gaps(found) == []


def test_nobody_holds_the_stable_offset_if_nothing_above_it_is_finished() -> None:
    two = group({"a": [quarters(0, 1)], "b": [quarters(2, 3)]})
    found = find_owners(two, {WHERE: CommittedOffset(40)}, {WHERE: 100})
    assert rows(found, "member", "position", "holds_stable") == [
        ("a", 40, False),
        ("b", 40, False),
    ]


def test_ranges_of_a_member_with_equal_progress_are_one_row() -> None:
    """And those with other progress are another one, however the coordinator stores them."""
    two = group({"a": [quarters(0, 0), quarters(2, 3)], "b": [quarters(1, 1)]})
    stored = committed(progress(0, 2, 7), progress(3, 3, 5))
    found = find_owners(two, stored, {WHERE: None})
    assert rows(found, "member", "share", "position", "lag", "key_ranges") == [
        ("a", "25.0 %", 5, None, str(KeyRanges([quarters(3, 3)]))),
        ("a", "50.0 %", 7, None, str(KeyRanges([quarters(0, 0), quarters(2, 2)]))),
        ("b", "25.0 %", 7, None, str(KeyRanges([quarters(1, 1)]))),
    ]


def test_a_gap_has_the_owner_of_its_ranges() -> None:
    two = group({"a": [quarters(0, 1)], "b": [quarters(2, 3)]})
    stored = committed(progress(0, 1, 3, [(5, 8), (10, 19)]), progress(2, 3, 12, [(13, 19)]))
    found = find_owners(two, stored, {WHERE: 20})
    assert rows(found, "member", "finished_above_stable", "holds_stable") == [
        ("a", 14, True),
        ("b", 16, False),
    ]
    columns = ("gap", "finished_above", "ranges", "member", "key_ranges")
    by_member = sorted(find_gaps(found), key=lambda gap: str(gap.member))
    assert [tuple(gap.to_row()[name] for name in columns) for gap in by_member] == [
        ("3-4", 14, 2, "a", str(KeyRanges([quarters(0, 1)]))),
        ("12", 7, 1, "b", str(KeyRanges([quarters(2, 3)]))),
    ]


def test_ranges_with_one_position_hold_it_while_one_has_a_gap() -> None:
    two = group({"a": [quarters(0, 0), quarters(1, 1)], "b": [quarters(2, 3)]})
    stored = committed(progress(0, 1, 3, [(5, 8)]), progress(2, 3, 3))
    found = find_owners(two, stored, {WHERE: 20})
    assert rows(found, "member", "finished_above_stable", "holds_stable", "key_ranges") == [
        ("a", 4, True, str(KeyRanges([quarters(0, 1)]))),
        ("b", 0, True, str(KeyRanges([quarters(2, 3)]))),
    ]


def test_the_oldest_gap_is_first() -> None:
    two = group({"a": [quarters(0, 1)], "b": [quarters(2, 3)]})
    later = progress(0, 1, 3, [(5, 8)])._replace(gap_timestamp_ms=2)
    found = find_owners(two, committed(later, progress(2, 3, 12, [(13, 19)])), {WHERE: 20})
    assert [gap.member for gap in find_gaps(found)] == ["b", "a"]


def test_ranges_without_an_owner_are_listed() -> None:
    """Those that move to another member, and all of them once the members have left."""
    stored = committed(progress(0, 0, 3, [(5, 8)]), progress(1, 3, 12))
    one = group({"a": [quarters(1, 2)]})
    assert rows(find_owners(one, stored, {WHERE: 20}), "member", "share", "position") == [
        (None, "25.0 %", 3),
        ("a", "50.0 %", 12),
        (None, "25.0 %", 12),
    ]
    found = find_owners(group({}), stored, {WHERE: 20})
    assert rows(found, "member", "position") == [(None, 3), (None, 12)]
    assert [gap.member for gap in find_gaps(found)] == [None]


def test_a_whole_partition_keeps_the_ranges_of_earlier_owners() -> None:
    stored = committed(progress(0, 0, 3), progress(1, 3, 12))
    found = find_owners(group({}, whole="java"), stored, {WHERE: 20})
    assert rows(found, "member", "position") == [("java", 3), ("java", 12)]


def test_a_range_without_a_position_holds_the_others() -> None:
    two = group({"a": [quarters(0, 1)], "b": [quarters(2, 3)]})
    found = find_owners(two, committed(progress(0, 1, -1), progress(2, 3, 12)), {WHERE: 20})
    columns = ("member", "position", "lag", "finished_above_stable", "holds_stable")
    assert rows(found, *columns) == [
        ("a", None, None, None, True),
        ("b", 12, 8, None, False),
    ]


def test_a_partition_without_key_ranges_has_only_its_gap() -> None:
    """Such a row has no key ranges, as that of a whole partition."""
    whole = CommittedOffset(3, finished=FinishedOffsets.from_ranges([(5, 8)]), gap_timestamp_ms=1)
    found = find_owners(group({}, whole="a"), {WHERE: whole}, {WHERE: 20})
    assert select_sharing(found) == []
    (gap,) = find_gaps(found)
    row = gap.to_row()
    assert (row["gap"], row["finished_above"], row["member"]) == ("3-4", 4, "a")
    assert row["key_ranges"] is None
