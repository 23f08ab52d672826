"""`Runs.rewrite` compared with a list that has one entry for each offset."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from shoal.coordinator.share.runs import OffsetRuns, RunValues

STATES = st.integers(0, 2)


def as_list(runs: OffsetRuns) -> list[tuple[int, int, int, int]]:
    return [
        (runs.states[run], runs.counts[run], runs.locks[run], runs.pieces[run])
        for run in range(len(runs))
        for _ in range(runs.firsts[run], runs.get_last(run) + 1)
    ]


@given(
    start=st.integers(0, 5),
    drawn=st.lists(st.tuples(st.integers(1, 4), STATES, STATES), min_size=1, max_size=50),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), min_size=1, max_size=8),
    becomes=st.lists(STATES, min_size=8, max_size=8),
    refused=st.none() | st.integers(0, 2),
)
def test_rewriting_is_changing_each_offset(start, drawn, steps, becomes, refused) -> None:
    runs = OffsetRuns(start)
    for size, state, count in drawn:
        runs.append(runs.end + size - 1, state, count)
    edits, at = [], start
    for (gap, size), state in zip(steps, becomes, strict=False):
        first, last = at + gap, min(at + gap + size, runs.end) - 1
        if first <= last:
            edits.append((first, last, state))
        at = last + 1
    if not edits:
        return
    twin = as_list(runs)
    seen: list[int] = []

    def change(
        edit: tuple[int, int, int], first: int, last: int, values: RunValues
    ) -> RunValues | None:
        assert all(twin[offset - start] == values for offset in range(first, last + 1))
        seen.extend(range(first, last + 1))
        return None if values[0] == refused else (edit[2], values[1], 0, 0)

    offsets = [o for first, last, _ in edits for o in range(first, last + 1)]
    if any(twin[offset - start][0] == refused for offset in offsets):
        assert not runs.rewrite(edits, change)
        assert as_list(runs) == twin
        return
    assert runs.rewrite(edits, change)
    assert seen == offsets
    for first, last, state in edits:
        for offset in range(first, last + 1):
            twin[offset - start] = (state, twin[offset - start][1], 0, 0)
    assert as_list(runs) == twin
    columns = zip(runs.states, runs.counts, runs.locks, runs.pieces, strict=True)
    assert all(a != b for a, b in pairwise(columns))
    assert list(runs.firsts) == sorted(set(runs.firsts))
    assert runs.start == start
