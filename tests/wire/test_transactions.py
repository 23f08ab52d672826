"""Transactions over the wire: versions 1 and 2 of the protocol (KIP-98, KIP-890), byte by byte."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import iter_headers
from shoal.record.control import ControlType, read_marker
from shoal.record.records import build_batch, read_records
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess

_names = (f"name-{i}" for i in itertools.count())
COMMITTED, UNCOMMITTED = 1, 0


class Writer:
    """A transactional producer that sends only what the test requests."""

    def __init__(self, client: WireClient, transactional_id: str | None = None) -> None:
        self.client = client
        self.transactional_id = transactional_id or next(_names)
        self.producer_id = self.epoch = -1

    def init(self, *, timeout_ms: int = 60_000, expected: bool = False) -> ErrorCode:
        body = {
            "transactional_id": self.transactional_id,
            "transaction_timeout_ms": timeout_ms,
            "producer_id": self.producer_id if expected else -1,
            "producer_epoch": self.epoch if expected else -1,
        }
        answer = self.client.call(ApiKey.INIT_PRODUCER_ID, 5, body)
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return answer.error_code

    def started(self, **options: Any) -> Writer:
        assert self.init(**options) == 0
        return self

    def records(self, *values: bytes, sequence: int = 0, transactional: bool = True) -> bytes:
        batch = build_batch(
            [(int(time.time() * 1000), None, value, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        return bytes(batch)

    def produce(
        self, topic: str, *values: bytes, partition: int = 0, version: int = 12, **options: Any
    ) -> ErrorCode:
        data = [{"index": partition, "records": self.records(*values, **options)}]
        body = {
            "transactional_id": self.transactional_id,
            "acks": -1,
            "timeout_ms": 10_000,
            "topic_data": [{"name": topic, "partition_data": data}],
        }
        answer = self.client.call(ApiKey.PRODUCE, version, body)
        return answer.responses[0].partition_responses[0].error_code

    def add(self, topic: str, *partitions: int) -> list[ErrorCode]:
        body = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}],
        }
        answer = self.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, body)
        rows = answer.results_by_topic_v3_and_below[0].results_by_partition
        return [row.partition_error_code for row in rows]

    def end(self, *, committed: bool, version: int = 5) -> ErrorCode:
        body = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "committed": committed,
        }
        answer = self.client.call(ApiKey.END_TXN, version, body)
        if answer.error_code == 0 and version >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return answer.error_code

    def described(self) -> Any:
        body = {"transactional_ids": [self.transactional_id]}
        return self.client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, body).transaction_states[0]

    def at_rest(self) -> Any:
        """The id's description once all its markers are written."""
        return eventually(
            lambda: d if "Prepare" not in (d := self.described()).transaction_state else None
        )


@pytest.fixture
def client(shared_broker: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shared_broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: WireClient) -> str:
    name = next(_names)
    client.create_topic(name, 2)
    return name


@pytest.fixture
def writer(client: WireClient) -> Writer:
    return Writer(client).started()


def values(found: Any) -> list[bytes | None]:
    """Return what a consumer returns: no control batches and no aborted transactions."""
    data, aborted = found.records or b"", list(found.aborted_transactions or ())
    open_, shown = set(), []
    for at, header in iter_headers(data):
        open_ |= {a.producer_id for a in aborted if a.first_offset <= header.base_offset}
        aborted = [a for a in aborted if a.first_offset > header.base_offset]
        if header.is_control:
            open_.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in open_):
            shown += [record.value for record in read_records(data, at)]
    return shown


def markers(client: WireClient, topic: str, partition: int = 0) -> list[tuple[str, int]]:
    """Return the markers of a partition: commit or abort, and the producer epoch."""
    found = client.fetch(topic, 0, partition=partition)
    data = found.records or b""
    made = []
    for at, header in iter_headers(data):
        if header.is_control:
            marker = read_marker(data, at)
            assert marker is not None
            made.append((ControlType(marker.control_type).name, header.producer_epoch))
    return made


def committed(client: WireClient, topic: str, partition: int = 0) -> list[bytes | None]:
    return values(client.fetch(topic, 0, partition=partition, isolation_level=COMMITTED))


