"""From the frame of a request to the buffers of its response.

Dispatch reads the header, finds the row of the API, decodes the body, calls the handler and encodes
the response. It is the only place that maps errors to what a client sees:

* Malformed bytes raise `WireError`, which closes the connection. So does an API or a version that
  is not served, as in Kafka. ApiVersions is the exception: an unknown version gets a response of
  version 0 that names the versions served (KIP-511).
* `ApiError` becomes the error response of the API.
* Any other exception is a bug. It is logged with its traceback, and the client gets
  UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.server.network import error_counts, pieces
from shoal.server.network.api import Api, AwaitableBody, Body, Peer, RemainingRequest, Request
from shoal.server.network.deferred import AWAITED
from shoal.server.network.encoding import (
    Buffers,
    ErrorResponses,
    encode_body,
    with_throttle_time,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from shoal.protocol.slices import Slices
    from shoal.server.authorization import AccessControl
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.network.purgatory import Purgatory

#: Bytes of the smallest request header.
HEADER_SIZE_MIN = 10


class ControllerPort(Protocol):
    """The active controller, to which some requests are forwarded."""

    @property
    def is_local(self) -> bool:
        """Whether this node is the active controller and no other node can become it."""

    def forward(self, frame: bytes | bytearray, request: Request) -> asyncio.Future[list[bytes]]:
        """Send a request to the active controller. The future is the encoded response body."""


class PendingResponse:
    """A response that is due on its connection. `size` is the size of its request in bytes."""

    __slots__ = ("_buffers", "_dispatcher", "_future", "request", "size")

    def __init__(
        self,
        dispatcher: Dispatcher,
        request: Request | None,
        future: AwaitableBody | None,
        buffers: Buffers | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self.request = request
        self._future = future
        self._buffers = buffers
        self.size = 0

    @property
    def ready(self) -> bool:
        return self._future is None or self._future.done()

    def on_ready(self, call: Callable[[Any], None]) -> None:
        if self._future is not None:
            self._future.add_done_callback(call)

    def build_buffers(self) -> Buffers:
        """Return the buffers of the response. Raises `WireError` to close the connection."""
        if self._future is None:
            assert self._buffers is not None
            return self._buffers
        assert self.request is not None
        self.request.release()
        return self._dispatcher.resolve(self.request, self._future)

    def cancel(self) -> None:
        """Give up the request: its connection is closed."""
        if self.request is not None:
            self.request.release()
        if self._future is not None:
            self._future.cancel()


class QuotasPort(Protocol):
    """The quotas of clients, or none."""

    @property
    def enabled(self) -> bool: ...
    def charge(self, request: Request, response_size: int, /) -> int: ...


class NoQuotas:
    """Quotas of clients that are no users yet."""

    enabled = False

    def charge(self, _request: Request, _response_size: int) -> int:
        return 0


class Dispatcher:
    """Serves the requests of all connections of a node. It owns no state."""

    def __init__(
        self,
        *,
        context: Any,
        served: Mapping[str, Mapping[int, Api]],
        advertised: Mapping[str, Mapping[int, Api]],
        cache: MetadataCache,
        metrics: MetricRegistry,
        quotas: QuotasPort,
        purgatory: Purgatory,
        controller: ControllerPort,
        errors: ErrorResponses,
        access: AccessControl,
        monotonic_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`context` is the first argument of every handler. `served` has the rows that each
        listener serves now, by listener name and API key, and `advertised` those that it serves
        once the node has joined its cluster."""
        self._context = context
        self._served, self._advertised = served, advertised
        self._cache = cache
        self._metrics = metrics
        self._quotas = quotas
        self._purgatory = purgatory
        self._controller = controller
        self._errors = errors
        self._access = access
        self._monotonic_ns = monotonic_ns

    def handle(self, frame: bytearray, peer: Peer) -> Buffers | PendingResponse | None:
        """Handle one request. Return its response, a pending response, or None if no response is
        sent.

        Raises `WireError` to close the connection.
        """
        received_ns = self._monotonic_ns()
        served = self._served[peer.listener]
        api = served.get(frame[0] << 8 | frame[1]) if len(frame) >= HEADER_SIZE_MIN else None
        if api is None:
            raise _make_unserved_error(frame, peer, self._advertised[peer.listener])
        header = frames.read_request_header(frame, api.versions)
        version = header.api_version
        if version not in api.versions:
            return _build_unsupported_version(api, header)
        view = memoryview(frame)
        slices = _read_in_slices(api, header, view)
        if slices is not None:
            request = Request(header, None, peer, received_ns, len(frame), is_in_pieces=True)
            task = asyncio.ensure_future(self._read_and_answer(api, frame, request, slices))
            return PendingResponse(self, request, task)
        body = (
            api.read(version, view, header.body_at)
            if api.read is not None
            else codec.read_request(header.api_key, version, view.toreadonly(), header.body_at)
        )
        request = Request(header, body, peer, received_ns, len(frame))
        try:
            answer: Any = self._answer(api, frame, request)
        except WireError:
            raise
        except Exception as error:
            return self._build_error_response(request, error)
        if self._quotas.enabled:
            request.busy_ns = self._monotonic_ns() - received_ns
        if answer is None:
            self._finish_without_response(request)
            return None
        if isinstance(answer, AWAITED):
            if not answer.done():
                return PendingResponse(self, request, answer)
            return self.resolve(request, answer)
        return self._respond(request, answer)

    async def _read_and_answer(
        self, api: Api, frame: bytearray, request: Request, slices: Slices
    ) -> Any:
        """Read the body of a large request in turns of the event loop, then answer it."""
        await pieces.read(slices, request, self._monotonic_ns)
        answer = self._answer(api, frame, request)
        return await answer if isinstance(answer, AWAITED) else answer

    def _answer(self, api: Api, frame: bytearray, request: Request) -> Any:
        """Return the answer to a request after this node's checks of it. Raises `ApiError`."""
        if api.feature and not self._cache.image.features.get(api.feature):
            raise ApiError(
                ErrorCode.unsupported_version,
                f"The feature {api.feature} is off: its level is 0.",
            )
        if api.admit is not None:
            api.admit(self._context, request)
        checked = None if api.check is None else api.check(self._context, request)
        if checked is None:
            return self._proceed(api, frame, request)
        return asyncio.ensure_future(self._finish_checked(checked, api, frame, request))

    async def _finish_checked(
        self,
        checked: Awaitable[Body | RemainingRequest | None],
        api: Api,
        frame: bytearray,
        request: Request,
    ) -> Any:
        refusal = await checked
        if isinstance(refusal, RemainingRequest):
            return refusal.complete(await self._finish(api, refusal.frame, refusal.request))
        if refusal is not None:
            return refusal
        return await self._finish(api, frame, request)

    async def _finish(self, api: Api, frame: bytes | bytearray, request: Request) -> Any:
        answer = self._proceed(api, frame, request)
        return await answer if isinstance(answer, AWAITED) else answer

    def _proceed(self, api: Api, frame: bytes | bytearray, request: Request) -> Any:
        """Call the handler of a request, or forward it to the controller. Raises `ApiError`."""
        if api.by_controller and not self._controller.is_local:
            return self._controller.forward(frame, request)  # The controller authorizes it.
        if self._access.enabled:
            self._access.require_all(request, api.permissions.for_request)
        return pieces.handle(api, self._context, request)

    def handle_login_failure(self, _peer: Peer, _reason: str) -> bool:
        """Whether bytes that are no request are a failed login: they are not, here."""
        return False

    def on_requests_handled(self, now_s: float) -> None:
        """Complete fetches that the requests of one read have woken. The connection calls this
        before it sends the responses to those requests; `now_s` is the time of its loop."""
        self._purgatory.complete_early(now_s)

    def make_pending(self, buffers: Buffers) -> PendingResponse:
        """Return a response that waits only for those before it on its connection."""
        return PendingResponse(self, None, None, buffers)

    def resolve(self, request: Request, future: AwaitableBody) -> Buffers:
        """Return the buffers of a response whose future is done. Raises `WireError` to close the
        connection."""
        if future.cancelled():
            raise WireError("the request was cancelled because the broker is stopping")
        error = future.exception()
        if isinstance(error, WireError):
            raise error
        if error is not None:
            return self._build_error_response(request, error)
        result = future.result()
        return (
            self._finish_without_response(request)
            if result is None
            else self._respond(request, result)
        )

    def _finish_without_response(self, request: Request) -> Buffers:
        """Charge and count a request that has no response."""
        if self._quotas.enabled and (throttle_ms := self._quotas.charge(request, 0)):
            request.peer.pause(throttle_ms)
        self._record_metrics(request)
        return []

    def _respond(self, request: Request, body: Body) -> Buffers:
        try:
            return self._encode_response(request, body)
        except Exception as error:  # A body that its codec rejects is a bug of the handler.
            return self._build_error_response(request, error)

    def _encode_response(self, request: Request, body: Body) -> Buffers:
        if not self._quotas.enabled:
            parts = encode_body(request, body)
        else:
            parts = self._encode_throttled(request, body)
        size = sum(map(len, parts))
        self._record_metrics(request)
        error_counts.add(self._metrics.errors[request.header.api_key], request, body)
        return [frames.build_sized_response_head(request.header, size), *parts]

    def _encode_throttled(self, request: Request, body: Body) -> Buffers:
        """Encode a response body, and throttle the client if it exceeds a quota."""
        begun_ns = self._monotonic_ns()
        parts = encode_body(request, body)
        request.busy_ns += self._monotonic_ns() - begun_ns
        throttle_ms = self._quotas.charge(request, sum(map(len, parts)))
        if not throttle_ms:
            return parts
        request.peer.pause(throttle_ms)
        return encode_body(request, with_throttle_time(request, body, throttle_ms))

    def _record_metrics(self, request: Request) -> None:
        header = request.header
        elapsed_ns = self._monotonic_ns() - request.received_ns
        self._metrics.record_request(header.api_key, header.api_version, elapsed_ns)

    def _build_error_response(self, request: Request, error: BaseException) -> Buffers:
        try:
            return self._encode_response(request, self._errors.build_body(request, error))
        except ApiError as refused:  # A name in the request does not fit into a response.
            raise WireError(str(refused)) from None


