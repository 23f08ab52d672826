"""From a frame to the buffers of its answer: header, row of the table, body, handler, response.

The one place that turns faults into what the client sees. Bytes that do not fit raise `WireError`,
which closes the connection, and so does an API or a version that is not served, as Kafka does; only
ApiVersions answers those, in version 0 and with what is served (KIP-511). `ApiError` becomes the
API's error response. Any other exception is a fault of ours: logged with its traceback, answered
with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kio.static.constants import EntityType

from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.compiler import Gather
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.server.network.api import Api, AwaitableBody, Body, Buffer, Peer, Request
from shoal.server.network.deferred import DeferredResponse
from shoal.server.quota.client_quotas import with_throttle_time

if TYPE_CHECKING:
    from shoal.server.broker import Broker

Buffers = list[Buffer]


class PendingResponse:
    """An answer that is due on its connection; `size` is that of its request, in bytes."""

    __slots__ = ("_dispatcher", "_done", "_future", "_request", "size")

    def __init__(
        self,
        dispatcher: Dispatcher,
        request: Request | None,
        future: AwaitableBody | None,
        done: Buffers | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._request = request
        self._future = future
        self._done = done
        self.size = 0

    @property
    def request(self) -> Request | None:
        return self._request

    @property
    def ready(self) -> bool:
        return self._future is None or self._future.done()

    def on_ready(self, call: Callable[[Any], None]) -> None:
        if self._future is not None:
            self._future.add_done_callback(call)

    def buffers(self) -> Buffers:
        """The answer's buffers. Raises `WireError` where the connection is to be closed."""
        if self._future is None:
            assert self._done is not None
            return self._done
        assert self._request is not None
        self._request.release()
        return self._dispatcher.resolve(self._request, self._future)

    def cancel(self) -> None:
        """The connection is gone: whoever would answer may stop."""
        if self._request is not None:
            self._request.release()
        if self._future is not None:
            self._future.cancel()