def test_a_commit_shows_and_an_abort_hides_in_version_2(
    client: WireClient, topic: str, writer: Writer
) -> None:
    assert writer.produce(topic, b"a") == 0
    assert writer.produce(topic, b"b", sequence=1) == 0
    found = client.fetch(topic, 0, isolation_level=COMMITTED)
    assert (found.high_watermark, found.last_stable_offset, found.records or b"") == (2, 0, b"")
    assert (writer.end(committed=True), writer.epoch) == (0, 1)
    assert writer.produce(topic, b"c") == 0
    assert (writer.end(committed=False), writer.epoch) == (0, 2)
    assert writer.at_rest().transaction_state == "CompleteAbort"
    assert committed(client, topic) == [b"a", b"b"]
    assert markers(client, topic) == [("COMMIT", 1), ("ABORT", 2)]
    assert client.fetch(topic, 0, isolation_level=COMMITTED).last_stable_offset == 5


def test_version_1_names_its_partitions_first(
    client: WireClient, topic: str, writer: Writer
) -> None:
    assert writer.add(topic, 0, 1) == [0, 0]
    assert writer.produce(topic, b"a", version=9) == 0
    assert writer.produce(topic, b"b", partition=1, version=9) == 0
    assert (writer.end(committed=True, version=4), writer.epoch) == (0, 0)
    assert writer.at_rest().transaction_state == "CompleteCommit"
    assert writer.add(topic, 0) == [0]
    assert writer.produce(topic, b"c", version=9, sequence=1) == 0
    assert writer.end(committed=True, version=4) == 0
    writer.at_rest()
    assert committed(client, topic) == [b"a", b"c"]
    assert committed(client, topic, 1) == [b"b"]
    assert markers(client, topic) == [("COMMIT", 0), ("COMMIT", 0)]


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (9, ErrorCode.invalid_txn_state),
        (11, ErrorCode.transaction_abortable),
    ],
)
def test_a_partition_that_was_not_named_is_refused_in_version_1(
    client: WireClient, topic: str, writer: Writer, version: int, error: ErrorCode
) -> None:
    assert writer.add(topic, 1) == [0]
    assert writer.produce(topic, b"a", version=version) == error
    assert client.fetch(topic, 0).high_watermark == 0


def test_adding_is_all_or_nothing(client: WireClient, topic: str, writer: Writer) -> None:
    assert writer.add(topic, 0, 7) == [
        ErrorCode.operation_not_attempted,
        ErrorCode.unknown_topic_or_partition,
    ]
    body = {"state_filters": ["Empty"], "producer_id_filters": [writer.producer_id]}
    answer = client.call(ApiKey.LIST_TRANSACTIONS, 0, body)
    assert [t.transactional_id for t in answer.transaction_states] == [writer.transactional_id]


def test_the_last_init_fences_earlier_producers(
    client: WireClient, topic: str, writer: Writer
) -> None:
    assert writer.produce(topic, b"zombie's") == 0
    heir = Writer(client, writer.transactional_id)
    assert heir.init() == ErrorCode.concurrent_transactions
    eventually(lambda: heir.init() == 0)
    assert (heir.producer_id, heir.epoch) == (writer.producer_id, 2)
    assert writer.produce(topic, b"late", sequence=1) == ErrorCode.invalid_producer_epoch
    assert writer.end(committed=True) == ErrorCode.producer_fenced
    assert writer.add(topic, 1) == [ErrorCode.producer_fenced]
    assert writer.init(expected=True) == ErrorCode.producer_fenced
    assert heir.produce(topic, b"heir's") == 0
    assert heir.end(committed=True) == 0
    heir.at_rest()
    assert committed(client, topic) == [b"heir's"]


def test_old_clients_get_invalid_producer_epoch(client: WireClient, writer: Writer) -> None:
    Writer(client, writer.transactional_id).started()
    for version in (0, 1):
        assert writer.end(committed=True, version=version) == ErrorCode.invalid_producer_epoch
    assert writer.end(committed=True, version=2) == ErrorCode.producer_fenced


def test_a_lost_answer_is_given_again(client: WireClient, topic: str, writer: Writer) -> None:
    assert writer.produce(topic, b"a") == 0
    before = writer.epoch
    assert writer.end(committed=True) == 0
    writer.at_rest()
    after, writer.epoch = writer.epoch, before
    assert writer.end(committed=False) == ErrorCode.invalid_txn_state
    assert (writer.end(committed=True), writer.epoch) == (0, after)
    assert markers(client, topic) == [("COMMIT", 1)]


