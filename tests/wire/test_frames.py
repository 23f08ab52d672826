"""Frames on a real broker's sockets: whole, in pieces and several at once, and invalid bytes."""

from __future__ import annotations

import random
import socket
import struct
from typing import TYPE_CHECKING

import pytest
from shoal.protocol import codec, frames
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess

API_VERSIONS, PRODUCE, METADATA = 18, 0, 3


@pytest.fixture
def client(shared_broker: ShoalProcess) -> Iterator[socket.socket]:
    with connect(shared_broker) as sock:
        yield sock


def connect(broker: ShoalProcess) -> socket.socket:
    host, port = broker.bootstrap.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def api_versions(correlation_id: int, version: int = 3, client_id: str = "test") -> bytes:
    body = codec.write_request(
        API_VERSIONS, version, {"client_software_name": "t", "client_software_version": "1"}
    )
    frame = frames.build_request_head(API_VERSIONS, version, correlation_id, client_id) + body
    return struct.pack(">i", len(frame)) + frame


def receive(sock: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = sock.recv(size - len(data))
            assert more, "the connection was closed"
            data += more
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


def correlation_id(answer: bytes) -> int:
    return struct.unpack_from(">i", answer)[0]


def closed(sock: socket.socket) -> bool:
    sock.settimeout(10)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_whole(client: socket.socket) -> None:
    client.sendall(api_versions(7))
    answer = receive(client)
    assert correlation_id(answer) == 7
    body = codec.read_response(API_VERSIONS, 3, answer, 4)
    assert body.error_code == 0
    assert {k.api_key: (k.min_version, k.max_version) for k in body.api_keys}[0] == (0, 13)


def test_byte_by_byte(client: socket.socket) -> None:
    for byte in api_versions(8):
        client.sendall(bytes([byte]))
    assert correlation_id(receive(client)) == 8


def test_many_at_once_and_a_tail(client: socket.socket) -> None:
    tail = api_versions(1000)
    client.sendall(b"".join(map(api_versions, range(1000))) + tail[:5])
    assert [correlation_id(receive(client)) for _ in range(1000)] == list(range(1000))
    client.sendall(tail[5:])
    assert correlation_id(receive(client)) == 1000


@pytest.mark.parametrize("number", range(5))
def test_cut_anywhere(client: socket.socket, number: int, seed: int) -> None:
    rng = random.Random(f"{seed}.{number}")
    data = b"".join(map(api_versions, range(200)))
    while data:
        size = rng.choice([1, 3, 40, 2000])
        client.sendall(data[:size])
        data = data[size:]
    assert [correlation_id(receive(client)) for _ in range(200)] == list(range(200))


def test_version_out_of_range_is_answered_in_version_0(client: socket.socket) -> None:
    frame = struct.pack(">hhih", API_VERSIONS, 99, 5, -1) + b"whatever"
    client.sendall(struct.pack(">i", len(frame)) + frame)
    answer = receive(client)
    body = codec.read_response(API_VERSIONS, 0, answer, 4)
    assert (correlation_id(answer), body.error_code) == (5, 35)
    assert [(k.api_key, k.min_version, k.max_version) for k in body.api_keys] == [(18, 0, 5)]
    client.sendall(api_versions(6))
    assert correlation_id(receive(client)) == 6


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", -1), id="negative size"),
        pytest.param(struct.pack(">i", 104857601) + b"x", id="size over socket.request.max.bytes"),
        pytest.param(struct.pack(">i", 0), id="empty"),
        pytest.param(struct.pack(">i", 4) + b"abcd", id="no room for a header"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00" + bytes(600), id="tls"),
        pytest.param(struct.pack(">ihhih", 10, 999, 0, 1, -1), id="unknown api"),
        pytest.param(struct.pack(">ihhih", 10, METADATA, 99, 1, -1), id="unknown version"),
        pytest.param(struct.pack(">ihhih", 10, PRODUCE, 2, 1, -1), id="named and not served"),
        pytest.param(struct.pack(">ihhih", 10, API_VERSIONS, 3, 1, 500), id="long client id"),
        pytest.param(struct.pack(">ihhih2s", 12, 18, 3, 1, 2, b"\xff\xff"), id="client id bytes"),
        pytest.param(
            struct.pack(">ihhihhhii", 22, PRODUCE, 3, 1, -1, -1, 1, 1000, 2_000_000_000),
            id="giant array",
        ),
        pytest.param(
            struct.pack(">ihhihii", 18, 2, 1, 1, -1, -1, 2_000_000_000), id="giant array, kio"
        ),
    ],
)
def test_bytes_that_are_no_request_close_their_connection(
    shared_broker: ShoalProcess, data: bytes
) -> None:
    with connect(shared_broker) as bad, connect(shared_broker) as good:
        bad.sendall(data)
        assert closed(bad)
        good.sendall(api_versions(1))
        assert correlation_id(receive(good)) == 1


