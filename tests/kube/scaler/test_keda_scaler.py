"""KEDA's external push scaler: its messages, gRPC over HTTP/2, and what it answers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import urllib.parse
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube.api_server import ApiServer, CrashPoint, resource
from shoal_operator.http_access import HttpAccess
from shoal_operator.runtime import Operator
from shoal_operator.scaler import keda
from shoal_operator.scaler import keda_messages as messages
from shoal_operator.scaler.grpc_server import (
    CONNECTIONS_MAX,
    IDLE_S_MAX,
    REQUEST_BYTES_MAX,
    UNREAD_BYTES_MAX,
    GrpcStatus,
)
from shoal_operator.scaler.keda_messages import BadMessage
from shoal_operator.settings import ChartSettings
from support.security.certificates import Authority, Stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

REF = bytes.fromhex(
    # name "so", namespace "n", metadata shareConsumer: "eaters"
    "0a02736f12016e1a170a0d7368617265436f6e73756d65721206656174657273"
)


# Messages. The bytes are those of protoc.


def test_messages_are_read_and_written_as_protoc_does() -> None:
    assert messages.parse_scaled_object_ref(REF) == ("so", "n", {"shareConsumer": "eaters"})
    asked = bytes([0x0A, len(REF)]) + REF + bytes.fromhex("1203647565")
    assert messages.parse_metrics_request(asked) == (messages.parse_scaled_object_ref(REF), "due")
    assert messages.encode_active_response(True) == b"\x08\x01"
    assert messages.encode_active_response(False) == b""
    assert messages.encode_metric_response("due", 300) == bytes.fromhex(
        "0a110a0364756510ac02190000000000c07240"
    )
    assert messages.encode_metric_response("due", 0) == bytes.fromhex("0a050a03647565")


def test_unknown_fields_are_skipped() -> None:
    more = bytes.fromhex("2096012d000000003100000000000000003a0178")
    assert messages.parse_scaled_object_ref(more + REF) == messages.parse_scaled_object_ref(REF)


@pytest.mark.parametrize("data", ["0a", "0a05616263", "ff" * 11, "0b", "0a01ff", "0801"])
def test_bytes_that_are_no_message_are_refused(data: str) -> None:
    with pytest.raises(BadMessage):
        messages.parse_scaled_object_ref(bytes.fromhex(data))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        messages.parse_scaled_object_ref(data)
    except BadMessage:
        pass


# The service.


class Answer(NamedTuple):
    messages: list[bytes]
    status: int
    text: str


class KedaClient(asyncio.Protocol):
    """As much of gRPC as KEDA's client uses, over h2."""

    def __init__(self) -> None:
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.data: dict[int, bytearray] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.ended: set[int] = set()
        self.news = asyncio.Condition()
        self.closed = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.h2.initiate_connection()
        transport.write(self.h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            stream = getattr(event, "stream_id", 0)
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                headers = {str(k): str(v) for k, v in event.headers}
                self.headers.setdefault(stream, {}).update(headers)
            elif isinstance(event, h2.events.DataReceived):
                self.data.setdefault(stream, bytearray()).extend(event.data)
                self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(stream)
        self.transport.write(self.h2.data_to_send())
        self._wake()

    def connection_lost(self, _: Exception | None) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        async def notify() -> None:
            async with self.news:
                self.news.notify_all()

        self.waking = asyncio.create_task(notify())

    def start(self, path: str, body: bytes, content_type: str = "application/grpc") -> int:
        stream = self.h2.get_next_available_stream_id()
        names = {":method": "POST", ":scheme": "http", ":authority": "a", ":path": path}
        self.h2.send_headers(stream, [*names.items(), ("content-type", content_type)])
        for at in range(0, len(body), 16_000):
            self.h2.send_data(stream, body[at : at + 16_000])
        self.h2.end_stream(stream)
        self.transport.write(self.h2.data_to_send())
        return stream

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(10), self.news:
            await self.news.wait_for(lambda: holds() or self.closed)

    def answer(self, stream: int) -> Answer:
        found, data = [], bytes(self.data.get(stream, b""))
        while data:
            _, size = struct.unpack_from(">BI", data)
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        headers = self.headers.get(stream, {})
        text = urllib.parse.unquote(headers.get("grpc-message", ""))
        return Answer(found, int(headers.get("grpc-status", -1)), text)

    async def call(self, method: str, message: bytes) -> Answer:
        stream = self.start(f"/{keda.SERVICE}/{method}", framed(message))
        await self.until(lambda: stream in self.ended)
        return self.answer(stream)


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


class FixedAccess:
    """Asks for the token `secret`."""

    def may_read(self, header: str, consumer: tuple[str, str], *, certified: bool) -> bool:
        return certified or (header, consumer) == ("Bearer secret", ("n", "eaters"))


class Scene:
    """An operator on standby, which repeats the status of a ShareConsumer."""

    def __init__(self) -> None:
        settings = ChartSettings(
            "b:1", "s:1", "role", "http://o", workloads=frozenset(["deployment"])
        )
        self.kube = ApiServer(CrashPoint())
        self.operator = Operator(self.kube, settings, another_leads=lambda: True)
        group = {"shareGroup": "g", "scaling": {"targetLagPerReplica": 40}}
        self.kube.add(resource("ShareConsumer", "eaters", **group))
        self.operator.on_update(self.kube.find("ShareConsumer", "eaters"))
        self.client = KedaClient()
        self.port = 0

    def report(self, **status: int) -> None:
        found = self.kube.find("ShareConsumer", "eaters")
        found["status"] = status
        found["metadata"]["resourceVersion"] = str(next(self.kube.numbers))
        self.operator.on_update(found)


@asynccontextmanager
async def scene(
    access: Any = None,
    tls: ssl.SSLContext | None = None,
    client: ssl.SSLContext | None = None,
    idle_s_max: float = IDLE_S_MAX,
) -> AsyncIterator[Scene]:
    made = Scene()
    server = keda.make_server(made.operator, access)
    server.idle_s_max = idle_s_max
    made.port = await server.start("127.0.0.1", 0, tls)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: made.client, "127.0.0.1", made.port, ssl=client)
    try:
        yield made
    finally:
        made.client.transport.close()
        await server.close()
        await made.operator.close()


