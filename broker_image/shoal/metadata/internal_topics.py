"""More replicas for the brokers' own topics once the cluster has grown. Pure; see `controller`.

An internal topic is made with as many replicas as its config wants and brokers run at that moment,
which on the first broker of a cluster is one. When others have come its partitions get what they
lack, as a reassignment: its leader stays until the added replicas are in sync. Replicas are added
where the topic has fewest, on other racks first, and the preferred leader is the one of them that
is it least often, so that coordinators spread over the new brokers. None is ever taken away.
"""

from __future__ import annotations

from collections import Counter

from shoal.metadata import placement, reassignments
from shoal.metadata.controller import Decision
from shoal.metadata.image import BrokerImage, MetadataImage, TopicImage
from shoal.metadata.names import INTERNAL_TOPICS
from shoal.metadata.reassignments import Move
from shoal.metadata.topics import internal_topic


def grow(image: MetadataImage) -> Decision:
    """Reassignments of partitions that have fewer replicas than they should and could."""
    moves = []
    nodes = placement.ring(image.brokers.values())
    for name in INTERNAL_TOPICS:
        topic = image.topics.get(name)
        if topic is not None:
            moves += _moves(topic, internal_topic(image, name).replication_factor, nodes)
    return Decision(reassignments.alter(image, moves).records) if moves else Decision()


def _moves(topic: TopicImage, factor: int, nodes: list[BrokerImage]) -> list[Move]:
    racks = {node.broker_id: node.rack for node in nodes}
    held = Counter(id for p in topic.partitions for id in p.replicas)
    preferred = Counter(p.replicas[0] for p in topic.partitions)
    moves = []
    for index, partition in enumerate(topic.partitions):
        moving = partition.adding_replicas or partition.removing_replicas
        if moving or len(partition.replicas) >= factor:
            continue
        replicas = list(partition.replicas)
        while len(replicas) < factor:
            free = [id for id in racks if id not in replicas]
            if not free:
                break
            taken = {racks[id] for id in replicas if id in racks}
            found = min(free, key=lambda id: (racks[id] in taken, held[id], id))
            replicas.append(found)
            held[found] += 1
        if len(replicas) == len(partition.replicas):
            continue
        preferred[replicas[0]] -= 1
        first = min(replicas, key=lambda id: (preferred[id], replicas.index(id)))
        preferred[first] += 1
        moves.append(Move(topic.name, index, [first, *(id for id in replicas if id != first)]))
    return moves
