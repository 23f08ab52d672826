"""Produce, Fetch and related requests over the wire, in the versions that differ."""

from __future__ import annotations

import itertools
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import iter_headers
from shoal.record.records import build_batch, read_records
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess

_names = (f"topic-{i}" for i in itertools.count())


@pytest.fixture
def client(shared_broker: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shared_broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: WireClient) -> str:
    name = next(_names)
    client.create_topic(name, 2)
    return name


def values(records: bytes | None) -> list[bytes | None]:
    data = records or b""
    return [r.value for at, _ in iter_headers(data) for r in read_records(data, at)]


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_and_fetch_in_every_version_by_name(
    client: WireClient, topic: str, version: int
) -> None:
    batch = bytes(build_batch([(1, b"k", b"v", ())]))
    body = {
        "acks": 1,
        "timeout_ms": 1000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 1, "records": batch}]}],
    }
    (answer,) = client.call(ApiKey.PRODUCE, version, body).responses
    assert answer.name == topic
    assert (
        answer.partition_responses[0].error_code,
        answer.partition_responses[0].base_offset,
    ) == (0, 0)
    found = client.fetch(topic, 0, partition=1, version=max(version, 4))
    assert (found.error_code, found.high_watermark) == (0, 1)
    assert values(found.records) == [b"v"]


@pytest.mark.parametrize("version", range(13, 19))
def test_produce_and_fetch_by_id(client: WireClient, version: int) -> None:
    name = next(_names)
    topic_id = client.create_topic(name)
    batch = bytes(build_batch([(1, b"k", b"v", ())]))

    def produce(to: uuid.UUID) -> Any:
        body = {
            "acks": -1,
            "timeout_ms": 1000,
            "topic_data": [{"topic_id": to, "partition_data": [{"index": 0, "records": batch}]}],
        }
        return client.call(ApiKey.PRODUCE, 13, body).responses[0].partition_responses[0]

    def fetch(by: uuid.UUID) -> Any:
        asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        body = {
            "max_bytes": 1000,
            "session_epoch": -1,
            "topics": [{"topic_id": by, "partitions": [asked]}],
        }
        return client.call(ApiKey.FETCH, version, body).responses[0].partitions[0]

    assert produce(topic_id).error_code == 0
    assert values(fetch(topic_id).records) == [b"v"]
    assert produce(uuid.uuid4()).error_code == ErrorCode.unknown_topic_id
    assert fetch(uuid.uuid4()).error_code == ErrorCode.unknown_topic_id


def test_what_is_refused(client: WireClient, topic: str) -> None:
    assert client.produce("none", b"v").error_code == ErrorCode.unknown_topic_or_partition
    assert (
        client.produce(topic, b"v", partition=9).error_code == ErrorCode.unknown_topic_or_partition
    )
    assert client.produce(topic, b"v", acks=2).error_code == ErrorCode.invalid_required_acks
    assert client.produce(topic, records=None).error_code == ErrorCode.invalid_record
    bad = bytearray(build_batch([(1, None, b"value", ())]))
    bad[-1] ^= 1
    assert client.produce(topic, records=bytes(bad)).error_code == ErrorCode.corrupt_message
    bad[16] = 1
    assert client.produce(topic, records=bytes(bad)).error_code == ErrorCode.invalid_record
    large = client.produce(topic, bytes(2_000_000))
    assert large.error_code == ErrorCode.message_too_large
    assert "max.message.bytes" in large.error_message
    assert client.fetch(topic, 0).high_watermark == 0


