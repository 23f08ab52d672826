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


class InvalidProtobufSchema(ValueError):
    """A schema that cannot be used."""


class MalformedMessage(ValueError):
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


def _decode_integer(data: bytes) -> int:
    value = 0
    for byte in reversed(data):
        value = value << 7 | byte & 0x7F
    return value & (1 << 64) - 1


def _decode_signed(data: bytes) -> int:
    value = _decode_integer(data)
    return value - (1 << 64) if value >> 63 else value


def _decode_zigzag(data: bytes) -> int:
    value = _decode_integer(data)
    return (value >> 1) ^ -(value & 1)


def _make_unpacker(format: str) -> Callable[[bytes], Any]:
    return lambda data: struct.unpack(format, data)[0]


_SCALARS = {
    "int32": _Scalar(_VARINT, 0, _decode_signed),
    "int64": _Scalar(_VARINT, 0, _decode_signed),
    "uint32": _Scalar(_VARINT, 0, lambda data: _decode_integer(data) & 0xFFFFFFFF),
    "uint64": _Scalar(_VARINT, 0, _decode_integer),
    "sint32": _Scalar(_VARINT, 0, _decode_zigzag),
    "sint64": _Scalar(_VARINT, 0, _decode_zigzag),
    "bool": _Scalar(_VARINT, 0, lambda data: _decode_integer(data) != 0),
    "fixed32": _Scalar(_FIXED32, 4, _make_unpacker("<I")),
    "sfixed32": _Scalar(_FIXED32, 4, _make_unpacker("<i")),
    "float": _Scalar(_FIXED32, 4, _make_unpacker("<f")),
    "fixed64": _Scalar(_FIXED64, 8, _make_unpacker("<Q")),
    "sfixed64": _Scalar(_FIXED64, 8, _make_unpacker("<q")),
    "double": _Scalar(_FIXED64, 8, _make_unpacker("<d")),
}
_TEXTS = ("string", "bytes")
_ENUM = _Scalar(_VARINT, 0, _decode_signed)


class ProtobufSchema:
    """A `.proto` file that reads messages. `references` are the files that it imports."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        """Raises `InvalidProtobufSchema`."""
        types: dict[str, _Message | dict[int, str]] = {}
        _Parser(_WELL_KNOWN, types, "google.protobuf").parse_file()
        for reference in references:
            _Parser(reference, types).parse_file()
        self._messages = _Parser(text, types).parse_file()
        for name, definition in types.items():
            if isinstance(definition, _Message):
                for message_field in definition.fields.values():
                    message_field.target = _resolve(message_field.type, name, types)

    def to_json(self, data: bytes) -> str:
        """Return a message as JSON. Its type comes first, as Confluent's format has it.

        Raises `MalformedMessage`.
        """
        source = _MessageReader(data)
        message = self._choose_message(source)
        return json.dumps(_read_message(source, len(data), message, 0), ensure_ascii=False)

    def _choose_message(self, source: _MessageReader) -> _Message:
        """Read the path of a message: its index, and those of nested messages."""
        count = _decode_zigzag(source.read_varint())
        if not 0 <= count <= DEPTH_MAX:
            raise MalformedMessage(f"the path of a message has {count} numbers")
        path = [_decode_zigzag(source.read_varint()) for _ in range(count)] or [0]
        inside, message = self._messages, None
        for index in path:
            if not 0 <= index < len(inside):
                raise MalformedMessage(f"the schema has no message {path}")
            message = inside[index]
            inside = message.nested
        assert message is not None
        return message


class _MessageReader:
    """The bytes of a message, and where to read next."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = self.values = 0

    def take(self, size: int, end: int) -> bytes:
        if size > end - self.position:
            raise MalformedMessage(
                f"{size} bytes are expected at {self.position}, where the data end"
            )
        self.position += size
        return self.data[self.position - size : self.position]

    def read_varint(self, end: int = -1) -> bytes:
        """Return the bytes of a number."""
        first, last = self.position, len(self.data) if end < 0 else end
        while self.take(1, last)[0] >= 0x80:
            if self.position - first == _VARINT_BYTES_MAX:
                raise MalformedMessage("a number has too many bytes")
        return self.data[first : self.position]

    def count_value(self) -> None:
        self.values += 1
        if self.values > VALUES_MAX:
            raise MalformedMessage(f"there are more than {VALUES_MAX:,} values")


