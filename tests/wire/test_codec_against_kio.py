"""Our writers compared with kio's, for every version of every API: same bytes, readable by kio."""

import datetime
import io
import random
import uuid
from typing import Any, Literal

import pytest
from kio.schema.index import api_key_map
from kio.serial import entity_writer
from kio.static.constants import EntityType
from shoal.protocol import codec
from shoal.protocol.schema import Field, Struct

KINDS = (EntityType.request, EntityType.response)
CASES = [
    (key, version, kind)
    for key in sorted(api_key_map)
    for version in codec.known_versions(key)
    for kind in KINDS
]
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("key", sorted(api_key_map), ids=lambda k: api_key_map[k])
def test_bytes_equal_kios(key: int, kind: Literal[EntityType.request, EntityType.response]) -> None:
    for version in codec.known_versions(key):
        cls = codec.entity(key, version, kind)
        struct = codec.struct_of(cls)
        for seed in range(8):
            rng = random.Random(f"{key}.{version}.{kind}.{seed}")
            body = one(rng, struct)
            out = bytearray()
            codec.writer(key, version, kind)(out, body)
            entity = codec.read(key, version, kind, bytes(out))
            theirs = io.BytesIO()
            entity_writer(cls)(theirs, entity)
            assert bytes(out) == theirs.getvalue(), (version, seed, body)


def test_unknown_key_is_named() -> None:
    with pytest.raises(KeyError, match=r"metadata\.brokers has a field 'hots'"):
        codec.check_names(3, EntityType.response, {"brokers": [{"hots": "a"}]})


def test_milliseconds() -> None:
    assert codec.ms(datetime.timedelta(seconds=1.5)) == 1500
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert codec.timestamp_ms(when) == 1767225600000
