"""Which broker may be restarted next: pure.

What is restarted is a pod, with all brokers that it has. "A broker" is all of one pod's, below.

The algorithm, in order:

1. Paused, or nothing to restart and all ready: done.
2. A broker that needs a restart and is not ready goes first: it serves nobody, and if the new
   configuration is bad, no healthy broker is lost to it. Where others of its pod may serve, 6 and
   7 hold.
3. A broker that is not ready though it already runs what is wanted stops the roll: what broke it
   would break the next one too. The verdict names it.
4. Outside of the maintenance windows nothing healthy is restarted.
5. Of the healthy ones, lowest id first, the active controller last.
6. A broker is restarted only if each partition it is in sync for keeps its min ISR without it.
   Partitions whose only replica it is cannot be kept up by waiting, so they do not hold it back.
   Nor do those that have more replicas than there are pods, for what they have in the pod.
7. A controller is restarted only if those that keep up are a majority of the voters without it.

Properties: at most one broker is down by the operator's hand at any time; the order is the same
for the same picture; every restart has a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class BrokerPod:
    """A broker's pod. `restart_reason` is empty if it runs what is wanted; `others` are the brokers
    that are in the pod too, and stop and start with it. All are ready, or it is not."""

    id: int
    ready: bool
    restart_reason: str = ""
    seconds_unready: float = 0.0
    others: tuple[int, ...] = ()

    @property
    def ids(self) -> frozenset[int]:
        return frozenset({self.id, *self.others})


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
    """Restart this broker now, and with it the `others` of its pod."""

    broker_id: int
    reason: str
    others: tuple[int, ...] = ()


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


#: What to do about restarts.
Step = Proceed | Wait | Refuse | Done

#: A broker that starts is given so long before it counts as broken: recovery of a large log after
#: a crash is a matter of tens of seconds.
START_SECONDS_MAX = 120.0
#: What mends replicas that share a pod.
SPREAD = "the annotation shoal.dev/rebalance spreads them"


def next_step(
    brokers: Sequence[BrokerPod],
    partitions: Sequence[PartitionState] | None,
    controller_id: int,
    *,
    quorum: Quorum | None = None,
    window_open: bool = True,
) -> Step:
    """Return what to do about restarts.

    `partitions` is None while no broker answers; `quorum` is None for a single broker.
    """
    stale = [b for b in brokers if b.restart_reason]

    def first_allowed(candidates: Sequence[BrokerPod], *, serving: bool) -> Step:
        """Restart the first candidate that the cluster can spare, or wait."""
        for pod in candidates:
            blocked = ""
            # Rule 2: a pod without other brokers serves nobody while it is not ready.
            if partitions is not None and (serving or pod.others):
                blocked = _quorum_loss(pod.ids, quorum) or _isr_loss(pod.ids, partitions, brokers)
            if not blocked:
                return Proceed(pod.id, pod.restart_reason, pod.others)
        return Wait(10.0, f"without {named(pod.id, pod.others)} {blocked}", serving=serving)

    if broken := sorted((b for b in stale if not b.ready), key=lambda b: b.id):
        return first_allowed(broken, serving=False)
    if starting := [b for b in brokers if not b.ready]:
        return _wait_for_start(starting)
    if not stale:
        return Done()
    if not window_open:
        return Wait(60.0, "the next maintenance window has not begun", serving=True)
    if partitions is None:
        return Wait(5.0, "no broker returns the state of the partitions")
    candidates = sorted(stale, key=lambda b: (controller_id in b.ids, b.id))
    return first_allowed(candidates, serving=True)


def _wait_for_start(starting: Sequence[BrokerPod]) -> Step:
    """Return the wait for pods that run the newest template, or a refusal after a time."""
    worst = max(starting, key=lambda b: (b.seconds_unready, -b.id))
    if worst.seconds_unready > START_SECONDS_MAX:
        return Refuse(
            f"{_one_of(worst)} runs the newest template and has not been ready for over "
            f"{START_SECONDS_MAX:.0f} s; check its log"
        )
    return Wait(2.0, f"{_one_of(worst)} is not ready")


def named(broker_id: int, others: Sequence[int]) -> str:
    """A pod's brokers, for people."""
    every = ", ".join(map(str, (broker_id, *others)))
    return f"brokers {every}" if others else f"broker {every}"


def _one_of(broker: BrokerPod) -> str:
    found = named(broker.id, broker.others)
    return f"one of {found}" if broker.others else found


def _quorum_loss(ids: frozenset[int], quorum: Quorum | None) -> str:
    """What becomes of the quorum without these brokers, if it cannot do without."""
    if quorum is None or not ids & quorum.voters or len(quorum.voters) == 1:
        return ""
    left, majority = quorum.current - ids, len(quorum.voters) // 2 + 1
    if len(left) >= majority:
        return ""
    return f"only {len(left)} of {len(quorum.voters)} controllers would keep up"


def _isr_loss(
    ids: frozenset[int], partitions: Sequence[PartitionState], pods: Sequence[BrokerPod]
) -> str:
    """The first partition that the absence of these brokers, which share one of the `pods`, would
    take below its min ISR, if any."""
    for partition in partitions:
        if not ids & set(partition.isr):
            continue
        here = max(1, len(ids & set(partition.replicas)))
        # Of replicas that could each have a pod, one is lost with a pod.
        crowded = here > 1 and len(partition.replicas) <= len(pods)
        most = len(partition.replicas) - (1 if crowded else here)
        if len(set(partition.isr) - ids) < min(partition.isr_min, most):
            text = f"{partition.name} would fall under its min ISR"
            return f"{text}: {here} of its replicas share that pod ({SPREAD})" if crowded else text
    return ""