def _read_message(
    source: _MessageReader, end: int, message: _Message, depth: int
) -> dict[str, Any]:
    """Read a message up to `end`."""
    if depth > DEPTH_MAX:
        raise MalformedMessage("the data are too deep")
    values: dict[str, Any] = {}
    while source.position < end:
        source.count_value()
        tag = _decode_integer(source.read_varint(end))
        message_field = message.fields.get(tag >> 3)
        if message_field is None:
            raise MalformedMessage(f"message {message.name} has no field {tag >> 3}")
        if message_field.key_type:
            key, value = _read_entry(source, end, tag & 7, message_field, depth)
            values.setdefault(message_field.name, {})[key] = value
        elif message_field.is_repeated:
            values.setdefault(message_field.name, []).extend(
                _read_values(source, end, tag & 7, message_field, depth)
            )
        else:
            values[message_field.name] = _read_value(source, end, tag & 7, message_field, depth)
    return values


def _read_values(
    source: _MessageReader, end: int, wire: int, message_field: _Field, depth: int
) -> list[Any]:
    """Read one value of a repeated field, or many that are packed."""
    scalar = _find_scalar(message_field)
    if scalar is None or wire != _BYTES:
        return [_read_value(source, end, wire, message_field, depth)]
    last = _read_end(source, end)
    values = []
    while source.position < last:
        source.count_value()
        values.append(_read_value(source, last, scalar.wire, message_field, depth))
    return values


def _read_entry(
    source: _MessageReader, end: int, wire: int, message_field: _Field, depth: int
) -> tuple[str, Any]:
    """Read an entry of a map: a message with the fields 1 and 2."""
    value = _Field("value", message_field.type, target=message_field.target)
    entry_message = _Message(
        message_field.name, {1: _Field("key", message_field.key_type), 2: value}
    )
    entry = _Field(message_field.name, "", target=entry_message)
    parsed = _read_value(source, end, wire, entry, depth)
    key = parsed.get("key", "" if message_field.key_type in _TEXTS else 0)
    return key if isinstance(key, str) else json.dumps(key), parsed.get("value")


def _read_value(
    source: _MessageReader, end: int, wire: int, message_field: _Field, depth: int
) -> Any:
    scalar = _find_scalar(message_field)
    expected = _BYTES if scalar is None else scalar.wire
    if wire != expected:
        raise MalformedMessage(f"field {message_field.name} has wire type {wire}, not {expected}")
    if scalar is not None:
        data = source.take(scalar.size, end) if scalar.size else source.read_varint(end)
        value = scalar.read(data)
        return (
            message_field.target.get(value, value)
            if isinstance(message_field.target, dict)
            else value
        )
    last = _read_end(source, end)
    if isinstance(message_field.target, _Message):
        return _read_message(source, last, message_field.target, depth + 1)
    data = source.take(last - source.position, last)
    if message_field.type == "bytes":
        return base64.b64encode(data).decode()
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MalformedMessage(f"field {message_field.name} is not UTF-8") from None


def _find_scalar(message_field: _Field) -> _Scalar | None:
    """Return how a number is read; None for what has a length."""
    return _ENUM if isinstance(message_field.target, dict) else _SCALARS.get(message_field.type)


def _read_end(source: _MessageReader, end: int) -> int:
    size = _decode_integer(source.read_varint(end))
    if size > end - source.position:
        raise MalformedMessage(
            f"{size} bytes are expected at {source.position}, where the data end"
        )
    return source.position + size


