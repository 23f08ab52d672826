"""ElectLeaders, and replicas that cannot be placed: answers and messages are those of Kafka 4.4.0.

Kafka's broker is shared, so its answers are reduced to the topics of this test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

pytestmark = pytest.mark.java

PREFERRED, UNCLEAN = 0, 1
ONE, TWO, ABSENT = TOPICS = ("elected-one", "elected-two", "elected-absent")


def elect(
    client: WireClient, version: int, kind: int, asked: list[tuple[str, list[int]]] | None
) -> Any:
    partitions = None
    if asked is not None:
        partitions = [{"topic": name, "partitions": indexes} for name, indexes in asked]
    body = {"election_type": kind, "topic_partitions": partitions, "timeout_ms": 30_000}
    answer = client.call(ApiKey.ELECT_LEADERS, version, body)
    rows = [
        (one.topic, [(p.partition_id, p.error_code, p.error_message) for p in one.partition_result])
        for one in answer.replica_election_results
        if one.topic in TOPICS or one.topic == ""
    ]
    return getattr(answer, "error_code", 0), sorted(rows)


def create(client: WireClient, name: str, partitions: int, factor: int) -> Any:
    new = {"name": name, "num_partitions": partitions, "replication_factor": factor}
    body = {"topics": [{**new, "assignments": []}], "timeout_ms": 30_000, "validate_only": False}
    (made,) = client.call(ApiKey.CREATE_TOPICS, 7, body).topics
    return made.error_code, made.error_message


def talk(bootstrap: str) -> list[Any]:
    with WireClient(bootstrap) as client:
        said = [create(client, ONE, 2, 1), create(client, TWO, 1, 1)]
        said += [create(client, ABSENT, 1, factor) for factor in (2, 3, 0, -2)]

        def is_known() -> bool:
            body = {"topics": [{"name": ONE, "topic_id": None}]}
            (topic,) = client.call(ApiKey.METADATA, 12, body).topics
            return len(topic.partitions) == 2

        eventually(is_known)
        asked: list[list[tuple[str, list[int]]] | None] = [
            None,
            [],
            [(ONE, [0, 1]), (TWO, [0])],
            [(ONE, [1, 1, 2])],
            [(ABSENT, [0]), (ONE, [])],
            [(ONE, [0]), (ONE, [1])],
            [("", [0])],
        ]
        for one in asked:
            said += [(one, version, elect(client, version, PREFERRED, one)) for version in range(3)]
            said.append((one, UNCLEAN, elect(client, 2, UNCLEAN, one)))
        said.append(elect(client, 2, 7, None))
    return said


def test_elections_and_placement(shared_broker: ShoalProcess, kafka: SharedKafka) -> None:
    ours, theirs = talk(shared_broker.bootstrap), talk(kafka.bootstrap)
    for mine, their in zip(ours, theirs, strict=True):
        assert mine == their
