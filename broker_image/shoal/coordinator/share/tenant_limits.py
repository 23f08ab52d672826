"""Limits on what the tenants of a group use, counted for all share partitions of a topic here.

A broker has one ledger for each group and topic, which the queues of its share partitions
(`fair_queue`) share. So a limit is exact on a broker, wherever the records of a tenant are, and
what one share partition gives back another may use at once. The part of a broker is that which the
partitions it leads have of the topic's, and at least one record. So the parts add up to the limit,
and a record for each broker at most if they do not. A broker lends others what it does not use of
its part (`tenant_loans`), which changes who has it, and never the sum.

A rate is a bucket of tokens: a delivery takes one, also a repeated one. It begins full, also on a
new leader. Its rate is lent, but not its burst.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from shoal.coordinator.share.tenants import ALL_EQUAL, TenantPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The time when a tenant may go on that waits for no time.
NO_TIME = math.inf
#: How long a tenant waits at most before it looks again at a rate that is lent.
_LENT_WAIT_MS = 1000
#: How long a tenant counts as one that waits after it did.
_RECENT_MS = 2000
#: Waiting tenants that a ledger keeps the names of; others come when some of these wait no more.
WAITING_MAX = 10_000


def count_part(limit: float, led: int, partitions: int) -> float:
    """Return how many records of a tenant a broker allows that leads so many of the topic's
    partitions; infinity without a limit."""
    return limit if limit == math.inf else max(1, int(limit * led / partitions))


class Waiter(Protocol):
    """A tenant of a queue that waits behind a limit."""

    @property
    def records(self) -> int:
        """Its available records."""

    def go_on(self) -> None:
        """Offer its records again."""


class TenantUse:
    """What a tenant uses, and may use."""

    __slots__ = (
        "_borrowed_per_ms",
        "_borrowed_until_ms",
        "_burst",
        "_filled_ms",
        "_paused",
        "_per_ms",
        "_tokens",
        "_woken",
        "borrowed",
        "deliveries",
        "in_flight",
        "lent",
        "lent_per_ms",
        "limit",
        "max_in_flight",
        "part",
        "part_per_ms",
        "queues",
        "rate_waits",
        "rate_waits_until_ms",
        "waited_ms",
        "waiting",
        "wanted",
    )

    def __init__(self) -> None:
        #: Records that members hold.
        self.in_flight = 0
        #: The most of these now; the limit of all brokers, and this broker's part. Infinity without
        #: a limit.
        self.max_in_flight = self.limit = self.part = math.inf
        #: Records of the part that others have, and of others' parts that may be used here.
        self.lent = self.borrowed = 0
        #: The part of the rate, and how much of it others have, in deliveries for a millisecond.
        self.part_per_ms = self.lent_per_ms = 0.0
        #: Deliveries so far.
        self.deliveries = 0
        #: Queues with records of the tenant, by number, and those that wait until a record comes
        #: back, and for the rate.
        self.queues = 0
        self.waiting: dict[int, Waiter] = {}
        self.rate_waits: dict[int, Waiter] | None = None
        #: When the tenant waited last, and until when it waits for the rate.
        self.waited_ms = self.rate_waits_until_ms = 0.0
        #: By queue, if there are several: its available records when they were counted last.
        self.wanted: dict[int, int] = {}
        self._per_ms = self._burst = self._tokens = 0.0
        self._borrowed_per_ms = self._borrowed_until_ms = 0.0
        self._filled_ms = 0
        self._paused = False
        #: Records that waited until something came back last.
        self._woken = 0

    def configure(
        self, name: bytes, policy: TenantPolicy, part: tuple[int, int], now_ms: int
    ) -> None:
        """Apply the part of the group's limits that this broker has: the partitions of the topic
        that it leads, and all of them."""
        led, partitions = part
        self._fill(now_ms)
        before, was_limited = self._burst, self.part_per_ms > 0
        self.limit = int(policy.max_in_flight_of.get(name, policy.max_in_flight)) or math.inf
        self.part = count_part(self.limit, led, partitions)
        per_second = policy.max_per_second_of.get(name, policy.max_per_second)
        self.part_per_ms = per_second * led / partitions / 1000
        self._burst = max(1.0, (policy.burst or per_second) * led / partitions)
        if was_limited:
            self._tokens = min(self._tokens + max(0.0, self._burst - before), self._burst)
        else:
            self._tokens = self._burst
        self._paused = name in policy.paused
        self._apply_loans()

    # Loans.

    def set_lent(self, records: int, per_ms: float, now_ms: int) -> None:
        """Note what other brokers have of this one's part: records, and deliveries for a
        millisecond."""
        self._fill(now_ms)
        self.lent, self.lent_per_ms = records, per_ms
        self._apply_loans()

    def set_borrowed(self, records: int, per_ms: float, until_ms: float, now_ms: int) -> None:
        """Note what this broker may use of others' parts, and until when of their rate."""
        self._fill(now_ms)
        self.borrowed = records
        self._borrowed_per_ms, self._borrowed_until_ms = per_ms, until_ms
        self._apply_loans()

    def _apply_loans(self) -> None:
        before = self.max_in_flight, self._per_ms
        self.max_in_flight = min(self.limit, self.part - self.lent + self.borrowed)
        self._per_ms = max(0.0, self.part_per_ms - self.lent_per_ms)
        if self.waiting and self.max_in_flight > before[0]:
            self._wake()
        if self.rate_waits and (self._borrowed_per_ms or self._per_ms > before[1]):
            rate_waits, self.rate_waits = self.rate_waits, None
            for waiter in rate_waits.values():
                waiter.go_on()

    def note_waiting(self, queue: int, waiter: Waiter, free_ms: float, now_ms: int) -> None:
        """Note that a queue's records wait until a time that `find_free_ms` returned."""
        self.waited_ms = now_ms
        if free_ms == NO_TIME:
            self.waiting[queue] = waiter
            return
        self.rate_waits_until_ms = free_ms
        if self.rate_waits is None:
            self.rate_waits = {}
        self.rate_waits[queue] = waiter

    def count_waiting(self) -> int:
        """Return how many records wait until members give records back."""
        return 0 if self._paused else sum(waiter.records for waiter in self.waiting.values())

    def count_needed(self, now_ms: int) -> int:
        """Return how many records wait, or waited a moment ago and may not be delivered yet."""
        is_recent = not self._paused and now_ms < self.waited_ms + _RECENT_MS
        return max(self.count_waiting(), self._woken if is_recent else 0)

    def is_waiting_for_rate(self, now_ms: int) -> bool:
        """Whether the tenant has more records than its rate here, now or a moment ago."""
        return not self._paused and now_ms < self.rate_waits_until_ms + _RECENT_MS

    # Deliveries.

    def find_free_ms(self, now_ms: int) -> float:
        """Return when the tenant may get a record: 0 for now, `NO_TIME` if no time is known."""
        if self._paused or self.max_in_flight <= self.in_flight:
            return NO_TIME
        if not self.part_per_ms:
            return 0
        self._fill(now_ms)
        if self._tokens >= 1:
            return 0
        per_ms = self._find_per_ms(now_ms)
        wait_ms = (1 - self._tokens) / per_ms if per_ms else math.inf
        return now_ms + math.ceil(min(wait_ms, _LENT_WAIT_MS) if self.lent_per_ms else wait_ms)

    def _find_per_ms(self, now_ms: int) -> float:
        """Return the rate at a time, in deliveries for a millisecond."""
        is_borrowed = now_ms < self._borrowed_until_ms
        return self._per_ms + (self._borrowed_per_ms if is_borrowed else 0.0)

    def count_allowed(self, queue: int, records: int, times_ms: Sequence[int]) -> list[int]:
        """Return how many of these available records of a queue it may deliver until each time, of
        which the first is now.

        Queues that were counted before take their part first, so that all together count what the
        tenant may get once.
        """
        if self.queues > 1:
            self.wanted[queue] = records
        before = 0
        for other, wanted in self.wanted.items():
            if other == queue:
                break
            before += wanted
        return [int(min(records, max(0, room - before))) for room in self._count_room(times_ms)]

    def _count_room(self, times_ms: Sequence[int]) -> list[float]:
        """Return how many records the tenant may get until each time."""
        room = max(0, self.max_in_flight - self.in_flight)
        if self._paused or not self.part_per_ms:
            return [0 if self._paused else room] * len(times_ms)
        self._fill(times_ms[0])
        per_ms = self._find_per_ms(times_ms[0])
        tokens = [self._tokens + per_ms * (time_ms - times_ms[0]) for time_ms in times_ms]
        return [min(room, math.floor(number)) for number in tokens]

    def take(self) -> None:
        """Note a delivery."""
        self.in_flight += 1
        self.deliveries += 1
        self._tokens -= 1

    def put_back(self) -> None:
        """Note that a delivery did not happen."""
        self._tokens = min(self._tokens + 1, self._burst)
        self.give_back()

    def give_back(self) -> None:
        """Note that a member has a record no more."""
        self.in_flight -= 1
        if self.waiting:
            self._wake()

    def _wake(self) -> None:
        self._woken = self.count_waiting()
        waiting, self.waiting = self.waiting, {}
        for waiter in waiting.values():
            waiter.go_on()

    def drop_queue(self, queue: int) -> None:
        """Note that a queue has no records of the tenant any more."""
        self.queues -= 1
        self.waiting.pop(queue, None)
        self.wanted.pop(queue, None)
        if self.rate_waits:
            self.rate_waits.pop(queue, None)

    def is_needed(self, now_ms: int) -> bool:
        """Whether forgetting it would grant something: a new bucket is full."""
        self._fill(now_ms)
        if self.queues or self.in_flight or self.lent or self.borrowed or self.lent_per_ms:
            return True
        return bool(self.part_per_ms and self._tokens < self._burst)

    def _fill(self, now_ms: int) -> None:
        """Add the tokens of the time that has passed."""
        if now_ms > self._filled_ms:
            added = (now_ms - self._filled_ms) * self._per_ms
            borrowed_ms = min(now_ms, self._borrowed_until_ms) - self._filled_ms
            if borrowed_ms > 0:
                added += borrowed_ms * self._borrowed_per_ms
            self._tokens = min(self._tokens + added, self._burst)
            self._filled_ms = now_ms


