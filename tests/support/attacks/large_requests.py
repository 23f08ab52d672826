"""The largest requests that a broker admits, made from the schemas.

Each API has two for each of its arrays: full of short names, and of the longest ones. An API
without arrays has one with the longest strings and bytes. A new API gets its own without a change
here. Names differ, so that no cache of a broker answers them, and nothing of that name exists.
"""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.static.constants import EntityType
from shoal.protocol import codec, compiler, frames
from shoal.protocol.compiler import STRING_SIZE_MAX
from shoal.protocol.schema import FIXED, Field, Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.protocol.api import ApiKey

#: Fields for which zero or a strange name means that nothing is done.
_USUAL: dict[str, Any] = {
    "acks": -1,
    "timeout_ms": 1000,
    "max_bytes": 1 << 20,
    "session_epoch": -1,
    "replica_id": -1,
    "broker_id": -1,
    "member_epoch": 0,
    "num_partitions": 1,
    "replication_factor": 1,
    "current_leader_epoch": -1,
    "group_id": "hostile",
    "member_id": "",
    "transactional_id": None,
    "resource_type": 2,
    "generation_id_or_member_epoch": -1,
    "controller_mutation_rate": 0.0,
    "retention_time_ms": -1,
    "validate_only": True,
    "resource_pattern_type": 3,
    "operation": 3,
    "permission_type": 3,
    "resource_type_filter": 2,
    "pattern_type_filter": 3,
    "pattern_type": 3,
}
#: Bytes of the longest values together: no body may be larger than `codec.BODY_SIZE_MAX`.
BYTES_MAX = 7 << 20
_WIDE = {"int32", "int64", "uint32"}
#: Python's hash of an integer is its remainder by this number, and that of a UUID is that of its
#: integer. So multiples of it have equal hashes, and a table of them takes quadratic time.
_EQUAL_HASH = sys.hash_info.modulus


#: Bytes of the longest name, without its number.
_LONG = STRING_SIZE_MAX - 10


class Large(NamedTuple):
    """A request that is full of entries of one array. `path` names it; it is empty for a request
    without arrays."""

    path: str
    frame: bytes


class Filler:
    """Makes the body of a request with `count` entries in the array at `path`, whose names are as
    long as possible if `is_long`. Without a `path` all strings and bytes are. If `is_deep`, the
    arrays in these entries have one entry each, such as the partition of a topic."""

    def __init__(
        self,
        path: tuple[str, ...],
        count: int,
        *,
        is_long: bool = False,
        is_deep: bool = False,
        bytes_max: int = 0,
    ) -> None:
        self._path = path
        self._count = count
        self._is_long = is_long
        self._is_deep = is_deep
        self._bytes_max = bytes_max
        self._number = 0

    def struct(self, layout: Struct, path: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return a value of a struct at `path`. Tagged fields are left out but for the array."""
        return {
            field.name: self._value(field, (*path, field.name))
            for field in layout.fields
            if field.tag is None or self._path[: len(path) + 1] == (*path, field.name)
        }

    def make_one(self, _kind: str | Struct, _name: str) -> Any:
        """Return the value of a field by its name; None for the usual one."""
        return None

    def _value(self, field: Field, path: tuple[str, ...]) -> Any:
        if not field.array:
            return self._one(field, path)
        if path == self._path:
            return [self._one(field, path) for _ in range(self._count)]
        leads_there = self._path[: len(path)] == path
        is_inside = self._is_deep and path[: len(self._path)] == self._path
        if field.nullable and not (leads_there or is_inside):
            return None
        return [self._one(field, path)] if leads_there or is_inside else []

    def _one(self, field: Field, path: tuple[str, ...]) -> Any:
        kind = field.type
        if isinstance(kind, Struct):
            leads_there = self._path[: len(path)] == path
            is_left_out = field.nullable and not field.array and not leads_there
            return None if is_left_out else self.struct(kind, path)
        is_long = self._is_long and path[: len(self._path)] == self._path
        if is_long and kind == "string":
            self._number += 1
            return f"n{self._number}".ljust(_LONG, "x")
        if is_long and kind in ("bytes", "records"):
            return bytes(_LONG if self._path else self._bytes_max)
        chosen = self.make_one(kind, field.name)
        if chosen is not None:
            return chosen
        if field.name in _USUAL and not field.array:
            usual = _USUAL[field.name]
            return "hostile" if usual is None and not field.nullable else usual
        self._number += 1
        if kind == "string":
            return f"n{self._number}"
        if kind == "uuid":
            return uuid.UUID(int=self._number * _EQUAL_HASH)
        if kind in _WIDE and field.name not in ("timeout_ms", "max_wait_ms"):
            return self._number if len(path) > 1 else 0
        if kind in ("bytes", "records"):
            return b""
        return 0.0 if kind == "float64" else 0 if kind in FIXED else None


def find_arrays(layout: Struct, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all arrays of a struct."""
    for field in layout.fields:
        here = (*path, field.name)
        if field.array:
            yield here
        if isinstance(field.type, Struct):
            yield from find_arrays(field.type, here)


def make_large_requests(
    api: ApiKey,
    version: int,
    *,
    entries: int,
    size_max: int = codec.BODY_SIZE_MAX,
    is_long: bool = False,
) -> Iterator[Large]:
    """Yield a request for each array of an API, of about `entries` entries or `size_max` bytes."""
    layout = codec.build_struct(codec.load_entity(api, version, EntityType.request))
    write = compiler.get_writer(layout)
    for path in find_arrays(layout):
        # Each entry that holds others counts too, and the arrays beside it are empty.
        count = entries - len(path)
        sample = bytearray()
        sample_count = min(10 if is_long else 1000, count)
        write(sample, Filler(path, sample_count, is_long=is_long).struct(layout))
        count = min(count, int(size_max / (len(sample) / sample_count) * 0.9))
        frame = bytearray(frames.build_request_head(api, version, 1, "hostile"))
        write(frame, Filler(path, count, is_long=is_long).struct(layout))
        yield Large(".".join(path), bytes(frame))


def make_deep_request(api: ApiKey, version: int, array: str, entries: int) -> bytes:
    """Return a request whose outer array has entries with one entry in each of their arrays."""
    layout = codec.build_struct(codec.load_entity(api, version, EntityType.request))
    frame = bytearray(frames.build_request_head(api, version, 1, "hostile"))
    filler = Filler((array,), entries, is_deep=True)
    compiler.get_writer(layout)(frame, filler.struct(layout))
    return bytes(frame)


def make_longest_request(api: ApiKey, version: int) -> bytes:
    """Return a request with empty arrays, and the longest strings and bytes."""
    layout = codec.build_struct(codec.load_entity(api, version, EntityType.request))
    frame = bytearray(frames.build_request_head(api, version, 1, "hostile"))
    count = sum(field.type in ("bytes", "records") for field in layout.fields)
    filler = Filler((), 0, is_long=True, bytes_max=BYTES_MAX // max(count, 1))
    compiler.get_writer(layout)(frame, filler.struct(layout))
    return bytes(frame)
