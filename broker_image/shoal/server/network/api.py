"""What a handler is given and what it may return.

A handler is `handle(context, request)`. The context is whatever `Dispatcher` was given for its
handlers; this package does not depend on its type. A handler returns at once, with one of:

* a mapping: the response body, written by the codec of the request's version;
* a list of buffers: the response body already encoded (the hot path);
* an `asyncio.Future` or `DeferredResponse` of either, for what waits (purgatories, commits,
  rebalances), and of None for a request that waits and has no response;
* None: no response is sent (Produce with acks=0).

Whole-request refusals are raised as `ApiError`; dispatch maps them to the API's error response.
Responses leave a connection in the order of its requests, whenever their futures are done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.frames import RequestHeader
from shoal.protocol.produce import ProduceRequest
from shoal.server.cluster_config import Listeners

Buffer = bytes | bytearray | memoryview
Body = Mapping[str, Any] | Sequence[Buffer]


class AwaitableBody(Protocol):
    """An answer that is due: an `asyncio.Future`, or a `DeferredResponse`."""

    def add_done_callback(self, call: Callable[[Any], object], /) -> None: ...
    def cancel(self) -> bool: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> Body | None: ...


Answer = Body | AwaitableBody | None


def _nothing(*_: int) -> None:
    """A peer without a connection has nothing to pause or to close."""


@dataclass(slots=True)
class Peer:
    """Who is at the other end of a connection; lives as long as the connection.

    `on_close` callbacks run once when the connection is gone, with no argument. `pause` stops
    reading from the connection for some milliseconds. `close_after_responses` closes it once the
    responses that are due by then are sent. `number` numbers the connections of a listener in the
    order in which they were opened.
    """

    host: str
    port: int
    listener: str
    principal: str
    connection_id: str
    on_close: dict[object, Callable[[], None]]
    client_software: tuple[str, str] = ("unknown", "unknown")
    pause: Callable[[int], None] = _nothing
    close_after_responses: Callable[[], None] = _nothing
    number: int = 0


@dataclass(slots=True)
class Request:
    """One request: its header, its parsed body (kio's entity of that version), and its sender.

    `size` is that of its frame in bytes. `busy_ns` is the time that the broker has spent on it,
    measured where there are quotas. `id` is that of a request which may be tried again: the same
    16 bytes each time.
    """

    header: RequestHeader
    body: Any
    peer: Peer
    received_ns: int = 0
    size: int = 0
    busy_ns: int = 0
    id: bytes = b""
    _on_released: Callable[[], None] | None = field(default=None, init=False)

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def holds_records(self) -> bool:
        """Whether it is a produce whose records are still in memory."""
        return isinstance(self.body, ProduceRequest) and bool(self.body.topics)

    def when_released(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the records are not needed any more."""
        self._on_released = call

    def release(self) -> None:
        """Drop the records of a produce: they are appended, or nobody waits for them."""
        if self.holds_records:
            self.body = self.body._replace(topics=[])
        on_released, self._on_released = self._on_released, None
        if on_released is not None:
            on_released()


#: (context, request) -> answer.
Handler = Callable[[Any, Request], Answer]


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table of handlers: the versions served, by what, and on which listeners."""

    key: ApiKey
    versions: range
    handle: Handler
    #: Builds the response body of a whole-request error: (request, code, message) -> body.
    #: Without it dispatch answers with the response's own error code, if it has one.
    refuse: Callable[[Request, ErrorCode, str | None], Body] | None = None
    #: Reads the body in place of kio where a benchmark asked for it: (version, frame, at) -> body.
    read: Callable[[int, memoryview, int], Any] | None = None
    #: Answered by the active controller alone: another node passes the request on to it.
    by_controller: bool = False
    #: A feature that has to be on: at its level 0 requests get UNSUPPORTED_VERSION.
    feature: str = ""
    #: The listeners that serve it, as in Kafka 4.3.1.
    on: Listeners = Listeners.BROKER
    #: The handler on listeners of controllers, where that is another one.
    on_controllers: Handler | None = None