def test_the_largest_request_that_a_broker_reads(start_broker: Callable[..., ShoalProcess]) -> None:
    limit = 700
    broker = start_broker(configs={"socket.request.max.bytes": str(limit)})
    for size in (limit - 1, limit, limit + 1):
        padding = "x" * (size + 4 - len(api_versions(1, client_id="")))
        request = api_versions(1, client_id=padding)
        assert len(request) == 4 + size
        with connect(broker) as sock:
            sock.sendall(request)
            if size > limit:
                assert closed(sock)
            else:
                assert correlation_id(receive(sock)) == 1


@pytest.mark.parametrize("number", range(20))
def test_noise(shared_broker: ShoalProcess, number: int, seed: int) -> None:
    rng = random.Random(f"{seed}.{number}")
    with connect(shared_broker) as bad:
        frame = bytearray(api_versions(1) if number % 2 else rng.randbytes(64))
        for _ in range(rng.randrange(1, 8)):
            frame[rng.randrange(4, len(frame))] = rng.randrange(256)
        frame[:4] = struct.pack(">i", len(frame) - 4)
        bad.sendall(frame)
        bad.shutdown(socket.SHUT_WR)
        bad.settimeout(10)
        while bad.recv(65536):
            pass
    with connect(shared_broker) as good:
        good.sendall(api_versions(1))
        assert correlation_id(receive(good)) == 1


def test_an_announced_size_costs_no_memory(shared_broker: ShoalProcess) -> None:
    before = shared_broker.resident_mb()
    socks = [connect(shared_broker) for _ in range(50)]
    for sock in socks:
        sock.sendall(struct.pack(">i", 100_000_000) + bytes(1000))
    # 5 GB announced; each allocates at most the start of a buffer.
    eventually(lambda: shared_broker.resident_mb() - before < 150)
    for sock in socks:
        sock.close()


def test_a_client_that_takes_no_answers_is_not_read_from(shared_broker: ShoalProcess) -> None:
    before = shared_broker.resident_mb()
    with connect(shared_broker) as deaf:
        deaf.settimeout(0.5)
        request = b"".join(map(api_versions, range(500)))
        sent = 0
        try:
            while sent < 200_000_000:
                sent += deaf.send(request)
        except TimeoutError:
            pass
        assert sent < 100_000_000, "the broker keeps reading"
        # The heap keeps freed memory, up to 64 MB.
        assert shared_broker.resident_mb() - before < 130
    with connect(shared_broker) as good:
        good.sendall(api_versions(1))
        assert correlation_id(receive(good)) == 1


def test_an_error_of_a_newer_broker_is_an_unknown_one() -> None:
    """Kafka 4.4 has GROUP_DELETION_FAILED (134), which no client before it knows."""
    result = {"group_id": "g", "error_code": 134, "error_message": "the plugin failed"}
    body = codec.write_response(42, 3, {"results": [result]})
    (found,) = codec.read_response(42, 3, bytes(body)).results
    assert (found.error_code, found.error_message) == (-1, "the plugin failed")
