"""Limits on requests over all connections: `queued.max.requests` and `queued.max.request.bytes`.

Apache Kafka bounds requests that were received and are not yet processed. A request that waits for
replicas, records or a coordinator does not count. This broker processes a request as soon as it is
received. So two things count: bytes of large requests that are being received, and produce requests
whose records wait to be appended.

While a limit is reached, a connection stops reading before its next large request or produce
request. Fetches, heartbeats and other small requests pass, since the requests that count may wait
for them. Connections resume in the order in which they stopped. If others wait, a client that stops
in the middle of a large request for `STALL_S` is disconnected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from shoal.server.network.api import Request
    from shoal.server.node import Node

#: Requests above this size count while they are received. Smaller ones are received into a buffer
#: that all connections share.
LARGE_REQUEST_BYTES = 64 * 1024
_PRODUCE, _FETCH = (key.to_bytes(2, "big") for key in (ApiKey.PRODUCE, ApiKey.FETCH))
#: Seconds without a byte after which a client in the middle of a request is disconnected.
STALL_S = 10.0
#: Seconds between two checks for such clients.
_STALL_CHECK_S = 1.0


class LimitedConnection(Protocol):
    """A connection that stops reading while there is no capacity."""

    #: The time of the loop at which it received bytes last.
    active_at: float

    @property
    def is_held_up(self) -> bool:
        """Whether the broker, and not the client, keeps it from receiving."""

    def on_capacity_available(self) -> None:
        """Continue reading."""

    def fail(self, reason: str) -> None:
        """Close at once and log `reason`."""


class RequestLimits:
    """Owns the counts, and the queue of connections that wait."""

    def __init__(self, node: Node) -> None:
        self._loop = node.loop
        self._requests_max: int = node.config["queued.max.requests"]
        bytes_max: int = node.config["queued.max.request.bytes"]
        self._bytes_max = bytes_max if bytes_max > 0 else None
        #: Produce requests that wait to be appended.
        self.requests = 0
        #: Their bytes, and the announced sizes of the requests that are being received.
        self.bytes = 0
        #: As in Kafka, the last request admitted may exceed the limit.
        self.is_full = False
        #: Connections that are receiving a large request, and those that wait, in order.
        self._receiving: dict[LimitedConnection, int] = {}
        self._waiting: dict[LimitedConnection, None] = {}
        self._wake_scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def bytes_left(self) -> int | None:
        """Bytes left until the limit; None without a limit."""
        return None if self._bytes_max is None else max(0, self._bytes_max - self.bytes)

    @property
    def waiting(self) -> int:
        """The number of connections that wait."""
        return len(self._waiting)

    def on_receive_started(self, connection: LimitedConnection, size: int) -> None:
        """Count a large request of `size` bytes that `connection` begins to receive."""
        self._receiving[connection] = size
        self._count(size)

    def on_receive_ended(self, connection: LimitedConnection) -> None:
        """Stop counting that request: it is handled, or the connection is closed."""
        size = self._receiving.pop(connection, None)
        if size is not None:
            self._count(-size)

    def on_request_queued(self, request: Request, call: Callable[[], None]) -> None:
        """Count a produce request that waits to be appended, until its `Request.release`. Then
        `call` is called, too."""
        size = request.size
        self._count(size, 1)

        def on_released() -> None:
            self._count(-size, -1)
            call()

        request.on_released(on_released)

    def wait(self, connection: LimitedConnection) -> None:
        """Queue a connection until `connection.capacity_available` is called."""
        self._waiting[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_STALL_CHECK_S, self._disconnect_stalled)

    def on_connection_closed(self, connection: LimitedConnection) -> None:
        """Forget a connection."""
        self._waiting.pop(connection, None)
        self.on_receive_ended(connection)

    def _count(self, size: int, requests: int = 0) -> None:
        self.bytes += size
        self.requests += requests
        too_large = self._bytes_max is not None and self.bytes >= self._bytes_max
        self.is_full = too_large or self.requests >= self._requests_max
        if self._waiting and not self._wake_scheduled and not self.is_full:
            # Later: a connection that resumes may change the counts itself.
            self._wake_scheduled = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_scheduled = False
        for connection in list(self._waiting):
            if self.is_full:
                return
            # A connection that resumes may queue again, behind the others.
            if self._waiting.pop(connection, self) is None:
                connection.on_capacity_available()

    def _disconnect_stalled(self) -> None:
        """Disconnect clients that stopped in the middle of a request, if others wait."""
        self._timer = None
        if not self._waiting:
            return
        self._timer = self._loop.call_later(_STALL_CHECK_S, self._disconnect_stalled)
        cutoff = self._loop.time() - STALL_S
        stalled = [c for c in self._receiving if c.active_at < cutoff and not c.is_held_up]
        for connection in stalled:
            connection.fail(
                f"no byte of an incomplete request came for {STALL_S:.0f} s, while other"
                " connections waited for queued.max.request.bytes"
            )


def needs_capacity(size: int, key: memoryview) -> bool:
    """Whether a request of `size` bytes waits while a limit is reached. `key` are its first two
    bytes, the API key. A fetch never waits: a follower's first fetch of many partitions is large,
    and produce requests may wait for it."""
    return key == _PRODUCE or (size > LARGE_REQUEST_BYTES and key != _FETCH)
