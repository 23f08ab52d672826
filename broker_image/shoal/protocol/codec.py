"""Codecs of every API: kio's native parser for input, compiled writers for output.

Both follow kio's generated entities and their field names. kio parses durations and timestamps into
`timedelta` and `datetime`. Writers, and readers of `_PLAIN_TIMES`, take plain milliseconds instead,
under the name with the suffix `_ms` (`throttle_time_ms`). The modules of a version are
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
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from shoal.protocol import compiler, length_check
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import WireError
from shoal.protocol.features import KEY_HASH_MAX as KEY_HASH_MAX
from shoal.protocol.features import KEY_HASH_VERSION
from shoal.protocol.schema import Field, Struct, zero

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    ApiKey.OFFSET_COMMIT: 25_000,
    ApiKey.ADD_PARTITIONS_TO_TXN: 25_000,
    ApiKey.TXN_OFFSET_COMMIT: 25_000,
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
#: The same for a request with strings that are not UTF-8, or other odd values. Reading these takes
#: ten times as long. No client needs more.
ODD_ENTRIES_MAX = 10_000
#: Maximum size of a body without client records: `ENTRIES_MAX` entries of a usual size. Only
#: Produce may be larger, up to the frame limit, and it has its own parser.
BODY_SIZE_MAX = 8 << 20
_DELAY = Struct(
    "Delay",
    True,
    (
        Field("first_offset", "int64", default=0),
        Field("last_offset", "int64", default=0),
        Field("delivery_count", "int16", default=0),
        Field("available_timestamp", "int64", default=0),
    ),
)
_DELAYS = (Field("delays", _DELAY, array=True, tag=1000, default=[]),)
#: Tag of the delay of released records (`protocol.share`).
RELEASE_DELAY_TAG = 1000
_RELEASE_DELAY = (Field("release_delay_ms", "int64", tag=RELEASE_DELAY_TAG, default=-1),)
#: Tag of a closed share session whose held records do not count as delivered.
UNDELIVERED_TAG = 1000
_HELD = Struct(
    "HeldOffsets",
    True,
    (
        Field("first_offset", "int64", default=0),
        Field("last_offset", "int64", default=0),
        Field("delivery_count", "int16", default=0),
    ),
)
#: Dead-lettered offsets that hold their keys; in requests, those whose keys are released.
_HELD_OFFSETS = (Field("held_offsets", _HELD, array=True, tag=1000, default=[]),)
_FREED_OFFSETS = (Field("freed_offsets", _HELD, array=True, tag=1000, default=[]),)
#: Progress of a group in the records of a partition whose keys have a hash in a range: all records
#: below the position are finished, and those in `finished` (`record.finished_offsets`).
_KEY_RANGE = Struct(
    "KeyRange",
    True,
    (
        Field("first_hash", "int64", default=0),
        Field("last_hash", "int64", default=0),
        Field("position", "int64", default=0),
        Field("finished", "bytes", default=b""),
        Field("gap_timestamp", "int64", default=-1),
    ),
)
_KEY_RANGES = (Field("key_ranges", _KEY_RANGE, array=True, tag=1000, default=[]),)
#: The answer to a commit of key ranges. All records below the stable offset are finished.
_INDIVIDUAL_COMMIT = Struct(
    "IndividualCommit",
    True,
    (
        Field("stable_offset", "int64", default=-1),
        Field("error_message", "string", nullable=True, default=None),
    ),
)
_COMMITTED = (
    Field("individual_commit", _INDIVIDUAL_COMMIT, nullable=True, tag=1000, default=None),
)
#: Fetch: the records of a partition whose keys have a hash in the range (`record.key_hash`).
_FETCHED_RANGE = Struct(
    "FetchedKeyRange",
    True,
    (Field("first_hash", "int64", default=0), Field("last_hash", "int64", default=0)),
)
#: A partition that members of a consumer group share, and the key ranges of one of them.
_SHARED_PARTITION = Struct(
    "SharedPartition",
    True,
    (
        Field("topic_id", "uuid"),
        Field("partition", "int32", default=0),
        Field("ranges", _FETCHED_RANGE, array=True, default=[]),
    ),
)
_SHARED = Field("key_ranges", _SHARED_PARTITION, array=True, tag=1000, default=[])
#: How many records a member got of key ranges of a partition since its last report.
_KEY_LOAD = Struct(
    "KeyLoad",
    True,
    (
        Field("first_hash", "int64", default=0),
        Field("last_hash", "int64", default=0),
        Field("records", "int64", default=0),
    ),
)
_KEY_LOADS = Struct(
    "KeyLoads",
    True,
    (
        Field("topic_id", "uuid"),
        Field("partition", "int32", default=0),
        Field("loads", _KEY_LOAD, array=True, default=[]),
    ),
)
_IN_FLIGHT = Struct(
    "InFlight",
    True,
    (
        Field("first_offset", "int64", default=0),
        Field("last_offset", "int64", default=0),
        Field("state", "int8", default=0),
        Field("delivery_count", "int16", default=0),
        Field("member_id", "string", default=""),
        Field("time_left_ms", "int64", default=-1),
    ),
)
#: Fields of Shoal's brokers and client beyond Kafka's schemas, by API and struct. Their tags are
#: far above Kafka's, which count up from 0; other readers ignore them. A body without them is read
#: like Kafka's, without these attributes.
OWN_TAGS: dict[tuple[int, str], tuple[Field, ...]] = {
    (1, "FetchPartition"): (
        Field("key_ranges", _FETCHED_RANGE, array=True, tag=1000, default=[]),
        Field("key_hash_version", "int8", tag=1001, default=KEY_HASH_VERSION),
    ),
    # Fetch: the offset from which to read on, as the records may end before it, and the reason of
    # a refusal.
    (1, "PartitionData"): (
        Field("next_offset", "int64", tag=1000, default=-1),
        Field("error_message", "string", tag=1001, default=""),
    ),
    (8, "OffsetCommitRequestPartition"): _KEY_RANGES,
    (8, "OffsetCommitResponsePartition"): _COMMITTED,
    # OffsetFetch: whether the response has key ranges, and the most ranges of a partition.
    (9, "OffsetFetchRequestGroup"): (Field("key_ranges_wanted", "bool", tag=1000, default=False),),
    (9, "OffsetFetchResponseGroup"): (Field("ranges_max", "int32", tag=1000, default=0),),
    (9, "OffsetFetchResponsePartitions"): _KEY_RANGES,
    # TxnOffsetCommit: how long the transaction may wait for its turn, and its first record.
    (28, "TxnOffsetCommitRequest"): (Field("order_timeout_ms", "int32", tag=1000, default=-1),),
    (28, "TxnOffsetCommitRequestPartition"): (
        *_KEY_RANGES,
        Field("first_offset", "int64", tag=1001, default=-1),
    ),
    (28, "TxnOffsetCommitResponsePartition"): _COMMITTED,
    # ConsumerGroupHeartbeat: what a member owns of shared partitions, the version of its hash of
    # keys if it may share some, how many records it got of them, and what it is assigned.
    (68, "ConsumerGroupHeartbeatRequest"): (
        _SHARED,
        Field("key_hash_version", "int8", tag=1001, default=0),
        Field("key_loads", _KEY_LOADS, array=True, tag=1002, default=[]),
    ),
    (68, "Assignment"): (_SHARED,),
    # ConsumerGroupDescribe: whether the response has key ranges.
    (69, "ConsumerGroupDescribeRequest"): (
        Field("key_ranges_wanted", "bool", tag=1000, default=False),
    ),
    (69, "Member"): (_SHARED,),
    # Envelope: 16 bytes that stay the same when the request is retried.
    (58, "EnvelopeRequest"): (Field("request_id", "bytes", tag=1000, default=b""),),
    (84, "PartitionResult"): _DELAYS,  # ReadShareGroupState response
    (85, "PartitionData"): _DELAYS,  # WriteShareGroupState
    (78, "AcknowledgementBatch"): _RELEASE_DELAY,  # ShareFetch request
    (79, "AcknowledgementBatch"): _RELEASE_DELAY,  # ShareAcknowledge request
    (79, "ShareAcknowledgeRequest"): (
        Field("undelivered", "bool", tag=UNDELIVERED_TAG, default=False),
    ),
    (87, "PartitionResult"): _DELAYS,  # ReadShareGroupStateSummary response
    # The offset in each partition from which the records in flight are listed.
    (90, "DescribeShareGroupOffsetsRequestTopic"): (
        Field("in_flight_from", "int64", array=True, tag=1000, default=[]),
    ),
    # `next_offset` is where the next page of records in flight begins, -1 after the last one.
    (90, "DescribeShareGroupOffsetsResponsePartition"): (
        *_HELD_OFFSETS,
        Field("in_flight", _IN_FLIGHT, array=True, tag=1001, default=[]),
        Field("next_offset", "int64", tag=1002, default=-1),
    ),
    (91, "AlterShareGroupOffsetsRequestPartition"): _FREED_OFFSETS,
}
#: APIs with durations and timestamps that kio refuses, because they are below 0 or above its types'
#: limits: those of delegation tokens, and DescribeTransactions. These bodies are read as writers
#: take them: milliseconds under names with the suffix `_ms`.
_PLAIN_TIMES = frozenset({38, 39, 40, 65})
_MALFORMED = (SerialError, ValueError, IndexError, OverflowError, _struct.error)


def known_versions(api_key: int) -> range:
    """Return all versions for which kio has a schema; empty for an unknown API."""
    name = api_key_map.get(api_key)
    if name is None:
        return range(0)
    found = sorted(schema_name_map[name])
    return range(found[0], found[-1] + 1)


@cache
def entity(api_key: int, version: int, kind: Kind) -> Any:
    """Return kio's entity class of a request or response."""
    load = load_request_schema if kind is EntityType.request else load_response_schema
    return load(api_key, version)


