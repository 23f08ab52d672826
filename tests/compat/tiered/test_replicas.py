"""Replicas that take the state of a tiered partition from the store, and its tail from the leader:
after the loss of a disk, and by reassignment."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from support.brokers.clusters import ShoalCluster, running
from support.runs.conditions import eventually
from support.storage.tiered_topics import (
    BASE_MS,
    MB,
    TIMEOUT_S,
    TOPIC,
    read_committed,
    settings,
    sizes,
)

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("obstore")
REMOTE_RECORDS, TAIL_RECORDS = 12_000, 5_000
LOCAL_BYTES = 2 * MB
COPIED = "kafka_server_BrokerTopicMetrics_ReplicationBytesInPerSec_total"
REBUILDS = 'kafka_server_BrokerTopicMetrics_BuildRemoteLogAuxStateRequestsPerSec_total{topic="t"}'


class OneBatch(NamedTuple):
    """An idempotent producer, and the only batch that it has sent."""

    producer_id: int
    epoch: int

    def send(self, cluster: ShoalCluster, leader: int) -> int:
        """Send the batch, and return its offset."""
        batch = build_batch(
            [(BASE_MS, b"once", b"v", ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=0,
        )
        (topic,) = [t for t in cluster.metadata(leader).topics if t.name == "t"]
        data = {"index": 0, "records": bytes(batch)}
        fields = {
            "acks": -1,
            "timeout_ms": 20_000,
            "topic_data": [{"name": "t", "topic_id": topic.topic_id, "partition_data": [data]}],
        }
        answer = cluster.ask(leader, ApiKey.PRODUCE, fields)
        (row,) = answer.responses[0].partition_responses
        assert not row.error_code
        return int(row.base_offset)


def one_batch(cluster: ShoalCluster) -> OneBatch:
    fields = {"transactional_id": None, "transaction_timeout_ms": -1}
    given = cluster.ask(1, ApiKey.INIT_PRODUCER_ID, fields)
    assert not given.error_code
    return OneBatch(given.producer_id, given.producer_epoch)


def produce(bootstrap: str, count: int) -> None:
    client = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.num.messages": 100})
    filler = random.Random(count).randbytes(1000)
    for _ in range(count):
        client.produce("t", filler)
        client.poll(0)
    assert client.flush(TIMEOUT_S) == 0


def produce_and_abort(bootstrap: str) -> None:
    """Abort a transaction over the whole tail: its first record is in the store in the end."""
    client = Producer({"bootstrap.servers": bootstrap, "transactional.id": "x"})
    client.init_transactions(TIMEOUT_S)
    client.begin_transaction()
    client.produce("t", b"v", b"aborted")
    assert client.flush(TIMEOUT_S) == 0
    produce(bootstrap, TAIL_RECORDS)
    client.abort_transaction(TIMEOUT_S)


def check_records(bootstrap: str) -> None:
    """All records but the aborted one are there."""
    keys = read_committed(bootstrap)
    assert len(keys) == 1 + REMOTE_RECORDS + TAIL_RECORDS
    assert [key for key in keys if key is not None] == [b"once"]


def local_logs(cluster: ShoalCluster, id: int) -> dict[int, int]:
    """Return the sizes of the log files of a broker's replica, by base offset."""
    folder = cluster.nodes[id].data_dir / "t-0"
    return {int(path.stem): size for path, size in sizes(sorted(folder.glob("*.log"))).items()}


def in_sync(cluster: ShoalCluster, asked: int) -> tuple[int, ...]:
    return tuple(sorted(cluster.topic(asked, "t")[0].isr_nodes))


def reassign(cluster: ShoalCluster, replicas: list[int]) -> None:
    row = {"partition_index": 0, "replicas": replicas}
    fields = {"timeout_ms": 20_000, "topics": [{"name": "t", "partitions": [row]}]}
    answer = cluster.ask(2, ApiKey.ALTER_PARTITION_REASSIGNMENTS, fields)
    assert not answer.error_code
    assert not answer.responses[0].partitions[0].error_code


def test_replicas_take_their_state_from_the_store(tmp_path: Path) -> None:
    """Broker 2 loses its disk, broker 3 gets the partition by reassignment, and each then leads:
    they recognise the producer's batch, and hide the aborted record."""
    store = tmp_path / "store"
    with running(ShoalCluster(tmp_path, configs=settings(store))) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        configs = TOPIC | {"local.retention.bytes": str(LOCAL_BYTES)}
        new = NewTopic("t", replica_assignment=[[1, 2]], num_partitions=1, config=configs)
        admin.create_topics([new])["t"].result(TIMEOUT_S)
        once = one_batch(cluster)
        assert once.send(cluster, 1) == 0
        produce(cluster.bootstrap, REMOTE_RECORDS)
        produce_and_abort(cluster.bootstrap)
        eventually(lambda: len(local_logs(cluster, 1)) <= 4, timeout_s=TIMEOUT_S)
        tail = local_logs(cluster, 1)
        assert min(tail) > REMOTE_RECORDS
        tail_bytes = sum(tail.values())

        node = cluster.nodes[2]
        node.kill9()
        shutil.rmtree(node.data_dir)
        cluster.start([2])
        eventually(lambda: in_sync(cluster, 1) == (1, 2), timeout_s=TIMEOUT_S)
        assert node.metric(REBUILDS) >= 1
        assert tail_bytes / 2 < node.metric(COPIED) <= 1.2 * tail_bytes
        assert min(local_logs(cluster, 2)) >= min(tail)

        other = cluster.nodes[3]
        before = other.metric(COPIED)
        reassign(cluster, [2, 3])
        eventually(lambda: in_sync(cluster, 2) == (2, 3), timeout_s=TIMEOUT_S)
        assert other.metric(REBUILDS) >= 1
        assert tail_bytes / 2 < other.metric(COPIED) - before <= 1.2 * tail_bytes
        eventually(lambda: cluster.topic(2, "t")[0].leader_id == 2, timeout_s=TIMEOUT_S)
        assert once.send(cluster, 2) == 0
        check_records(cluster.bootstrap)

        cluster.nodes[2].kill9()
        eventually(lambda: cluster.topic(3, "t")[0].leader_id == 3, timeout_s=TIMEOUT_S)
        assert once.send(cluster, 3) == 0
        check_records(cluster.bootstrap)
