"""Decides which broker may restart next. Pure.

A restart replaces a pod with all its brokers. Below, "a broker" means all brokers of one pod.

The algorithm, in this order:

1. If no broker needs a restart and all are ready, the roll is done.
2. A broker that needs a restart and is not ready goes first. It serves no clients, and a bad new
   configuration then stops no healthy broker. Rules 6 and 7 apply if the pod has other brokers.
3. A broker that is not ready with the newest template stops the roll, since the next broker would
   probably fail too. The verdict names it.
4. Healthy brokers restart only in maintenance windows. Until the next one begins, the roll is
   postponed: nothing is under way.
5. Healthy dedicated controllers restart first, the active one last of them. Then healthy brokers
   restart in the order of their ids. A broker that is the active controller is the last one.
6. A broker restarts only if every partition with this broker in its ISR keeps its min ISR. A
   partition with a single replica does not block the restart, since waiting would not help. Neither
   does a partition with more replicas than pods, as far as its replicas in this pod go.
7. A controller restarts only if the voters that keep up are a majority without it.
8. If brokers lose their disks with their pods (`is_restart_lossy`), a broker restarts only if each
  of
   its partitions has replicas in the ISR on other disks: one, and two if this broker is in the ISR
   and there are as many. This also holds for a broker that is not ready, which may be the last one
   with all records, and has no exceptions. Nothing restarts while the partitions are unknown.

Properties: the operator takes down at most one pod at a time; the order depends on the input only;
every restart has a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class BrokerPod:
    """A broker's pod. `restart_reason` is empty if it runs the newest template.

    `other_brokers` are the other brokers in the pod, which restart with it. `ready` means that all
    are. `controller` means that the pod runs a controller, and no broker.
    """

    id: int
    ready: bool
    restart_reason: str = ""
    seconds_unready: float = 0.0
    other_brokers: tuple[int, ...] = ()
    controller: bool = False

    @property
    def ids(self) -> frozenset[int]:
        """The ids of all brokers in the pod."""
        return frozenset({self.id, *self.other_brokers})


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The replicas and the ISR of a partition, as broker ids."""

    name: str
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    isr_min: int


@dataclass(frozen=True, slots=True)
class ControllerQuorum:
    """The controller quorum, as node ids: the voters, and those that keep up with the leader."""

    voters: frozenset[int]
    current: frozenset[int]
    leader: int = -1


