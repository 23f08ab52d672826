"""The request versions that Apache Kafka 4.4 added: Shoal answers them as Kafka does.

ApiVersions v5 names the cluster and the node that the client means (KIP-1242), TxnOffsetCommit v6
names topics by id (KIP-1319), and DeleteGroups v3 has a message for each group.
"""

from __future__ import annotations

import dataclasses
import operator
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.brokers.shared_servers import SharedKafka
    from support.security.secured_clusters import Secured

pytestmark = pytest.mark.java

TOPIC = f"newest-{uuid.uuid4().hex[:8]}"
SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}
OURS, ANOTHER = "ours", "another"
#: Cluster, node -> error. Only both together are valid.
MEANT = {
    (None, None): ErrorCode.none,
    (OURS, OURS): ErrorCode.none,
    (OURS, ANOTHER): ErrorCode.rebootstrap_required,
    (ANOTHER, OURS): ErrorCode.rebootstrap_required,
    ("", OURS): ErrorCode.rebootstrap_required,
    (OURS, None): ErrorCode.invalid_request,
    (None, OURS): ErrorCode.invalid_request,
    (ANOTHER, None): ErrorCode.invalid_request,
    (None, ANOTHER): ErrorCode.invalid_request,
}


@pytest.fixture(scope="module", params=["kafka", "shoal"])
def broker(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The addresses of a node with a listener of brokers and one of controllers."""
    if request.param == "kafka":
        kafka: SharedKafka = request.getfixturevalue("kafka")
        yield kafka.addresses
        return
    (port,) = free_ports(1)
    folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("newest")
    process = ShoalProcess(
        folder / "data",
        flags=[
            f"--listener=CONTROLLER://127.0.0.1:{port}",
            "--set=controller.listener.names=CONTROLLER",
        ],
        configs={"group.initial.rebalance.delay.ms": "0"},
    ).start()
    yield {"PLAINTEXT": process.bootstrap, "CONTROLLER": f"127.0.0.1:{port}"}
    process.kill9()


def meet(client: WireClient, ids: tuple[str, int], meant: tuple[str | None, str | None]) -> Any:
    """Send ApiVersions v5 to a node with the ids of its cluster and its own."""
    cluster = ids[0] if meant[0] == OURS else meant[0]
    node = -1 if meant[1] is None else ids[1] if meant[1] == OURS else 77
    body = SOFTWARE | {"cluster_id": cluster, "node_id": node}
    return client.call(ApiKey.API_VERSIONS, 5, body)


def find_ids(client: WireClient) -> tuple[str, int]:
    answer = client.call(ApiKey.DESCRIBE_CLUSTER, 0, {})
    return answer.cluster_id, answer.brokers[0].broker_id


def test_a_client_that_means_another_node(broker: dict[str, str]) -> None:
    with WireClient(broker["PLAINTEXT"]) as client:
        ids = find_ids(client)
        answers = {meant: meet(client, ids, meant) for meant in MEANT}
    assert {meant: answer.error_code for meant, answer in answers.items()} == MEANT
    for meant, answer in answers.items():
        assert bool(answer.api_keys) is bool(answer.supported_features) is (not MEANT[meant])


def test_a_listener_of_controllers_checks_only_the_form(broker: dict[str, str]) -> None:
    with WireClient(broker["PLAINTEXT"]) as client:
        ids = find_ids(client)
    with WireClient(broker["CONTROLLER"]) as client:
        for meant, error in MEANT.items():
            refused = error is ErrorCode.invalid_request
            found = meet(client, ids, meant).error_code
            assert found == (error if refused else ErrorCode.none), meant


def test_before_the_login_only_the_form_counts(secured: Secured) -> None:
    meant = {(ANOTHER, OURS): ErrorCode.none, (ANOTHER, None): ErrorCode.invalid_request}
    for one, error in meant.items():
        with WireClient(secured.addresses["SASL"]) as client:
            assert meet(client, ("", 1), one).error_code == error


class Transaction:
    """A transaction that commits offsets of a group, which no other one does."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self.group = f"newest-{uuid.uuid4().hex[:8]}"
        for key_type in (0, 1):
            self._wait_until_loaded(
                ApiKey.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=[self.group]
            )
        timeout = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
        self._id = {"transactional_id": self.group}
        started = self._wait_until_loaded(ApiKey.INIT_PRODUCER_ID, 5, **self._id, **timeout)
        self._id |= {"producer_id": started.producer_id, "producer_epoch": started.producer_epoch}

    def _wait_until_loaded(self, api: ApiKey, version: int, **body: Any) -> Any:
        """Return the answer of a coordinator that has loaded."""
        answers = []

        def is_loaded() -> bool:
            answers.append(self._client.call(api, version, body))
            return not LOADING & set(list_codes(answers[-1]))

        eventually(is_loaded, timeout_s=60)
        return answers[-1]

    def join(self) -> tuple[str, int]:
        """Return the id and the epoch of a member that owns the topic's partition."""
        beat = {
            "group_id": self.group,
            "member_id": "member",
            "member_epoch": 0,
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        }
        joined = self._wait_until_loaded(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **beat)
        assert joined.assignment.topic_partitions, joined
        return joined.member_id, joined.member_epoch

    def commit(self, version: int, topics: list[dict[str, Any]], **fields: Any) -> list[ErrorCode]:
        """Commit an offset of the partitions 0 and 7 of each topic; return the errors."""
        partitions = [
            {"partition_index": p, "committed_offset": 5, "committed_metadata": ""} for p in (0, 7)
        ]
        answer = self._wait_until_loaded(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            **self._id,
            group_id=self.group,
            topics=[topic | {"partitions": partitions} for topic in topics],
            **fields,
        )
        for sent, answered in zip(topics, answer.topics, strict=True):
            assert all(getattr(answered, name) == value for name, value in sent.items())
        return [
            p.error_code for topic in answer.topics for p in sorted(topic.partitions, key=INDEX)
        ]


INDEX = operator.attrgetter("partition_index")
LOADING = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.concurrent_transactions,
}


