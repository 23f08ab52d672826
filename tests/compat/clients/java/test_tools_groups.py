"""Kafka's tools for groups of the three kinds, with and without active members."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess
    from support.kafka.kafka_tools import KafkaTools

pytestmark = pytest.mark.java

PARTITIONS, RECORDS = 3, 30


@pytest.fixture
def topic(tools_broker: ShoalProcess) -> str:
    """A topic with `RECORDS` records, evenly spread."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": tools_broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(15)
    producer = Producer({"bootstrap.servers": tools_broker.bootstrap})
    for i in range(RECORDS):
        producer.produce(name, b"%d" % i, partition=i % PARTITIONS)
    assert producer.flush(15) == 0
    return name


class Polling:
    """A consumer that polls in a thread until the block ends."""

    def __init__(self, consumer: Any, topic: str, of: Callable[[Any], int]) -> None:
        self.records = 0
        self._consumer = consumer
        self._of = of
        self._stop = threading.Event()
        consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.records += self._of(self._consumer)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


@contextmanager
def consumer(bootstrap: str, topic: str, **settings: str) -> Iterator[Polling]:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{topic}",
            "auto.offset.reset": "earliest",
            "client.id": "worker",
            **settings,
        }
    )
    polling = Polling(made, topic, lambda c: sum(m.error() is None for m in c.consume(100, 0.1)))
    try:
        yield polling
    finally:
        polling.stop()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafka_consumer_groups(tools: KafkaTools, topic: str, protocol: str) -> None:
    group = f"g-{topic}"
    of = ("--group", group)

    def offsets() -> dict[int, tuple[str, str]]:
        rows = tools.rows("consumer-groups", "--describe", *of)
        return {int(r["PARTITION"]): (r["CURRENT-OFFSET"], r["LAG"]) for r in rows}

    with consumer(tools.bootstrap, topic, **{"group.protocol": protocol}) as polling:
        eventually(lambda: polling.records == RECORDS)
        rows = tools.rows("consumer-groups", "--describe", *of)
        assert [r["LOG-END-OFFSET"] for r in rows] == ["10"] * PARTITIONS
        assert {(r["HOST"], r["CLIENT-ID"]) for r in rows} == {("/127.0.0.1", "worker")}
        (member,) = tools.rows("consumer-groups", "--describe", *of, "--members", "--verbose")
        assert (member["CLIENT-ID"], member["#PARTITIONS"]) == ("worker", "3")
        assert f"{topic}:0,1,2" in str(member)
        state = tools.run("consumer-groups", "--describe", *of, "--state").split()
        strategy = "range" if protocol == "classic" else "uniform"
        assert state[-4:] == ["(1)", strategy, "Stable", "1"]
        said = tools.run("consumer-groups", "--delete", *of)
        assert "GroupNotEmptyException: The group is not empty." in said
        said = tools.run(
            "consumer-groups",
            "--reset-offsets",
            *of,
            "--topic",
            topic,
            "--to-earliest",
            "--execute",
        )
        assert "Assignments can only be reset if the group" in said
        assert "is inactive" in said

    rows = tools.rows("consumer-groups", "--list", "--type", "--state")
    (row,) = [r for r in rows if r["GROUP"] == group]
    assert (row["TYPE"], row["STATE"]) == (protocol.capitalize(), "Empty")
    assert offsets() == dict.fromkeys(range(PARTITIONS), ("10", "0"))
    reset = ("consumer-groups", "--reset-offsets", *of, "--topic", f"{topic}:0,1")
    (zero, one) = tools.rows(*reset, "--shift-by", "-4", "--dry-run")
    assert zero["NEW-OFFSET"] == one["NEW-OFFSET"] == "6"
    tools.run(*reset, "--to-offset", "3", "--execute")
    assert offsets() == {0: ("3", "7"), 1: ("3", "7"), 2: ("10", "0")}
    said = tools.run("consumer-groups", "--delete-offsets", *of, "--topic", f"{topic}:2")
    assert "Successful" in said
    assert sorted(offsets()) == [0, 1]
    said = tools.run("consumer-groups", "--delete", *of)
    assert f"Deletion of requested consumer groups ('{group}') was successful." in said
    said = tools.run("consumer-groups", "--describe", *of)
    assert f"Group {group} not found." in said


