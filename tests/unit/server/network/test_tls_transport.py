"""TLS between a connection and its socket, without sockets."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import ssl
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from shoal.log.slices import FileSlice
from shoal.log.storage import DiskStorage
from shoal.protocol.api import ApiKey
from shoal.security.requirements import PUBLIC
from shoal.server import logs
from shoal.server.network import tls
from shoal.server.network.api import Answer, Api, Request
from shoal.server.network.connection import PENDING_MAX, WRITE_BUFFER_HIGH
from shoal.server.network.error_counts import make_counted_body
from support.brokers.connections import Server, request_frame
from support.runs.conditions import eventually_async
from support.runs.seeding import SEED
from support.security.certificates import Authority
from support.security.tls_wires import (
    CLIENT,
    SERVER,
    Port,
    TlsClient,
    client_context,
    load,
    server_context,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

FRAME = request_frame(ApiKey.INIT_PRODUCER_ID, 4, {})
#: Bytes of a response to `FRAME`.
RESPONSE_SIZE = 26


def run(test: Callable[[], Awaitable[None]]) -> None:
    logs.configure(json=True, level="critical")
    uvloop.run(test())


def at_once(_server: Server, _request: Request) -> Answer:
    return {"producer_id": 1}


AT_ONCE = Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, at_once)


def encoded(body: Any) -> Any:
    """A body that its handler has encoded, or a future of one."""
    return body if isinstance(body, asyncio.Future) else make_counted_body(body, {})


def sized(response: Callable[[int], Any]) -> Api:
    """An API whose body is a number, and whose response has that many bytes by `response`."""
    return Api(
        ApiKey.LIST_GROUPS,
        range(6),
        PUBLIC,
        lambda _server, request: encoded(response(request.body)),
        read=lambda _version, frame, at: int.from_bytes(frame[at : at + 8], "big"),
    )


def sized_frame(number: int, padding: int = 0) -> bytes:
    from shoal.protocol import frames

    frame = frames.build_request_head(ApiKey.LIST_GROUPS, 4, 1, "t")
    frame += number.to_bytes(8, "big") + bytes(padding)
    return len(frame).to_bytes(4, "big") + frame


#: Size prefix, correlation id and tags of a response.
HEAD = 9


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_bytes_arrive_in_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        client = TlsClient(server, port, client_context())
        await client.handshake(piece=piece)
        assert [peer.host for peer in port.authenticated] == ["127.0.0.1"]
        client.send(10 * FRAME, piece=piece)
        responses = await client.receives(10 * RESPONSE_SIZE)
        assert len(responses) == 10 * (4 + int.from_bytes(responses[:4], "big"))
        assert server.listener.bytes_in == len(10 * FRAME)
        assert not port.failures

    run(main)


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_request_may_come_with_the_end_of_the_handshake(
    tmp_path: Path, version: ssl.TLSVersion, paused: bool
) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        context = client_context()
        context.maximum_version = version
        client = TlsClient(server, port, context)
        await client.handshake(keep_last=True)
        assert bool(port.authenticated) is (version is ssl.TLSVersion.TLSv1_2)
        if paused:
            client.transport.pause_reading()
            client.socket.reading_paused = False
        client.send(FRAME)
        if paused:
            await eventually_async(lambda: port.authenticated)
            client.exchange()
            assert not client.received
            client.transport.resume_reading()
        await client.receives(RESPONSE_SIZE)
        assert client.tls.version() == version.name.replace("_", ".")

    run(main)


@pytest.mark.parametrize("size", [1, 16_384, 300_000, 12_000_000])
def test_large_frames_and_responses(tmp_path: Path, size: int) -> None:
    async def main() -> None:
        answer = os.urandom(size)
        server = Server(sized(lambda _number: [answer[:100], answer[100:]]), AT_ONCE)
        client = TlsClient(server, Port(server_context(tmp_path)), client_context())
        await client.handshake()
        client.tls.write(FRAME + sized_frame(1, padding=size))
        client.send(FRAME)
        await client.receives(RESPONSE_SIZE)
        response = await client.receives(HEAD + size)
        assert response[HEAD:] == answer
        await client.receives(RESPONSE_SIZE)
        assert client.transport.get_write_buffer_size() == 0

    run(main)


def test_received_requests_leave_no_reference_cycles(tmp_path: Path) -> None:
    """A cycle would keep each request in memory until the next garbage collection."""

    async def main() -> None:
        server = Server(sized(lambda _number: [b"ok"]))
        client = TlsClient(server, Port(server_context(tmp_path)), client_context())
        await client.handshake()
        gc.collect()
        for _ in range(3):
            client.send(sized_frame(1, padding=300_000), piece=100_000)
            await client.receives(HEAD + 2)
        gc.collect()
        left = [o for o in gc.garbage if isinstance(o, FrameType)]
        assert not [frame for frame in left if frame.f_code.co_filename == tls.__file__]

    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        run(main)
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()


def test_connections_share_buffers_and_do_not_mix(tmp_path: Path) -> None:
    """Fifty clients with different answers, interleaved at random, in pieces that split records."""

    async def main() -> None:
        draw = random.Random(SEED)
        server = Server(sized(lambda number: [number.to_bytes(8, "big") * (number % 997 + 1)]))
        port = Port(server_context(tmp_path))
        clients = [TlsClient(server, port, client_context()) for _ in range(50)]
        await asyncio.gather(*(c.handshake(piece=draw.randrange(1, 2000)) for c in clients))
        expected: dict[TlsClient, bytes] = dict.fromkeys(clients, b"")
        for _ in range(1000):
            client = draw.choice(clients)
            number = draw.randrange(1 << 40)
            client.send(sized_frame(number, draw.randrange(3000)), piece=draw.randrange(1, 5000))
            expected[client] += number.to_bytes(8, "big") * (number % 997 + 1)
            if draw.random() < 0.3:
                draw.choice(clients).exchange()
        for client in clients:
            while expected[client]:
                size = int.from_bytes(await client.receives(4), "big")
                body = (await client.receives(size))[HEAD - 4 :]
                assert expected[client].startswith(body)
                expected[client] = expected[client][len(body) :]
        assert not port.engine.incoming.pending
        assert not port.engine.outgoing.pending

    run(main)


def file_of(folder: Path, data: bytes) -> Any:
    storage = DiskStorage()
    file = storage.open(str(folder / "segment"), create=True)
    file.write(0, [data])
    return file


def test_slices_of_files_are_encrypted_chunk_by_chunk(tmp_path: Path) -> None:
    """The socket takes a little at a time, and the response is never in memory as a whole."""

    async def main() -> None:
        data = os.urandom(5_000_000)
        file = file_of(tmp_path, data)
        parts = [b"head", FileSlice(file, 10, 3_000_000), b"middle", FileSlice(file, 77, 70_000)]
        server = Server(sized(lambda _number: [*parts, b"end"]), AT_ONCE)
        client = TlsClient(server, Port(server_context(tmp_path)), client_context())
        await client.handshake()
        client.socket.room = 100_000
        client.send(sized_frame(1) + FRAME)
        assert client.transport.get_write_buffer_size() < 2 * tls.CHUNK_SIZE
        assert client.socket.reading_paused, "the client is to read first"
        body = b"head" + data[10:3_000_010] + b"middle" + data[77:70_077] + b"end"
        assert (await client.receives(HEAD + len(body)))[HEAD:] == body
        await client.receives(RESPONSE_SIZE)
        assert client.socket.waiting_max < 2 * tls.CHUNK_SIZE
        await eventually_async(lambda: not client.socket.reading_paused)

    run(main)


def test_a_file_that_ends_early_closes_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        file = file_of(tmp_path, bytes(100_000))
        server = Server(sized(lambda _number: [b"head", FileSlice(file, 0, 100_001)]))
        port = Port(server_context(tmp_path))
        client = TlsClient(server, port, client_context())
        await client.handshake()
        client.send(sized_frame(1))
        assert client.socket.aborted
        (reason,) = port.send_failures
        assert "ends before byte 100001" in reason
        assert not port.engine.outgoing.pending

    run(main)


def test_no_other_connection_waits_for_a_fast_reader(tmp_path: Path) -> None:
    """However fast one client reads, its large response is encrypted over many turns."""

    async def main() -> None:
        file = file_of(tmp_path, bytes(64_000_000))
        server = Server(sized(lambda _number: [FileSlice(file, 0, 64_000_000)]))
        client = TlsClient(server, Port(server_context(tmp_path)), client_context())
        await client.handshake()
        client.send(sized_frame(1))
        turns = 0
        while len(client.received) < 64_000_000:
            before = len(client.received)
            client.exchange()
            assert len(client.received) - before <= tls.TURN_BYTES + tls.CHUNK_SIZE
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 60

    run(main)


def test_reading_stops_while_the_client_does_not_read(tmp_path: Path) -> None:
    async def main() -> None:
        size = 1_000_000
        server = Server(sized(lambda _number: [bytes(size)]))
        client = TlsClient(server, Port(server_context(tmp_path)), client_context())
        await client.handshake()
        client.socket.room = 1000
        sent = 0
        while not client.socket.reading_paused:
            client.send(sized_frame(1))
            sent += 1
        assert WRITE_BUFFER_HIGH < sent * size < WRITE_BUFFER_HIGH + 2 * size
        assert server.listener.bytes_buffered > WRITE_BUFFER_HIGH
        await client.receives(sent * (HEAD + size))
        await eventually_async(lambda: not client.socket.reading_paused)
        assert server.listener.bytes_buffered == 0

    run(main)


def test_reading_stops_while_many_requests_wait(tmp_path: Path) -> None:
    """What OpenSSL has decrypted, or has not got yet, is not lost."""

    async def main() -> None:
        waiting: list[asyncio.Future[Any]] = []

        def wait(server: Server, _request: Request) -> Answer:
            waiting.append(server.node.loop.create_future())
            return waiting[-1]

        count = 3 * PENDING_MAX
        server = Server(Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, wait))
        client = TlsClient(server, Port(server_context(tmp_path)), client_context())
        await client.handshake()
        client.send(count * FRAME)
        await eventually_async(lambda: len(waiting) >= PENDING_MAX)
        assert len(waiting) == PENDING_MAX
        answered = 0
        while answered < count:
            await eventually_async(lambda: len(waiting) > answered)  # noqa: B023
            for future in waiting[answered:]:
                future.set_result({"producer_id": 1})
            answered = len(waiting)
            await asyncio.sleep(0)
            client.exchange()
        await client.receives(count * RESPONSE_SIZE)

    run(main)


@pytest.mark.parametrize("way", ["reading", "writing"])
def test_a_resumed_connection_does_not_handle_requests_within_another_one(
    tmp_path: Path, way: str
) -> None:
    """A request may wake another connection, which has requests of its own. They wait for the next
    turn of the loop."""

    async def main() -> None:
        active: list[str] = []
        nested: list[str] = []
        waiting: list[asyncio.Future[Any]] = []

        def wake(_server: Server, _request: Request) -> Answer:
            active.append("a request")
            other.transport.resume_reading()
            while other.socket.waiting:
                other.socket.take()
            active.clear()
            return {"producer_id": 1}

        def wait(_number: int) -> Any:
            nested.extend(active)
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]

        server = Server(Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, wake), sized(wait))
        port = Port(server_context(tmp_path))
        client, other = (TlsClient(server, port, client_context()) for _ in range(2))
        await asyncio.gather(client.handshake(), other.handshake())
        more = 10
        if way == "reading":
            other.transport.pause_reading()
            other.socket.reading_paused = False
            other.send(more * sized_frame(1))
        else:
            # Requests are left when the limit is reached, and a large response waits as well.
            other.socket.room = 1000
            other.send((PENDING_MAX + more) * sized_frame(1))
            await eventually_async(lambda: len(waiting) >= PENDING_MAX)
            for future in waiting[:PENDING_MAX]:
                future.set_result(encoded([bytes(WRITE_BUFFER_HIGH // 100)]))
            await asyncio.sleep(0)
            assert len(waiting) == PENDING_MAX
        client.send(FRAME)
        assert not nested
        await eventually_async(lambda: len(waiting) in (more, PENDING_MAX + more))
        assert not nested

    run(main)


# Handshakes.


def test_a_few_handshakes_are_done_in_a_turn(tmp_path: Path) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        clients = [TlsClient(server, port, client_context()) for _ in range(20)]
        for client in clients:
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.do_handshake()
            client.exchange()
        assert len(port.engine.handshakes) == 20
        answered = []
        while len(port.engine.handshakes):
            await asyncio.sleep(0)
            answered.append(sum(bool(client.socket.waiting) for client in clients))
        steps = [b - a for a, b in zip([0, *answered], answered, strict=False)]
        assert sum(steps) == 20
        assert max(steps) == tls.HANDSHAKES_PER_TURN

    run(main)


def test_half_open_handshakes_end(tmp_path: Path) -> None:
    """One client sends nothing, another one half of its first message. Both count as connections
    from the begin, and are closed after shoal.ssl.handshake.timeout.ms."""

    async def main() -> None:
        server = Server(AT_ONCE)
        port = Port(server_context(tmp_path), handshake_timeout_ms=50)
        silent, slow = (TlsClient(server, port, client_context()) for _ in range(2))
        assert server.listener.connections == {silent.connection, slow.connection}
        with pytest.raises(ssl.SSLWantReadError):
            slow.tls.do_handshake()
        hello = slow.encrypted()
        slow.deliver(hello[: len(hello) // 2])
        await eventually_async(lambda: silent.socket.closed and slow.socket.closed)
        assert len(port.failures) == 2
        assert all("within shoal.ssl.handshake.timeout.ms (50)" in why for why in port.failures)
        silent.lose()
        slow.lose()
        assert not server.listener.connections

    run(main)


def test_the_deadline_ends_with_the_handshake(tmp_path: Path) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path), handshake_timeout_ms=300)
        client = TlsClient(server, port, client_context())
        await client.handshake()
        late = TlsClient(server, port, client_context())
        await eventually_async(lambda: late.socket.closed)
        assert not client.socket.closed

    run(main)


def test_a_connection_that_is_delayed_has_its_deadline_later(tmp_path: Path) -> None:
    """A limit on the rate of connections mutes it: it reads nothing meanwhile."""

    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path), handshake_timeout_ms=50)
        client, other = (TlsClient(server, port, client_context()) for _ in range(2))
        client.connection.mute(60_000)
        assert client.socket.reading_paused
        await eventually_async(lambda: other.socket.closed)
        assert not client.socket.closed
        client.transport.resume_reading()
        await eventually_async(lambda: client.socket.closed)

    run(main)


def test_a_client_that_sends_ahead_is_not_read(tmp_path: Path) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        client = TlsClient(server, port, client_context())
        client.deliver(b"\x16\x03\x01" + bytes(2 * tls.HANDSHAKE_BYTES_MAX))
        assert client.socket.reading_paused
        await eventually_async(lambda: client.socket.closed)
        assert len(port.failures) == 1

    run(main)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (FRAME, "a Kafka request without TLS to a listener with TLS. Set security.protocol to SSL"),
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request to a listener with TLS"),
        (b"\0", "bytes that are not TLS"),
        (b"\x80\x2e\x01\x03\x01", "bytes that are not TLS"),
        (b"\x16\x03\x01\0\x05hello", "the TLS handshake failed"),
        (b"\x16\x03\x03" + b"\xff" * 100, "the TLS handshake failed"),
    ],
)
def test_bytes_that_are_no_handshake_close_the_connection(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        client, other = (TlsClient(server, port, client_context()) for _ in range(2))
        client.deliver(data)
        await eventually_async(lambda: client.socket.closed)
        (failure,) = port.failures
        assert reason in failure
        assert server.listener.bytes_in == 0
        # The shared buffers have nothing left of it.
        await other.handshake()
        other.send(FRAME)
        await other.receives(RESPONSE_SIZE)

    run(main)


def test_a_client_that_does_not_trust_the_server(tmp_path: Path) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        client = TlsClient(server, port, client_context(Authority("Another CA")))
        with pytest.raises(ssl.SSLCertVerificationError):
            await client.handshake()
        client.deliver(b"")
        await eventually_async(lambda: client.socket.closed)
        (failure,) = port.failures
        assert "the client refuses the certificate of this listener" in failure
        assert "Its truststore needs the CA" in failure

    run(main)


def test_a_server_that_does_not_trust_the_client(tmp_path: Path) -> None:
    """OpenSSL's alert reaches the client."""

    async def main() -> None:
        context = server_context(tmp_path)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=Authority("Another CA").pem)
        server, port = Server(AT_ONCE), Port(context)
        own = client_context()
        load(own, CLIENT, tmp_path)
        client, none = TlsClient(server, port, own), TlsClient(server, port, client_context())
        for one in (client, none):
            await one.handshake()
            await eventually_async(lambda: one.socket.closed)  # noqa: B023
            one.exchange()
            assert one.error is not None
        assert client.error is not None
        assert client.error.reason == "TLSV1_ALERT_UNKNOWN_CA"
        assert "the client's certificate is refused: self-signed" in port.failures[0]
        assert "the client sent no certificate" in port.failures[1]
        assert not port.authenticated

    run(main)


