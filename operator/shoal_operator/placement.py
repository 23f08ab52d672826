"""Where replicas go when brokers come and go: pure.

A partition's replicas are moved one for one, so that it keeps its order and most of its data. The
place of a replica that moves is a broker in a pod that has none of the partition's, of a rack that
the partition is not in yet if there is one, and of those the one with the fewest replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal_operator.model import pod_layout

if TYPE_CHECKING:
    from shoal_operator.roller import PartitionState

#: Broker ids to racks; a broker without a rack is left out.
Racks = Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """New replicas by partition, and the partitions that have nowhere to go, by name."""

    moves: Mapping[str, tuple[int, ...]]
    unplaceable: tuple[str, ...] = ()


def drain(
    partitions: Sequence[PartitionState], staying: Iterable[int], racks: Racks | None = None
) -> Plan:
    """Every replica on a broker that stays."""
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


def balance(
    partitions: Sequence[PartitionState], brokers: Iterable[int], racks: Racks | None = None
) -> Plan:
    """Brokers with as many replicas of each topic, give or take one, and then as many in all and
    as many preferred leaders, as far as racks let them."""
    places = sorted(brokers)
    loads = _loads(partitions, places)
    now = {p.name: list(p.replicas) for p in partitions}
    topics: dict[str, list[str]] = {}
    for name in sorted(now):
        topics.setdefault(name.rpartition("-")[0], []).append(name)
    # The second time what was even within topics becomes even in all.
    for _ in range(2):
        for rows in topics.values():
            of_topic = Counter(b for name in rows for b in now[name])
            for name in rows:
                now[name] = _balance_partition(now[name], of_topic, loads, racks or {})
    for rows in topics.values():
        _spread_leaders({name: now[name] for name in rows}, places)
    before = {p.name: p.replicas for p in partitions}
    return Plan({n: tuple(r) for n, r in now.items() if tuple(r) != before[n]})


def _balance_partition(
    before: Sequence[int], of_topic: Counter[int], loads: Counter[int], racks: Racks
) -> list[int]:
    """A partition's replicas after those moves that even out; the loads then have them."""
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
    """Change the order of replicas, which moves no data."""
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
    """The broker for the replica that is at this place now; None if there is no other."""
    pods = _pods(replicas, at)
    free = [b for b in loads if b != replicas[at] and pod_layout.pod_of(b) not in pods]
    taken = {racks.get(b) for i, b in enumerate(replicas) if i != at}
    return min(free, key=lambda b: (b in racks and racks[b] in taken, loads[b], b), default=None)


def _pods(replicas: Sequence[int], at: int) -> set[int]:
    """The pods of the partition's other replicas."""
    return {pod_layout.pod_of(broker) for i, broker in enumerate(replicas) if i != at}
