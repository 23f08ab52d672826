"""Codecs of every API: kio's native parser for input, compiled writers for output.

Both follow kio's generated entities and their field names. kio parses durations and timestamps into
`timedelta` and `datetime`. Writers, and readers of `_PLAIN_TIMES`, take plain milliseconds instead,
under the name with the suffix `_parse_ms` (`throttle_time_ms`). The modules of a version are
imported on first use, so that start-up stays fast.

A mapping for a writer serves all versions: keys that a version lacks are ignored. `check_names`
(for tests) finds keys that no version has.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct as _struct
import types
import typing
from functools import cache, lru_cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from shoal.protocol import compiler, extensions, length_check, slices
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import WireError, to_error_code
from shoal.protocol.schema import Field, Struct, get_default

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

Kind = typing.Literal[EntityType.request, EntityType.response]
_DURATIONS = {
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
#: Maximum entries of all arrays of a request. An entry needs two bytes on the wire but tens of
#: microseconds in a handler. With only a size limit one request could block the broker for minutes.
#: Ten thousand topics of one partition each are 20,000 entries.
ENTRIES_MAX = 40_000
#: The same for Produce and the requests of share groups, which have parsers of their own.
WHOLE_ENTRIES_MAX = 20_000
#: The controller refuses to change more at once, as Kafka's does (MAX_RECORDS_PER_USER_OP).
_CHANGES_MAX = 10_000
_FEW = 1_000
#: Lower limits. A follower may fetch 10,000 partitions, and a tool may ask for the configs of as
#: many topics.
_ENTRIES_MAX_OF: dict[int, int] = {
    ApiKey.PRODUCE: WHOLE_ENTRIES_MAX,
    ApiKey.SHARE_FETCH: WHOLE_ENTRIES_MAX,
    ApiKey.SHARE_ACKNOWLEDGE: WHOLE_ENTRIES_MAX,
    ApiKey.FETCH: 25_000,
    # Their parsers and answers take longer for an entry.
    ApiKey.OFFSET_COMMIT: 20_100,
    ApiKey.OFFSET_FETCH: 20_100,
    ApiKey.ADD_PARTITIONS_TO_TXN: 25_000,
    ApiKey.TXN_OFFSET_COMMIT: 20_100,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 25_000,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: 25_000,
    ApiKey.READ_SHARE_GROUP_STATE: 25_000,
    # A window of 10,000 records, each with a state and a delay of its own.
    ApiKey.WRITE_SHARE_GROUP_STATE: 20_100,
    ApiKey.DELETE_SHARE_GROUP_STATE: 25_000,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: 25_000,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: 20_000,
    # A quorum has one partition, and a cluster a few features.
    ApiKey.VOTE: _FEW,
    ApiKey.BEGIN_QUORUM_EPOCH: _FEW,
    ApiKey.END_QUORUM_EPOCH: _FEW,
    ApiKey.FETCH_SNAPSHOT: _FEW,
    ApiKey.DESCRIBE_QUORUM: _FEW,
    ApiKey.UPDATE_FEATURES: _FEW,
    ApiKey.LIST_GROUPS: 100,
    ApiKey.CREATE_TOPICS: _CHANGES_MAX,
    ApiKey.DELETE_TOPICS: _CHANGES_MAX,
    ApiKey.WRITE_TXN_MARKERS: _CHANGES_MAX,
    ApiKey.DESCRIBE_CONFIGS: 20_000,
    # More than 10,000 get an answer, which says why.
    ApiKey.CREATE_ACLS: 12_000,
    ApiKey.DELETE_ACLS: _CHANGES_MAX,
    ApiKey.ALTER_CONFIGS: _CHANGES_MAX,
    ApiKey.CREATE_PARTITIONS: _CHANGES_MAX,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _CHANGES_MAX,
    ApiKey.CREATE_DELEGATION_TOKEN: 1_000,
    ApiKey.DESCRIBE_GROUPS: 20_000,
    ApiKey.DELETE_GROUPS: 20_000,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 20_000,
    ApiKey.SHARE_GROUP_DESCRIBE: 20_000,
    ApiKey.STREAMS_GROUP_DESCRIBE: 20_000,
    ApiKey.ELECT_LEADERS: 15_000,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 25_000,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _CHANGES_MAX,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 100,
    ApiKey.ALTER_CLIENT_QUOTAS: _CHANGES_MAX,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _CHANGES_MAX,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 15_000,
    # An answer has 2,000 partitions at most.
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 10_000,
}
#: The same for a request with strings that are not UTF-8, unknown tags or other odd values. Reading
#: these takes ten times as long. No client needs more.
ODD_ENTRIES_MAX = 10_000
_CONTAINERS = (dict, list, tuple)
#: Maximum size of a body without client records: `ENTRIES_MAX` entries of a usual size. Only
#: Produce may be larger, up to the frame limit, and it has its own parser.
BODY_SIZE_MAX = 8 << 20
#: APIs with durations and timestamps that kio refuses, because they are below 0 or above its types'
#: limits: those of delegation tokens, and DescribeTransactions. These bodies are read as writers
#: take them: milliseconds under names with the suffix `_parse_ms`.
_PLAIN_TIMES = frozenset({38, 39, 40, 65})
#: The newest version of APIs of which kio lacks it (`newer`).
_NEWER: dict[int, int] = {
    ApiKey.API_VERSIONS: 5,
    ApiKey.TXN_OFFSET_COMMIT: 6,
    ApiKey.DELETE_GROUPS: 3,
    ApiKey.BROKER_HEARTBEAT: 2,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 1,
    ApiKey.STREAMS_GROUP_DESCRIBE: 1,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: 0,
    ApiKey.UNREGISTER_CONTROLLER: 0,
}
_MALFORMED = (SerialError, ValueError, IndexError, OverflowError, _struct.error)


def _get_name(api_key: int) -> str:
    """Return the name of an API as kio spells it."""
    return api_key_map.get(api_key) or ApiKey(api_key).name.lower()


@lru_cache(256)
def find_known_versions(api_key: int) -> range:
    """Return all versions that have a schema; empty for an unknown API."""
    name, newest = api_key_map.get(api_key), _NEWER.get(api_key, -1)
    if name is None:
        return range(newest + 1)
    versions = sorted(schema_name_map[name])
    return range(versions[0], max(versions[-1], newest) + 1)


@cache
def load_entity(api_key: int, version: int, kind: Kind) -> Any:
    """Return the entity class of a request or response."""
    if api_key not in api_key_map or version > max(schema_name_map[api_key_map[api_key]]):
        from shoal.protocol import newer  # Its imports take time, and few requests need them.

        return newer.ENTITIES[api_key, version, kind is EntityType.request]
    load = load_request_schema if kind is EntityType.request else load_response_schema
    return load(api_key, version)


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether the request has a flexible body, so also a header with tagged fields (KIP-482)."""
    return bool(load_entity(api_key, version, EntityType.request).__flexible__)