@cache
def flexible(api_key: int, version: int) -> bool:
    """Whether the request has a flexible body, so also a header with tagged fields (KIP-482)."""
    return bool(entity(api_key, version, EntityType.request).__flexible__)


# Caches on the way of each request have a flag for the kind: the hash of an Enum is Python code.
@cache
def _reader(api_key: int, version: int, is_request: bool) -> Callable[[Any, int], tuple[Any, int]]:
    return entity_reader(_entity(api_key, version, is_request))


def _entity(api_key: int, version: int, is_request: bool) -> Any:
    return entity(api_key, version, EntityType.request if is_request else EntityType.response)


def read(api_key: int, version: int, kind: Kind, buf: Any, at: int = 0) -> Any:
    """Parse a body into the entity of its version.

    Raises `WireError` if the bytes do not fit the schema.
    """
    try:
        if api_key in _PLAIN_TIMES:
            struct = struct_of(entity(api_key, version, kind))
            body, _ = compiler.reader(struct)(memoryview(buf), at)
            _check_nulls(struct, body)
            return _as_attributes(body)
        is_request = kind is EntityType.request
        try:
            return _reader(api_key, version, is_request)(buf, at)[0]
        except KeyError:  # kio does not have the tag
            pass
        except _MALFORMED:
            if is_request:
                _length_check(api_key, version, True)(buf, at, ODD_ENTRIES_MAX)
        return _read_leniently(api_key, version, kind, memoryview(buf), at)
    except (WireError, *_MALFORMED) as error:
        name = api_key_map.get(api_key, str(api_key))
        kind_of_error = "" if isinstance(error, WireError) else f"{type(error).__name__}: "
        raise WireError(f"{name} v{version}: {kind_of_error}{error}") from None


