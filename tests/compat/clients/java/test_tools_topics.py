"""Kafka's tools for topics, configs, offsets and the cluster, checked by their output."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka.kafka_tools import KafkaTools

pytestmark = pytest.mark.java


@pytest.fixture
def topic() -> str:
    """An unused name."""
    return f"t-{uuid.uuid4().hex[:8]}"


def create(tools: KafkaTools, topic: str, *words: str) -> None:
    assert f"Created topic {topic}." in tools.run("topics", "--create", "--topic", topic, *words)


def produce(tools: KafkaTools, topic: str, counts: dict[int, int]) -> None:
    producer = Producer({"bootstrap.servers": tools.bootstrap, "linger.ms": 5})
    for partition, count in counts.items():
        for i in range(count):
            producer.produce(topic, b"%d" % i, partition=partition, timestamp=1_000_000 + i)
    assert producer.flush(15) == 0


def test_kafka_topics(tools: KafkaTools, topic: str) -> None:
    create(
        tools,
        topic,
        "--partitions",
        "2",
        "--config",
        "cleanup.policy=compact",
        "--config",
        "segment.ms=100000",
    )
    again = ("topics", "--create", "--topic", topic)
    assert f"Topic '{topic}' already exists." in tools.run(*again, status=1)
    assert tools.run(*again, "--if-not-exists") == ""
    said = tools.run("topics", "--create", "--topic", "r3", "--replication-factor", "3", status=1)
    assert "Unable to replicate the partition 3 time(s)" in said
    said = tools.run("topics", "--create", "--topic", "odd", "--config", "no.such=1", status=1)
    assert "Unknown topic config name: no.such" in said

    tools.run("topics", "--alter", "--topic", topic, "--partitions", "3")
    said = tools.run("topics", "--alter", "--topic", topic, "--partitions", "2", status=1)
    assert "currently has 3 partition(s); 2 would not be an increase" in said
    assert topic in tools.run("topics", "--list", "--exclude-internal").splitlines()
    said = tools.run("topics", "--describe", "--topic", topic)
    assert re.search(
        rf"Topic: {topic}\tTopicId: \S{{22}}\tPartitionCount: 3\tReplicationFactor: 1\t"
        r"Configs: .*cleanup\.policy=compact",
        said,
    )
    for partition in range(3):
        line = f"\tTopic: {topic}\tPartition: {partition}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: "
        assert line in said
    assert tools.run("topics", "--describe", "--unavailable-partitions") == ""
    assert tools.run("topics", "--describe", "--under-min-isr-partitions") == ""
    tools.run("topics", "--delete", "--topic", topic)
    said = tools.run("topics", "--describe", "--topic", topic, status=1)
    assert f"Topic '{topic}' does not exist as expected" in said


def test_kafka_configs_of_topics(tools: KafkaTools, topic: str) -> None:
    create(tools, topic)
    of = ("--entity-type", "topics", "--entity-name", topic)
    changes = "retention.ms=1000000,cleanup.policy=[compact,delete]"
    said = tools.run("configs", "--alter", *of, "--add-config", changes)
    assert f"Completed updating config for topic {topic}." in said
    said = tools.run("configs", "--describe", *of)
    for name, value, default in (
        ("cleanup.policy", "compact,delete", "log.cleanup.policy=delete"),
        ("retention.ms", "1000000", "log.retention.hours=168"),
    ):
        assert (
            f"  {name}={value} sensitive=false synonyms="
            f"{{DYNAMIC_TOPIC_CONFIG:{name}={value}, DEFAULT_CONFIG:{default}}}\n"
        ) in said
    tools.run("configs", "--alter", *of, "--delete-config", "retention.ms")
    assert "retention.ms=" not in tools.run("configs", "--describe", *of)
    assert len(tools.run("configs", "--describe", *of, "--all").splitlines()) > 30
    said = tools.run("configs", "--alter", *of, "--add-config", "retention.ms=long", status=1)
    assert "Invalid value long for configuration retention.ms: Not a number of type LONG" in said


def test_kafka_configs_of_brokers_and_groups(tools: KafkaTools) -> None:
    everybody = ("--entity-type", "brokers", "--entity-default")
    one = ("--entity-type", "brokers", "--entity-name", "1")
    tools.run("configs", "--alter", *everybody, "--add-config", "message.max.bytes=2000000")
    tools.run("configs", "--alter", *one, "--add-config", "log.retention.ms=2000000")
    said = tools.run("configs", "--describe", "--entity-type", "brokers")
    assert "Dynamic configs for broker 1 are:\n  log.retention.ms=2000000" in said
    assert "Default configs for brokers in the cluster are:\n  message.max.bytes=2000000" in said
    said = tools.run("configs", "--describe", *one, "--all")
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=2000000" in said
    said = tools.run("configs", "--alter", *one, "--add-config", "log.dirs=/x", status=1)
    assert "Cannot update these configs dynamically: log.dirs" in said
    tools.run("configs", "--alter", *everybody, "--delete-config", "message.max.bytes")
    tools.run("configs", "--alter", *one, "--delete-config", "log.retention.ms")

    group = ("--entity-type", "groups", "--entity-name", "workers")
    changes = "share.auto.offset.reset=earliest,share.record.lock.duration.ms=20000"
    tools.run("configs", "--alter", *group, "--add-config", changes)
    said = tools.run("configs", "--describe", *group)
    assert "share.auto.offset.reset=earliest sensitive=false" in said
    assert "DEFAULT_CONFIG:group.share.record.lock.duration.ms=30000" in said
    refused = "share.record.lock.duration.ms=2"
    said = tools.run("configs", "--alter", *group, "--add-config", refused, status=1)
    assert "Invalid value 2 for configuration share.record.lock.duration.ms" in said


def test_offsets_records_and_directories(tools: KafkaTools, topic: str, tmp_path: Path) -> None:
    create(tools, topic, "--partitions", "3")
    produce(tools, topic, {0: 10, 1: 4})

    def offsets(*words: str) -> str:
        return tools.run("get-offsets", "--topic", topic, *words)

    assert offsets() == f"{topic}:0:10\n{topic}:1:4\n{topic}:2:0\n"
    assert offsets("--time", "earliest", "--partitions", "0") == f"{topic}:0:0\n"
    assert offsets("--time", "max-timestamp") == f"{topic}:0:9\n{topic}:1:3\n"
    assert offsets("--time", "1000002") == f"{topic}:0:2\n{topic}:1:2\n"
    assert offsets("--time", "1000006", "--partitions", "0,1") == f"{topic}:0:6\n"

    plan = tmp_path / "plan.json"
    rows = [{"topic": topic, "partition": 0, "offset": 7}]
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))
    said = tools.run("delete-records", "--offset-json-file", str(plan))
    assert f"partition: {topic}-0\tlow_watermark: 7" in said
    assert offsets("--time", "earliest", "--partitions", "0") == f"{topic}:0:7\n"

    said = tools.run("log-dirs", "--describe", "--topic-list", topic)
    (broker,) = json.loads(said.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    sizes = {p["partition"]: p["size"] for p in directory["partitions"]}
    assert broker["broker"] == 1
    assert directory["error"] is None
    assert sizes[f"{topic}-0"] > sizes[f"{topic}-1"] > sizes[f"{topic}-2"] == 0

    stay = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1]}]}
    plan.write_text(json.dumps(stay))
    said = tools.run("reassign-partitions", "--reassignment-json-file", str(plan), "--execute")
    assert f"Successfully started partition reassignment for {topic}-0" in said
    said = tools.run("reassign-partitions", "--reassignment-json-file", str(plan), "--verify")
    assert f"Reassignment of partition {topic}-0 is completed." in said


def test_the_cluster(tools: KafkaTools, topic: str) -> None:
    create(tools, topic)
    produce(tools, topic, {0: 2})
    said = tools.run("metadata-quorum", "describe", "--status")
    assert re.search(r"^LeaderId: +1$", said, re.MULTILINE)
    assert '"endpoints": ["PLAINTEXT://' in said
    said = tools.run("metadata-quorum", "describe", "--replication")
    assert re.search(r"^1 +\t\S{22}\t\d+ *\t0 +\t\d+ *\t\d+ *\tLeader", said, re.MULTILINE)
    levels = dict(
        re.findall(
            r"Feature: (\S+)\s.*FinalizedVersionLevel: (\S+)", tools.run("features", "describe")
        )
    )
    assert levels["metadata.version"] == "4.4-IV2"
    assert (levels["group.version"], levels["share.version"]) == ("1", "2")
    every = ("--election-type", "preferred", "--all-topic-partitions")
    assert tools.run("leader-election", *every) == ""
    said = tools.run(
        "leader-election", "--election-type", "unclean", "--topic", topic, "--partition", "0"
    )
    assert f"Valid replica already elected for partitions {topic}-0" in said
    assert tools.run("transactions", "list").split() == [
        "TransactionalId",
        "Coordinator",
        "ProducerId",
        "TransactionState",
    ]
    said = tools.run("transactions", "describe-producers", "--topic", topic, "--partition", "0")
    assert said.split()[:2] == ["ProducerId", "ProducerEpoch"]


def test_client_metrics(tools: KafkaTools) -> None:
    one = ("--name", "m1")
    tools.run(
        "client-metrics",
        "--alter",
        *one,
        "--metrics",
        "org.apache.kafka.producer.",
        "--interval",
        "5000",
        "--match",
        "client_id=x",
    )
    assert tools.run("client-metrics", "--list") == "m1\n"
    assert tools.run("client-metrics", "--describe", *one).splitlines() == [
        "Client metrics configs for m1 are:",
        "  interval.ms=5000",
        "  match=client_id=x",
        "  metrics=org.apache.kafka.producer.",
    ]
    tools.run("client-metrics", "--delete", *one)
    assert tools.run("client-metrics", "--list").strip() == ""
