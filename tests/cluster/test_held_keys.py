"""Keys that dead letters hold, in a cluster whose share partitions and their states are on
different brokers, and through the death of a broker."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from support.brokers.clusters import CALM, ShoalCluster, running
from support.brokers.commands import Shoal
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTITIONS = 6
DLQ = "errors.deadletterqueue"
GROUP = "held"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ShoalCluster]:
    configs = CALM | {"share.coordinator.state.topic.num.partitions": "7"}
    with running(ShoalCluster(tmp_path, configs=configs)) as started:
        yield started


def prepare(client: SyncClient) -> None:
    """Create a topic and its dead-letter topic, a group that holds keys, and in each partition a
    record that must fail, followed by one of its key."""
    topics = [
        NewTopic("t", PARTITIONS, 3),
        NewTopic("dlq.t", PARTITIONS, 3, configs={f"{DLQ}.group.enable": "true"}),
    ]
    expect(client.run(client.admin.topics.create(topics)))
    configs = {
        "share.auto.offset.reset": "earliest",
        "share.ordering": "key",
        "share.ordering.key.dead.letter": "hold",
        f"{DLQ}.topic.name": "dlq.t",
        f"{DLQ}.copy.record.enable": "true",
    }
    changes = {
        ConfigResource(ConfigResourceType.GROUP, GROUP): [ConfigChange(*c) for c in configs.items()]
    }
    expect(client.run(client.admin.configs.alter(changes)))

    async def send() -> None:
        producer = client.client.producer(linger_ms=0)
        for index in range(PARTITIONS):
            for value in (b"bad", b"next"):
                await (await producer.send("t", value, key=b"k%d" % index, partition=index))

    client.run(send())


class Taken:
    """A member's records by value: bad records are rejected once, all others accepted."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[tuple[int, bytes]] = []
        self.member = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "share.acknowledgement.mode": "explicit",
                "reconnect.backoff.max.ms": 500,
            }
        )
        self.member.subscribe(["t"])

    def poll(self, *, rejecting: bool) -> list[tuple[int, bytes]]:
        for message in self.member.poll(0.3):
            if message.error() is not None:
                continue
            bad = rejecting and message.value() == b"bad"
            kind = AcknowledgeType.REJECT if bad else AcknowledgeType.ACCEPT
            self.member.acknowledge(message, kind)
            self.values.append((message.partition(), message.value()))
        with contextlib.suppress(KafkaException):  # The broker has just died.
            self.member.commit_sync(10)
        return self.values


def test_held_keys_outlive_a_broker_and_are_delivered_when_redriven(cluster: ShoalCluster) -> None:
    everywhere = range(PARTITIONS)
    shoal = Shoal(cluster.bootstrap)

    def held() -> set[tuple[int, str]]:
        (described,) = shoal.json("groups", "describe", GROUP)
        return {(row["partition"], row["key"]) for row in described["held_keys"]}

    with SyncClient(cluster.bootstrap) as client:
        prepare(client)
        taken = Taken(cluster.bootstrap)
        eventually(
            lambda: len(taken.poll(rejecting=True)) >= PARTITIONS, timeout_s=60, what="bad ones"
        )
        all_keys = {(index, f"k{index}") for index in everywhere}
        eventually(lambda: held() == all_keys, timeout_s=60, what="every key is held")
        cluster.nodes[cluster.controller() % 3 + 1].kill9()
        eventually(lambda: held() == all_keys, timeout_s=60, what="they are held still")
        taken.values.clear()
        for _ in range(10):
            assert {value for _, value in taken.poll(rejecting=False)} <= {b"bad"}
        # A commit that the death interrupted may bring a bad one again; it is accepted then.
        redriven = shoal.json("share", "redrive", "dlq.t")
        assert redriven["redriven"] >= PARTITIONS
        assert redriven["unfreed"] == 0
        assert held() == set()
        eventually(
            lambda: {p for p, v in taken.poll(rejecting=False) if v == b"next"} == {*everywhere},
            timeout_s=60,
            what="every key is delivered again",
        )
        taken.member.close()