def _read_leniently(api_key: int, version: int, kind: Kind, buf: memoryview, at: int) -> Any:
    """Parse a body that kio does not take: it has tags beyond its schema, which readers ignore
    (KIP-482), strings that are not UTF-8, or truth values other than 0 and 1. `OWN_TAGS` become
    attributes of their structs.
    """
    cls = entity(api_key, version, kind)
    struct = struct_of(cls)
    body, _ = compiler.reader(struct)(buf, at)
    _check_nulls(struct, body)
    defaults = {
        f.name: f.default for (key, _), fields in OWN_TAGS.items() if key == api_key for f in fields
    }
    return _as_attributes(body) if _has(body, defaults) else _builder(cls)(body)


def _check_nulls(struct: Struct, body: Mapping[str, Any]) -> None:
    """Raise `WireError` for a null string or bytes where the schema has none, as kio does."""
    for field in struct.fields:
        value = body[field.name]
        if isinstance(field.type, Struct):
            for item in (value or ()) if field.array else (value,):
                if item is not None:
                    _check_nulls(field.type, item)
        elif field.type in ("string", "bytes"):
            absent = None in (value or ()) if field.array else value is None and not field.nullable
            if absent:
                raise WireError(f"{field.name} is null")


def _has(value: Any, defaults: Mapping[str, Any]) -> bool:
    """Whether a field with one of these names has another value than its default, at any depth."""
    if isinstance(value, dict):
        return any(
            (k in defaults and v != defaults[k]) or _has(v, defaults) for k, v in value.items()
        )
    return isinstance(value, list) and any(_has(v, defaults) for v in value)