class TenantLedger:
    """The uses of the tenants of a group, in the share partitions of a topic that are led here."""

    def __init__(self) -> None:
        self._uses: dict[bytes, TenantUse] = {}
        self._policy: TenantPolicy = ALL_EQUAL
        self._part = (1, 1)
        self._uses_max = 1000
        #: Counts changes of the limits; queues compare it with what they have seen.
        self.version = 0
        #: Queues that share it.
        self.queues = 0
        #: Tenants that waited behind a limit on this broker, the longest first; empty if it leads
        #: all partitions. `tenant_loans` removes those that do not wait any more.
        self.waiting: dict[bytes, None] = {}

    @property
    def uses(self) -> Mapping[bytes, TenantUse]:
        """The uses of tenants by name."""
        return self._uses

    @property
    def part(self) -> tuple[int, int]:
        """The partitions of the topic that are led here, and all of them."""
        return self._part

    def note_waiting(self, name: bytes) -> None:
        """Note that a tenant waits behind a limit."""
        if self._part[0] != self._part[1] and len(self.waiting) < WAITING_MAX:
            self.waiting.setdefault(name)

    def configure(self, policy: TenantPolicy, led: int, partitions: int, now_ms: int) -> None:
        """Follow changed configs, and the number of partitions of the topic that are led here."""
        part = (led, partitions) if 0 < led <= partitions else (1, 1)
        if policy == self._policy and part == self._part:
            return
        self._policy, self._part = policy, part
        self.version += 1
        for name, use in self._uses.items():
            use.configure(name, policy, part, now_ms)

    @property
    def is_limited(self) -> bool:
        """Whether any tenant has a limit."""
        return self._policy.is_limited

    def open(self, name: bytes, now_ms: int) -> TenantUse:
        """Return the use of a tenant for another queue, until it calls `drop_queue`."""
        use = self.find_or_add(name, now_ms)
        use.queues += 1
        return use

    def find_or_add(self, name: bytes, now_ms: int) -> TenantUse:
        """Return the use of a tenant, which lasts while it is needed."""
        use = self._uses.get(name)
        if use is None:
            if len(self._uses) >= self._uses_max:
                self._uses = {n: u for n, u in self._uses.items() if u.is_needed(now_ms)}
                self._uses_max = max(1000, 2 * len(self._uses))
            use = self._uses[name] = TenantUse()
            use.configure(name, self._policy, self._part, now_ms)
        return use
