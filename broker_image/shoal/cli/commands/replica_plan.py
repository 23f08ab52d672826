"""Where the replicas of partitions should be: a plan that moves few replicas. No I/O.

`plan` works in this order:

1. Replicas stay on the given brokers, and the preferred leader stays first.
2. Missing replicas go to the broker with the fewest replicas, on a host, and then on a rack,
   without a replica of the partition if possible. Surplus replicas leave the broker with the most.
3. Replicas move from the broker with the most to that with the fewest, until they differ by one,
   unless two replicas of a partition would share a rack or a host that did not before.
4. Preferred leaders change within the replicas until they are spread as well as that allows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.client.net.cluster import TopicPartition

    Replicas = Mapping[TopicPartition, Sequence[int]]
    #: Hosts and racks by broker id.
    Spread = tuple[Mapping[int, str], Mapping[int, str]]


def plan(
    current: Replicas,
    brokers: Sequence[int],
    racks: Mapping[int, str] | None = None,
    replication_factor: int | None = None,
    hosts: Mapping[int, str] | None = None,
) -> dict[TopicPartition, list[int]]:
    """Return the replicas of each partition, the preferred leader first.

    The replication factor stays unless given. Brokers on one of the `hosts` fail together. Raises
    `ValueError` if there are too few brokers.
    """
    allowed, spread = sorted(set(brokers)), (hosts or {}, racks or {})
    planned = {
        partition: [id for id in replicas if id in allowed]
        for partition, replicas in sorted(current.items())
    }
    loads = Counter(dict.fromkeys(allowed, 0))
    loads.update(id for replicas in planned.values() for id in replicas)
    for partition, replicas in planned.items():
        replica_count = replication_factor or len(current[partition])
        if replica_count > len(allowed):
            raise ValueError(
                f"{partition} has {replica_count} replicas, but only {len(allowed)} brokers"
            )
        while len(replicas) > replica_count:
            last_of = max(reversed(replicas[1:]), key=lambda id: loads[id])
            replicas.remove(last_of)
            loads[last_of] -= 1
        while len(replicas) < replica_count:
            added = _find_emptiest(replicas, loads, spread)
            replicas.append(added)
            loads[added] += 1
    _balance(planned, loads, spread)
    _spread_leaders(planned, allowed)
    return planned


def _find_emptiest(replicas: Sequence[int], loads: Counter[int], spread: Spread) -> int:
    """Return the broker for a further replica."""
    used = [{place_of[id] for id in replicas if id in place_of} for place_of in spread]

    def rank(id: int) -> tuple[list[bool], int, int]:
        near = [place_of.get(id) in places for place_of, places in zip(spread, used, strict=True)]
        return near, loads[id], id

    return min((id for id in sorted(loads) if id not in replicas), key=rank)


def _balance(planned: dict[TopicPartition, list[int]], loads: Counter[int], spread: Spread) -> None:
    while True:
        move = _find_next_move(planned, loads, spread)
        if move is None:
            return
        replicas, index, to = move
        loads[replicas[index]] -= 1
        loads[to] += 1
        replicas[index] = to


def _find_next_move(
    planned: Mapping[TopicPartition, list[int]], loads: Counter[int], spread: Spread
) -> tuple[list[int], int, int] | None:
    """Return the replicas in which one moves, its place, and its new broker."""
    by_load = sorted(loads, key=lambda id: (loads[id], id))
    for full in reversed(by_load):
        for empty in by_load:
            if loads[full] - loads[empty] < 2:
                break
            for replicas in planned.values():
                if full in replicas and empty not in replicas:
                    index = replicas.index(full)
                    moved = [*replicas[:index], empty, *replicas[index + 1 :]]
                    if all(
                        _count_places(moved, place_of) >= _count_places(replicas, place_of)
                        for place_of in spread
                    ):
                        return replicas, index, empty
    return None


def _count_places(replicas: Sequence[int], place_of: Mapping[int, str]) -> int:
    return len({place_of.get(id) for id in replicas})


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
