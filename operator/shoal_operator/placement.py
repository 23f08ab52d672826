"""Places replicas when brokers are added or removed, and when topics get other numbers of them.
Pure.

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
    from shoal_operator.roller import PartitionState

#: Racks by broker id, without brokers that have no rack.
Racks = Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """New replicas by partition, and the names of partitions without a possible target."""

    moves: Mapping[str, tuple[int, ...]]
    unplaceable: tuple[str, ...] = ()


def drain(
    partitions: Sequence[PartitionState], staying: Iterable[int], racks: Racks | None = None
) -> Plan:
    """Return the moves that take all replicas to the brokers in `staying`."""
    places = sorted(staying)
    loads = _loads(partitions, places)
    moves: dict[str, tuple[int, ...]] = {}
    unplaceable = []
    for partition in sorted(partitions, key=lambda p: p.name):
        replicas = list(partition.replicas)
        for at, broker in enumerate(replicas):
            if broker in loads:
                continue
            place = _place(replicas, at, loads, racks or {})
            if place is None:
                unplaceable.append(partition.name)
                break
            replicas[at] = place
            loads[place] += 1
        else:
            if tuple(replicas) != partition.replicas:
                moves[partition.name] = tuple(replicas)
    return Plan(moves, tuple(unplaceable))


def resize(
    partitions: Sequence[PartitionState],
    wanted: Mapping[str, int],
    brokers: Iterable[int],
    racks: Racks | None = None,
) -> Plan:
    """Return the moves that give these partitions the wanted numbers of replicas.

    `wanted` is by the partition's name; `partitions` are all of the cluster. The preferred leader
    stays. Replicas that are not in sync go first, then those whose rack has another one.
    """
    places = sorted(brokers)
    loads = _loads(partitions, places)
    moves: dict[str, tuple[int, ...]] = {}
    unplaceable = []
    for partition in sorted(partitions, key=lambda p: p.name):
        count = wanted.get(partition.name, len(partition.replicas))
        replicas = list(partition.replicas)
        while len(replicas) > count:
            at = _least_needed(replicas, partition.isr, loads, racks or {})
            loads[replicas.pop(at)] -= 1
        while len(replicas) < count:
            # A place for one more replica, at the end.
            place = _place([*replicas, -1], len(replicas), loads, racks or {})
            if place is None:
                unplaceable.append(partition.name)
                break
            replicas.append(place)
            loads[place] += 1
        else:
            if tuple(replicas) != partition.replicas:
                moves[partition.name] = tuple(replicas)
    return Plan(moves, tuple(unplaceable))


def _least_needed(
    replicas: Sequence[int], isr: Sequence[int], loads: Counter[int], racks: Racks
) -> int:
    """Return the index of the replica to remove, never that of the preferred leader."""

    def rank(at: int) -> tuple[bool, bool, int, int]:
        broker = replicas[at]
        others = {racks.get(b) for i, b in enumerate(replicas) if i != at}
        crowded = broker in racks and racks[broker] in others
        return broker not in isr, crowded, loads[broker], at

    return max(range(1, len(replicas)), key=rank)


def balance(
    partitions: Sequence[PartitionState], brokers: Iterable[int], racks: Racks | None = None
) -> Plan:
    """Return the moves that balance replicas and preferred leaders over `brokers`.

    The numbers of replicas per broker differ by at most one within each topic, then overall, as far
    as racks allow.
    """
    places = sorted(brokers)
    loads = _loads(partitions, places)
    now = {p.name: list(p.replicas) for p in partitions}
    topics: dict[str, list[str]] = {}
    for name in sorted(now):
        topics.setdefault(name.rpartition("-")[0], []).append(name)
    # The first pass balances topics; the second one can then balance all of them.
    for _ in range(2):
        for members in topics.values():
            of_topic = Counter(b for name in members for b in now[name])
            for name in members:
                now[name] = _balance_partition(now[name], of_topic, loads, racks or {})
    for members in topics.values():
        _spread_leaders({name: now[name] for name in members}, places)
    before = {p.name: p.replicas for p in partitions}
    return Plan({n: tuple(r) for n, r in now.items() if tuple(r) != before[n]})


def _balance_partition(
    before: Sequence[int], of_topic: Counter[int], loads: Counter[int], racks: Racks
) -> list[int]:
    """Return a partition's replicas after the moves that balance; update both counters."""
    replicas = list(before)
    for at, broker in enumerate(replicas):
        pairs = {b: (of_topic[b], loads[b]) for b in loads}
        place = _place(replicas, at, pairs, racks)
        if place is None or broker not in pairs:
            continue
        more, in_all = of_topic[broker] - of_topic[place], loads[broker] - loads[place]
        crowded = pod_layout.pod_of(broker) in _pods(replicas, at)
        if crowded or more > 1 or (more == 1 and in_all > 1):
            replicas[at] = place
            for counts in (of_topic, loads):
                counts[broker] -= 1
                counts[place] += 1
    return replicas


def _spread_leaders(replicas_of: Mapping[str, list[int]], brokers: Sequence[int]) -> None:
    """Reorder replicas to balance the preferred leaders, which moves no data."""
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(r[0] for r in replicas_of.values() if r)
    for replicas in replicas_of.values():
        for at, broker in enumerate(replicas):
            if leads[replicas[0]] - leads[broker] > 1:
                leads[replicas[0]] -= 1
                leads[broker] += 1
                replicas[0], replicas[at] = broker, replicas[0]


def _loads(partitions: Sequence[PartitionState], brokers: Sequence[int]) -> Counter[int]:
    loads = Counter(dict.fromkeys(brokers, 0))
    loads.update(b for p in partitions for b in p.replicas if b in loads)
    return loads


def _place(replicas: Sequence[int], at: int, loads: Mapping[int, Any], racks: Racks) -> int | None:
    """Return the best other broker for the replica at this index, None without one."""
    pods = _pods(replicas, at)
    free = [b for b in loads if b != replicas[at] and pod_layout.pod_of(b) not in pods]
    taken = {racks.get(b) for i, b in enumerate(replicas) if i != at}
    return min(free, key=lambda b: (b in racks and racks[b] in taken, loads[b], b), default=None)


def _pods(replicas: Sequence[int], at: int) -> set[int]:
    """Return the pods of the partition's other replicas."""
    return {pod_layout.pod_of(broker) for i, broker in enumerate(replicas) if i != at}