def test_initializing_again_is_known_by_the_epoch_before(writer: Writer) -> None:
    assert writer.init(expected=True) == 0
    assert writer.epoch == 1
    writer.epoch = 0
    assert (writer.init(expected=True), writer.epoch) == (0, 1)


def test_an_abort_without_writes_bumps_the_epoch(writer: Writer) -> None:
    assert writer.end(committed=True) == ErrorCode.invalid_txn_state
    assert (writer.end(committed=False), writer.epoch) == (0, 1)
    assert writer.at_rest().transaction_state == "CompleteAbort"
    assert (writer.end(committed=False), writer.epoch) == (0, 2)
    writer.at_rest()
    assert writer.end(committed=False, version=4) == 0
    assert writer.end(committed=True, version=4) == ErrorCode.invalid_txn_state


def test_a_timeout_aborts_and_fences(client: WireClient, topic: str) -> None:
    writer = Writer(client).started(timeout_ms=1_000)
    assert writer.produce(topic, b"slow") == 0
    eventually(lambda: writer.described().transaction_state == "CompleteAbort")
    assert markers(client, topic) == [("ABORT", 1)]
    assert writer.produce(topic, b"late", sequence=1) == ErrorCode.invalid_producer_epoch
    assert writer.end(committed=True) == ErrorCode.producer_fenced


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_have_bounds(client: WireClient, timeout_ms: int) -> None:
    assert Writer(client).init(timeout_ms=timeout_ms) == ErrorCode.invalid_transaction_timeout


def test_an_empty_id_is_none(client: WireClient) -> None:
    writer = Writer(client)
    writer.transactional_id = ""
    assert writer.init() == ErrorCode.invalid_request
    assert writer.end(committed=True) == ErrorCode.invalid_request


def test_an_id_that_nobody_initialized(client: WireClient, topic: str) -> None:
    stranger = Writer(client)
    stranger.producer_id, stranger.epoch = 1 << 40, 0
    assert stranger.add(topic, 0) == [ErrorCode.invalid_producer_id_mapping]
    assert stranger.produce(topic, b"v") == ErrorCode.invalid_producer_id_mapping
    assert stranger.end(committed=True) == ErrorCode.invalid_producer_id_mapping
    assert stranger.described().error_code == ErrorCode.transactional_id_not_found


def test_a_transactional_batch_needs_a_transactional_id(
    client: WireClient, topic: str, writer: Writer
) -> None:
    answer = client.produce(topic, records=writer.records(b"v"))
    assert answer.error_code == ErrorCode.transactional_id_authorization_failed


def test_a_plain_write_amid_a_transaction_is_refused(
    client: WireClient, topic: str, writer: Writer
) -> None:
    assert writer.produce(topic, b"a") == 0
    plain = client.produce(topic, records=writer.records(b"v", sequence=1, transactional=False))
    assert plain.error_code == ErrorCode.invalid_txn_state


def test_a_transaction_begins_with_sequence_0(
    client: WireClient, topic: str, writer: Writer
) -> None:
    assert writer.produce(topic, b"v", sequence=3) == ErrorCode.out_of_order_sequence_number
    assert client.fetch(topic, 0).high_watermark == 0


def test_verification_by_brokers(client: WireClient, topic: str, writer: Writer) -> None:
    def ask(verify_only: bool, *partitions: int) -> list[ErrorCode]:
        transaction = {
            "transactional_id": writer.transactional_id,
            "producer_id": writer.producer_id,
            "producer_epoch": writer.epoch,
            "verify_only": verify_only,
            "topics": [{"name": topic, "partitions": list(partitions)}],
        }
        body = {"transactions": [transaction]}
        answer = client.call(ApiKey.ADD_PARTITIONS_TO_TXN, 5, body)
        (result,) = answer.results_by_transaction
        return [p.partition_error_code for p in result.topic_results[0].results_by_partition]

    assert ask(True, 0) == [ErrorCode.transaction_abortable]
    assert ask(False, 0) == [0]
    assert ask(True, 0, 1) == [0, ErrorCode.transaction_abortable]
    writer.epoch += 1
    assert ask(True, 0) == [ErrorCode.producer_fenced]


