"""The optional HTTP listener: `/metrics` for Prometheus, `/healthz` and `/readyz` for Kubernetes.

A connection serves one request and is then closed. `/healthz` succeeds if the event loop runs and
the log directory is online, `/readyz` if the broker serves clients. The `Server` header of each
response has the version.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from shoal import __version__
from shoal.server.network.listener import bound_socket

if TYPE_CHECKING:
    from shoal.server.metrics.registry import Metrics
    from shoal.server.node import Node

#: The largest head of a request, in bytes. curl sends 80 bytes, Prometheus about 300.
HEAD_SIZE_MAX = 8192
#: A connection without a request is closed after this time.
TIMEOUT_S = 10
CONNECTIONS_MAX = 100
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class HealthSource(Protocol):
    """What the probes of Kubernetes ask for."""

    def unhealthy(self) -> str | None:
        """Return why the process should be restarted, or None."""

    def not_ready(self) -> str | None:
        """Return why clients are not served, or None."""


class HealthListener:
    """Owns the HTTP socket."""

    def __init__(self, node: Node, metrics: Metrics, health: HealthSource) -> None:
        self.loop = node.loop
        self._system = node.system
        self._metrics = metrics
        self._health = health
        self.connections = 0
        self.host, self.port = "", 0
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Bind and accept. Raises `ListenError`."""
        sock = bound_socket(self._system, host, port)
        self.host, self.port = host, sock.getsockname()[1]
        self._server = await self.loop.create_server(lambda: _Http(self), sock=sock)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def answer(self, path: str) -> tuple[int, str, str]:
        """Return the status, the content type and the body for a path."""
        match path.partition("?")[0]:
            case "/metrics":
                return 200, _METRICS, self._metrics.text()
            case "/healthz":
                why = self._health.unhealthy()
                return (200, _TEXT, "ok\n") if why is None else (503, _TEXT, why + "\n")
            case "/readyz":
                why = self._health.not_ready()
                return (200, _TEXT, "ready\n") if why is None else (503, _TEXT, why + "\n")
        return 404, _TEXT, "Not found. The paths are /metrics, /healthz and /readyz.\n"


class _Http(asyncio.Protocol):
    def __init__(self, listener: HealthListener) -> None:
        self._listener = listener
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it.
        self._listener.connections += 1
        if self._listener.connections > CONNECTIONS_MAX:
            self._transport.abort()
        self._timeout = self._listener.loop.call_later(TIMEOUT_S, self._transport.abort)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._listener.connections -= 1
        if self._timeout is not None:
            self._timeout.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._transport.write(self._response())
            self._transport.close()
        elif len(self._head) > HEAD_SIZE_MAX:
            self._transport.abort()

    def _response(self) -> bytes:
        words = self._head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            status, kind, body = 400, _TEXT, "This listener serves HTTP.\n"
        elif words[0] not in ("GET", "HEAD"):
            status, kind, body = 405, _TEXT, "Use GET or HEAD.\n"
        else:
            status, kind, body = self._listener.answer(words[1])
        data = body.encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(data)}\r\nServer: shoal/{__version__}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + (b"" if words[0] == "HEAD" else data)