def _as_attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return types.SimpleNamespace(**{k: _as_attributes(v) for k, v in value.items()})
    return [_as_attributes(v) for v in value] if isinstance(value, list | tuple) else value


def largest_count(api_key: int) -> int:
    """Return how many entries all arrays of a request may have together."""
    return _ENTRIES_MAX_OF.get(api_key, ENTRIES_MAX)


def read_request(api_key: int, version: int, buf: Any, at: int = 0) -> Any:
    """Parse a request body of bounded size.

    All arrays together may have `ENTRIES_MAX` entries, in some APIs fewer, and only nullable ones
    may be null. The body is checked before it is parsed: kio allocates memory for as many entries
    as an array claims. Four bytes of a hostile request could otherwise end the process.
    """
    name = api_key_map.get(api_key)
    if len(buf) - at > BODY_SIZE_MAX:
        raise WireError(f"a {name} request of {len(buf)} bytes")
    try:
        _length_check(api_key, version, True)(buf, at, largest_count(api_key))
    except WireError as error:
        raise WireError(f"{name} v{version}: {error}") from None
    return read(api_key, version, EntityType.request, buf, at)


@cache
def _length_check(api_key: int, version: int, is_request: bool) -> length_check.LengthCheck:
    return length_check.compile_check(struct_of(_entity(api_key, version, is_request)))


def read_response(api_key: int, version: int, buf: Any, at: int = 0) -> Any:
    """Parse a response body, whose arrays have no more entries than it has bytes."""
    try:
        _length_check(api_key, version, False)(buf, at, len(buf) - at)
    except WireError as error:
        name = api_key_map.get(api_key)
        raise WireError(f"{name} v{version}: {error}") from None
    return read(api_key, version, EntityType.response, buf, at)


def writer(api_key: int, version: int, kind: Kind) -> compiler.Writer:
    """Return the compiled writer of a request or response body."""
    return _writer(api_key, version, kind is EntityType.request)


@cache
def _writer(api_key: int, version: int, is_request: bool) -> compiler.Writer:
    return compiler.writer(struct_of(_entity(api_key, version, is_request)))


def write_request(api_key: int, version: int, body: Mapping[str, Any]) -> bytearray:
    """Encode the body of a request."""
    out = bytearray()
    writer(api_key, version, EntityType.request)(out, body)
    return out


def write_response(api_key: int, version: int, body: Mapping[str, Any]) -> bytearray:
    """Encode the body of a response."""
    out = bytearray()
    writer(api_key, version, EntityType.response)(out, body)
    return out


@cache
def struct_of(cls: Any) -> Struct:
    """Return the layout of a kio entity."""
    hints = typing.get_type_hints(cls)
    fields = tuple(_field(f, hints[f.name]) for f in dataclasses.fields(cls))
    own = OWN_TAGS.get((getattr(cls, "__api_key__", -1), cls.__name__), ())
    return Struct(cls.__name__, bool(cls.__flexible__), fields + own)


def _item_type(hint: Any) -> tuple[Any, bool, bool]:
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


