"""Room for requests, over all connections: `queued.max.requests` and `queued.max.request.bytes`.

Apache Kafka bounds requests that were received and are not yet processed. One that waits for
replicas, records or a coordinator does not count. Here a request is processed as soon as it has
arrived, so two things take room: the bytes of large requests that are arriving, and produce
requests whose records wait to be appended.

While there is no room, a connection stops reading at its next large request or produce. Fetches,
heartbeats and other small requests pass: without them, what takes the room might never finish.
Connections go on in the order in which they stopped. A client that sent part of a large request and
then nothing for `STALL_S` is disconnected if others wait.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from shoal.protocol.api import ApiKey
from shoal.server.network.api import Request
from shoal.server.node import Node

#: Requests above this size count while they arrive. Smaller ones arrive in buffers that all
#: connections share.
LARGE_REQUEST_BYTES = 64 * 1024
_PRODUCE, _FETCH = (key.to_bytes(2, "big") for key in (ApiKey.PRODUCE, ApiKey.FETCH))
#: Seconds without a byte after which a request that is arriving gives up its room.
STALL_S = 10.0
#: Seconds between two searches for such requests.
_STALL_CHECK_S = 1.0


class LimitedConnection(Protocol):
    """A connection that stops reading while there is no capacity."""

    #: The time of the loop at which it received bytes last.
    active_at: float

    @property
    def is_paused(self) -> bool:
        """Whether it has stopped reading."""

    def capacity_available(self) -> None:
        """Go on reading."""

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
        #: Their bytes, and those of requests that are arriving, by their announced sizes.
        self.bytes = 0
        #: As in Kafka, the last request that finds room may take more than was left.
        self.is_full = False
        #: Connections with a request that is arriving, and those that wait, in order.
        self._receiving: dict[LimitedConnection, int] = {}
        self._waiting: dict[LimitedConnection, None] = {}
        self._wake_scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def bytes_left(self) -> int | None:
        """Bytes that may still be taken; None without a limit."""
        return None if self._bytes_max is None else max(0, self._bytes_max - self.bytes)

    @property
    def waiting(self) -> int:
        """Connections that wait."""
        return len(self._waiting)

    def receive_started(self, connection: LimitedConnection, size: int) -> None:
        """A large request of `size` bytes begins to arrive."""
        self._receiving[connection] = size
        self._count(size)

    def receive_ended(self, connection: LimitedConnection) -> None:
        """It has arrived and was handled, or its connection is gone."""
        size = self._receiving.pop(connection, None)
        if size is not None:
            self._count(-size)

    def request_queued(self, request: Request) -> None:
        """A produce request waits to be appended; `Request.release` ends that."""
        size = request.size
        self._count(size, 1)

        def released() -> None:
            self._count(-size, -1)

        request.when_released(released)

    def wait(self, connection: LimitedConnection) -> None:
        """Call `connection.capacity_available` when it is its turn."""
        self._waiting[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_STALL_CHECK_S, self._disconnect_stalled)

    def connection_closed(self, connection: LimitedConnection) -> None:
        """The connection is gone."""
        self._waiting.pop(connection, None)
        self.receive_ended(connection)

    def _count(self, size: int, requests: int = 0) -> None:
        self.bytes += size
        self.requests += requests
        too_large = self._bytes_max is not None and self.bytes >= self._bytes_max
        self.is_full = too_large or self.requests >= self._requests_max
        if self._waiting and not self._wake_scheduled and not self.is_full:
            # Not at once: a connection that goes on may give back room itself.
            self._wake_scheduled = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_scheduled = False
        for connection in list(self._waiting):
            if self.is_full:
                return
            # One that goes on may have to wait again, behind the others.
            if self._waiting.pop(connection, self) is None:
                connection.capacity_available()

    def _disconnect_stalled(self) -> None:
        """Disconnect clients that stall while others wait."""
        self._timer = None
        if not self._waiting:
            return
        self._timer = self._loop.call_later(_STALL_CHECK_S, self._disconnect_stalled)
        since = self._loop.time() - STALL_S
        stalled = [c for c in self._receiving if c.active_at < since and not c.is_paused]
        for connection in stalled:
            connection.fail(
                f"a request stopped arriving for {STALL_S:.0f} s while others waited for the room"
                " of queued.max.request.bytes"
            )


def needs_capacity(size: int, key: memoryview) -> bool:
    """Whether a request of `size` bytes, which begins with the two bytes `key`, has to wait for
    room. A follower's first fetch of many partitions is large, and others may wait for it."""
    return key == _PRODUCE or (size > LARGE_REQUEST_BYTES and key != _FETCH)
