"""Two nodes are drained together, as Kubernetes does it: a broker stops only while all others pass
their readiness probe. Catching up is slow, and no partition falls below its min ISR."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CONFIGS, PARTITIONS, Writer
from cluster.test_throttles import VALUE, probe, set_configs
from clusters import ShoalCluster, running
from conditions import eventually
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic, ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC, MIN_ISR = "t", 2
RECORDS = 3_000
PROBE = "readyz?in-sync"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("cluster"), configs=CONFIGS)) as found:
        admin = AdminClient({"bootstrap.servers": found.bootstrap})
        throttled = {"leader.replication.throttled.replicas": "*"}
        made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=throttled)])
        made[TOPIC].result(60)
        found.on_all(TOPIC, found.brokers)
        yield found


def may_stop(cluster: ShoalCluster, id: int) -> bool:
    """Whether a budget of maxUnavailable 1 permits the eviction of a ready broker."""
    return all(probe(cluster, other, PROBE) == 200 for other in cluster.nodes if other != id)


def throttle(cluster: ShoalCluster, rate_bytes: str | None) -> None:
    """Set the rate at which each leader sends to replicas that catch up."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for id in cluster.nodes:
        rate = {"leader_replication_throttled_rate": rate_bytes}
        set_configs(admin, ResourceType.BROKER, str(id), **rate)


def isr_sizes(cluster: ShoalCluster, asked: int) -> list[int]:
    return [len(p.isr_nodes) for p in cluster.topic(asked, TOPIC)]


def test_drains_of_two_nodes_wait_for_replicas_that_catch_up(cluster: ShoalCluster) -> None:
    eventually(lambda: all(probe(cluster, id, PROBE) == 200 for id in cluster.nodes))
    throttle(cluster, "1000")
    with Writer(cluster, TOPIC) as writer:
        writer.more(100)
        assert may_stop(cluster, 2)
        cluster.nodes[2].stop()
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for n in range(RECORDS):
            producer.produce(TOPIC, VALUE, partition=n % PARTITIONS)
        assert producer.flush(60) == 0
        cluster.nodes[2].start()
        # It serves its clients, so readiness that does not know the ISR would let broker 3 go.
        assert probe(cluster, 2, "readyz") == 200
        assert not may_stop(cluster, 3)
        writer.more(100)
        assert not may_stop(cluster, 3)
        assert min(isr_sizes(cluster, 1)) == MIN_ISR
        throttle(cluster, None)
        eventually(lambda: may_stop(cluster, 3))
        cluster.nodes[3].stop()
        assert min(isr_sizes(cluster, 1)) >= MIN_ISR
        writer.more(100)
        cluster.nodes[3].start()
        eventually(lambda: may_stop(cluster, 1))
    assert writer.errors == []
