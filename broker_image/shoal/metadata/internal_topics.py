"""Additional replicas of internal topics after the cluster has grown. Pure; see `controller`.

An internal topic is created with the number of replicas in its config, or one for each running
broker if these are fewer. On the first broker of a cluster, that is one. When more brokers join,
its partitions get the missing replicas by a reassignment. The leader stays until the added replicas
are in sync. A replica is added to the broker with the fewest replicas of the topic, on other hosts
and racks first. The replica that is preferred leader least often becomes the preferred leader, so
that coordinators spread over the new brokers. Replicas are never removed. The topic's
min.insync.replicas grows with its replicas.
"""

from __future__ import annotations

from collections import Counter

from shoal.metadata import placement, reassignments
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import BrokerImage, ConfigResourceType, MetadataImage, TopicImage
from shoal.metadata.names import INTERNAL_TOPICS
from shoal.metadata.reassignments import PartitionReassignment
from shoal.metadata.records import MetadataRecord
from shoal.metadata.topics import NewTopic, build_internal_topic

_NAME = "min.insync.replicas"


def grow(image: MetadataImage) -> ControllerResult:
    """Reassign partitions that have fewer replicas than configured and possible."""
    moves: list[PartitionReassignment] = []
    records: list[MetadataRecord] = []
    nodes = placement.build_ring(image.brokers.values())
    for name in INTERNAL_TOPICS:
        topic = image.topics.get(name)
        if topic is None:
            continue
        target = build_internal_topic(image, name)
        new_moves = _plan_moves(
            topic, target.replication_factor, nodes, placement.find_hosts(image)
        )
        if new_moves:
            moves += new_moves
            records += _raise_min_isr(image, target)
    return ControllerResult(
        records + list(reassignments.alter(image, moves).records) if moves else []
    )


def _raise_min_isr(image: MetadataImage, target: NewTopic) -> list[MetadataRecord]:
    """Raise the topic's min.insync.replicas if it was set for fewer replicas."""
    own = image.configs.get((ConfigResourceType.TOPIC, target.name), {}).get(_NAME)
    value = dict(target.configs).get(_NAME)
    if own is None or value is None or int(own) >= int(value):
        return []
    fields = {
        "resource_type": ConfigResourceType.TOPIC,
        "resource_name": target.name,
        "name": _NAME,
        "value": value,
    }
    return [MetadataRecord("ConfigRecord", fields)]


def _plan_moves(
    topic: TopicImage, factor: int, nodes: list[BrokerImage], hosts: placement.Hosts
) -> list[PartitionReassignment]:
    racks = {node.broker_id: node.rack for node in nodes}
    replica_counts = Counter(id for p in topic.partitions for id in p.replicas)
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
            used_racks = {racks[id] for id in replicas if id in racks}
            near = {hosts.get(id) for id in replicas}
            chosen = min(
                free,
                key=lambda id: (
                    hosts.get(id) in near,
                    racks[id] in used_racks,
                    replica_counts[id],
                    id,
                ),
            )
            replicas.append(chosen)
            replica_counts[chosen] += 1
        if len(replicas) == len(partition.replicas):
            continue
        preferred[replicas[0]] -= 1
        first = min(replicas, key=lambda id: (preferred[id], replicas.index(id)))
        preferred[first] += 1
        moves.append(
            PartitionReassignment(
                topic.name, index, [first, *(id for id in replicas if id != first)]
            )
        )
    return moves
