"""Throttled replication (KIP-73): a replica catches up at the rate; other requests do not wait.

At the slow rate nothing ends within a test, so what does end is not throttled.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CALM_CONFIGS, PARTITIONS, Writer
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from shoal.protocol.api import ApiKey
from support.brokers.clusters import ShoalCluster, running
from support.brokers.commands import Shoal
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

#: One test waits for the end of a session.
CONFIGS = CALM_CONFIGS | {"broker.session.timeout.ms": "10000"}
RATE_BYTES = 400_000
SLOW = "1000"
IN_SYNC = "readyz?in-sync"
DRAINED, MIN_ISR = "drained", 2
VALUE = b"v" * 1_000
#: Approximate size of one record on the wire.
OVERHEAD = 1.02
RECORDS = 2_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("cluster"), configs=CONFIGS)) as found:
        eventually(lambda: len(found.metadata(1).brokers) == 3, timeout_s=60)
        yield found


def write(cluster: ShoalCluster, topic: str, records: int) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "batch.size": 20_000, "log_level": 0}
    )
    for _ in range(records):
        producer.produce(topic, VALUE, partition=0)
    assert producer.flush(60) == 0


def set_configs(admin: AdminClient, kind: ResourceType, name: str, **values: str | None) -> None:
    entries = [
        ConfigEntry(
            key.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.SET if value else AlterConfigOpType.DELETE,
        )
        for key, value in values.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


def reassign(cluster: ShoalCluster, topic: str, replicas: list[int]) -> None:
    rows = [{"partition_index": 0, "replicas": replicas}]
    fields = {"timeout_ms": 10_000, "topics": [{"name": topic, "partitions": rows}]}
    answer = cluster.ask(cluster.controller(), ApiKey.ALTER_PARTITION_REASSIGNMENTS, fields)
    assert answer.error_code == 0, answer
    assert answer.responses[0].partitions[0].error_code == 0, answer


def moved(cluster: ShoalCluster, topic: str, replicas: list[int]) -> bool:
    (partition,) = cluster.topic(replicas[0], topic)
    return sorted(partition.isr_nodes) == sorted(partition.replica_nodes) == replicas


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_reassignment_takes_its_time_and_writes_do_not(cluster: ShoalCluster, side: str) -> None:
    """Writes to the replica that is in sync afterwards are not throttled."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = f"throttled-by-{side}"
    made = NewTopic(topic, 1, replica_assignment=[[1]], config={"min.insync.replicas": "1"})
    admin.create_topics([made])[topic].result(60)
    eventually(lambda: moved(cluster, topic, [1]))
    write(cluster, topic, RECORDS)
    throttled = "0:1" if side == "leader" else "*"
    set_configs(
        admin, ResourceType.TOPIC, topic, **{f"{side}_replication_throttled_replicas": throttled}
    )
    held_by = "1" if side == "leader" else "2"
    rate = f"{side}_replication_throttled_rate"
    set_configs(admin, ResourceType.BROKER, held_by, **{rate: str(RATE_BYTES)})
    begun = time.monotonic()
    reassign(cluster, topic, [1, 2])
    eventually(lambda: moved(cluster, topic, [1, 2]))
    took_s = time.monotonic() - begun
    size_bytes = RECORDS * len(VALUE) * OVERHEAD
    # One second's worth may come at once.
    least_s = (size_bytes - RATE_BYTES) / RATE_BYTES
    assert least_s * 0.9 < took_s, f"{size_bytes / took_s:.0f} bytes a second"
    name = f"kafka_server_{side.capitalize()}Replication_throttled_byte_total"
    assert cluster.nodes[int(held_by)].metric(name) > size_bytes * 0.9
    set_configs(admin, ResourceType.BROKER, held_by, **{rate: SLOW})
    write(cluster, topic, RECORDS)
    set_configs(admin, ResourceType.BROKER, held_by, **{rate: None})