def test_pipelined_writes_keep_their_order(client: WireClient, topic: str, writer: Writer) -> None:
    for sequence in range(20):
        data = [{"index": 0, "records": writer.records(b"%d" % sequence, sequence=sequence)}]
        if sequence == 7:  # Its partition must be added, unlike those of later writes.
            data.append({"index": 1, "records": writer.records(b"other")})
        body = {
            "transactional_id": writer.transactional_id,
            "acks": -1,
            "timeout_ms": 10_000,
            "topic_data": [{"name": topic, "partition_data": data}],
        }
        client.send(ApiKey.PRODUCE, 12, body)
    for _ in range(20):
        (topic_answer,) = client.receive(ApiKey.PRODUCE, 12)[1].responses
        assert [p.error_code for p in topic_answer.partition_responses] in ([0], [0, 0])
    assert writer.end(committed=True) == 0
    writer.at_rest()
    assert committed(client, topic) == [b"%d" % i for i in range(20)]


def test_transactions_are_listed_by_every_filter(
    client: WireClient, topic: str, writer: Writer
) -> None:
    assert writer.produce(topic, b"v") == 0

    def ids(**filters: Any) -> set[str]:
        body = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        answer = client.call(ApiKey.LIST_TRANSACTIONS, 2, body)
        assert answer.error_code == 0
        return {row.transactional_id for row in answer.transaction_states}

    name = writer.transactional_id
    assert name in ids()
    assert ids(producer_id_filters=[writer.producer_id]) == {name}
    assert ids(transactional_id_pattern=name) == {name}
    assert ids(transactional_id_pattern=name[:-1]) != {name}
    # In a backtracking engine, the broker would never answer again.
    assert ids(transactional_id_pattern=f"({name[0]}|.)+(.+)+(.+)+\\d{{9}}!") == set()
    refused = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    refused["transactional_id_pattern"] = r"(a)\1"
    answer = client.call(ApiKey.LIST_TRANSACTIONS, 2, refused)
    assert answer.error_code == ErrorCode.invalid_regular_expression
    assert name in ids(state_filters=["Ongoing"], duration_filter=-1)
    assert name not in ids(state_filters=["Empty"])
    assert name not in ids(duration_filter=3_600_000)
    assert ids(state_filters=["Nonsense"]) == set()
    row = writer.described()
    assert (row.transaction_state, row.producer_id) == ("Ongoing", writer.producer_id)
    assert [(t.topic, t.partitions) for t in row.topics] == [(topic, [0])]


def test_an_operator_ends_a_transaction_with_a_marker(
    client: WireClient, topic: str, writer: Writer
) -> None:
    assert writer.produce(topic, b"v") == 0

    def write(epoch: int, version: int) -> ErrorCode:
        marker = {
            "producer_id": writer.producer_id,
            "producer_epoch": epoch,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [0, 9]}],
            "coordinator_epoch": 0,
            "transaction_version": version,
        }
        answer = client.call(ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [marker]})
        first, second = answer.markers[0].topics[0].partitions
        assert second.error_code == ErrorCode.unknown_topic_or_partition
        return first.error_code

    assert write(writer.epoch, 2) == ErrorCode.invalid_producer_epoch
    assert write(writer.epoch, 0) == 0
    assert client.fetch(topic, 0).last_stable_offset == 2
    assert committed(client, topic) == []


def test_a_committed_reader_waits_for_the_marker(
    topic: str, writer: Writer, shared_broker: ShoalProcess
) -> None:
    """Writes of an open transaction do not wake it; the marker does."""
    with WireClient(shared_broker.bootstrap) as reader:
        asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        body = {
            "max_wait_ms": 20_000,
            "min_bytes": 1,
            "max_bytes": 1 << 26,
            "session_epoch": -1,
            "isolation_level": COMMITTED,
            "topics": [{"topic": topic, "partitions": [asked]}],
        }
        reader.send(ApiKey.FETCH, 12, body)
        assert writer.produce(topic, b"a") == 0
        assert writer.produce(topic, b"b", sequence=1) == 0
        assert writer.end(committed=True) == 0
        _, answer = reader.receive(ApiKey.FETCH, 12)
    assert values(answer.responses[0].partitions[0]) == [b"a", b"b"]


def test_a_topic_that_is_deleted_amid_a_transaction(
    client: WireClient, topic: str, writer: Writer
) -> None:
    assert writer.produce(topic, b"v") == 0
    client.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": [topic], "timeout_ms": 10_000})
    assert writer.end(committed=True) == 0
    assert writer.at_rest().transaction_state == "CompleteCommit", "a deleted topic gets no marker"
