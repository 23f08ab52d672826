"""Placement of a new partition's replicas on brokers.

Brokers form one ring in which racks alternate as far as their sizes allow. Partition `i` has its
leader at position `start + i` of the ring, so that leaders are spread evenly. Its followers are the
next brokers on other racks, then the next on any rack. Each round of the ring starts the search for
followers one position later. So the partitions of one leader have different followers.

Brokers of one pod or machine fail together. They advertise the same host to other brokers, and a
follower is on another host if there is one, even if its rack is taken. Kafka does not know hosts;
without several brokers on a host, the result is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal.metadata.image import BrokerImage, MetadataImage

    #: Hosts by broker id.
    Hosts = Mapping[int, str]


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


def hosts(image: MetadataImage) -> dict[int, str]:
    """Return the host that each broker advertises to the others."""
    listener = (image.broker_config["inter.broker.listener.name"] or "").upper()
    found = {}
    for broker in image.brokers.values():
        endpoint = broker.endpoint(listener) or next(iter(broker.endpoints), None)
        if endpoint is not None:
            found[broker.broker_id] = endpoint.host
    return found


def place(
    brokers: Iterable[BrokerImage],
    *,
    partitions: int,
    replicas: int,
    start: int,
    hosts: Hosts | None = None,
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
        rotated = others[shift:] + others[:shift]
        followers = _followers(nodes[at], rotated, replicas - 1, hosts or {})
        yield (nodes[at].broker_id, *followers)


def _followers(
    leader: BrokerImage, others: Sequence[BrokerImage], count: int, hosts: Hosts
) -> list[int]:
    """Return the first of `others` on unused hosts and racks, then on unused hosts, then the rest.

    If all hosts are used, unused racks come first.
    """
    used_racks, used_hosts = {leader.rack}, {hosts.get(leader.broker_id)}
    left = list(others)
    found: list[int] = []

    def rank(broker: BrokerImage) -> tuple[bool, bool]:
        return hosts.get(broker.broker_id) in used_hosts, broker.rack in used_racks

    while len(found) < count:
        unused = (b for b in left if rank(b) == (False, False))
        best = next(unused, None) or min(left, key=rank)
        left.remove(best)
        found.append(best.broker_id)
        used_racks.add(best.rack)
        used_hosts.add(hosts.get(best.broker_id))
    return found
