"""The window of a share partition as runs of offsets with one state.

The window covers `[start, end)` without holes. Its runs are stored in parallel columns. A window
of equal records costs one run; the worst case costs `RUN_SIZE` bytes a record. Record batches do
not matter. Every change follows one rule: cut the window where the change begins and ends, change
the runs between, and join runs that are equal. `run` is the number of a run, from 0.

Invariants: `firsts` rises strictly and begins at the window's start; an empty window has no runs;
no two neighbours are equal in all columns. `states` defines the states.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

#: State, delivery count, lock and piece of a run. A plain tuple: acknowledgements make one for each
#: run that they change.
RunValues = tuple[int, int, int, int]
#: First offset, last offset, and further values for `RunChange`.
RangeEdit = tuple[Any, ...]
RunChange = Callable[[RangeEdit, int, int, RunValues], RunValues | None]
#: At most this many edits are made one by one; more go through `Runs.rewrite`.
ONE_BY_ONE_MAX = 2
#: Runs between two edits that are not worth a separate stretch.
_NEAR_RUNS = 4
#: A delivery count is kept in one byte; group configs allow at most 25 deliveries.
COUNT_MAX = 255
#: Bytes that a run takes: first offset, state, delivery count, lock, piece.
RUN_SIZE = 8 + 1 + 1 + 4 + 4


class OffsetRuns:
    """The columns of a window.

    `locks` has acquisition lock numbers, 0 for none. `pieces` has the number of offsets in the
    piece of the last delivery, 0 if it does not matter.
    """

    __slots__ = ("counts", "end", "firsts", "locks", "pieces", "states")

    def __init__(self, start: int) -> None:
        self.firsts = array("q")
        self.states = bytearray()
        self.counts = bytearray()
        self.locks = array("I")
        self.pieces = array("I")
        #: The offset behind the last one in the window; the window's start while it is empty.
        self.end = start

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def start(self) -> int:
        """The first offset of the window, or `end` if it is empty."""
        return self.firsts[0] if self.firsts else self.end

    def get_last(self, run: int) -> int:
        """Return the last offset of a run."""
        return (self.firsts[run + 1] if run + 1 < len(self.firsts) else self.end) - 1

    def find_run(self, offset: int) -> int:
        """Return the run of `offset`, which is in the window."""
        return bisect_right(self.firsts, offset) - 1

    def append(self, last: int, state: int, count: int = 0, lock: int = 0, piece: int = 0) -> None:
        """Extend the window through `last`."""
        size = len(self.firsts)
        if not (
            size
            and self.states[-1] == state
            and self.counts[-1] == count
            and self.locks[-1] == lock
            and self.pieces[-1] == piece
        ):
            self._insert(size, self.end, state, count, lock, piece)
        self.end = last + 1

    def cut(self, offset: int) -> int:
        """Make a run begin at `offset` in `[start, end]`. Return it, or `len` for the end."""
        run = bisect_left(self.firsts, offset)
        if run == len(self.firsts):
            if offset == self.end:
                return run
        elif self.firsts[run] == offset:
            return run
        above = run - 1
        self._insert(
            run,
            offset,
            self.states[above],
            self.counts[above],
            self.locks[above],
            self.pieces[above],
        )
        return run

    def cut_out(self, first: int, last: int) -> range:
        """Return the runs of the offsets `[first, last]` in the window, cut at both ends.

        The caller joins the runs again after its change.
        """
        first, last = max(first, self.start), min(last, self.end - 1)
        return range(self.cut(first), self.cut(last + 1)) if first <= last else range(0)

    def join(self, run: int, past: int) -> None:
        """Join equal neighbours among the runs `[run - 1, past]` that exist."""
        firsts, states, counts, locks, pieces = self.get_columns()
        for index in range(min(past, len(firsts) - 1), max(run, 1) - 1, -1):
            above = index - 1
            if (
                states[index] == states[above]
                and locks[index] == locks[above]
                and counts[index] == counts[above]
                and pieces[index] == pieces[above]
            ):
                del firsts[index], states[index], counts[index], locks[index], pieces[index]

    # One function, since a call for each edit adds 4 % (of 1.5 µs).
    def rewrite(self, edits: Sequence[RangeEdit], change: RunChange) -> bool:  # noqa: C901
        """Change rising offsets of the window in one pass.

        `change` gets an edit, the first and last of its offsets in one run, and the run's state,
        count, lock and piece. It returns their new values. If it returns None, this returns False
        and nothing is changed. It takes a third of the time of cutting and joining for each edit.
        """
        firsts, states, counts, locks, pieces = self.get_columns()
        size, end = len(firsts), self.end
        stretches: list[_Stretch] = []
        current: _Stretch | None = None
        run, position, past = -1, 0, edits[0][0]  # The rest of the run is [at, past).
        value: RunValues = (0, 0, 0, 0)
        for edit in edits:
            first, last = edit[0], edit[1]
            if past <= first:
                next_run = run + 1
                if next_run + 1 < size and firsts[next_run + 1] <= first:
                    next_run = bisect_right(firsts, first, lo=next_run + 1) - 1
                if current is None or next_run - run > _NEAR_RUNS:
                    if current is not None:
                        current.end(self, run, position, past)
                    current = _Stretch(self, next_run)
                    stretches.append(current)
                else:
                    if position < past:
                        current.put(position, value)
                    for between in range(run + 1, next_run):
                        current.put(firsts[between], self.get_values(between))
                run, position = next_run, firsts[next_run]
                past = firsts[run + 1] if run + 1 < size else end
                value = states[run], counts[run], locks[run], pieces[run]
            assert current is not None
            if position < first:
                current.put(position, value)
                position = first
            while True:
                high = last if last < past else past - 1
                becomes = change(edit, position, high, value)
                if becomes is None:
                    return False
                if becomes != current.previous:
                    current.put(position, becomes)
                position = high + 1
                if high == last:
                    break
                run += 1
                past = firsts[run + 1] if run + 1 < size else end
                value = states[run], counts[run], locks[run], pieces[run]
        assert current is not None
        current.end(self, run, position, past)
        for stretch in reversed(stretches):
            stretch.replace(self)
        return True

    def get_values(self, run: int) -> RunValues:
        """Return state, count, lock and piece of a run."""
        return self.states[run], self.counts[run], self.locks[run], self.pieces[run]

    def drop_runs(self, number: int) -> None:
        """Move the window's start past its first `number` runs."""
        del self.firsts[:number], self.states[:number], self.counts[:number]
        del self.locks[:number], self.pieces[:number]

    def truncate(self, end: int) -> None:
        """Move the window's end back to `end`, which is not below the start."""
        past = self.cut(end)
        del self.firsts[past:], self.states[past:], self.counts[past:]
        del self.locks[past:], self.pieces[past:]
        self.end = end

    def get_size_bytes(self) -> int:
        """Return the memory of the columns."""
        return sum(column.__sizeof__() for column in self.get_columns())

    def get_columns(self) -> tuple[array[int], bytearray, bytearray, array[int], array[int]]:
        """Return first offsets, states, delivery counts, locks and pieces."""
        return self.firsts, self.states, self.counts, self.locks, self.pieces

    def _insert(self, run: int, first: int, state: int, count: int, lock: int, piece: int) -> None:
        self.firsts.insert(run, first)
        self.states.insert(run, state)
        self.counts.insert(run, count)
        self.locks.insert(run, lock)
        self.pieces.insert(run, piece)


