"""Sets of ranges, tasks, offsets and the state of a Spark reader, compared with sets of numbers.

Records are checked individually: an offset is a (topic, partition, number).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal_spark import ranges as sets
from shoal_spark.offsets import BadOffset, ShareGroupOffset, from_json, list_still_owed, to_json
from shoal_spark.ranges import OffsetRange
from shoal_spark.reader_state import ReaderState

if TYPE_CHECKING:
    from collections.abc import Iterable

Offsets = set[tuple[str, int, int]]


def offsets(ranges: Iterable[OffsetRange]) -> Offsets:
    return {(r.topic, r.partition, o) for r in ranges for o in range(r.first, r.last + 1)}


@st.composite
def range_sets(draw: st.DrawFn, count_max: int = 6) -> list[OffsetRange]:
    """Draw disjoint ranges in order, some with sizes."""
    found = []
    for topic in ("a", "b"):
        for partition in (0, 1):
            at = 0
            for _ in range(draw(st.integers(0, count_max // 2))):
                at += draw(st.integers(0, 4))
                length = draw(st.integers(1, 12))
                size = draw(st.sampled_from([0, length * 10, length * 1000]))
                found.append(OffsetRange(topic, partition, at, at + length - 1, 1, size))
                at += length
    return found


@given(range_sets(), range_sets())
def test_split_is_intersection_and_difference(
    some: list[OffsetRange], other: list[OffsetRange]
) -> None:
    inside, outside = sets.split(some, other)
    assert offsets(inside) == offsets(some) & offsets(other)
    assert offsets(outside) == offsets(some) - offsets(other)
    assert sets.count(inside) + sets.count(outside) == sets.count(some)


@given(range_sets(), range_sets())
def test_plus_is_union_and_stays_disjoint(
    some: list[OffsetRange], other: list[OffsetRange]
) -> None:
    found = sets.unite(some, other)
    assert offsets(found) == offsets(some) | offsets(other)
    assert sets.count(found) == len(offsets(found)), "an offset is there twice"
    assert found == sorted(found)


@given(range_sets(count_max=10), st.integers(1, 12))
def test_tasks_hold_every_offset_once_and_in_order(ranges: list[OffsetRange], wanted: int) -> None:
    tasks = sets.split_into_tasks(ranges, wanted)
    assert len(tasks) <= wanted
    assert all(tasks)
    pieces = [piece for task in tasks for piece in task]
    assert [*offsets(pieces)] and pieces == sorted(pieces) if ranges else not tasks
    assert sets.count(pieces) == sets.count(ranges)
    assert offsets(pieces) == offsets(ranges)


@given(range_sets(count_max=10), st.integers(1, 12))
def test_tasks_are_even_but_for_a_record(ranges: list[OffsetRange], wanted: int) -> None:
    """A task exceeds an even share of the weight by less than its heaviest record."""
    total = sum(r.weight for r in ranges)
    heaviest = max((-(-r.weight // r.length) for r in ranges), default=0)
    wanted = min(wanted, max(sets.count(ranges), 1))
    for task in sets.split_into_tasks(ranges, wanted):
        # The parts of a cut range are rounded down, so a piece may weigh less than it should.
        assert sum(r.weight for r in task) <= total / wanted + heaviest + len(task)


def test_more_tasks_than_partitions() -> None:
    two = [OffsetRange("t", 0, 0, 499, 1, 5000), OffsetRange("t", 1, 0, 499, 1, 5000)]
    assert [sets.count(task) for task in sets.split_into_tasks(two, 6)] == [
        167,
        167,
        166,
        167,
        167,
        166,
    ]


def test_a_heavy_record_has_a_task_of_its_own() -> None:
    mixed = [OffsetRange("t", 0, 0, 0, 1, 9000), OffsetRange("t", 0, 1, 10, 1, 1000)]
    assert [sets.count(task) for task in sets.split_into_tasks(mixed, 4)] == [1, 10]


def test_neighbours_of_unlike_sizes_stay_apart() -> None:
    small, large = OffsetRange("t", 0, 0, 9, 1, 100), OffsetRange("t", 0, 10, 19, 1, 9000)
    assert sets.normalize([small, large]) == [small, large]
    assert sets.normalize([small, OffsetRange("t", 0, 10, 19, 1, 150)]) == [
        OffsetRange("t", 0, 0, 19, 1, 250)
    ]


@given(range_sets(), range_sets(), st.integers(0, 2**40))
def test_offsets_survive_json(batch: list[OffsetRange], owed: list[OffsetRange], seq: int) -> None:
    owed = [OffsetRange(*r[:4]) for r in owed]
    starts = {("a", 0): 7, ("b", 1): 0}
    offset = ShareGroupOffset(seq, "g", ("a", "b"), tuple(batch), tuple(owed), starts, "member")
    stored = json.loads(json.dumps(to_json(offset)))
    assert from_json(stored, "g", ("a", "b")) == offset
    assert all(isinstance(value, str | int) for value in stored.values()), "Spark keeps primitives"


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"seq": 1}, "not write"),
        (to_json(ShareGroupOffset(1, "other", ("t",))), "'other'.*'g'"),
        (to_json(ShareGroupOffset(1, "g", ("t", "u"))), "topics t, u.*subscribes to t;"),
    ],
)
def test_a_foreign_checkpoint_is_refused(stored: dict, words: str) -> None:
    with pytest.raises(BadOffset, match=words):
        from_json(stored, "g", ("t",))


def test_owed_ranges_end_with_the_start_offset_and_with_a_reset() -> None:
    owed = [OffsetRange("t", 0, 10, 19), OffsetRange("t", 1, 10, 19), OffsetRange("t", 2, 10, 19)]
    now = {("t", 0): 15, ("t", 1): 20, ("t", 2): 5}
    assert list_still_owed(owed, {("t", 2): 5}, now) == [
        OffsetRange("t", 0, 15, 19),
        OffsetRange("t", 2, 10, 19),
    ]
    assert list_still_owed(owed, {("t", 2): 6}, now) == [OffsetRange("t", 0, 15, 19)]


# -- the state of a reader


def test_a_batch_is_settled_once_it_is_complete() -> None:
    state, found = ReaderState(), [OffsetRange("t", 0, 0, 9)]
    state.resume(ShareGroupOffset(0, "g", ("t",)))
    assert state.note_acquired(found) == []
    assert state.list_fresh() == found
    state.give(1, state.list_fresh())
    assert state.list_fresh() == []
    assert state.note_completed(0) == []
    assert state.note_completed(1) == found
    state.note_settled(found)
    assert (state.locked, state.owed) == ([], [])


def test_a_record_that_lost_its_lock_is_owed_and_not_delivered_twice() -> None:
    state = ReaderState()
    state.note_acquired([OffsetRange("t", 0, 0, 9)])
    state.give(1, state.list_fresh())
    state.note_lost([OffsetRange("t", 0, 0, 4)])
    assert state.note_completed(1) == [OffsetRange("t", 0, 5, 9)]
    state.note_settled([OffsetRange("t", 0, 5, 9)])
    assert state.owed == [OffsetRange("t", 0, 0, 4)]
    assert state.note_acquired([OffsetRange("t", 0, 2, 12, 2)]) == [OffsetRange("t", 0, 2, 4, 2)]
    assert state.list_fresh() == [OffsetRange("t", 0, 5, 12, 2)], "settled records come back as new"


def test_a_new_driver_owes_the_records_of_the_checkpoint() -> None:
    state = ReaderState()
    last = ShareGroupOffset(
        7, "g", ("t",), (OffsetRange("t", 0, 10, 19),), (OffsetRange("t", 0, 0, 4),)
    )
    state.resume(last)
    assert offsets(state.owed) == offsets([OffsetRange("t", 0, 0, 4), OffsetRange("t", 0, 10, 19)])
    state.resume(last._replace(ranges=(OffsetRange("t", 0, 90, 99),)))
    assert offsets(state.owed) == offsets([OffsetRange("t", 0, 0, 4), OffsetRange("t", 0, 10, 19)])


def test_a_replayed_batch_is_not_delivered_again_while_it_runs() -> None:
    state = ReaderState()
    end = ShareGroupOffset(
        7, "g", ("t",), (OffsetRange("t", 0, 10, 19),), (OffsetRange("t", 0, 0, 4),)
    )
    assert state.replay(end)
    assert not state.replay(end)
    assert state.note_acquired([OffsetRange("t", 0, 0, 29, 2)]) == [OffsetRange("t", 0, 0, 4, 2)]
    assert offsets(state.list_fresh()) == offsets(
        [OffsetRange("t", 0, 5, 9), OffsetRange("t", 0, 20, 29)]
    )
    assert state.note_completed(7) == [OffsetRange("t", 0, 0, 4, 2), OffsetRange("t", 0, 10, 19, 2)]


def test_kept_records_are_neither_delivered_nor_owed() -> None:
    state = ReaderState()
    state.note_acquired([OffsetRange("t", 0, 0, 9)])
    state.keep([OffsetRange("t", 0, 5, 9)])
    assert state.list_fresh() == [OffsetRange("t", 0, 0, 4)]
    state.note_settled([OffsetRange("t", 0, 5, 9)])
    assert state.locked == [OffsetRange("t", 0, 0, 4)]


@given(st.data())
def test_every_record_is_delivered_until_it_is_settled(data: st.DataObject) -> None:
    """A group of one partition delivers free records; locks are lost, drivers die and return.

    Each record is in only one batch, and at the end every record is settled.
    """
    state, log = ReaderState(), set(range(40))
    free, settled, batches = set(log), set(), dict[int, Offsets]()
    checkpoint, complete = ShareGroupOffset(0, "g", ("t",)), True

    def numbers(ranges: Iterable[OffsetRange]) -> set[int]:
        return {o for _, _, o in offsets(ranges)}

    def settle(ranges: list[OffsetRange]) -> None:
        settled.update(numbers(ranges))
        state.note_settled(ranges)

    for _ in range(data.draw(st.integers(10, 40))):
        step = data.draw(st.sampled_from(["batch", "batch", "lose", "crash"]))
        if step == "lose" and state.locked:
            lost = data.draw(st.sampled_from(state.locked))
            free |= numbers([lost])
            state.note_lost([lost])
        elif step == "crash":
            free |= numbers(state.locked)
            state = ReaderState()
            if not complete:
                state.replay(checkpoint)
        else:
            settle(state.note_completed(checkpoint.seq))
            state.resume(checkpoint)
            complete = True
            first = data.draw(st.integers(0, 39))
            taken = sorted(free & set(range(first, first + 10)))
            free -= set(taken)
            settle(state.note_acquired([OffsetRange("t", 0, o, o) for o in taken]))
            if fresh := state.list_fresh():
                seq = checkpoint.seq + 1
                batches[seq] = offsets(state.give(seq, fresh))
                checkpoint = ShareGroupOffset(seq, "g", ("t",), tuple(fresh), tuple(state.owed))
                complete = data.draw(st.booleans())
    settle(state.note_completed(checkpoint.seq))
    state.resume(checkpoint)
    settle(state.note_acquired([OffsetRange("t", 0, o, o) for o in sorted(free)]))
    left = numbers(state.list_fresh())
    delivered = [o for batch in batches.values() for _, _, o in batch]
    assert len(delivered) == len(set(delivered)), "a record was in two batches"
    assert set(delivered) | left == log
    assert settled | left == log