@contextmanager
def share_consumer(bootstrap: str, topic: str) -> Iterator[Polling]:
    made = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"s-{topic}",
            "client.id": "sharer",
            "share.acknowledgement.mode": "implicit",
        }
    )
    polling = Polling(made, topic, lambda c: len(c.poll(0.1)))
    try:
        yield polling
    finally:
        polling.stop()


def test_kafka_share_groups(tools: KafkaTools, topic: str) -> None:
    group = f"s-{topic}"
    of = ("--group", group)
    tools.run(
        "configs",
        "--alter",
        "--entity-type",
        "groups",
        "--entity-name",
        group,
        "--add-config",
        "share.auto.offset.reset=earliest",
    )

    def positions() -> dict[int, tuple[str, str]]:
        rows = tools.rows("share-groups", "--describe", *of)
        return {int(r["PARTITION"]): (r["START-OFFSET"], r["LAG"]) for r in rows}

    with share_consumer(tools.bootstrap, topic) as polling:
        eventually(lambda: polling.records == RECORDS)
        eventually(lambda: positions() == dict.fromkeys(range(PARTITIONS), ("10", "0")))
        (member,) = tools.rows("share-groups", "--describe", *of, "--members", "--verbose")
        assert (member["CLIENT-ID"], member["#PARTITIONS"]) == ("sharer", "3")
        assert f"{topic}:0,1,2" in str(member)
        state = tools.run("share-groups", "--describe", *of, "--state").split()
        assert state[-3:] == ["(1)", "Stable", "1"]
        said = tools.run("share-groups", "--delete", *of)
        assert f"Share group '{group}' is not EMPTY." in said
        said = tools.run(
            "share-groups",
            "--reset-offsets",
            *of,
            "--topic",
            topic,
            "--to-earliest",
            "--execute",
            status=1,
        )
        assert f"Share group '{group}' is not empty." in said

    assert {"GROUP": group, "STATE": "Empty"} in tools.rows("share-groups", "--list", "--state")
    reset = ("share-groups", "--reset-offsets", *of, "--topic", topic)
    rows = tools.rows(*reset, "--to-earliest", "--dry-run")
    assert [r["NEW-OFFSET"] for r in rows] == ["0"] * PARTITIONS
    assert positions()[0] == ("10", "0")
    tools.run(*reset, "--to-earliest", "--execute")
    assert positions() == dict.fromkeys(range(PARTITIONS), ("0", "10"))
    with share_consumer(tools.bootstrap, topic) as polling:
        eventually(lambda: polling.records == RECORDS)
    tools.run(*reset, "--to-datetime", "2100-01-01T00:00:00.000", "--execute")
    assert positions() == dict.fromkeys(range(PARTITIONS), ("10", "0"))
    (row,) = tools.rows("share-groups", "--delete-offsets", *of, "--topic", topic)
    assert row == {"TOPIC": topic, "STATUS": "Successful"}
    said = tools.run("share-groups", "--delete", *of)
    assert f"Deletion of requested share groups ('{group}') was successful." in said
    assert group not in tools.run("share-groups", "--list").split()


def test_kafka_groups(tools: KafkaTools, topic: str) -> None:
    with (
        consumer(tools.bootstrap, topic) as classic,
        consumer(tools.bootstrap, topic, **{"group.protocol": "consumer", "group.id": "k848"}),
        share_consumer(tools.bootstrap, topic),
    ):
        eventually(lambda: classic.records == RECORDS)
        mine = {f"g-{topic}", "k848", f"s-{topic}"}

        def all_listed() -> bool:
            rows = [r for r in tools.rows("groups", "--list") if r["GROUP"] in mine]
            found = sorted((r["TYPE"], r["PROTOCOL"]) for r in rows)
            assert found == [("Classic", "consumer"), ("Consumer", "consumer"), ("Share", "share")]
            return True

        eventually(all_listed)
        listed = [r["GROUP"] for r in tools.rows("groups", "--list", "--share")]
        assert f"s-{topic}" in listed
        assert "k848" not in listed
    said = tools.run("share-groups", "--describe", "--group", f"g-{topic}")
    assert f"Group g-{topic} is not a share group." in said