def list_codes(answer: Any) -> list[ErrorCode]:
    """Return the errors in an answer, at any depth."""
    if isinstance(answer, tuple):
        return [code for item in answer for code in list_codes(item)]
    if not dataclasses.is_dataclass(answer):
        return [answer] if isinstance(answer, ErrorCode) else []
    fields = [getattr(answer, field.name) for field in dataclasses.fields(answer)]
    return [code for value in fields for code in list_codes(value)]


@pytest.fixture(scope="module")
def topic_id(broker: dict[str, str]) -> uuid.UUID:
    """The id of a topic with one partition."""
    with WireClient(broker["PLAINTEXT"]) as client:
        made = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        body = {"topics": [made], "timeout_ms": 30_000}
        (created,) = client.call(ApiKey.CREATE_TOPICS, 7, body).topics
    assert created.error_code == 0, created
    return uuid.UUID(int=created.topic_id.int)


def test_offsets_of_a_transaction_by_topic_id(broker: dict[str, str], topic_id: uuid.UUID) -> None:
    unknown = ErrorCode.unknown_topic_id
    with WireClient(broker["PLAINTEXT"]) as client:
        found = Transaction(client).commit(
            6, [{"topic_id": topic_id}, {"topic_id": uuid.UUID(int=5)}]
        )
    assert found == [ErrorCode.none, ErrorCode.unknown_topic_or_partition, unknown, unknown]


def test_a_member_of_another_epoch_and_a_missing_group(
    broker: dict[str, str], topic_id: uuid.UUID
) -> None:
    """Before version 6, both had the error of the classic protocol."""
    known: dict[int, dict[str, Any]] = {5: {"name": TOPIC}, 6: {"topic_id": topic_id}}
    with WireClient(broker["PLAINTEXT"]) as client:
        found = {
            version: Transaction(client).commit(version, [topic], generation_id=3, member_id="m")[0]
            for version, topic in known.items()
        }
        assert found == {5: ErrorCode.illegal_generation, 6: ErrorCode.group_id_not_found}
        for version, topic in known.items():
            transaction = Transaction(client)
            member, epoch = transaction.join()
            later = transaction.commit(version, [topic], generation_id=epoch + 1, member_id=member)
            found[version] = later[0]
            right = transaction.commit(version, [topic], generation_id=epoch, member_id=member)
            assert right[0] == ErrorCode.none
        assert found == {5: ErrorCode.illegal_generation, 6: ErrorCode.stale_member_epoch}


def test_each_deleted_group_has_a_message(broker: dict[str, str]) -> None:
    with WireClient(broker["PLAINTEXT"]) as client:
        transaction = Transaction(client)
        body = {"groups_names": [transaction.group]}
        (result,) = client.call(ApiKey.DELETE_GROUPS, 3, body).results
    assert (result.error_code, result.error_message) == (ErrorCode.group_id_not_found, None)
