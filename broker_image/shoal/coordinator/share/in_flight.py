"""The records of a share partition that are in flight, and what each of them waits for.

An admin request reads them page by page. Reading changes nothing. The window may move between two
pages. Called by the leader of the share partition, in the shell.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from shoal.coordinator.share.states import ACQUIRED, AVAILABLE, WAITING, is_terminal
from shoal.protocol.reasons import decode_reason
from shoal.protocol.share import InFlightRecords, InFlightState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shoal.coordinator.share.failure_reasons import FailureReasons
    from shoal.coordinator.share.selection import Selection
    from shoal.coordinator.share.share_partition import SharePartition

#: Offsets that one page visits at most, one by one, in groups with key order or delay, and where
#: members gave reasons: some milliseconds of work.
OFFSETS_VISITED_MAX = 10_000


def list_in_flight(
    share: SharePartition,
    selection: Selection | None,
    now_ms: int,
    first: int,
    entries_max: int,
) -> tuple[list[InFlightRecords], int | None]:
    """Return the records in flight from offset `first` on, as ranges in log order.

    Returns at most `entries_max` ranges, and the offset where the next page begins, or None after
    the last one. Records whose delivery is complete are left out.
    """
    runs, entries = share.runs, list[InFlightRecords]()
    visited_max = OFFSETS_VISITED_MAX
    first = max(first, runs.start)
    if first >= runs.end:
        return [], None
    for run in range(runs.find_run(first), len(runs)):
        low, last = max(first, runs.firsts[run]), runs.get_last(run)
        if is_terminal(runs.states[run]):
            continue
        if len(entries) >= entries_max or visited_max <= 0:
            return entries, low
        end = last + 1
        waiting = selection if runs.states[run] == AVAILABLE else None
        if waiting is not None or share.reasons:
            end = min(end, low + visited_max)
            visited_max -= end - low
        described: Iterable[InFlightRecords]
        if waiting is None:
            described = (_describe_run(share, run, low, end - 1, now_ms),)
        else:
            described = _describe_offsets(waiting, low, end, runs.counts[run], now_ms)
        for entry in _add_reasons(share.reasons, described):
            if len(entries) >= entries_max:
                return entries, entry.first_offset
            entries.append(entry)
        if end <= last:
            return entries, end
    return entries, None


def _add_reasons(
    reasons: FailureReasons, entries: Iterable[InFlightRecords]
) -> Iterator[InFlightRecords]:
    """Split ranges where the last reasons differ, and name these."""
    if not reasons:
        yield from entries
        return
    for entry in entries:
        for data, group in groupby(range(entry.first_offset, entry.last_offset + 1), reasons.get):
            offsets = list(group)
            yield entry._replace(
                first_offset=offsets[0],
                last_offset=offsets[-1],
                failure=entry.failure if data is None else str(decode_reason(data)),
            )


def _describe_run(
    share: SharePartition, run: int, first: int, last: int, now_ms: int
) -> InFlightRecords:
    """Return a run whose offsets all wait for the same."""
    runs = share.runs
    state, number = runs.states[run], runs.locks[run]
    lock = None
    if state in (ACQUIRED, WAITING):
        lock = (share.locks if state == ACQUIRED else share.waits).live[number]
    return InFlightRecords(
        first,
        last,
        InFlightState(state),
        runs.counts[run],
        "" if lock is None else lock.member_id,
        -1 if lock is None else max(0, lock.deadline_ms - now_ms),
        "cancelled" if lock is not None and lock.ends_as else "",
    )


def _describe_offsets(
    selection: Selection, first: int, end: int, count: int, now_ms: int
) -> Iterator[InFlightRecords]:
    """Return available offsets of one delivery count, joined where they wait for the same."""
    due_ms_of = selection.get_due_times()
    begin, before = first, _find_wait(selection, due_ms_of, first)
    for offset in range(first + 1, end + 1):
        wait = None if offset == end else _find_wait(selection, due_ms_of, offset)
        if wait != before or wait is None:
            state, due_ms = before
            left_ms = -1 if due_ms is None else max(0, due_ms - now_ms)
            yield InFlightRecords(begin, offset - 1, state, count, "", left_ms)
            if wait is not None:
                begin, before = offset, wait


def _find_wait(
    selection: Selection, due_ms_of: dict[int, int], offset: int
) -> tuple[InFlightState, int | None]:
    """Return what an available record waits for, and when it is due if that is known."""
    if selection.is_delayed(offset):
        return InFlightState.DELAYED, due_ms_of.get(offset)
    if not selection.keys.is_free(offset):
        return InFlightState.BEHIND_KEY, None
    is_behind_limit = selection.is_behind_limit(offset)
    return (InFlightState.BEHIND_LIMIT if is_behind_limit else InFlightState.AVAILABLE), None
