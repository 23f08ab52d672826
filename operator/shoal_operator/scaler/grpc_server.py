"""A gRPC server over HTTP/2 for small messages: unary calls and streams of responses.

The operator's client of the API server has h2 among its dependencies, so this needs nothing more in
the image; grpcio alone is larger than all of the operator (ADR 100). h2 does HTTP/2, and this
module the rest of gRPC's protocol: frames, status codes and trailers. It supports no compression
and no requests of several messages.
"""

from __future__ import annotations

import asyncio
import struct
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import structlog

if TYPE_CHECKING:
    import ssl

log = structlog.get_logger()


class GrpcRequest(NamedTuple):
    """The message of a request, and whether TLS has verified a certificate of the client."""

    message: bytes
    certified: bool


#: Takes a request and yields the messages of the response.
Handler = Callable[[GrpcRequest], AsyncIterator[bytes]]
REQUEST_BYTES_MAX = 32 << 10
#: When there are more, the one that has been idle longest is closed, so that nobody keeps KEDA out.
CONNECTIONS_MAX = 100
#: Seconds without a call that runs. KEDA asks every 30 s by default, or has a stream open.
IDLE_S_MAX = 120.0
#: Bytes of a client without a complete frame; frames have at most 16 KiB.
UNREAD_BYTES_MAX = 128 << 10
#: Bytes that a client does not read, such as answers to its PINGs. All answers are small.
UNSENT_BYTES_MAX = 256 << 10
_FRAME = struct.Struct(">BI")
_CONTENT_TYPE = "application/grpc"


class GrpcStatus(IntEnum):
    """Status codes of gRPC."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(Exception):
    """A handler's refusal, which the client gets as a status."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Call:
    """One call: a stream of HTTP/2."""

    path: str
    request: bytearray = field(default_factory=bytearray)
    has_headers: bool = False
    task: asyncio.Task[None] | None = None


