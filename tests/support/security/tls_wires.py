"""TLS connections of a server without sockets: clients are OpenSSL objects in the same process."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from shoal.server.network.connection import ServerConnection
from shoal.server.network.tls import TlsEngine, TlsTransport
from support.runs.conditions import eventually_async
from support.security.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.server.network.api import Peer
    from shoal.server.network.tls import AppProtocol
    from support.brokers.connections import Server
    from support.security.certificates import Identity

AUTHORITY = Authority()
SERVER = AUTHORITY.issue("server")
CLIENT = AUTHORITY.issue("client")


def load(context: ssl.SSLContext, identity: Identity, folder: Any) -> None:
    path = folder / f"{identity.fingerprint}.pem"
    path.write_text(identity.pem)
    context.load_cert_chain(path)


def server_context(folder: Any, identity: Identity = SERVER) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    load(context, identity, folder)
    return context


def client_context(authority: Authority = AUTHORITY) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pem)
    return context


class Port:
    """The listener's TLS (`tls.TlsPort`)."""

    def __init__(self, context: ssl.SSLContext, *, handshake_timeout_ms: int = 60_000) -> None:
        self.engine = TlsEngine(asyncio.get_running_loop())
        self.context = context
        self.handshake_timeout_ms = handshake_timeout_ms
        #: Why clients are refused after their handshake; None if they are not.
        self.refusal: str | None = None
        self.authenticated: list[Peer] = []
        #: Why handshakes failed, and why responses could not be sent.
        self.failures: list[str] = []
        self.send_failures: list[str] = []

    def authenticate(self, peer: Peer, tls: ssl.SSLObject) -> str | None:
        assert tls.version() is not None
        self.authenticated.append(peer)
        return self.refusal

    def on_handshake_failed(self, connection: AppProtocol, reason: str) -> None:
        self.failures.append(reason)

    def on_send_failed(self, connection: AppProtocol, reason: str) -> None:
        self.send_failures.append(reason)


class Socket(asyncio.Transport):
    """The transport below TLS. It keeps what is written, and is full while more than `room` bytes
    wait."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "socket": object()})
        self.protocol: TlsTransport | None = None
        self.waiting = bytearray()
        self.room = 1 << 40
        self.is_full = self.reading_paused = self.closed = self.aborted = False
        #: The largest number of bytes that ever waited.
        self.waiting_max = 0

    def write(self, data: Any) -> None:
        assert not self.closed
        self.waiting += data
        self.waiting_max = max(self.waiting_max, len(self.waiting))
        if len(self.waiting) > self.room and not self.is_full:
            self.is_full = True
            assert self.protocol is not None
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def take(self, size: int = 1 << 40) -> bytes:
        """Return what has left the machine."""
        data = bytes(self.waiting[:size])
        del self.waiting[:size]
        if self.is_full and not self.waiting:
            self.is_full = False
            assert self.protocol is not None
            self.protocol.resume_writing()
        return data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class TlsClient:
    """A client, its TLS, and the server's end of its connection."""

    def __init__(self, server: Server, port: Port, context: ssl.SSLContext) -> None:
        self._port = port
        self.connection = ServerConnection(server.listener, server.dispatcher)
        self.transport = TlsTransport(port, self.connection)
        self.socket = Socket()
        self.socket.protocol = self.transport
        self.transport.connection_made(self.socket)
        self._from_server, self._to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._from_server, self._to_server, server_hostname="localhost")
        self._unsent = b""
        #: What the server has sent, decrypted.
        self.received = bytearray()
        #: Why the server's bytes could not be decrypted, or that the session has ended.
        self.error: ssl.SSLError | None = None

    async def handshake(self, *, piece: int = 1 << 40, keep_last: bool = False) -> None:
        """Complete the handshake; the server receives the client's bytes in pieces. With
        `keep_last`, the client's last message is kept for the next delivery."""

        def step() -> bool:
            try:
                self.tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            if not (done and keep_last):
                self._deliver(piece)
            self._from_server.write(self.socket.take())
            return done

        await eventually_async(step)
        # With TLS 1.3 the client is done before the server.
        await eventually_async(lambda: not len(self._port.engine.handshakes))

    def encrypted(self) -> bytes:
        """Return what OpenSSL has for the server, without delivering it."""
        return self._to_server.read()

    def send(self, data: bytes, *, piece: int = 1 << 40) -> None:
        """Encrypt and deliver. What the server does not read yet is kept for `exchange`."""
        self.tls.write(data)
        self._deliver(piece)

    def deliver(self, data: bytes) -> None:
        """Deliver these bytes as they are."""
        self._unsent += data
        self._deliver(1 << 40)

    def _deliver(self, piece: int) -> None:
        self._unsent += self.encrypted()
        while self._unsent and not self.socket.reading_paused and not self.socket.closed:
            buffer = self.transport.get_buffer(-1)
            part = self._unsent[: min(piece, len(buffer))]
            self._unsent = self._unsent[len(part) :]
            buffer[: len(part)] = part
            self.transport.buffer_updated(len(part))

    def exchange(self) -> None:
        """Deliver and receive what there is."""
        self._deliver(1 << 40)
        self._from_server.write(self.socket.take())
        try:
            while data := self.tls.read(1 << 16):
                self.received += data
            self.error = ssl.SSLZeroReturnError()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.error = error

    async def receives(self, size: int) -> bytes:
        """Return `size` bytes that the server sends."""

        def enough() -> bool:
            self.exchange()
            return len(self.received) >= size

        await eventually_async(enough)
        data = bytes(self.received[:size])
        del self.received[:size]
        return data

    def lose(self, error: Exception | None = None) -> None:
        """Lose the connection, as after the socket's transport has closed."""
        self.transport.connection_lost(error)
