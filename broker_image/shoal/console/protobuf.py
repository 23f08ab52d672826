"""Protobuf messages with their `.proto` files, as JSON for readers.

Sources: the Protocol Buffers language specification (proto2, proto3, editions) and its encoding.
The reader is strict: a type that is not defined, an unknown field or a group is an error, so that
no data are shown under a name that rules of masking do not know. Bytes are base64, enums are names,
and fields that are absent are left out.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Values in one message, messages inside each other, and types of one schema.
VALUES_MAX, DEPTH_MAX, TYPES_MAX = 100_000, 100, 10_000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<word>[\w.]+)|(?P<sign>[{}\[\]()<>=;,:+\-/])""",
    re.DOTALL | re.ASCII,
)
_LABELS = ("optional", "required", "repeated")
_WELL_KNOWN = """
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message Duration { int64 seconds = 1; int32 nanos = 2; }
message Empty {}
message Any { string type_url = 1; bytes value = 2; }
message FieldMask { repeated string paths = 1; }
message DoubleValue { double value = 1; } message FloatValue { float value = 1; }
message Int64Value { int64 value = 1; } message UInt64Value { uint64 value = 1; }
message Int32Value { int32 value = 1; } message UInt32Value { uint32 value = 1; }
message BoolValue { bool value = 1; } message StringValue { string value = 1; }
message BytesValue { bytes value = 1; }
message Struct { map<string, Value> fields = 1; }
message ListValue { repeated Value values = 1; }
enum NullValue { NULL_VALUE = 0; }
message Value {
  NullValue null_value = 1; double number_value = 2; string string_value = 3;
  bool bool_value = 4; Struct struct_value = 5; ListValue list_value = 6;
}
"""


class InvalidSchema(ValueError):
    """A schema that cannot be used."""


class Malformed(ValueError):
    """Data that their schema does not describe."""


@dataclass(slots=True)
class _Field:
    name: str
    type: str
    is_repeated: bool = False
    key_type: str = ""  # Of a map.
    target: _Message | dict[int, str] | None = None


@dataclass(slots=True)
class _Message:
    name: str
    fields: dict[int, _Field] = field(default_factory=dict)
    nested: list[_Message] = field(default_factory=list)


class _Scalar(NamedTuple):
    wire: int
    size: int
    read: Callable[[bytes], Any]


def _integer(data: bytes) -> int:
    value = 0
    for byte in reversed(data):
        value = value << 7 | byte & 0x7F
    return value & (1 << 64) - 1


def _signed(data: bytes) -> int:
    value = _integer(data)
    return value - (1 << 64) if value >> 63 else value


def _zigzag(data: bytes) -> int:
    value = _integer(data)
    return (value >> 1) ^ -(value & 1)


def _unpack(format: str) -> Callable[[bytes], Any]:
    return lambda data: struct.unpack(format, data)[0]


_SCALARS = {
    "int32": _Scalar(_VARINT, 0, _signed),
    "int64": _Scalar(_VARINT, 0, _signed),
    "uint32": _Scalar(_VARINT, 0, lambda data: _integer(data) & 0xFFFFFFFF),
    "uint64": _Scalar(_VARINT, 0, _integer),
    "sint32": _Scalar(_VARINT, 0, _zigzag),
    "sint64": _Scalar(_VARINT, 0, _zigzag),
    "bool": _Scalar(_VARINT, 0, lambda data: _integer(data) != 0),
    "fixed32": _Scalar(_FIXED32, 4, _unpack("<I")),
    "sfixed32": _Scalar(_FIXED32, 4, _unpack("<i")),
    "float": _Scalar(_FIXED32, 4, _unpack("<f")),
    "fixed64": _Scalar(_FIXED64, 8, _unpack("<Q")),
    "sfixed64": _Scalar(_FIXED64, 8, _unpack("<q")),
    "double": _Scalar(_FIXED64, 8, _unpack("<d")),
}
_TEXTS = ("string", "bytes")
_ENUM = _Scalar(_VARINT, 0, _signed)


