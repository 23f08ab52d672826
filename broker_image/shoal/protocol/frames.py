"""Frames: request headers and response headers. The connection handles size prefixes.

A request header is v2 (with tagged fields) for flexible request versions and v1 otherwise. A
response header is v1 for flexible versions and v0 otherwise. ApiVersions always answers with header
v0, since its client does not know yet which versions the broker supports (KIP-511).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from shoal.protocol import codec, compiler
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import WireError
from shoal.protocol.schema import TAGS_MAX
from shoal.protocol.text import decode

_HEAD = struct.Struct(">hhih")
_SIZED = struct.Struct(">ii")
_SIZED_TAGGED = struct.Struct(">iiB")
_API_VERSIONS = int(ApiKey.API_VERSIONS)
#: Maximum length of a client id, which Kafka's int16 length sets.
CLIENT_ID_SIZE_MAX = 32767


class RequestHeader(NamedTuple):
    """The header of a request. `body_at` is the offset of the body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def read_request_header(
    frame: memoryview | bytes | bytearray, supported: range | None = None
) -> RequestHeader:
    """Parse the header of a request frame (without its size prefix).

    `supported` are the supported versions of this API, if the caller knows them. An unsupported
    version cannot be parsed past the client id, so `body_at` is then the end of the frame. Raises
    `WireError` for a frame that is too short.
    """
    size = len(frame)
    if size < 10:
        raise WireError(f"a request of {size} bytes has no header")
    api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
    at = 10 + max(length, 0)
    if at > size:
        raise WireError(f"a client id of {length} bytes in a request of {size}")
    client_id = None if length < 0 else decode(frame[10:at])
    if version in (codec.find_known_versions(api_key) if supported is None else supported):
        if codec.is_flexible(api_key, version):
            at = at + 1 if at < size and frame[at] == 0 else _skip_tags(memoryview(frame), at)
    else:
        at = size
    return RequestHeader(api_key, version, correlation_id, client_id, at)


def _skip_tags(frame: memoryview, at: int) -> int:
    try:
        count, at = compiler.get_uvarint(frame, at)
        if count > TAGS_MAX:
            raise WireError(f"a header with {count} tagged fields")
        for _ in range(count):
            _, at = compiler.get_uvarint(frame, at)
            size, at = compiler.get_uvarint(frame, at)
            at += size
            if at > len(frame):
                raise WireError("a header tag past the end of the request")
    except IndexError:
        raise WireError("a request that ends inside its header") from None
    return at


def build_response_head(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Return the bytes of the response header."""
    head = correlation_id.to_bytes(4, "big", signed=True)
    if api_key != ApiKey.API_VERSIONS and codec.is_flexible(api_key, api_version):
        return head + b"\x00"
    return head


def build_sized_response_head(header: RequestHeader, body_size: int) -> bytes:
    """Return the size prefix and header of a response."""
    api_key = header.api_key
    if codec.is_flexible(api_key, header.api_version) and api_key != _API_VERSIONS:
        return _SIZED_TAGGED.pack(body_size + 5, header.correlation_id, 0)
    return _SIZED.pack(body_size + 4, header.correlation_id)


def build_request_head(
    api_key: int, api_version: int, correlation_id: int, client_id: str
) -> bytes:
    """Return the request header's bytes, for Shoal's client."""
    name = client_id.encode()
    head = _HEAD.pack(api_key, api_version, correlation_id, len(name)) + name
    return head + b"\x00" if codec.is_flexible(api_key, api_version) else head