# Caches on the way of each request have a flag for the kind: the hash of an Enum is Python code.
@cache
def _build_reader(
    api_key: int, version: int, is_request: bool
) -> Callable[[Any, int], tuple[Any, int]]:
    return entity_reader(_load_entity(api_key, version, is_request))


_get_entity_reader = cache(entity_reader)


def _load_entity(api_key: int, version: int, is_request: bool) -> Any:
    return load_entity(api_key, version, EntityType.request if is_request else EntityType.response)


def _read(
    api_key: int, version: int, is_request: bool, buf: Any, at: int, has_foreign_tags: bool
) -> Any:
    """Parse a body of checked lengths into the entity of its version.

    kio's parser is faster than ours, but refuses tags beyond its schema. It also refuses some odd
    values, which ours takes: only the parser can tell these. Raises `WireError` if the bytes do not
    fit the schema.
    """
    try:
        if api_key in _PLAIN_TIMES:
            struct = build_struct(_load_entity(api_key, version, is_request))
            body, _ = compiler.get_reader(struct)(memoryview(buf), at)
            return _as_attributes(body)
        if not has_foreign_tags:
            try:
                return _build_reader(api_key, version, is_request)(buf, at)[0]
            except _MALFORMED:
                pass
        return _read_leniently(api_key, version, is_request, memoryview(buf), at)
    except (WireError, *_MALFORMED) as error:
        kind_of_error = "" if isinstance(error, WireError) else f"{type(error).__name__}: "
        raise WireError(f"{_get_name(api_key)} v{version}: {kind_of_error}{error}") from None


