"""A client that brings transactional ids to each state, and sends every request there.

`collect_answers` returns what a cluster answers to requests of `transaction_answers` and to those
that reach the coordinator through another handler. `check_answers` compares two clusters.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from support.runs.conditions import eventually
from support.scenarios.transaction_answers import ANSWERS, SINCE_KAFKA_20785, WRITERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from support.brokers.wireclient import WireClient

#: A topic whose markers are written, and one whose markers wait for the end of the test.
HERE, ABSENT = "here", "absent"
#: The last one is reached by the coordinator's own abort, which fences the producer.
FENCED = "CompleteAbort fenced"
STATES = (*dict.fromkeys(state for state, _, _ in ANSWERS), FENCED)
#: Requests without a row in the table, each with its version: those whose errors differ.
FURTHER = (
    *("init 3", "add 1", "end 1", "offsets 1", "offsets 4", "commit_offsets 2"),
    *("commit_offsets 4", "commit_offsets 5", "produce 9", "produce 11", "produce 12"),
)
REQUESTS = (*dict.fromkeys(request for _, request, _ in ANSWERS), *FURTHER)
Writer = tuple[int, int]
#: State, request and writer.
Case = tuple[str, str, str]
#: The error, whether the producer id stays, and what is added to the epoch of the state.
Answer = tuple[str, bool, int]


class Driver:
    """Brings the transactional ids of one cluster to each state.

    `client` asks the transaction coordinator, `leader` the leader of partition 0 of `HERE`, and
    `groups` the coordinator of `group_id`. One broker may be all of them.
    """

    def __init__(
        self,
        client: WireClient,
        *,
        leader: WireClient | None = None,
        groups: WireClient | None = None,
        group_id: str = "group",
    ) -> None:
        self.client = client
        self.leader = leader or client
        self.groups = groups or client
        self.group_id = group_id
        #: The transactional ids of all cases, in order.
        self.ids: list[str] = []
        self.id = ""
        self.writer: Writer = (-1, -1)

    def reach(self, state: str) -> None:
        """Bring a new id to a state, with an epoch that has two before it."""
        self.id, self.writer = f"id-{len(self.ids)}", (-1, -1)
        self.ids.append(self.id)
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

    def described(self, id: str = "") -> Any:
        """Return the row of the current id, or another one, in DescribeTransactions."""
        body = {"transactional_ids": [id or self.id]}
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
        body = self._named(writer) | {"group_id": self.group_id}
        return self.client.call(ApiKey.ADD_OFFSETS_TO_TXN, version, body).error_code

    def commit_offsets(self, writer: Writer, version: int) -> ErrorCode:
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        body = self._named(writer) | {
            "group_id": self.group_id,
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": HERE, "partitions": [partition]}],
        }
        answer = self.groups.call(ApiKey.TXN_OFFSET_COMMIT, version, body)
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
        answer = self.leader.call(ApiKey.PRODUCE, version, body)
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


def create_topic_on(client: WireClient, name: str, brokers: list[int]) -> None:
    """Create a topic with one partition, which the first one of these brokers leads."""
    topic = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": brokers}],
        "configs": [],
    }
    body = {"topics": [topic], "timeout_ms": 10_000}
    (row,) = client.call(ApiKey.CREATE_TOPICS, 7, body).topics
    assert row.error_code == 0, row


def find_coordinator(client: WireClient, key_type: int, key: str) -> int:
    """Return the broker that coordinates a key. The first call creates the internal topic."""
    body = {"key_type": key_type, "coordinator_keys": [key]}

    def look() -> Any:
        (row,) = client.call(ApiKey.FIND_COORDINATOR, 4, body).coordinators
        return None if row.error_code else row

    return eventually(look, timeout_s=180, what=f"a coordinator of {key}").node_id


def draw_cases(seed: int, writers: int, states: Iterable[str] = STATES) -> list[Case]:
    """Return cases of each request in each state: those of `writers` producers, drawn for each."""
    draw = random.Random(seed)
    return [
        (state, request, name)
        for state, request in itertools.product(states, REQUESTS)
        for name in draw.sample(WRITERS, writers)
    ]


def collect_answers(driver: Driver, cases: Iterable[Case]) -> dict[Case, Answer]:
    """Return the answer in each case, each with a transactional id of its own."""
    found = {}
    for state, request, name in cases:
        driver.reach(state)
        producer_id, epoch = driver.writer
        error = driver.ask(request, name)
        is_same = driver.writer[0] == producer_id
        found[(state, request, name)] = (error.name, is_same, driver.writer[1] - epoch)
    return found


def check_answers(ours: Mapping[Case, Answer], theirs: Mapping[Case, Answer]) -> None:
    """Check that Shoal's answers are those of the table, and Kafka's."""
    table = {case: error.name for case, error in ANSWERS.items() if case in ours}
    assert {case: ours[case][0] for case in table} == table
    later = (SINCE_KAFKA_20785, (FENCED, *SINCE_KAFKA_20785[1:]))
    answered = {theirs[case][0] for case in later if case in theirs}
    assert answered <= {"invalid_txn_state", "producer_fenced"}
    differ = [(case, ours[case], theirs[case]) for case in ours if ours[case] != theirs[case]]
    assert not [row for row in differ if row[0] not in later]
