"""Limits on what the tenants of a group use, counted for all share partitions of a topic here.

A broker has one ledger for each group and topic, which the queues of its share partitions
(`fair_queue`) share. So a limit is exact on a broker, wherever the records of a tenant are, and
what one share partition gives back another may use at once. Brokers do not tell each other. Each
enforces the part of a limit that the partitions it leads have of the topic's, and at least one
record. So the parts add up to the limit, and a record for each broker at most if they do not.

A rate is a bucket of tokens: a delivery takes one, also a repeated one. It begins full, also on a
new leader.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.coordinator.share.tenants import ALL_EQUAL, TenantPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The time when a tenant may go on that waits for no time.
NO_TIME = math.inf


class TenantUse:
    """What a tenant uses, and may use."""

    __slots__ = (
        "_burst",
        "_filled_ms",
        "_paused",
        "_per_ms",
        "_tokens",
        "in_flight",
        "max_in_flight",
        "queues",
        "waiting",
        "wanted",
    )

    def __init__(self) -> None:
        #: Records that members hold.
        self.in_flight = 0
        #: The most of these; 0 for no limit.
        self.max_in_flight = 0
        #: Queues with records of the tenant, by number, and what to call in those that wait.
        self.queues = 0
        self.waiting: dict[int, Callable[[], None]] = {}
        #: By queue, if there are several: its available records when they were counted last.
        self.wanted: dict[int, int] = {}
        self._per_ms = self._burst = self._tokens = 0.0
        self._filled_ms = 0
        self._paused = False

    def configure(
        self, name: bytes, policy: TenantPolicy, part: tuple[int, int], now_ms: int
    ) -> None:
        """Apply the part of the group's limits that this broker has: the partitions of the topic
        that it leads, and all of them."""
        led, partitions = part
        self._fill(now_ms)
        before, was_limited = self._burst, self._per_ms > 0
        limit = policy.max_in_flight_of.get(name, policy.max_in_flight)
        self.max_in_flight = max(1, int(limit * led / partitions)) if limit else 0
        per_second = policy.max_per_second_of.get(name, policy.max_per_second)
        self._per_ms = per_second * led / partitions / 1000
        self._burst = max(1.0, (policy.burst or per_second) * led / partitions)
        if was_limited:
            self._tokens = min(self._tokens + max(0.0, self._burst - before), self._burst)
        else:
            self._tokens = self._burst
        self._paused = name in policy.paused

    def find_free_ms(self, now_ms: int) -> float:
        """Return when the tenant may get a record: 0 for now, `NO_TIME` if no time is known."""
        if self._paused or 0 < self.max_in_flight <= self.in_flight:
            return NO_TIME
        if not self._per_ms:
            return 0
        self._fill(now_ms)
        return 0 if self._tokens >= 1 else now_ms + math.ceil((1 - self._tokens) / self._per_ms)

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
        room = max(0, self.max_in_flight - self.in_flight) if self.max_in_flight else math.inf
        if self._paused or not self._per_ms:
            return [0 if self._paused else room] * len(times_ms)
        self._fill(times_ms[0])
        tokens = [self._tokens + self._per_ms * (time_ms - times_ms[0]) for time_ms in times_ms]
        return [min(room, math.floor(number)) for number in tokens]

    def take(self) -> None:
        """Note a delivery."""
        self.in_flight += 1
        self._tokens -= 1

    def put_back(self) -> None:
        """Note that a delivery did not happen."""
        self._tokens = min(self._tokens + 1, self._burst)
        self.give_back()

    def give_back(self) -> None:
        """Note that a member has a record no more."""
        self.in_flight -= 1
        if self.waiting:
            waiting, self.waiting = self.waiting, {}
            for go_on in waiting.values():
                go_on()

    def drop_queue(self, queue: int) -> None:
        """Note that a queue has no records of the tenant any more."""
        self.queues -= 1
        self.waiting.pop(queue, None)
        self.wanted.pop(queue, None)

    def is_needed(self, now_ms: int) -> bool:
        """Whether forgetting it would grant something: a new bucket is full."""
        self._fill(now_ms)
        return bool(self.queues or self.in_flight or (self._per_ms and self._tokens < self._burst))

    def _fill(self, now_ms: int) -> None:
        """Add the tokens of the time that has passed."""
        if now_ms > self._filled_ms:
            added = (now_ms - self._filled_ms) * self._per_ms
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
        use = self._uses.get(name)
        if use is None:
            if len(self._uses) >= self._uses_max:
                self._uses = {n: u for n, u in self._uses.items() if u.is_needed(now_ms)}
                self._uses_max = max(1000, 2 * len(self._uses))
            use = self._uses[name] = TenantUse()
            use.configure(name, self._policy, self._part, now_ms)
        use.queues += 1
        return use