def _resolve(
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
    raise InvalidProtobufSchema(f"it uses {type!r:.100}, which is not defined")


class _Parser:
    """Reads the types of one file into `types`, by their full names."""

    def __init__(
        self, text: str, types: dict[str, _Message | dict[int, str]], package: str = ""
    ) -> None:
        self._tokens = _tokenize(text)
        self._at = 0
        self._types, self._package = types, package

    def parse_file(self) -> list[_Message]:
        """Return the messages of the file in their order. Raises `InvalidProtobufSchema`."""
        messages: list[_Message] = []
        while self._at < len(self._tokens):
            word = self._take_token()
            if word == "package":
                self._package = self._take_token()
                self._expect(";")
            elif word == "message":
                messages.append(self._parse_message(self._package))
            elif word == "enum":
                self._parse_enum(self._package)
            elif word in ("service", "extend"):
                self._skip_block()
            elif word != ";":
                self._skip_statement()
        return messages

    def _parse_message(self, scope: str) -> _Message:
        name = self._parse_name(scope)
        message = _Message(name)
        self._add(name, message)
        self._expect("{")
        self._parse_body(message)
        return message

    def _parse_body(self, message: _Message) -> None:
        """Read up to the end of a message, or of a `oneof` in it."""
        while (word := self._take_token()) != "}":
            if word == "message" and self._peek(1) == "{":
                message.nested.append(self._parse_message(message.name))
            elif word == "enum" and self._peek(1) == "{":
                self._parse_enum(message.name)
            elif word == "oneof" and self._peek(1) == "{":
                self._take_token()
                self._expect("{")
                self._parse_body(message)
            elif word == "extend" and self._peek(1) == "{":
                self._skip_block()
            elif word in ("option", "reserved", "extensions"):
                self._skip_statement()
            elif word != ";":
                self._parse_field(message, word)

    def _parse_field(self, message: _Message, word: str) -> None:
        is_repeated = word == "repeated"
        type = self._take_token() if word in _LABELS else word
        key_type = ""
        if type == "map" and self._peek() == "<":
            self._expect("<")
            key_type = self._take_token()
            self._expect(",")
            type = self._take_token()
            self._expect(">")
        if type == "group":
            raise InvalidProtobufSchema("it has a group")
        name = self._take_token()
        self._expect("=")
        number = self._parse_number()
        if number in message.fields:
            raise InvalidProtobufSchema(f"{message.name} has two fields {number}")
        message.fields[number] = _Field(name, type, is_repeated, key_type)
        self._skip_statement()

    def _parse_enum(self, scope: str) -> None:
        symbols: dict[int, str] = {}
        self._add(self._parse_name(scope), symbols)
        self._expect("{")
        while (word := self._take_token()) != "}":
            if self._peek() == "=":
                self._expect("=")
                symbols.setdefault(self._parse_number(), word)
            if word != ";":
                self._skip_statement()

    def _add(self, name: str, definition: _Message | dict[int, str]) -> None:
        if name in self._types or len(self._types) >= TYPES_MAX:
            raise InvalidProtobufSchema(f"it defines {name!r:.100} twice, or too many types")
        self._types[name] = definition

    def _parse_name(self, scope: str) -> str:
        name = self._take_token()
        return f"{scope}.{name}" if scope else name

    def _parse_number(self) -> int:
        text = self._take_token()
        sign = -1 if text == "-" else 1
        try:
            return sign * int(self._take_token() if text == "-" else text, 0)
        except ValueError:
            raise InvalidProtobufSchema(f"{text!r:.60} is not a number") from None

    def _take_token(self) -> str:
        if self._at >= len(self._tokens):
            raise InvalidProtobufSchema("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self, distance: int = 0) -> str:
        index = self._at + distance
        return self._tokens[index] if index < len(self._tokens) else ""

    def _expect(self, expected: str) -> None:
        if (token := self._take_token()) != expected:
            raise InvalidProtobufSchema(f"{expected!r} is expected, not {token!r:.60}")

    def _skip_statement(self) -> None:
        """Skip up to the `;` that ends a statement, over braces of options."""
        depth = 0
        while (word := self._take_token()) != ";" or depth:
            depth += (word in ("{", "[")) - (word in ("}", "]"))

    def _skip_block(self) -> None:
        while self._take_token() != "{":
            pass
        depth = 1
        while depth:
            word = self._take_token()
            depth += (word == "{") - (word == "}")


def _tokenize(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidProtobufSchema(f"it has {text[position : position + 20]!r}")
        position = match.end()
        if match.lastgroup:
            tokens.append(match[0])
    return tokens