class Dispatcher:
    """Owns nothing but the table; one serves all connections of a broker."""

    def __init__(
        self, broker: Broker, table: Mapping[int, Api], served: Mapping[str, Mapping[int, Api]]
    ) -> None:
        """`table` has every row, `served` those that each listener serves now, by its name."""
        self._broker = broker
        self._table = dict(table)
        self._served = served
        self._metrics = broker.metrics
        self._quotas = broker.quotas

    def handle(self, frame: bytearray, peer: Peer) -> Buffers | PendingResponse | None:
        """Handle one request: its answer, or what stands for it, or None where none is sent.

        Raises `WireError` when the connection is to be closed.
        """
        received_ns = time.perf_counter_ns()
        if len(frame) < 10:
            raise WireError(f"a request of {len(frame)} bytes has no header")
        row = self._served[peer.listener].get(frame[0] << 8 | frame[1])
        if row is None:
            raise WireError(f"API key {frame[0] << 8 | frame[1]} is not served on {peer.listener}")
        header = frames.read_request_header(frame, row.versions)
        version = header.api_version
        if version not in row.versions:
            return self._unsupported_version(row, header)
        view = memoryview(frame)
        if row.read is not None:
            body = row.read(version, view, header.body_at)
        else:
            body = codec.read_request(header.api_key, version, view.toreadonly(), header.body_at)
        request = Request(header, body, peer, received_ns, len(frame))
        try:
            if row.feature and not self._broker.image.features.get(row.feature):
                raise ApiError(
                    ErrorCode.unsupported_version,
                    f"The feature {row.feature} is off: its level is 0.",
                )
            if row.by_controller and not self._is_only_controller:
                answer: Any = self._broker.channel.forward(frame, request)
            else:
                answer = row.handle(self._broker, request)
        except WireError:
            raise
        except Exception as error:
            return self._error_response(request, error)
        if self._quotas.enabled:
            request.busy_ns = time.perf_counter_ns() - received_ns
        if answer is None:
            self._no_response(request)
            return None
        if isinstance(answer, (DeferredResponse, asyncio.Future)):
            if not answer.done():
                return PendingResponse(self, request, answer)
            return self.resolve(request, answer)
        assert isinstance(answer, (list, Mapping)), answer
        return self._respond(request, answer)

    def requests_handled(self, now_s: float) -> None:
        """The requests of one read, at `now_s` by the loop's clock, have been handled; their
        connection is about to send what answers them."""
        self._broker.purgatory.complete_early(now_s)

    @property
    def _is_only_controller(self) -> bool:
        """Whether this node is the controller, and no other one can become it."""
        return self._broker.metadata.is_active and self._broker.quorum.alone

    async def handle_envelope(self, frame: bytes, peer: Peer, request_id: bytes = b"") -> bytes:
        """Handle a request that came in another one, as the active controller: the body of its
        response. Raises `ApiError` with NOT_CONTROLLER when this node is none, or stops being it,
        and `WireError`."""
        if len(frame) < 10:
            raise WireError(f"a request of {len(frame)} bytes has no header")
        row = self._table.get(frame[0] << 8 | frame[1])
        if row is None or not row.by_controller:
            raise WireError(f"API key {frame[0] << 8 | frame[1]} is not passed on")
        header = frames.read_request_header(frame, row.versions)
        if header.api_version not in row.versions:
            raise WireError(f"{row.key.name} v{header.api_version} is not served")
        body = codec.read_request(
            header.api_key, header.api_version, memoryview(frame), header.body_at
        )
        request = Request(header, body, peer, time.perf_counter_ns(), id=request_id)
        if not self._broker.metadata.is_active:
            raise ApiError(ErrorCode.not_controller)
        try:
            found: Any = row.handle(self._broker, request)
            if not isinstance(found, (list, Mapping)):
                found = await found
        except WireError:
            raise
        except Exception as error:
            if isinstance(error, ApiError) and error.code is ErrorCode.not_controller:
                raise
            found = self._error_body(request, error)
        return b"".join(self._encode_body(request, found))

    def completed(self, buffers: Buffers) -> PendingResponse:
        """An answer that waits for those before it only."""
        return PendingResponse(self, None, None, buffers)

    def resolve(self, request: Request, future: AwaitableBody) -> Buffers:
        """The buffers of an answer whose future is done."""
        if future.cancelled():
            raise WireError("the request was given up while the broker stops")
        error = future.exception()
        if isinstance(error, WireError):
            raise error
        if error is not None:
            return self._error_response(request, error)
        result = future.result()
        return self._no_response(request) if result is None else self._respond(request, result)

    def _no_response(self, request: Request) -> Buffers:
        """Note a request that has no response; no buffers."""
        if self._quotas.enabled and (throttle_ms := self._quotas.charge(request, 0)):
            request.peer.pause(throttle_ms)
        self._record_metrics(request)
        return []

    def _respond(self, request: Request, body: Body) -> Buffers:
        try:
            return self._encode_response(request, body)
        except Exception as error:  # a body that does not fit its layout is a fault of ours, too
            return self._error_response(request, error)

    def _encode_response(self, request: Request, body: Body) -> Buffers:
        if not self._quotas.enabled:
            parts = self._encode_body(request, body)
        else:
            parts = self._encode_throttled(request, body)
        size = sum(map(len, parts))
        self._record_metrics(request)
        return [frames.sized_response_head(request.header, size), *parts]

    def _encode_throttled(self, request: Request, body: Body) -> Buffers:
        """The encoded body of a request whose client may have a quota."""
        begun_ns = time.perf_counter_ns()
        parts = self._encode_body(request, body)
        request.busy_ns += time.perf_counter_ns() - begun_ns
        throttle_ms = self._quotas.charge(request, sum(map(len, parts)))
        if not throttle_ms:
            return parts
        request.peer.pause(throttle_ms)
        return self._encode_body(request, with_throttle_time(request, body, throttle_ms))

    def _encode_body(self, request: Request, body: Body) -> Buffers:
        header = request.header
        if isinstance(body, list):
            return body
        if isinstance(body, Mapping):
            out = Gather()
            codec.writer(header.api_key, header.api_version, EntityType.response)(out, body)
            return out.parts()
        return list(body)

    def _record_metrics(self, request: Request) -> None:
        header = request.header
        elapsed_ns = time.perf_counter_ns() - request.received_ns
        self._metrics.request(header.api_key, header.api_version, elapsed_ns)

    def _error_response(self, request: Request, error: BaseException) -> Buffers:
        return self._encode_response(request, self._error_body(request, error))

    def _error_body(self, request: Request, error: BaseException) -> Body:
        """The error response of a whole request."""
        row = self._table[request.header.api_key]
        if isinstance(error, ApiError):
            code, message = error.code, error.message
        else:
            name = ApiKey(request.header.api_key).name
            self._broker.log.error("a request failed", api=name, exc_info=error)
            code, message = ErrorCode.unknown_server_error, None
        self._metrics.error(request.header.api_key, code)
        if row.refuse is not None:
            return row.refuse(request, code, message)
        entity = codec.entity(row.key, request.version, EntityType.response)
        if not any(f.name == "error_code" for f in codec.struct_of(entity).fields):
            raise WireError(f"{row.key.name} was refused: {message or code.name}")
        return {"error_code": code, "error_message": message}

    def _unsupported_version(self, row: Api, header: frames.RequestHeader) -> Buffers:
        if row.key is not ApiKey.API_VERSIONS:
            raise WireError(f"{row.key.name} v{header.api_version} is not served")
        served: dict[str, Any] = {
            "api_key": row.key,
            "min_version": row.versions.start,
            "max_version": row.versions.stop - 1,
        }
        body = {"error_code": ErrorCode.unsupported_version, "api_keys": [served]}
        out = codec.write_response(row.key, 0, body)
        head = header.correlation_id.to_bytes(4, "big", signed=True)
        return [(len(head) + len(out)).to_bytes(4, "big") + head + out]
