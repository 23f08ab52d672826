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


def build_ring(brokers: Iterable[BrokerImage]) -> list[BrokerImage]:
    """Return the brokers that can get replicas, with alternating racks."""
    racks: dict[str, list[BrokerImage]] = {}
    for broker in sorted(brokers, key=lambda b: b.broker_id):
        if broker.may_get_replicas:
            racks.setdefault(broker.rack or "", []).append(broker)
    columns = [racks[rack] for rack in sorted(racks)]
    depth = max(map(len, columns), default=0)
    return [column[i] for i in range(depth) for column in columns if i < len(column)]


def find_hosts(image: MetadataImage) -> dict[int, str]:
    """Return the host that each broker advertises to the others."""
    listener = (image.broker_config["inter.broker.listener.name"] or "").upper()
    hosts_by_id = {}
    for broker in image.brokers.values():
        endpoint = broker.find_endpoint(listener) or next(iter(broker.endpoints), None)
        if endpoint is not None:
            hosts_by_id[broker.broker_id] = endpoint.host
    return hosts_by_id


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
    nodes = build_ring(brokers)
    size = len(nodes)
    if not nodes:
        raise NotPlaceable(
            "All brokers are currently fenced, or have all their log directories cordoned"
        )
    if replicas > size:
        raise NotPlaceable(
            f"The target replication factor of {replicas} cannot be reached because only {size}"
            " broker(s) are registered or some brokers have all their log directories cordoned"
        )
    for i in range(partitions):
        index = (start + i) % size
        rest = [*nodes[index + 1 :], *nodes[:index]]
        shift = (i // size) % max(1, size - 1)
        rotated = rest[shift:] + rest[:shift]
        followers = _choose_followers(nodes[index], rotated, replicas - 1, hosts or {})
        yield (nodes[index].broker_id, *followers)


def _choose_followers(
    leader: BrokerImage, candidates: Sequence[BrokerImage], count: int, hosts: Hosts
) -> list[int]:
    """Return the first of `candidates` on unused hosts and racks, then on unused hosts, then the
    rest.

    If all hosts are used, unused racks come first.
    """
    used_racks, used_hosts = {leader.rack}, {hosts.get(leader.broker_id)}
    remaining = list(candidates)
    chosen: list[int] = []

    def rank(broker: BrokerImage) -> tuple[bool, bool]:
        return hosts.get(broker.broker_id) in used_hosts, broker.rack in used_racks

    while len(chosen) < count:
        unused = (b for b in remaining if rank(b) == (False, False))
        best = next(unused, None) or min(remaining, key=rank)
        remaining.remove(best)
        chosen.append(best.broker_id)
        used_racks.add(best.rack)
        used_hosts.add(hosts.get(best.broker_id))
    return chosen
