"""Places replicas when brokers are removed, and when topics get other numbers of them. Pure.

Replicas move one by one, so that a partition keeps their order and most of its data. A replica
moves to a broker in a pod without a replica of the partition. Brokers in a new rack come first,
then those with the fewest replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal_operator.model import pod_layout

if TYPE_CHECKING:
    from shoal_operator.brokers.roller import PartitionState

#: Racks by broker id, without brokers that have no rack.
Racks = Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """New replicas by partition, and the names of partitions without a possible target."""

    moves: Mapping[str, tuple[int, ...]]
    unplaceable: tuple[str, ...] = ()


def drain(
    partitions: Sequence[PartitionState], staying: Iterable[int], racks: Racks | None = None
) -> ReassignmentPlan:
    """Return the moves that take all replicas to the brokers in `staying`."""
    places = sorted(staying)
    loads = _count_loads(partitions, places)
    moves: dict[str, tuple[int, ...]] = {}
    unplaceable = []
    for partition in sorted(partitions, key=lambda p: p.name):
        replicas = list(partition.replicas)
        for index, broker in enumerate(replicas):
            if broker in loads:
                continue
            place = _choose_broker(replicas, index, loads, racks or {})
            if place is None:
                unplaceable.append(partition.name)
                break
            replicas[index] = place
            loads[place] += 1
        else:
            if tuple(replicas) != partition.replicas:
                moves[partition.name] = tuple(replicas)
    return ReassignmentPlan(moves, tuple(unplaceable))


def resize(
    partitions: Sequence[PartitionState],
    counts: Mapping[str, int],
    brokers: Iterable[int],
    racks: Racks | None = None,
) -> ReassignmentPlan:
    """Return the moves that give these partitions the wanted numbers of replicas.

    `counts` is by the partition's name; `partitions` are all of the cluster. The preferred leader
    stays. Replicas that are not in sync go first, then those whose rack has another one.
    """
    places = sorted(brokers)
    loads = _count_loads(partitions, places)
    moves: dict[str, tuple[int, ...]] = {}
    unplaceable = []
    for partition in sorted(partitions, key=lambda p: p.name):
        count = counts.get(partition.name, len(partition.replicas))
        replicas = list(partition.replicas)
        while len(replicas) > count:
            index = _find_least_needed(replicas, partition.isr, loads, racks or {})
            loads[replicas.pop(index)] -= 1
        while len(replicas) < count:
            # A place for one more replica, at the end.
            place = _choose_broker([*replicas, -1], len(replicas), loads, racks or {})
            if place is None:
                unplaceable.append(partition.name)
                break
            replicas.append(place)
            loads[place] += 1
        else:
            if tuple(replicas) != partition.replicas:
                moves[partition.name] = tuple(replicas)
    return ReassignmentPlan(moves, tuple(unplaceable))


def _find_least_needed(
    replicas: Sequence[int], isr: Sequence[int], loads: Counter[int], racks: Racks
) -> int:
    """Return the index of the replica to remove, never that of the preferred leader."""

    def rank(index: int) -> tuple[bool, bool, int, int]:
        broker = replicas[index]
        other_racks = {racks.get(b) for i, b in enumerate(replicas) if i != index}
        crowded = broker in racks and racks[broker] in other_racks
        return broker not in isr, crowded, loads[broker], index

    return max(range(1, len(replicas)), key=rank)


def _count_loads(partitions: Sequence[PartitionState], brokers: Sequence[int]) -> Counter[int]:
    loads = Counter(dict.fromkeys(brokers, 0))
    loads.update(b for p in partitions for b in p.replicas if b in loads)
    return loads


def _choose_broker(
    replicas: Sequence[int], index: int, loads: Mapping[int, Any], racks: Racks
) -> int | None:
    """Return the best other broker for the replica at this index, None without one."""
    pods = _list_other_pods(replicas, index)
    free = [b for b in loads if b != replicas[index] and pod_layout.get_pod(b) not in pods]
    used_racks = {racks.get(b) for i, b in enumerate(replicas) if i != index}
    return min(
        free, key=lambda b: (b in racks and racks[b] in used_racks, loads[b], b), default=None
    )


def _list_other_pods(replicas: Sequence[int], index: int) -> set[int]:
    """Return the pods of the partition's other replicas."""
    return {pod_layout.get_pod(broker) for i, broker in enumerate(replicas) if i != index}
