"""Offsets and topics through kill -9: confirmed changes are there, and no others."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from support.runs.conditions import eventually
from support.scenarios.fault_clients import SHORT_FETCHES

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

PARTITIONS, RECORDS, KILLS = 3, 300, 2
PATIENT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}


class Committer:
    """A member that commits each record individually, and keeps the sent and the confirmed
    commits."""

    def __init__(self, bootstrap: str, topic: str, protocol: str) -> None:
        self.asked: dict[int, int] = {}
        self.confirmed: dict[int, int] = {}
        self.read: set[tuple[int, int]] = set()
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": protocol,
                "group.protocol": protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **PATIENT,
                **SHORT_FETCHES,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            partition, offset = message.partition(), message.offset()
            if offset < self.confirmed.get(partition, 0):
                self.wrong.append(f"{partition}-{offset} after {self.confirmed[partition]}")
            self.read.add((partition, offset))
            self.asked[partition] = max(self.asked.get(partition, 0), offset + 1)
            try:
                self._consumer.commit(message, asynchronous=False)
            except KafkaException:
                continue
            self.confirmed[partition] = offset + 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confirmed_offsets_survive(
    start_broker: Callable[..., ShoalProcess], protocol: str, seed: int
) -> None:
    rng = random.Random(seed)
    broker = start_broker(configs={"group.initial.rebalance.delay.ms": "0"})
    topic = "offsets"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(15)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for i in range(RECORDS):
        producer.produce(topic, b"%d" % i, partition=i % PARTITIONS)
    assert producer.flush(15) == 0

    member = Committer(broker.bootstrap, topic, protocol)
    try:
        for kill in range(KILLS):
            goal = RECORDS * (kill + 1) // (KILLS + 1) - rng.randrange(50)
            eventually(lambda goal=goal: len(member.read) >= goal, timeout_s=120)
            broker.kill9()
            confirmed, asked = dict(member.confirmed), dict(member.asked)
            broker.start()
            for partition, offset in committed(broker.bootstrap, protocol, topic).items():
                # One commit for each partition may have been in flight.
                assert confirmed.get(partition, 0) <= offset
                assert offset <= max(asked.get(partition, 0), member.asked.get(partition, 0))
        eventually(lambda: len(member.read) == RECORDS, timeout_s=120)
    finally:
        member.stop()
    assert not member.wrong
    each = RECORDS // PARTITIONS
    assert committed(broker.bootstrap, protocol, topic) == dict.fromkeys(range(PARTITIONS), each)


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **PATIENT})
    asked = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    found = {row.partition: max(row.offset, 0) for row in consumer.committed(asked, timeout=90)}
    consumer.close()
    return found


def test_topics_and_configs_survive(start_broker: Callable[..., ShoalProcess]) -> None:
    """A topic whose creation was confirmed exists; one that was deleted and created again is
    empty."""
    broker = start_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **PATIENT})
    for i in range(3):
        name = f"t{i}"
        made = NewTopic(name, i + 1, 1, config={"retention.ms": str(1_000_000 + i)})
        admin.create_topics([made])[name].result(15)
        broker.kill9()
        broker.start()
        topics = eventually(lambda: admin.list_topics(timeout=90).topics)
        assert {t: len(topics[t].partitions) for t in sorted(topics)} == {
            f"t{j}": j + 1 for j in range(i + 1)
        }
        asked = ConfigResource(ConfigResource.Type.TOPIC, name)
        (described,) = admin.describe_configs([asked]).values()
        assert described.result(15)["retention.ms"].value == str(1_000_000 + i)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t2", b"old", partition=0)
    assert producer.flush(15) == 0
    admin.delete_topics(["t2"])["t2"].result(15)
    broker.kill9()
    broker.start()
    assert sorted(admin.list_topics(timeout=90).topics) == ["t0", "t1"]
    admin.create_topics([NewTopic("t2", 1, 1)])["t2"].result(15)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "any"})
    ends = consumer.get_watermark_offsets(TopicPartition("t2", 0), timeout=90)
    consumer.close()
    assert ends == (0, 0)
