"""Internal topics get their configured number of replicas once there are enough brokers."""

from __future__ import annotations

from collections import Counter
from itertools import count
from uuid import UUID

import pytest
from shoal.metadata import brokers, controller, delta, internal_topics, topics
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import BrokerEndpoint, BrokerImage, ImageScope, MetadataImage
from shoal.metadata.names import INTERNAL_TOPICS

IDS = (UUID(int=n) for n in count(1))
CONFIGS = {
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "share.coordinator.state.topic.num.partitions": "6",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "6",
}


class Cluster:
    """The metadata of a cluster whose brokers join one by one."""

    def __init__(self, **configs: str) -> None:
        self.image = MetadataImage(scope=ImageScope(1, {**CONFIGS, **configs}))
        self.do(controller.bootstrap())

    def do(self, decision: ControllerResult) -> ControllerResult:
        offset = self.image.offset + len(decision.records)
        self.image, _ = delta.apply(self.image, decision.records, offset=offset, epoch=1)
        return decision

    def join(self, id: int, rack: str | None = None) -> None:
        endpoint = BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092 + id)
        new = BrokerImage(
            id, UUID(int=id), -1, (endpoint,), controller.SUPPORTED_FEATURES, rack, fenced=True
        )
        self.do(brokers.register(self.image, new, clean=True, alive=False))
        self.do(brokers.unfence(self.image, id))

    def create(self, name: str) -> None:
        new = topics.build_internal_topic(self.image, name)
        self.do(topics.create_topics(self.image, [new], new_id=lambda: next(IDS)))

    def grow(self) -> None:
        """Grow the topics, and make the added replicas in sync."""
        decision = self.do(internal_topics.grow(self.image))
        for record in decision.records:
            if record.kind == "ConfigRecord":
                continue
            name = self.image.topics_by_id[record.fields["topic_id"]].name
            index = record.fields["partition_id"]
            partition = self.image.find_partition(name, index)
            assert partition is not None
            assert partition.adding_replicas
        self.settle()

    def settle(self) -> None:
        from shoal.metadata.partition_changes import (
            build_change_record,
            build_view,
            with_isr_and_leader,
        )

        for topic, index, partition in list(brokers.iter_partitions(self.image)):
            after = with_isr_and_leader(
                partition, build_view(self.image, topic.name), isr=partition.replicas
            )
            record = build_change_record(topic.topic_id, index, partition, after)
            if record is not None:
                self.do(ControllerResult([record]))

    def replicas(self, name: str) -> list[tuple[int, ...]]:
        return [p.replicas for p in self.image.topics[name].partitions]


def test_they_grow_with_the_cluster_up_to_their_configs() -> None:
    cluster = Cluster()
    cluster.join(1)
    for name in INTERNAL_TOPICS:
        cluster.create(name)
        assert cluster.replicas(name) == [(1,)] * 6
    assert not internal_topics.grow(cluster.image).records
    for brokers_, factor in ((2, 2), (3, 3), (4, 3)):
        cluster.join(brokers_)
        cluster.grow()
        for name in INTERNAL_TOPICS:
            assert {len(r) for r in cluster.replicas(name)} == {factor}
    for name in INTERNAL_TOPICS:
        assert set(Counter(r[0] for r in cluster.replicas(name))) == {1, 2, 3}
    assert not internal_topics.grow(cluster.image).records


@pytest.mark.parametrize(
    ("topic", "config"),
    [
        ("__consumer_offsets", "offsets.topic.replication.factor"),
        ("__transaction_state", "transaction.state.log.replication.factor"),
        ("__share_group_state", "share.coordinator.state.topic.replication.factor"),
    ],
)
def test_leaders_and_replicas_spread_over_brokers_and_racks(topic: str, config: str) -> None:
    """Each topic has two replicas, where the default is three."""
    cluster = Cluster(**{config: "2"})
    cluster.join(1, "a")
    cluster.create(topic)
    for id, rack in ((2, "a"), (3, "b"), (4, "b")):
        cluster.join(id, rack)
    cluster.grow()
    found = cluster.replicas(topic)
    assert all(1 in r and {3, 4} & set(r) for r in found), found
    assert Counter(id for r in found for id in r) == {1: 6, 3: 3, 4: 3}
    assert max(Counter(r[0] for r in found).values()) == 2


def test_moving_partitions_are_left_alone_and_stopped_brokers_get_none() -> None:
    cluster = Cluster()
    cluster.join(1)
    cluster.create("__consumer_offsets")
    cluster.join(2)
    cluster.do(internal_topics.grow(cluster.image))
    cluster.join(3)
    assert not internal_topics.grow(cluster.image).records
    cluster.settle()
    cluster.do(brokers.fence(cluster.image, 3))
    assert not internal_topics.grow(cluster.image).records


def test_how_many_have_to_be_in_sync_grows_too() -> None:
    """As transaction.state.log.min.isr and similar configs require, at most one less than the
    replicas. A higher value that an operator has set stays."""
    metadata_min_isr = "rlmm.config.remote.log.metadata.topic.min.isr"
    cluster = Cluster(**{"share.coordinator.state.topic.min.isr": "3", metadata_min_isr: "3"})
    cluster.join(1)
    names = ("__transaction_state", "__share_group_state", "__remote_log_metadata")
    for name in INTERNAL_TOPICS:
        cluster.create(name)

    def min_isr() -> list[int]:
        return [cluster.image.resolve_topic_config(name)["min.insync.replicas"] for name in names]

    assert min_isr() == [1, 1, 1]
    for broker, wanted in ((2, 1), (3, 2), (4, 2)):
        cluster.join(broker)
        cluster.grow()
        assert min_isr() == [wanted] * 3
    assert cluster.image.resolve_topic_config("__consumer_offsets")["min.insync.replicas"] == 1
    big = Cluster(**{"transaction.state.log.min.isr": "1"})
    for broker in (1, 2, 3):
        big.join(broker)
    big.create("__transaction_state")
    assert big.image.resolve_topic_config("__transaction_state")["min.insync.replicas"] == 1
