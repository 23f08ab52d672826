"""Placement of a new partition's replicas on brokers.

Brokers form one ring in which racks alternate as far as their sizes allow. Partition `i` has its
leader at position `start + i` of the ring, so that leaders are spread evenly. Its followers are the
next brokers on other racks, then the next on any rack. Each round of the ring starts the search for
followers one position later. So the partitions of one leader have different followers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shoal.metadata.image import BrokerImage


class NotPlaceable(ValueError):
    """The cluster has too few brokers; the text has the number."""


def ring(brokers: Iterable[BrokerImage]) -> list[BrokerImage]:
    """Return the brokers that can hold replicas, with alternating racks."""
    racks: dict[str, list[BrokerImage]] = {}
    for broker in sorted(brokers, key=lambda b: b.broker_id):
        if not broker.fenced and not broker.in_controlled_shutdown:
            racks.setdefault(broker.rack or "", []).append(broker)
    columns = [racks[rack] for rack in sorted(racks)]
    depth = max(map(len, columns), default=0)
    return [column[i] for i in range(depth) for column in columns if i < len(column)]


def place(
    brokers: Iterable[BrokerImage], *, partitions: int, replicas: int, start: int
) -> Iterator[tuple[int, ...]]:
    """Yield the replicas of each new partition, the preferred leader first.

    `start` is the position of the first leader in the ring. Raises `NotPlaceable`.
    """
    nodes = ring(brokers)
    size = len(nodes)
    if not nodes:
        raise NotPlaceable("no broker is running")
    if replicas > size:
        raise NotPlaceable(
            f"{replicas} replicas need {replicas} brokers; only {size} are available"
        )
    for i in range(partitions):
        at = (start + i) % size
        others = [*nodes[at + 1 :], *nodes[:at]]
        shift = (i // size) % max(1, size - 1)
        followers = _followers(nodes[at], others[shift:] + others[:shift], replicas - 1)
        yield (nodes[at].broker_id, *followers)


def _followers(leader: BrokerImage, others: Sequence[BrokerImage], count: int) -> list[int]:
    """Return the first of `others` on unused racks, then the first of the rest."""
    taken = {leader.rack}
    first: list[int] = []
    rest: list[int] = []
    for broker in others if count else ():
        (rest if broker.rack in taken else first).append(broker.broker_id)
        taken.add(broker.rack)
    return (first + rest)[:count]
