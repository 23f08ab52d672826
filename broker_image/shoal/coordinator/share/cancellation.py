"""Cancelled records of a share partition: what waits is archived, what is in flight is marked.

A record that waits, for a fetch, its key, its delay or its back-off, is archived at once, or after
its dead letter if one is asked for. A record that a member holds keeps its lock, so that no other
record of its key is delivered meanwhile. Its lock is marked: renewals leave it out, and whatever
gives the record back archives it. An accept counts as before.

The mark itself is soft state of the leader, but the state that it leads to is persisted at once:
the next leader finds the record archived. Cancelling a record again changes nothing.

Called by the leader of the share partition, in the shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share.delivery_failure import FailureCause
from shoal.coordinator.share.locks import Lock
from shoal.coordinator.share.states import ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE, WAITING
from shoal.protocol.share import CancelledRecords, CancelOutcome

if TYPE_CHECKING:
    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.coordinator.share.states import StateBatch


class Cancellation(NamedTuple):
    """What became of the offsets of a request, in their order."""

    records: list[CancelledRecords]
    #: The changes of the window, to be persisted.
    changes: list[StateBatch]
    #: To be persisted as well, although the window does not have these states yet.
    marks: list[StateBatch]


def cancel(
    share: SharePartition, first: int, last: int, *, limit: int, dead_letter: bool
) -> Cancellation:
    """Cancel the offsets from `first` to `last`. Those from `limit` on are not in the log.

    The window grows up to `last`: the offsets below it become available in the window.
    """
    found = Cancellation([], [], [])
    runs = share.runs
    if first < runs.start:
        _note(found, first, min(last, runs.start - 1), CancelOutcome.DONE)
    low, high = max(first, runs.start), min(last, limit - 1)
    if low <= high:
        if high >= runs.end:
            share.extend(high)
        inside = runs.cut_out(low, high)
        for run in inside:
            _cancel_run(share, run, found, dead_letter=dead_letter)
        runs.join(inside.start, inside.stop)
        before = len(found.changes)
        share.archive(low, high, found.changes, FailureCause.CANCELLED if dead_letter else None)
        share.failed += found.changes[before:]
        share.advance()
    if last >= limit:
        _note(found, max(first, limit), last, CancelOutcome.NOT_FOUND)
    return found


def _cancel_run(share: SharePartition, run: int, found: Cancellation, *, dead_letter: bool) -> None:
    """Mark a run that a member holds. Make one available that waits for its back-off."""
    runs = share.runs
    first, last, state = runs.firsts[run], runs.get_last(run), runs.states[run]
    outcome = CancelOutcome.DONE
    if state == ACQUIRED:
        outcome = CancelOutcome.IN_FLIGHT
        becomes = ARCHIVING if dead_letter else ARCHIVED
        if _mark(share, run, becomes):
            found.marks.append((first, last, becomes, runs.counts[run]))
    elif state in (AVAILABLE, WAITING):
        outcome = CancelOutcome.CANCELLED
        if state == WAITING:
            share.waits.give_back(runs.locks[run], last - first + 1)
            runs.states[run], runs.locks[run] = AVAILABLE, 0
    _note(found, first, last, outcome)


def _mark(share: SharePartition, run: int, becomes: int) -> bool:
    """Move an acquired run under a marked lock that ends as its own does. Return False if it is
    marked already."""
    runs, locks = share.runs, share.locks
    lock = locks.live[runs.locks[run]]
    if lock.ends_as:
        return False
    first, last = runs.firsts[run], runs.get_last(run)
    size, number = last - first + 1, locks.allocate_number()
    marked = Lock(
        lock.member_id,
        lock.deadline_ms,
        first=first,
        last=last,
        records=size,
        since_ms=lock.since_ms,
    )
    marked.ends_as = becomes
    locks.open(number, marked)
    locks.give_back(runs.locks[run], size)
    runs.locks[run] = number
    return True


def _note(found: Cancellation, first: int, last: int, outcome: CancelOutcome) -> None:
    records = found.records
    if records and records[-1].last_offset == first - 1 and records[-1].outcome is outcome:
        first = records.pop().first_offset
    records.append(CancelledRecords(first, last, outcome))