def test_a_client_that_is_no_user_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        port.refusal = "it names no user"
        client = TlsClient(server, port, client_context())
        await client.handshake()
        client.deliver(b"")
        await eventually_async(lambda: client.socket.closed)
        assert port.failures == ["it names no user"]

    run(main)


def test_a_client_that_is_gone_during_its_handshake(tmp_path: Path) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        client = TlsClient(server, port, client_context())
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        client.exchange()
        client.lose(ConnectionResetError())
        await asyncio.sleep(0)
        assert not len(port.engine.handshakes)
        assert not server.listener.connections
        assert not port.failures

    run(main)


# The end.


def test_a_session_that_the_client_ends(tmp_path: Path) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        client = TlsClient(server, port, client_context())
        await client.handshake()
        client.tls.write(FRAME)
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        client.deliver(client.encrypted())
        client.exchange()
        assert len(client.received) == RESPONSE_SIZE
        assert isinstance(client.error, ssl.SSLZeroReturnError)
        assert client.socket.closed
        assert not server.listener.failures

    run(main)


def test_a_session_that_the_server_ends(tmp_path: Path) -> None:
    """Responses that wait for the client are sent first."""

    async def main() -> None:
        size = 500_000
        server = Server(sized(lambda _number: [bytes(size)]))
        client = TlsClient(server, Port(server_context(tmp_path)), client_context())
        await client.handshake()
        client.socket.room = 1000
        client.send(sized_frame(1))
        client.connection.close()
        assert client.transport.is_closing()
        assert not client.socket.closed
        await client.receives(HEAD + size)
        client.exchange()
        assert isinstance(client.error, ssl.SSLZeroReturnError)
        assert client.socket.closed

    run(main)


