"""The available records of a group that is fair between tenants: a small hierarchy.

The next record is that of the tenant with the least use in progress, and of this tenant the most
urgent one: tenant, then priority, then key, then record. A tenant's heap is that of
`available_queue`, and holds the first record of each free key.

Tenants are ordered by two numbers:

* Its level: the records that members hold of it, divided by its weight. So a free worker goes to
  the tenant that has the fewest workers, as with processor sharing.
* Its tag, among tenants of the same level: the lock time that it has used, divided by its weight,
  and a millisecond for each record, since a record may be done at once.

A tag is only compared with other tags. `_reach` is the virtual time of fair queueing: how far each
tenant would be if all that have records shared the workers equally. A tenant that comes with its
first record begins there, so an idle tenant saves nothing up, and use before it does not count any
more. No tag is ever more than `DEBT_MAX_MS` beyond it. So a tenant waits at most until each other
one has used that time once, however many new tenants come.

A choice of many records is made of quanta, each a part of it. One quantum goes to the tenants of
which members hold nothing, a record each, in turn: such a tenant gets one, and then comes last. The
rest is chosen in rounds. The next tenants with equally many quanta take part, their records are
chosen in the order of the log, and each tenant gets what completes a quantum. So a tenant may be
ahead of others by a quantum, and the records lie near each other. A tenant of which members hold
nothing waits at most until each other such tenant has got one record, a quantum of them a fetch.

The first entry of a tenant is never outdated. So a record that was completed while it waited takes
nothing of a tenant's quantum, and a tenant that has only such records is idle.

Numbers in `_heap` change only with events, never with the time alone. A tenant has at most one
valid entry there, the one with its `stamp`. A tenant at a limit (`tenant_limits`) has none: it
comes back when the limit allows it, or at a time that `_parked` has.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from shoal.coordinator.share.available_queue import OFFSET_BITS, OFFSET_MASK, AvailableQueue
from shoal.coordinator.share.record_facts import PRIORITY_MAX
from shoal.coordinator.share.tenant_limits import NO_TIME
from shoal.coordinator.share.tenants import NO_TENANT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shoal.coordinator.share.batches import Batches
    from shoal.coordinator.share.settings import SelectionPolicy
    from shoal.coordinator.share.tenant_limits import TenantLedger, TenantUse
    from shoal.coordinator.share.tenants import TenantPolicy
    from shoal.record.batch import Buffer

#: The use of a record, in ms, beside the time that a member holds it.
RECORD_COST_MS = 1.0
#: How far use counts: a tenant that used more is treated as if it had used this more than others.
DEBT_MAX_MS = 60_000.0
#: A choice of many records is made of quanta of this part of it. The larger these are, the nearer
#: to each other are its records in the log, and the more idle tenants get a turn.
QUANTA = 8
#: Tenants in a round for each record of a choice. With 1, a round has the tenants with the fewest
#: records at members, whose records lie far from each other.
ROUND_TENANTS = 4
#: A choice of fewer records compares tenants for each.
QUANTA_RECORDS_MIN = 64
#: The memory that a record takes at most, of one tenant among many or alone.
RECORD_BYTES_MAX = 200
#: Entries in the heap of tenants that are not valid any more, up to which it is not built anew.
_STALE_MAX = 64
#: Tenants without records are looked for, to be forgotten, above this many tenants.
IDLE_MIN = 1000
#: Tenants without records that are kept because of their use.
IDLE_KEPT_MAX = 10_000
#: Tenants that one scrape of metrics looks at: a few milliseconds of work.
TENANTS_VISITED_MAX = 20_000


class Tenant:
    """One tenant of a share partition."""

    __slots__ = (
        "entries",
        "in_flight",
        "is_back",
        "name",
        "parked_ms",
        "records",
        "stamp",
        "tag",
        "use",
        "weight",
    )

    def __init__(self, name: bytes, weight: float, tag: float) -> None:
        self.name = name
        self.weight = weight
        #: A heap, as `AvailableQueue.entries`, whose first entry is never outdated.
        self.entries: list[int] = []
        #: Records that members hold.
        self.in_flight = 0
        #: Weighted use.
        self.tag = tag
        #: Whether a chosen record comes back that no member got: the tenant was not idle.
        self.is_back = False
        #: The number of its entry in the heap of tenants; 0 for none.
        self.stamp = 0
        #: Incomplete records that were scanned.
        self.records = 0
        #: What it uses of its limits on this broker; None if the group has no limits.
        self.use: TenantUse | None = None
        #: When it comes back from `_parked`; 0 if it is not there.
        self.parked_ms = 0.0

    def count_behind(self, records: int, times_ms: Sequence[int]) -> list[int]:
        """Return how many of its available records wait behind its limit until each time, of which
        the first is now."""
        use = self.use
        if use is not None and records:
            return [records - n for n in use.count_allowed(id(self), records, times_ms)]
        if use is not None:
            use.wanted.pop(id(self), None)
        return [0] * len(times_ms)


class _Waiter:
    """A tenant of a queue that waits behind a limit."""

    __slots__ = ("_queue", "_tenant")

    def __init__(self, queue: FairQueue, tenant: Tenant) -> None:
        self._queue = queue
        self._tenant = tenant

    @property
    def records(self) -> int:
        return len(self._tenant.entries)

    def go_on(self) -> None:
        self._queue.go_on(self._tenant)


class FairQueue(AvailableQueue):
    """The available records of one share partition by tenant. `entries` stays empty."""

    __slots__ = (
        "_active_weight",
        "_heap",
        "_idle_max",
        "_idle_turns",
        "_in_flight",
        "_is_idle_turn",
        "_ledger",
        "_limits_version",
        "_now_ms",
        "_parked",
        "_policy",
        "_quantum",
        "_reach",
        "_round",
        "_round_max",
        "_since_ms",
        "_size",
        "_stamps",
        "_tenant_of",
        "_walk",
        "_walked_behind",
        "_walking_behind",
        "tenants",
        "wake",
    )

    def __init__(
        self, policy: SelectionPolicy, tenants: TenantPolicy, ledger: TenantLedger
    ) -> None:
        super().__init__(policy)
        self._policy = tenants
        self._ledger = ledger
        self._limits_version = ledger.version
        ledger.queues += 1
        #: Called when another share partition gave back what a tenant waits for here.
        self.wake: Callable[[], None] = _do_nothing
        #: The tenants of a round, the most urgent entry first, with the records that each may get.
        self._round: list[tuple[int, int, Tenant]] = []
        #: The records of a quantum by weight 1, 0 without rounds, and the most tenants of a round.
        self._quantum = self._round_max = 0
        #: Records that idle tenants may still get before the rounds, and whether the last one that
        #: `pop` returned is such a record.
        self._idle_turns, self._is_idle_turn = 0, False
        #: Tenants with records, or with use that still counts, by name.
        self.tenants: dict[bytes, Tenant] = {}
        #: By offset, for all incomplete records that were scanned.
        self._tenant_of: dict[int, Tenant] = {}
        #: When a member got a record, by offset.
        self._since_ms: dict[int, int] = {}
        #: Level, tag, most urgent entry, stamp, tenant.
        self._heap: list[tuple[float, float, int, int, Tenant]] = []
        #: Tenants that wait for a time, by that time.
        self._parked: list[tuple[float, int, Tenant]] = []
        self._stamps = self._size = self._in_flight = self._now_ms = 0
        #: The weights of all tenants with records.
        self._active_weight = self._reach = 0.0
        self._idle_max = IDLE_MIN
        #: The tenants of a walk that counts records behind limits, what it has counted, and what
        #: the last one has.
        self._walk: Iterator[Tenant] | None = None
        self._walking_behind = 0
        self._walked_behind: int | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def has_ready(self) -> bool:
        return self._find_next() is not None

    def get_offsets(self) -> set[int]:
        if self._ranked:
            return set(self._entry_of)
        return {entry for tenant in self.tenants.values() for entry in tenant.entries}

    @property
    def is_compiled(self) -> bool:
        """Whether the records are in a queue in C (`compiled_fair_queue`)."""
        return False

    @property
    def size_bytes(self) -> int:
        """An upper bound of the memory of records and tenants."""
        return RECORD_BYTES_MAX * len(self._tenant_of)

    def list_names(self) -> list[bytes]:
        """Return the names of the tenants that are known."""
        return list(self.tenants)

    def configure(self, policy: TenantPolicy) -> None:
        """Follow changed configs."""
        ledger = self._ledger
        if policy == self._policy and ledger.version == self._limits_version:
            return
        self._policy, self._limits_version = policy, ledger.version
        for tenant in self.tenants.values():
            weight = policy.weights.get(tenant.name, 1.0)
            if ledger.is_limited and tenant.records and tenant.use is None:
                self._open_use(tenant)
            # A valid entry stays in its place, and its limit is looked at when it is the first.
            if not tenant.stamp or weight != tenant.weight:
                tenant.weight = weight
                self._offer(tenant)
        self._active_weight = sum(x.weight for x in self.tenants.values() if x.records)

    def close(self) -> None:
        """Give back all use of limits: the share partition is dropped, or begins anew."""
        for tenant in self.tenants.values():
            tenant.entries = []
            use, tenant.use = tenant.use, None
            if use is not None:
                use.drop_queue(id(tenant))
                for _ in range(tenant.in_flight):
                    use.give_back()
        self._ledger.queues -= 1

    # Limits.

    @property
    def next_free_ms(self) -> int | None:
        """When the next tenant may go on that waits for a time (`share.tenant.max.per.second`)."""
        return int(self._parked[0][0]) if self._parked else None

    def unpark(self, now_ms: int) -> bool:
        """Let tenants go on whose time has come. Return whether there were any."""
        parked, has_ended = self._parked, False
        while parked and parked[0][0] <= now_ms:
            tenant = heapq.heappop(parked)[2]
            tenant.parked_ms = 0.0
            self._now_ms = max(now_ms, self._now_ms)
            self._offer(tenant)
            has_ended = True
        return has_ended

    def may_take(self, offset: int) -> bool:
        use = self._tenant_of[offset].use
        return use is None or not use.find_free_ms(self._now_ms)

    def is_limited(self, offset: int) -> bool:
        """Whether a record waits behind its tenant's limit."""
        tenant = self._tenant_of.get(offset)
        use = None if tenant is None else tenant.use
        return use is not None and use.find_free_ms(self._now_ms) > 0

    @property
    def has_limits(self) -> bool:
        """Whether any tenant has a limit."""
        return self._ledger.is_limited

    @property
    def behind_limits(self) -> int:
        """The number of available records that wait behind their tenant's limit."""
        return self._count_behind_now(self._now_ms) if self.has_limits else 0

    def count_behind_limits(self, times_ms: Sequence[int]) -> list[int]:
        """Return how many available records wait behind their tenant's limit until each time, of
        which the first is now. Of many tenants, that is the number of now."""
        if not self.has_limits:
            return [0] * len(times_ms)
        if len(self.tenants) * len(times_ms) > TENANTS_VISITED_MAX:
            return [self._count_behind_now(times_ms[0])] * len(times_ms)
        counts = [x.count_behind(len(x.entries), times_ms) for x in self.tenants.values()]
        return [sum(column) for column in zip(*counts, strict=True)] or [0] * len(times_ms)

    def iterate_work(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name, the records at members and the available records of tenants that have
        any; at most `TENANTS_VISITED_MAX` tenants are looked at."""
        for tenant in islice(self.tenants.values(), TENANTS_VISITED_MAX):
            if tenant.in_flight or tenant.entries:
                name = tenant.name.decode(errors="replace")
                yield name, tenant.in_flight, len(tenant.entries)

    def count_deliverable(self, offsets: Iterable[int] | None) -> int:
        if not self._ledger.is_limited:
            return len(self) if offsets is None else len(list(offsets))
        if offsets is None:
            return max(0, self._size - self._count_behind_now(self._now_ms))
        ready = Counter(self._tenant_of[offset] for offset in offsets)
        now_ms = (self._now_ms,)
        return sum(count - x.count_behind(count, now_ms)[0] for x, count in ready.items())

    def _count_behind_now(self, now_ms: int) -> int:
        """Return how many available records wait behind limits. A call looks at
        `TENANTS_VISITED_MAX` tenants at most. Of more tenants, it has the number of the last walk
        through all of them, or of the first walk so far."""
        times_ms = (now_ms,)
        if len(self.tenants) <= TENANTS_VISITED_MAX:
            self._walk, self._walked_behind = None, None
            return sum(x.count_behind(len(x.entries), times_ms)[0] for x in self.tenants.values())
        if self._walk is None:
            self._walk, self._walking_behind = iter(list(self.tenants.values())), 0
        visited = list(islice(self._walk, TENANTS_VISITED_MAX))
        self._walking_behind += sum(x.count_behind(len(x.entries), times_ms)[0] for x in visited)
        if len(visited) < TENANTS_VISITED_MAX:
            self._walk, self._walked_behind = None, self._walking_behind
        return self._walking_behind if self._walked_behind is None else self._walked_behind

    def _open_use(self, tenant: Tenant) -> None:
        use = tenant.use = self._ledger.open(tenant.name, self._now_ms)
        use.in_flight += tenant.in_flight

    def _close_use(self, tenant: Tenant) -> None:
        """The tenant has no records here any more."""
        use, tenant.use = tenant.use, None
        if use is not None:
            use.drop_queue(id(tenant))

    def _is_parked(self, tenant: Tenant, use: TenantUse) -> bool:
        """Whether a limit lets a tenant wait. Then something brings it back."""
        free_ms = use.find_free_ms(self._now_ms)
        if not free_ms:
            return False
        tenant.stamp = 0
        use.note_waiting(id(tenant), _Waiter(self, tenant), free_ms, self._now_ms)
        self._ledger.note_waiting(tenant.name)
        if free_ms != NO_TIME and (not tenant.parked_ms or free_ms < tenant.parked_ms):
            tenant.parked_ms = free_ms
            self._stamps += 1
            heapq.heappush(self._parked, (free_ms, self._stamps, tenant))
        return True

    def go_on(self, tenant: Tenant) -> None:
        """Offer a tenant's records again: one came back, perhaps in another share partition, or
        another broker has lent some of its part."""
        if tenant.entries:
            self._offer(tenant)
            self.wake()

    # Records come and go.

    def add(self, offset: int, priority: int, tenant_name: bytes) -> None:
        super().add(offset, priority, tenant_name)
        tenant = self.tenants.get(tenant_name)
        if tenant is None:
            weight = self._policy.weights.get(tenant_name, 1.0)
            tenant = self.tenants[tenant_name] = Tenant(tenant_name, weight, self._reach)
        if not tenant.records:
            self._active_weight += tenant.weight
            if self._ledger.is_limited:
                self._open_use(tenant)
        tenant.records += 1
        self._tenant_of[offset] = tenant
        if len(self.tenants) > self._idle_max:
            self._forget_idle()

    def put_new(self, _batches: Batches, _first: int, _budget: int) -> int:
        """Add the records from `first` on of the first batches that end within the budget, as new
        ones that are available. Return the number of batches; 0 if there is no loop for it."""
        return 0

    def put_body(
        self, _body: Buffer, _begin: int, _end: int, _base: int, _count: int, _first: int
    ) -> bool:
        """Add the records from `first` on of a batch without holes, whose records lie in
        `body[begin:end]`. Return False, and change nothing, if there is no loop for it."""
        return False

    def push(self, offset: int, now_ms: int) -> None:
        if not self._ranked:
            self._insert(offset, offset)
        elif offset not in self._entry_of:
            steps = PRIORITY_MAX - self.priority_of.get(offset, 0)
            self._push(offset, now_ms + steps * self._ageing_ms << OFFSET_BITS | offset)

    def _push(self, offset: int, entry: int) -> None:
        self._entry_of[offset] = entry
        self._insert(offset, entry)

    def _insert(self, offset: int, entry: int) -> None:
        tenant = self._tenant_of.get(offset)
        if tenant is None:
            self.add(offset, 0, NO_TENANT)
            tenant = self._tenant_of[offset]
        heapq.heappush(tenant.entries, entry)
        self._size += 1
        if tenant.entries[0] == entry:
            if len(tenant.entries) == 1 and not tenant.is_back:
                tenant.tag = max(tenant.tag, self._reach)
            self._offer(tenant)
        tenant.is_back = False

    def end(self, offsets: Iterable[int], now_ms: int) -> None:
        super().end(offsets, now_ms)
        self._advance(now_ms)
        served: dict[Tenant, None] = {}
        touched: dict[Tenant, None] = {}
        for offset in offsets:
            tenant = self._tenant_of.pop(offset, None)
            if tenant is not None:
                touched[tenant] = None
                self._charge(tenant, offset, now_ms, served)
                tenant.records -= 1
                if not tenant.records:
                    self._active_weight -= tenant.weight
                    self._close_use(tenant)
        for tenant in touched:
            if self._drop_outdated(tenant) or tenant in served:
                self._offer(tenant)

    def forget(self, offset: int) -> None:
        super().forget(offset)
        tenant = self._tenant_of.get(offset)
        if tenant is not None and self._drop_outdated(tenant):
            self._offer(tenant)

    def _drop_outdated(self, tenant: Tenant) -> bool:
        """Remove the first entries as far as they are outdated. Return whether there were any."""
        entries, before = tenant.entries, self._size
        while entries and self._is_outdated(entries[0]):
            heapq.heappop(entries)
            self._size -= 1
        return self._size < before

    def _is_outdated(self, entry: int) -> bool:
        if self._ranked:
            return self._entry_of.get(entry & OFFSET_MASK) != entry
        return entry not in self._tenant_of

    def drop_below(self, start: int, now_ms: int) -> None:
        super().drop_below(start, now_ms)
        self.end([offset for offset in self._tenant_of if offset < start], now_ms)

    # Members get records and give them back.

    def begin(self, now_ms: int, records: int = 1) -> None:
        super().begin(now_ms)
        self._advance(now_ms)
        self.unpark(now_ms)
        self._round, self._round_max = [], ROUND_TENANTS * records
        self._quantum = self._idle_turns = find_quantum(records)

    def _advance(self, now_ms: int) -> None:
        """Let the virtual time follow the clock."""
        if self._in_flight and now_ms > self._now_ms and self._active_weight > 0:
            self._reach += (now_ms - self._now_ms) * self._in_flight / self._active_weight
        self._now_ms = max(now_ms, self._now_ms)

    def pop(self) -> int | None:
        tenant = self._find_turn()
        if tenant is None:
            return None
        offset = heapq.heappop(tenant.entries) & OFFSET_MASK
        self._size -= 1
        if self._ranked:
            self._taken[offset] = self._entry_of.pop(offset)
        self._drop_outdated(tenant)
        if not tenant.entries:
            tenant.stamp = 0
        return offset

    def take(self, offset: int, now_ms: int) -> None:
        tenant = self._tenant_of[offset]
        if self._is_idle_turn:
            tenant.tag, self._is_idle_turn = max(tenant.tag, self._reach), False
        tenant.tag += RECORD_COST_MS / tenant.weight
        self._reach = max(self._reach, tenant.tag)
        tenant.in_flight += 1
        self._in_flight += 1
        self._since_ms[offset] = now_ms
        if tenant.use is not None:
            tenant.use.take()
        self._offer(tenant)

    def hold(self, offset: int, now_ms: int) -> None:
        if offset not in self._since_ms:
            self._since_ms[offset] = now_ms
            tenant = self._tenant_of[offset]
            tenant.in_flight += 1
            self._in_flight += 1
            if tenant.use is not None:
                tenant.use.in_flight += 1
            self._offer(tenant)

    def put_back(self, offset: int, now_ms: int) -> None:
        self._tenant_of[offset].is_back = True
        super().put_back(offset, now_ms)

    def restore(self, offset: int) -> None:
        tenant = self._tenant_of.get(offset)
        if tenant is not None and self._since_ms.pop(offset, None) is not None:
            tenant.in_flight -= 1
            self._in_flight -= 1
            tenant.tag -= RECORD_COST_MS / tenant.weight
            tenant.is_back = True
            if tenant.use is not None:
                tenant.use.put_back()
            self._offer(tenant)
        super().restore(offset)

    def release(self, offsets: Iterable[int], now_ms: int) -> None:
        self._advance(now_ms)
        served: dict[Tenant, None] = {}
        for offset in offsets:
            tenant = self._tenant_of.get(offset)
            if tenant is not None:
                self._charge(tenant, offset, now_ms, served)
        for tenant in served:
            self._offer(tenant)

    def _charge(self, tenant: Tenant, offset: int, now_ms: int, served: dict[Tenant, None]) -> None:
        """Add the time that a member had a record, if one had it, to its tenant's use."""
        since_ms = self._since_ms.pop(offset, None)
        if since_ms is not None:
            tenant.in_flight -= 1
            self._in_flight -= 1
            used_ms = max(0, now_ms - since_ms)
            limit = self._reach + DEBT_MAX_MS / tenant.weight
            tenant.tag = min(tenant.tag + used_ms / tenant.weight, limit)
            served[tenant] = None
            if tenant.use is not None:
                tenant.use.give_back()

    # The heap of tenants.

    def _offer(self, tenant: Tenant) -> None:
        """Give a tenant its place in the heap."""
        if not tenant.entries:
            tenant.stamp = 0
            return
        if tenant.use is not None and self._is_parked(tenant, tenant.use):
            return
        self._stamps += 1
        tenant.stamp = self._stamps
        heap = self._heap
        level, head = tenant.in_flight / tenant.weight, tenant.entries[0]
        entry = (level, tenant.tag, head, tenant.stamp, tenant)
        if heap and heap[0][4] is tenant:
            heapq.heapreplace(heap, entry)
            return
        heapq.heappush(heap, entry)
        if len(heap) > 2 * len(self.tenants) + _STALE_MAX:
            self._heap = [entry for entry in heap if entry[3] == entry[4].stamp]
            heapq.heapify(self._heap)

    def _find_turn(self) -> Tenant | None:
        """Return the tenant whose record comes next, or None without any."""
        self._is_idle_turn = self._idle_turns > 0
        if not self._quantum or self._is_idle_turn:
            tenant = self._find_next()
            if not self._quantum:
                return tenant
            if tenant is not None and not tenant.in_flight:
                self._idle_turns -= 1
                return tenant
            self._idle_turns, self._is_idle_turn = 0, False
        while True:
            if not self._round and not self._begin_round():
                return None
            head, left, tenant = heapq.heappop(self._round)
            if not tenant.entries:
                continue
            if tenant.entries[0] != head:
                heapq.heappush(self._round, (tenant.entries[0], left, tenant))
            elif tenant.use is None or not self._is_parked(tenant, tenant.use):
                if left > 1:
                    # Its next entry is known only when this one is gone.
                    heapq.heappush(self._round, (head, left - 1, tenant))
                return tenant

    def _begin_round(self) -> bool:
        """Begin a round with the next tenants. Return whether there are any."""
        first = self._find_next()
        if first is None:
            return False
        quanta = self._count_quanta(first)
        entries: list[tuple[float, float, int, int, Tenant]] = []
        while len(entries) < self._round_max:
            tenant = self._find_next()
            if tenant is None or self._count_quanta(tenant) != quanta:
                break
            entries.append(heapq.heappop(self._heap))
            left = int((quanta + 1) * self._quantum * tenant.weight) - tenant.in_flight
            self._round.append((tenant.entries[0], max(1, left), tenant))
        for entry in entries:
            heapq.heappush(self._heap, entry)
        heapq.heapify(self._round)
        return True

    def _count_quanta(self, tenant: Tenant) -> int:
        """Return the whole quanta of records that members hold."""
        return int(tenant.in_flight / (self._quantum * tenant.weight))

    def _find_next(self) -> Tenant | None:
        """Return the tenant whose turn it is, or None."""
        heap = self._heap
        while heap:
            entry = heap[0]
            tenant = entry[4]
            if entry[3] == tenant.stamp and (
                tenant.use is None or not self._is_parked(tenant, tenant.use)
            ):
                return tenant
            heapq.heappop(heap)
        return None

    def _forget_idle(self) -> None:
        """Forget tenants without records whose use does not count any more."""
        idle = [tenant for tenant in self.tenants.values() if not tenant.records]
        idle.sort(key=lambda tenant: tenant.tag)
        for index, tenant in enumerate(idle):
            if tenant.tag <= self._reach or len(idle) - index > IDLE_KEPT_MAX:
                del self.tenants[tenant.name]
        self._idle_max = max(IDLE_MIN, 2 * len(self.tenants))


def find_quantum(records: int) -> int:
    """Return the records of a quantum for weight 1 in a choice of `records`; 0 if it compares the
    tenants for each record."""
    return records // QUANTA if records >= QUANTA_RECORDS_MIN else 0


def _do_nothing() -> None:
    """Nobody waits for the queue."""