class Schema:
    """A `.proto` file that reads messages. `references` are the files that it imports."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        """Raises `InvalidSchema`."""
        types: dict[str, _Message | dict[int, str]] = {}
        _Parser(_WELL_KNOWN, types, "google.protobuf").file()
        for reference in references:
            _Parser(reference, types).file()
        self._messages = _Parser(text, types).file()
        for name, found in types.items():
            if isinstance(found, _Message):
                for one in found.fields.values():
                    one.target = _resolved(one.type, name, types)

    def json(self, data: bytes) -> str:
        """Return a message as JSON. Its type comes first, as Confluent's format has it.

        Raises `Malformed`.
        """
        source = _Source(data)
        message = self._chosen(source)
        return json.dumps(_message(source, len(data), message, 0), ensure_ascii=False)

    def _chosen(self, source: _Source) -> _Message:
        """Read the path of a message: its index, and those of nested messages."""
        count = _zigzag(source.varint())
        if not 0 <= count <= DEPTH_MAX:
            raise Malformed(f"the path of a message has {count} numbers")
        path = [_zigzag(source.varint()) for _ in range(count)] or [0]
        inside, found = self._messages, None
        for at in path:
            if not 0 <= at < len(inside):
                raise Malformed(f"the schema has no message {path}")
            found = inside[at]
            inside = found.nested
        assert found is not None
        return found


class _Source:
    """The bytes of a message, and where to read next."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = self.values = 0

    def take(self, size: int, end: int) -> bytes:
        if size > end - self.at:
            raise Malformed(f"{size} bytes are expected at {self.at}, where the data end")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, end: int = -1) -> bytes:
        """Return the bytes of a number."""
        first, last = self.at, len(self.data) if end < 0 else end
        while self.take(1, last)[0] >= 0x80:
            if self.at - first == _VARINT_BYTES_MAX:
                raise Malformed("a number has too many bytes")
        return self.data[first : self.at]

    def count(self) -> None:
        self.values += 1
        if self.values > VALUES_MAX:
            raise Malformed(f"there are more than {VALUES_MAX:,} values")


def _message(source: _Source, end: int, message: _Message, depth: int) -> dict[str, Any]:
    """Read a message up to `end`."""
    if depth > DEPTH_MAX:
        raise Malformed("the data are too deep")
    found: dict[str, Any] = {}
    while source.at < end:
        source.count()
        tag = _integer(source.varint(end))
        one = message.fields.get(tag >> 3)
        if one is None:
            raise Malformed(f"message {message.name} has no field {tag >> 3}")
        if one.key_type:
            key, value = _entry(source, end, tag & 7, one, depth)
            found.setdefault(one.name, {})[key] = value
        elif one.is_repeated:
            found.setdefault(one.name, []).extend(_values(source, end, tag & 7, one, depth))
        else:
            found[one.name] = _value(source, end, tag & 7, one, depth)
    return found


def _values(source: _Source, end: int, wire: int, one: _Field, depth: int) -> list[Any]:
    """Read one value of a repeated field, or many that are packed."""
    scalar = _scalar(one)
    if scalar is None or wire != _BYTES:
        return [_value(source, end, wire, one, depth)]
    last = _end(source, end)
    found = []
    while source.at < last:
        source.count()
        found.append(_value(source, last, scalar.wire, one, depth))
    return found


def _entry(source: _Source, end: int, wire: int, one: _Field, depth: int) -> tuple[str, Any]:
    """Read an entry of a map: a message with the fields 1 and 2."""
    value = _Field("value", one.type, target=one.target)
    both = _Message(one.name, {1: _Field("key", one.key_type), 2: value})
    entry = _Field(one.name, "", target=both)
    found = _value(source, end, wire, entry, depth)
    key = found.get("key", "" if one.key_type in _TEXTS else 0)
    return key if isinstance(key, str) else json.dumps(key), found.get("value")


def _value(source: _Source, end: int, wire: int, one: _Field, depth: int) -> Any:
    scalar = _scalar(one)
    wanted = _BYTES if scalar is None else scalar.wire
    if wire != wanted:
        raise Malformed(f"field {one.name} has wire type {wire}, not {wanted}")
    if scalar is not None:
        data = source.take(scalar.size, end) if scalar.size else source.varint(end)
        value = scalar.read(data)
        return one.target.get(value, value) if isinstance(one.target, dict) else value
    last = _end(source, end)
    if isinstance(one.target, _Message):
        return _message(source, last, one.target, depth + 1)
    data = source.take(last - source.at, last)
    if one.type == "bytes":
        return base64.b64encode(data).decode()
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed(f"field {one.name} is not UTF-8") from None


def _scalar(one: _Field) -> _Scalar | None:
    """Return how a number is read; None for what has a length."""
    return _ENUM if isinstance(one.target, dict) else _SCALARS.get(one.type)


def _end(source: _Source, end: int) -> int:
    size = _integer(source.varint(end))
    if size > end - source.at:
        raise Malformed(f"{size} bytes are expected at {source.at}, where the data end")
    return source.at + size


