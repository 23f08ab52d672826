"""How many consumers a share group wants: pure, from lag, processing rate, locks and time.

1. Wanted = lag / targetLagPerReplica, rounded up, so any lag needs a consumer. Lag here means the
   records that are due within a consumer's start-up time (`scaling.startupTime`). It includes
   records in flight, so the scaler never removes the consumers of records in progress. It excludes
   records that a delay or a back-off holds for longer, and records that wait for the redrive or
   skip of a dead letter. For slow consumers this is too few. The measured rate of one consumer
   gives a minimum: the number that drains the lag in `DRAIN_MS`. The rate is known once start
   offsets have moved while consumers ran.
2. The ceiling: at most `maxRecordLocks` records of a partition are in flight, so at most
   partitions x maxRecordLocks / recordsPerReplica consumers find work. This may exceed the number
   of partitions. Spark executors share one batch, so its size limits them too.
3. Bounds: minReplicas and maxReplicas.
4. Scaling up is immediate. Scaling down stops at the highest number that was wanted during the
   cooldown, and reaches zero only after `scaleToZeroAfter` without lag.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

#: Within so long a backlog is to be gone: slow work gets more consumers than its lag asks for.
DRAIN_MS = 300_000
#: A rate is the mean over so long, and is known once records were settled for `RATE_MS_MIN`.
RATE_MS, RATE_MS_MIN = 120_000, 20_000
#: With fewer records, a Spark task is more overhead than work.
RECORDS_PER_TASK_MIN = 10


@dataclass(frozen=True, slots=True)
class Policy:
    """`spec.scaling`, in numbers. Times in milliseconds.

    `records_per_batch` is what all consumers together hold at most, 0 without such a limit.
    """

    replicas_min: int = 0
    replicas_max: int = 10
    target_lag: int = 1000
    records_per_replica: int = 500
    records_per_batch: int = 0
    cooldown_ms: int = 60_000
    scale_to_zero_after_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Load:
    """What the broker says of the group. `lag`, `record_locks` and `stuck` count records; of the
    last, which wait for somebody to redrive or skip a dead letter, there are none in `lag`; nor of
    those that are due `later`.

    `settled` are the group's start offsets, summed: they move as records are settled; -1 where they
    are not known. `running` consumers worked on them.
    """

    lag: int
    partitions: int
    record_locks: int
    start_offsets_sum: int = -1
    running: int = 0
    blocked: int = 0
    not_due: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """`replicas` wanted now, the `ceiling`, and reason, as a sentence."""

    replicas: int
    ceiling: int
    reason: str


def ceiling(policy: Policy, load: Load) -> int:
    """The most consumers that could hold records at once."""
    held = load.partitions * load.record_locks
    if policy.records_per_batch:
        held = min(held, policy.records_per_batch)
    return max(1, held // policy.records_per_replica)


@dataclass(slots=True)
class Rate:
    """What one consumer settles, from looks at the group while it had work.

    `looks` are (time in ms, records settled, consumer-milliseconds), newest last.
    """

    looks: deque[tuple[int, int, int]] = field(default_factory=deque)

    def look(self, load: Load, now_ms: int) -> float:
        """Take a look in; records a millisecond and consumer, 0 while that is not known."""
        last = self.looks[-1] if self.looks else None
        # Without work or workers, and after a reset of the group, it begins anew.
        if (
            load.start_offsets_sum < 0
            or not load.lag
            or not load.running
            or (last and load.start_offsets_sum < last[1])
        ):
            self.looks.clear()
            return 0.0
        spent = last[2] + load.running * (now_ms - last[0]) if last else 0
        self.looks.append((now_ms, load.start_offsets_sum, spent))
        while self.looks[0][0] < now_ms - RATE_MS:
            self.looks.popleft()
        first = self.looks[0]
        if now_ms - first[0] < RATE_MS_MIN or spent == first[2]:
            return 0.0
        return (load.start_offsets_sum - first[1]) / (spent - first[2])


@dataclass(slots=True)
class History:
    """What was wanted lately, newest last, since when there has been no lag, and the rate."""

    wanted: deque[tuple[int, int]] = field(default_factory=deque)
    idle_since_ms: int | None = None
    rate: Rate = field(default_factory=Rate)

    @classmethod
    def resumed(cls, current: int, idle_ms: int | None, now_ms: int) -> History:
        """The history after a restart: `current` were wanted just now, idle for `idle_ms`."""
        idle_since_ms = None if idle_ms is None else now_ms - idle_ms
        return cls(deque([(now_ms, current)]), idle_since_ms)


def decide(policy: Policy, load: Load, current: int, history: History, now_ms: int) -> Decision:
    """The number of consumers for `load`; `history` is brought up to date.

    `current` is how many are wanted at the moment.
    """
    top = ceiling(policy, load)
    raw = -(-load.lag // policy.target_lag)
    reason = f"lag {load.lag} / {policy.target_lag} a consumer"
    rate = history.rate.look(load, now_ms)
    if rate > 0 and (by_rate := math.ceil(load.lag / (rate * DRAIN_MS))) > raw:
        raw = by_rate
        reason = f"lag {load.lag} at {rate * 1000:.3g} records a second and consumer"
    if load.not_due:
        reason += f", {load.not_due} more cannot be delivered yet"
    if load.blocked:
        reason += f", {load.blocked} more wait until dead letters are redriven or skipped"
    bounded = min(max(raw, policy.replicas_min), policy.replicas_max, top)
    bounded = max(bounded, policy.replicas_min)
    history.wanted.append((now_ms, bounded))
    while history.wanted[0][0] < now_ms - policy.cooldown_ms:
        history.wanted.popleft()
    if load.lag:
        history.idle_since_ms = None
    elif history.idle_since_ms is None:
        history.idle_since_ms = now_ms
    if raw > bounded:
        limit = "maxReplicas" if bounded == policy.replicas_max else f"record locks allow {top}"
        reason += f", held at {bounded} ({limit})"
    if bounded >= current:
        return Decision(bounded, top, reason)
    recent = max(wanted for _, wanted in history.wanted)
    target = min(current, recent)
    if target == 0 and current > 0:
        idle_ms = now_ms - (history.idle_since_ms if history.idle_since_ms is not None else now_ms)
        if idle_ms < policy.scale_to_zero_after_ms:
            left = (policy.scale_to_zero_after_ms - idle_ms) // 1000
            return Decision(1, top, f"{reason}, to zero in {left} s")
    if target > bounded:
        reason += f", {target} kept during the cooldown"
    return Decision(target, top, reason)
