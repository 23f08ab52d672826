"""Throttled replication (KIP-73): a replica catches up at the rate; other requests do not wait."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CONFIGS
from clusters import ShoalCluster, running
from commands import Shoal
from conditions import ceiling, eventually
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

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE_BYTES = 400_000
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
    write(cluster, topic, 10)
    assert time.monotonic() - begun < ceiling(2), "writes wait for the replica that catches up"
    eventually(lambda: moved(cluster, topic, [1, 2]))
    took_s = time.monotonic() - begun
    size_bytes = RECORDS * len(VALUE) * OVERHEAD
    # One second's worth may come at once.
    least_s = (size_bytes - RATE_BYTES) / RATE_BYTES
    assert least_s * 0.9 < took_s < least_s + ceiling(6), (
        f"{size_bytes / took_s:.0f} bytes a second"
    )
    name = f"kafka_server_{side.capitalize()}Replication_throttled_byte_total"
    assert cluster.nodes[int(held_by)].metric(name) > size_bytes * 0.9
    # An in-sync replica is not throttled.
    begun = time.monotonic()
    write(cluster, topic, RECORDS)
    assert time.monotonic() - begun < ceiling(least_s * 0.8), "the in-sync replica is throttled"
    set_configs(admin, ResourceType.BROKER, held_by, **{rate: None})


def test_describe_reports_how_far_a_replica_is_behind(cluster: ShoalCluster) -> None:
    """Without the throttle it catches up."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = NewTopic("behind", 1, replica_assignment=[[1]], config={"min.insync.replicas": "1"})
    admin.create_topics([made])["behind"].result(60)
    eventually(lambda: moved(cluster, "behind", [1]))
    write(cluster, "behind", RECORDS)
    replicas = {"leader_replication_throttled_replicas": "*"}
    set_configs(admin, ResourceType.TOPIC, "behind", **replicas)
    set_configs(admin, ResourceType.BROKER, "1", leader_replication_throttled_rate="1000")
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
    set_configs(admin, ResourceType.BROKER, "1", leader_replication_throttled_rate="1000")

    assert probe(cluster, 2, "readyz?in-sync") == 200
    reassign(cluster, "probed", [1, 2])
    eventually(lambda: probe(cluster, 2, "readyz?in-sync") == 503)
    assert probe(cluster, 2, "readyz") == probe(cluster, 1, "readyz?in-sync") == 200
    set_configs(admin, ResourceType.BROKER, "1", leader_replication_throttled_rate=None)
    eventually(lambda: probe(cluster, 2, "readyz?in-sync") == 200)
    assert moved(cluster, "probed", [1, 2])


def test_a_broker_that_no_controller_answers_is_out_of_sync(cluster: ShoalCluster) -> None:
    """Its metadata may be old: others may lack its replicas by now."""
    one = min({1, 2, 3} - {cluster.controller()})
    frozen = {1, 2, 3} - {one}
    for id in frozen:
        cluster.freeze(id)
    try:
        eventually(lambda: probe(cluster, one, "readyz?in-sync") == 503)
        assert probe(cluster, one, "readyz") == 200
    finally:
        for id in frozen:
            cluster.thaw(id)
    eventually(lambda: all(probe(cluster, id, "readyz?in-sync") == 200 for id in cluster.nodes))


def probe(cluster: ShoalCluster, id: int, path: str) -> int:
    """Return the status of a health check."""
    try:
        with urllib.request.urlopen(f"{cluster.nodes[id].metrics_url}/{path}") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