class _Stretch:
    """New runs for a part of a window that is being rewritten."""

    __slots__ = ("_begin", "_firsts", "_past", "_values", "previous")

    def __init__(self, runs: OffsetRuns, begin: int) -> None:
        self._begin = self._past = begin
        self.previous = runs.get_values(begin - 1) if begin else None
        self._firsts: list[int] = []
        self._values: list[RunValues] = []

    def put(self, first: int, value: RunValues) -> None:
        """Add a run, or extend the one before it."""
        if value != self.previous:
            self.previous = value
            self._firsts.append(first)
            self._values.append(value)

    def end(self, runs: OffsetRuns, run: int, position: int, past: int) -> None:
        """Add the rest of the last run, or the run behind it, which may join."""
        if position < past:
            self.put(position, runs.get_values(run))
        elif run + 1 < len(runs):
            run += 1
            self.put(runs.firsts[run], runs.get_values(run))
        self._past = run + 1

    def replace(self, runs: OffsetRuns) -> None:
        """Replace the old runs."""
        begin, past = self._begin, self._past
        runs.firsts[begin:past] = array("q", self._firsts)
        columns = zip(*self._values, strict=True) if self._values else ((),) * 4
        states, counts, locks, pieces = columns
        runs.states[begin:past], runs.counts[begin:past] = bytes(states), bytes(counts)
        runs.locks[begin:past], runs.pieces[begin:past] = array("I", locks), array("I", pieces)
