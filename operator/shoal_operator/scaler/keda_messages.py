"""Messages of KEDA's external scaler (`externalscaler.proto`) in Protocol Buffers' encoding. Pure.

The scaler has five small messages, so the operator needs no library for them. Unknown fields are
skipped, as the encoding requires.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: A varint has at most ten bytes.
_VARINT_BITS_MAX = 70
_DOUBLE = struct.Struct("<d")


class BadMessage(ValueError):
    """The bytes are not a message of this type."""


class ScaledObjectRef(NamedTuple):
    """A ScaledObject and the metadata of its trigger."""

    name: str
    namespace: str
    metadata: dict[str, str]


def parse_scaled_object_ref(data: bytes) -> ScaledObjectRef:
    """Decode a ScaledObjectRef. Raises `BadMessage`."""
    name = namespace = ""
    metadata: dict[str, str] = {}
    for number, value in _parse_fields(data):
        if number == 1:
            name = _decode_text(value)
        elif number == 2:
            namespace = _decode_text(value)
        elif number == 3:
            entry = {
                n: _decode_text(v) for n, v in _parse_fields(_expect_bytes(value)) if n in (1, 2)
            }
            metadata[entry.get(1, "")] = entry.get(2, "")
    return ScaledObjectRef(name, namespace, metadata)


def parse_metrics_request(data: bytes) -> tuple[ScaledObjectRef, str]:
    """Decode a GetMetricsRequest: the ScaledObject and the metric's name. Raises `BadMessage`."""
    ref, metric = b"", ""
    for number, value in _parse_fields(data):
        if number == 1:
            ref = _expect_bytes(value)
        elif number == 2:
            metric = _decode_text(value)
    return parse_scaled_object_ref(ref), metric


def encode_active_response(active: bool) -> bytes:
    """Encode an IsActiveResponse."""
    # The encoding leaves out false.
    return _encode_tag(1, _VARINT) + b"\x01" if active else b""


def encode_metric_response(metric: str, value: int) -> bytes:
    """Encode a GetMetricSpecResponse or a GetMetricsResponse with one metric: they have the same
    fields. The value is present as an integer and as a float."""
    inner = _encode_string(1, metric)
    if value:
        inner += (
            _encode_tag(2, _VARINT)
            + _encode_varint(value)
            + _encode_tag(3, _FIXED64)
            + _DOUBLE.pack(value)
        )
    return _encode_tag(1, _BYTES) + _encode_varint(len(inner)) + inner


def _parse_fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the numbers and values of a message's fields."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise BadMessage(f"field {key >> 3} has the unknown type {kind}")
        if at + size > len(data):
            raise BadMessage(f"field {key >> 3} ends after the message")
        yield key >> 3, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < _VARINT_BITS_MAX:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise BadMessage("a number does not end")


def _expect_bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise BadMessage("a message was expected, not a number")
    return value


def _decode_text(value: bytes | int) -> str:
    try:
        return _expect_bytes(value).decode()
    except UnicodeDecodeError:
        raise BadMessage("a text is not UTF-8") from None


def _encode_tag(number: int, kind: int) -> bytes:
    return _encode_varint(number << 3 | kind)


def _encode_string(number: int, text: str) -> bytes:
    content = text.encode()
    return _encode_tag(number, _BYTES) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