def test_describe_reports_how_far_a_replica_is_behind(cluster: ShoalCluster) -> None:
    """Writes do not wait for it. Without the throttle it catches up."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = NewTopic("behind", 1, replica_assignment=[[1]], config={"min.insync.replicas": "1"})
    admin.create_topics([made])["behind"].result(60)
    eventually(lambda: moved(cluster, "behind", [1]))
    write(cluster, "behind", RECORDS)
    replicas = {"leader_replication_throttled_replicas": "*"}
    set_configs(admin, ResourceType.TOPIC, "behind", **replicas)
    set_configs(admin, ResourceType.BROKER, "1", leader_replication_throttled_rate=SLOW)
    reassign(cluster, "behind", [1, 2])
    shoal = Shoal(cluster.bootstrap)

    def lacking() -> list[dict[str, Any]]:
        (found,) = shoal.json("cluster", "describe")
        return [row for row in found["lacking"] if row["topic"] == "behind"]

    def under_way() -> list[dict[str, Any]]:
        """Return rows if the replica exists and has fetched a first batch."""
        return [row for row in lacking() if 0 < row["lag"].get("2", 0) < RECORDS]

    (row,) = eventually(under_way)
    assert (row["leader"], row["replicas"], row["isr"]) == (1, [1, 2], [1])
    write(cluster, "behind", 10)
    assert f"2:{row['lag']['2']}"[:3] in shoal.says("cluster", "describe")
    set_configs(admin, ResourceType.BROKER, "1", leader_replication_throttled_rate=None)
    eventually(lambda: moved(cluster, "behind", [1, 2]))
    assert lacking() == []


def test_a_broker_is_out_of_sync_until_its_replica_is_in_the_isr(cluster: ShoalCluster) -> None:
    """Kubernetes must not evict the leader while its only follower catches up."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = NewTopic("probed", 1, replica_assignment=[[1]], config={"min.insync.replicas": "1"})
    admin.create_topics([made])["probed"].result(60)
    eventually(lambda: moved(cluster, "probed", [1]))
    write(cluster, "probed", RECORDS)
    replicas = {"leader_replication_throttled_replicas": "*"}
    set_configs(admin, ResourceType.TOPIC, "probed", **replicas)
    set_configs(admin, ResourceType.BROKER, "1", leader_replication_throttled_rate=SLOW)

    assert probe(cluster, 2, IN_SYNC) == 200
    reassign(cluster, "probed", [1, 2])
    eventually(lambda: probe(cluster, 2, IN_SYNC) == 503)
    assert probe(cluster, 2, "readyz") == probe(cluster, 1, IN_SYNC) == 200
    set_configs(admin, ResourceType.BROKER, "1", leader_replication_throttled_rate=None)
    eventually(lambda: probe(cluster, 2, IN_SYNC) == 200)
    assert moved(cluster, "probed", [1, 2])


def test_a_broker_that_no_controller_answers_is_out_of_sync(cluster: ShoalCluster) -> None:
    """Its metadata may be old: others may lack its replicas by now."""
    one = min({1, 2, 3} - {cluster.controller()})
    frozen = {1, 2, 3} - {one}
    for id in frozen:
        cluster.freeze(id)
    try:
        eventually(lambda: probe(cluster, one, IN_SYNC) == 503)
        assert probe(cluster, one, "readyz") == 200
    finally:
        for id in frozen:
            cluster.thaw(id)
    eventually(lambda: all(probe(cluster, id, IN_SYNC) == 200 for id in cluster.nodes))


def probe(cluster: ShoalCluster, id: int, path: str) -> int:
    """Return the status of a health check."""
    try:
        with urllib.request.urlopen(f"{cluster.nodes[id].metrics_url}/{path}") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


# Two nodes are drained together, as Kubernetes does it: a broker stops only while all others pass
# their readiness probe. Catching up is slow, and no partition falls below its min ISR. By day, the
# probe is tested above.


def may_stop(cluster: ShoalCluster, id: int) -> bool:
    """Whether a budget of maxUnavailable 1 permits the eviction of a ready broker."""
    return all(probe(cluster, other, IN_SYNC) == 200 for other in cluster.nodes if other != id)


def throttle(cluster: ShoalCluster, rate_bytes: str | None) -> None:
    """Set the rate at which each leader sends to replicas that catch up."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for id in cluster.nodes:
        rate = {"leader_replication_throttled_rate": rate_bytes}
        set_configs(admin, ResourceType.BROKER, str(id), **rate)


def isr_sizes(cluster: ShoalCluster, asked: int) -> list[int]:
    return [len(p.isr_nodes) for p in cluster.topic(asked, DRAINED)]


@pytest.mark.nightly
def test_drains_of_two_nodes_wait_for_replicas_that_catch_up(cluster: ShoalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    throttled = {"leader.replication.throttled.replicas": "*"}
    made = admin.create_topics([NewTopic(DRAINED, PARTITIONS, 3, config=throttled)])
    made[DRAINED].result(60)
    cluster.on_all(DRAINED, cluster.brokers)
    eventually(lambda: all(probe(cluster, id, IN_SYNC) == 200 for id in cluster.nodes))
    throttle(cluster, SLOW)
    with Writer(cluster, DRAINED) as writer:
        writer.more(100)
        assert may_stop(cluster, 2)
        cluster.nodes[2].stop()
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for n in range(RECORDS):
            producer.produce(DRAINED, VALUE, partition=n % PARTITIONS)
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