def test_internal_topics_are_written_by_brokers_alone(client: WireClient) -> None:
    client.call(ApiKey.FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
    assert client.produce("__consumer_offsets", b"v").error_code == (
        ErrorCode.invalid_topic_exception
    )


def test_acks_0_has_no_answer_and_a_refusal_closes(client: WireClient, topic: str) -> None:
    client.produce(topic, b"a", acks=0)
    client.produce(topic, b"b", acks=0)
    assert client.fetch(topic, 0).high_watermark == 2
    client.produce("none", b"c", acks=0)
    assert client.closed()


def test_idempotent_producer(client: WireClient, topic: str) -> None:
    ids = [client.call(ApiKey.INIT_PRODUCER_ID, 4, {"transaction_timeout_ms": 1}) for _ in range(3)]
    assert len({i.producer_id for i in ids}) == 3
    assert all(i.error_code == 0 for i in ids)
    options = {"producer_id": ids[0].producer_id, "producer_epoch": 0}
    assert client.produce(topic, b"a", base_sequence=0, **options).base_offset == 0
    assert client.produce(topic, b"b", base_sequence=1, **options).base_offset == 1
    again = client.produce(topic, b"a", base_sequence=0, **options)
    assert (again.error_code, again.base_offset) == (0, 0)
    gap = client.produce(topic, b"c", base_sequence=5, **options)
    assert gap.error_code == ErrorCode.out_of_order_sequence_number
    assert client.fetch(topic, 0).high_watermark == 2


def test_retries_are_recognised_after_a_restart(broker: ShoalProcess) -> None:
    """A producer whose responses were lost sends up to five batches again, the oldest first."""

    def send(client: WireClient, sequence: int) -> tuple[int, int]:
        who = {"producer_id": 4_000, "producer_epoch": 0}
        answer = client.produce("t", b"%d" % sequence, base_sequence=sequence, **who)
        return answer.error_code, answer.base_offset

    written = [(0, offset) for offset in range(9)]
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        assert [send(client, sequence) for sequence in range(7)] == written[:7]
    broker.restart()
    with WireClient(broker.bootstrap) as client:
        assert [send(client, sequence) for sequence in range(2, 7)] == written[2:7]
        assert send(client, 1) == (ErrorCode.out_of_order_sequence_number, -1)
        assert send(client, 7) == (0, 7)
    broker.kill9()
    broker.start()
    with WireClient(broker.bootstrap) as client:
        assert [send(client, sequence) for sequence in range(3, 9)] == written[3:]


def test_min_in_sync_replicas(client: WireClient) -> None:
    topic = next(_names)
    client.create_topic(topic, min_insync_replicas="2")
    assert client.produce(topic, b"v", acks=1).error_code == 0
    # A topic with one replica has at most one in sync, so that is enough, as in Kafka.
    assert client.produce(topic, b"v").error_code == 0


def test_fetch_limits(client: WireClient, topic: str) -> None:
    for value in (b"a" * 500, b"b" * 500, b"c" * 500):
        client.produce(topic, value)
        client.produce(topic, value, partition=1)
    # The first batch comes whatever the limit, and nothing after it.
    assert values(client.fetch(topic, 0, partition_max_bytes=1).records) == [b"a" * 500]
    assert len(values(client.fetch(topic, 0, partition_max_bytes=1200).records)) == 2
    body = {
        "max_bytes": 700,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {"partition": p, "fetch_offset": 1, "partition_max_bytes": 10_000}
                    for p in (0, 1)
                ],
            }
        ],
    }
    (answer,) = client.call(ApiKey.FETCH, 12, body).responses
    assert [len(values(p.records)) for p in answer.partitions] == [1, 0]


def test_fetch_errors(client: WireClient, topic: str) -> None:
    client.produce(topic, b"a")
    assert client.fetch(topic, 2).error_code == ErrorCode.offset_out_of_range
    assert client.fetch(topic, 1).error_code == 0
    assert client.fetch(topic, 0, asked={"current_leader_epoch": 99}).error_code == (
        ErrorCode.unknown_leader_epoch
    )
    assert client.fetch("none", 0).error_code == ErrorCode.unknown_topic_or_partition


def test_a_fetcher_of_an_unknown_epoch_is_out_of_range(client: WireClient, topic: str) -> None:
    client.produce(topic, b"a")
    assert client.fetch(topic, 1, asked={"last_fetched_epoch": 0}).error_code == 0
    found = client.fetch(topic, 1, asked={"last_fetched_epoch": 5})
    assert found.error_code == ErrorCode.offset_out_of_range


def test_a_fetcher_gets_the_end_of_its_diverging_epoch(broker: ShoalProcess) -> None:
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        client.produce("t", b"a")
        client.produce("t", b"b")
    broker.kill9()
    broker.start()  # the partition gets a new leader epoch
    with WireClient(broker.bootstrap) as client:
        assert client.produce("t", b"c").base_offset == 2
        assert client.fetch("t", 2, asked={"last_fetched_epoch": 0}).error_code == 0
        found = client.fetch("t", 3, asked={"last_fetched_epoch": 0})
        assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, 2)
        assert not found.records


