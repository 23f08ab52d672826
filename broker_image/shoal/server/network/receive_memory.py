"""The account of memory for requests that are arriving: `shoal.request.memory.bytes`.

Buffers of large requests that are not complete count, as do produce requests that wait to be
appended. What a connection keeps without a buffer of its own, up to 256 KB, does not.

A client may hold as much as is still free. So one client gets at most half of the memory, two a
third each, and there is always something left for the next one. A client is a user, or an address
where nobody logs in. All connections that have not logged in are one client, and may hold a
sixteenth of what is free.

A connection that gets no memory stops reading, and goes on when memory is freed: one of each
client in turn. The oldest incomplete request always gets memory, beside the account, so that one
request at least goes on. If others wait, a request has to be complete after `REQUEST_S` and the
time for its size at `BYTES_PER_S`, or its connection is closed. This holds for clients that hold at
least as much as one that waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shoal.server.cluster_config import Listeners

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from shoal.server.node import Node

#: The client that all connections before their login are together, and its part of what is free.
STRANGERS, _STRANGERS_PART = "", 16
#: The part of the memory that listeners for nodes alone have beside that of the others.
_NODES_PART = 8
#: The time for a request while others wait: seconds, and bytes in each further second.
REQUEST_S, BYTES_PER_S = 10.0, 10_000_000
#: Seconds between two checks for slow requests.
_CHECK_S = 1.0
#: Connections that go on in one turn of the event loop, and connections closed at a check.
_RESUMED_MAX = _CLOSED_MAX = 100
#: Bytes of new buffers in a turn. Each is zeroed, and gets what is received already: 0.6 ms a MB.
TURN_BYTES_MAX = 16 << 20


class MemoryUser(Protocol):
    """A connection that stops reading while there is no memory for it."""

    @property
    def client(self) -> str:
        """Whose bytes it receives: a user, an address or `STRANGERS`."""

    @property
    def is_held_up(self) -> bool:
        """Whether the broker, and not the client, keeps it from receiving."""

    def on_capacity_available(self) -> None:
        """Continue reading."""

    def fail(self, reason: str) -> None:
        """Close at once and log `reason`."""


@dataclass(slots=True)
class _Request:
    """A request that is arriving: its size, the buffer that it has or waits for, what of it counts,
    all in bytes, and the time since which the client could send it."""

    client: str
    size: int
    since: float
    wanted: int = 0
    counted: int = 0


class ReceiveMemory:
    """Owns the account and the connections that wait for memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        self._loop = loop
        self._bytes_max = bytes_max
        #: Bytes that are held, in all and by client. Those of requests that are complete and wait.
        self.bytes = 0
        self.held: dict[str, int] = {}
        self._queued = 0
        #: Connections in the middle of a large request, the oldest first, and those that wait.
        self._receiving: dict[MemoryUser, _Request] = {}
        self._waiting: dict[str, dict[MemoryUser, None]] = {}
        self._waiting_since = 0.0
        self._turn_bytes = 0
        self._is_wake_scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of connections that wait."""
        return sum(map(len, self._waiting.values()))

    def take(self, connection: MemoryUser, wanted: int, size: int) -> bool:
        """Count a buffer of `wanted` bytes, in place of the one before, for a request of `size`
        bytes. Return False if there is no memory: `on_capacity_available` is called later."""
        request = self._receiving.get(connection)
        if request is None:
            request = _Request(connection.client, size, self._loop.time())
            self._receiving[connection] = request
        request.wanted = wanted
        if self._may_take(connection, request):
            if self._is_free(request):
                self._count(request.client, wanted - request.counted)
                request.counted = wanted
            self._turn_bytes += wanted
            self._schedule_wake()
            return True
        if not self._waiting:
            self._waiting_since = self._loop.time()
        self._waiting.setdefault(request.client, {})[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_CHECK_S, self._close_slow)
        return False

    def release(self, connection: MemoryUser) -> None:
        """Stop counting its buffer: the request is complete, or the connection is closed."""
        request = self._receiving.pop(connection, None)
        if request is not None:
            self._stop_waiting(connection, request)
            self._count(request.client, -request.counted)

    def hold(self, connection: MemoryUser, size: int) -> Callable[[], None]:
        """Count a complete request of `size` bytes that waits. Return the call that ends it."""
        client = connection.client
        self._queued += size
        self._count(client, size)

        def end() -> None:
            self._queued -= size
            self._count(client, -size)

        return end

    def _may_take(self, connection: MemoryUser, request: _Request) -> bool:
        is_turn_full = self._turn_bytes >= TURN_BYTES_MAX
        return not is_turn_full and (self._is_free(request) or self._is_next(connection))

    def _is_free(self, request: _Request) -> bool:
        """Whether the client may hold that much."""
        more = request.wanted - request.counted
        free = self._bytes_max - self.bytes - more
        share = free // _STRANGERS_PART if request.client == STRANGERS else free
        return self.held.get(request.client, 0) + more <= share

    def _is_next(self, connection: MemoryUser) -> bool:
        """Whether the connection has the oldest incomplete request, and so goes on anyway. Requests
        that are complete and wait end by themselves, so it can wait for them."""
        return self._queued < self._bytes_max and next(iter(self._receiving)) is connection

    def _count(self, client: str, size: int) -> None:
        self.bytes += size
        held = self.held.pop(client, 0) + size
        if held:
            self.held[client] = held
        if size <= 0 and self._waiting:
            # Later: a connection that resumes may change the account itself.
            self._schedule_wake()

    def _schedule_wake(self) -> None:
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._loop.call_soon(self._wake)

    def _stop_waiting(self, connection: MemoryUser, request: _Request) -> None:
        waiting = self._waiting.get(request.client)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._waiting[request.client]

    def _wake(self) -> None:
        """Begin a turn: let connections go on, the oldest first, then one of each client in
        turn."""
        self._is_wake_scheduled = False
        self._turn_bytes = 0
        self._resume_if_possible(next(iter(self._receiving), None))
        resumed, before = 0, -1
        while before < resumed < _RESUMED_MAX:
            before = resumed
            for client in list(self._waiting):
                resumed += self._resume_if_possible(next(iter(self._waiting[client])))
        if self._waiting and resumed >= _RESUMED_MAX:
            self._schedule_wake()

    def _resume_if_possible(self, connection: MemoryUser | None) -> bool:
        """Resume a connection that waits and now gets its memory."""
        if connection is None:
            return False
        request = self._receiving[connection]
        if connection not in self._waiting.get(request.client, ()):
            return False
        if not self._may_take(connection, request):
            return False
        self._stop_waiting(connection, request)
        request.since = self._loop.time()
        connection.on_capacity_available()
        return True

    def _close_slow(self) -> None:
        """Close the connections of slow requests, if others wait."""
        self._timer = None
        if not self._waiting:
            return
        self._timer = self._loop.call_later(_CHECK_S, self._close_slow)
        now = self._loop.time()
        least = min(self.held.get(client, 0) for client in self._waiting)
        slow: list[tuple[MemoryUser, _Request]] = []
        for connection, request in self._receiving.items():
            if connection.is_held_up:
                request.since = now
                continue
            seconds = now - max(request.since, self._waiting_since)
            if (
                self.held.get(request.client, 0) >= least
                and seconds > REQUEST_S + request.size / BYTES_PER_S
            ):
                slow.append((connection, request))
        for connection, request in slow[:_CLOSED_MAX]:
            connection.fail(
                f"a request of {request.size} bytes was not complete after"
                f" {now - request.since:.0f} s, while other connections waited for"
                " shoal.request.memory.bytes"
            )


class ReceiveMemories:
    """Owns the accounts of a node: one for clients, and one for listeners that serve nodes alone,
    so that clients cannot take all memory of the cluster's own requests."""

    def __init__(self, node: Node) -> None:
        self._cluster = node.cluster
        bytes_max: int = node.config["shoal.request.memory.bytes"]
        self.of_clients = ReceiveMemory(node.loop, bytes_max)
        self._of_nodes = ReceiveMemory(node.loop, bytes_max // _NODES_PART)

    def get(self, listener: str) -> ReceiveMemory:
        """Return the account of a listener."""
        kinds = self._cluster.kinds
        of_brokers = [name for name, kind in kinds.items() if Listeners.BROKER in kind]
        is_inter_broker = listener == self._cluster.inter_broker and len(of_brokers) > 1
        is_for_nodes = kinds[listener] is Listeners.CONTROLLER or is_inter_broker
        return self._of_nodes if is_for_nodes else self.of_clients
