"""Which broker may be restarted next: pure.

The algorithm, in order:

1. Paused, or nothing to restart and all ready: done.
2. A broker that needs a restart and is not ready goes first: it serves nobody, and if the new
   configuration is bad, no healthy broker is lost to it.
3. A broker that is not ready though it already runs what is wanted stops the roll: what broke it
   would break the next one too. The verdict names it.
4. Outside of the maintenance windows nothing healthy is restarted.
5. Of the healthy ones, lowest id first, the active controller last.
6. A broker is restarted only if each partition it is in sync for keeps its min ISR without it.
   Partitions whose only replica it is cannot be kept up by waiting, so they do not hold it back.
7. A controller is restarted only if those that keep up are a majority of the voters without it.

Properties: at most one broker is down by the operator's hand at any time; the order is the same
for the same picture; every restart has a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's pod. `restart_reason` is empty if it runs what is wanted."""

    id: int
    ready: bool
    restart_reason: str = ""
    seconds_unready: float = 0.0


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition by broker ids."""

    name: str
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    isr_min: int


@dataclass(frozen=True, slots=True)
class Quorum:
    """The controllers by broker ids: who votes, and who of them keeps up with the leader."""

    voters: frozenset[int]
    current: frozenset[int]


@dataclass(frozen=True, slots=True)
class Proceed:
    """Restart this broker now."""

    broker_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after so many seconds; `serving` if all brokers are up meanwhile."""

    seconds: float
    reason: str
    serving: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """No restart helps; somebody has to look."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Every broker is ready and runs what is wanted."""


#: A broker that starts is given so long before it counts as broken: recovery of a large log after
#: a crash is a matter of tens of seconds.
START_SECONDS_MAX = 120.0


def next_step(
    brokers: Sequence[Broker],
    partitions: Sequence[PartitionState] | None,
    controller_id: int,
    *,
    quorum: Quorum | None = None,
    window_open: bool = True,
) -> Proceed | Wait | Refuse | Done:
    """What to do about restarts. `partitions` is None while no broker can be asked, `quorum` where
    one broker is all there is."""
    stale = [b for b in brokers if b.restart_reason]
    broken = [b for b in stale if not b.ready]
    if broken:
        first = min(broken, key=lambda b: b.id)
        return Proceed(first.id, first.restart_reason)
    starting = [b for b in brokers if not b.ready]
    if starting:
        worst = max(starting, key=lambda b: (b.seconds_unready, -b.id))
        if worst.seconds_unready > START_SECONDS_MAX:
            return Refuse(
                f"broker {worst.id} runs what is wanted and has not been ready for over "
                f"{START_SECONDS_MAX:.0f} s; look at its log"
            )
        return Wait(2.0, f"broker {worst.id} is not ready")
    if not stale:
        return Done()
    if not window_open:
        return Wait(60.0, "the next maintenance window has not begun", serving=True)
    if partitions is None:
        return Wait(5.0, "no broker answers which partitions it leads")
    blocked = ""
    for broker in sorted(stale, key=lambda b: (b.id == controller_id, b.id)):
        blocked = _outvoted(broker.id, quorum) or _blocked_by(broker.id, partitions)
        if not blocked:
            return Proceed(broker.id, broker.restart_reason)
    return Wait(10.0, f"without broker {broker.id} {blocked}", serving=True)


def _outvoted(broker_id: int, quorum: Quorum | None) -> str:
    """What becomes of the quorum without the broker, if it cannot do without."""
    if quorum is None or broker_id not in quorum.voters or len(quorum.voters) == 1:
        return ""
    left, majority = quorum.current - {broker_id}, len(quorum.voters) // 2 + 1
    if len(left) >= majority:
        return ""
    return f"only {len(left)} of {len(quorum.voters)} controllers would keep up"


def _blocked_by(broker_id: int, partitions: Sequence[PartitionState]) -> str:
    """The first partition that the broker's absence would take below its min ISR, if any."""
    for partition in partitions:
        if broker_id in partition.isr and partition.replicas != (broker_id,):
            if len(partition.isr) - 1 < min(partition.isr_min, len(partition.replicas) - 1):
                return f"{partition.name} would fall under its min ISR"
    return ""
