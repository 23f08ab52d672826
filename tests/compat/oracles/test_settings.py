"""Settings that protect a broker: the same requests to Apache Kafka and to Shoal."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from shoal.protocol.api import ApiKey
from shoal.record.batch import iter_headers
from shoal.record.compression import Compression
from shoal.record.records import build_batch, read_records
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka import kafka_tools
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REQUEST_BYTES = 400_000
IO_BYTES_PER_S = 3_000_000
#: A request without an answer for this long waits. On a busy machine, answers take a while.
SILENCE_S = 1.0
#: The configs of both brokers.
CONFIGS = {
    "socket.request.max.bytes": "2000000",
    "queued.max.request.bytes": "2000000",
    "offsets.topic.compression.codec": "4",
    "log.cleaner.io.max.bytes.per.second": f"{IO_BYTES_PER_S}.0",
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}


class Node:
    """A broker of either kind."""

    def __init__(self, kind: str, bootstrap: str, logs: Path) -> None:
        self.kind, self.bootstrap, self.logs = kind, bootstrap, logs


@pytest.fixture(
    scope="module",
    params=["shoal", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.nightly])],
)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp(request.param) / "node"
    if request.param == "kafka":
        kafka = KafkaProcess(folder, configs=CONFIGS).start()
        yield Node("kafka", kafka.bootstrap, folder / "log")
        kafka.kill9()
    else:
        shoal = ShoalProcess(folder, configs=CONFIGS).start()
        yield Node("shoal", shoal.bootstrap, folder)
        assert shoal.stop() == 0, "\n".join(shoal.log[-40:])


def produce(topic: str, size: int) -> bytes:
    """Return a whole Produce v9 frame with one record of `size` bytes."""
    from shoal.protocol import codec, frames

    records = bytes(build_batch([(1, None, bytes(size), ())]))
    rows = [{"index": 0, "records": records}]
    body = {
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": rows}],
    }
    head = frames.build_request_head(ApiKey.PRODUCE, 9, 1, "test")
    frame = head + bytes(codec.write_request(ApiKey.PRODUCE, 9, body))
    return len(frame).to_bytes(4, "big") + frame


def answered(client: WireClient) -> bool:
    """Return whether a response begins to arrive within `SILENCE_S`."""
    client.sock.settimeout(SILENCE_S)
    try:
        (_, answer) = client.receive(ApiKey.PRODUCE, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    except TimeoutError:
        return False
    finally:
        client.sock.settimeout(60)
    return True


def small_is_answered(node: Node) -> bool:
    """Return whether a request of a few bytes on a new connection is answered: by Kafka, at once,
    as it does not read another one."""
    with WireClient(node.bootstrap, timeout_s=2.0 if node.kind == "kafka" else 60.0) as client:
        try:
            client.call(ApiKey.API_VERSIONS, 0, {})
        except TimeoutError:
            return False
    return True


def create(client: WireClient, topic: str, **configs: str) -> None:
    """Create a topic, and wait until it accepts a first record: Kafka elects its leader later."""
    client.create_topic(topic, **configs)
    first = bytes(build_batch([(1, b"0", b"v", ())]))
    eventually(lambda: client.produce(topic, records=first).error_code == 0, what=f"{topic} is led")


def produce_is_answered(node: Node) -> bool:
    """Return whether a produce request of one small record on a new connection is answered at
    once."""
    with WireClient(node.bootstrap) as client:
        client.sock.sendall(produce("room", 10))
        return answered(client)


def test_large_requests_wait_for_room_over_all_connections(node: Node) -> None:
    """queued.max.request.bytes: five requests in progress fill it, so the next one is not read
    until one of them is complete. Then all are answered."""
    frame = produce("room", REQUEST_BYTES)
    with WireClient(node.bootstrap) as admin:
        create(admin, "room")
    arriving = [WireClient(node.bootstrap) for _ in range(5)]
    late = [WireClient(node.bootstrap) for _ in range(10)]
    try:
        for client in arriving:
            client.sock.sendall(frame[: len(frame) // 2])
        eventually(lambda: not produce_is_answered(node), what="a full room")
        # Kafka stops reading even small requests. Shoal continues to read small ones.
        assert small_is_answered(node) == (node.kind == "shoal")
        with ThreadPoolExecutor(len(late)) as pool:
            sent = [pool.submit(client.sock.sendall, frame) for client in late]
            assert not any(map(answered, late[:3]))
            for client in arriving:
                client.sock.sendall(frame[len(frame) // 2 :])
            for done in sent:
                done.result()
            for client in (*arriving, *late):
                eventually(lambda client=client: answered(client), what="its turn")
    finally:
        for client in (*arriving, *late):
            client.sock.close()


def test_batches_of_offsets_are_compressed(node: Node) -> None:
    """offsets.topic.compression.codec: Kafka's dump tool finds the codec, and the offsets."""
    commit = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 0, "committed_offset": 7, "committed_metadata": "note" * 20}
                ],
            }
        ],
    }
    with WireClient(node.bootstrap) as client:
        client.create_topic("t")

        def committed() -> bool:
            find = {"key_type": 0, "coordinator_keys": ["g"]}
            client.call(ApiKey.FIND_COORDINATOR, 4, find)
            answer = client.call(ApiKey.OFFSET_COMMIT, 8, commit)
            return answer.topics[0].partitions[0].error_code == 0

        eventually(committed)
    (log,) = [f for f in node.logs.glob("__consumer_offsets-*/*.log") if f.stat().st_size]
    data = log.read_bytes()
    codecs = {header.compression for _, header in iter_headers(data)}
    assert codecs == {Compression.ZSTD}
    if kafka_tools.absent():
        return
    said = kafka_tools.dump_log("--print-data-log", "--offsets-decoder", "--files", str(log))
    assert "compresscodec: zstd" in said.lower(), said
    assert re.search(r'"group":"g","topic":"t","partition":0', said), said
    assert "notenote" in said


@pytest.mark.parametrize("node", ["shoal"], indirect=True)
def test_compaction_keeps_to_its_rate(node: Node) -> None:
    """log.cleaner.io.max.bytes.per.second: reading twice and writing once takes at least that
    long. Kafka may exceed the rate in its first pass."""
    value = bytes(100_000)
    with WireClient(node.bootstrap) as client:
        create(
            client,
            "compacted",
            cleanup_policy="compact",
            segment_bytes="1048576",
            segment_ms="1000",
            min_cleanable_dirty_ratio="0.01",
            flush_messages="1",  # Shoal compacts only durable records.
        )
        begun = time.monotonic()
        for number in range(50):
            batch = build_batch([(1, b"%d" % (number % 5), value, ())])
            assert client.produce("compacted", records=bytes(batch)).error_code == 0
        last = build_batch([(5_000, b"last", b"v", ())])
        assert client.produce("compacted", records=bytes(last)).error_code == 0

        def first_offset() -> int:
            data = client.fetch("compacted", 0, partition_max_bytes=1 << 24).records or b""
            return next(r.offset for at, _ in iter_headers(data) for r in read_records(data, at))

        eventually(lambda: first_offset() > 30, timeout_s=90)
        took_s = time.monotonic() - begun
    # 4 MB or more are mapped and read again.
    assert took_s > 2 * 4_000_000 / IO_BYTES_PER_S * 0.8, took_s