def _read_leniently(api_key: int, version: int, is_request: bool, buf: memoryview, at: int) -> Any:
    """Parse a body that kio does not take: it has tags beyond its schema, which readers ignore
    (KIP-482), strings that are not UTF-8, or truth values other than 0 and 1. Fields of
    `extensions` become attributes of their structs.

    Without such fields it takes ten times as long as kio, so a request may have fewer entries.
    """
    cls = _load_entity(api_key, version, is_request)
    defaults = extensions.get_defaults(api_key)
    if is_request and not defaults:
        _check_odd(api_key, version, buf, at)
    body, _ = compiler.get_reader(build_struct(cls))(buf, at)
    if defaults and _has_non_default(body, defaults):
        return _as_attributes(body)
    if is_request and defaults:
        _check_odd(api_key, version, buf, at)
    return _make_builder(cls)(body)


def _has_non_default(value: Any, defaults: Mapping[str, Any]) -> bool:
    """Whether a field with one of these names has another value than its default, at any depth."""
    if isinstance(value, dict):
        return any(
            (k in defaults and v != defaults[k]) or _has_non_default(v, defaults)
            for k, v in value.items()
        )
    return isinstance(value, list) and any(_has_non_default(v, defaults) for v in value)


def _as_attributes(value: Any) -> Any:
    # Most values are numbers and texts. Without calls for these it takes half the time.
    if isinstance(value, dict):
        nested = {k: _as_attributes(v) for k, v in value.items() if isinstance(v, _CONTAINERS)}
        return types.SimpleNamespace(**(value | nested if nested else value))
    if isinstance(value, _CONTAINERS):
        return [_as_attributes(v) if isinstance(v, _CONTAINERS) else v for v in value]
    return value


def find_max_entries(api_key: int) -> int:
    """Return how many entries all arrays of a request may have together."""
    return _ENTRIES_MAX_OF.get(api_key, ENTRIES_MAX)


def read_request(api_key: int, version: int, buf: Any, at: int = 0) -> Any:
    """Parse a request body of bounded size.

    All arrays together may have `ENTRIES_MAX` entries, in some APIs fewer, and only nullable ones
    may be null. The body is checked before it is parsed: kio allocates memory for as many entries
    as an array claims. Four bytes of a hostile request could otherwise end the process.
    """
    foreign_tags = _check_request(api_key, version, buf, at)
    return _read(api_key, version, True, buf, at, bool(foreign_tags))


def _check_request(api_key: int, version: int, buf: Any, at: int) -> list[int]:
    """Check the size and the lengths of a body. Return its tags beyond Kafka's schema."""
    name = _get_name(api_key)
    if len(buf) - at > BODY_SIZE_MAX:
        raise WireError(f"a {name} request of {len(buf)} bytes")
    try:
        check = _build_length_check(api_key, version, True)
        return check(buf, at, find_max_entries(api_key))[2]
    except WireError as error:
        raise WireError(f"{name} v{version}: {error}") from None


def read_request_in_slices(
    api_key: int, version: int, buf: memoryview, at: int = 0
) -> slices.Slices:
    """Parse a request body like `read_request`, and yield between parts of the work."""
    foreign_tags = _check_request(api_key, version, buf, at)
    yield
    try:
        has_own_tags = not extensions.get_tags(api_key).isdisjoint(foreign_tags)
        if foreign_tags and not has_own_tags:
            _check_odd(api_key, version, buf, at)
            yield
        maker = _ATTRIBUTES
        if api_key not in _PLAIN_TIMES and not has_own_tags:
            maker = _make_entities(api_key, version, buf, at, foreign_tags)
        layout = build_struct(_load_entity(api_key, version, True))
        return (yield from slices.SlicedReader(buf, maker).read(layout, at))
    except (WireError, *_MALFORMED) as error:
        kind_of_error = "" if isinstance(error, WireError) else f"{type(error).__name__}: "
        raise WireError(f"{_get_name(api_key)} v{version}: {kind_of_error}{error}") from None


def _check_odd(api_key: int, version: int, buf: Any, at: int) -> None:
    _build_length_check(api_key, version, True)(buf, at, ODD_ENTRIES_MAX)


def _read_leaf_as_attributes(layout: Struct, buf: memoryview, at: int) -> tuple[Any, int]:
    value, at = compiler.get_reader(layout)(buf, at)
    return _as_attributes(value), at


