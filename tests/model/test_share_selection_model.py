"""Key order, delay, priority and fairness in all combinations, with back-off and dead letters.

This extends the twin of `test_share_partition_model` by what records contain. The twin checks the
choice: a key is at one member at a time and in log order; no record comes before its time; the most
urgent scanned record comes first, of the tenant with the fewest records at members
(`test_fair_queue_model` has the order of tenants with equally many). A fetch that gets nothing has
scanned everything it may, however few of the requested records a fetch gets while keys collide.
Fetches go through the code of the broker; scans and reads are so short that they rarely get through
a batch.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from shoal.coordinator.share import compiled, fetch_limit
from shoal.coordinator.share.acquisition import AcquireRequest
from shoal.coordinator.share.key_holders import hold_keys
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
from shoal.coordinator.share.states import AcknowledgeType
from shoal.coordinator.share.tenants import TenantPolicy
from shoal.record.batch import check_crc, iter_headers
from shoal.record.records import build_batch, read_records
from shoal.server.share import selection_fetch as share_selection
from support.brokers.share_leaders import LogLeader
from support.runs.example_counts import scale_examples
from test_share_partition_model import (
    ABORTED_PRODUCER,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    BACKOFFS,
    HOLDS_KEY,
    MEMBERS,
    TERMINAL,
    Entry,
    ShareMachine,
)

if TYPE_CHECKING:
    from shoal.coordinator.share.backoff import RedeliveryBackoff

POLICIES = st.builds(
    SelectionPolicy,
    key_order=st.sampled_from([True, True, False]),
    key_batch=st.integers(1, 4),
    key_held_by_dead_letter=st.booleans(),
    dead_letters_held_max=st.sampled_from([2, 50]),
    lookahead=st.integers(15, 60),
    delay_max_ms=st.sampled_from([0, 200]),
    delayed_max=st.integers(3, 60),
    priority_header=st.sampled_from(["", "p"]),
    priority_lookahead=st.integers(1, 20),
    priority_ageing_ms=st.integers(1, 50),
    fairness_by=st.sampled_from(["", "", "key", "header:t"]),
    fairness_lookahead=st.integers(5, 60),
)
WEIGHTS = {b"x": 2.0, b"a": 0.5}
#: Key, deliver.at relative to now, deliver.after, priority and tenant of one record.
RECORDS = st.tuples(
    st.sampled_from([None, b"", b"a", b"a", b"b", b"c"]),
    st.none() | st.integers(-50, 300),
    st.none() | st.integers(0, 150),
    st.none() | st.integers(-1, 12),
    st.sampled_from([None, b"x", b"x", b"y", b"z"]),
)


class Batch:
    """One batch of the log: bytes, and facts by offset."""

    def __init__(self, base: int, records: list[Any], kind: str, codec: str, now_ms: int) -> None:
        self.base, self.last, self.kind = base, base + len(records) - 1, kind
        self.keys = [key for key, *_ in records]
        self.priorities = [min(max(p or 0, 0), 9) for *_, p, _ in records]
        self.tenants = [tenant for *_, tenant in records]
        self.times = [
            (None if at is None else now_ms + at, None if after is None else now_ms + after)
            for _, at, after, *_ in records
        ]
        self.timestamp_ms = now_ms
        self.data = bytes(
            build_batch(
                [(now_ms, r[0], b"x", _headers(r, now_ms)) for r in records],
                base_offset=base,
                compression=codec if kind == "data" else "none",
                control=kind == "control",
                transactional=kind == "aborted",
                producer_id=ABORTED_PRODUCER if kind == "aborted" else -1,
            )
        )


def _headers(record: Any, now_ms: int) -> list[tuple[str, bytes]]:
    _, at, after, priority, tenant = record
    found = [("other", b"1")]
    if at is not None:
        found.append(("shoal.deliver.at", str(now_ms + at).encode()))
    if after is not None:
        found.append(("shoal.deliver.after", str(after).encode()))
    if priority is not None:
        found.append(("p", str(priority).encode()))
    if tenant is not None:
        found.append(("t", tenant))
    return found


class SelectionMachine(ShareMachine):
    """The fetches of groups that select; everything else is as in the plain machine."""

    @initialize(
        limit=st.integers(2, 5),
        cap=st.integers(3, 40),
        start=st.integers(0, 5),
        backoff=BACKOFFS,
        dead_letters=st.booleans(),
        policy=POLICIES,
    )
    def begin(
        self,
        limit: int,
        cap: int,
        start: int,
        backoff: RedeliveryBackoff | None,
        dead_letters: bool,
        policy: SelectionPolicy,
    ) -> None:
        super().begin(limit, cap, start, backoff, dead_letters)
        self.policy = policy
        self._set(limit, cap, 100, backoff, dead_letters)
        self.leader = LogLeader(
            self.share,
            self._read,
            lambda: self.log_end,
            record_size=100.0,
            aborted_producer=ABORTED_PRODUCER,
            wake_soon=self._wake_soon,
        )
        #: When each scanned record became available.
        self.ready_ms: dict[int, int] = {}
        #: The first such time since the selection began.
        self.first_ready_ms: dict[int, int] = {}
        self.more_to_scan = False

    def _wake_soon(self) -> None:
        self.more_to_scan = True

    def _set(self, limit, cap, lock_ms, backoff, dead_letters) -> None:
        self.settings = ShareSettings(
            lock_duration_ms=lock_ms,
            delivery_count_limit=limit,
            max_record_locks=cap,
            read_committed=True,
            backoff=backoff,
            dead_letters=dead_letters,
            selection=self.policy,
            tenants=TenantPolicy(weights=WEIGHTS),
        )

    @property
    def selection(self) -> Any:
        return self.leader.selection

    def _read(self, offset: int, size: int, limit: int) -> tuple[bytes, int]:
        read = [b for b in self.log if b.last >= offset][: max(1, size % 4)]
        return b"".join(b.data for b in read), read[-1].last + 1 if read else offset

    # The leader's notifications to the selection.

    def _persist(self, changes) -> None:
        self._store(changes)
        # A fetch has changed the selection itself, except for keys of failed records. Like the
        # leader, free these once their end is committed.
        failed = self.share.take_failed()
        ended = failed if self.fetching else changes
        if self.selection is not None and ended:
            self._with_selection(lambda: self.selection.apply_changes(ended, self.now_ms))

    fetching = False

    def _with_selection(self, notify) -> None:
        notify()
        self._note_ready()

    def _note_ready(self) -> None:
        """Record since when records have been available. After a restart, a record that a member
        holds and that was not scanned again does not count for its key."""
        cursor = self.selection.cursor if self.selection is not None else 0
        self.ready_ms = {o: self.ready_ms.get(o, self.now_ms) for o in self._eligible(cursor)}
        for offset, since_ms in self.ready_ms.items():
            self.first_ready_ms.setdefault(offset, since_ms)

    def _end_waits(self) -> None:
        due = [e for e in self.twin.values() if e.state == 5 and e.deadline_ms <= self.now_ms]
        ended = self.share.end_waits(self.now_ms)
        assert sum(last - first + 1 for first, last in ended) == len(due)
        for entry in due:
            entry.state = AVAILABLE
        if self.selection is not None:
            self.selection.make_available(ended, self.now_ms)
            self._end_delays()
        self._note_ready()

    def _end_delays(self) -> None:
        self.selection.end_delays(self.now_ms)
        self.delays_ended_ms = self.now_ms
        self._note_ready()

    delays_ended_ms = 0

    # The twin's facts.

    def _fact(self, offset: int) -> tuple[bytes | None, int, int]:
        """Return key, due time and priority."""
        batch = self.facts[offset]
        at = offset - batch.base
        due_ms = 0
        if self.policy.delay_max_ms:
            times = batch.times[at]
            due_ms = (times[0] if times[0] is not None else times[1]) or 0
        return batch.keys[at], due_ms, batch.priorities[at]

    def _tenant(self, offset: int) -> bytes:
        """Return the tenant of a record; all have the same without fairness."""
        batch, by = self.facts[offset], self.policy.fairness_by
        if not by:
            return b""
        names = batch.keys if by == "key" else batch.tenants
        return names[offset - batch.base] or b""

    def _level(self, tenant: bytes, less: int = 0) -> float:
        """Return how many records members have of a tenant, `less` not counted, by its weight."""
        held = sum(
            e.state is ACQUIRED and not self._never_delivered(o) and self._tenant(o) == tenant
            for o, e in self.twin.items()
        )
        return (held - less) / WEIGHTS.get(tenant, 1.0)

    def _due(self, offset: int) -> bool:
        """Return whether its time has come, or was cut to the maximum, when delays last ended."""
        if offset in self.under_way:
            return True
        due_ms = self._fact(offset)[1]
        latest_ms = self.facts[offset].timestamp_ms + self.policy.delay_max_ms
        seen_ms = self.seen_ms.get(offset, self.now_ms)
        if due_ms > seen_ms + self.policy.delay_max_ms:
            due_ms = latest_ms
        return due_ms <= max(self.delays_ended_ms, seen_ms)

    def _eligible(self, known: int = 1 << 62) -> set[int]:
        """Return the scanned records that may be acquired, given the facts below offset `known`."""
        cursor = self.selection.cursor if self.selection is not None else 0
        found = set()
        for offset, entry in self.twin.items():
            if entry.state is AVAILABLE and offset < cursor and not self._never_delivered(offset):
                if self._due(offset) and self._is_free(offset, known):
                    found.add(offset)
        return found

    def _is_free(self, offset: int, known: int) -> bool:
        return not self._before(offset) and not any(
            entry.state is ACQUIRED
            for other, entry in self.twin.items()
            if other != offset and other < known and self._same_key(offset, other)
        )

    def _same_key(self, offset: int, other: int) -> bool:
        if not self.policy.key_order or self._never_delivered(other):
            return False
        key = self._fact(offset)[0]
        return key is not None and self._fact(other)[0] == key

    def _before(self, offset: int) -> list[int]:
        """Return the earlier records of its key that hold it."""
        return [
            other
            for other, entry in self.twin.items()
            if other < offset and self._same_key(offset, other) and self._holds(entry)
        ]

    def _holds(self, entry: Entry) -> bool:
        if entry.state in (ARCHIVING, HOLDS_KEY):
            return self.policy.key_held_by_dead_letter
        return entry.state not in TERMINAL

    # Actions.

    @initialize()
    def facts_are_kept(self) -> None:
        self.facts: dict[int, Batch] = {}
        self.seen_ms: dict[int, int] = {}
        #: Not available when they were scanned: delivered before, so no delay holds them.
        self.under_way: set[int] = set()

    @rule(
        batches=st.lists(st.lists(RECORDS, min_size=1, max_size=7), min_size=1, max_size=5),
        kinds=st.lists(
            st.sampled_from(["data"] * 8 + ["control", "aborted"]), min_size=5, max_size=5
        ),
        gap=st.integers(0, 2),
        codec=st.sampled_from(["none", "none", "lz4"]),
    )
    def produce(self, batches, kinds, gap: int, codec: str) -> None:
        self.log_end += gap
        for records, kind in zip(batches, kinds, strict=False):
            batch = Batch(self.log_end, records, kind, codec, self.now_ms)
            self.log.append(batch)
            self.log_end = batch.last + 1
            self.facts.update(dict.fromkeys(range(batch.base, batch.last + 1), batch))

    @rule(member=st.sampled_from(MEMBERS), max_records=st.integers(1, 12))
    def fetch(self, member: str, max_records: int) -> None:
        self.leader.share = self.share
        known = share_selection.get_selection(self.leader, self.settings)
        assert known is not None
        cursor, held = known.cursor, {o for o, e in self.twin.items() if e.state is ACQUIRED}
        under_way = {o for o, e in self.twin.items() if e.state is not AVAILABLE}
        in_flight, self.more_to_scan = known.count_in_flight(), False
        room = self.settings.max_record_locks - in_flight
        bound = min(max_records, known.fetch_limit.records, max(room, 0))
        full_of_held = self.share.key_holders >= self.policy.dead_letters_held_max
        eligible = self._eligible()
        wanted = AcquireRequest(member, max_records, max_records)
        views, got = share_selection.fetch(self.leader, wanted, 1 << 20, self.settings, self.now_ms)
        for offset in range(self.end, self.share.end_offset):
            self._entry(offset)
        self.end = self.share.end_offset
        for offset in range(cursor, known.cursor):
            self.seen_ms[offset] = self.now_ms
            if offset in under_way:
                self.under_way.add(offset)
        self._note_ready()
        eligible = self._eligible()
        self._check_skipped(got.changes)
        eligible -= {o for x in got.changes for o in range(x[0], x[1] + 1)}
        self._check_chosen(member, got, bound, held, eligible)
        assert got.total <= max(0, self.settings.max_record_locks - in_flight)
        assert not got.total or not full_of_held, "the limit of held keys is reached"
        if got.total:
            assert _offsets(b"".join(views)).issuperset(
                o for x in got.records for o in range(x[0], x[1] + 1)
            )
        elif not got.changes and in_flight < self.settings.max_record_locks and not full_of_held:
            self._check_idle(known)
        self._advance()
        if got.changes:
            self.fetching = True
            self._persist(got.changes)
            self.fetching = False

    @rule(
        member=st.sampled_from(MEMBERS),
        batches=st.lists(st.lists(RECORDS, min_size=1, max_size=7), min_size=1, max_size=3),
    )
    def work_comes_and_is_fetched(self, member: str, batches) -> None:
        self.produce(batches=batches, kinds=["data"] * 3, gap=0, codec="none")
        self.fetch(member=member, max_records=12)

    @precondition(lambda self: self.policy.fairness_by)
    @rule(
        member=st.sampled_from(MEMBERS),
        names=st.lists(st.sampled_from([b"x", b"x", b"x", b"y", b"z"]), min_size=4, max_size=7),
        max_records=st.integers(1, 4),
    )
    def tenants_compete(self, member: str, names: list[bytes], max_records: int) -> None:
        """Random steps alone rarely leave records of several tenants behind."""
        records = [(name, None, None, None, name) for name in names]
        self.produce(batches=[records], kinds=["data"], gap=0, codec="none")
        self.fetch(member=member, max_records=max_records)

    @precondition(lambda self: self.settings.dead_letters)
    @rule(
        member=st.sampled_from(MEMBERS),
        batches=st.lists(st.lists(RECORDS, min_size=1, max_size=4), min_size=1, max_size=2),
        picks=st.lists(st.integers(0, 1000), min_size=1, max_size=3),
        fetched_by=st.sampled_from(MEMBERS),
    )
    def records_are_rejected_and_their_letters_written(
        self, member: str, batches, picks: list[int], fetched_by: str
    ) -> None:
        """Random steps alone rarely show what happens to their keys."""
        self.work_comes_and_is_fetched(member=member, batches=batches)
        for pick in picks:
            if any(e.state is ACQUIRED for e in self.twin.values()):
                self.acknowledge_held(
                    pick=pick, size=1, kind=AcknowledgeType.REJECT, each=False, delay_ms=None
                )
        self.write_dead_letters(count=len(self.share.dead_letters))
        self.fetch(member=fetched_by, max_records=12)

    def _check_skipped(self, changes) -> None:
        for first, last, state, _ in changes:
            for offset in range(first, last + 1):
                entry = self._entry(offset)
                if entry.state is HOLDS_KEY:
                    gone = self._never_delivered(offset) or self._fact(offset)[0] is None
                    assert gone, f"{offset} has a key to hold"
                    entry.state = ARCHIVED
                    assert state == ARCHIVED
                    continue
                assert entry.state is AVAILABLE
                exhausted = entry.count >= self.settings.delivery_count_limit
                assert self._never_delivered(offset) or exhausted, f"{offset} skipped"
                allowed = {self._failed_state()} if exhausted else set()
                if self._never_delivered(offset):
                    # Archived by its count, unread: its dead letter finds no record.
                    allowed.add(TERMINAL[1])
                assert state in allowed
                entry.state = next(one for one in allowed if one == state)

    def _check_chosen(self, member, got, max_records, held, eligible) -> None:
        chosen = [o for first, last, _ in got.records for o in range(first, last + 1)]
        assert chosen == sorted(set(chosen))
        assert len(chosen) == got.total <= max_records
        for first, last, count in got.records:
            for offset in range(first, last + 1):
                entry = self.twin[offset]
                assert entry.state is AVAILABLE
                assert entry.count + 1 == count
                assert count <= self.settings.delivery_count_limit
                if count == self.settings.delivery_count_limit > 2:
                    assert got.total == 1, "a last attempt is made alone"
                assert not self._never_delivered(offset)
                assert self._due(offset), f"{offset} came before its time"
                self._check_key(offset, chosen, held)
        for tenant in {self._tenant(o) for o in chosen}:
            self._check_urgency(
                [o for o in chosen if self._tenant(o) == tenant],
                {o for o in eligible if self._tenant(o) == tenant},
                len(chosen) == max_records,
            )
        for first, last, count in got.records:
            for offset in range(first, last + 1):
                entry = self.twin[offset]
                entry.state, entry.count, entry.member = ACQUIRED, count, member
                entry.deadline_ms = self.now_ms + self.settings.lock_duration_ms
                self.ready_ms.pop(offset, None)
        if len(chosen) == max_records:  # Otherwise some were chosen and could not be read.
            self._check_fairness(chosen, eligible)

    def _check_fairness(self, chosen: list[int], eligible: set[int]) -> None:
        """Check that no tenant got a record while one with less at members waited. A key may bring
        its next records along."""
        left = {o for o in eligible - set(chosen) if not self._alone(o)}
        policy = self.policy
        if not policy.fairness_by or not left or (policy.key_order and policy.key_batch > 1):
            return
        waiting = min(self._level(tenant) for tenant in {self._tenant(o) for o in left})
        served = {self._tenant(o) for o in chosen if o in eligible and not self._alone(o)}
        for tenant in served:
            assert self._level(tenant, less=1) <= waiting, f"{tenant!r} was served before others"

    def _check_key(self, offset: int, chosen: list[int], held: set[int]) -> None:
        assert set(self._before(offset)) <= set(chosen), f"{offset} overtakes its key"
        same = [other for other in chosen if self._same_key(offset, other)]
        assert len(same) <= self.policy.key_batch
        assert not any(self._same_key(offset, o) for o in held if o in self.twin)

    def _check_urgency(self, chosen: list[int], eligible: set[int], is_full: bool) -> None:
        """Check that unacquired records of a tenant were less urgent; only records that follow in a
        key may come before. A record that comes back may have kept the rank of an earlier time."""
        firsts = [o for o in chosen if o in eligible]
        left = [o for o in eligible - set(chosen) if not self._alone(o)]
        if firsts and left and is_full and not self._alone(firsts[0]):
            ranks = [self._rank(o, self.first_ready_ms) for o in firsts]
            assert max(ranks) <= min(self._rank(o, self.ready_ms) for o in left)

    def _alone(self, offset: int) -> bool:
        return self.twin[offset].count >= self.settings.splitting_count

    def _rank(self, offset: int, since_ms: dict[int, int]) -> tuple[int, int]:
        if not self.policy.priority_header:
            return 0, offset
        steps = 9 - self._fact(offset)[2]
        return since_ms[offset] + steps * self.policy.priority_ageing_ms, offset

    def _check_idle(self, known) -> None:
        assert self.more_to_scan or not self._eligible(), "idle although there is work"
        read_up_to = max((b.last + 1 for b in self.log), default=0)
        if known.cursor < read_up_to and known.find_exhausted_config() is None:
            assert self.more_to_scan, "idle although there are records to scan"

    @precondition(lambda self: self.share.dead_letters)
    @rule(count=st.integers(1, 3))
    def write_dead_letters(self, count: int) -> None:
        if not self.policy.dead_letters_hold_keys:
            super().write_dead_letters(count, hold=False)
            return
        for dead_letter in self.share.dead_letters[:count]:
            changes = hold_keys(self.share, self.selection, [dead_letter])
            self._dead_letters_written(dead_letter, changes, self._held_or_done)
        del self.share.dead_letters[:count]

    def _held_or_done(self, offset: int) -> Any:
        """Return the state of a record whose dead letter is written: if it is known to have no key,
        it leaves the window."""
        if self.selection is None or offset >= self.selection.cursor:
            return HOLDS_KEY
        keyless = self._never_delivered(offset) or self._fact(offset)[0] is None
        return ARCHIVED if keyless else HOLDS_KEY

    @rule(ahead=st.integers(1, 12))
    def delete_records(self, ahead: int) -> None:
        super().delete_records(ahead)
        if self.selection is not None:
            self.selection.on_log_start_moved(self.now_ms)
        self._note_ready()

    @precondition(lambda self: self.log)
    @rule(at=st.integers(0, 30))
    def compact(self, at: int) -> None:
        batch = self.log[at % len(self.log)]
        # Scanned records stay, since the twin reads them; the last one stays, as in any log.
        known = self.selection
        if known is not None and batch.base >= known.cursor and batch is not self.log[-1]:
            self.log.remove(batch)

    @rule(
        limit=st.integers(2, 8),
        cap=st.integers(1, 60),
        lock_ms=st.integers(10, 300),
        backoff=BACKOFFS,
        dead_letters=st.booleans(),
        policy=st.none() | POLICIES,
    )
    def configure(self, limit, cap, lock_ms, backoff, dead_letters, policy=None) -> None:
        self.policy = policy or self.policy
        self._set(limit, cap, lock_ms, backoff, dead_letters)
        if not self.policy.dead_letters_hold_keys:
            for first, last, _ in self.share.get_key_holder_ranges():
                self._free(first, last)
        self._begin_selection_anew()

    def _begin_selection_anew(self) -> None:
        known = self.selection
        self.leader.share = self.share
        now = share_selection.get_selection(self.leader, self.settings)
        if now is not known:
            self.ready_ms, self.seen_ms, self.under_way = {}, {}, set()
            self.first_ready_ms = {}

    @rule(replay_all=st.booleans(), letters=st.integers(0, 3))
    def crash(self, replay_all: bool, letters: int) -> None:
        super().crash(replay_all)
        self.leader.selection = None
        self._begin_selection_anew()
        self.write_dead_letters(count=letters)  # Before any record is scanned again.

    # Invariants.

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "share"):
            complete = sum(e.state in TERMINAL for e in self.twin.values())
            assert self.share.complete == complete

    @invariant()
    def the_limit_on_records_in_flight_holds(self) -> None:
        """Records in back-off count as well; those that wait in the window do not."""
        if not hasattr(self, "share"):
            return
        limit, acquired = self.settings.max_record_locks, self._acquired()
        in_flight = acquired + self.share.backing_off
        assert in_flight <= self.in_flight_max
        assert acquired <= self.acquired_max
        self.in_flight_max, self.acquired_max = max(limit, in_flight), max(limit, acquired)

    @invariant()
    def numbers_agree(self) -> None:
        known = getattr(self, "leader", None) and self.selection
        if not known:
            return
        looked = {
            o: e
            for o, e in self.twin.items()
            if o < known.cursor and not self._never_delivered(o) and self._holds(e)
        }
        for offset, entry in self.twin.items():
            if entry.state is HOLDS_KEY and offset < known.cursor:
                key = None if self._never_delivered(offset) else self._fact(offset)[0]
                assert key is not None, f"{offset} is held without a key"
        delayed = {o for o, e in looked.items() if e.state is AVAILABLE and not self._due(o)}
        assert known.delayed == len(delayed)
        if self.policy.key_order:
            # Of several records of a key at one member, an earlier one may come back alone: it
            # waits too.
            taken = {self._fact(o)[0] for o, e in looked.items() if e.state is ACQUIRED} - {None}
            waiting = sum(
                e.state is not ACQUIRED and (self._fact(o)[0] in taken or bool(self._before(o)))
                for o, e in looked.items()
            )
            assert known.held_by_key == waiting
            of_key = Counter(key for o in looked if (key := self._fact(o)[0]) is not None)
            assert known.keys.records == of_key.total()
            assert known.keys.keys == len(of_key)
            assert known.keys.waiting == sum(count > 1 for count in of_key.values())
        # Deleted records count until a fetch finds out.
        gone = sum(
            e.state is AVAILABLE and o < known.cursor and self._never_delivered(o)
            for o, e in self.twin.items()
        )
        eligible = len(self._eligible(known.cursor))
        assert eligible <= known.count_available(known.cursor) <= eligible + gone
        times_ms = [self.now_ms + ahead_ms for ahead_ms in (0, 5, 1000, 60_000)]
        later = self._not_due(looked, delayed)
        assert known.count_not_due(times_ms, known.cursor) == [
            sum(d > t for d in later) for t in times_ms
        ]

    def _not_due(self, looked: dict[int, Entry], delayed: set[int]) -> list[int]:
        """Return when each waiting record is due, or the record of its key before it."""
        due_ms = {o: e.deadline_ms for o, e in self.twin.items() if e.state == 5}
        for offset in delayed:
            at_ms, seen_ms = self._fact(offset)[1], self.seen_ms.get(offset, self.now_ms)
            if at_ms > seen_ms + self.policy.delay_max_ms:
                at_ms = self.facts[offset].timestamp_ms + self.policy.delay_max_ms
            due_ms[offset] = at_ms
        behind = []
        for offset in looked.keys() - due_ms.keys():
            first = min(self._before(offset), default=offset)
            taken = any(
                e.state is ACQUIRED and (o == offset or self._same_key(offset, o))
                for o, e in looked.items()
            )
            if first in due_ms and not taken:
                behind.append(due_ms[first])
        return [*due_ms.values(), *behind]


def _offsets(sent: bytes) -> set[int]:
    """Return the offsets of what a member got; all offsets of an unreadable batch."""
    found: set[int] = set()
    for place, header in iter_headers(sent):
        if check_crc(sent, place, header):
            found.update(record.offset for record in read_records(sent, place))
        else:
            found.update(range(header.base_offset, header.last_offset + 1))
    return found


@pytest.fixture(autouse=True, scope="module")
def short_looks():
    patch = pytest.MonkeyPatch()
    patch.setattr(share_selection, "SCANNED_RECORDS_MAX", 9)
    patch.setattr(share_selection, "READS_MAX", 3)
    patch.setattr(fetch_limit, "RECORDS_MIN", 2)
    patch.setattr(fetch_limit, "RECORDS_MAX", 8)
    patch.setattr(fetch_limit, "KEYS_MIN", 1)
    patch.setattr(fetch_limit, "STEP_RECORDS", 4)
    yield
    patch.undo()


TestShareSelection = SelectionMachine.TestCase
TestShareSelection.settings = settings(
    max_examples=scale_examples(120), stateful_step_count=50, deadline=None
)


class PureSelectionMachine(SelectionMachine):
    """The same without the compiled loops."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(compiled, "native", None)

    def teardown(self) -> None:
        self._patch.undo()
        super().teardown()


TestShareSelectionInPython = PureSelectionMachine.TestCase
TestShareSelectionInPython.settings = settings(
    max_examples=scale_examples(40), stateful_step_count=50, deadline=None
)
