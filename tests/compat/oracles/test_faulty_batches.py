"""Shoal answers faulty batches as Apache Kafka does (KIP-467 included).

Both brokers get the cases of `faulty_batches`. The test compares error codes, record errors, log
ends and stored batches. `STRICTER` and `STRICTER_COMPRESSED` are the deliberate differences, which
docs/compat.md lists: Kafka stores these batches, and a strict reader cannot read them.
"""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, Message, Producer
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import iter_headers
from shoal.record.records import read_records
from support.attacks.faulty_batches import CASES, TOPICS, Case, batch, record, records
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

pytestmark = pytest.mark.java

#: Kafka stores these batches with any codec.
STRICTER = re.compile(
    r"a batch and .*|\w+ to .*, a gap|NONE offsets .*|.* record: (timestamp of ten bytes, too wide"
    r"|(key|value|header value) of -2|key of -1000)"
)
#: Kafka does not check these bytes of compressed batches, and stores the batch. It lists a record
#: without a key before such a fault.
STRICTER_COMPRESSED = re.compile(
    r"(?!NONE).* (record: (size (one less|one more|0|3|1000000)"
    r"|the last past the end)|tail behind the data|no key, and a fault behind it)|SNAPPY garbled"
)
_LOG_APPEND_TIME = 0x08
#: Hundreds of partitions have leaders within this time, on a busy machine, too.
LEADERS_S = 180


class Outcome(NamedTuple):
    """The result of a case; `stored` is None if nothing was appended."""

    error: ErrorCode
    record_errors: list[int]
    explained: bool
    message: str | None
    append_time: bool
    end: int
    stored: tuple[Any, ...] | None


@pytest.fixture(scope="module")
def outcomes(
    kafka: SharedKafka, shared_broker: ShoalProcess
) -> Iterator[list[tuple[Case, Outcome, Outcome]]]:
    """Yield each case with Kafka's and Shoal's outcome."""
    addresses = (kafka.bootstrap, shared_broker.bootstrap)
    with ThreadPoolExecutor(2) as pool:
        theirs, ours = pool.map(_outcomes, addresses)
    yield [(case, theirs[case.name], ours[case.name]) for case in CASES]
    for bootstrap in addresses:  # Other files use the servers, too.
        with WireClient(bootstrap) as client:
            body = {"topics": [{"name": name} for name in TOPICS], "timeout_ms": 30_000}
            client.call(ApiKey.DELETE_TOPICS, 6, body)


def _outcomes(bootstrap: str) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    with WireClient(bootstrap) as client:
        for topic, configs in TOPICS.items():
            # One request for each version, so that a hundred cases take one round trip.
            cases = sorted((c for c in CASES if c.topic == topic), key=_request_of)
            settings = {name.replace(".", "_"): value for name, value in configs.items()}
            client.create_topic(topic, len(cases), **settings)
            _wait_for_leaders(client, topic, len(cases))
            answers: list[Any] = []
            for (version, _), group in groupby(cases, key=_request_of):
                answers += _produce(client, topic, version, list(group), len(answers))
            ends = _ends(client, topic, len(cases))
            taken = [i for i, end in enumerate(ends) if end > 0]
            stored = _stored(client, topic, taken)
            for i, (case, answer) in enumerate(zip(cases, answers, strict=True)):
                assert answer.index == i
                found[case.name] = _outcome(answer, ends[i], stored.get(i))
    return found


def _request_of(case: Case) -> tuple[int, str]:
    return case.version, case.name if case.alone else ""


def _produce(
    client: WireClient, topic: str, version: int, cases: list[Case], first: int
) -> list[Any]:
    data = [{"index": first + i, "records": case.data} for i, case in enumerate(cases)]
    body = {
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": data}],
    }
    (answer,) = client.call(ApiKey.PRODUCE, version, body).responses
    return sorted(answer.partition_responses, key=lambda p: p.index)


def _wait_for_leaders(client: WireClient, topic: str, count: int) -> None:
    ends = partial(_ends, client, topic, count)
    eventually(ends, timeout_s=LEADERS_S, what=f"leaders of {topic}")


def _ends(client: WireClient, topic: str, count: int) -> list[int]:
    """Return the log ends; empty while a partition has no leader."""
    rows = [
        {"partition_index": i, "current_leader_epoch": -1, "timestamp": -1} for i in range(count)
    ]
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": rows}]}
    (answer,) = client.call(ApiKey.LIST_OFFSETS, 5, body).topics
    found = sorted(answer.partitions, key=lambda p: p.partition_index)
    return [] if any(p.error_code for p in found) else [p.offset for p in found]


def _stored(client: WireClient, topic: str, partitions: list[int]) -> dict[int, tuple[Any, ...]]:
    """Return the only batch of each partition: its header, and its records if they are readable."""
    rows = [{"partition": i, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for i in partitions]
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 26,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": rows}],
    }
    found = {}
    for answer in client.call(ApiKey.FETCH, 12, body).responses:
        for row in answer.partitions:
            ((at, header),) = iter_headers(row.records)
            stamped = header.attributes & _LOG_APPEND_TIME
            try:
                records = [
                    r._replace(timestamp_ms=0) if stamped else r
                    for r in read_records(row.records, at, bytes_max=1 << 20)
                ]
            except Exception:
                records = []  # Too large, or Kafka stored an unreadable batch.
            found[row.partition_index] = (
                header.record_count,
                header.last_offset_delta,
                header.attributes,
                header.base_timestamp,
                0 if stamped else header.max_timestamp,
                records,
            )
    return found


