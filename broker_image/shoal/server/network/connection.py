"""One client connection: it receives frames and sends responses in the order of their requests.

A frame is a size prefix of four bytes and that many bytes. Small frames are copied out of one
scratch buffer, which all connections of the loop share. A larger frame is received into a buffer of
its own, so that only the kernel copies the payload of a large produce request. That buffer grows
with the bytes received, so a client cannot reserve memory by announcing a large size.

Requests are handled as they arrive, even while earlier ones wait. A connection stops reading

* at a number of pending requests, or at a sum of their sizes;
* while the client does not read its responses;
* while the client is throttled by a quota;
* while a request is handled in pieces (`pieces`);
* before a large request or a produce request, while the limits of the broker are reached
  (`request_limits`);
* in a large request, while the broker has no memory for more of it (`receive_memory`).

It resumes when the condition ends. Malformed bytes close the connection: `WireError` ends here.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

from shoal.log.slices import FileSlice
from shoal.protocol.errors import WireError
from shoal.security.acls import ANONYMOUS
from shoal.server.network.receive_memory import STRANGERS, ReceiveMemory
from shoal.server.network.request_limits import (
    LARGE_REQUEST_BYTES,
    RequestLimits,
    needs_capacity,
)
from shoal.server.network.sendfile_writer import SendfileWriter

if TYPE_CHECKING:
    from shoal.server.network.api import Buffer, Peer
    from shoal.server.network.authentication import DispatchPort
    from shoal.server.network.dispatch import PendingResponse

#: Bytes of one read. uvloop reads at most this many at a time. Before a login, requests are small,
#: and a connection without memory for a large one keeps what it has read.
SCRATCH_SIZE, LOGIN_READ_SIZE = 256 * 1024, 8 * 1024
#: Bytes of one read into a frame's own buffer. The kernel may have several megabytes.
FRAME_READ_SIZE = 1024 * 1024
#: The largest initial size of a frame's own buffer, which doubles as it fills.
FRAME_START_SIZE = 2 * 1024 * 1024
#: Pending requests of one connection, in number and in bytes. Clients keep 1 to 5 in flight
#: (librdkafka up to 1,000,000 by default, which the size of its queue bounds).
PENDING_MAX = 256
PENDING_BYTES_MAX = 64 * 1024 * 1024
#: What one connection may receive in a turn of the loop, in bytes; libuv reads up to 32 buffers at
#: once. A request costs this much beside its bytes. Together they take a broker some milliseconds.
TURN_COST_MAX, REQUEST_COST = 2 * 1024 * 1024, 32 * 1024
#: Bytes of responses in the write buffer. Above this, the connection stops reading.
WRITE_BUFFER_HIGH = 4 * 1024 * 1024
#: Up to this size, joining buffers costs less than a system call that gathers them.
JOIN_SIZE_MAX = 8192

#: The first two bytes of a connection with TLS. As a size prefix they mean 369 MB.
_TLS_HANDSHAKE = 0x1603

_SIZE = struct.Struct(">i")
_scratch = bytearray(SCRATCH_SIZE)
_scratch_view = memoryview(_scratch)
_login_view = _scratch_view[:LOGIN_READ_SIZE]


class ListenerPort(Protocol):
    """What a connection needs of the listener that accepted it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def request_size_max(self) -> int:
        """The largest frame accepted, in bytes."""

    @property
    def request_limits(self) -> RequestLimits: ...
    @property
    def receive_memory(self) -> ReceiveMemory: ...

    #: Bytes received and sent by all connections, and bytes that wait in write buffers.
    bytes_in: int
    bytes_out: int
    bytes_buffered: int

    def register(self, connection: ServerConnection, transport: asyncio.Transport) -> Peer | None:
        """Accept a connection. Return None to refuse it."""

    def unregister(self, connection: ServerConnection, peer: Peer) -> None:
        """Forget a connection whose transport is closed."""

    def on_connection_failed(self, connection: ServerConnection, reason: str) -> None:
        """Count and log a connection that ends with an error."""


