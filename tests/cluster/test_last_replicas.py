"""Leaders after the last member of the ISR is gone (KIP-966): none that could lack a record.

The controller runs on a separate node, so that a majority of the brokers can be down.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CALM_CONFIGS
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.protocol.api import ApiKey
from support.brokers.clusters import ShoalCluster, running
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLES = {1: "controller", 2: "broker", 3: "broker", 4: "broker"}
RECORDS = 100
_names = (f"t-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    """Each test restarts the brokers that it ends, so that all run again."""
    folder = tmp_path_factory.mktemp("cluster")
    with running(ShoalCluster(folder, 4, configs=CALM_CONFIGS, roles=ROLES)) as found:
        yield found


@pytest.fixture
def topic(cluster: ShoalCluster) -> str:
    """A topic that broker 2 leads, with records that all three have."""
    name = next(_names)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(name, 1, replica_assignment=[[2, 3, 4]])
    admin.create_topics([new], operation_timeout=60)[name].result(60)
    assert write(cluster, name) == RECORDS
    return name


def write(cluster: ShoalCluster, topic: str, timeout_ms: int = 60_000) -> int:
    """Return how many records are acknowledged by the required number of replicas."""
    acknowledged: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "delivery.timeout.ms": timeout_ms,
            "enable.idempotence": True,
            "log_level": 0,
        }
    )
    for _ in range(RECORDS):
        producer.produce(topic, b"v", on_delivery=lambda e, m: acknowledged.append(e))
    producer.flush(120)
    return sum(error is None for error in acknowledged)


def state(cluster: ShoalCluster, topic: str, asked: int) -> tuple[int, set[int], set[int]]:
    """Return leader, ISR and eligible leader replicas, from DescribeTopicPartitions."""
    fields = {"topics": [{"name": topic}], "response_partition_limit": 10}
    (found,) = cluster.ask(asked, ApiKey.DESCRIBE_TOPIC_PARTITIONS, fields).topics
    (row,) = found.partitions
    return row.leader_id, set(row.isr_nodes), set(row.eligible_leader_replicas or ())


def end(cluster: ShoalCluster, topic: str, id: int) -> int:
    """Return the offset that a consumer of that leader reads up to."""
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}
    return int(cluster.ask(id, ApiKey.LIST_OFFSETS, fields).topics[0].partitions[0].offset)


@pytest.mark.nightly
def test_a_cleanly_stopped_broker_below_min_isr_may_lead(cluster: ShoalCluster, topic: str) -> None:
    """It has every acknowledged record, although it is out of the ISR."""
    cluster.nodes[4].stop()
    assert write(cluster, topic) == RECORDS
    cluster.nodes[3].stop()
    eventually(lambda: state(cluster, topic, 2) == (2, {2}, {3}))
    assert write(cluster, topic, timeout_ms=3_000) == 0, "two replicas are not there"
    cluster.nodes[2].kill9()
    cluster.nodes[3].start()
    eventually(lambda: state(cluster, topic, 3)[0] == 3)
    cluster.nodes[4].start()
    eventually(lambda: state(cluster, topic, 3)[1] >= {3, 4})
    # Below two, it cannot know how far its predecessor has committed, and reports that.
    eventually(lambda: end(cluster, topic, 3) == 2 * RECORDS)
    assert write(cluster, topic) == RECORDS
    cluster.nodes[2].start()


def test_a_killed_broker_below_min_isr_may_not_lead(cluster: ShoalCluster, topic: str) -> None:
    """Its log may have lost its end; the cluster waits for the last member of the ISR."""
    cluster.nodes[4].kill9()
    eventually(lambda: 4 not in state(cluster, topic, 2)[1])
    cluster.nodes[3].kill9()
    eventually(lambda: state(cluster, topic, 2)[:2] == (2, {2}))
    cluster.nodes[2].kill9()
    cluster.nodes[3].start()
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": cluster.addresses[2]}).list_topics(timeout=1)
    assert state(cluster, topic, 3)[0] == -1
    assert write(cluster, topic, timeout_ms=3_000) == 0
    cluster.nodes[2].start()
    eventually(lambda: state(cluster, topic, 3)[0] == 2)
    eventually(lambda: end(cluster, topic, 2) >= RECORDS)
    assert write(cluster, topic) == RECORDS
    cluster.nodes[4].start()