def _outcome(answer: Any, end: int, stored: tuple[Any, ...] | None) -> Outcome:
    errors = getattr(answer, "record_errors", ())
    return Outcome(
        ErrorCode(answer.error_code),
        [e.batch_index for e in errors],
        all(e.batch_index_error_message for e in errors),
        getattr(answer, "error_message", None),
        answer.log_append_time is not None
        if hasattr(answer, "log_append_time")
        else answer.log_append_time_ms != -1,
        end,
        stored,
    )


def test_every_answer_is_kafkas(outcomes: list[tuple[Case, Outcome, Outcome]]) -> None:
    wrong = []
    for case, kafka, shoal in outcomes:
        refused = shoal.error is ErrorCode.invalid_record and shoal.end == 0
        if kafka.error is ErrorCode.unknown_server_error:
            same = refused or shoal.error is ErrorCode.unsupported_compression_type
        elif STRICTER.fullmatch(case.name) or STRICTER_COMPRESSED.fullmatch(case.name):
            same = refused and kafka[:3] != shoal[:3] and not shoal.record_errors
        else:
            # Shoal explains more refusals than Kafka does.
            same = kafka._replace(message=None) == shoal._replace(message=None)
            same = same and (shoal.message is not None or kafka.message is None)
        if not same:
            wrong.append(f"{case.name}:\n  Kafka {kafka}\n  Shoal {shoal}")
    assert not wrong, "\n".join(wrong)
    assert sum(kafka.error is ErrorCode.none for _, kafka, _ in outcomes) > 100


def test_stored_batches_are_readable(outcomes: list[tuple[Case, Outcome, Outcome]]) -> None:
    for case, _, shoal in outcomes:
        if shoal.end and "8 MiB" not in case.name and "no UTF-8" not in case.name:
            assert shoal.stored is not None, case.name
            assert len(shoal.stored[-1]) == shoal.end, case.name


def test_a_client_blames_the_records_that_are_listed(
    kafka: SharedKafka, shared_broker: ShoalProcess
) -> None:
    """KIP-467: the records without a fault get a different error."""
    for bootstrap in (kafka.bootstrap, shared_broker.bootstrap):
        with WireClient(bootstrap) as client:
            client.create_topic("blamed", cleanup_policy="compact")
        assert _reported(bootstrap) == {
            (True, KafkaError.INVALID_RECORD): 10,
            (False, KafkaError._INVALID_DIFFERENT_RECORD): 90,
        }


def _reported(bootstrap: str) -> Counter[tuple[bool, int]]:
    """Count the errors of 100 records in one batch, by whether the record lacks a key."""
    errors: Counter[tuple[bool, int]] = Counter()

    def report(error: KafkaError, message: Message) -> None:
        errors[message.key() is None, error.code()] += 1

    # The batch is sent when it holds 100 records. A linger that ends, or a flush, can send fewer.
    producer = Producer(
        {"bootstrap.servers": bootstrap, "batch.num.messages": 100, "linger.ms": 60_000}
    )
    for i in range(100):
        producer.produce("blamed", b"v", None if i % 10 == 3 else b"k", callback=report)
    eventually(lambda: producer.poll(0.1) is not None and errors.total() == 100, timeout_s=30)
    return errors


def test_record_errors_are_bounded(shared_broker: ShoalProcess) -> None:
    with WireClient(shared_broker.bootstrap) as client:
        client.create_topic("bounded", cleanup_policy="compact")
        many = batch(*records(20_000, key=None, value=None), codec=4)
        answer = client.produce("bounded", records=many)
        assert answer.error_code == ErrorCode.invalid_record
        assert [e.batch_index for e in answer.record_errors] == list(range(10_000))
        assert "20000 of 20000" in answer.error_message
        assert client.produce("bounded", records=batch(record())).error_code == 0


# Sequences of idempotent producers

#: (producer id, epoch, base sequence), in the order of sending.
SEQUENCES = [
    *[(1_000, 0, n) for n in range(7)],
    *[(1_000, 0, n) for n in range(6, -1, -1)],  # The last five are duplicates.
    (1_000, 0, 9), (1_000, 0, 7),
    (2_000, 0, 7), (2_000, 0, 9), (2_000, 0, 8),  # An unknown producer may begin with any sequence.
    (2_000, 1, 5), (2_000, 1, 0), (2_000, 0, 9), (2_000, 1, 0), (2_000, 1, 1),
]  # fmt: skip


def test_sequences_get_kafkas_answers(kafka: SharedKafka, shared_broker: ShoalProcess) -> None:
    theirs, ours = map(_of_sequences, (kafka.bootstrap, shared_broker.bootstrap))
    assert ours == theirs
    assert {code for code, _ in ours} == {
        ErrorCode.none, ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_producer_epoch
    }  # fmt: skip


def _of_sequences(bootstrap: str) -> list[tuple[int, int]]:
    """Return the error code and offset of each batch; some are sent again after DeleteRecords."""

    def send(id: int, epoch: int, sequence: int) -> tuple[int, int]:
        who = {"producer_id": id, "producer_epoch": epoch, "base_sequence": sequence}
        answer = client.produce("sequences", b"v", **who)
        return answer.error_code, answer.base_offset

    with WireClient(bootstrap) as client:
        client.create_topic("sequences")
        _wait_for_leaders(client, "sequences", 1)
        found = [send(*one) for one in SEQUENCES]
        rows = [{"partition_index": 0, "offset": -1}]
        body = {"topics": [{"name": "sequences", "partitions": rows}], "timeout_ms": 5_000}
        deleted = client.call(ApiKey.DELETE_RECORDS, 2, body).topics[0].partitions[0]
        return [*found, (deleted.error_code, deleted.low_watermark)] + [
            send(1_000, 0, sequence) for sequence in (7, 6, 4, 8)
        ]
