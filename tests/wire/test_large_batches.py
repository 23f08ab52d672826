"""Batches that expand past 1 MiB: a worker validates them, and requests keep their order."""

from __future__ import annotations

import itertools
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import HEADER_SIZE, BatchHeader, iter_headers, read_header, seal
from support.attacks.faulty_batches import batch, record, records
from support.brokers.wireclient import WireClient
from support.runs.conditions import ceiling, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess

MIB = 1 << 20
#: The longest pause that another connection may see, in seconds.
STALL_MAX_S = 0.05
_names = (f"large-{i}" for i in itertools.count())


@pytest.fixture
def client(shared_broker: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shared_broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: WireClient) -> str:
    name = next(_names)
    client.create_topic(name, 2)
    return name


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Return almost 1 MiB of lz4 that expands to 100 MiB in two records."""
    noise = random.Random(1).randbytes(500_000)
    return batch(record(0, value=bytes(100 * MIB)), record(1, value=noise), codec=3)


def produce(topic: str, data: bytes, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    rows = [{"index": partition, "records": data}]
    return {
        "acks": acks,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": rows}],
    }


def answer(client: WireClient, version: int = 9) -> tuple[int, Any]:
    number, body = client.receive(ApiKey.PRODUCE, version)
    return number, body.responses[0].partition_responses[0]


def stored(client: WireClient, topic: str) -> list[BatchHeader]:
    found = client.fetch(topic, 0, partition_max_bytes=1 << 26)
    return [header for _, header in iter_headers(found.records or b"")]


def test_other_connections_are_served_meanwhile(
    client: WireClient, topic: str, bomb: bytes, shared_broker: ShoalProcess
) -> None:
    assert 0.8 * MIB < len(bomb) <= MIB
    worst = []
    with WireClient(shared_broker.bootstrap) as other:
        for _ in range(4):
            done = threading.Event()

            def send(done: threading.Event = done) -> None:
                assert client.call(ApiKey.PRODUCE, 9, produce(topic, bomb)).responses
                done.set()

            thread = threading.Thread(target=send)
            pauses, begun = [0.0], time.perf_counter()
            thread.start()
            while not done.is_set():
                sent = time.perf_counter()
                other.call(ApiKey.API_VERSIONS, 0, {})
                pauses.append(time.perf_counter() - sent)
            thread.join()
            worst.append(max(pauses))
            assert len(pauses) > 20, time.perf_counter() - begun
    # Other processes of the machine pause a test, too, but not each time.
    assert min(worst) < ceiling(STALL_MAX_S), worst
    assert stored(client, topic)[0].record_count == 2


def test_answers_and_appends_keep_the_order_of_requests(
    client: WireClient, topic: str, bomb: bytes, shared_broker: ShoalProcess
) -> None:
    """An idempotent producer with five requests in flight, of which the first waits."""
    producer = client.call(ApiKey.INIT_PRODUCER_ID, 4, {"transaction_timeout_ms": 1}).producer_id

    def numbered(data: bytes, sequence: int) -> bytes:
        header = read_header(data)._replace(
            producer_id=producer, producer_epoch=0, base_sequence=sequence
        )
        return bytes(seal(header, data[HEADER_SIZE:]))

    small, zipped = batch(*records(2)), batch(*records(2), codec=4)
    sequence = [bomb, small, zipped, bomb, small]
    numbers = [
        client.send(ApiKey.PRODUCE, 9, produce(topic, numbered(data, 2 * i)))
        for i, data in enumerate(sequence)
    ]
    # Other partitions and other connections do not wait for the worker's queue.
    with WireClient(shared_broker.bootstrap) as other:
        assert other.produce(topic, b"v", partition=1).error_code == 0
    answers = [answer(client) for _ in sequence]
    assert [number for number, _ in answers] == numbers
    assert [(a.error_code, a.base_offset) for _, a in answers] == [(0, 2 * i) for i in range(5)]
    assert [h.base_sequence for h in stored(client, topic)] == [0, 2, 4, 6, 8]


def test_a_refusal_names_the_record(client: WireClient, topic: str) -> None:
    zeros = record(0, value=bytes(8 * MIB))
    found = client.produce(topic, records=batch(zeros, record(7), codec=4))
    assert found.error_code is ErrorCode.invalid_record
    assert "Record 1 of 2" in found.error_message
    faulty = batch(record(0, value=bytes(200 * MIB)), codec=4)
    found = client.produce(topic, records=faulty)
    assert found.error_code is ErrorCode.invalid_record
    assert "134217728 bytes" in found.error_message


def test_the_partition_is_looked_up_again_when_the_append_follows(
    client: WireClient, topic: str, bomb: bytes
) -> None:
    numbers = [client.send(ApiKey.PRODUCE, 9, produce(topic, bomb)) for _ in range(3)]
    delete = client.send(
        ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": topic}], "timeout_ms": 30_000}
    )
    codes = []
    for number in numbers:
        found, body = answer(client)
        assert found == number
        codes.append(body.error_code)
    assert client.receive(ApiKey.DELETE_TOPICS, 6)[0] == delete
    assert codes[-1] is ErrorCode.unknown_topic_or_partition


def test_acks_0_has_no_answer_and_a_refusal_closes(
    client: WireClient, topic: str, bomb: bytes
) -> None:
    client.send(ApiKey.PRODUCE, 9, produce(topic, bomb, acks=0))
    client.send(ApiKey.PRODUCE, 9, produce(topic, batch(record()), acks=0))
    assert client.produce(topic, b"v").base_offset == 3
    faulty = batch(record(0, value=bytes(8 * MIB)), codec=4, count=2)
    client.send(ApiKey.PRODUCE, 9, produce(topic, faulty, acks=0))
    assert client.closed()


def test_a_client_that_leaves_has_its_batch_appended(
    client: WireClient, topic: str, bomb: bytes, shared_broker: ShoalProcess
) -> None:
    with WireClient(shared_broker.bootstrap) as leaving:
        leaving.send(ApiKey.PRODUCE, 9, produce(topic, bomb, acks=0))
    eventually(lambda: stored(client, topic), what="the batch is in the log")
    assert [h.record_count for h in stored(client, topic)] == [2]


def test_without_compiled_modules_the_broker_logs_that_and_validates(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    process = start_broker(environment={"PURE_PYTHON": "1"})
    (said,) = (line for line in process.log if "Records are validated in Python" in line)
    assert "-m shoal.compile` makes them" in said
    with WireClient(process.bootstrap) as client:
        client.create_topic("pure")
        many = batch(*records(5000), codec=1)
        assert client.produce("pure", records=many).base_offset == 0
        wrong = batch(*records(5000), record(7), codec=1)
        found = client.produce("pure", records=wrong)
        assert found.error_code is ErrorCode.invalid_record
        assert "Record 5000 of 5001" in found.error_message