class ServerConnection(asyncio.BufferedProtocol):
    """Owns the transport, the frame that is being received and the pending responses."""

    __slots__ = (
        "_awaits_capacity",
        "_backlog",
        "_bytes_buffered",
        "_dispatch",
        "_filled",
        "_frame",
        "_frame_size_max",
        "_frame_view",
        "_in_pieces",
        "_is_closing",
        "_listener",
        "_loop",
        "_muted",
        "_out",
        "_paused",
        "_pending",
        "_pending_bytes",
        "_receive_memory",
        "_request_limits",
        "_sendfile_writer",
        "_shared_view",
        "_size",
        "_transport",
        "_turn_cost",
        "_write_paused",
        "active_at",
        "peer",
    )

    def __init__(self, listener: ListenerPort, dispatch: DispatchPort) -> None:
        self._listener = listener
        self._loop = listener.loop
        self._dispatch = dispatch
        self._frame_size_max = listener.request_size_max
        self._backlog = b""
        self._frame: bytearray | None = None
        self._frame_view = self._shared_view = _scratch_view
        self._size = self._filled = 0
        self._out: list[Buffer | FileSlice] = []
        self._sendfile_writer: SendfileWriter | None = None
        #: Whether to close the connection when the sendfile writer has sent its queue.
        self._is_closing = False
        self._pending: deque[PendingResponse] = deque()
        self._pending_bytes = 0
        self._bytes_buffered = 0
        self._paused = self._write_paused = False
        #: A request that is handled in pieces. The next one waits for it.
        self._in_pieces: PendingResponse | None = None
        self._turn_cost = 0
        self._request_limits = listener.request_limits
        self._receive_memory = listener.receive_memory
        #: Whether it waits in the queue of the request limits, or for memory.
        self._awaits_capacity = False
        self._muted: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.active_at = 0.0
        self.peer: Peer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it.
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        self.active_at = self._loop.time()
        self.peer = self._listener.register(self, self._transport)
        if self.peer is None:
            self._transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._reset_bytes_buffered()
        if self._muted is not None:
            self._muted.cancel()
        self._transport = None
        self._drop_received()
        self._out.clear()
        if self._sendfile_writer is not None:
            self._sendfile_writer.close()
        # Cancelling a response may call this connection again.
        cancelled, self._pending = self._pending, deque()
        for pending in cancelled:
            pending.cancel()
        if self.peer is not None:
            self._listener.unregister(self, self.peer)

    def _drop_received(self) -> None:
        """Drop what is not handled: others still refer to a connection that has ended."""
        self._frame, self._frame_view = None, _scratch_view
        self._backlog = b""
        self._request_limits.on_connection_closed(self)
        self._receive_memory.release(self)

    # Receiving.

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame_view[self._filled : self._filled + FRAME_READ_SIZE]
        if not self._backlog:
            return self._shared_view
        received = len(self._backlog)
        _scratch[:received] = self._backlog
        return _scratch_view[received:]

    def buffer_updated(self, nbytes: int) -> None:
        now = self._loop.time()
        if now != self.active_at:
            # uvloop keeps the time for a turn.
            self.active_at, self._turn_cost = now, 0
        self._listener.bytes_in += nbytes
        try:
            if self._frame is not None:
                self._receive_frame(nbytes)
            else:
                end = len(self._backlog) + nbytes
                self._backlog = b""
                self._parse_frames(_scratch_view[:end])
        except WireError as error:
            self._on_malformed(str(error))
        self._dispatch.on_requests_handled(self.active_at)
        self._flush()

    def _receive_frame(self, nbytes: int) -> None:
        frame = self._frame
        assert frame is not None
        before, self._filled = self._filled, self._filled + nbytes
        if self._filled < self._size and self._filled // TURN_COST_MAX > before // TURN_COST_MAX:
            self._end_turn()
        if self._filled < len(frame):
            return
        if self._filled == self._size:
            self._frame = None
            self._frame_view = _scratch_view
            self._handle(frame)
            self._request_limits.on_receive_ended(self)
            self._receive_memory.release(self)
        else:
            self._extend_frame(frame)

    def _extend_frame(self, received: bytearray | memoryview) -> None:
        """Allocate a buffer for the frame of `_size` bytes that begins with `received`, or keep
        that alone and wait for memory."""
        filled = len(received)
        wanted = min(self._size, max(FRAME_START_SIZE, 2 * filled))
        if not self._receive_memory.take(self, wanted, self._size):
            wanted = filled
            self._awaits_capacity = True
            self._pause()
        frame = bytearray(wanted)
        frame[:filled] = received
        self._filled = filled
        self._frame = frame
        self._frame_view = memoryview(frame)

    def _parse_frames(self, data: memoryview) -> None:
        """Handle the complete frames in `data` and keep the rest."""
        at, end = 0, len(data)
        while end - at >= 4:
            if self._paused:
                break
            size = _SIZE.unpack_from(data, at)[0]
            if not 0 <= size <= self._frame_size_max:
                raise WireError(self._describe_too_large(size))
            begin = at + 4
            if self._request_limits.is_full:
                if end - begin < min(2, size):
                    break
                if needs_capacity(size, data[begin : begin + 2]):
                    self._awaits_capacity = True
                    self._request_limits.wait(self)
                    self._pause()
                    break
            if size > end - begin:
                if size > LARGE_REQUEST_BYTES:
                    self._request_limits.on_receive_started(self, size)
                    self._size = size
                    self._extend_frame(data[begin:])
                    return
                break
            at = begin + size
            self._handle(bytearray(data[begin:at]))
        if at < end:
            self._backlog = bytes(data[at:])

    def _describe_too_large(self, size: int) -> str:
        assert self.peer is not None
        if size >> 16 == _TLS_HANDSHAKE:
            return (
                f"the client speaks TLS on the listener {self.peer.listener}, whose protocol is"
                f" {self.peer.security_protocol.name}. Set security.protocol to that in the client,"
                " or let it connect to a listener with TLS"
            )
        name = "socket.request.max.bytes"
        if self._awaits_login:
            name = "sasl.server.max.receive.size"
        return f"a request of {size} bytes, where {name} is {self._frame_size_max}"

    @property
    def _awaits_login(self) -> bool:
        return self._frame_size_max != self._listener.request_size_max

    def serve_with(self, dispatch: DispatchPort, frame_size_max: int) -> None:
        """Pass the next requests to `dispatch`, up to this size."""
        self._dispatch = dispatch
        self._frame_size_max = frame_size_max
        self._shared_view = _login_view if self._awaits_login else _scratch_view

    def _handle(self, frame: bytearray) -> None:
        assert self.peer is not None
        if self._transport is None or self._transport.is_closing():
            return
        size = len(frame)
        self._turn_cost += size + REQUEST_COST
        if self._turn_cost > TURN_COST_MAX:
            self._end_turn()
        answer = self._dispatch.handle(frame, self.peer)
        if answer is None:
            return
        if isinstance(answer, list):
            if not self._pending:
                self._out += answer
                return
            answer = self._dispatch.make_pending(answer)
        request = answer.request
        if request is not None and request.holds_records:
            end_of_hold = self._receive_memory.hold(self, size)
            self._request_limits.on_request_queued(request, end_of_hold)
        answer.size = size
        self._pending.append(answer)
        self._pending_bytes += size
        answer.on_ready(self._send_ready)
        if request is not None and request.is_in_pieces:
            self._in_pieces = answer
            self._pause()
        if len(self._pending) >= PENDING_MAX or self._pending_bytes >= PENDING_BYTES_MAX:
            self._pause()

    # Sending.

    def _send_ready(self, _: object) -> None:
        """Send the responses at the head of the queue that are complete."""
        pending = self._pending
        while pending and pending[0].ready:
            first = pending.popleft()
            self._pending_bytes -= first.size
            try:
                self._out += first.build_buffers()
            except WireError as error:
                self.fail(str(error))
        self._flush()
        if self._paused:
            self._resume()

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            if self._transport is not None and not self._transport.is_closing():
                size = sum(map(len, out))
                self._listener.bytes_out += size
                if self._sendfile_writer is not None and self._sendfile_writer.is_blocked:
                    self._sendfile_writer.send(out)
                elif size <= JOIN_SIZE_MAX:
                    self._transport.write(b"".join(out))  # type: ignore[arg-type]
                elif any(isinstance(part, FileSlice) for part in out):
                    self._send_files(out)
                else:
                    self._transport.writelines(out)  # type: ignore[arg-type]

    def _send_files(self, out: list[Buffer | FileSlice]) -> None:
        """Send buffers and slices of files."""
        transport = self._transport
        assert transport is not None
        if getattr(transport, "takes_files", False):
            transport.writelines(out)  # type: ignore[arg-type]
            return
        if transport.get_write_buffer_size():
            transport.writelines(
                part.file.read(part.at, part.size) if isinstance(part, FileSlice) else part
                for part in out
            )
            return
        if self._sendfile_writer is None:
            fd = transport.get_extra_info("socket").fileno()
            self._sendfile_writer = SendfileWriter(
                self._loop, fd, self._on_send_drained, self._on_send_failed
            )
        self._sendfile_writer.send(out)
        if self._sendfile_writer.is_blocked:
            self._write_paused = True
            self._pause()

    def _on_send_drained(self) -> None:
        """Resume after the sendfile writer has sent its queue, or has failed."""
        if self._transport is None or self._transport.is_closing():
            return
        self.resume_writing()
        if self._is_closing:
            self.close()

    def _on_send_failed(self, error: OSError) -> None:
        """Close the connection: the client is gone, or a file could not be read."""
        if not isinstance(error, ConnectionError):
            self._listener.on_connection_failed(
                self, f"an answer could not be read from the log: {error}"
            )
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._write_paused = True
        self._bytes_buffered = self._transport.get_write_buffer_size()
        self._listener.bytes_buffered += self._bytes_buffered
        self._pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._reset_bytes_buffered()
        self._resume()

    def _reset_bytes_buffered(self) -> None:
        """Subtract the bytes that this connection had in its write buffer from the listener's."""
        self._listener.bytes_buffered -= self._bytes_buffered
        self._bytes_buffered = 0

    def mute(self, pause_ms: int) -> None:
        """Stop reading for `pause_ms`, because the client exceeds a quota. A longer pause that has
        begun continues."""
        if self._transport is None:
            return
        deadline = self._loop.time() + pause_ms / 1000
        if self._muted is not None:
            if self._muted.when() >= deadline:
                return
            self._muted.cancel()
        self._muted = self._loop.call_at(deadline, self._unmute)
        self._pause()

    def _unmute(self) -> None:
        self._muted = None
        self.active_at = self._loop.time()
        self._resume()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _end_turn(self) -> None:
        """Let other connections have their turn before this one continues."""
        self._turn_cost = 0
        self._pause()
        self._loop.call_soon(self._resume, PENDING_MAX, PENDING_BYTES_MAX)

    def _resume(
        self, pending_max: int = PENDING_MAX // 2, bytes_max: int = PENDING_BYTES_MAX // 2
    ) -> None:
        """Read again, unless there is a reason not to."""
        if not self._paused or self._write_paused or self._transport is None:
            return
        if self._muted is not None or self._awaits_capacity:
            return
        if self._in_pieces is not None and not self._in_pieces.ready:
            return
        self._in_pieces = None
        if len(self._pending) >= pending_max or self._pending_bytes >= bytes_max:
            return
        self._paused = False
        if self._frame is not None and self._filled == len(self._frame):
            self._extend_frame(self._frame)
        backlog, self._backlog = self._backlog, b""
        try:
            self._parse_frames(memoryview(backlog))
        except WireError as error:
            self._on_malformed(str(error))
        self._flush()
        if not self._paused and self._transport is not None:
            self._transport.resume_reading()

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's certificate (DER) on a listener with TLS; None without one."""
        return getattr(self._transport, "peer_certificate", None)

    @property
    def client(self) -> str:
        """Whose bytes it receives: a user, an address, or all that have not logged in."""
        if self.peer is None or self._awaits_login:
            return STRANGERS
        principal = self.peer.principal
        return self.peer.host if principal == ANONYMOUS else principal

    @property
    def is_held_up(self) -> bool:
        """Whether the broker, and not the client, keeps it from receiving."""
        return self._muted is not None or self._awaits_capacity

    def on_capacity_available(self) -> None:
        """Resume: there is room for the next request, or memory for more of this one."""
        self._awaits_capacity = False
        self._resume()

    def _on_malformed(self, reason: str) -> None:
        assert self.peer is not None
        if not self._dispatch.handle_login_failure(self.peer, reason):
            self.fail(reason)

    def fail(self, reason: str) -> None:
        """Close at once and log `reason`."""
        if self._transport is not None and not self._transport.is_closing():
            self._listener.on_connection_failed(self, reason)
            self._flush()
            # To close means to wait until the client has read what is written.
            self._drop_received()
            self._transport.close()

    def close_after_responses(self) -> None:
        """Close after the requests of this read are handled and their responses are sent. Requests
        that still wait are cancelled."""
        self._loop.call_soon(self.close)

    def end(self, buffers: list[Buffer]) -> None:
        """Send a last response and close, for a login that has failed. If earlier requests still
        wait, close without it, since it would be taken for one of theirs."""
        if self._transport is not None and not self._pending:
            self._out += buffers
            self._flush()
        self.close()

    def close(self) -> None:
        """Close after the responses that are written are sent."""
        if self._sendfile_writer is not None and self._sendfile_writer.is_blocked:
            self._is_closing = True
        elif self._transport is not None:
            self._transport.close()
