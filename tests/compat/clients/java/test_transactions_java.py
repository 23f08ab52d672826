"""Kafka's Java clients with transaction version 2 (KIP-890), and its tools for transactions."""

from __future__ import annotations

import json
import subprocess
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from shoal.protocol.api import ApiKey
from shoal.record.batch import iter_headers
from shoal.record.records import build_batch, read_records
from support.brokers.wireclient import WireClient
from support.kafka import java_classes
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess
    from support.kafka.kafka_tools import KafkaTools

pytestmark = pytest.mark.java

RECORDS = 2_000


@pytest.fixture
def client(tools_broker: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(tools_broker.bootstrap) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def committed(client: WireClient, topic: str) -> list[bytes | None]:
    """Return all records that a read_committed consumer gets of partition 0."""
    offset = 0
    found: list[bytes | None] = []
    while True:
        answer = client.fetch(topic, offset, isolation_level=1)
        if offset >= answer.last_stable_offset:
            return found
        aborted = sorted((a.first_offset, a.producer_id) for a in answer.aborted_transactions)
        hidden: set[int] = set()
        for at, header in iter_headers(answer.records):
            offset = header.next_offset
            while aborted and aborted[0][0] <= header.base_offset:
                hidden.add(aborted.pop(0)[1])
            if header.is_control:
                hidden.discard(header.producer_id)
            elif header.producer_id not in hidden:
                found += [record.value for record in read_records(answer.records, at)]


def test_a_copier_that_aborts_half_of_its_transactions(
    client: WireClient, tools: KafkaTools, name: str
) -> None:
    """Kafka's own system-test client consumes, produces and commits offsets in one transaction, or
    randomly aborts; every record is copied exactly once."""
    source, sink = f"{name}-in", f"{name}-out"
    client.create_topic(source)
    client.create_topic(sink)
    now_ms = 1_700_000_000_000
    rows = [(now_ms, None, b"%d" % n, ()) for n in range(RECORDS)]
    assert client.produce(source, records=bytes(build_batch(rows))).error_code == 0
    words = [
        "org.apache.kafka.tools.TransactionalMessageCopier",
        "--broker-list",
        tools.bootstrap,
        "--consumer-group",
        name,
        "--transactional-id",
        name,
        "--input-topic",
        source,
        "--input-partition",
        "0",
        "--output-topic",
        sink,
        "--max-messages",
        str(RECORDS),
        "--transaction-size",
        "50",
        "--enable-random-aborts",
        "--group-mode",
    ]
    done = subprocess.run(
        java_classes.java(*words), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    last = json.loads(done.stdout.strip().splitlines()[-1])
    assert (last["consumed"], last["remaining"]) == (RECORDS, 0), last
    eventually(lambda: len(committed(client, sink)) == RECORDS)
    assert committed(client, sink) == [b"%d" % n for n in range(RECORDS)]
    body = {"group_id": name, "topics": [{"name": source, "partition_indexes": [0]}]}
    (topic,) = client.call(ApiKey.OFFSET_FETCH, 7, body).topics
    assert topic.partitions[0].committed_offset == RECORDS
    (row,) = client.call(
        ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [name]}
    ).transaction_states
    assert row.producer_epoch >= 2 * RECORDS // 50 // 2, "each end has bumped the epoch"


def test_many_small_transactions(client: WireClient, tools: KafkaTools, name: str) -> None:
    client.create_topic(name)
    said = tools.run(
        "producer-perf-test",
        "--topic",
        name,
        "--num-records",
        "20000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--transaction-duration-ms",
        "20",
        "--transactional-id",
        name,
        "--command-property",
        f"bootstrap.servers={tools.bootstrap}",
    )
    assert "20000 records sent" in said
    eventually(lambda: len(committed(client, name)) == 20_000)


def test_the_transactions_tool(client: WireClient, tools: KafkaTools, name: str) -> None:
    """List, describe, and abort a hanging transaction."""
    client.create_topic(name)
    body = {"transactional_id": name, "transaction_timeout_ms": 60_000}
    given = client.call(ApiKey.INIT_PRODUCER_ID, 5, body)
    batch = build_batch(
        [(1_700_000_000_000, None, b"v", ())],
        producer_id=given.producer_id,
        producer_epoch=given.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    data = [{"index": 0, "records": bytes(batch)}]
    produce = {
        "transactional_id": name,
        "acks": -1,
        "timeout_ms": 1_000,
        "topic_data": [{"name": name, "partition_data": data}],
    }
    (answer,) = client.call(ApiKey.PRODUCE, 12, produce).responses
    assert answer.partition_responses[0].error_code == 0
    listed = tools.run("transactions", "list")
    (row,) = [line.split() for line in listed.splitlines() if line.startswith(name)]
    assert row[1:] == ["1", str(given.producer_id), "Ongoing"]
    described = tools.run("transactions", "describe", "--transactional-id", name)
    assert f"{name}-0" in described
    producers = tools.run("transactions", "describe-producers", "--topic", name, "--partition", "0")
    assert str(given.producer_id) in producers
    tools.run("transactions", "abort", "--topic", name, "--partition", "0", "--start-offset", "0")
    assert client.fetch(name, 0).last_stable_offset == 2
    assert committed(client, name) == []


@pytest.mark.parametrize(
    "isolation",
    ["read_committed", pytest.param("read_uncommitted", marks=pytest.mark.nightly)],
)
def test_a_share_group_over_transactions(
    client: WireClient, tools: KafkaTools, name: str, isolation: str
) -> None:
    """Markers are never delivered; only a read_uncommitted group gets aborted records."""
    client.create_topic(name)
    tools.run(
        "configs",
        "--alter",
        "--entity-type",
        "groups",
        "--entity-name",
        name,
        "--add-config",
        f"share.auto.offset.reset=earliest,share.isolation.level={isolation}",
    )
    producer = Producer(
        {"bootstrap.servers": tools.bootstrap, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(name, b"%d" % number)
        producer.flush(20)
        if number % 2:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    wanted = range(6) if isolation == "read_uncommitted" else range(1, 6, 2)
    said = tools.run(
        "console-share-consumer",
        "--topic",
        name,
        "--group",
        name,
        "--max-messages",
        str(len(wanted)),
        "--timeout-ms",
        "20000",
    )
    found = [line for line in said.splitlines() if line.isdigit()]
    assert found == [str(number) for number in wanted]
