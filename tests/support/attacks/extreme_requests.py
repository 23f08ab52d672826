"""Every field of every request at its limits: one field at a time, the others as usual.

The requests follow from the schemas, so that a new API or field is among them without a change
here.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.static.constants import EntityType
from shoal.protocol import codec, compiler, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.schema import SIZED, Field, Struct
from support.attacks.hostile_requests import framed
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.wireclient import WireClient

_WIDTH = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
#: The name of topics, groups, members and all else.
NAME = "extreme"
#: Latin-1, a cut sequence, a surrogate, and bytes that no UTF-8 has.
NOT_UTF_8 = b"\xe9 \xe2\x82 \xed\xa0\x80 \xff\xfe"


class Extreme(NamedTuple):
    """A request with one field at a limit. `path` names the field, and `what` also API, version and
    value."""

    path: tuple[str, ...]
    what: str
    frame: bytes
    #: Whether the value is null where the schema has none. Only this may close the connection.
    is_null: bool


def extremes(api: ApiKey, version: int, topic_id: uuid.UUID | None = None) -> Iterator[Extreme]:
    """Yield the requests of one version of an API. All names are `NAME`, and all partitions 0;
    `topic_id` is the id of the topic of that name."""
    layout, write = _layout(api, version)
    for path, field in _leaves(layout):
        for name, value in _values(field):
            head = bytearray(frames.build_request_head(api, version, 1, "extreme"))
            write(head, _body(layout, path, value, topic_id))
            what = f"{api.name} v{version} {'.'.join(path)}={name}"
            is_null = value is None and not field.nullable
            yield Extreme(path, what, framed(bytes(head)), is_null)


def make_topic(client: WireClient) -> uuid.UUID:
    """Return the id of the topic of that name, which is created if a request has deleted it."""
    topic = {"name": NAME, "num_partitions": 1, "replication_factor": 1}
    client.call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 10_000})
    asked = {"topics": [{"topic_id": None, "name": NAME}]}
    found = eventually(
        lambda: [t for t in client.call(ApiKey.METADATA, 12, asked).topics if not t.error_code]
    )
    return found[0].topic_id


def _leaves(layout: Struct, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field]]:
    for field in layout.fields:
        if field.tag is not None and not layout.flexible:
            continue
        here = (*path, field.name)
        yield here, field
        if isinstance(field.type, Struct):
            yield from _leaves(field.type, here)


def _values(field: Field) -> Iterator[tuple[str, Any]]:
    """Yield the extreme values of a field."""
    if field.array or field.type in SIZED or field.nullable:
        yield "null", None
    if isinstance(field.type, Struct):
        return
    for name, value in _scalars(field.type):
        yield name, [value] if field.array else value


def _scalars(kind: str | Struct) -> Iterator[tuple[str, Any]]:
    if kind in _WIDTH:
        assert isinstance(kind, str)
        signed = kind.startswith("int")
        top = (1 << (_WIDTH[kind] - signed)) - 1
        yield "max", top
        if signed:
            yield "min", -top - 1
            yield "-1", -1
    elif kind == "string":
        yield "not UTF-8", NOT_UTF_8
    elif kind in ("bytes", "records"):
        yield "junk", NOT_UTF_8
    elif kind == "float64":
        yield "nan", float("nan")
        yield "inf", float("inf")
    elif kind == "uuid":
        yield "max", uuid.UUID(int=(1 << 128) - 1)


def _body(
    layout: Struct, path: tuple[str, ...], value: Any, topic_id: uuid.UUID | None
) -> dict[str, Any]:
    """Return a body with one entry in each array, and `value` at `path`."""
    body: dict[str, Any] = {}
    for field in layout.fields:
        is_on_path = bool(path) and path[0] == field.name
        if is_on_path and len(path) == 1:
            body[field.name] = value
        elif is_on_path or field.tag is None:
            below = path[1:] if is_on_path else ()
            if isinstance(field.type, Struct):
                item: Any = _body(field.type, below, value, topic_id)
            elif field.name == "topic_id":
                item = topic_id
            else:
                item = _NAMED.get(field.name, _USUAL.get(field.type, 0))
            body[field.name] = [item] if field.array else item
    return body


_USUAL: dict[str, Any] = {"string": NAME, "bytes": b"x", "records": None, "uuid": None}
#: With acks=0 there is no response, a commit reaches the log without a member, and an ACL of an
#: unknown kind closes the connection.
_NAMED = {
    "acks": -1,
    "generation_id_or_member_epoch": -1,
    "resource_type": 2,
    "resource_pattern_type": 3,
    "operation": 3,
    "permission_type": 3,
    "resource_type_filter": 2,
    "pattern_type_filter": 3,
}


@cache
def _layout(api: ApiKey, version: int) -> tuple[Struct, compiler.Writer]:
    layout = _lax(codec.build_struct(codec.load_entity(api, version, EntityType.request)))
    return layout, compiler.get_writer(layout)


def _lax(layout: Struct) -> Struct:
    """Return the layout with truth values as bytes, so that 2 can be written."""
    fields = tuple(
        replace(
            field,
            type=_lax(field.type)
            if isinstance(field.type, Struct)
            else "int8"
            if field.type == "bool"
            else field.type,
        )
        for field in layout.fields
    )
    return replace(layout, fields=fields)
