"""The limits of the console's connections: how many, how long without a request, how many bytes.

aiohttp limits one request, so many connections could still take all memory and descriptors. Here
each connection is wrapped. What the browser has sent and no answer has settled, and what of answers
it has not read, counts as held. These connections are cut off:

* the one that has been without a request for longest, to admit another one to `CONNECTIONS_MAX`;
* the one that holds the most bytes, once all together hold more than `HELD_BYTES_MAX`;
* one without a whole request for `WAIT_S`, be it silent or slow, and one that reads less than
  `READ_BYTES_MIN` of an answer in `CHECK_S`.

`RECEIVE_BYTES` and `PARSE_BYTES` bound what one turn of the event loop parses.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict, deque
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, cast

from aiohttp import web

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator

    from aiohttp.typedefs import Handler

CONNECTIONS_MAX = 500
HELD_BYTES_MAX = 64 << 20
WAIT_S = 60.0
CHECK_S = 10.0
READ_BYTES_MIN = 100_000
#: The buffer that the kernel has for what a browser sends.
RECEIVE_BYTES = 16 << 10
#: What is read at once without TLS. Each byte of it may be a chunk of its own, which takes 10 us.
PARSE_BYTES = 4 << 10
#: Bytes of one write of a large answer.
PIECE_BYTES = 64 << 10
#: Seconds for a handshake of TLS.
HANDSHAKE_S = 10.0


class HttpConnectionLimits:
    """The open connections of one console. `held_bytes` is what all of them hold."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.connections: dict[HttpConnection, None] = {}
        self.held_bytes = 0
        #: The requests that have not begun, by address.
        self._turns: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def wait_for_turn(self, address: str) -> None:
        """Wait until a request may begin. One begins each time the event loop goes round, and the
        addresses take turns: many requests of one do not keep another waiting."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._turns:
            loop.call_soon(self._begin_next)
        self._turns.setdefault(address, deque()).append(turn)
        await turn

    def _begin_next(self) -> None:
        address, turns = self._turns.popitem(last=False)
        turn = turns.popleft()
        if not turn.done():  # Its browser is still there.
            turn.set_result(None)
        if turns:
            self._turns[address] = turns
        if self._turns:
            asyncio.get_running_loop().call_soon(self._begin_next)

    def admit(self, connection: HttpConnection) -> None:
        """Add a connection. Cut one off if there are too many."""
        if len(self.connections) >= CONNECTIONS_MAX:
            idle = [other for other in self.connections if other.is_waiting]
            min(idle, key=lambda other: other.changed_at_s, default=connection).abort()
        self.connections[connection] = None

    def drop(self, connection: HttpConnection) -> None:
        self.connections.pop(connection, None)

    def charge(self, more_bytes: int) -> None:
        """Count bytes. Cut off the connection that holds the most if they are too many."""
        self.held_bytes += more_bytes
        if more_bytes > 0 and self.held_bytes > HELD_BYTES_MAX:
            max(self.connections, key=lambda connection: connection.held_bytes).abort()

    def check(self) -> None:
        """Cut off the connections that wait for too long, or read too slowly."""
        for connection in list(self.connections):
            connection.check()

    @asynccontextmanager
    async def serving(
        self, server: web.Server, host: str, port: int, context: ssl.SSLContext | None
    ) -> AsyncIterator[int]:
        """Serve at an address, and yield the port. Raises `OSError` if it is in use."""
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(
            lambda: HttpConnection(self, server()),
            host,
            port,
            ssl=context,
            ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
        )
        for listener in listening.sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        checking = asyncio.create_task(self._check_always(), name="console connections")
        try:
            yield listening.sockets[0].getsockname()[1]
        finally:
            checking.cancel()
            listening.close()

    async def _check_always(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()


class HttpConnection(asyncio.Protocol):
    """One connection, in front of aiohttp's protocol.

    `is_waiting` is whether no request of it is being answered, since `changed_at_s`. `held_bytes`
    are its share of those of all.
    """

    def __init__(self, limits: HttpConnectionLimits, inner: asyncio.Protocol) -> None:
        self.limits, self._inner = limits, inner
        self._transport: asyncio.Transport | None = None
        self._requests = self._received = self._unread = self._answer = 0
        #: What was left to read at the last check, if the browser has not read on since.
        self._stuck_at: int | None = None
        self.changed_at_s = limits.clock()

    @property
    def is_waiting(self) -> bool:
        return not self._requests and not self._unread

    @property
    def held_bytes(self) -> int:
        return self._received + self._unread + self._answer

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Count an answer that is sent in pieces until it is sent."""
        self._answer += size_bytes
        self.limits.charge(size_bytes)
        try:
            yield
        finally:
            released = min(size_bytes, self._answer)
            self._answer -= released
            self.limits.charge(-released)

    def begin_request(self) -> None:
        """Note that a request has arrived as far as its body. What comes now may be its body."""
        self._requests += 1
        self._hold(0, self._unread)

    def end_request(self) -> None:
        self._requests -= 1
        self.changed_at_s = self.limits.clock()

    def check(self) -> None:
        """Cut the connection off if it has waited for too long, or reads too slowly."""
        if self.is_waiting and self.limits.clock() - self.changed_at_s > WAIT_S:
            self.abort()
        elif self._unread:
            assert self._transport is not None
            left = self._transport.get_write_buffer_size()
            if self._stuck_at is not None and left > self._stuck_at - READ_BYTES_MIN:
                self.abort()
            else:
                self._stuck_at = left
                self._hold(self._received, left)

    def abort(self) -> None:
        """Cut the connection off, and count nothing of it any more."""
        self._release()
        if self._transport is not None:
            self._transport.abort()

    def _release(self) -> None:
        self.limits.drop(self)
        self._answer, released = 0, self._answer
        self.limits.charge(-released)
        self._hold(0, 0)

    def _hold(self, received: int, unread: int) -> None:
        more_bytes = received + unread - self._received - self._unread
        self._received, self._unread = received, unread
        self.limits.charge(more_bytes)

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if hasattr(transport, "max_size"):  # asyncio reads as much in a turn of its loop.
            transport.max_size = PARSE_BYTES
        self._inner.connection_made(transport)
        self.limits.admit(self)

    def data_received(self, data: bytes) -> None:
        if self in self.limits.connections:
            self._hold(self._received + len(data), self._unread)
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._hold(self._received, self._transport.get_write_buffer_size())
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._hold(self._received, 0)
        self._stuck_at = None
        self.changed_at_s = self.limits.clock()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._inner.connection_lost(exc)


def find_connection(request: web.Request) -> HttpConnection | None:
    """Return the connection of a request; None if it has ended, or has no limits."""
    connection = request.transport and request.transport.get_protocol()
    return connection if isinstance(connection, HttpConnection) else None


async def send_in_pieces(request: web.Request, response: web.StreamResponse, body: bytes) -> None:
    """Send a large answer, of which no second copy waits for the browser."""
    connection = find_connection(request)
    response.content_length = len(body)
    with nullcontext() if connection is None else connection.holding(len(body)):
        await response.prepare(request)
        for start in range(0, len(body), PIECE_BYTES):
            await response.write(memoryview(body)[start : start + PIECE_BYTES])
        await response.write_eof()


@web.middleware
async def count_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Begin a request when it is its turn, and tell its connection."""
    connection = find_connection(request)
    if connection is None:
        return await handler(request)
    connection.begin_request()
    try:
        await connection.limits.wait_for_turn(request.remote or "")
        return await handler(request)
    finally:
        connection.end_request()
