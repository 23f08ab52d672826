"""Our writers compared with kio's, for every version of every API: same bytes, readable by kio."""

import datetime
import io
import random
import uuid
from typing import Any, Literal

import pytest
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from shoal.protocol import codec
from shoal.protocol.schema import Field, Struct
from support.runs.example_counts import scale_examples

KINDS = (EntityType.request, EntityType.response)
CASES = [
    (key, version, kind)
    for key in sorted(api_key_map)
    for version in codec.find_known_versions(key)
    for kind in KINDS
]
#: APIs of delegation tokens, whose times are plain numbers.
WITHOUT_TIMES = (38, 39, 40, 65)
LIMITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 40}


def scalar(rng: random.Random, kind: str) -> object:
    match kind:
        case "bool":
            return rng.random() < 0.5
        case "string":
            return rng.choice(["", "topic", "naïve", "x" * 200])
        case "bytes" | "records":
            return rng.randbytes(rng.choice([0, 1, 130]))
        case "uuid":
            return uuid.UUID(int=rng.getrandbits(128) | 1)
        case "float64":
            return rng.random()
        case "error_code":
            return rng.randrange(0, 100)
    return rng.getrandbits(LIMITS[kind])


def value(rng: random.Random, field: Field) -> object:
    if field.nullable and field.type != "uuid" and rng.random() < 0.2:
        return None
    if field.array:
        return tuple(one(rng, field.type) for _ in range(rng.choice([0, 1, 3])))
    return one(rng, field.type)


def one(rng: random.Random, kind: str | Struct) -> Any:
    if isinstance(kind, Struct):
        # kio does not have our own tags: see test_own_tags.
        return {f.name: value(rng, f) for f in kind.fields if (f.tag or 0) < 1000}
    return scalar(rng, kind)


def read(key: int, version: int, kind: codec.Kind, data: bytes | bytearray) -> Any:
    is_request = kind is EntityType.request
    return (codec.read_request if is_request else codec.read_response)(key, version, bytes(data))


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("key", sorted(api_key_map), ids=lambda k: api_key_map[k])
def test_bytes_equal_kios(
    key: int, kind: Literal[EntityType.request, EntityType.response], seed: int
) -> None:
    for version in codec.find_known_versions(key):
        cls = codec.load_entity(key, version, kind)
        struct = codec.build_struct(cls)
        for number in range(scale_examples(3)):
            rng = random.Random(f"{seed}.{key}.{version}.{kind}.{number}")
            body = one(rng, struct)
            out = bytearray()
            codec.get_writer(key, version, kind)(out, body)
            entity = entity_reader(cls)(bytes(out), 0)[0]
            theirs = io.BytesIO()
            entity_writer(cls)(theirs, entity)
            assert bytes(out) == theirs.getvalue(), (version, number, body)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("key", sorted(set(api_key_map) - set(WITHOUT_TIMES)))
def test_what_kio_refuses_is_read_as_kio_would(
    key: int, kind: Literal[EntityType.request, EntityType.response], seed: int
) -> None:
    """A string that is not UTF-8 does not change the other fields, nor their types."""
    for version in codec.find_known_versions(key):
        cls = codec.load_entity(key, version, kind)
        struct = codec.build_struct(cls)
        rng = random.Random(f"{seed}.{key}.{version}.{kind}")
        out = bytearray()
        codec.get_writer(key, version, kind)(out, one(rng, struct))
        entity, _ = entity_reader(cls)(bytes(out), 0)
        damaged = bytes(out).replace(b"topic", b"topi\xe9")
        found = read(key, version, kind, damaged)
        assert repr(found) == repr(entity).replace("'topic'", "'topi\ufffd'")
        assert read(key, version, kind, bytes(out)) == entity


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("key", sorted(api_key_map), ids=lambda k: api_key_map[k])
def test_bodies_are_read_as_kio_reads_them(
    key: int, kind: Literal[EntityType.request, EntityType.response]
) -> None:
    for version in codec.find_known_versions(key):
        cls = codec.load_entity(key, version, kind)
        body = one(random.Random(f"{key}.{version}.{kind}"), codec.build_struct(cls))
        out = bytearray()
        codec.get_writer(key, version, kind)(out, body)
        found = read(key, version, kind, bytes(out))
        if key in WITHOUT_TIMES:
            again = bytearray()
            codec.get_writer(key, version, kind)(again, _mapping(found))
            assert again == out
        else:
            assert found == entity_reader(cls)(bytes(out), 0)[0]


def _mapping(value: Any) -> Any:
    if isinstance(value, list):
        return [_mapping(item) for item in value]
    return {k: _mapping(v) for k, v in vars(value).items()} if hasattr(value, "__dict__") else value


@pytest.mark.parametrize("time_ms", [-1, 0, -(1 << 63), (1 << 63) - 1])
def test_times_of_delegation_tokens_have_64_bits(time_ms: int) -> None:
    """kio refuses the -1 with which Kafka answers an error, and durations of centuries."""
    cases: tuple[tuple[int, dict[str, int], codec.Kind], ...] = (
        (38, {"max_lifetime_ms": time_ms}, EntityType.request),
        (39, {"renew_period_ms": time_ms}, EntityType.request),
        (40, {"expiry_time_period_ms": time_ms}, EntityType.request),
        (38, {"issue_timestamp_ms": time_ms, "max_timestamp_ms": time_ms}, EntityType.response),
        (39, {"expiry_timestamp_ms": time_ms}, EntityType.response),
        (40, {"expiry_timestamp_ms": time_ms}, EntityType.response),
    )
    for key, fields, kind in cases:
        for version in codec.find_known_versions(key):
            out = bytearray()
            codec.get_writer(key, version, kind)(out, fields)
            found = read(key, version, kind, out)
            assert {name: getattr(found, name) for name in fields} == fields


def test_unknown_key_is_named() -> None:
    with pytest.raises(KeyError, match=r"metadata\.brokers has a field 'hots'"):
        codec.check_names(3, EntityType.response, {"brokers": [{"hots": "a"}]})


def test_milliseconds() -> None:
    assert codec.to_ms(datetime.timedelta(seconds=1.5)) == 1500
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert codec.to_timestamp_ms(when) == 1767225600000
