"""The hierarchical queue of fair groups against a dumb twin that searches all records each time.

The twin has the same rules in their plainest form: the next record is that of the tenant with the
least level (records at members by weight), then the least tag (used time), then the most urgent
record. Tenants that are paused, or at a limit in flight or of a rate, are left out. It keeps no
heaps, finds each number anew, and forgets no tenant.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shoal.coordinator.share.fair_queue import DEBT_MAX_MS, RECORD_COST_MS, FairQueue
from shoal.coordinator.share.settings import SelectionPolicy
from shoal.coordinator.share.tenant_limits import TenantLedger
from shoal.coordinator.share.tenants import TenantPolicy
from support.runs.example_counts import scale_examples

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES = st.sampled_from([b"", b"a", b"b", b"c", b"d"])
WEIGHTS = {b"a": 2.0, b"b": 0.5}
AGEING_MS = 40
#: A token of a rate takes 4 or 32 ms, so that no sum is rounded.
POLICIES = [
    TenantPolicy(weights=WEIGHTS),
    TenantPolicy(weights=WEIGHTS, max_in_flight=2, max_in_flight_of={b"a": 1, b"b": 0}),
    TenantPolicy(weights=WEIGHTS, max_per_second=250.0, burst=2, max_per_second_of={b"c": 0}),
    TenantPolicy(weights=WEIGHTS, max_per_second_of={b"a": 31.25, b"": 250.0}, max_in_flight=3),
    TenantPolicy(weights=WEIGHTS, max_in_flight=3, paused=frozenset({b"a", b"d"})),
]
#: Half of the time there are no limits, so that the first one finds records at members.
LIMITS = st.one_of(st.just(POLICIES[0]), st.sampled_from(POLICIES))


@dataclass
class Twin:
    """One record. `since_ms` is when a member got it, `ready_ms` when it became available."""

    name: bytes
    priority: int
    ready_ms: int | None
    since_ms: int | None = None


class Bucket:
    """The tokens of a tenant's rate; `per_ms` is 0 without one."""

    def __init__(self) -> None:
        self.per_ms = self.burst = self.tokens = 0.0
        self.filled_ms = 0

    def fill(self, now_ms: int) -> None:
        added = (now_ms - self.filled_ms) * self.per_ms
        self.tokens, self.filled_ms = min(self.tokens + added, self.burst), now_ms

    def configure(self, per_second: float, burst: float, now_ms: int) -> None:
        """Follow another rate. A first one begins with a full bucket."""
        self.fill(now_ms)
        more = max(0.0, burst - self.burst)
        self.tokens = min(self.tokens + more, burst) if self.per_ms else burst
        self.per_ms, self.burst = per_second / 1000, burst