@pytest.mark.parametrize("end", ["lose", "eof"])
def test_a_connection_that_is_lost_in_the_middle(tmp_path: Path, end: str) -> None:
    async def main() -> None:
        server = Server(sized(lambda _number: [bytes(5_000_000)]))
        port = Port(server_context(tmp_path))
        client, other = (TlsClient(server, port, client_context()) for _ in range(2))
        await client.handshake()
        await other.handshake()
        client.socket.room = 1000
        client.send(sized_frame(1))
        client.send(sized_frame(1, padding=1000), piece=500)
        if end == "eof":
            assert client.transport.eof_received(), "responses wait"
            client.transport.connection_lost(None)
        else:
            client.lose(ConnectionResetError())
        assert server.listener.connections == {other.connection}
        assert server.listener.bytes_buffered == 0
        await asyncio.sleep(0)
        other.send(sized_frame(1))
        await other.receives(HEAD + 5_000_000)

    run(main)


def test_damaged_records_close_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        client = TlsClient(server, port, client_context())
        await client.handshake()
        client.tls.write(FRAME + FRAME)
        data = bytearray(client.encrypted())
        data[-1] ^= 1
        client.deliver(bytes(data))
        assert client.socket.closed
        (failure,) = server.listener.failures
        assert "TLS: " in failure
        assert server.listener.bytes_in == 0
        client.exchange()
        assert client.error is not None

    run(main)


def test_the_socket_below_is_hidden(tmp_path: Path) -> None:
    """What is written to it directly leaves in clear text."""

    async def main() -> None:
        client = TlsClient(Server(AT_ONCE), Port(server_context(tmp_path)), client_context())
        assert client.transport.get_extra_info("socket") is None
        assert client.transport.get_extra_info("peername") == ("127.0.0.1", 1)

    run(main)


def test_new_connections_have_the_present_certificate(tmp_path: Path) -> None:
    async def main() -> None:
        server, port = Server(AT_ONCE), Port(server_context(tmp_path))
        before = TlsClient(server, port, client_context())
        await before.handshake()
        authority = Authority("New CA")
        renewed = authority.issue("server")
        port.context = server_context(tmp_path, renewed)
        after = TlsClient(server, port, client_context(authority))
        await after.handshake()
        for client, identity in ((before, SERVER), (after, renewed)):
            certificate = client.tls.getpeercert(binary_form=True)
            assert certificate is not None
            assert ssl.DER_cert_to_PEM_cert(certificate) in identity.pem
            client.send(FRAME)
            await client.receives(RESPONSE_SIZE)

    run(main)