def test_fetch_waits_for_records(
    shared_broker: ShoalProcess, client: WireClient, topic: str
) -> None:
    with WireClient(shared_broker.bootstrap) as waiting:
        asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000}
        body = {
            "max_wait_ms": 20_000,
            "min_bytes": 150,
            "max_bytes": 10_000,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [asked]}],
        }
        waiting.send(ApiKey.FETCH, 12, body)
        client.produce(topic, b"a")
        waiting.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):  # 69 bytes are there
            waiting.receive(ApiKey.FETCH, 12)
        waiting.sock.settimeout(10)
        started = time.monotonic()
        client.produce(topic, b"b" * 100)
        _, answer = waiting.receive(ApiKey.FETCH, 12)
        assert time.monotonic() - started < 5
        assert values(answer.responses[0].partitions[0].records) == [b"a", b"b" * 100]


def test_fetch_gives_up_after_max_wait(client: WireClient, topic: str) -> None:
    started = time.monotonic()
    assert client.fetch(topic, 0, max_wait_ms=300).error_code == 0
    assert 0.25 < time.monotonic() - started < 5


def test_a_deleted_topic_ends_the_wait(
    shared_broker: ShoalProcess, client: WireClient, topic: str
) -> None:
    with WireClient(shared_broker.bootstrap) as waiting:
        answers: list[Any] = []
        thread = threading.Thread(
            target=lambda: answers.append(waiting.fetch(topic, 0, max_wait_ms=20_000))
        )
        thread.start()
        client.call(ApiKey.METADATA, 4, {"topics": [{"name": topic}]})
        body = {"topic_names": [topic], "timeout_ms": 1000}
        assert client.call(ApiKey.DELETE_TOPICS, 5, body).responses[0].error_code == 0
        thread.join(15)
        assert answers
        assert answers[0].error_code == ErrorCode.unknown_topic_or_partition


def test_incremental_session(client: WireClient, topic: str) -> None:
    def fetch(session_id: int, epoch: int, topics: list[Any]) -> Any:
        body = {
            "max_bytes": 10_000,
            "session_id": session_id,
            "session_epoch": epoch,
            "topics": topics,
        }
        return client.call(ApiKey.FETCH, 12, body)

    def asked(partition: int, offset: int) -> dict[str, Any]:
        return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 5000}

    first = fetch(0, 0, [{"topic": topic, "partitions": [asked(0, 0), asked(1, 0)]}])
    assert first.session_id > 0
    assert [p.partition_index for p in first.responses[0].partitions] == [0, 1]
    assert fetch(first.session_id, 1, []).responses == ()
    client.produce(topic, b"v", partition=1)
    third = fetch(first.session_id, 2, [])
    assert [p.partition_index for p in third.responses[0].partitions] == [1]
    fourth = fetch(first.session_id, 3, [{"topic": topic, "partitions": [asked(1, 1)]}])
    assert fourth.responses == ()
    assert fetch(first.session_id, 9, []).error_code == ErrorCode.invalid_fetch_session_epoch
    assert fetch(77, 1, []).error_code == ErrorCode.fetch_session_id_not_found