def test_keda_gets_the_records_that_are_due_and_the_target() -> None:
    async def scenario() -> None:
        async with scene() as found:
            found.report(lag=9, due=7)
            spec = await found.client.call("GetMetricSpec", REF)
            assert spec == ([messages.encode_metric_response("due", 40)], GrpcStatus.OK, "")
            asked = bytes([0x0A, len(REF)]) + REF
            values = await found.client.call("GetMetrics", asked)
            assert values == ([messages.encode_metric_response("due", 7)], GrpcStatus.OK, "")
            active = await found.client.call("IsActive", REF)
            assert active == ([b"\x08\x01"], GrpcStatus.OK, "")
            found.report(lag=9, due=0)
            assert (await found.client.call("IsActive", REF)).messages == [b""]
            # metadata targetValue: "5"
            five = REF + bytes.fromhex("1a100a0b74617267657456616c7565120135")
            spec = await found.client.call("GetMetricSpec", five)
            assert spec.messages == [messages.encode_metric_response("due", 5)]

    asyncio.run(scenario())


def test_a_stream_reports_the_first_record_at_once() -> None:
    async def scenario() -> None:
        async with scene() as found:
            found.report(lag=0, due=0)
            client = found.client
            stream = client.start(f"/{keda.SERVICE}/StreamIsActive", framed(REF))

            async def seen(*expected: bytes) -> None:
                await client.until(lambda: client.answer(stream).messages == list(expected))
                assert client.answer(stream).messages == list(expected)

            await seen(b"")
            found.report(lag=1, due=1)
            await seen(b"", b"\x08\x01")
            found.report(lag=9, due=9)
            found.report(lag=0, due=0)
            await seen(b"", b"\x08\x01", b"")
            client.h2.reset_stream(stream)
            client.transport.write(client.h2.data_to_send())
            # The connection serves the next call, and nothing listens any more.
            assert (await client.call("IsActive", REF)).status == GrpcStatus.OK
            assert found.operator._signal_listeners == []  # noqa: SLF001

    asyncio.run(scenario())


def test_what_cannot_be_answered_has_a_status() -> None:
    async def scenario() -> None:
        async with scene() as found:
            call = found.client.call
            unknown = await call("IsActive", REF)
            assert unknown.status == GrpcStatus.UNAVAILABLE
            assert "lag of the group of ShareConsumer n/eaters is unknown" in unknown.text
            nobody = await call("IsActive", bytes.fromhex("0a02736f12016e"))
            assert nobody == ([], GrpcStatus.NOT_FOUND, "ShareConsumer n/so does not exist")
            assert (await call("StreamMetricSpec", REF)).status == GrpcStatus.UNIMPLEMENTED
            assert (await call("IsActive", b"\x0a")).status == GrpcStatus.INVALID_ARGUMENT
            bad = REF + bytes.fromhex("1a100a0b74617267657456616c7565120178")
            found.report(lag=1, due=1)
            assert "targetValue is 'x'" in (await call("GetMetricSpec", bad)).text

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", GrpcStatus.INVALID_ARGUMENT),
        (b"\x01\x00\x00\x00\x00", GrpcStatus.UNIMPLEMENTED),
        (b"\x00\x00\x00\x00\x09x", GrpcStatus.INVALID_ARGUMENT),
        (framed(b"") * 2, GrpcStatus.INVALID_ARGUMENT),
        (framed(bytes(REQUEST_BYTES_MAX)), GrpcStatus.RESOURCE_EXHAUSTED),
    ],
)
def test_requests_that_are_no_single_message_are_refused(body: bytes, status: GrpcStatus) -> None:
    async def scenario() -> None:
        async with scene() as found:
            stream = found.client.start(f"/{keda.SERVICE}/IsActive", body)
            await found.client.until(lambda: stream in found.client.ended)
            assert found.client.answer(stream).status == status

    asyncio.run(scenario())


