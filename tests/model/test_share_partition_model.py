"""A share partition compared with a twin that keeps one entry for each offset.

The twin implements the rules of KIP-932 without runs, locks or pieces. The broker chooses the
records of a fetch, so the twin takes and checks that choice; it predicts what happens to them. A
crash drops the window and rebuilds it from the state store. In half of the crashes, the store is
rebuilt from its records too.

Half of the runs have a retry back-off: a returned record waits in the twin too, until a time that
the twin computes, also over crashes. Half of the runs have dead letters: a failed record holds the
window until its dead letter is written, and is reported once. Some of these hold the window after
that, until they are freed. Records are cancelled in any state, and never come back after that, also
over crashes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shoal.coordinator.contract import CoordinatorRecord, RecordOrigin
from shoal.coordinator.share.acquisition import AcquireRequest, acquire
from shoal.coordinator.share.backoff import UNTIL_FREED, RedeliveryBackoff
from shoal.coordinator.share.batches import AbortedTransaction, scan
from shoal.coordinator.share.cancellation import cancel
from shoal.coordinator.share.delivery_failure import DeadLetterRange, FailureCause, FailurePolicy
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.settings import ShareSettings
from shoal.coordinator.share.share_partition import SharePartition
from shoal.coordinator.share.state_store import ShareStateShard, StateStoreConfig
from shoal.coordinator.share.states import AcknowledgeType, RecordState
from shoal.protocol.errors import ErrorCode
from shoal.protocol.share import CancelOutcome
from shoal.record.records import build_batch
from support.runs.example_counts import scale_examples

KEY = ShareKey("g", UUID(int=7), 0)
MEMBERS = ["a", "b", "c"]
ABORTED_PRODUCER = 66
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED, WAITING, ARCHIVING, HOLDS_KEY = (
    RecordState.AVAILABLE,
    RecordState.ACQUIRED,
    RecordState.ACKNOWLEDGED,
    RecordState.ARCHIVED,
    RecordState.WAITING,
    RecordState.ARCHIVING,
    RecordState.HOLDS_KEY,
)
BACKOFFS = st.none() | st.builds(
    RedeliveryBackoff, st.integers(1, 80), st.integers(1, 200), st.floats(1, 3), st.just(0.0)
)
TERMINAL = (ACKNOWLEDGED, ARCHIVED)


class Entry:
    """One offset of the twin."""

    def __init__(self, state: RecordState = AVAILABLE, count: int = 0) -> None:
        self.state = state
        self.count = count
        self.member = ""
        #: The end of its lock or its wait.
        self.deadline_ms = 0
        #: What it becomes if its member gives it back, once it is cancelled.
        self.ends_as: RecordState | None = None


class Batch:
    """One batch of the log: bytes and facts."""

    def __init__(self, base: int, size: int, kind: str) -> None:
        self.base, self.last, self.kind = base, base + size - 1, kind
        self.data = bytes(
            build_batch(
                [(0, None, b"x", ())] * size,
                base_offset=base,
                control=kind == "control",
                transactional=kind == "aborted",
                producer_id=ABORTED_PRODUCER if kind == "aborted" else -1,
            )
        )
        if kind == "corrupt":
            self.data = self.data[:-1] + b"\xff"


class ShareMachine(RuleBasedStateMachine):
    @initialize(
        limit=st.integers(2, 5),
        cap=st.integers(3, 40),
        start=st.integers(0, 5),
        backoff=BACKOFFS,
        dead_letters=st.booleans(),
    )
    def begin(
        self,
        limit: int,
        cap: int,
        start: int,
        backoff: RedeliveryBackoff | None,
        dead_letters: bool,
    ) -> None:
        self.now_ms = 1000
        #: Upper bounds of the records in flight and of the acquired ones: the group's limit, or
        #: what was in flight when the limit fell.
        self.in_flight_max = self.acquired_max = cap
        self.settings = ShareSettings(
            lock_duration_ms=100,
            delivery_count_limit=limit,
            max_record_locks=cap,
            read_committed=True,
            backoff=backoff,
            dead_letters=dead_letters,
        )
        self.log: list[Any] = []
        self.log_start, self.log_end = 0, start
        self.records: list[CoordinatorRecord] = []
        self.store = self._new_store()
        self._append(self.store.initialize(self.now_ms, KEY, state_epoch=0, start_offset=start))
        self.share = SharePartition(start)
        self.twin: dict[int, Entry] = {}
        self.persisted: dict[int, tuple[int, int]] = {}
        self.waits: dict[int, tuple[int, int]] = {}
        self.holds: set[int] = set()
        self.spso = self.end = start
        self.accepted: set[int] = set()
        self.cancelled: set[int] = set()
        self.longest = 1

    # The store.

    def _new_store(self) -> ShareStateShard:
        return ShareStateShard(StateStoreConfig(updates_per_snapshot=3), lambda _: 1)

    def _append(self, change) -> None:
        assert change.refusal is None, change.refusal
        if change.record is not None:
            self.store.replay(change.record, RecordOrigin(len(self.records), self.now_ms))
            self.records.append(change.record)

    def _persist(self, changes) -> None:
        self._store(changes)

    def _store(self, changes) -> None:
        self._append(
            self.store.write(
                self.now_ms,
                KEY,
                state_epoch=0,
                leader_epoch=0,
                start_offset=self.share.start_offset,
                delivery_complete_count=self.share.complete,
                batches=changes,
                delays=self.share.delays,
            )
        )
        for first, last, _, due_ms in self.share.delays:
            if due_ms == UNTIL_FREED:
                self.holds |= set(range(first, last + 1))
        self.share.take_delays()
        for first, last, state, count in changes:
            for offset in range(first, last + 1):
                self.persisted[offset] = (state, count)

    # The twin.

    def _entry(self, offset: int) -> Entry:
        return self.twin.setdefault(offset, Entry())

    def _on_failure(self) -> FailurePolicy | None:
        backoff = self.settings.backoff
        if backoff is None and not self.settings.dead_letters:
            return None
        return FailurePolicy(self.now_ms, lambda: 0.5, backoff, self.settings.dead_letters)

    def _settle(self, entry: Entry, state: RecordState, delay_ms: int | None = None) -> None:
        backoff = self.settings.backoff
        if entry.ends_as is not None and state in (AVAILABLE, ARCHIVING):
            state, delay_ms = entry.ends_as, None
        elif state is AVAILABLE and entry.count >= self.settings.delivery_count_limit:
            state = self._failed_state()
        elif state is AVAILABLE and delay_ms is None and backoff is not None and entry.count:
            wait = backoff.first_ms * backoff.multiplier ** (entry.count - 1)
            delay_ms = round(min(wait, backoff.max_ms))
        if state is AVAILABLE and delay_ms is not None:
            state, entry.deadline_ms = WAITING, self.now_ms + delay_ms
            offset = next(o for o, e in self.twin.items() if e is entry)
            self.waits[offset] = (entry.count, entry.deadline_ms)
        entry.state, entry.member = state, ""

    def _failed_state(self) -> RecordState:
        return ARCHIVING if self.settings.dead_letters else ARCHIVED

    def _end_waits(self) -> None:
        due = [e for e in self.twin.values() if e.state is WAITING and e.deadline_ms <= self.now_ms]
        ended = self.share.end_waits(self.now_ms)
        assert sum(last - first + 1 for first, last in ended) == len(due)
        for entry in due:
            entry.state = AVAILABLE

    def _advance(self) -> None:
        while self.spso < self.end and self.twin[self.spso].state in TERMINAL:
            del self.twin[self.spso]
            self.spso += 1

    def _batch_of(self, offset: int) -> Batch | None:
        return next((b for b in self.log if b.base <= offset <= b.last), None)

    def _never_delivered(self, offset: int) -> bool:
        batch = self._batch_of(offset)
        return batch is None or batch.kind in ("control", "aborted")

    # Actions.

    @rule(
        sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6),
        kinds=st.lists(
            st.sampled_from(["data"] * 7 + ["control", "aborted", "corrupt"]),
            min_size=6,
            max_size=6,
        ),
        gap=st.integers(0, 2),
    )
    def produce(self, sizes: list[int], kinds: list[str], gap: int) -> None:
        self.log_end += gap  # a gap that compaction left
        for size, kind in zip(sizes, kinds, strict=False):
            self.log.append(Batch(self.log_end, size, kind))
            self.log_end += size
            self.longest = max(self.longest, size)

    @rule(
        member=st.sampled_from(MEMBERS),
        max_records=st.integers(1, 12),
        batch_size=st.integers(1, 12),
        strict=st.booleans(),
        reach=st.integers(1, 8),
    )
    def fetch(
        self, member: str, max_records: int, batch_size: int, strict: bool, reach: int
    ) -> None:
        wanted_from = self.share.find_next_fetch_offset()
        read = [b for b in self.log if b.last >= wanted_from][:reach]
        aborted = [AbortedTransaction(ABORTED_PRODUCER, 0, self.log_end)]
        batches = scan(b"".join(b.data for b in read), wanted_from, aborted)
        before = self.share.in_flight
        got = acquire(
            self.share,
            self.now_ms,
            AcquireRequest(member, max_records, batch_size, strict),
            batches,
            self.settings,
            wanted_from,
        )
        for offset in range(self.end, self.share.end_offset):
            self._entry(offset)
        self.end = self.share.end_offset
        for first, last, state, _ in got.changes:
            for offset in range(first, last + 1):
                entry = self._entry(offset)
                assert entry.state is AVAILABLE
                batch = self._batch_of(offset)
                assert (
                    self._never_delivered(offset)
                    or entry.count >= self.settings.delivery_count_limit
                    or (batch is not None and batch.kind == "corrupt" and entry.count > 0)
                ), f"{offset} skipped without a reason"
                entry.state = ARCHIVED if self._never_delivered(offset) else self._failed_state()
                assert state == entry.state
        self._check_acquired(member, got, max_records, batch_size, strict, wanted_from, read)
        if got.total:
            views = batches.build_views(got.records, got.total, whole=False)
            sent = scan(b"".join(views), 0)
            covered = {
                offset
                for base, last in zip(sent.bases, sent.lasts, strict=True)
                for offset in range(base, last + 1)
            }
            assert covered.issuperset(o for x in got.records for o in range(x[0], x[1] + 1))
        elif read and not got.changes:
            assert self._nothing_to_get(read, wanted_from), "idle although there is work"
        if before >= self.settings.max_record_locks:
            assert self.share.in_flight <= before
        self._advance()
        if got.changes:
            self._persist(got.changes)

    @rule(
        member=st.sampled_from(MEMBERS), sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4)
    )
    def work_comes_and_is_fetched(self, member: str, sizes: list[int]) -> None:
        """Most rules need an acquired record, which a lone fetch rarely gets."""
        self.produce(sizes=sizes, kinds=["data"] * len(sizes), gap=0)
        self.fetch(member=member, max_records=12, batch_size=12, strict=False, reach=8)

    def _check_acquired(self, member, got, max_records, batch_size, strict, wanted_from, read):
        limit = self.settings.delivery_count_limit
        previous = wanted_from - 1
        for first, last, count in got.records:
            assert first > previous
            assert last >= first
            previous = last
            for offset in range(first, last + 1):
                entry = self.twin[offset]
                assert entry.state is AVAILABLE, f"{offset} given out twice"
                assert not self._never_delivered(offset)
                assert entry.count + 1 == count <= limit
                entry.state, entry.count, entry.member = ACQUIRED, count, member
                entry.deadline_ms = self.now_ms + self.settings.lock_duration_ms
                if count == limit > 2:
                    assert got.total == 1, "a last attempt is made alone"
        assert got.total == sum(last - first + 1 for first, last, _ in got.records)
        assert got.total <= max_records + (0 if strict else self.longest - 1)
        if strict:
            assert got.total <= max_records
        assert previous <= max((b.last for b in read), default=previous)

    def _acquired(self) -> int:
        return sum(e.state is ACQUIRED for e in self.twin.values())

    def _nothing_to_get(self, read: list[Batch], wanted_from: int) -> bool:
        full = self.share.in_flight >= self.settings.max_record_locks
        no_locks_left = self._acquired() >= self.settings.max_record_locks
        return all(
            self._never_delivered(offset)
            or (offset >= self.end and full)
            or (offset < self.end and (no_locks_left or self.twin[offset].state is not AVAILABLE))
            for batch in read
            for offset in range(max(batch.base, wanted_from), batch.last + 1)
        )

    @rule(
        member=st.sampled_from(MEMBERS),
        first=st.integers(-3, 25),
        sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
        kinds=st.lists(st.sampled_from(AcknowledgeType), min_size=18, max_size=18),
        single=st.booleans(),
    )
    def acknowledge_anything(self, member, first, sizes, kinds, single) -> None:
        acks, offset = [], max(self.spso + first, 0)
        for size in sizes:
            acks.append((offset, offset + size - 1, kinds[:1] if single else kinds[:size]))
            offset += size
            kinds = kinds[size:]
        self._acknowledge(member, acks)

    @precondition(lambda self: any(e.state is ACQUIRED for e in self.twin.values()))
    @rule(
        pick=st.integers(0, 1000),
        size=st.integers(1, 12),
        kind=st.sampled_from([*AcknowledgeType, AcknowledgeType.RELEASE]),
        each=st.booleans(),
        delay_ms=st.none() | st.integers(0, 200),
    )
    def acknowledge_held(
        self, pick: int, size: int, kind: AcknowledgeType, each: bool, delay_ms: int | None
    ) -> None:
        held = sorted(o for o, e in self.twin.items() if e.state is ACQUIRED)
        first = held[pick % len(held)]
        member, last = self.twin[first].member, first
        while last - first + 1 < size and last + 1 in held and self.twin[last + 1].member == member:
            last += 1
        types = [kind] * (last - first + 1 if each else 1)
        released_late = kind is AcknowledgeType.RELEASE and delay_ms is not None
        self._acknowledge(member, [(first, last, types, *([delay_ms] if released_late else []))])

    @rule(
        member=st.sampled_from(MEMBERS),
        size=st.integers(1, 3),
        stranger=st.integers(0, 40),
        but=st.sampled_from([None, None, *AcknowledgeType]),
    )
    def acknowledge_all_that_a_member_holds(
        self, member: str, size: int, stranger: int, but: AcknowledgeType | None
    ) -> None:
        """A commit has as many ranges as a poll, possibly one of another type, or one not held."""
        held = sorted(o for o, e in self.twin.items() if e.member == member)
        acks: list[tuple[int, int, list[AcknowledgeType]]] = []
        for offset in held:
            if acks and acks[-1][1] + 1 == offset and offset - acks[-1][0] < size:
                acks[-1] = (acks[-1][0], offset, acks[-1][2])
            else:
                acks.append((offset, offset, [AcknowledgeType.ACCEPT]))
        if len(acks) < 3:
            return
        if but is not None:
            acks[len(acks) // 2] = (*acks[len(acks) // 2][:2], [but])
        if acks[-1][1] < stranger:
            acks.append((stranger, stranger, [AcknowledgeType.ACCEPT]))
        self._acknowledge(member, acks)

    @precondition(lambda self: any(e.state is ACQUIRED for e in self.twin.values()))
    @rule()
    def all_locks_end(self) -> None:
        # They may have ended before the timer fires: the clock never goes back.
        self.time_passes(max(0, max(e.deadline_ms for e in self.twin.values()) - self.now_ms))

    def _acknowledge(self, member: str, acks) -> None:
        expected = {
            first + i: types[i if len(types) > 1 else 0]
            for first, last, types, *_ in acks
            for i in range(last - first + 1)
        }
        refused = any(
            o >= self.log_start
            and (
                not self.spso <= o < self.end
                or self.twin[o].state is not ACQUIRED
                or self.twin[o].member != member
                or self.twin[o].deadline_ms <= self.now_ms
            )
            for o in expected
        )
        outcome = self.share.acknowledge(
            self.now_ms, member, acks, self.settings, self._on_failure()
        )
        left_out = [
            o
            for o, kind in expected.items()
            if not refused and o >= self.spso and kind is AcknowledgeType.RENEW
            if self.twin[o].ends_as is not None
        ]
        refused |= bool(left_out) and left_out == [o for o in expected if o >= self.spso]
        assert (outcome.error is not ErrorCode.none) == refused, outcome
        cancelled = [o for low, high in outcome.cancelled for o in range(low, high + 1)]
        assert cancelled == left_out
        if refused:
            assert not outcome.changes
            return
        for o, kind in expected.items():
            if o < self.spso or o in left_out:
                continue
            entry = self.twin[o]
            if kind is AcknowledgeType.RENEW:
                entry.deadline_ms = self.now_ms + self.settings.lock_duration_ms
            elif kind is AcknowledgeType.RELEASE:
                self._settle(entry, AVAILABLE, *acks[0][3:])
            elif kind is AcknowledgeType.ACCEPT:
                self._settle(entry, ACKNOWLEDGED)
                self.accepted.add(o)
            elif kind is AcknowledgeType.REJECT:
                self._settle(entry, self._failed_state())
            else:
                self._settle(entry, ARCHIVED)
        self._advance()
        if outcome.changes:
            self._persist(outcome.changes)

    @rule(member=st.sampled_from(MEMBERS), undelivered=st.booleans())
    def close_session(self, member: str, undelivered: bool) -> None:
        changes = self.share.release(
            member,
            self.settings.delivery_count_limit,
            undelivered=undelivered,
            on_failure=self._on_failure(),
        )
        for entry in self.twin.values():
            if entry.state is ACQUIRED and entry.member == member:
                entry.count -= undelivered
                self._settle(entry, AVAILABLE)
        self._advance()
        if changes:
            self._persist(changes)

    @precondition(lambda self: self.share.dead_letters)
    @rule(count=st.integers(1, 3), hold=st.booleans())
    def write_dead_letters(self, count: int, hold: bool) -> None:
        for dead_letter in self.share.dead_letters[:count]:
            changes = []
            if hold:
                self.share.hold(dead_letter.first, dead_letter.last)
            else:
                changes = self.share.complete_archiving(dead_letter.first, dead_letter.last)
            self._dead_letters_written(
                dead_letter, changes, lambda _: HOLDS_KEY if hold else ARCHIVED
            )
        del self.share.dead_letters[:count]

    def _dead_letters_written(self, dead_letter: DeadLetterRange, changes, becomes) -> None:
        for offset in range(max(dead_letter.first, self.spso), dead_letter.last + 1):
            assert self.twin[offset].state is ARCHIVING
            assert self.twin[offset].count == dead_letter.delivery_count
            self.twin[offset].state = becomes(offset)
        self._advance()
        self._persist(changes)

    @precondition(lambda self: any(e.state is HOLDS_KEY for e in self.twin.values()))
    @rule(pick=st.integers(0, 1000), size=st.integers(1, 8))
    def free(self, pick: int, size: int) -> None:
        held = sorted(o for o, e in self.twin.items() if e.state is HOLDS_KEY)
        first = held[pick % len(held)]
        self._free(first, first + size - 1)

    def _free(self, first: int, last: int) -> None:
        changes = self.share.free(first, last)
        for offset, entry in self.twin.items():
            if first <= offset <= last and entry.state is HOLDS_KEY:
                entry.state = ARCHIVED
        self._advance()
        self._persist(changes)

    @rule(first=st.integers(-3, 30), size=st.integers(1, 8), dead_letter=st.booleans())
    def cancel(self, first: int, size: int, dead_letter: bool) -> None:
        dead_letter &= self.settings.dead_letters
        becomes = ARCHIVING if dead_letter else ARCHIVED
        first = max(self.spso + first, 0)
        last = first + size - 1
        if first < self.log_end and last >= self.spso:
            for offset in range(self.end, min(last + 1, self.log_end)):
                self._entry(offset)
            self.end = max(self.end, min(last + 1, self.log_end))
        done = cancel(self.share, first, last, limit=self.log_end, dead_letter=dead_letter)
        outcomes = {o: x.outcome for x in done.records for o in range(x[0], x[1] + 1)}
        assert list(outcomes) == list(range(first, last + 1))
        for offset, outcome in outcomes.items():
            assert outcome is self._cancel_in_twin(offset, becomes), offset
        self._advance()
        self.in_flight_max = max(self.in_flight_max, self.share.in_flight)
        self._store(done.marks)
        self._persist(done.changes)

    def _cancel_in_twin(self, offset: int, becomes: RecordState) -> CancelOutcome:
        if offset >= self.log_end:
            return CancelOutcome.NOT_FOUND
        entry = self.twin.get(offset)
        if entry is None or entry.state not in (AVAILABLE, WAITING, ACQUIRED):
            return CancelOutcome.DONE
        self.cancelled.add(offset)
        if entry.state is ACQUIRED:
            entry.ends_as = entry.ends_as or becomes
            return CancelOutcome.IN_FLIGHT
        entry.state = becomes
        return CancelOutcome.CANCELLED

    @rule(passed_ms=st.integers(0, 150))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self._end_waits()
        limit = self.settings.delivery_count_limit
        freed, changes = self.share.expire(self.now_ms, limit, self._on_failure())
        due = [
            e for e in self.twin.values() if e.state is ACQUIRED and e.deadline_ms <= self.now_ms
        ]
        assert freed == len(due)
        for entry in due:
            self._settle(entry, AVAILABLE)
        self._advance()
        if changes:
            self._persist(changes)

    @rule(passed_ms=st.integers(1, 150))
    def time_passes_before_the_timer_fires(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule(ahead=st.integers(1, 12))
    def delete_records(self, ahead: int) -> None:
        self.log_start = min(self.log_start + ahead, self.log_end)
        self.log = [b for b in self.log if b.last >= self.log_start]
        self.share.advance_log_start(self.log_start)
        for offset in range(self.spso, self.log_start):
            self.twin.pop(offset, None)
        self.spso = max(self.spso, self.log_start)
        self.end = max(self.end, self.log_start)
        self._advance()

    @precondition(lambda self: self.log)
    @rule(at=st.integers(0, 30))
    def compact(self, at: int) -> None:
        del self.log[at % len(self.log)]

    @rule(
        limit=st.integers(2, 8),
        cap=st.integers(1, 60),
        lock_ms=st.integers(10, 300),
        backoff=BACKOFFS,
        dead_letters=st.booleans(),
    )
    def configure(
        self,
        limit: int,
        cap: int,
        lock_ms: int,
        backoff: RedeliveryBackoff | None,
        dead_letters: bool,
    ) -> None:
        self.settings = ShareSettings(
            lock_duration_ms=lock_ms,
            delivery_count_limit=limit,
            max_record_locks=cap,
            read_committed=True,
            backoff=backoff,
            dead_letters=dead_letters,
        )

    @rule(replay_all=st.booleans())
    def crash(self, replay_all: bool) -> None:
        if replay_all:
            self.store = self._new_store()
            for offset, record in enumerate(self.records):
                self.store.replay(record, RecordOrigin(offset, 0))
        state, change = self.store.read(self.now_ms, KEY, 0)
        assert state is not None
        assert change.refusal is None
        self.share = SharePartition.from_state_batches(
            state.start_offset,
            state.batches,
            state_epoch=0,
            leader_epoch=0,
            log_start_offset=self.log_start,
            log_end_offset=self.log_end,
            delays=state.delays,
        )
        self.share.dead_letters = [
            DeadLetterRange(first, last, count, FailureCause.REJECTED, "")
            for first, last, count in self.share.iterate_archiving()
        ]
        persisted_offsets = [o for o in self.persisted if o >= state.start_offset]
        self.spso = max(state.start_offset, self.log_start)
        self.end = max([self.spso, *(o + 1 for o in persisted_offsets)])
        self.twin = {
            o: Entry(*_as_entry(self.persisted.get(o))) for o in range(self.spso, self.end)
        }
        for offset in self.holds & self.twin.keys():
            if self.twin[offset].state is ARCHIVING:
                self.twin[offset].state = HOLDS_KEY
        for offset, (count, due_ms) in self.waits.items():
            entry = self.twin.get(offset)
            if entry is None or (entry.state, entry.count) != (AVAILABLE, count):
                continue
            if due_ms > self.now_ms:
                entry.state, entry.deadline_ms = WAITING, due_ms
        self.share.end_waits(self.now_ms)
        self._advance()

    # Invariants.

    @invariant()
    def windows_agree(self) -> None:
        if not hasattr(self, "share"):
            return
        runs = self.share.runs
        assert (self.share.start_offset, self.share.end_offset) == (self.spso, self.end)
        assert sorted(self.twin) == list(range(self.spso, self.end))
        found = list(
            zip(runs.firsts, runs.states, runs.counts, runs.locks, runs.pieces, strict=True)
        )
        assert all(a[1:] != b[1:] for a, b in pairwise(found)), "runs to join"
        held: dict[int, int] = {}
        waiting: dict[int, int] = {}
        for run, (first, state, count, lock, _) in enumerate(found):
            for offset in range(first, runs.get_last(run) + 1):
                entry = self.twin[offset]
                assert (entry.state, entry.count) == (state, count), offset
            assert (lock != 0) == (state in (ACQUIRED, WAITING))
            if state == WAITING:
                wait = self.share.waits.live[lock]
                waiting[lock] = waiting.get(lock, 0) + runs.get_last(run) - first + 1
                assert wait.deadline_ms == self.twin[first].deadline_ms
            elif lock:
                known = self.share.locks.live[lock]
                held[lock] = held.get(lock, 0) + runs.get_last(run) - first + 1
                assert known.member_id == self.twin[first].member
                assert known.deadline_ms == self.twin[first].deadline_ms
        assert held == {n: x.records for n, x in self.share.locks.live.items()}
        assert waiting == {n: x.records for n, x in self.share.waits.live.items()}

    @invariant()
    def the_limit_on_records_in_flight_holds(self) -> None:
        if not hasattr(self, "share"):
            return
        limit, in_flight, acquired = (
            self.settings.max_record_locks,
            self.share.in_flight,
            self._acquired(),
        )
        assert in_flight <= self.in_flight_max
        assert acquired <= self.acquired_max
        self.in_flight_max, self.acquired_max = max(limit, in_flight), max(limit, acquired)

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "share"):
            return
        complete = sum(e.state in TERMINAL for e in self.twin.values())
        gaps = sum(e.state is ARCHIVED and e.count == 0 for e in self.twin.values())
        assert self.share.complete == complete
        assert self.share.in_flight == self.end - self.spso - gaps
        due = [e.deadline_ms for e in self.twin.values() if e.state in (ACQUIRED, WAITING)]
        assert self.share.next_deadline_ms == min(due, default=None)

    @invariant()
    def each_archiving_record_has_one_dead_letter(self) -> None:
        if not hasattr(self, "share"):
            return
        reported = [
            o for d in self.share.dead_letters for o in range(d.first, d.last + 1) if o >= self.spso
        ]
        archiving = [o for o, e in self.twin.items() if e.state is ARCHIVING]
        assert sorted(reported) == sorted(archiving)

    @invariant()
    def held_records_are_in_the_store(self) -> None:
        if not hasattr(self, "share"):
            return
        held = [o for o, e in sorted(self.twin.items()) if e.state is HOLDS_KEY]
        assert self.share.key_holders == len(held)
        (state,) = self.store.list_states()
        stored = [o for first, last, *_ in state.find_key_holders() for o in range(first, last + 1)]
        assert [o for o in stored if o >= self.spso] == held

    @invariant()
    def cancelled_never_comes_back(self) -> None:
        for offset in getattr(self, "cancelled", ()):
            entry = self.twin.get(offset)
            if entry is not None and entry.state in (AVAILABLE, WAITING, ACQUIRED):
                assert entry.state is ACQUIRED
                assert entry.ends_as is not None

    @invariant()
    def accepted_never_comes_back(self) -> None:
        for offset in getattr(self, "accepted", ()):
            if offset >= self.spso:
                assert self.twin[offset].state is ACKNOWLEDGED


def _as_entry(persisted: tuple[int, int] | None) -> tuple[RecordState, int]:
    return (AVAILABLE, 0) if persisted is None else (RecordState(persisted[0]), persisted[1])


TestSharePartition = ShareMachine.TestCase
TestSharePartition.settings = settings(
    max_examples=scale_examples(120), stateful_step_count=50, deadline=None
)