class GrpcServer:
    """Serves methods, which are named by their paths: package and service, then the method."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self.handlers = handlers
        self.idle_s_max = IDLE_S_MAX
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, context: ssl.SSLContext | None = None) -> int:
        """Listen; return the port. Without `context`, clients connect without TLS."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    def admit(self, connection: _Connection) -> bool:
        """Take a new connection, in place of the longest idle one if there are too many.

        Returns False if none is idle.
        """
        if len(self.connections) >= CONNECTIONS_MAX:
            idle = [candidate for candidate in self.connections if candidate.is_idle]
            if not idle:
                return False
            longest = min(idle, key=lambda candidate: candidate.idle_since_s)
            self.connections.discard(longest)
            longest.close()
        self.connections.add(connection)
        return True

    async def close(self) -> None:
        """Stop listening and end all calls."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        if self._server is not None:
            await self._server.wait_closed()


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self._calls: dict[int, _Call] = {}
        self._unread_bytes = 0
        self._transport: asyncio.Transport | None = None
        #: Set whenever the client may have made room for more data.
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.idle_since_s = self._loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no call runs. A request that is not complete is none."""
        return all(call.task is None for call in self._calls.values())

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._server.admit(self):
            transport.close()
            return
        self._end_if_idle()
        self._h2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
            # h2 keeps an incomplete frame, and checks its size once it is complete.
            self._unread_bytes = 0 if events else self._unread_bytes + len(data)
            if self._unread_bytes > UNREAD_BYTES_MAX:
                raise h2.exceptions.FrameTooLargeError("a frame is too large")
            for event in events:
                self._on_event(event)
        except h2.exceptions.ProtocolError as error:
            log.info("a gRPC client broke the protocol", error=str(error))
            self._flush()
            self.close()
            return
        self._flush()

    def connection_lost(self, _: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for call in self._calls.values():
            if call.task:
                call.task.cancel()
        self._calls.clear()

    def close(self) -> None:
        """End all calls and close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(self._h2.data_to_send())
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            log.info("a gRPC client does not read", unsent_bytes_max=UNSENT_BYTES_MAX)
            self._transport.abort()

    def _end_if_idle(self) -> None:
        """Close the connection if it has been idle for long enough; else look again then."""
        left_s = self._server.idle_s_max
        if self.is_idle:
            left_s += self.idle_since_s - self._loop.time()
        if left_s <= 0:
            self._h2.close_connection()
            self._flush()
            self.close()
            return
        self._idle_timer = self._loop.call_later(left_s, self._end_if_idle)

    # Events of HTTP/2.

    def _on_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._on_request(event.stream_id, {str(k): str(v) for k, v in event.headers})
        elif isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if call := self._calls.get(event.stream_id):
                call.request += event.data[: REQUEST_BYTES_MAX + 1 - len(call.request)]
        elif isinstance(event, h2.events.StreamEnded):
            call = self._calls.get(event.stream_id)
            if call is not None and call.task is None:
                coroutine = self._serve(event.stream_id, call)
                call.task = asyncio.create_task(coroutine, name=f"gRPC {call.path}")
        elif isinstance(event, h2.events.StreamReset):
            call = self._calls.pop(event.stream_id, None)
            if call is not None and call.task:
                call.task.cancel()
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._room.set()
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.close()

    def _on_request(self, stream: int, headers: Mapping[str, str]) -> None:
        if not headers.get("content-type", "").startswith(_CONTENT_TYPE):
            self._h2.send_headers(stream, [(":status", "415")], end_stream=True)
            return
        self._calls[stream] = _Call(headers.get(":path", ""))

    # Calls.

    async def _serve(self, stream: int, call: _Call) -> None:
        """Run one call to its end."""
        status, message = GrpcStatus.OK, ""
        try:
            handler = self._server.handlers.get(call.path)
            if handler is None:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, f"there is no method {call.path}")
            request = GrpcRequest(_parse_message(bytes(call.request)), self._is_certified())
            async for response in handler(request):
                await self._send(stream, call, response)
        except GrpcError as error:
            status, message = error.status, str(error)
        except h2.exceptions.ProtocolError:
            # The client has reset the stream.
            self._calls.pop(stream, None)
        except Exception:
            log.exception("a defect of the operator", method=call.path)
            status, message = GrpcStatus.INTERNAL, "a defect of the operator; its log has it"
        self.idle_since_s = self._loop.time()
        if self._calls.pop(stream, None) is not None:
            self._end(stream, call, status, message)
            self._flush()

    def _is_certified(self) -> bool:
        return self._transport is not None and bool(self._transport.get_extra_info("peercert"))

    async def _send(self, stream: int, call: _Call, message: bytes) -> None:
        """Send one message of the response; wait for room in the client's window."""
        if not call.has_headers:
            self._h2.send_headers(stream, [(":status", "200"), ("content-type", _CONTENT_TYPE)])
            call.has_headers = True
        data = _FRAME.pack(0, len(message)) + message
        while self._h2.local_flow_control_window(stream) < len(data):
            self._room.clear()
            await self._room.wait()
        self._h2.send_data(stream, data)
        self._flush()

    def _end(self, stream: int, call: _Call, status: GrpcStatus, message: str) -> None:
        trailers = [("grpc-status", str(int(status)))]
        if message:
            trailers.append(("grpc-message", urllib.parse.quote(message, safe=" ")))
        if not call.has_headers:
            trailers = [(":status", "200"), ("content-type", _CONTENT_TYPE), *trailers]
        self._h2.send_headers(stream, trailers, end_stream=True)


def _parse_message(request: bytes) -> bytes:
    """Return the one message of a request. Raises `GrpcError`."""
    if len(request) > REQUEST_BYTES_MAX:
        raise GrpcError(
            GrpcStatus.RESOURCE_EXHAUSTED, f"requests have at most {REQUEST_BYTES_MAX} bytes"
        )
    if len(request) < _FRAME.size:
        raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "the request has no message")
    is_compressed, size = _FRAME.unpack_from(request)
    if is_compressed:
        raise GrpcError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported")
    if len(request) != _FRAME.size + size:
        raise GrpcError(
            GrpcStatus.INVALID_ARGUMENT, "the request does not have exactly one message"
        )
    return request[_FRAME.size :]