def _make_attributes(_layout: Struct, values: dict[str, Any], made: Collection[str]) -> Any:
    return types.SimpleNamespace(
        **{name: v if name in made else _as_attributes(v) for name, v in values.items()}
    )


#: A body with times as plain numbers, or with our own tags.
_ATTRIBUTES = slices.Maker(_read_leaf_as_attributes, _make_attributes, list)


def _make_entities(
    api_key: int, version: int, buf: memoryview, at: int, foreign_tags: list[int]
) -> slices.Maker:
    """Return what makes kio's entities. kio reads structs without arrays, as long as it takes
    them."""
    is_odd = bool(foreign_tags)

    def read_leaf(layout: Struct, view: memoryview, place: int) -> tuple[Any, int]:
        nonlocal is_odd
        cls = _classes[id(layout)]
        if not is_odd:
            try:
                value, size = _get_entity_reader(cls)(view, place)
                return value, place + size
            except _MALFORMED:
                _check_odd(api_key, version, buf, at)
                is_odd = True
        body, place = compiler.get_reader(layout)(view, place)
        return _make_builder(cls)(body), place

    def make(layout: Struct, values: dict[str, Any], made: Collection[str]) -> Any:
        return _make_builder(_classes[id(layout)])(values, made)

    return slices.Maker(read_leaf, make, tuple)


@cache
def _build_length_check(api_key: int, version: int, is_request: bool) -> length_check.LengthCheck:
    return length_check.compile_check(build_struct(_load_entity(api_key, version, is_request)))


def read_response(api_key: int, version: int, buf: Any, at: int = 0) -> Any:
    """Parse a response body, whose arrays have no more entries than it has bytes."""
    try:
        check = _build_length_check(api_key, version, False)
        has_foreign_tags = bool(check(buf, at, len(buf) - at)[2])
    except WireError as error:
        name = _get_name(api_key)
        raise WireError(f"{name} v{version}: {error}") from None
    return _read(api_key, version, False, buf, at, has_foreign_tags)


def get_writer(api_key: int, version: int, kind: Kind) -> compiler.Writer:
    """Return the compiled writer of a request or response body."""
    return _build_writer(api_key, version, kind is EntityType.request)


@cache
def _build_writer(api_key: int, version: int, is_request: bool) -> compiler.Writer:
    return compiler.get_writer(build_struct(_load_entity(api_key, version, is_request)))


def write_request(api_key: int, version: int, body: Mapping[str, Any]) -> bytearray:
    """Encode the body of a request."""
    out = bytearray()
    get_writer(api_key, version, EntityType.request)(out, body)
    return out


def write_response(api_key: int, version: int, body: Mapping[str, Any]) -> bytearray:
    """Encode the body of a response."""
    out = bytearray()
    get_writer(api_key, version, EntityType.response)(out, body)
    return out


def prepare(api_key: int, version: int) -> None:
    """Load and compile now what a client's first request of this API would wait for: some
    milliseconds each."""
    is_flexible(api_key, version)
    _build_writer(api_key, version, True)
    _build_length_check(api_key, version, False)
    if api_key not in _PLAIN_TIMES:
        _build_reader(api_key, version, False)


@cache
def build_struct(cls: Any) -> Struct:
    """Return the layout of a kio entity."""
    hints = typing.get_type_hints(cls)
    fields = tuple(_build_field(f, hints[f.name]) for f in dataclasses.fields(cls))
    own = extensions.OWN_FIELDS.get((getattr(cls, "__api_key__", -1), cls.__name__), ())
    layout = Struct(cls.__name__, bool(cls.__flexible__), fields + own)
    _classes[id(layout)] = cls
    return layout


#: kio's entity of each layout.
_classes: dict[int, Any] = {}


def _find_item_type(hint: Any) -> tuple[Any, bool, bool]:
    """Return the type of a field, or of an array's items, whether it is an array, and whether it is
    nullable."""
    array = nullable = False
    while True:
        origin = typing.get_origin(hint)
        if origin in (typing.Union, types.UnionType):
            nullable = True
            hint = next(a for a in typing.get_args(hint) if a is not type(None))
        elif origin is tuple:
            array, hint = True, typing.get_args(hint)[0]
        else:
            return hint, array, nullable


