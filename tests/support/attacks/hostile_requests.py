"""Malicious requests that fit their schema: extreme numbers, odd names, absurd combinations."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from kio.static.constants import EntityType
from shoal.protocol import codec, compiler, frames
from shoal.protocol.schema import SIZED, Field, Struct
from shoal.record.records import build_batch

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from shoal.protocol.api import ApiKey

_WIDTH = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_STRINGS = (
    "",
    "t",
    "g",
    "no such thing",
    ".",
    "..",
    "__consumer_offsets",
    "__share_group_state",
    "é",
    "a" * 249,
    "a" * 250,
    "x" * 32_767,
    "/etc/passwd",
    "../../x",
    "-1",
    "NaN",
    "(a+)+$",
    "\0",
    "consumer",
    "range",
    "uniform",
    "retention.ms",
    "1",
)


class Author:
    """Writes random requests. `names` (topics, groups, members) and `ids` make some of them hit."""

    def __init__(
        self, rng: random.Random, names: Sequence[str] = (), ids: Sequence[uuid.UUID] = ()
    ) -> None:
        self._rng = rng
        self._strings = (*_STRINGS, *(list(names) * 4))
        self._ids = (None, uuid.UUID(int=1), uuid.UUID(int=(1 << 128) - 1), *(list(ids) * 4))

    def request(self, api: ApiKey, version: int, correlation_id: int) -> bytes:
        """Return a whole frame with its size prefix."""
        layout, write = _layout(api, version)
        frame = bytearray(frames.build_request_head(api, version, correlation_id, "hostile"))
        write(frame, self._struct(layout))
        return framed(bytes(frame))

    def mutilated(self, frame: bytes) -> bytes:
        """Return the frame with bytes overwritten, removed or duplicated, and a matching size
        prefix."""
        rng = self._rng
        data = bytearray(frame[4:])
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(4, len(data)) if len(data) > 4 else 0
            match rng.randrange(4):
                case 0:
                    data[at:] = data[at:][: rng.randrange(1 + len(data) - at)]
                case 1:
                    data[at : at + 4] = struct.pack(">i", rng.choice([-1, -2, 2**31 - 1, 1 << 20]))
                case 2:
                    data[at : at + 1] = rng.choice([b"\xff" * 5, b"\x80", b"\xff\xff\xff\xff\x0f"])
                case _:
                    data[at : at + 8] = rng.randbytes(8)
        return framed(bytes(data))

    def _struct(self, layout: Struct) -> dict[str, Any]:
        return {
            field.name: self._value(field)
            for field in layout.fields
            if field.tag is None or self._rng.random() < 0.3
        }

    def _value(self, field: Field) -> Any:
        rng = self._rng
        if field.nullable and rng.random() < 0.1:
            return None
        if field.array:
            return [self._one(field) for _ in range(rng.choice([0, 1, 1, 1, 2, 5]))]
        return self._one(field)

    def _one(self, field: Field) -> Any:
        rng, kind = self._rng, field.type
        if isinstance(kind, Struct):
            return self._struct(kind)
        if width := _WIDTH.get(kind):
            return self._number(width, signed=kind.startswith("int"))
        match kind:
            case "bool":
                return rng.random() < 0.5
            case "string":
                return rng.choice(self._strings)
            case "uuid":
                return rng.choice(self._ids)
            case "float64":
                return rng.choice([0.0, float("nan"), float("inf"), -1.5])
            case "records":
                return bytes(build_batch([(1, None, b"v", ())]))
            case "bytes":
                return rng.randbytes(rng.choice([0, 1, 7, 100]))
            case "error_code":
                return 0
        raise AssertionError(kind)

    def _number(self, width: int, *, signed: bool) -> int:
        rng = self._rng
        top = (1 << (width - signed)) - 1
        low = -top - 1 if signed else 0
        common = [0, 0, 0, 1, 1, 2, 5, 100, 1000, 30_000]
        number = rng.choice([*common, -1, -2, top, low, top // 2, rng.randrange(low, top)])
        return max(low, min(top, number))


@cache
def _layout(api: ApiKey, version: int) -> tuple[Struct, compiler.Writer]:
    layout = _lax(codec.build_struct(codec.load_entity(api, version, EntityType.request)))
    return layout, compiler.get_writer(layout)


def _lax(layout: Struct) -> Struct:
    """Return the layout with every field nullable, so that null can be written."""
    fields = tuple(
        replace(
            field,
            nullable=field.nullable or field.array or field.type in SIZED,
            type=_lax(field.type) if isinstance(field.type, Struct) else field.type,
        )
        for field in layout.fields
    )
    return replace(layout, fields=fields)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data
