"""The optional HTTP listener: `/metrics` for Prometheus, `/healthz` and `/readyz` for Kubernetes.

A connection serves one request and is then closed. `/healthz` succeeds if the event loop runs and
the log directory is online, `/readyz` if the broker serves clients. `/readyz?in-sync` also
fails while no other broker may stop, because this one has to catch up first. The `Server` header of
each response has the version.

Metrics contain the names of topics and groups. With `shoal.metrics.security.get_protocol=SSL` they
are served over TLS only, and with `shoal.metrics.token.file` to readers with a token or a
certificate. The first byte of a connection shows whether it uses TLS, so the probes stay plain on
the same port.
"""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from shoal import __version__
from shoal.security.authorizer import canonicalize_host
from shoal.server.config import METRICS, format_address
from shoal.server.listener_security import SecurityProtocol
from shoal.server.metrics.exposition import Exposition
from shoal.server.network.api import Peer
from shoal.server.network.listener import bind_socket
from shoal.server.network.tls import TlsPort, TlsTransport

if TYPE_CHECKING:
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.node import Node

#: The largest head of a request, in bytes. curl sends 80 bytes, Prometheus about 300.
HEAD_SIZE_MAX = 8192
#: A connection without a request is closed after this time.
TIMEOUT_S = 10
CONNECTIONS_MAX = 100
#: The parameter of `/readyz` that asks for in-sync replicas, too.
IN_SYNC = "in-sync"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_TEXT = "text/plain; charset=utf-8"
_ANONYMOUS = "User:ANONYMOUS"
_CHALLENGE = "WWW-Authenticate: Bearer\r\n"
_TLS_HANDSHAKE = 0x16
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class HealthSource(Protocol):
    """What the probes of Kubernetes ask for."""

    def get_unhealthy_reason(self) -> str | None:
        """Return why the process should be restarted, or None."""

    def get_unready_reason(self) -> str | None:
        """Return why clients are not served, or None."""

    def get_out_of_sync_reason(self) -> str | None:
        """Return why no other broker may stop until this one has caught up, or None."""


class MetricsReader(NamedTuple):
    """What is known about the sender of a request."""

    has_tls: bool = False
    has_certificate: bool = False
    token: bytes = b""


def find_token(head: bytes) -> bytes:
    """Return the bearer token in the head of a request; empty if there is none (RFC 6750)."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        scheme, *token = value.split(maxsplit=1)[:2] or (b"",)
        if name.lower() == b"authorization" and scheme.lower() == b"bearer" and token:
            return token[0].strip()
    return b""


class BearerTokens:
    """The bearer tokens of a file. It is read again when it changes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._state: tuple[int, int, int] | None = None
        self._tokens: list[bytes] = []

    def has(self, token: bytes) -> bool:
        """Whether the file has this token. Without the file no token is accepted."""
        try:
            status = self._path.stat()
            state = status.st_ino, status.st_mtime_ns, status.st_size
            if state != self._state:
                self._tokens = [
                    candidate for candidate in self._path.read_bytes().split() if candidate
                ]
                self._state = state
        except OSError:
            self._state, self._tokens = None, []
        return bool(
            [candidate for candidate in self._tokens if hmac.compare_digest(candidate, token)]
        )


class HealthListener:
    """Owns the HTTP socket."""

    def __init__(
        self, node: Node, metrics: MetricRegistry, health: HealthSource, tls: TlsPort | None = None
    ) -> None:
        """`tls` is None if metrics are served without TLS."""
        self.loop = node.loop
        self.tls = tls
        self._system = node.system
        self._log = node.log
        self._exposition = Exposition(metrics, node.loop)
        self._health = health
        path = node.config["shoal.metrics.token.file"]
        self._tokens = None if path is None else BearerTokens(path)
        self.connections = 0
        self.host, self.port = "", 0
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Bind and accept. Raises `ListenError`."""
        sock = bind_socket(self._system, host, port)
        self.host, self.port = host, sock.getsockname()[1]
        self._server = await self.loop.create_server(lambda: _SocketProtocol(self), sock=sock)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def url(self) -> str:
        """The URL of the metrics."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{format_address(self.host, self.port)}/metrics"

    def log_failure(self, reason: str) -> None:
        self._log.warning("connection closed", reason=reason, listener=METRICS)

    async def answer(
        self, path: str, reader: MetricsReader = MetricsReader()
    ) -> tuple[int, str, str]:
        """Return the status, the content type and the body for a path."""
        name, _, query = path.partition("?")
        match name:
            case "/metrics":
                refusal = self._check_reader(reader)
                return refusal or (200, _METRICS, await self._exposition.render())
            case "/healthz":
                why = self._health.get_unhealthy_reason()
                return (200, _TEXT, "ok\n") if why is None else (503, _TEXT, why + "\n")
            case "/readyz":
                why = self._health.get_unready_reason()
                if why is None and IN_SYNC in query.split("&"):
                    why = self._health.get_out_of_sync_reason()
                return (200, _TEXT, "ready\n") if why is None else (503, _TEXT, why + "\n")
        return 404, _TEXT, "Not found. The paths are /metrics, /healthz and /readyz.\n"

    def _check_reader(self, reader: MetricsReader) -> tuple[int, str, str] | None:
        """Return the response for a reader that may not have the metrics, or None."""
        if self.tls is not None and not reader.has_tls:
            return 403, _TEXT, "Metrics are served over TLS: use https.\n"
        if self._tokens is None or reader.has_certificate or self._tokens.has(reader.token):
            return None
        return 401, _TEXT, "Metrics need a bearer token of shoal.metrics.token.file.\n"