def _build_field(field: dataclasses.Field[Any], hint: Any) -> Field:
    hint, array, nullable = _find_item_type(hint)
    name = field.name
    wire = field.metadata.get("kafka_type")
    kind: str | Struct = build_struct(hint) if wire is None else _DURATIONS.get(wire, wire)
    default = _to_plain(field.default)
    if wire in _DURATIONS:
        name += "_ms"
        if nullable:  # kio's None is -1 on the wire
            nullable, default = False, -1
    if default is dataclasses.MISSING or (default is None and kind == "uuid" and not array):
        default = None if nullable and not array and kind != "uuid" else get_default(kind, array)
    return Field(name, kind, array, nullable, field.metadata.get("tag"), default)


def _to_plain(value: Any) -> Any:
    """Convert kio's default to the form of the writers: mappings, integers, milliseconds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = zip(build_struct(type(value)).fields, dataclasses.fields(value), strict=True)
        return {f.name: _to_plain(getattr(value, g.name)) for f, g in pairs}
    if isinstance(value, datetime.timedelta):
        return to_ms(value)
    if isinstance(value, datetime.datetime):
        return to_timestamp_ms(value)
    return value


@cache
def _make_builder(cls: Any) -> Callable[..., Any]:
    """Return a function that makes kio's entity of a body that `compiler.get_reader` has parsed. A
    second argument names fields that have kio's values already."""
    hints = typing.get_type_hints(cls)
    plans = []
    # The struct's own tags come after kio's fields.
    for field, layout in zip(dataclasses.fields(cls), build_struct(cls).fields, strict=False):
        item_type, array, nullable = _find_item_type(hints[field.name])
        make = _find_converter(field.metadata.get("kafka_type"), item_type, nullable=nullable)
        plans.append((field.name, layout.name, make, array))

    def build(body: Mapping[str, Any], made: Collection[str] = ()) -> Any:
        values = {}
        for name, key, make, array in plans:
            value = body[key]
            if key in made:
                pass
            elif value is not None and array:
                value = tuple(value if make is None else map(make, value))
            elif value is not None and make is not None:
                value = make(value)
            values[name] = value
        return cls(**values)

    return build


def _find_converter(
    wire: str | None, item_type: Any, *, nullable: bool
) -> Callable[[Any], Any] | None:
    """Return the function that makes kio's value of a plain one; None where they are the same."""
    if wire is None:
        return _make_builder(item_type)
    if wire == "error_code":
        return to_error_code
    if wire not in _DURATIONS:
        return None
    make = _to_instant if wire == "datetime_i64" else _to_duration
    return lambda value: None if nullable and value == -1 else make(value)


def _to_duration(milliseconds: int) -> datetime.timedelta:
    """Return kio's duration. One of millions of years becomes the longest that there is."""
    low, high = to_ms(datetime.timedelta.min), to_ms(datetime.timedelta.max)
    return max(low, min(milliseconds, high)) * _MILLISECOND


def _to_instant(milliseconds: int) -> datetime.datetime:
    return _EPOCH + milliseconds * _MILLISECOND


_MILLISECOND = datetime.timedelta(milliseconds=1)


def to_ms(duration: datetime.timedelta) -> int:
    """Return the milliseconds of a duration that kio parsed."""
    return duration // _MILLISECOND


_EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)


def to_timestamp_ms(instant: datetime.datetime | None) -> int:
    """Return the epoch milliseconds of a timestamp that kio parsed; -1 for none."""
    return -1 if instant is None else to_ms(instant - _EPOCH)


def check_names(api_key: int, kind: Kind, body: Mapping[str, Any]) -> None:
    """Raise `KeyError` for a key of `body`, at any depth, that no version of the API has."""
    layouts = [build_struct(load_entity(api_key, v, kind)) for v in find_known_versions(api_key)]
    _check_fields(layouts, body, _get_name(api_key))


def _check_fields(layouts: list[Struct], body: Mapping[str, Any], path: str) -> None:
    for name, value in body.items():
        fields = [f for s in layouts for f in s.fields if f.name == name]
        if not fields:
            raise KeyError(f"no version of {path} has a field {name!r}")
        below = [f.type for f in fields if isinstance(f.type, Struct)]
        if below and value is not None:
            for item in value if fields[0].array else (value,):
                _check_fields(below, item, f"{path}.{name}")
