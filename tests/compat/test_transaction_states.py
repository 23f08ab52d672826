"""Shoal's transaction coordinator answers as Apache Kafka's does, also while markers are written.

Both brokers get every request in every state, for every producer (`transaction_answers`). Where
markers are to be written, one partition of the transaction is led by a broker that is registered
and does not exist, so that they wait for as long as the test asks. Requests that reach the
coordinator through another handler have no row in the table; for these the two answers are equal.
"""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from conditions import eventually
from ports import free_ports
from shoal.metadata.controller import SUPPORTED_FEATURES
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from transaction_answers import ANSWERS, SINCE_KAFKA_20785, WRITERS
from wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import ShoalProcess
    from shared_servers import SharedKafka

pytestmark = pytest.mark.java

ABSENT_BROKER = 2
HERE, ABSENT = "here", "absent"
#: An own Kafka, since a registered broker changes it for all tests.
CONFIGS = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    # The absent broker stays a leader, however long the test takes.
    "broker.session.timeout.ms": "1800000",
}
#: The last one is reached by the coordinator's own abort, which fences the producer.
FENCED = "CompleteAbort fenced"
STATES = (*dict.fromkeys(state for state, _, _ in ANSWERS), FENCED)
#: Each with its version: those whose errors differ.
FURTHER = (
    *("init 3", "add 1", "end 1", "offsets 1", "offsets 4", "commit_offsets 2"),
    *("commit_offsets 4", "commit_offsets 5", "produce 9", "produce 11", "produce 12"),
)
Writer = tuple[int, int]
#: State, request and writer.
Case = tuple[str, str, str]
#: The error, whether the producer id stays, and what is added to the epoch of the state.
Answer = tuple[str, bool, int]