class _SocketProtocol(asyncio.Protocol):
    """Owns a socket until its first byte shows whether it uses TLS."""

    def __init__(self, listener: HealthListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._next: _HttpProtocol | TlsTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it.
        self._listener.connections += 1
        if self._listener.connections > CONNECTIONS_MAX:
            self._transport.abort()
        self._timeout = self._listener.loop.call_later(TIMEOUT_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.connections -= 1
        if self._timeout is not None:
            self._timeout.cancel()
        if self._next is not None:
            self._next.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._next is None:
            http = _HttpProtocol(self._listener)
            tls = self._listener.tls
            self._next = (
                TlsTransport(tls, http) if tls is not None and data[0] == _TLS_HANDSHAKE else http
            )
            self._next.connection_made(self._transport)
        while data and not self._transport.is_closing():
            buffer = self._next.get_buffer(-1)
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self._next.buffer_updated(len(part))

    def eof_received(self) -> bool:
        return isinstance(self._next, TlsTransport) and self._next.eof_received()

    def pause_writing(self) -> None:
        if isinstance(self._next, TlsTransport):
            self._next.pause_writing()

    def resume_writing(self) -> None:
        if isinstance(self._next, TlsTransport):
            self._next.resume_writing()


class _HttpProtocol(asyncio.BufferedProtocol):
    """Owns one request."""

    def __init__(self, listener: HealthListener) -> None:
        self._listener = listener
        self._head = memoryview(bytearray(HEAD_SIZE_MAX))
        self._size = 0
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Task[None] | None = None
        self.peer: Peer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.peer = Peer(
            canonicalize_host(host),
            port,
            METRICS,
            _ANONYMOUS,
            f"{host}:{port}",
            security_protocol=SecurityProtocol.SSL,
        )

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        if self._response is not None:
            self._response.cancel()

    def pause_writing(self) -> None:
        """The response is in memory already."""

    def resume_writing(self) -> None: ...

    def fail(self, reason: str) -> None:
        self._listener.log_failure(reason)
        if self._transport is not None:
            self._transport.close()

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._head[self._size :]

    def buffer_updated(self, nbytes: int) -> None:
        self._size += nbytes
        if self._transport is None or self._transport.is_closing() or self._response is not None:
            self._size = 0  # What follows the request has no meaning.
            return
        head = bytes(self._head[: self._size])
        if b"\r\n\r\n" in head:
            self._response = self._listener.loop.create_task(self._respond(head))
        elif self._size == len(self._head):
            self._transport.abort()

    async def _respond(self, head: bytes) -> None:
        try:
            response = await self._build_response(head)
        except Exception as error:
            self.fail(f"no response: {error!r}")
            return
        if self._transport is not None:
            self._transport.write(response)
            self._transport.close()

    def _make_reader(self, head: bytes) -> MetricsReader:
        assert self.peer is not None
        return MetricsReader(
            isinstance(self._transport, TlsTransport),
            self.peer.principal != _ANONYMOUS,
            find_token(head),
        )

    async def _build_response(self, received: bytes) -> bytes:
        words = received.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            status, kind, body = 400, _TEXT, "This listener serves HTTP.\n"
        elif words[0] not in ("GET", "HEAD"):
            status, kind, body = 405, _TEXT, "Use GET or HEAD.\n"
        else:
            status, kind, body = await self._listener.answer(words[1], self._make_reader(received))
        data = body.encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(data)}\r\nServer: shoal/{__version__}\r\n"
            f"{_CHALLENGE if status == 401 else ''}Connection: close\r\n\r\n"
        )
        return head.encode() + (b"" if words[0] == "HEAD" else data)