def test_other_requests_than_grpc_are_refused() -> None:
    async def scenario() -> None:
        async with scene() as found:
            stream = found.client.start("/", b"{}", "application/json")
            await found.client.until(lambda: stream in found.client.ended)
            assert found.client.headers[stream][":status"] == "415"
            # HEADERS without a stream.
            found.client.transport.write(bytes.fromhex("000000010400000000"))
            await found.client.until(lambda: False)
            assert found.client.closed

    asyncio.run(scenario())


def test_a_frame_that_does_not_end_ends_the_connection() -> None:
    async def scenario() -> None:
        async with scene() as found:
            transport = found.client.transport
            transport.write(bytes.fromhex("ffffff000000000000") + bytes(2 * UNREAD_BYTES_MAX))
            await found.client.until(lambda: False)
            assert found.client.closed

    asyncio.run(scenario())


def test_idle_connections_do_not_keep_keda_out() -> None:
    async def scenario() -> None:
        async with scene() as found:
            found.report(lag=1, due=1)
            stream = found.client.start(f"/{keda.SERVICE}/StreamIsActive", framed(REF))
            await found.client.until(lambda: found.client.data.get(stream))
            loop, idle = asyncio.get_running_loop(), []
            for _ in range(CONNECTIONS_MAX + 1):
                _, client = await loop.create_connection(KedaClient, "127.0.0.1", found.port)
                idle.append(client)
            await idle[0].until(lambda: False)
            assert idle[0].closed
            assert (await idle[-1].call("IsActive", REF)).status == GrpcStatus.OK
            assert not found.client.closed
            for client in idle:
                client.transport.close()

    asyncio.run(scenario())


def test_an_idle_connection_ends() -> None:
    async def scenario() -> None:
        async with scene(idle_s_max=0.01) as found:
            await found.client.until(lambda: False)
            assert found.client.closed

    asyncio.run(scenario())


async def send_on(sock: socket.socket, data: bytes) -> None:
    """Send the same bytes until the server closes the connection."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        while True:
            await loop.sock_sendall(sock, data)


def test_a_client_that_reads_no_answers_to_its_pings_is_cut_off() -> None:
    async def scenario() -> None:
        async with scene() as found:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(sock, ("127.0.0.1", found.port))
                client = h2.connection.H2Connection()
                client.initiate_connection()
                await loop.sock_sendall(sock, client.data_to_send())
                client.ping(b"unread!!")
                pings = client.data_to_send() * 1_000
                with pytest.raises(ConnectionError):
                    await send_on(sock, pings)

    asyncio.run(scenario())


def test_a_token_opens_the_signal_of_its_share_consumer_only() -> None:
    async def scenario() -> None:
        async with scene(FixedAccess()) as found:
            found.report(lag=1, due=1)
            refused = await found.client.call("IsActive", REF)
            assert refused.status == GrpcStatus.PERMISSION_DENIED
            # metadata tokenFromEnv: "secret"
            token = REF + bytes.fromhex("1a160a0c746f6b656e46726f6d456e761206736563726574")
            assert (await found.client.call("IsActive", token)).messages == [b"\x08\x01"]

    asyncio.run(scenario())


def test_a_client_certificate_opens_every_signal(tmp_path: Path) -> None:
    """Also after the certificates were read again; the client and server agree on HTTP/2."""
    of_server, of_readers = Authority("Servers"), Authority("Readers")
    stores, server = Stores(tmp_path), of_server.issue("operator")
    stores.write("tls.key", server.key_pem())
    stores.write("tls.crt", server.chain_pem)
    stores.write("readers.crt", Authority("Others").pem)
    access = HttpAccess(tmp_path, None, tmp_path / "readers.crt")
    stores.write("readers.crt", of_readers.pem)
    access.reload()
    keda_pod = of_readers.issue("keda")
    stores.write("keda.pem", keda_pod.key_pem() + keda_pod.chain_pem)

    async def answer(certificate: Path | None) -> Answer:
        context = ssl.create_default_context(cadata=of_server.pem)
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        if certificate is not None:
            context.load_cert_chain(certificate)
        async with scene(access, access.grpc_context, context) as found:
            found.report(lag=1, due=1)
            secured = found.client.transport.get_extra_info("ssl_object")
            assert secured.selected_alpn_protocol() == "h2"
            return await found.client.call("IsActive", REF)

    async def scenario() -> None:
        assert (await answer(None)).status == GrpcStatus.PERMISSION_DENIED
        assert (await answer(tmp_path / "keda.pem")).messages == [b"\x08\x01"]

    asyncio.run(scenario())
