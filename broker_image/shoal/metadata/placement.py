"""Which brokers hold the replicas of a new partition.

Brokers are put in one ring in which racks alternate, as far as their sizes allow. Partition `i`
leads on the broker `start + i` places round the ring, so that leaders are spread evenly. Its
followers are the next brokers of other racks, and when racks run out the next of any. Each lap
looks for followers one place further on, so that one leader's partitions do not share followers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shoal.metadata.image import BrokerImage


class NotPlaceable(ValueError):
    """There are too few brokers; the text says how many."""


def ring(brokers: Iterable[BrokerImage]) -> list[BrokerImage]:
    """The brokers that can take replicas, racks alternating."""
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
    """The replicas of each new partition, the preferred leader first.

    `start` is where on the ring the first leader stands. Raises `NotPlaceable`.
    """
    nodes = ring(brokers)
    size = len(nodes)
    if not nodes:
        raise NotPlaceable("no broker is running")
    if replicas > size:
        raise NotPlaceable(f"{replicas} replicas need as many brokers, and {size} can take them")
    for i in range(partitions):
        at = (start + i) % size
        others = [*nodes[at + 1 :], *nodes[:at]]
        shift = (i // size) % max(1, size - 1)
        followers = _followers(nodes[at], others[shift:] + others[:shift], replicas - 1)
        yield (nodes[at].broker_id, *followers)


def _followers(leader: BrokerImage, others: Sequence[BrokerImage], count: int) -> list[int]:
    """The first of `others` on racks not taken yet, then the first of the rest."""
    taken = {leader.rack}
    first: list[int] = []
    rest: list[int] = []
    for broker in others if count else ():
        (rest if broker.rack in taken else first).append(broker.broker_id)
        taken.add(broker.rack)
    return (first + rest)[:count]
