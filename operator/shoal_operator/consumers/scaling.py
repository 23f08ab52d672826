"""The number of consumers of a share group, from lag, processing rate and record locks. Pure.

1. Wanted = lag / targetLagPerReplica, rounded up, so any lag needs a consumer. Lag here means the
   records that are due within a consumer's start-up time (`scaling.startupTime`). It includes
   records in flight, so the scaler never removes the consumers of records in progress. It excludes
   records that a delay, a back-off or a limit of their tenant holds for longer, and records that
   wait for the redrive or skip of a dead letter. For slow consumers this is too few. The measured
   rate of one consumer gives a minimum: the number that drains the lag in `DRAIN_MS`. The rate is
   known once start offsets have moved while consumers ran.
2. The ceiling: at most `maxRecordLocks` records of a partition are in flight, so at most
   partitions x maxRecordLocks / recordsPerReplica consumers find work. This may exceed the number
   of partitions. Spark executors share one batch, so its size limits them too.
   With `targetRecordAge`, the backlog drains within that time, if it is shorter. While the oldest
   record is older, at least one and a half times the running consumers are wanted; more follow
   once these run.
3. Bounds: minReplicas and maxReplicas, or those of a schedule.
4. Scaling up is immediate. Scaling down stops at the highest number that was wanted during the
   cooldown, and reaches zero only after `scaleToZeroAfter` without lag.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

#: The time in which a backlog should drain; slow consumers get replicas for that.
DRAIN_MS = 300_000
#: The factor by which consumers are added while the oldest record is older than its target.
AGE_FACTOR = 1.5
#: The rate is a mean over `RATE_MS`; it is known after `RATE_MS_MIN` of work.
RATE_MS, RATE_MS_MIN = 120_000, 20_000
#: With fewer records, a Spark task is more overhead than work.
RECORDS_PER_TASK_MIN = 10


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """`spec.scaling` in numbers; times are milliseconds.

    `records_per_batch` is how many records all consumers together can hold, 0 for no limit.
    `target_age_ms` is 0 without a target. `schedules` are those that set the bounds now.
    """

    replicas_min: int = 0
    replicas_max: int = 10
    target_lag: int = 1000
    records_per_replica: int = 500
    records_per_batch: int = 0
    cooldown_ms: int = 60_000
    scale_to_zero_after_ms: int = 300_000
    target_age_ms: int = 0
    schedules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """The load of a share group. `lag`, `record_locks`, `blocked` and `not_due` count records.

    `blocked` records wait for the redrive or skip of a dead letter, and `not_due` records for a
    delay, a back-off or a limit of their tenant; `lag` contains neither. `start_offsets_sum` is the
    sum of the group's start offsets, which grows as records are settled; -1 means unknown.
    `running` consumers settle them. `age_ms` is the age of the oldest record of the lag, -1 if it
    is unknown.
    """

    lag: int
    partitions: int
    record_locks: int
    start_offsets_sum: int = -1
    running: int = 0
    blocked: int = 0
    not_due: int = 0
    age_ms: int = -1


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The number of replicas, the ceiling that record locks set, and the reason as a phrase."""

    replicas: int
    ceiling: int
    reason: str


