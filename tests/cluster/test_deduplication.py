"""Unique jobs while leaders are killed: every id is in the log exactly once.

It takes twenty seconds, because three brokers start, and one restarts after each of the kills.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.clusters import ShoalCluster, running
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "jobs"
IDS = 200
KILLS = 2
CONFIGS = {
    "shoal.deduplication.window.ms": "3600000",
    # A table of 24 ids: most are in files.
    "shoal.deduplication.memory.bytes": "1024",
    "min.insync.replicas": "2",
}


class RetryingProducer(threading.Thread):
    """Enqueues every id, again and again until told to end, and each at least once. It knows of no
    sequence that another producer sent: each round is a new producer."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__()
        self._servers = bootstrap
        self._number = number
        self.is_ending = threading.Event()
        self.rounds = 0
        self.acknowledged: set[str] = set()
        self.start()

    def run(self) -> None:
        while not self.is_ending.is_set() or len(self.acknowledged) < IDS:
            producer = Producer(
                {
                    "bootstrap.servers": self._servers,
                    "enable.idempotence": self._number % 2 == 0,
                    "compression.type": ("none", "zstd")[self.rounds % 2],
                    "message.timeout.ms": 60_000,
                    "linger.ms": 5,
                    "log_level": 0,
                }
            )
            for at in range(IDS):
                name = f"id {(at * 7 + self.rounds) % IDS}"
                producer.produce(
                    TOPIC,
                    b"%d" % self._number,
                    headers={"shoal.dedup.id": name},
                    on_delivery=lambda error, _, name=name: self._on_delivery(error, name),
                )
                producer.poll(0)
            producer.flush()
            self.rounds += 1

    def _on_delivery(self, error: object, name: str) -> None:
        if error is None:
            self.acknowledged.add(name)


def test_every_id_is_in_the_log_once_though_leaders_are_killed(tmp_path: Path) -> None:
    with running(ShoalCluster(tmp_path, 3)) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        new = NewTopic(TOPIC, 1, 3, config=CONFIGS)
        admin.create_topics([new], operation_timeout=60)[TOPIC].result(60)
        producers = [RetryingProducer(cluster.bootstrap, number) for number in range(2)]
        try:
            for _ in range(KILLS):
                rounds = [producer.rounds for producer in producers]
                eventually(
                    lambda rounds=rounds: all(
                        producer.rounds > before
                        for producer, before in zip(producers, rounds, strict=True)
                    )
                )
                leader = find_leader(admin)
                cluster.nodes[leader].kill9()
                eventually(lambda killed=leader: find_leader(admin) not in (-1, killed))
                cluster.nodes[leader].start()
                eventually(lambda: len(find_isr(admin)) == 3)
        finally:
            for producer in producers:
                producer.is_ending.set()
        for producer in producers:
            producer.join()
        stored = read_ids(cluster.bootstrap)
    assert stored == Counter({f"id {number}": 1 for number in range(IDS)})


def find_leader(admin: AdminClient) -> int:
    try:
        return int(admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader)
    except (KafkaException, KeyError):
        return -1


def find_isr(admin: AdminClient) -> list[int]:
    try:
        return list(admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].isrs)
    except (KafkaException, KeyError):
        return []


def read_ids(bootstrap: str) -> Counter[str]:
    """Count the records of each id in the whole log."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: Counter[str] = Counter()
    while (message := consumer.poll(60)) is not None and message.error() is None:
        headers = dict(message.headers() or ())
        found[headers["shoal.dedup.id"].decode()] += 1
    consumer.close()
    return found
