"""Requests that arrive in an Envelope (KIP-590): another node forwards them to the controller.

The controller's own requests to itself take the same way, without an Envelope on the wire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shoal.protocol import codec, frames
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.server.network import pieces
from shoal.server.network.api import Api, Peer, Request
from shoal.server.network.encoding import ErrorResponses, encode_body

if TYPE_CHECKING:
    from shoal.server.authorization import AccessControl


class EnvelopeHandler:
    """Handles forwarded requests. It owns no state."""

    def __init__(
        self,
        context: Any,
        table: Mapping[int, Api],
        errors: ErrorResponses,
        *,
        access: AccessControl,
        is_active_controller: Callable[[], bool],
    ) -> None:
        """`context` is the first argument of every handler in `table`."""
        self._context = context
        self._table = table
        self._errors = errors
        self._access = access
        self._is_active_controller = is_active_controller

    async def handle(self, frame: bytes, peer: Peer, request_id: bytes = b"") -> bytes:
        """Handle the request in `frame` as the active controller. Return its response body.

        `peer` is the client that sent the request to the other node. Raises `ApiError` with
        NOT_CONTROLLER if this node is not the active controller, or stops being it. Raises
        `WireError` if the frame is malformed or its API cannot be forwarded.
        """
        if len(frame) < 10:
            raise WireError(f"a request of {len(frame)} bytes has no header")
        api = self._table.get(frame[0] << 8 | frame[1])
        if api is None or not api.by_controller:
            raise WireError(f"API key {frame[0] << 8 | frame[1]} cannot be forwarded")
        header = frames.read_request_header(frame, api.versions)
        if header.api_version not in api.versions:
            raise WireError(f"{api.key.name} v{header.api_version} is not served")
        request = Request(header, None, peer, size=len(frame), id=request_id)
        await _read_body(request, frame)
        if not self._is_active_controller():
            raise ApiError(ErrorCode.not_controller)
        try:
            if self._access.enabled:
                self._access.require_all(request, api.permissions.for_request)
            answer: Any = pieces.handle(api, self._context, request)
            if not isinstance(answer, (list, Mapping)):
                answer = await answer
        except WireError:
            raise
        except Exception as error:
            if isinstance(error, ApiError) and error.code is ErrorCode.not_controller:
                raise
            answer = self._errors.build_body(request, error)
        return b"".join(encode_body(request, answer))


async def _read_body(request: Request, frame: bytes) -> None:
    header = request.header
    source = header.api_key, header.api_version, memoryview(frame), header.body_at
    if len(frame) > pieces.READ_AT_ONCE_BYTES:
        await pieces.read(codec.read_request_in_slices(*source), request, time.perf_counter_ns)
    else:
        request.body = codec.read_request(*source)
