"""Requests that no client sends get the answers of Apache Kafka.

Partitions that are named twice, negative leader epochs, leader epochs of an empty log, and limits
below one.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

pytestmark = pytest.mark.java

INT_MIN = -(2**31)
EPOCHS = (INT_MIN, -2, -1, 0, 1)
#: Partitions by topic. The topic `t` has two partitions, and no record.
TWICE = (
    [("t", [0, 0])],
    [("t", [0]), ("t", [0])],
    [("t", [0, 1, 0])],
    [("t", [9, 9])],
    [("unknown", [0, 0]), ("t", [1])],
)


def list_offsets(client: WireClient, topic: str) -> list[Any]:
    """Name partitions twice, and leader epochs."""
    found: list[Any] = []
    for version in (1, 7, 10):
        for timestamp in (-1, 0):
            for named in TWICE:
                topics = [
                    {
                        "name": topic if name == "t" else name,
                        "partitions": [
                            {"partition_index": index, "timestamp": timestamp} for index in indexes
                        ],
                    }
                    for name, indexes in named
                ]
                answer = client.call(
                    ApiKey.LIST_OFFSETS, version, {"replica_id": -1, "topics": topics}
                )
                found.append(
                    sorted(
                        ("t" if t.name == topic else t.name, p.partition_index, p.error_code)
                        for t in answer.topics
                        for p in t.partitions
                    )
                )
    for epoch in EPOCHS:
        asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}
        body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
        found += [epoch, client.call(ApiKey.LIST_OFFSETS, 7, body).topics[0].partitions[0]]
    return found


def fetch(client: WireClient, topic: str) -> list[Any]:
    """Fetch from an empty log, with leader epochs."""
    found = []
    for current in EPOCHS:
        for last in EPOCHS:
            for offset in (0, 1):
                asked = {"current_leader_epoch": current, "last_fetched_epoch": last}
                answer = client.fetch(topic, offset, asked=asked)
                found.append(
                    (current, last, offset, answer.error_code, answer.diverging_epoch.end_offset)
                )
    return found


def end_of_epoch(client: WireClient, topic: str) -> list[Any]:
    """Ask for the ends of leader epochs of an empty log."""
    found = []
    for current in EPOCHS:
        for epoch in EPOCHS:
            asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            body = {"replica_id": -2, "topics": [{"topic": topic, "partitions": [asked]}]}
            found += [
                (current, epoch, entry.error_code, entry.leader_epoch, entry.end_offset)
                for topic_entry in client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, body).topics
                for entry in topic_entry.partitions
            ]
    return found


def describe(client: WireClient, topic: str) -> list[Any]:
    """Ask for pages without room."""
    found = []
    for limit in (INT_MIN, -1, 0, 1):
        body = {"topics": [{"name": topic}], "response_partition_limit": limit, "cursor": None}
        answer = client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
        cursor = answer.next_cursor and answer.next_cursor.partition_index
        found.append((limit, [(t.error_code, len(t.partitions)) for t in answer.topics], cursor))
    return found


@pytest.mark.parametrize("ask", [list_offsets, fetch, end_of_epoch, describe])
def test_both_answer_alike(
    get_kafka: Callable[..., SharedKafka],
    shared_broker: ShoalProcess,
    ask: Callable[[WireClient, str], list[Any]],
) -> None:
    def answers(bootstrap: str) -> list[Any]:
        topic = f"odd-{uuid.uuid4()}"
        with WireClient(bootstrap) as client:
            client.create_topic(topic, 2)
            eventually(lambda: client.is_led(topic, 0) and client.is_led(topic, 1))
            return ask(client, topic)

    assert answers(shared_broker.bootstrap) == answers(get_kafka().bootstrap)