def _field(field: dataclasses.Field[Any], hint: Any) -> Field:
    hint, array, nullable = _item_type(hint)
    name = field.name
    wire = field.metadata.get("kafka_type")
    kind: str | Struct = struct_of(hint) if wire is None else _DURATIONS.get(wire, wire)
    default = _plain(field.default)
    if wire in _DURATIONS:
        name += "_ms"
        if nullable:  # kio's None is -1 on the wire
            nullable, default = False, -1
    if default is dataclasses.MISSING or (default is None and kind == "uuid"):
        default = None if nullable and not array and kind != "uuid" else zero(kind, array)
    return Field(name, kind, array, nullable, field.metadata.get("tag"), default)


def _plain(value: Any) -> Any:
    """Convert kio's default to the form of the writers: mappings, integers, milliseconds."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = zip(struct_of(type(value)).fields, dataclasses.fields(value), strict=True)
        return {f.name: _plain(getattr(value, g.name)) for f, g in pairs}
    if isinstance(value, datetime.timedelta):
        return ms(value)
    if isinstance(value, datetime.datetime):
        return timestamp_ms(value)
    return value


@cache
def _builder(cls: Any) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that makes kio's entity of a body that `compiler.reader` has parsed."""
    hints = typing.get_type_hints(cls)
    plans = []
    # The struct's own tags come after kio's fields.
    for field, layout in zip(dataclasses.fields(cls), struct_of(cls).fields, strict=False):
        item_type, array, nullable = _item_type(hints[field.name])
        make = _maker(field.metadata.get("kafka_type"), item_type, nullable=nullable)
        plans.append((field.name, layout.name, make, array))

    def build(body: Mapping[str, Any]) -> Any:
        values = {}
        for name, key, make, array in plans:
            value = body[key]
            if value is not None and array:
                value = tuple(value if make is None else map(make, value))
            elif value is not None and make is not None:
                value = make(value)
            values[name] = value
        return cls(**values)

    return build


def _maker(wire: str | None, item_type: Any, *, nullable: bool) -> Callable[[Any], Any] | None:
    """Return the function that makes kio's value of a plain one; None where they are the same."""
    if wire is None:
        return _builder(item_type)
    if wire == "error_code":
        return typing.cast("Callable[[Any], Any]", item_type)
    if wire not in _DURATIONS:
        return None
    make = _instant if wire == "datetime_i64" else _duration
    return lambda value: None if nullable and value == -1 else make(value)


def _duration(milliseconds: int) -> datetime.timedelta:
    """Return kio's duration. One of millions of years becomes the longest that there is."""
    low, high = ms(datetime.timedelta.min), ms(datetime.timedelta.max)
    return max(low, min(milliseconds, high)) * _MILLISECOND


def _instant(milliseconds: int) -> datetime.datetime:
    return _EPOCH + milliseconds * _MILLISECOND


_MILLISECOND = datetime.timedelta(milliseconds=1)


def ms(duration: datetime.timedelta) -> int:
    """Return the milliseconds of a duration that kio parsed."""
    return duration // _MILLISECOND


_EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)


def timestamp_ms(instant: datetime.datetime | None) -> int:
    """Return the epoch milliseconds of a timestamp that kio parsed; -1 for none."""
    return -1 if instant is None else ms(instant - _EPOCH)


def check_names(api_key: int, kind: Kind, body: Mapping[str, Any]) -> None:
    """Raise `KeyError` for a key of `body`, at any depth, that no version of the API has."""
    layouts = [struct_of(entity(api_key, v, kind)) for v in known_versions(api_key)]
    _check(layouts, body, api_key_map[api_key])


def _check(layouts: list[Struct], body: Mapping[str, Any], path: str) -> None:
    for name, value in body.items():
        fields = [f for s in layouts for f in s.fields if f.name == name]
        if not fields:
            raise KeyError(f"no version of {path} has a field {name!r}")
        below = [f.type for f in fields if isinstance(f.type, Struct)]
        if below and value is not None:
            for item in value if fields[0].array else (value,):
                _check(below, item, f"{path}.{name}")
