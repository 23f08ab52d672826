"""The persisted part of a share partition's window: state batches, newer ones overwrite older ones.

A write has only the changed ranges, and ranges of different writes overlap. The newer one counts:
the writes of one share partition come in order from its one leader, and epochs fence a former
leader. Equal neighbours are one batch, and offsets below the start offset are removed. The layout
is that of the window (`runs`), so a state needs as little memory.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING

from shoal.coordinator.share import compiled
from shoal.coordinator.share.bulk import overwrite
from shoal.coordinator.share.runs import COUNT_MAX, ONE_BY_ONE_MAX, OffsetRuns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shoal.coordinator.share.states import StateBatch

#: The state of offsets without a write; it is never written.
_UNSET = 255


class StateBatches:
    """State batches from `start_offset` on, in offset order and without overlaps."""

    __slots__ = ("_runs",)

    def __init__(self, start_offset: int, batches: Iterable[StateBatch] = ()) -> None:
        self._runs = OffsetRuns(start_offset)
        self.overwrite(list(batches))

    def __iter__(self) -> Iterator[StateBatch]:
        runs = self._runs
        lasts = (first - 1 for first in chain(runs.firsts[1:], (runs.end,)))
        columns = zip(runs.firsts, lasts, runs.states, runs.counts, strict=False)
        return (batch for batch in columns if batch[2] != _UNSET)

    def __len__(self) -> int:
        return len(self._runs) - self._runs.states.count(_UNSET)

    def find_in_state(self, first: int, last: int, state: int) -> Iterator[tuple[int, int]]:
        """Return the offsets from `first` to `last` in a state, as ranges."""
        runs = self._runs
        first, last = max(first, runs.start), min(last, runs.end - 1)
        if first > last:
            return
        for run in range(runs.find_run(first), runs.find_run(last) + 1):
            if runs.states[run] == state:
                yield max(first, runs.firsts[run]), min(last, runs.get_last(run))

    def overwrite(self, batches: Sequence[StateBatch]) -> None:
        """Overwrite with newer batches, in their order."""
        runs = self._runs
        if len(batches) > ONE_BY_ONE_MAX and self._overwrite_all(batches):
            return
        for first, last, state, count in batches:
            first = max(first, runs.start)
            if last < first:
                continue
            count = min(count, COUNT_MAX)
            if first > runs.end:
                runs.append(first - 1, _UNSET)
            if last >= runs.end:
                if first == runs.end:
                    runs.append(last, state, count)
                    continue
                runs.append(last, _UNSET)
            run = runs.find_run(first)
            if (
                run
                and runs.firsts[run] == first
                and last < runs.get_last(run)
                and runs.states[run - 1] == state
                and runs.counts[run - 1] == count
            ):
                # The usual case of records that are acknowledged one by one: extend the run before.
                runs.firsts[run] = last + 1
                continue
            run, past = runs.cut(first), runs.cut(last + 1)
            for index in range(run, past):
                runs.states[index], runs.counts[index] = state, count
            runs.join(run, past)

    def _overwrite_all(self, batches: Sequence[StateBatch]) -> bool:
        """`overwrite` in one pass. Return False, and change nothing, if the batches do not rise."""
        runs = self._runs
        if not _is_rising(batches):
            return False
        start = runs.start
        if batches[0][0] < start:
            batches = [(max(b[0], start), *b[1:]) for b in batches if b[1] >= start]
        if not batches:
            return True
        if batches[-1][1] >= runs.end:
            runs.append(batches[-1][1], _UNSET)
        overwrite(runs, batches)
        return True

    def move_start(self, start_offset: int) -> None:
        """Remove offsets below a new start offset. An earlier start removes everything."""
        runs = self._runs
        if not len(runs):
            runs.end = start_offset
        elif not runs.start <= start_offset < runs.end:
            self._runs = OffsetRuns(start_offset)
        else:
            runs.drop_runs(runs.find_run(start_offset))
            runs.firsts[0] = start_offset

    def get_size_bytes(self) -> int:
        """Return the memory of the batches."""
        return self._runs.get_size_bytes()


def _is_rising(batches: Sequence[StateBatch]) -> bool:
    """Whether each batch begins behind the one before it."""
    if compiled.native is not None and type(batches) is list:
        rises: bool = compiled.native.rises(batches)
        return rises
    return all(a[1] < b[0] for a, b in pairwise(batches))


def combine(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Return batches from `start_offset` on, given in the order of their writing, as few rising
    batches without overlaps."""
    if compiled.native is not None and type(batches) is list:
        joined = compiled.native.joined(batches, start_offset)
        if joined is None:
            joined = compiled.native.joined(sorted(batches), start_offset)
        if joined is not None:
            return joined
    relevant = [batch for batch in batches if batch[1] >= start_offset]
    if not relevant or (len(relevant) == 1 and relevant[0][0] >= start_offset):
        return relevant
    rising: list[StateBatch] = []
    for batch in sorted(relevant):
        first, last, state, count = batch
        if rising:
            before = rising[-1]
            if first <= before[1]:  # Of overlapping batches, the later one counts.
                start = max(start_offset, rising[0][0])
                return list(StateBatches(start, relevant))
            if first == before[1] + 1 and (state, count) == before[2:]:
                rising[-1] = (before[0], last, state, count)
                continue
        elif first < start_offset:
            batch = (start_offset, last, state, count)
        rising.append(batch)
    return rising