def _read_in_slices(api: Api, header: frames.RequestHeader, view: memoryview) -> Slices | None:
    """Return what reads a large body in slices; None for others, and where the API's own parser
    reads it at once."""
    if len(view) <= pieces.READ_AT_ONCE_BYTES:
        return None
    if api.read_in_slices is not None:
        return api.read_in_slices(header.api_version, view, header.body_at)
    if api.read is not None:
        return None
    body = view.toreadonly()
    return codec.read_request_in_slices(api.key, header.api_version, body, header.body_at)


def _make_unserved_error(frame: bytearray, peer: Peer, advertised: Mapping[int, Api]) -> WireError:
    if len(frame) < HEADER_SIZE_MIN:
        return WireError(f"a request of {len(frame)} bytes has no header")
    key = frame[0] << 8 | frame[1]
    if key in advertised:
        return WireError(
            f"this node starts, and serves no {advertised[key].key.name} on {peer.listener} before"
            " it has joined its cluster; clients try again"
        )
    return WireError(f"API key {key} is not served on {peer.listener}")


def _build_unsupported_version(api: Api, header: frames.RequestHeader) -> Buffers:
    """Name the versions served to a client whose ApiVersions request is too new."""
    if api.key is not ApiKey.API_VERSIONS:
        raise WireError(f"{api.key.name} v{header.api_version} is not served")
    served: dict[str, Any] = {
        "api_key": api.key,
        "min_version": api.versions.start,
        "max_version": api.versions.stop - 1,
    }
    body = {"error_code": ErrorCode.unsupported_version, "api_keys": [served]}
    out = codec.write_response(api.key, 0, body)
    head = header.correlation_id.to_bytes(4, "big", signed=True)
    return [(len(head) + len(out)).to_bytes(4, "big") + head + out]
