"""A cluster that begins with one broker: its internal topics grow when others join."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cluster.test_failover import prepared
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from shoal.client.client import Client
from shoal.client.share.member import AcknowledgeType
from shoal.metadata.names import INTERNAL_TOPICS, REMOTE_LOG_METADATA
from support.brokers.clusters import CALM, ShoalCluster
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

ROLES = {1: "controller", 2: "broker", 3: "broker", 4: "broker"}
CONFIGS = CALM | {
    "offsets.topic.num.partitions": "6",
    "share.coordinator.state.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "leader.imbalance.check.interval.seconds": "1",
}
COMMITTED = 7


#: Without tiered storage, the topic of its metadata does not exist.
TOPICS = [name for name in INTERNAL_TOPICS if name != REMOTE_LOG_METADATA]


def test_internal_topics_grow_and_outlive_the_broker_that_had_them_alone(tmp_path: Path) -> None:
    cluster = ShoalCluster(tmp_path, 4, configs=CONFIGS, roles=ROLES)
    try:
        cluster.start([1, 2])
        group = asyncio.run(use(cluster))
        for name in TOPICS:
            assert {tuple(p.replica_nodes) for p in cluster.topic(2, name)} == {(2,)}
        cluster.start([3, 4])

        def grown() -> bool:
            found = [p for name in TOPICS for p in cluster.topic(3, name)]
            leaders = {p.leader_id for p in found}
            return leaders == {2, 3, 4} and all(len(p.isr_nodes) == 3 for p in found)

        eventually(grown, timeout_s=60, what="the internal topics did not grow")
        described = cluster.describe_quorum(2)
        assert described.leader_id == 1
        assert [v.replica_id for v in described.current_voters] == [1]
        assert {o.replica_id for o in described.observers} == {2, 3, 4}
        cluster.nodes[2].kill9()
        found = eventually(lambda: committed(cluster, group), what="the coordinator did not move")
        assert found == COMMITTED
    finally:
        cluster.stop()


async def use(cluster: ShoalCluster) -> str:
    """Make each kind of coordinator write; return the topic, which is also the group's id."""
    async with Client(cluster.addresses[2]) as client:
        topic, share_group = await prepared(client)
        producer = Producer(
            {"bootstrap.servers": cluster.addresses[2], "transactional.id": "t", "log_level": 0}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, b"v", partition=0)
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, COMMITTED)], reader(cluster, topic).consumer_group_metadata()
        )
        producer.commit_transaction(60)
        async with await client.share(share_group, [topic]) as session:
            while not (found := (await session.acquire(max_wait_ms=300)).acquired):
                pass
            await session.acknowledge(found[0].acknowledge(AcknowledgeType.ACCEPT))
    return topic


def reader(cluster: ShoalCluster, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})


def committed(cluster: ShoalCluster, group: str) -> int | None:
    """Return the offset, or None while there is no coordinator, which not every client waits
    for."""
    consumer = reader(cluster, group)
    try:
        return int(consumer.committed([TopicPartition(group, 0)], 60)[0].offset)
    except KafkaException:
        return None
    finally:
        consumer.close()
