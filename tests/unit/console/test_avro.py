"""Avro data as JSON: the encodings of the specification, other people's encoder, hostile data."""

from __future__ import annotations

import io
import json
import random
import struct
from typing import Any

import fastavro
import pytest
from shoal.console.reading.avro import VALUES_MAX, AvroSchema, InvalidAvroSchema, MalformedData


def long(value: int) -> bytes:
    """Encode an int or a long: zigzag, then seven bits in each byte."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(value: str) -> bytes:
    data = value.encode()
    return long(len(data)) + data


def read(schema: Any, data: bytes) -> Any:
    return json.loads(AvroSchema(json.dumps(schema)).to_json(data))


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


LIST = {
    "type": "record",
    "name": "List",
    "namespace": "a.b",
    "fields": [
        {"name": "value", "type": "long"},
        {"name": "next", "type": ["null", "List"]},
    ],
}


@pytest.mark.parametrize(
    ("schema", "data", "wanted"),
    [
        ("null", b"", None),
        ("boolean", b"\1", True),
        # The table of the specification.
        ("int", b"\x00", 0),
        ("int", b"\x01", -1),
        ("int", b"\x02", 1),
        ("int", b"\x7f", -64),
        ("int", b"\x80\x01", 64),
        ("long", long(-(2**63)), -(2**63)),
        ("long", long(2**63 - 1), 2**63 - 1),
        ("float", struct.pack("<f", 0.5), 0.5),
        ("double", struct.pack("<d", 1e300), 1e300),
        ("string", b"\x06foo", "foo"),
        ("string", text("ü\0"), "ü\0"),
        ("bytes", b"\x04\x00\xff", "\0\xff"),
        ({"type": "string"}, b"\x06foo", "foo"),
        ({"type": {"type": "string"}}, b"\x06foo", "foo"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x02", "B"),
        ({"type": "array", "items": "long"}, b"\x04\x06\x36\x00", [3, 27]),
        # A block with a negative count has its size.
        ({"type": "array", "items": "long"}, b"\x03\x04\x06\x36\x02\x02\x00", [3, 27, 1]),
        ({"type": "map", "values": "int"}, b"\x02\x02a\x02\x00", {"a": 1}),
        (["null", "string"], b"\x02\x02a", "a"),
        (["null", "string"], b"\x00", None),
        (
            LIST,
            long(1) + b"\x02" + long(2) + b"\x00",
            {"value": 1, "next": {"value": 2, "next": None}},
        ),
        (logical("int", "date"), long(20_000), "2024-10-04"),
        (logical("int", "date"), long(2**31 - 1), 2**31 - 1),
        (logical("long", "timestamp-millis"), long(-1), "1969-12-31T23:59:59.999Z"),
        (logical("long", "timestamp-micros"), long(10**15), "2001-09-09T01:46:40.000000Z"),
        (logical("long", "local-timestamp-millis"), long(1), "1970-01-01T00:00:00.001"),
        (logical("long", "timestamp-millis"), long(2**63 - 1), 2**63 - 1),
        (logical("int", "time-millis"), long(3_723_004), "01:02:03.004"),
        (logical("int", "time-millis"), long(-1), -1),
        (logical("bytes", "decimal", scale=2), b"\x04\x04\xd2", "12.34"),
        (logical("bytes", "decimal", scale=2), b"\x02\xff", "-0.01"),
        (logical("bytes", "decimal"), b"\x02\x07", "7"),
        (logical("bytes", "decimal", scale=10**9), b"\x02\x07", "\x07"),
        ({**logical("fixed", "decimal", scale=1), "name": "D", "size": 1}, b"\x0f", "1.5"),
        (logical("string", "uuid"), text("a-b"), "a-b"),
        (logical("long", "unknown"), long(5), 5),
        (logical("string", "timestamp-millis"), text("x"), "x"),
    ],
)
def test_encodings(schema: Any, data: bytes, wanted: Any) -> None:
    assert read(schema, data) == wanted


def test_names_and_references() -> None:
    money = {"type": "record", "name": "x.Money", "fields": [{"name": "n", "type": "int"}]}
    order = {
        "type": "record",
        "name": "Order",
        "namespace": "x",
        "fields": [{"name": "a", "type": "Money"}, {"name": "b", "type": "x.Money"}],
    }
    found = AvroSchema(json.dumps(order), [json.dumps(money)]).to_json(long(1) + long(2))
    assert json.loads(found) == {"a": {"n": 1}, "b": {"n": 2}}
    with pytest.raises(InvalidAvroSchema, match="it uses 'Money', which is not defined"):
        AvroSchema(json.dumps(order))


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        '"none"',
        "7",
        "{}",
        '{"type": "record", "name": "R"}',
        '{"type": "enum", "name": "E"}',
        '{"type": "fixed", "name": "F", "size": "x"}',
        '[{"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "size": 1}]',
        '{"type": "array"}',
        '{"type": "array", "items": ' * 3_000 + '"int"' + "}" * 3_000,
    ],
)
def test_schemas_that_cannot_be_used(schema: str) -> None:
    with pytest.raises(InvalidAvroSchema):
        AvroSchema(schema)


EMPTY = {"type": "record", "name": "E", "fields": []}


def doubling(depth: int) -> Any:
    """A record without bytes, whose number of values doubles with each level."""
    schema: Any = EMPTY
    for level in range(depth):
        name = f"R{level}"
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": schema["name"]}]
        schema = {"type": "record", "name": name, "fields": fields}
    return schema


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("long", b"", "where the data end"),
        ("long", b"\x80" * 11, "too many bytes"),
        ("string", long(2**62) + b"x", "where the data end"),
        ("string", long(-1) + b"x", "where the data end"),
        ("string", b"\x02\xff", "not UTF-8"),
        ("boolean", b"\2", "a boolean is 2"),
        ("int", b"\2\2", "1 bytes are left"),
        (["null"], b"\2", "no type 1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\1", "no symbol -1"),
        ({"type": "array", "items": "null"}, long(2**62), f"{VALUES_MAX:,} values"),
        ({"type": "array", "items": EMPTY}, long(2**62), f"{VALUES_MAX:,} values"),
        (doubling(60), b"", f"{VALUES_MAX:,} values"),
        (LIST, (long(1) + b"\x02") * 50_000, "too deep"),
        ({"type": "fixed", "name": "F", "size": -1}, b"x", "where the data end"),
    ],
)
def test_hostile_data(schema: Any, data: bytes, reason: str) -> None:
    with pytest.raises(MalformedData, match=reason):
        AvroSchema(json.dumps(schema)).to_json(data)


def test_random_bytes_never_fail_otherwise(seed: int) -> None:
    rng = random.Random(seed)
    for schema in (LIST, {"type": "map", "values": ["null", "double", LIST]}, doubling(3)):
        reader = AvroSchema(json.dumps(schema))
        for _ in range(300):
            try:
                json.loads(reader.to_json(rng.randbytes(rng.randrange(40))))
            except MalformedData:
                pass


def test_data_of_another_encoder(seed: int) -> None:
    """Random schemas and data, written by fastavro."""
    rng = random.Random(seed)
    for number in range(2_000):
        schema, value = _drawn(rng, 0, [0])
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
        assert read(schema, buffer.getvalue()) == value, (number, schema)


def _drawn(rng: random.Random, depth: int, names: list[int]) -> tuple[Any, Any]:
    """Return a schema and a value of it."""
    names[0] += 1
    kinds = ["long", "string", "boolean", "double", "enum", "null"]
    kinds += ["record", "array", "map", "union"] if depth < 4 else []
    kind = rng.choice(kinds)
    if kind == "enum":
        return {"type": "enum", "name": f"E{names[0]}", "symbols": ["A", "B"]}, rng.choice("AB")
    if kind == "record":
        name = f"R{names[0]}"
        drawn = [_drawn(rng, depth + 1, names) for _ in range(rng.randrange(4))]
        fields = [{"name": f"f{at}", "type": one} for at, (one, _) in enumerate(drawn)]
        return {"type": "record", "name": name, "fields": fields}, {
            f"f{at}": value for at, (_, value) in enumerate(drawn)
        }
    if kind in ("array", "map"):
        items, value = _drawn(rng, depth + 1, names)
        count = rng.randrange(3)
        if kind == "array":
            return {"type": "array", "items": items}, [value] * count
        return {"type": "map", "values": items}, {f"k{at}": value for at in range(count)}
    if kind == "union":
        return ["null", "string"], rng.choice([None, "x"])
    return kind, {
        "long": rng.randrange(-(2**63), 2**63),
        "string": "".join(rng.choice('aü\n"\\') for _ in range(rng.randrange(5))),
        "boolean": rng.random() < 0.5,
        "double": rng.uniform(-1e9, 1e9),
        "null": None,
    }[kind]
