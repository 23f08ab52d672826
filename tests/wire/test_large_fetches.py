"""Responses sent by `sendfile`: complete, in order, and dropped with their client."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

BATCH = 700_000
WAITING = 'kafka_server_DelayedOperationPurgatory_PurgatorySize{delayedOperation="Other"}'


def fetch_body(topic: str, offset: int, max_bytes: int = 4 << 20) -> dict[str, Any]:
    asked = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 26,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [asked]}],
    }


def filled(client: WireClient, batches: int = 12) -> tuple[str, bytes]:
    """Return a topic with large batches, and its log as it was produced."""
    topic = f"large-{os.urandom(4).hex()}"
    client.create_topic(topic)
    for n in range(batches):
        answer = client.produce(topic, bytes([n]) * BATCH)
        assert (answer.error_code, answer.base_offset) == (0, n)
    return topic, b"".join(client.fetch(topic, n, partition_max_bytes=1).records for n in range(12))


def open_sockets(broker: ShoalProcess) -> int:
    found = 0
    for path in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # Closed since it was listed.
            found += os.readlink(path).startswith("socket:")
    return found


def test_a_slow_reader_gets_every_byte_in_order(shared_broker: ShoalProcess) -> None:
    with WireClient(shared_broker.bootstrap) as client:
        topic, data = filled(client)
        size = len(data) // 12
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        # More than the sockets hold, and small responses in between.
        for n in (0, 3, 7):
            client.send(ApiKey.FETCH, 12, fetch_body(topic, n))
            client.send(ApiKey.METADATA, 12, {"topics": []})
        for n in (0, 3, 7):
            _, answer = client.receive(ApiKey.FETCH, 12)
            found = answer.responses[0].partitions[0]
            assert found.error_code == 0
            assert found.records == data[n * size : (n + 5) * size], n
            assert client.receive(ApiKey.METADATA, 12)[1].topics == ()


def test_a_client_that_leaves_amid_an_answer_takes_its_sockets_along(
    shared_broker: ShoalProcess,
) -> None:
    with WireClient(shared_broker.bootstrap) as client:
        topic, data = filled(client)
        before = open_sockets(shared_broker)
        leavers = [WireClient(shared_broker.bootstrap) for _ in range(5)]
        for leaver in leavers:
            for _ in range(4):
                leaver.send(ApiKey.FETCH, 12, fetch_body(topic, 0, 16 << 20))
            assert len(leaver.sock.recv(1000)) == 1000  # The response has begun.
        for leaver in leavers:
            leaver.sock.close()
        eventually(lambda: open_sockets(shared_broker) <= before)
        assert client.fetch(topic, 0, partition_max_bytes=16 << 20).records == data


def test_a_log_that_is_deleted_amid_an_answer_is_sent_to_its_end(
    shared_broker: ShoalProcess,
) -> None:
    with WireClient(shared_broker.bootstrap) as client, WireClient(shared_broker.bootstrap) as slow:
        topic, data = filled(client)
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        slow.send(ApiKey.FETCH, 12, fetch_body(topic, 0, 16 << 20))
        first = slow.sock.recv(1000)
        assert first
        client.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": [topic], "timeout_ms": 10_000})
        rest = bytearray(first)
        size = int.from_bytes(first[:4], "big")
        while len(rest) < size + 4:
            more = slow.sock.recv(1 << 20)
            assert more
            rest += more
        at = 4 + len(frames.build_response_head(ApiKey.FETCH, 12, 0))
        answer = codec.read_response(ApiKey.FETCH, 12, bytes(rest), at)
        assert answer.responses[0].partitions[0].records == data


def test_an_answer_that_comes_while_another_leaves_waits_behind_it(
    shared_broker: ShoalProcess,
) -> None:
    with WireClient(shared_broker.bootstrap) as client, WireClient(shared_broker.bootstrap) as slow:
        topic, data = filled(client)
        waited_for = [f"waited-{os.urandom(4).hex()}" for _ in range(2)]
        for name in waited_for:
            client.create_topic(name)
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        first, second = ({**fetch_body(name, 0), "max_wait_ms": 60_000} for name in waited_for)
        slow.send(ApiKey.FETCH, 12, first)
        slow.send(ApiKey.FETCH, 12, fetch_body(topic, 0, 16 << 20))
        slow.send(ApiKey.FETCH, 12, second)
        eventually(lambda: shared_broker.metric(WAITING) == 2)
        # The first client reads the large response, and the second response comes meanwhile.
        for left, name in enumerate(waited_for, 1):
            client.produce(name, name.encode())
            eventually(lambda left=left: shared_broker.metric(WAITING) == 2 - left)
        found = [slow.receive(ApiKey.FETCH, 12)[1].responses[0].partitions[0] for _ in range(3)]
        assert waited_for[0].encode() in found[0].records
        assert found[1].records == data
        assert waited_for[1].encode() in found[2].records