def compute_ceiling(policy: ScalingPolicy, load: GroupLoad) -> int:
    """Return how many consumers can hold records at once."""
    records = load.partitions * load.record_locks
    if policy.records_per_batch:
        records = min(records, policy.records_per_batch)
    return max(1, records // policy.records_per_replica)


@dataclass(slots=True)
class ConsumerRate:
    """The measured rate of one consumer.

    `samples` are (time in ms, sum of start offsets, consumer-milliseconds), newest last.
    """

    samples: deque[tuple[int, int, int]] = field(default_factory=deque)

    def add(self, load: GroupLoad, now_ms: int) -> float:
        """Add a sample; return records per millisecond and consumer, 0 while it is unknown."""
        last = self.samples[-1] if self.samples else None
        # The measurement restarts without work or consumers, and after a reset of the group.
        was_reset = last is not None and load.start_offsets_sum < last[1]
        if load.start_offsets_sum < 0 or not load.lag or not load.running or was_reset:
            self.samples.clear()
            return 0.0
        spent = last[2] + load.running * (now_ms - last[0]) if last else 0
        self.samples.append((now_ms, load.start_offsets_sum, spent))
        while self.samples[0][0] < now_ms - RATE_MS:
            self.samples.popleft()
        first = self.samples[0]
        if now_ms - first[0] < RATE_MS_MIN or spent == first[2]:
            return 0.0
        return (load.start_offsets_sum - first[1]) / (spent - first[2])


@dataclass(slots=True)
class ScalingHistory:
    """Numbers wanted during the cooldown, newest last, the start of the idle time, and the rate."""

    numbers: deque[tuple[int, int]] = field(default_factory=deque)
    idle_since_ms: int | None = None
    rate: ConsumerRate = field(default_factory=ConsumerRate)

    @classmethod
    def from_restart(cls, current: int, idle_ms: int | None, now_ms: int) -> ScalingHistory:
        """Return the history after a restart: `current` consumers, idle for `idle_ms`."""
        idle_since_ms = None if idle_ms is None else now_ms - idle_ms
        return cls(deque([(now_ms, current)]), idle_since_ms)

    def record(self, number: int, load: GroupLoad, cooldown_ms: int, now_ms: int) -> None:
        """Record the number wanted now, and whether there is a lag."""
        self.numbers.append((now_ms, number))
        while self.numbers[0][0] < now_ms - cooldown_ms:
            self.numbers.popleft()
        if load.lag:
            self.idle_since_ms = None
        elif self.idle_since_ms is None:
            self.idle_since_ms = now_ms

    def get_highest(self) -> int:
        """Return the highest number wanted during the cooldown."""
        return max(number for _, number in self.numbers)

    def get_idle_ms(self, now_ms: int) -> int:
        """Return the time without a lag in milliseconds."""
        return 0 if self.idle_since_ms is None else now_ms - self.idle_since_ms


def decide(
    policy: ScalingPolicy, load: GroupLoad, current: int, history: ScalingHistory, now_ms: int
) -> ScalingDecision:
    """Return the number of consumers for `load`, and update `history`.

    `current` is the number that was wanted so far.
    """
    limit = compute_ceiling(policy, load)
    raw, reason = _compute_raw_number(policy, load, history.rate.add(load, now_ms))
    bounded = max(min(raw, policy.replicas_max, limit), policy.replicas_min)
    history.record(bounded, load, policy.cooldown_ms, now_ms)
    if raw > bounded:
        bound = "maxReplicas" if bounded == policy.replicas_max else f"record locks allow {limit}"
        reason += f", held at {bounded} ({bound})"
    if policy.schedules:
        reason += f", schedule {', '.join(policy.schedules)}"
    if bounded >= current:
        return ScalingDecision(bounded, limit, reason)
    target = min(current, history.get_highest())
    if target == 0 and current > 0:
        idle_ms = history.get_idle_ms(now_ms)
        if idle_ms < policy.scale_to_zero_after_ms:
            remaining_s = (policy.scale_to_zero_after_ms - idle_ms) // 1000
            return ScalingDecision(1, limit, f"{reason}, to zero in {remaining_s} s")
    if target > bounded:
        reason += f", {target} kept during the cooldown"
    return ScalingDecision(target, limit, reason)


def _compute_raw_number(policy: ScalingPolicy, load: GroupLoad, rate: float) -> tuple[int, str]:
    """Return the unbounded number of consumers and the reason; `rate` is per millisecond."""
    number = -(-load.lag // policy.target_lag)
    reason = f"lag {load.lag} / {policy.target_lag} a consumer"
    drain_ms = min(DRAIN_MS, policy.target_age_ms or DRAIN_MS)
    if rate > 0 and (by_rate := math.ceil(load.lag / (rate * drain_ms))) > number:
        number = by_rate
        reason = f"lag {load.lag} at {rate * 1000:.3g} records a second and consumer"
    if policy.target_age_ms and load.lag and load.age_ms > policy.target_age_ms:
        by_age = min(load.lag, math.ceil(max(1, load.running) * AGE_FACTOR))
        if by_age > number:
            number = by_age
            reason = f"the oldest record is {load.age_ms // 1000} s old"
    if load.not_due:
        reason += f", {load.not_due} more cannot be delivered yet"
    if load.blocked:
        reason += f", {load.blocked} more wait until dead letters are redriven or skipped"
    return number, reason