def _resolved(
    type: str, scope: str, types: dict[str, _Message | dict[int, str]]
) -> _Message | dict[int, str] | None:
    """Return the type that a name means inside a message; None for those of the language."""
    if type in _SCALARS or type in _TEXTS:
        return None
    if type.startswith("."):
        candidates = [type[1:]]
    else:
        parts = scope.split(".")
        candidates = [".".join([*parts[:n], type]) for n in range(len(parts), -1, -1)]
    for name in candidates:
        if name in types:
            return types[name]
    raise InvalidSchema(f"it uses {type!r:.100}, which is not defined")


class _Parser:
    """Reads the types of one file into `types`, by their full names."""

    def __init__(
        self, text: str, types: dict[str, _Message | dict[int, str]], package: str = ""
    ) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._types, self._package = types, package

    def file(self) -> list[_Message]:
        """Return the messages of the file in their order. Raises `InvalidSchema`."""
        found: list[_Message] = []
        while self._at < len(self._tokens):
            word = self._next()
            if word == "package":
                self._package = self._next()
                self._expect(";")
            elif word == "message":
                found.append(self._message(self._package))
            elif word == "enum":
                self._enum(self._package)
            elif word in ("service", "extend"):
                self._skip_block()
            elif word != ";":
                self._skip_statement()
        return found

    def _message(self, scope: str) -> _Message:
        name = self._name(scope)
        message = _Message(name)
        self._add(name, message)
        self._expect("{")
        self._body(message)
        return message

    def _body(self, message: _Message) -> None:
        """Read up to the end of a message, or of a `oneof` in it."""
        while (word := self._next()) != "}":
            if word == "message" and self._peek(1) == "{":
                message.nested.append(self._message(message.name))
            elif word == "enum" and self._peek(1) == "{":
                self._enum(message.name)
            elif word == "oneof" and self._peek(1) == "{":
                self._next()
                self._expect("{")
                self._body(message)
            elif word == "extend" and self._peek(1) == "{":
                self._skip_block()
            elif word in ("option", "reserved", "extensions"):
                self._skip_statement()
            elif word != ";":
                self._field(message, word)

    def _field(self, message: _Message, word: str) -> None:
        is_repeated = word == "repeated"
        type = self._next() if word in _LABELS else word
        key_type = ""
        if type == "map" and self._peek() == "<":
            self._expect("<")
            key_type = self._next()
            self._expect(",")
            type = self._next()
            self._expect(">")
        if type == "group":
            raise InvalidSchema("it has a group")
        name = self._next()
        self._expect("=")
        number = self._number()
        if number in message.fields:
            raise InvalidSchema(f"{message.name} has two fields {number}")
        message.fields[number] = _Field(name, type, is_repeated, key_type)
        self._skip_statement()

    def _enum(self, scope: str) -> None:
        symbols: dict[int, str] = {}
        self._add(self._name(scope), symbols)
        self._expect("{")
        while (word := self._next()) != "}":
            if self._peek() == "=":
                self._expect("=")
                symbols.setdefault(self._number(), word)
            if word != ";":
                self._skip_statement()

    def _add(self, name: str, found: _Message | dict[int, str]) -> None:
        if name in self._types or len(self._types) >= TYPES_MAX:
            raise InvalidSchema(f"it defines {name!r:.100} twice, or too many types")
        self._types[name] = found

    def _name(self, scope: str) -> str:
        name = self._next()
        return f"{scope}.{name}" if scope else name

    def _number(self) -> int:
        text = self._next()
        sign = -1 if text == "-" else 1
        try:
            return sign * int(self._next() if text == "-" else text, 0)
        except ValueError:
            raise InvalidSchema(f"{text!r:.60} is not a number") from None

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise InvalidSchema("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _expect(self, wanted: str) -> None:
        if (found := self._next()) != wanted:
            raise InvalidSchema(f"{wanted!r} is expected, not {found!r:.60}")

    def _skip_statement(self) -> None:
        """Skip up to the `;` that ends a statement, over braces of options."""
        depth = 0
        while (word := self._next()) != ";" or depth:
            depth += (word in ("{", "[")) - (word in ("}", "]"))

    def _skip_block(self) -> None:
        while self._next() != "{":
            pass
        depth = 1
        while depth:
            word = self._next()
            depth += (word == "{") - (word == "}")


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidSchema(f"it has {text[at : at + 20]!r}")
        at = match.end()
        if match.lastgroup:
            found.append(match[0])
    return found
