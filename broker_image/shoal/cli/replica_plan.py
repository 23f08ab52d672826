"""Where the replicas of partitions should be: a plan that moves few replicas. No I/O.

`plan` works in this order:

1. Replicas stay on the given brokers, and the preferred leader stays first.
2. Missing replicas go to the broker with the fewest replicas, on a rack without a replica of the
   partition if possible. Surplus replicas leave the broker with the most.
3. Replicas move from the broker with the most to that with the fewest, until they differ by one,
   unless two replicas of a partition would share a rack that did not before.
4. Preferred leaders change within the replicas until they are spread as well as that allows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.client.cluster import TopicPartition

    Replicas = Mapping[TopicPartition, Sequence[int]]


def plan(
    current: Replicas,
    brokers: Sequence[int],
    racks: Mapping[int, str] | None = None,
    replication_factor: int | None = None,
) -> dict[TopicPartition, list[int]]:
    """Return the replicas of each partition, the preferred leader first.

    The replication factor stays unless given. Raises `ValueError` if there are too few brokers.
    """
    allowed, racks_of = sorted(set(brokers)), racks or {}
    planned = {
        where: [id for id in replicas if id in allowed]
        for where, replicas in sorted(current.items())
    }
    loads = Counter(dict.fromkeys(allowed, 0))
    loads.update(id for replicas in planned.values() for id in replicas)
    for where, replicas in planned.items():
        wanted = replication_factor or len(current[where])
        if wanted > len(allowed):
            raise ValueError(f"{where} has {wanted} replicas, but only {len(allowed)} brokers")
        while len(replicas) > wanted:
            last_of = max(reversed(replicas[1:]), key=lambda id: loads[id])
            replicas.remove(last_of)
            loads[last_of] -= 1
        while len(replicas) < wanted:
            added = _emptiest(replicas, loads, racks_of)
            replicas.append(added)
            loads[added] += 1
    _balance(planned, loads, racks_of)
    _spread_leaders(planned, allowed)
    return planned


def _emptiest(replicas: Sequence[int], loads: Counter[int], racks: Mapping[int, str]) -> int:
    """Return the broker for a further replica."""
    used = {racks[id] for id in replicas if id in racks}
    others = [id for id in sorted(loads) if id not in replicas]
    return min(others, key=lambda id: (racks.get(id) in used, loads[id], id))


def _balance(
    planned: dict[TopicPartition, list[int]], loads: Counter[int], racks: Mapping[int, str]
) -> None:
    while True:
        move = _next_move(planned, loads, racks)
        if move is None:
            return
        replicas, at, to = move
        loads[replicas[at]] -= 1
        loads[to] += 1
        replicas[at] = to


def _next_move(
    planned: Mapping[TopicPartition, list[int]], loads: Counter[int], racks: Mapping[int, str]
) -> tuple[list[int], int, int] | None:
    """Return the replicas in which one moves, its place, and its new broker."""
    by_load = sorted(loads, key=lambda id: (loads[id], id))
    for full in reversed(by_load):
        for empty in by_load:
            if loads[full] - loads[empty] < 2:
                break
            for replicas in planned.values():
                if full in replicas and empty not in replicas:
                    at = replicas.index(full)
                    moved = [*replicas[:at], empty, *replicas[at + 1 :]]
                    if _racks_of(moved, racks) >= _racks_of(replicas, racks):
                        return replicas, at, empty
    return None


def _racks_of(replicas: Sequence[int], racks: Mapping[int, str]) -> int:
    return len({racks.get(id) for id in replicas})


def _spread_leaders(planned: Mapping[TopicPartition, list[int]], brokers: Sequence[int]) -> None:
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(replicas[0] for replicas in planned.values())
    changed = True
    while changed:
        changed = False
        for replicas in planned.values():
            least = min(replicas, key=lambda id: leads[id])
            if leads[replicas[0]] - leads[least] > 1:
                leads[replicas[0]] -= 1
                leads[least] += 1
                replicas.remove(least)
                replicas.insert(0, least)
                changed = True
