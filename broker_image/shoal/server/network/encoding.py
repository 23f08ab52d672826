"""Bodies of responses: encoded, with a throttle time, and for a request that failed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from kio.static.constants import EntityType

from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.compiler import ScatterBuffer
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.server.network.api import Api, Body, Buffer, Request

Buffers = list[Buffer]

#: Bytes of the message of an error.
MESSAGE_SIZE_MAX = 4096


def encode_body(request: Request, body: Body) -> Buffers:
    """Encode a response body in the version of its request. Return the buffers of a body that is
    already encoded."""
    if isinstance(body, list):
        return body
    # A check for dict first, because one for `Mapping` takes longer.
    if isinstance(body, (dict, Mapping)):
        header = request.header
        out = ScatterBuffer()
        codec.get_writer(header.api_key, header.api_version, EntityType.response)(out, body)
        return out.get_parts()
    return list(body)


def with_throttle_time(request: Request, body: Body, throttle_ms: int) -> Body:
    """Set the throttle time of a response body, if its version has that field."""
    if isinstance(body, Mapping):
        return {**body, "throttle_time_ms": max(throttle_ms, body.get("throttle_time_ms", 0))}
    key, version = request.header.api_key, request.version
    parts, throttle_time = list(body), throttle_ms.to_bytes(4, "big")
    if key == ApiKey.PRODUCE:
        last = bytes(parts[-1])
        end = len(last) - codec.is_flexible(key, version)  # The tagged fields, which are empty.
        parts[-1] = last[: end - 4] + throttle_time + last[end:]
    elif _begins_with_throttle_time(key, version):
        parts[0] = throttle_time + bytes(parts[0][4:])
    return parts


@cache
def _begins_with_throttle_time(key: int, version: int) -> bool:
    entity = codec.load_entity(key, version, EntityType.response)
    return codec.build_struct(entity).fields[0].name == "throttle_time_ms"


class ErrorResponses:
    """Turns exceptions into error responses, and logs them."""

    def __init__(self, log: Any, table: Mapping[int, Api]) -> None:
        self._log = log
        self._table = table

    def build_body(self, request: Request, error: BaseException) -> Body:
        """Return the response body for a request that failed with `error`.

        An `ApiError` keeps its code and message. Any other exception is a bug: it is logged with
        its traceback and becomes UNKNOWN_SERVER_ERROR. Raises `WireError` for an API whose
        response has no error code.
        """
        api = self._table[request.header.api_key]
        if isinstance(error, ApiError):
            code, message = error.code, _shorten(error.message)
        else:
            name = ApiKey(request.header.api_key).name
            self._log.error("a request failed", api=name, exc_info=error)
            code, message = ErrorCode.unknown_server_error, None
        if api.refuse is not None:
            return api.refuse(request, code, message)
        entity = codec.load_entity(api.key, request.version, EntityType.response)
        if not any(f.name == "error_code" for f in codec.build_struct(entity).fields):
            raise WireError(f"{api.key.name} was refused: {message or code.name}")
        return {"error_code": code, "error_message": message}


def _shorten(message: str | None) -> str | None:
    """Return a message that fits into a response. Those that quote a long name may not."""
    if message is None or len(message) <= MESSAGE_SIZE_MAX // 4:
        return message
    return message.encode(errors="replace")[:MESSAGE_SIZE_MAX].decode(errors="ignore")