class Driver:
    """One broker, whose transactional ids are brought to each state."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self._ids = (f"id-{i}" for i in itertools.count())
        self.id = ""
        self.writer: Writer = (-1, -1)

    def reach(self, state: str) -> None:
        """Bring a new id to a state, with an epoch that has two before it."""
        self.id, self.writer = next(self._ids), (-1, -1)
        for _ in range(3):
            eventually(lambda: self.init((-1, -1)) is ErrorCode.none, timeout_s=180)
        if state == "Empty":
            return
        topic = ABSENT if state.startswith("Prepare") else HERE
        assert self.add(self.writer, topic) is ErrorCode.none
        if state == "Ongoing":
            return
        if state == FENCED:
            assert self.init((-1, -1)) is ErrorCode.concurrent_transactions
        else:
            assert self.end(self.writer, 5, committed=state.endswith("Commit")) is ErrorCode.none
        row = eventually(
            lambda: r if (r := self.described()).transaction_state in state else None,
            what=state,
        )
        self.writer = (row.producer_id, row.producer_epoch)

    def described(self) -> Any:
        body = {"transactional_ids": [self.id]}
        (row,) = self.client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, body).transaction_states
        return row

    def ask(self, request: str, name: str) -> ErrorCode:
        """Return the error of a request of the named producer."""
        producer_id, epoch = self.writer
        by = {"older": -2, "before": -1, "next": 1}.get(name, 0)
        writer = (producer_id + (name == "other"), epoch + by)
        if request in ("commit", "commit2", "abort", "abort2"):
            version = 5 if request.endswith("2") else 4
            return self.end(writer, version, committed=request.startswith("commit"))
        api, _, number = request.partition(" ")
        match api:
            case "init":
                return self.init(writer, int(number or 5))
            case "add":
                return self.add(writer, ABSENT, int(number or 3))
            case "verify":
                return self.verify(writer)
            case "end":
                return self.end(writer, int(number), committed=True)
            case "offsets":
                return self.add_offsets(writer, int(number))
            case "commit_offsets":
                return self.commit_offsets(writer, int(number))
        return self.produce(writer, int(number))

    def init(self, expected: Writer, version: int = 5) -> ErrorCode:
        body = {
            "transactional_id": self.id,
            "transaction_timeout_ms": 600_000,
            "producer_id": expected[0],
            "producer_epoch": expected[1],
        }
        answer = self.client.call(ApiKey.INIT_PRODUCER_ID, version, body)
        if answer.error_code == 0:
            self.writer = (answer.producer_id, answer.producer_epoch)
        return answer.error_code

    def add(self, writer: Writer, topic: str, version: int = 3) -> ErrorCode:
        body = {
            "v3_and_below_transactional_id": self.id,
            "v3_and_below_producer_id": writer[0],
            "v3_and_below_producer_epoch": writer[1],
            "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
        }
        answer = self.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, body)
        (row,) = answer.results_by_topic_v3_and_below[0].results_by_partition
        return row.partition_error_code

    def verify(self, writer: Writer) -> ErrorCode:
        transaction = {
            "transactional_id": self.id,
            "producer_id": writer[0],
            "producer_epoch": writer[1],
            "verify_only": True,
            "topics": [{"name": HERE, "partitions": [0]}],
        }
        body = {"transactions": [transaction]}
        (result,) = self.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, 5, body).results_by_transaction
        return result.topic_results[0].results_by_partition[0].partition_error_code

    def add_offsets(self, writer: Writer, version: int) -> ErrorCode:
        body = self._named(writer) | {"group_id": "group"}
        return self.client.call(ApiKey.ADD_OFFSETS_TO_TXN, version, body).error_code

    def commit_offsets(self, writer: Writer, version: int) -> ErrorCode:
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        body = self._named(writer) | {
            "group_id": "group",
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": HERE, "partitions": [partition]}],
        }
        answer = self.client.call(ApiKey.TXN_OFFSET_COMMIT, version, body)
        return answer.topics[0].partitions[0].error_code

    def produce(self, writer: Writer, version: int) -> ErrorCode:
        batch = build_batch(
            [(1, None, b"v", ())],
            producer_id=writer[0],
            producer_epoch=writer[1],
            base_sequence=0,
            transactional=True,
        )
        body = {
            "transactional_id": self.id,
            "acks": -1,
            "timeout_ms": 10_000,
            "topic_data": [
                {"name": HERE, "partition_data": [{"index": 0, "records": bytes(batch)}]}
            ],
        }
        answer = self.client.call(ApiKey.PRODUCE, version, body)
        return answer.responses[0].partition_responses[0].error_code

    def end(self, writer: Writer, version: int, *, committed: bool) -> ErrorCode:
        body = self._named(writer) | {"committed": committed}
        answer = self.client.call(ApiKey.END_TXN, version, body)
        if answer.error_code == 0 and version >= 5:
            self.writer = (answer.producer_id, answer.producer_epoch)
        return answer.error_code

    def _named(self, writer: Writer) -> dict[str, Any]:
        return {
            "transactional_id": self.id,
            "producer_id": writer[0],
            "producer_epoch": writer[1],
        }


def _register_absent_broker(controller: WireClient, cluster_id: str) -> None:
    """Register and unfence a broker at an address where nothing listens."""
    (port,) = free_ports(1)
    listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": port, "security_protocol": 0}
    body = {
        "broker_id": ABSENT_BROKER,
        "cluster_id": cluster_id,
        "incarnation_id": uuid.uuid4(),
        "listeners": [listener],
        "features": [
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, (low, high) in {**SUPPORTED_FEATURES, "kraft.version": (0, 1)}.items()
        ],
        "rack": None,
        "is_migrating_zk_broker": False,
        "log_dirs": [uuid.uuid4()],
        "previous_broker_epoch": -1,
    }
    registered = controller.call(ApiKey.BROKER_REGISTRATION, 4, body)
    assert registered.error_code == 0, registered
    beat = {
        "broker_id": ABSENT_BROKER,
        "broker_epoch": registered.broker_epoch,
        "current_metadata_offset": 1 << 40,
        "want_fence": False,
        "want_shut_down": False,
    }
    eventually(lambda: not controller.call(ApiKey.BROKER_HEARTBEAT, 1, beat).is_fenced)


def _driver(client: WireClient, controller: WireClient) -> Driver:
    """Create the two topics and the internal ones, and return the driver."""
    cluster_id = client.call(ApiKey.DESCRIBE_CLUSTER, 0, {}).cluster_id
    for key_type in (0, 1):
        find = {"key_type": key_type, "coordinator_keys": ["group"]}
        eventually(
            lambda find=find: (
                not client.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code
            )
        )
    client.create_topic(HERE)
    _register_absent_broker(controller, cluster_id)
    assignment = {"partition_index": 0, "broker_ids": [ABSENT_BROKER]}
    topic = {
        "name": ABSENT,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [assignment],
        "configs": [],
    }
    body = {"topics": [topic], "timeout_ms": 10_000}
    (row,) = client.call(ApiKey.CREATE_TOPICS, 7, body).topics
    assert row.error_code == 0, row
    return Driver(client)


@pytest.fixture(scope="module")
def kafka_driver(get_kafka: Callable[..., SharedKafka]) -> Iterator[Driver]:
    kafka = get_kafka(CONFIGS)
    with (
        WireClient(kafka.bootstrap) as client,
        WireClient(kafka.addresses["CONTROLLER"]) as controller,
    ):
        yield _driver(client, controller)


@pytest.fixture
def driver(start_broker: Callable[..., ShoalProcess]) -> Iterator[Driver]:
    broker = start_broker(configs=CONFIGS | {"controller.listener.names": "PLAINTEXT"})
    with WireClient(broker.bootstrap) as client, WireClient(broker.bootstrap) as controller:
        yield _driver(client, controller)


def _answers(driver: Driver, requests: list[str]) -> dict[Case, Answer]:
    """Return the answer to each request in each state, each with a transactional id of its own."""
    found = {}
    for state, request, name in itertools.product(STATES, requests, WRITERS):
        driver.reach(state)
        producer_id, epoch = driver.writer
        error = driver.ask(request, name)
        is_same = driver.writer[0] == producer_id
        found[(state, request, name)] = (error.name, is_same, driver.writer[1] - epoch)
    return found


def test_the_answers_are_kafkas(driver: Driver, kafka_driver: Driver) -> None:
    """Thousands of requests to two brokers take some seconds."""
    requests = [*dict.fromkeys(request for _, request, _ in ANSWERS), *FURTHER]
    theirs, ours = _answers(kafka_driver, requests), _answers(driver, requests)
    table = {case: error.name for case, error in ANSWERS.items()}
    assert {case: ours[case][0] for case in table} == table
    later = (SINCE_KAFKA_20785, (FENCED, *SINCE_KAFKA_20785[1:]))
    assert {theirs[case][0] for case in later} <= {"invalid_txn_state", "producer_fenced"}
    differ = [(case, ours[case], theirs[case]) for case in ours if ours[case] != theirs[case]]
    assert not [row for row in differ if row[0] not in later]
