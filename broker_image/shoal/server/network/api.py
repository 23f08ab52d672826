"""Handlers: what they take, what they return, and the rows of the table that lists them.

A handler is `handle(context, request)`. The context is whatever `Dispatcher` was given for its
handlers; this package does not depend on its type. A handler returns at once, with one of:

* a mapping: the response body, which the codec of the request's version encodes (its type is one
  of `protocol.responses`);
* a list of buffers: the response body, already encoded (the hot path);
* an `asyncio.Future` or a `DeferredResponse` of either, for a request that waits (in a purgatory,
  for a commit or a rebalance); its result is None if the request has no response;
* None: no response is sent (Produce with acks=0).

A handler raises `ApiError` to refuse a whole request; dispatch maps it to the error response of the
API. A connection sends responses in the order of its requests, not in the order in which their
futures complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, Union

from shoal.protocol.produce import ProduceRequest
from shoal.server.cluster_config import Listeners
from shoal.server.listener_security import SecurityProtocol

if TYPE_CHECKING:
    from shoal.protocol.api import ApiKey
    from shoal.protocol.errors import ErrorCode
    from shoal.protocol.frames import RequestHeader
    from shoal.protocol.slices import Slices
    from shoal.security.requirements import ApiPermissions

Buffer = bytes | bytearray | memoryview
Body = Mapping[str, Any] | Sequence[Buffer]


class AwaitableBody(Protocol):
    """A body that is not complete yet: an `asyncio.Future` or a `DeferredResponse`."""

    def add_done_callback(self, call: Callable[[Any], object], /) -> None: ...
    def cancel(self) -> bool: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> Body | None: ...


Answer = Body | AwaitableBody | None
B = TypeVar("B")
#: A response body of one type, or a future of it. mypy takes no `|` of a type variable here.
BodyOrFuture = Union[B, asyncio.Future[B]]  # noqa: UP007


def _do_nothing(*_: int) -> None:
    """Do nothing: a peer without a connection has nothing to pause or to close."""


class ClosedCalls:
    """What to call when a connection is closed, by key. Each call runs once, without arguments."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[object, Callable[[], None]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._calls

    def put(self, key: object, call: Callable[[], None]) -> None:
        """Call `call`, in place of the previous call with `key`."""
        self._calls[key] = call

    def drop(self, key: object) -> None:
        """Drop the call with `key`, if there is one."""
        self._calls.pop(key, None)

    def run(self) -> None:
        """Call all of them: the connection is closed."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call()


@dataclass(slots=True)
class Peer:
    """The client at the other end of a connection. It lives as long as the connection.

    `closed_calls` belong to the connection. `pause` stops reading from it for a number of
    milliseconds. `close_after_responses` closes it after the responses that are due are sent.
    `number` counts the connections of a listener in the order in which they were opened. `host` is
    in its canonical spelling (`security.authorizer.canonicalize_host`). `token_authenticated` is
    whether the client logged in by a delegation token.
    """

    host: str
    port: int
    listener: str
    principal: str
    connection_id: str
    closed_calls: ClosedCalls = field(default_factory=ClosedCalls)
    client_software: tuple[str, str] = ("unknown", "unknown")
    pause: Callable[[int], None] = _do_nothing
    close_after_responses: Callable[[], None] = _do_nothing
    number: int = 0
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    token_authenticated: bool = False


@dataclass(slots=True)
class Request:
    """One request: its header, its decoded body (kio's entity of that version), and its sender.

    `size` is the size of its frame in bytes. `busy_ns` is the time that the broker has spent on the
    request; it is measured only if there are quotas. `id` identifies a request that may be sent
    again: each attempt has the same 16 bytes.
    """

    header: RequestHeader
    body: Any
    peer: Peer
    received_ns: int = 0
    size: int = 0
    busy_ns: int = 0
    id: bytes = b""
    #: Whether it is handled in several turns of the event loop (`pieces`). Its connection waits.
    is_in_pieces: bool = False
    _on_released: Callable[[], None] | None = field(default=None, init=False)

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def holds_records(self) -> bool:
        """Whether this is a produce request whose records are still in memory."""
        return isinstance(self.body, ProduceRequest) and bool(self.body.topics)

    def on_released(self, call: Callable[[], None]) -> None:
        """Call `call` once, when `release` is called."""
        self._on_released = call

    def release(self) -> None:
        """Drop the records of a produce request, once they are appended or its client is gone."""
        if self.holds_records:
            self.body = self.body._replace(topics=[])
        on_released, self._on_released = self._on_released, None
        if on_released is not None:
            on_released()


class RemainingRequest(NamedTuple):
    """What is left of a request after a check has refused a part of it.

    `complete` returns the response to the whole request: (response to the remainder) -> body. That
    response is encoded if the remainder was forwarded.
    """

    frame: bytes
    request: Request
    complete: Callable[[Body], Body]


#: (context, request) -> answer.
Handler = Callable[[Any, Request], Answer]


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table of APIs: its versions, permissions, handler, listeners and feature."""

    key: ApiKey
    versions: range
    permissions: ApiPermissions
    handle: Handler
    #: Builds the response body for an error of the whole request: (request, code, message) -> body.
    #: Without it, dispatch sets the top-level error code of the response.
    refuse: Callable[[Request, ErrorCode, str | None], Body] | None = None
    #: Decodes the body instead of kio, for APIs on the hot path: (version, frame, offset) -> body.
    read: Callable[[int, memoryview, int], Any] | None = None
    #: The same for large bodies, in slices: it yields between turns of the event loop. Without it,
    #: the general codec reads them, and `read` those of APIs that have it.
    read_in_slices: Callable[[int, memoryview, int], Slices] | None = None
    #: Checks a client's request on the node that received it, before it is handled or forwarded:
    #: (context, request). Raises `ApiError`.
    admit: Callable[[Any, Request], None] | None = None
    #: Only the active controller handles it. Other nodes forward the request to the controller.
    by_controller: bool = False
    #: The feature that it belongs to. At level 0 of the feature, requests get UNSUPPORTED_VERSION.
    feature: str = ""
    #: The listeners that serve it, as in Kafka 4.4.0.
    on: Listeners = Listeners.BROKER
    #: A check by the node that the client is connected to, before the request is handled or
    #: forwarded: (context, request) -> future of the response that refuses it, of the remainder if
    #: a part is refused, or of None. No future means that there is nothing to check.
    check: Callable[[Any, Request], Awaitable[Body | RemainingRequest | None] | None] | None = None
    #: The handler on controller listeners, if it is another one.
    on_controllers: Handler | None = None
    #: A listener of controllers serves it before the node has joined its cluster: the quorum and
    #: the controller, no data. Other listeners then serve only ApiVersions.
    early: bool = False
