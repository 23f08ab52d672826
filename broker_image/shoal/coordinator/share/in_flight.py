"""The records of a share partition that are in flight, and what each of them waits for.

An admin request reads them page by page. Reading changes nothing. The window may move between two
pages. Called by the leader of the share partition, in the shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.share.states import ACQUIRED, AVAILABLE, WAITING, is_terminal
from shoal.protocol.share import InFlight, InFlightState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.coordinator.share.selection import Selection
    from shoal.coordinator.share.share_partition import SharePartition

#: Offsets that one page visits at most, one by one, in groups with key order or delay: some
#: milliseconds of work.
OFFSETS_VISITED_MAX = 10_000


def in_flight(
    share: SharePartition,
    selection: Selection | None,
    now_ms: int,
    first: int,
    entries_max: int,
) -> tuple[list[InFlight], int | None]:
    """Return the records in flight from offset `first` on, as ranges in log order.

    Returns at most `entries_max` ranges, and the offset where the next page begins, or None after
    the last one. Records whose delivery is complete are left out.
    """
    runs, found = share.runs, list[InFlight]()
    visited_max = OFFSETS_VISITED_MAX
    first = max(first, runs.start)
    if first >= runs.end:
        return [], None
    for run in range(runs.run_of(first), len(runs)):
        low, last = max(first, runs.firsts[run]), runs.last(run)
        if is_terminal(runs.states[run]):
            continue
        if len(found) >= entries_max or visited_max <= 0:
            return found, low
        one_by_one = selection is not None and runs.states[run] == AVAILABLE
        if selection is None or not one_by_one:
            found.append(_of_run(share, run, low, last, now_ms))
            continue
        end = min(last + 1, low + visited_max)
        visited_max -= end - low
        for entry in _one_by_one(selection, low, end, runs.counts[run], now_ms):
            if len(found) >= entries_max:
                return found, entry.first_offset
            found.append(entry)
        if end <= last:
            return found, end
    return found, None


def _of_run(share: SharePartition, run: int, first: int, last: int, now_ms: int) -> InFlight:
    """Return a run whose offsets all wait for the same."""
    runs = share.runs
    state, number = runs.states[run], runs.locks[run]
    lock = None
    if state in (ACQUIRED, WAITING):
        lock = (share.locks if state == ACQUIRED else share.waits).live[number]
    return InFlight(
        first,
        last,
        InFlightState(state),
        runs.counts[run],
        "" if lock is None else lock.member_id,
        -1 if lock is None else max(0, lock.deadline_ms - now_ms),
    )


def _one_by_one(
    selection: Selection, first: int, end: int, count: int, now_ms: int
) -> Iterator[InFlight]:
    """Return available offsets of one delivery count, joined where they wait for the same."""
    due_ms_of = selection.due_times()
    begin, before = first, _wait_of(selection, due_ms_of, first)
    for offset in range(first + 1, end + 1):
        wait = None if offset == end else _wait_of(selection, due_ms_of, offset)
        if wait != before or wait is None:
            state, due_ms = before
            left_ms = -1 if due_ms is None else max(0, due_ms - now_ms)
            yield InFlight(begin, offset - 1, state, count, "", left_ms)
            if wait is not None:
                begin, before = offset, wait


def _wait_of(
    selection: Selection, due_ms_of: dict[int, int], offset: int
) -> tuple[InFlightState, int | None]:
    """Return what an available record waits for, and when it is due if that is known."""
    if selection.is_delayed(offset):
        return InFlightState.DELAYED, due_ms_of.get(offset)
    behind = not selection.keys.is_free(offset)
    return (InFlightState.BEHIND_KEY if behind else InFlightState.AVAILABLE), None