class FairQueueMachine(RuleBasedStateMachine):
    @initialize(ranked=st.booleans(), limits=LIMITS)
    def begin(self, ranked: bool, limits: TenantPolicy) -> None:
        header = "p" if ranked else ""
        policy = SelectionPolicy(
            fairness_by="key", priority_header=header, priority_ageing_ms=AGEING_MS
        )
        self.ledger = TenantLedger()
        self.queue = FairQueue(policy, TenantPolicy(weights=WEIGHTS), self.ledger)
        self.ranked, self.now_ms, self.end_offset = ranked, 1000, 0
        self.buckets = {name: Bucket() for name in (b"", b"a", b"b", b"c", b"d")}
        self.limits_change(limits)
        self.records: dict[int, Twin] = {}
        self.tags: dict[bytes, float] = {}
        self.virtual_ms, self.followed_ms = 0.0, 0

    @rule(limits=LIMITS)
    def limits_change(self, limits: TenantPolicy) -> None:
        self.limits = limits
        for name, bucket in self.buckets.items():
            per_second = limits.max_per_second_of.get(name, limits.max_per_second)
            bucket.configure(per_second, max(1.0, limits.burst or per_second), self.now_ms)
        self.ledger.configure(limits, 1, 1, self.now_ms)
        self.queue.configure(limits)

    def count_room(self, name: bytes, now_ms: int) -> int:
        """Return how many records a tenant may get."""
        if name in self.limits.paused:
            return 0
        limit = self.limits.max_in_flight_of.get(name, self.limits.max_in_flight)
        held = sum(r.name == name and r.since_ms is not None for r in self.records.values())
        room = max(0, int(limit) - held) if limit else len(self.records)
        bucket = self.buckets[name]
        if bucket.per_ms:
            bucket.fill(now_ms)
            room = min(room, int(bucket.tokens))
        return room

    def weight(self, name: bytes) -> float:
        return WEIGHTS.get(name, 1.0)

    def level(self, name: bytes) -> float:
        held = [r for r in self.records.values() if r.name == name and r.since_ms is not None]
        return len(held) / self.weight(name)

    def rank(self, offset: int) -> tuple[int, int]:
        record = self.records[offset]
        assert record.ready_ms is not None
        ready_ms = record.ready_ms + (9 - record.priority) * AGEING_MS if self.ranked else 0
        return ready_ms, offset

    def follow(self) -> None:
        """Let the virtual time follow the clock: all that have records share alike."""
        held = sum(r.since_ms is not None for r in self.records.values())
        weights = sum(self.weight(name) for name in {r.name for r in self.records.values()})
        if held:
            self.virtual_ms += (self.now_ms - self.followed_ms) * held / weights
        self.followed_ms = self.now_ms

    def make_ready(self, offset: int) -> None:
        record = self.records[offset]
        waiting = [r for r in self.records.values() if r.name == record.name and r.ready_ms]
        if not waiting:
            self.tags[record.name] = max(self.tags.get(record.name, 0.0), self.virtual_ms)
        record.ready_ms = self.now_ms
        self.queue.push(offset, self.now_ms)

    def settle(self, offset: int) -> None:
        """Charge the time that a member had a record."""
        self.follow()
        record = self.records[offset]
        assert record.since_ms is not None
        weight = self.weight(record.name)
        used = self.tags[record.name] + (self.now_ms - record.since_ms) / weight
        self.tags[record.name] = min(used, self.virtual_ms + DEBT_MAX_MS / weight)
        record.since_ms = None

    def held(self) -> list[int]:
        return [o for o, r in self.records.items() if r.since_ms is not None]

    @rule(
        name=NAMES,
        priorities=st.lists(st.integers(0, 9), min_size=1, max_size=5),
        ready=st.sampled_from([True, True, False]),
    )
    def records_come(self, name: bytes, priorities: list[int], ready: bool) -> None:
        for priority in priorities:
            offset, self.end_offset = self.end_offset, self.end_offset + 1
            self.queue.add(offset, priority, name)
            self.records[offset] = Twin(name, priority if self.ranked else 0, None)
            if ready:
                self.make_ready(offset)

    @rule(pick=st.integers(0, 1000))
    def a_delay_ends(self, pick: int) -> None:
        idle = [o for o, r in self.records.items() if r.ready_ms is None and r.since_ms is None]
        if idle:
            self.make_ready(idle[pick % len(idle)])

    @rule(count=st.integers(1, 6))
    def members_fetch(self, count: int) -> None:
        self.queue.begin(self.now_ms)
        self.follow()
        for _ in range(count):
            self.check_next()

    def check_next(self) -> None:
        available = Counter(r.name for r in self.records.values() if r.ready_ms is not None)
        rooms = {name: self.count_room(name, self.now_ms) for name in available}
        behind = sum(max(0, count - rooms[name]) for name, count in available.items())
        assert self.queue.behind_limits == behind
        assert self.queue.count_behind_limits([self.now_ms]) == [behind]
        ready = [o for o, r in self.records.items() if r.ready_ms is not None and rooms[r.name]]
        assert self.queue.has_ready == bool(ready)
        expected = min(ready, key=self.find_order, default=None)
        assert self.queue.pop() == expected
        if expected is None:
            self.check_next_time(available)
            return
        self.queue.take(expected, self.now_ms)
        record = self.records[expected]
        self.buckets[record.name].tokens -= 1
        record.ready_ms, record.since_ms = None, self.now_ms
        self.tags[record.name] += RECORD_COST_MS / self.weight(record.name)
        self.virtual_ms = max(self.virtual_ms, self.tags[record.name])

    def check_next_time(self, available: Iterable[bytes]) -> None:
        """Check that somebody wakes the queue when a rate allows another record."""
        buckets = copy.deepcopy(self.buckets)
        later = [self.now_ms + ms for ms in range(1, 33)]
        free_ms = [t for t in later if any(self.count_room(name, t) for name in available)]
        self.buckets = buckets
        next_ms = self.queue.next_free_ms
        assert not free_ms or (next_ms is not None and next_ms <= free_ms[0])

    def find_order(self, offset: int) -> tuple[float, float, tuple[int, int]]:
        name = self.records[offset].name
        others = [o for o, r in self.records.items() if r.name == name and r.ready_ms is not None]
        urgent = min(map(self.rank, others))
        # Only the most urgent of a tenant may come; the others order after all.
        rank = self.rank(offset)
        late = (1 << 62, offset)
        return self.level(name), self.tags[name], rank if rank == urgent else late

    @precondition(lambda self: self.held())
    @rule(picks=st.lists(st.integers(0, 1000), min_size=1, max_size=4))
    def members_finish(self, picks: list[int]) -> None:
        done = list(dict.fromkeys(self.held()[p % len(self.held())] for p in picks))
        for offset in done:
            self.settle(offset)
        for offset in done:
            del self.records[offset]
        self.queue.end(done, self.now_ms)

    @precondition(lambda self: self.held())
    @rule(pick=st.integers(0, 1000), at_once=st.booleans())
    def a_member_releases(self, pick: int, at_once: bool) -> None:
        offset = self.held()[pick % len(self.held())]
        self.settle(offset)
        self.queue.release([offset], self.now_ms)
        if at_once:
            self.make_ready(offset)

    @rule(ms=st.sampled_from([1, 30, 500, 100_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @invariant()
    def numbers_agree(self) -> None:
        if hasattr(self, "queue"):
            ready = {o for o, r in self.records.items() if r.ready_ms is not None}
            assert len(self.queue) == len(ready)
            assert self.queue.get_offsets() & self.records.keys() == ready


TestFairQueue = FairQueueMachine.TestCase
TestFairQueue.settings = settings(
    max_examples=scale_examples(150), stateful_step_count=60, deadline=None
)
