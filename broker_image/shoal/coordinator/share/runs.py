"""A stretch of offsets cut into runs that share one state: the window of a share partition.

The window covers `[start, end)` without holes. Its runs lie in parallel columns, so a window whose
records are all alike costs one row, and one that is as mixed as can be costs `ROW_SIZE` bytes a
record, whatever the batches were that brought the records in. There is one rule for whole batches
and single offsets alike: cut the window where a change begins and ends, change the rows between,
and join rows that have become equal.

Invariants: `firsts` rises strictly and begins at the window's start; an empty window has no rows;
no two neighbours are equal in all columns. Pure data: what a state means is told by `states`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

#: Bytes a row takes: first offset, state, delivery count, lock, piece.
ROW_SIZE = 8 + 1 + 1 + 4 + 4


class Runs:
    """The columns. `locks` holds acquisition lock numbers, 0 for none; `pieces` the number of
    offsets that the record's last delivery put into one piece, 0 where that is not of interest."""

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
        """The first offset in the window, and `end` while it is empty."""
        return self.firsts[0] if self.firsts else self.end

    def last(self, row: int) -> int:
        """The last offset of a row."""
        return (self.firsts[row + 1] if row + 1 < len(self.firsts) else self.end) - 1

    def row_of(self, offset: int) -> int:
        """The row that holds `offset`, which lies in the window."""
        return bisect_right(self.firsts, offset) - 1

    def append(self, last: int, state: int, count: int = 0, lock: int = 0, piece: int = 0) -> None:
        """Lengthen the window up to and with `last`."""
        rows = len(self.firsts)
        if not (
            rows
            and self.states[-1] == state
            and self.counts[-1] == count
            and self.locks[-1] == lock
            and self.pieces[-1] == piece
        ):
            self._insert(rows, self.end, state, count, lock, piece)
        self.end = last + 1

    def cut(self, offset: int) -> int:
        """Make a row begin at `offset` of `[start, end]`, and return it (`len` for the end)."""
        row = bisect_left(self.firsts, offset)
        if row == len(self.firsts):
            if offset == self.end:
                return row
        elif self.firsts[row] == offset:
            return row
        above = row - 1
        self._insert(
            row,
            offset,
            self.states[above],
            self.counts[above],
            self.locks[above],
            self.pieces[above],
        )
        return row

    def join(self, row: int, past: int) -> None:
        """Join rows that are equal, among `[row - 1, past]`, both ends as far as they exist."""
        firsts, states, counts, locks, pieces = self._columns()
        for at in range(min(past, len(firsts) - 1), max(row, 1) - 1, -1):
            above = at - 1
            if (
                states[at] == states[above]
                and locks[at] == locks[above]
                and counts[at] == counts[above]
                and pieces[at] == pieces[above]
            ):
                del firsts[at], states[at], counts[at], locks[at], pieces[at]

    def drop_rows(self, rows: int) -> None:
        """Move the window's start past its first `rows` rows."""
        del self.firsts[:rows], self.states[:rows], self.counts[:rows]
        del self.locks[:rows], self.pieces[:rows]

    def truncate(self, end: int) -> None:
        """Move the window's end back to `end`, which is not below its start."""
        rows = self.cut(end)
        del self.firsts[rows:], self.states[rows:], self.counts[rows:]
        del self.locks[rows:], self.pieces[rows:]
        self.end = end

    def size_bytes(self) -> int:
        """Memory that the columns hold."""
        return sum(column.__sizeof__() for column in self._columns())

    def _columns(self) -> tuple[array[int], bytearray, bytearray, array[int], array[int]]:
        return self.firsts, self.states, self.counts, self.locks, self.pieces

    def _insert(self, row: int, first: int, state: int, count: int, lock: int, piece: int) -> None:
        self.firsts.insert(row, first)
        self.states.insert(row, state)
        self.counts.insert(row, count)
        self.locks.insert(row, lock)
        self.pieces.insert(row, piece)
