"""Protobuf messages as JSON: the encodings of the documentation, and hostile data."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from shoal.console.reading.protobuf import (
    VALUES_MAX,
    InvalidProtobufSchema,
    MalformedMessage,
    ProtobufSchema,
)

#: The first message of the file, as Confluent's serializers write its index.
FIRST = b"\0"
ORDER = """
// A comment with message Fake { int32 x = 1; }
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
option java_package = "x;}";
/* message Other {} */
message Order {
  option deprecated = true;
  reserved 100, 200 to max;
  enum State { option allow_alias = true; NEW = 0; PAID = 1 [deprecated = true]; DONE = 1; }
  message Item { string name = 1; repeated sint32 sizes = 2 [packed = true, (x) = {a: "]"}]; }
  string card = 1;
  int32 n = 2;
  State state = 3;
  repeated Item items = 4;
  map<string, Item> by_name = 5;
  oneof how { bytes raw = 6; .shop.v1.Order parent = 7; }
  google.protobuf.Timestamp at = 8;
  double price = 9;
  optional fixed32 hash = 10;
  bool message = 11;
  map<int32, State> states = 12;
}
message Second { Order.Item item = 1; uint64 big = 2; }
service Shop { rpc Get(Order) returns (Order) { option x = {a: 1}; } }
"""


def read(data: bytes, schema: str = ORDER, path: bytes = FIRST, *references: str) -> Any:
    return json.loads(ProtobufSchema(schema, references).to_json(path + data))


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", {}),
        # The examples of the documentation of the encoding.
        (b"\x10\x96\x01", {"n": 150}),
        (b"\x0a\x07testing", {"card": "testing"}),
        (b"\x10\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", {"n": -2}),
        (b"\x18\x01", {"state": "PAID"}),
        (b"\x18\x07", {"state": 7}),
        (b"\x22\x03\x0a\x01a\x22\x03\x0a\x01b", {"items": [{"name": "a"}, {"name": "b"}]}),
        (b"\x22\x04\x12\x02\x01\x02", {"items": [{"sizes": [-1, 1]}]}),
        (b"\x22\x04\x10\x01\x10\x02", {"items": [{"sizes": [-1, 1]}]}),
        (b"\x2a\x08\x0a\x01k\x12\x03\x0a\x01v", {"by_name": {"k": {"name": "v"}}}),
        (b"\x2a\x00", {"by_name": {"": None}}),
        (b"\x32\x02\x00\xff", {"raw": "AP8="}),
        (b"\x3a\x03\x0a\x01x", {"parent": {"card": "x"}}),
        (b"\x42\x04\x08\x01\x10\x02", {"at": {"seconds": 1, "nanos": 2}}),
        (b"\x49\x00\x00\x00\x00\x00\x00\xf8\x3f", {"price": 1.5}),
        (b"\x55\x01\x00\x00\x80", {"hash": 0x80000001}),
        (b"\x58\x01", {"message": True}),
        (b"\x62\x04\x08\x02\x10\x01", {"states": {"2": "PAID"}}),
        (b"\x10\x01\x10\x02", {"n": 2}),
    ],
)
def test_encodings(data: bytes, wanted: Any) -> None:
    assert read(data) == wanted


def test_the_path_of_a_message() -> None:
    big = b"\x10" + b"\xff" * 9 + b"\x01"
    assert read(big, ORDER, b"\x02\x02") == {"big": 2**64 - 1}
    assert read(b"\x0a\x01x", ORDER, b"\x04\x00\x00") == {"name": "x"}
    for path in (b"\x02\x04", b"\x02\x01", b"\x06\x00\x00\x00", b"\x04\x02\x00", b"\xff\xff\x7f"):
        with pytest.raises(MalformedMessage):
            read(b"", ORDER, path)


def test_references() -> None:
    money = 'syntax = "proto3"; package money; message Amount { int64 cents = 1; }'
    bill = 'package shop; import "money.proto"; message Bill { money.Amount amount = 1; }'
    assert read(b"\x0a\x02\x08\x05", bill, FIRST, money) == {"amount": {"cents": 5}}
    with pytest.raises(
        InvalidProtobufSchema, match=r"it uses 'money\.Amount', which is not defined"
    ):
        ProtobufSchema(bill)


@pytest.mark.parametrize(
    "schema",
    [
        "message",
        "message M {",
        "message M { int32 a = x; }",
        "message M { int32 a = 1; int32 b = 1; }",
        "message M {} message M {}",
        "message M { Missing m = 1; }",
        "message M { repeated group G = 1 { } }",
        "message M { int32 a 1; }",
        "message M { map<int32 a> b = 1; }",
        "message M { string s = 1; } \x00",
        'option x = "',
    ],
)
def test_schemas_that_cannot_be_used(schema: str) -> None:
    with pytest.raises(InvalidProtobufSchema):
        ProtobufSchema(schema)


LOOP = "message M { M m = 1; repeated int32 n = 2; repeated M many = 3; }"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x10", "where the data end"),
        (b"\x12\x05\x01", "where the data end"),
        (b"\x12" + b"\xff" * 9 + b"\x01", "where the data end"),
        (b"\x10" + b"\xff" * 11, "too many bytes"),
        (b"\x20\x01", "message M has no field 4"),
        (b"\x08\x01", "field m has wire type 0, not 2"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x1a\x00" * (VALUES_MAX + 1), f"{VALUES_MAX:,} values"),
    ],
)
def test_hostile_data(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        read(data, LOOP)


def test_deep_data() -> None:
    data = b""
    for _ in range(150):
        size = len(data)
        length = bytes([size & 0x7F | 0x80, size >> 7]) if size > 0x7F else bytes([size])
        data = b"\x0a" + length + data
    with pytest.raises(MalformedMessage, match="too deep"):
        read(data, LOOP)


def test_random_bytes_never_fail_otherwise(seed: int) -> None:
    rng = random.Random(seed)
    for schema in (ProtobufSchema(ORDER), ProtobufSchema(LOOP)):
        for _ in range(500):
            try:
                json.loads(schema.to_json(FIRST + rng.randbytes(rng.randrange(30))))
            except MalformedMessage:
                pass
