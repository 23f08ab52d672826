"""Connections without sockets, and the parts of a server's network without a broker."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from shoal.metadata.image import ImageScope
from shoal.protocol import codec, frames
from shoal.server.audit import AuditLogger
from shoal.server.authorization import AccessControl
from shoal.server.config import resolve
from shoal.server.metadata_cache import MetadataCache
from shoal.server.metrics.registry import MetricRegistry
from shoal.server.network.api import Api, Peer, Request
from shoal.server.network.connection import ListenerPort, ServerConnection
from shoal.server.network.dispatch import ControllerPort, Dispatcher
from shoal.server.network.encoding import ErrorResponses
from shoal.server.network.purgatory import Purgatory
from shoal.server.network.receive_memory import ReceiveMemory
from shoal.server.network.request_limits import RequestLimits
from shoal.server.node import Node
from shoal.server.quota.client_quotas import ClientQuotas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shoal.protocol.api import ApiKey

LISTENER = "PLAINTEXT"


def request_frame(api: ApiKey, version: int, body: Mapping[str, Any]) -> bytes:
    """A request with its size prefix."""
    frame = frames.build_request_head(api, version, 1, "t") + bytes(
        codec.write_request(api, version, body)
    )
    return struct.pack(">i", len(frame)) + frame


class FakeController:
    """The active controller (`dispatch.ControllerPort`). It returns `body` for a forwarded
    request."""

    def __init__(self, *, is_local: bool = True, body: bytes = b"") -> None:
        self._is_local, self._body = is_local, body
        self.forwarded: list[bytes] = []

    @property
    def is_local(self) -> bool:
        return self._is_local

    def forward(self, frame: bytes | bytearray, request: Request) -> asyncio.Future[list[bytes]]:
        self.forwarded.append(bytes(frame))
        done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        done.set_result([self._body])
        return done


class FakeListener:
    """The listener of connections without sockets (`connection.ListenerPort`)."""

    def __init__(self, node: Node) -> None:
        self.loop = node.loop
        self.request_size_max: int = node.config["socket.request.max.bytes"]
        self.request_limits = RequestLimits(node)
        self.receive_memory = ReceiveMemory(node.loop, node.config["shoal.request.memory.bytes"])
        self.bytes_in = self.bytes_out = self.bytes_buffered = 0
        self.connections: set[ServerConnection] = set()
        #: Why connections failed, in order.
        self.failures: list[str] = []

    def register(self, connection: ServerConnection, transport: asyncio.Transport) -> Peer | None:
        host, port = transport.get_extra_info("peername")
        self.connections.add(connection)
        return Peer(
            host,
            port,
            LISTENER,
            "User:ANONYMOUS",
            f"{host}:{port}",
            pause=connection.mute,
            close_after_responses=connection.close_after_responses,
        )

    def unregister(self, connection: ServerConnection, peer: Peer) -> None:
        self.connections.remove(connection)

    def on_connection_failed(self, connection: ServerConnection, reason: str) -> None:
        self.failures.append(reason)


class Server:
    """The network of a node that serves `rows`, with nothing behind it. This object is also the
    context of the handlers."""

    def __init__(
        self, *rows: Api, controller: ControllerPort | None = None, **configs: str
    ) -> None:
        given = {name.replace("_", "."): value for name, value in configs.items()}
        self.node = Node(resolve(given, {}), asyncio.get_running_loop())
        self.cache = MetadataCache(ImageScope(self.node.id, self.node.config.explicit))
        self.metrics = MetricRegistry()
        #: It has no topics, so none that looks for the ids of records.
        self.partitions = SimpleNamespace(has_deduplication=False)
        self.purgatory = Purgatory(self.node.loop, self.node.timers)
        self.table: dict[int, Api] = {row.key: row for row in rows}
        #: What it serves once it has joined its cluster; tests add rows.
        self.advertised = dict(self.table)
        self.errors = ErrorResponses(self.node.log, self.table)
        self.dispatcher = Dispatcher(
            context=self,
            served={LISTENER: self.table},
            advertised={LISTENER: self.advertised},
            cache=self.cache,
            metrics=self.metrics,
            quotas=ClientQuotas(self.node, self.cache, self.metrics),
            purgatory=self.purgatory,
            controller=controller or FakeController(),
            errors=self.errors,
            access=AccessControl(self.node.config, self.cache, AuditLogger(self.node)),
        )
        self.listener = FakeListener(self.node)

    def connect(self, host: str = "127.0.0.1", **hooks: Callable[[], None]) -> Wire:
        """A new connection from an address; for `hooks` see `Wire`."""
        return Wire(self.listener, self.dispatcher, host, **hooks)


class Wire(asyncio.Transport):
    """A connection and its transport, which has no socket: it keeps what the connection writes.

    `on_write` is called after each write, `on_resume` when the connection resumes reading.
    """

    def __init__(
        self,
        listener: ListenerPort,
        dispatcher: Dispatcher,
        host: str = "127.0.0.1",
        *,
        on_write: Callable[[], None] = lambda: None,
        on_resume: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__({"peername": (host, 1)})
        self._on_write, self._on_resume = on_write, on_resume
        self.written: list[bytes] = []
        self.closed = self.reading_paused = False
        self.connection = ServerConnection(listener, dispatcher)
        self.connection.connection_made(self)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False
        self._on_resume()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.connection_lost(None)

    def abort(self) -> None:
        self.close()

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        self._on_write()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def receive(self, data: bytes) -> bytes:
        """Receive these bytes until the connection pauses reading. Return the rest."""
        while data and not self.reading_paused and not self.closed:
            buffer = self.connection.get_buffer(-1)
            assert buffer, "a transport takes no bytes for the end of the stream"
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self.connection.buffer_updated(len(part))
        return data

    def send(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> None:
        """Receive a request."""
        self.receive(request_frame(api, version, body))