@dataclass(frozen=True, slots=True)
class RestartStep:
    """Restart this broker and the `other_brokers` of its pod, or this dedicated controller."""

    broker_id: int
    reason: str
    other_brokers: tuple[int, ...] = ()
    controller: bool = False


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Decide again after `seconds`; `serving` means that all brokers are ready meanwhile."""

    seconds: float
    reason: str
    serving: bool = False


@dataclass(frozen=True, slots=True)
class PostponeStep:
    """All brokers are ready. What has to restart does so in the maintenance window that begins at
    `begins`, an RFC 3339 time; `pods` is their number, and `reason` that of the first one."""

    pods: int
    reason: str
    begins: str


@dataclass(frozen=True, slots=True)
class RefuseStep:
    """A restart does not help; a person has to act."""

    reason: str


@dataclass(frozen=True, slots=True)
class DoneStep:
    """All brokers are ready and run the newest template."""


#: What to do about restarts.
Step = RestartStep | WaitStep | PostponeStep | RefuseStep | DoneStep

#: Time for a broker to become ready; the recovery of a large log after a crash takes tens of
#: seconds.
START_SECONDS_MAX = 120.0
#: In-sync replicas that stay on other disks when a broker loses its disk.
_COPIES_MIN = 2
#: The remedy for replicas that share a pod.
SPREAD = "a QueueRebalance with mode Racks spreads them"


def choose_next_step(
    brokers: Sequence[BrokerPod],
    partitions: Sequence[PartitionState] | None,
    controller_id: int,
    *,
    quorum: ControllerQuorum | None = None,
    loses_disks: bool = False,
    next_window: str = "",
) -> Step:
    """Return what to do about restarts.

    `partitions` is None while no broker answers; `quorum` is None for a single broker.
    `loses_disks` means that brokers lose their records with their pods; dedicated controllers keep
    them. `next_window` is when the next maintenance window begins, empty while one is open.
    """
    stale = [b for b in brokers if b.restart_reason]

    def restart_first_allowed(candidates: Sequence[BrokerPod], *, serving: bool) -> Step:
        """Restart the first candidate that the cluster can spare, or wait."""
        for pod in candidates:
            blocked = _find_record_loss(pod, partitions) if loses_disks else ""
            # Rule 2: a pod without other brokers serves no clients while it is not ready.
            if not blocked and partitions is not None and (serving or pod.other_brokers):
                blocked = _find_quorum_loss(pod.ids, quorum) or _find_isr_loss(
                    pod.ids, partitions, brokers
                )
            if not blocked:
                return RestartStep(pod.id, pod.restart_reason, pod.other_brokers, pod.controller)
        pod_named = format_brokers(pod.id, pod.other_brokers, controller=pod.controller)
        return WaitStep(10.0, f"without {pod_named} {blocked}", serving=serving)

    if broken := sorted((b for b in stale if not b.ready), key=lambda b: b.id):
        return restart_first_allowed(broken, serving=False)
    if starting := [b for b in brokers if not b.ready]:
        return _wait_for_start(starting)
    if not stale:
        return DoneStep()
    candidates = sorted(stale, key=lambda b: (not b.controller, controller_id in b.ids, b.id))
    if next_window:
        return PostponeStep(len(stale), candidates[0].restart_reason, next_window)
    if partitions is None:
        return WaitStep(5.0, "no broker returns the state of the partitions")
    return restart_first_allowed(candidates, serving=True)


def _wait_for_start(starting: Sequence[BrokerPod]) -> Step:
    """Return the wait for pods that run the newest template, or a refusal after a time."""
    worst = max(starting, key=lambda b: (b.seconds_unready, -b.id))
    if worst.seconds_unready > START_SECONDS_MAX:
        return RefuseStep(
            f"{_format_one_of(worst)} runs the newest template and has not been ready for over "
            f"{START_SECONDS_MAX:.0f} s; check its log"
        )
    return WaitStep(2.0, f"{_format_one_of(worst)} is not ready")


def format_brokers(
    broker_id: int, other_brokers: Sequence[int], *, controller: bool = False
) -> str:
    """Return the brokers of a pod, or a dedicated controller, for messages."""
    if controller:
        return f"controller {broker_id}"
    ids = ", ".join(map(str, (broker_id, *other_brokers)))
    return f"brokers {ids}" if other_brokers else f"broker {ids}"


def _format_one_of(broker: BrokerPod) -> str:
    brokers = format_brokers(broker.id, broker.other_brokers, controller=broker.controller)
    return f"one of {brokers}" if broker.other_brokers else brokers


def _find_quorum_loss(ids: frozenset[int], quorum: ControllerQuorum | None) -> str:
    """Return why the quorum would be lost without these brokers, else an empty string."""
    if quorum is None or not ids & quorum.voters or len(quorum.voters) == 1:
        return ""
    remaining, majority = quorum.current - ids, len(quorum.voters) // 2 + 1
    if len(remaining) >= majority:
        return ""
    return f"only {len(remaining)} of {len(quorum.voters)} controllers would keep up"


def _find_record_loss(pod: BrokerPod, partitions: Sequence[PartitionState] | None) -> str:
    """Return which partition might lose records with the disks of a pod, else an empty string.
    Dedicated controllers keep theirs."""
    if pod.controller:
        return ""
    ids = pod.ids
    if partitions is None:
        return "records may be lost with its disk: no broker returns the state of the partitions"
    for partition in partitions:
        elsewhere = set(partition.replicas) - ids
        if len(elsewhere) == len(partition.replicas):
            continue
        if not elsewhere:
            return (
                f"{partition.name} would lose its records, which are on no disk of another pod "
                "(give the topic more replicas, or delete it)"
            )
        remaining = len(set(partition.isr) - ids)
        # Without a replica in the ISR, the pod has nothing that the others lack.
        least = max(_COPIES_MIN, partition.isr_min) if ids & set(partition.isr) else 1
        if remaining < min(least, len(elsewhere)):
            replicas = (
                "1 in-sync replica" if remaining == 1 else f"{remaining or 'no'} in-sync replicas"
            )
            return f"{partition.name} would have {replicas} on other disks"
    return ""


def _find_isr_loss(
    ids: frozenset[int], partitions: Sequence[PartitionState], pods: Sequence[BrokerPod]
) -> str:
    """Return the first partition that would fall below its min ISR without these brokers.

    The brokers share one of the `pods`. The result is empty if no partition would.
    """
    places = sum(not pod.controller for pod in pods)
    for partition in partitions:
        if not ids & set(partition.isr):
            continue
        replicas_here = max(1, len(ids & set(partition.replicas)))
        # Replicas that could each have their own pod should lose only one with a pod.
        crowded = replicas_here > 1 and len(partition.replicas) <= places
        most = len(partition.replicas) - (1 if crowded else replicas_here)
        if len(set(partition.isr) - ids) < min(partition.isr_min, most):
            text = f"{partition.name} would fall below its min ISR"
            return (
                f"{text}: {replicas_here} of its replicas share that pod ({SPREAD})"
                if crowded
                else text
            )
    return ""