def test_answers_leave_in_the_order_of_requests(client: WireClient, topic: str) -> None:
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000}
    body = {
        "max_wait_ms": 300,
        "min_bytes": 10_000,
        "max_bytes": 10_000,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [asked]}],
    }
    slow = client.send(ApiKey.FETCH, 12, body)
    quick = [client.send(ApiKey.METADATA, 4, {"topics": []}) for _ in range(300)]
    assert client.receive(ApiKey.FETCH, 12)[0] == slow
    assert [client.receive(ApiKey.METADATA, 4)[0] for _ in quick] == quick


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets(client: WireClient, topic: str, version: int) -> None:
    for timestamp_ms in (100, 300, 200):
        client.produce(topic, b"v", timestamp_ms=timestamp_ms)

    def ask(timestamp: int) -> tuple[int, int, int]:
        asked = {"partition_index": 0, "timestamp": timestamp}
        body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
        (found,) = client.call(ApiKey.LIST_OFFSETS, version, body).topics[0].partitions
        return found.error_code, found.offset, found.timestamp

    assert ask(-1) == (0, 3, -1)
    assert ask(-2) == (0, 0, -1)
    assert ask(150) == (0, 1, 300)
    assert ask(100) == (0, 0, 100)
    assert ask(301)[:2] == (0, -1)
    unsupported = int(ErrorCode.unsupported_version)
    assert ask(-3) == ((0, 1, 300) if version >= 7 else (unsupported, -1, -1))
    assert ask(-4)[:2] == ((0, 0) if version >= 8 else (unsupported, -1))
    assert ask(-5)[:2] == ((0, -1) if version >= 9 else (unsupported, -1))
    assert ask(-6)[:2] == ((0, -1) if version >= 11 else (unsupported, -1))
    assert ask(-7)[:2] == (unsupported, -1)


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch(client: WireClient, topic: str, version: int) -> None:
    client.produce(topic, b"v")

    def ask(epoch: int, current: int = -1) -> tuple[int, int, int]:
        asked = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
        body = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [asked]}]}
        (found,) = client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, body).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    assert ask(0) == (0, 0, 1)
    assert ask(3) == (0, -1, -1)
    assert ask(0, current=8)[0] == ErrorCode.unknown_leader_epoch


@pytest.mark.parametrize("version", range(3))
def test_delete_records(client: WireClient, topic: str, version: int) -> None:
    for value in (b"a", b"b", b"c"):
        client.produce(topic, value)

    def delete(offset: int, name: str = topic) -> tuple[int, int]:
        asked = {"partition_index": 0, "offset": offset}
        body = {"timeout_ms": 1000, "topics": [{"name": name, "partitions": [asked]}]}
        (found,) = client.call(ApiKey.DELETE_RECORDS, version, body).topics[0].partitions
        return found.error_code, found.low_watermark

    assert delete(2) == (0, 2)
    assert client.fetch(topic, 0).error_code == ErrorCode.offset_out_of_range
    assert values(client.fetch(topic, 2).records) == [b"c"]
    assert delete(4) == (ErrorCode.offset_out_of_range, -1)
    assert delete(1) == (0, 2)
    assert delete(-1) == (0, 3)
    assert delete(0, "none") == (ErrorCode.unknown_topic_or_partition, -1)


def test_unread_responses_are_bounded_in_sum(
    shared_broker: ShoalProcess, client: WireClient
) -> None:
    topic = next(_names)
    client.create_topic(topic, max_message_bytes="20000000")
    for _ in range(4):
        assert client.produce(topic, bytes(15_000_000)).error_code == 0
    before = shared_broker.resident_mb()
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 55_000_000}
    body = {
        "max_bytes": 55_000_000,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [asked]}],
    }
    deaf = [WireClient(shared_broker.bootstrap) for _ in range(12)]
    for one in deaf:  # 12 times 45 MB
        one.send(ApiKey.FETCH, 12, body)
        assert client.fetch(topic, 0, partition_max_bytes=1).error_code == 0
    assert shared_broker.resident_mb() - before < 400
    _, answer = deaf[0].receive(ApiKey.FETCH, 12)
    assert len(values(answer.responses[0].partitions[0].records)) == 3
    for one in deaf:
        one.sock.close()
    eventually(lambda: 'held_bytes{listener="PLAINTEXT"} 0\n' in shared_broker.scrape())


def test_sasl_is_refused(client: WireClient) -> None:
    answer = client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.illegal_sasl_state, ())


def test_a_closed_connection_drops_its_waiting_requests(
    shared_broker: ShoalProcess, client: WireClient, topic: str
) -> None:
    gone = WireClient(shared_broker.bootstrap)
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000}
    body = {
        "max_wait_ms": 60_000,
        "min_bytes": 10,
        "max_bytes": 10_000,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [asked]}],
    }
    for _ in range(5):
        gone.send(ApiKey.FETCH, 12, body)
    gone.sock.shutdown(socket.SHUT_RDWR)
    gone.sock.close()
    assert client.produce(topic, b"v").error_code == 0
