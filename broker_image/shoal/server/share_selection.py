"""Fetches of groups that have key order, delay or priority (`coordinator.share.selection`).

A fetch looks at a bounded number of records that were not looked at before, takes what is most
urgent among all that are known, and reads exactly the batches these are in. Where looking is not
done the waiting fetches are woken for another turn, so that no single one takes long.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from shoal.coordinator.share.acquisition import NOTHING, Acquired, Wanted
from shoal.coordinator.share.batches import AbortedTransaction, scan
from shoal.coordinator.share.selection import Selection, open_lock
from shoal.coordinator.share.settings import ShareSettings
from shoal.coordinator.share.share_partition import StateBatch

if TYPE_CHECKING:
    from shoal.server.share_leader import ShareLeader

#: Records that one fetch looks at: some 5 ms of work.
LOOKS_MAX = 2000
#: Bytes of the log that are read at a time to look at records, and the least for those taken.
LOOK_BYTES = 128 * 1024
READ_SIZE_MIN = 16 * 1024
#: Places in the log that one fetch reads; what lies further goes to the next.
READS_MAX = 100


def selection_of(leader: ShareLeader, settings: ShareSettings) -> Selection | None:
    """What the leader knows of its records under the group's configs as of now."""
    policy, known = settings.selection, leader.selection
    if known is None or known.policy != policy:
        leader.selection = known = None if policy is None else Selection(leader.share, policy)
    return known


def may_acquire(leader: ShareLeader, settings: ShareSettings) -> bool:
    """Whether a fetch may get something now."""
    selection = selection_of(leader, settings)
    assert selection is not None
    if selection.in_flight() >= settings.max_record_locks:
        return False
    return selection.may_choose() or selection.wants_look(1, leader.limit(settings))


def fetch(
    leader: ShareLeader, wanted: Wanted, max_bytes: int, settings: ShareSettings, now_ms: int
) -> tuple[list[memoryview], Acquired]:
    """Acquire and read. Raises `ApiError` when the log cannot be read."""
    selection = selection_of(leader, settings)
    assert selection is not None
    room = settings.max_record_locks - selection.in_flight()
    records = min(wanted.max_records, room)
    if records <= 0:
        return [], NOTHING
    limit = leader.limit(settings)
    changes = _look(leader, selection, records, limit, settings, now_ms)
    views: list[memoryview] = []
    acquired: list[tuple[int, int, int]] = []
    number = leader.share.locks.next_number()
    if selection.may_choose():
        chosen, given_up = selection.choose(records, settings, now_ms)
        changes += given_up
        left, reads = max_bytes, 0
        while chosen and reads < READS_MAX and (left > 0 or not acquired):
            reads += 1
            span = min(chosen[-1] - chosen[0] + 1, len(chosen) * 2)
            guess = max(int(span * leader.record_size * 1.1), READ_SIZE_MIN)
            data, _ = leader.read(chosen[0], min(guess, max(left, READ_SIZE_MIN)), limit)
            batches = scan(data, chosen[0])
            if not len(batches):
                break
            past = bisect_right(chosen, batches.lasts[-1])
            if past:
                got, passed_by = selection.lock(chosen[:past], number, batches, settings, now_ms)
                changes += passed_by
                acquired += got
                here = [batches.data[a:b] for a, b in batches.spans(got)]
                views += here
                left -= sum(map(len, here))
            chosen = chosen[past:]
        selection.put_back(chosen, now_ms)
    if changes:
        leader.share.advance()
    if not acquired:
        if selection.wants_look(records, limit):
            leader.service.wake_soon(leader)  # All that seemed to be ready was outdated.
        return [], Acquired((), 0, 0, changes)
    deadline_ms = now_ms + settings.lock_duration_ms
    total = open_lock(leader.share, number, wanted.member_id, deadline_ms, acquired)
    return views, Acquired(acquired, total, number, changes)


def _look(
    leader: ShareLeader,
    selection: Selection,
    records: int,
    limit: int,
    settings: ShareSettings,
    now_ms: int,
) -> list[StateBatch]:
    """Look at further records, as many as are needed and one fetch may."""
    changes: list[StateBatch] = []
    budget = LOOKS_MAX
    while selection.wants_look(records, limit):
        if budget <= 0:
            if not selection.may_choose():
                leader.service.wake_soon(leader)
            break
        batches = None
        offset = selection.next_look()
        if not selection.is_open:
            if offset >= limit:
                break
            data, next_offset = leader.read(offset, LOOK_BYTES, limit)
            aborted = []
            if settings.read_committed:
                aborted = [
                    AbortedTransaction(t.producer_id, t.first_offset, t.last_offset)
                    for t in leader.partition.log.aborted_transactions(offset, next_offset)
                ]
            batches = scan(data, offset, aborted)
            if not len(batches):
                break
            size = max(1, batches.lasts[-1] - batches.bases[0] + 1)
            leader.record_size = len(data) / size
        looked, passed_by = selection.look(now_ms, budget, settings, batches)
        budget -= max(looked, 1)
        changes += passed_by
    return changes
