"""A share partition: one group's window over one partition's log, and its transitions.

The window begins at the share-partition start offset (SPSO), the first offset whose delivery is not
complete. It ends before `end_offset`, the first offset that was never acquired. Each offset between
them has a state of `states`; consecutive offsets in one state are one run (`runs`).

Invariants: the start offset goes back only by a reset, and never passes a record that is not
terminal. A record is acquired under one lock of one member. A fetch never leaves more than
`max_record_locks` offsets acquired, and extends the window to at most that many in flight. A
delivery count falls only for deliveries that never left the broker.

A change takes effect at once. Its state batches are returned for the caller to persist, and the
caller delays the reply until they are written. Nothing is rolled back: if the write fails, the
share partition is dropped and loaded again. That is safe, since before the commit others can only
see a record that is available a moment early.

Called by the share service of the shell, and by `acquisition`, which chooses the records of a
fetch. Not here: sessions (`sessions`), persistence (`state_store`), members (`coordinator.group`).
Sources: KIP-932, KIP-1222 (renewal), KIP-1226 (delivery complete count).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share import bulk
from shoal.coordinator.share.backoff import UNTIL_FREED, Delay
from shoal.coordinator.share.delivery_failure import DeadLetterRange, FailureCause, FailurePolicy
from shoal.coordinator.share.failure_reasons import FailureReasons
from shoal.coordinator.share.locks import Lock, Locks, split_renewals
from shoal.coordinator.share.runs import COUNT_MAX, ONE_BY_ONE_MAX, OffsetRuns
from shoal.coordinator.share.states import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    HOLDS_KEY,
    SETTLES,
    WAITING,
    AcknowledgeType,
    StateBatch,
    is_terminal,
    may_move,
)
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.coordinator.share.settings import ShareSettings

#: Acknowledged offsets: first, last, one type for all or one for each offset, and optionally the
#: delay of released records in milliseconds, in place of the group's back-off, and the encoded
#: reason of the failure.
Acknowledgement = (
    tuple[int, int, Sequence[int]]
    | tuple[int, int, Sequence[int], int]
    | tuple[int, int, Sequence[int], int | None, bytes]
)


class AcknowledgeOutcome(NamedTuple):
    """Result of an acknowledgement: a refusal as a whole, or the changes to persist.

    Renewals of `cancelled` ranges are left out. If a member asks for nothing else, they are a
    refusal.
    """

    error: ErrorCode
    message: str | None
    changes: Sequence[StateBatch]
    cancelled: Sequence[tuple[int, int]] = ()


#: First offset, last offset, delivery count and piece of an available run. A plain tuple, because
#: every fetch makes some: with a NamedTuple, `find_available` takes 1.6 times as long.
AvailableRun = tuple[int, int, int, int]


class DeliveredRange(NamedTuple):
    """Offsets that were delivered equally often."""

    first: int
    last: int
    delivery_count: int


class SharePartition:
    """The window of one group on one partition, with its locks."""

    __slots__ = (
        "_gaps",
        "complete",
        "dead_letters",
        "delays",
        "failed",
        "key_holders",
        "leader_epoch",
        "locks",
        "log_start_offset",
        "reasons",
        "runs",
        "state_epoch",
        "waits",
    )

    def __init__(self, start_offset: int, *, state_epoch: int = 0, leader_epoch: int = 0) -> None:
        self.runs = OffsetRuns(start_offset)
        self.locks = Locks()
        #: WAITING offsets, under locks without a member whose deadlines end the back-off. They have
        #: numbers of their own.
        self.waits = Locks()
        #: Waits that began and are not persisted.
        self.delays: list[Delay] = []
        #: Ranges that became ARCHIVING and whose dead letters are not written.
        self.dead_letters: list[DeadLetterRange] = []
        #: Records whose delivery ended without an accept, in changes that are not persisted.
        self.failed: list[StateBatch] = []
        #: Why members gave records back that are still in flight. The owner may set a budget.
        self.reasons = FailureReasons()
        self.log_start_offset = 0
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        #: Offsets in the window whose delivery is complete (KIP-1226).
        self.complete = 0
        #: The number of HOLDS_KEY offsets.
        self.key_holders = 0
        #: Complete offsets that are no records for consumers.
        self._gaps = 0

    @classmethod
    def from_state_batches(
        cls,
        start_offset: int,
        batches: Iterable[StateBatch],
        *,
        state_epoch: int,
        leader_epoch: int,
        log_start_offset: int,
        log_end_offset: int,
        delays: Iterable[Delay] = (),
    ) -> SharePartition:
        """Build the window from persisted state batches, which rise and do not overlap.

        Offsets between the batches were acquired, or unknown, when the last leader stopped: they
        are available. If the log ends before the window, it has lost records. Records appended
        there are new, so the window ends with the log.
        """
        loaded = cls(min(start_offset, log_end_offset))
        loaded.state_epoch, loaded.leader_epoch = state_epoch, leader_epoch
        runs = loaded.runs
        for first, last, state, count in batches:
            if last < runs.end:
                continue
            if first > runs.end:
                runs.append(first - 1, AVAILABLE)
            runs.append(last, AVAILABLE if state == ACQUIRED else state, min(count, COUNT_MAX))
        if runs.end > log_end_offset:
            runs.truncate(log_end_offset)
        for run in range(len(runs)):
            loaded._count_complete(run, +1)
        # If two delays have the same count, the later applies: a delivery may have been taken back.
        for delay in reversed(tuple(delays)):
            loaded._restore_wait(*delay)
        loaded.advance_log_start(log_start_offset)
        loaded.advance()
        return loaded

    @property
    def start_offset(self) -> int:
        """The share-partition start offset (SPSO)."""
        return self.runs.start

    @property
    def end_offset(self) -> int:
        """The offset behind the window: the first that was never acquired."""
        return self.runs.end

    @property
    def in_flight(self) -> int:
        """The number of offsets in the window that are, or were, records for consumers."""
        return self.runs.end - self.runs.start - self._gaps

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next `expire` or `end_waits`."""
        deadline_ms = self.locks.find_next_deadline_ms()
        if not self.waits.live:
            return deadline_ms
        wait_ms = self.waits.find_next_deadline_ms()
        assert wait_ms is not None
        return wait_ms if deadline_ms is None else min(deadline_ms, wait_ms)

    @property
    def backing_off(self) -> int:
        """The number of WAITING offsets."""
        return self.waits.records

    def find_next_fetch_offset(self) -> int:
        """Return the first offset to acquire: an available one, or the window's end."""
        run = self.runs.states.find(AVAILABLE)
        return self.runs.firsts[run] if run >= 0 else self.runs.end

    def can_acquire(self, log_end: int, max_record_locks: int) -> bool:
        """Whether a fetch may find records below `log_end`, within the limit on records in
        flight."""
        if self.find_next_fetch_offset() < self.runs.end:
            return self.compute_lockable_max(max_record_locks) > 0
        return self.runs.end < log_end and self.in_flight < max_record_locks

    def is_full(self, max_record_locks: int) -> bool:
        """Whether the limit on records in flight lets no fetch acquire anything."""
        if self.in_flight < max_record_locks:
            return False
        none_available = self.find_next_fetch_offset() == self.runs.end
        return none_available or self.compute_lockable_max(max_record_locks) <= 0

    def compute_lockable_max(self, max_record_locks: int) -> int:
        """Return an upper bound of the available offsets that a fetch may acquire.

        It matters if the window is larger than the limit: the limit was lowered, or the group had
        key order, delay or priority before. Otherwise the window itself is the bound.
        """
        if self.in_flight <= max_record_locks:
            return max_record_locks
        return max_record_locks - self.locks.records

    def find_available(self, offset: int) -> AvailableRun | None:
        """Return the first available run from `offset` on."""
        runs = self.runs
        if not runs.start <= offset < runs.end:
            return None
        run = runs.states.find(AVAILABLE, runs.find_run(offset))
        if run < 0:
            return None
        return max(runs.firsts[run], offset), runs.get_last(run), runs.counts[run], runs.pieces[run]

    def lock(self, first: int, last: int, number: int) -> None:
        """Acquire available offsets of one run under lock `number`, as one piece."""
        runs = self.runs
        run = runs.cut(first)
        runs.cut(last + 1)
        assert may_move(runs.states[run], ACQUIRED)
        runs.states[run] = ACQUIRED
        runs.counts[run] = min(runs.counts[run] + 1, COUNT_MAX)
        runs.locks[run] = number
        runs.pieces[run] = last - first + 1
        runs.join(run, run + 1)

    def extend(self, last: int) -> None:
        """Add new records through `last` to the window."""
        self.runs.append(last, AVAILABLE)

    def archive(
        self, first: int, last: int, changes: list[StateBatch], cause: FailureCause | None = None
    ) -> None:
        """Archive the available offsets of a range, and extend the window if the range lies behind
        it.

        Offsets behind the window follow its end. With a cause, they get a dead letter first.
        """
        becomes = ARCHIVED if cause is None else ARCHIVING
        runs = self.runs
        end = runs.end
        if last >= end:
            assert first <= end
            runs.append(last, AVAILABLE)
        first = max(first, runs.start)
        if first > last:
            return
        run, past = runs.cut(first), runs.cut(last + 1)
        for index in range(run, past):
            if runs.states[index] == AVAILABLE:
                low, high, count = runs.firsts[index], runs.get_last(index), runs.counts[index]
                runs.states[index] = becomes
                runs.pieces[index] = 0
                changes.append((low, high, becomes, count))
                self._count_complete(index, +1)
                if cause is None:
                    self.reasons.forget(low, high)
                else:
                    self.dead_letters.append(DeadLetterRange(low, high, count, cause, ""))
        runs.join(run, past)

    def complete_archiving(self, first: int, last: int) -> list[StateBatch]:
        """Archive ARCHIVING offsets, whose dead letters are written or given up. Return the changes
        to persist."""
        return self._archive_all(first, last, ARCHIVING)

    def free(self, first: int, last: int) -> list[StateBatch]:
        """Archive the HOLDS_KEY offsets of a range, and return the changes to persist."""
        return self._archive_all(first, last, HOLDS_KEY) if self.key_holders else []

    def _archive_all(self, first: int, last: int, state: int) -> list[StateBatch]:
        runs, changes = self.runs, []
        inside = runs.cut_out(first, last)
        if not inside:
            return []
        for index in inside:
            if runs.states[index] == state:
                low, high = runs.firsts[index], runs.get_last(index)
                if state == HOLDS_KEY:
                    self.key_holders -= high - low + 1
                runs.states[index] = ARCHIVED
                changes.append((low, high, ARCHIVED, runs.counts[index]))
                self._count_complete(index, +1)
                self.reasons.forget(low, high)
        runs.join(inside.start, inside.stop)
        self.advance()
        return changes

    def hold(self, first: int, last: int) -> None:
        """Let offsets whose dead letters are written hold their keys until they are freed. `delays`
        gets what is to be persisted."""
        runs = self.runs
        inside = runs.cut_out(first, last)
        for index in inside:
            if runs.states[index] == ARCHIVING:
                self._hold(index)
                first_held, last_held = runs.firsts[index], runs.get_last(index)
                delay = Delay(first_held, last_held, runs.counts[index], UNTIL_FREED)
                self.delays.append(delay)
        runs.join(inside.start, inside.stop)

    def _hold(self, run: int) -> None:
        self.runs.states[run] = HOLDS_KEY
        self.key_holders += self.runs.get_last(run) - self.runs.firsts[run] + 1

    def get_key_holder_ranges(self) -> list[DeliveredRange]:
        """Return the HOLDS_KEY offsets."""
        return list(self._iterate_in_state(HOLDS_KEY)) if self.key_holders else []

    def iterate_archiving(self) -> Iterator[DeliveredRange]:
        """Return the offsets that wait for their dead letter."""
        return self._iterate_in_state(ARCHIVING)

    def _iterate_in_state(self, state: int) -> Iterator[DeliveredRange]:
        runs = self.runs
        for run in range(len(runs)):
            if runs.states[run] == state:
                yield DeliveredRange(runs.firsts[run], runs.get_last(run), runs.counts[run])

    def acknowledge(
        self,
        now_ms: int,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        settings: ShareSettings,
        on_failure: FailurePolicy | None = None,
    ) -> AcknowledgeOutcome:
        """Settle or renew a member's records: all of them, or none if any is refused.

        Offsets below the log's start are ignored. Offsets that the member does not hold are
        refused (`INVALID_RECORD_STATE`), also if its lock has expired and the window has passed
        them. Offsets that were never acquired are refused with `INVALID_REQUEST`.
        """
        if len(acknowledgements) == 1:
            first, last, types, *_ = acknowledgements[0]
            if len(types) == 1 and types[0] == ACCEPT:
                change = self._accept(now_ms, member_id, first, last)
                if change is not None:
                    if self.reasons:
                        self.reasons.forget(first, last)
                    return AcknowledgeOutcome(ErrorCode.none, None, (change,))
        elif len(acknowledgements) > ONE_BY_ONE_MAX:
            accepted = bulk.accept_all(self.runs, self.locks, now_ms, member_id, acknowledgements)
            if accepted is not None:
                changes_all, records = accepted
                self.complete += records
                if self.reasons:
                    for first, last, *_ in acknowledgements:
                        self.reasons.forget(first, last)
                self.advance()
                return AcknowledgeOutcome(ErrorCode.none, None, changes_all)
        refusal = self._find_refusal(now_ms, member_id, acknowledgements, settings)
        if refusal is not None:
            return refusal
        outcome = self._apply(now_ms, member_id, acknowledgements, settings, on_failure)
        self.advance()
        return outcome

    def _apply(
        self,
        now_ms: int,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        settings: ShareSettings,
        on_failure: FailurePolicy | None,
    ) -> AcknowledgeOutcome:
        """Settle or renew records of acknowledgements that the member may make."""
        changes: list[StateBatch] = []
        renewed: list[tuple[int, int]] = []
        limit = settings.delivery_count_limit
        for first, last, types, *extensions in acknowledgements:
            delay_ms, reason = (*extensions, None, None)[:2]
            due_ms = None if delay_ms is None else now_ms + delay_ms
            for low, high, kind in _group_by_type(max(first, self.runs.start), last, first, types):
                if kind == AcknowledgeType.RENEW:
                    renewed.append((low, high))
                else:
                    run, past = self.runs.cut(low), self.runs.cut(high + 1)
                    state = int(SETTLES[kind])
                    if (
                        kind == AcknowledgeType.REJECT
                        and on_failure is not None
                        and on_failure.dead_letters
                    ):
                        state = ARCHIVING
                    if reason:
                        self.reasons.note(low, high, reason)
                    self._settle(run, past, state, limit, changes, on_failure, due_ms)
                    self.runs.join(run, past)
        cancelled: list[tuple[int, int]] = []
        if renewed:
            kept, cancelled = split_renewals(self.runs, self.locks, renewed)
            if kept:
                self._renew(now_ms + settings.lock_duration_ms, member_id, kept)
            elif not changes:
                return _build_refusal(f"offset {renewed[0][0]} is cancelled", cancelled)
        return AcknowledgeOutcome(ErrorCode.none, None, changes, cancelled)

    def _accept(self, now_ms: int, member_id: str, first: int, last: int) -> StateBatch | None:
        """Accept offsets at the beginning of a longer run, as when a worker commits each record.

        The run then begins behind them, and no run is added. This takes a third of the time
        (`bench`, a commit a record). Return None, and change nothing, if they lie elsewhere or are
        to be refused.
        """
        runs = self.runs
        firsts, states = runs.firsts, runs.states
        run = bisect_right(firsts, first) - 1
        if run < 0 or firsts[run] != first or states[run] != ACQUIRED or last < first:
            return None
        if last + 1 >= (firsts[run + 1] if run + 1 < len(firsts) else runs.end):
            return None
        lock, count = self.locks.live[runs.locks[run]], runs.counts[run]
        if not lock.is_owned_by(member_id, now_ms):
            return None
        if run:  # At the window's start they leave it; else they join those accepted before.
            if states[run - 1] != ACKNOWLEDGED or runs.counts[run - 1] != count:
                return None
            self.complete += last - first + 1
        firsts[run] = last + 1
        lock.records -= last - first + 1
        return (first, last, ACKNOWLEDGED, count)

    def _find_refusal(
        self,
        now_ms: int,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        settings: ShareSettings,
    ) -> AcknowledgeOutcome | None:
        runs, live = self.runs, self.locks.live
        for first, last, types, *_ in acknowledgements:
            if last < self.log_start_offset:
                continue
            if max(first, self.log_start_offset) < runs.start:
                return _build_refusal(f"offset {first} is not acquired, its delivery is complete")
            if last >= runs.end:
                return _build_past_window_refusal(last, is_empty=not len(runs))
            if AcknowledgeType.RENEW in types and not settings.renew_enabled:
                return _build_refusal(
                    "the group does not allow renewal (share.renew.acknowledge.enable)"
                )
            for run in range(runs.find_run(max(first, runs.start)), len(runs)):
                run_first = runs.firsts[run]
                if run_first > last:
                    break
                if runs.states[run] != ACQUIRED:
                    return _build_refusal(f"offset {max(run_first, first)} is not acquired")
                lock = live[runs.locks[run]]
                if lock.member_id != member_id or lock.deadline_ms <= now_ms:
                    return _build_not_owned_refusal(max(run_first, first), lock, member_id)
        return None

    def _renew(self, deadline_ms: int, member_id: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Move acquired offsets to a new lock of the same member (KIP-1222)."""
        runs, number = self.runs, self.locks.allocate_number()
        records = sum(last - first + 1 for first, last in ranges)
        lock = Lock(member_id, deadline_ms, first=ranges[0][0], last=ranges[-1][1], records=records)
        self.locks.open(number, lock)
        lock.since_ms = deadline_ms
        for first, last in ranges:
            run, past = runs.cut(first), runs.cut(last + 1)
            for index in range(run, past):
                lock.since_ms = min(lock.since_ms, self.locks.live[runs.locks[index]].since_ms)
                self.locks.give_back(
                    runs.locks[index], runs.get_last(index) - runs.firsts[index] + 1
                )
                runs.locks[index] = number
            runs.join(run, past)

    def expire(
        self, now_ms: int, delivery_count_limit: int, on_failure: FailurePolicy | None = None
    ) -> tuple[int, list[StateBatch]]:
        """End the locks that are due. Return the number of freed records, and the changes to
        persist."""
        changes: list[StateBatch] = []
        for number in self.locks.take_expired(now_ms):
            self._unlock(number, delivery_count_limit, changes, on_failure)
        if changes:
            self.advance()
        return sum(last - first + 1 for first, last, _, _ in changes), changes

    def end_waits(self, now_ms: int) -> list[tuple[int, int]]:
        """Make offsets available whose back-off is over, and return their ranges. Nothing is to be
        persisted."""
        runs, freed = self.runs, []
        for number in self.waits.take_expired(now_ms):
            wait = self.waits.live[number]
            run = begin = max(runs.find_run(wait.first), 0)
            while number in self.waits.live:
                if runs.states[run] == WAITING and runs.locks[run] == number:
                    first, last = runs.firsts[run], runs.get_last(run)
                    runs.states[run], runs.locks[run] = AVAILABLE, 0
                    self.waits.give_back(number, last - first + 1)
                    freed.append((first, last))
                run += 1
            runs.join(begin, run)
        return freed

    def release(
        self,
        member_id: str,
        delivery_count_limit: int,
        *,
        undelivered: bool = False,
        on_failure: FailurePolicy | None = None,
    ) -> list[StateBatch]:
        """End all locks of a member whose share session ends. Return the changes to persist.

        With `undelivered`, the records never left the broker, or the member reports that it did not
        process them: the delivery count goes back. Other deliveries count, even if the application
        has not seen the record. Otherwise a member that crashes on a record would get it forever
        (KAFKA-19972).
        """
        numbers = self.locks.find_by_member(member_id)
        return self.end_locks(
            numbers, delivery_count_limit, undelivered=undelivered, on_failure=on_failure
        )

    def end_locks(
        self,
        numbers: Iterable[int],
        delivery_count_limit: int,
        *,
        undelivered: bool = False,
        on_failure: FailurePolicy | None = None,
    ) -> list[StateBatch]:
        """End those of the given locks that still run. Return the changes to persist."""
        changes: list[StateBatch] = []
        for number in numbers:
            if number in self.locks.live:
                self._unlock(
                    number, delivery_count_limit, changes, on_failure, undelivered=undelivered
                )
        if changes:
            self.advance()
        return changes

    def take_back(self, number: int, delivery_count_limit: int) -> list[StateBatch]:
        """End a lock whose records never left the broker. Return the freed ranges. Nothing is to be
        persisted, except for cancelled records (`failed`)."""
        changes: list[StateBatch] = []
        if number in self.locks.live:
            self._unlock(number, delivery_count_limit, changes, undelivered=True)
            self.advance()
        return changes

    def advance_log_start(self, log_start_offset: int) -> None:
        """Follow the log's start, which retention or DeleteRecords moved."""
        runs = self.runs
        self.log_start_offset = max(self.log_start_offset, log_start_offset)
        if log_start_offset <= runs.start:
            return
        if log_start_offset > runs.end:
            runs.append(log_start_offset - 1, AVAILABLE)
        self.reasons.forget(runs.start, log_start_offset - 1)
        dropped = runs.cut(log_start_offset)
        for run in range(dropped):
            if runs.locks[run]:
                locks = self.locks if runs.states[run] == ACQUIRED else self.waits
                locks.give_back(runs.locks[run], runs.get_last(run) - runs.firsts[run] + 1)
            if runs.states[run] == HOLDS_KEY:
                self.key_holders -= runs.get_last(run) - runs.firsts[run] + 1
            self._count_complete(run, -1)
        runs.drop_runs(dropped)
        self.advance()

    def advance(self) -> None:
        """Move the start offset past complete records."""
        runs, dropped = self.runs, 0
        states = runs.states
        while dropped < len(states) and is_terminal(states[dropped]):
            self._count_complete(dropped, -1)
            dropped += 1
        if dropped:
            runs.drop_runs(dropped)

    def take_delays(self) -> list[Delay]:
        """Return `delays`, and empty them: the caller persists them."""
        taken, self.delays = self.delays, []
        return taken

    def take_dead_letters(self) -> list[DeadLetterRange]:
        """Return `dead_letters`, and empty them: the caller writes them."""
        taken, self.dead_letters = self.dead_letters, []
        return taken

    def take_failed(self) -> list[StateBatch]:
        """Return `failed`, and empty it: the caller persists them."""
        taken, self.failed = self.failed, []
        return taken

    def iterate_state_batches(self) -> Iterator[StateBatch]:
        """Return the window as the next leader would load it."""
        runs = self.runs
        for run in range(len(runs)):
            state = runs.states[run]
            if state == ACQUIRED:
                state = self.locks.live[runs.locks[run]].ends_as or AVAILABLE
            elif state == WAITING:
                state = AVAILABLE
            elif state == HOLDS_KEY:
                state = ARCHIVING
            yield runs.firsts[run], runs.get_last(run), state, runs.counts[run]

    def _unlock(
        self,
        number: int,
        limit: int,
        changes: list[StateBatch],
        on_failure: FailurePolicy | None = None,
        *,
        undelivered: bool = False,
    ) -> None:
        """Give back all records of a lock."""
        runs, lock = self.runs, self.locks.live[number]
        run = begin = max(runs.find_run(lock.first), 0)
        while run < len(runs) and runs.firsts[run] <= lock.last:
            if runs.locks[run] == number and runs.states[run] == ACQUIRED:
                if undelivered:
                    runs.counts[run] -= 1
                self._settle(run, run + 1, AVAILABLE, limit, changes, on_failure)
            run += 1
        runs.join(begin, run)
        assert number not in self.locks.live

    def _settle(
        self,
        run: int,
        past: int,
        state: int,
        limit: int,
        changes: list[StateBatch],
        on_failure: FailurePolicy | None = None,
        due_ms: int | None = None,
    ) -> None:
        """Move acquired runs to their next state.

        Records at the delivery limit are archived instead of becoming available, after their dead
        letter if the group has dead letters. Others wait until `due_ms`, or for the group's
        back-off.
        """
        runs, give_back = self.runs, self.locks.give_back
        firsts, states, counts, locks = runs.firsts, runs.states, runs.counts, runs.locks
        assert may_move(ACQUIRED, state)
        exhausted = ARCHIVING if on_failure is not None and on_failure.dead_letters else ARCHIVED
        for index in range(run, past):
            assert states[index] == ACQUIRED
            first, last, count = firsts[index], runs.get_last(index), counts[index]
            becomes = exhausted if state == AVAILABLE and count >= limit else state
            lock = self.locks.live[locks[index]]
            if lock.ends_as and becomes in (AVAILABLE, ARCHIVING):
                becomes = lock.ends_as
            if becomes == ARCHIVING:
                letter = DeadLetterRange(
                    first, last, count, _find_cause(lock, state), lock.member_id
                )
                self.dead_letters.append(letter)
            give_back(locks[index], last - first + 1)
            states[index], locks[index] = becomes, 0
            if becomes != AVAILABLE:
                runs.pieces[index] = 0
                if is_terminal(becomes):
                    self._count_complete(index, +1)
                    self.reasons.forget(first, last)
                if becomes != ACKNOWLEDGED:
                    self.failed.append((first, last, becomes, count))
            else:
                wait_ms = (
                    on_failure.compute_due_ms(count)
                    if due_ms is None and on_failure is not None
                    else due_ms
                )
                if wait_ms is not None:
                    self._wait(index, wait_ms)
                    self.delays.append(Delay(first, last, count, wait_ms))
            changes.append((first, last, becomes, count))

    def _wait(self, run: int, due_ms: int) -> None:
        """Make an available run WAITING."""
        runs = self.runs
        first, last = runs.firsts[run], runs.get_last(run)
        number = self.waits.allocate_number()
        self.waits.open(number, Lock("", due_ms, first=first, last=last, records=last - first + 1))
        runs.states[run], runs.locks[run] = WAITING, number

    def _restore_wait(self, first: int, last: int, count: int, due_ms: int) -> None:
        """Restore a persisted wait, or a held key, of offsets that have not changed since."""
        runs = self.runs
        inside = runs.cut_out(first, last)
        for index in inside:
            if runs.counts[index] != count:
                continue
            if runs.states[index] == ARCHIVING and due_ms == UNTIL_FREED:
                self._hold(index)
            elif runs.states[index] == AVAILABLE and due_ms != UNTIL_FREED:
                self._wait(index, due_ms)
        runs.join(inside.start, inside.stop)

    def _count_complete(self, run: int, sign: int) -> None:
        """Count a run that became terminal, or subtract one that leaves the window."""
        runs = self.runs
        if is_terminal(runs.states[run]):
            size = sign * (runs.get_last(run) - runs.firsts[run] + 1)
            self.complete += size
            if runs.states[run] == ARCHIVED and runs.counts[run] == 0:
                self._gaps += size


def _build_refusal(message: str, cancelled: Sequence[tuple[int, int]] = ()) -> AcknowledgeOutcome:
    return AcknowledgeOutcome(ErrorCode.invalid_record_state, message, (), cancelled)


def _find_cause(lock: Lock, state: int) -> FailureCause:
    """Return why records under a lock that move to `state` get a dead letter."""
    if lock.ends_as:
        return FailureCause.CANCELLED
    return FailureCause.LIMIT if state == AVAILABLE else FailureCause.REJECTED


def _build_past_window_refusal(last: int, *, is_empty: bool) -> AcknowledgeOutcome:
    if is_empty:
        return _build_refusal(f"offset {last} is not in flight")
    message = f"offset {last} is past the records that were ever acquired"
    return AcknowledgeOutcome(ErrorCode.invalid_request, message, ())


def _build_not_owned_refusal(offset: int, lock: Lock, member_id: str) -> AcknowledgeOutcome:
    if lock.member_id != member_id:
        return _build_refusal(f"offset {offset} is acquired by another member")
    return _build_refusal(f"the acquisition lock of offset {offset} has ended")


def _group_by_type(
    low: int, last: int, first: int, types: Sequence[int]
) -> Sequence[tuple[int, int, int]]:
    """Yield ranges of `low` to `last` with one acknowledge type each. The types begin at
    `first`."""
    if low > last:
        return ()
    if len(types) == 1 or types.count(types[0]) == len(types):
        return ((low, last, types[0]),)
    ranges = []
    while low <= last:
        kind = types[low - first]
        high = low
        while high < last and types[high + 1 - first] == kind:
            high += 1
        ranges.append((low, high, kind))
        low = high + 1
    return ranges
