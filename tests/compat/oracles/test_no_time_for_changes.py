"""A change of topics with a `timeout_ms` of 0 or less: nothing happens, and all of it times out.

Brokers forward these requests to the controller, so each case runs through a node that is the
controller and through one that is not.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.clusters import ShoalCluster, running
from support.brokers.wireclient import WireClient
from support.kafka.kafkas import KafkaCluster
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMED_OUT = ErrorCode.request_timed_out


@pytest.fixture(
    scope="module",
    params=["shoal", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.nightly])],
)
def addresses(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """The addresses of all brokers of a cluster. Kafka's two nodes take some seconds to start."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "kafka":
        kafka = KafkaCluster(folder, nodes=2).start()
        yield [node.bootstrap for node in kafka.nodes.values()]
        kafka.stop()
        return
    with running(ShoalCluster(folder)) as shoal:
        yield [node.bootstrap for node in shoal.nodes.values()]


@pytest.fixture
def topic(addresses: list[str]) -> str:
    """A topic with one partition, which all brokers know."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    with WireClient(addresses[0]) as client:
        (made,) = create(client, name, 30_000).topics
        assert made.error_code == 0, made
    eventually(lambda: all(count_partitions(address, name) == 1 for address in addresses))
    return name


def create(client: WireClient, name: str, timeout_ms: int, *, dry: bool = False) -> Any:
    new = {"name": name, "num_partitions": 1, "replication_factor": 1}
    body = {"topics": [new], "timeout_ms": timeout_ms, "validate_only": dry}
    return client.call(ApiKey.CREATE_TOPICS, 7, body)


def count_partitions(address: str, name: str) -> int:
    """Return how many partitions a broker knows; 0 for a topic that does not exist."""
    asked = {"name": name, "topic_id": None}
    body = {"topics": [asked], "allow_auto_topic_creation": False}
    with WireClient(address) as client:
        return len(client.call(ApiKey.METADATA, 12, body).topics[0].partitions)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_nothing_is_created(addresses: list[str], topic: str, timeout_ms: int) -> None:
    for address in addresses:
        with WireClient(address) as client:
            for name in ("new", "not valid", topic):
                for dry in (False, True):
                    (made,) = create(client, name, timeout_ms, dry=dry).topics
                    assert (made.error_code, made.error_message) == (TIMED_OUT, None)
            grown = {"topics": [{"name": topic, "count": 2}], "timeout_ms": timeout_ms}
            (row,) = client.call(ApiKey.CREATE_PARTITIONS, 3, grown).results
            assert (row.error_code, row.error_message) == (TIMED_OUT, None)
        wait_for_changes(addresses)
        assert (count_partitions(address, "new"), count_partitions(address, topic)) == (0, 1)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_nothing_is_deleted(addresses: list[str], topic: str, timeout_ms: int) -> None:
    for address in addresses:
        with WireClient(address) as client:
            named = {"topics": [{"name": topic, "topic_id": None}], "timeout_ms": timeout_ms}
            (row,) = client.call(ApiKey.DELETE_TOPICS, 6, named).responses
            assert (row.error_code, row.error_message) == (TIMED_OUT, None)
            named = {"topic_names": [topic, "none"], "timeout_ms": timeout_ms}
            rows = client.call(ApiKey.DELETE_TOPICS, 5, named).responses
            assert [row.error_code for row in rows] == [TIMED_OUT, TIMED_OUT]
        wait_for_changes(addresses)
        assert count_partitions(address, topic) == 1


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_no_leader_is_elected(addresses: list[str], topic: str, timeout_ms: int) -> None:
    of_topic = [{"topic": topic, "partitions": [0, 5]}]
    for address in addresses:
        for partitions, errors in ((of_topic, [TIMED_OUT] * 2), (None, [])):
            body = {"election_type": 0, "topic_partitions": partitions, "timeout_ms": timeout_ms}
            with WireClient(address) as client:
                answer = client.call(ApiKey.ELECT_LEADERS, 2, body)
            rows = [row for t in answer.replica_election_results for row in t.partition_result]
            assert (answer.error_code, [row.error_code for row in rows]) == (TIMED_OUT, errors)


def wait_for_changes(addresses: list[str]) -> None:
    """Wait until all brokers know a topic that is created now, so also what was before it."""
    name = f"last-{uuid.uuid4().hex[:8]}"
    with WireClient(addresses[0]) as client:
        assert create(client, name, 30_000).topics[0].error_code == 0
    eventually(lambda: all(count_partitions(address, name) == 1 for address in addresses))
