"""Avro data with their schema, as JSON for readers (Avro 1.12 specification, binary encoding).

Only the writer's schema is used: readers see what was written. Values of unions stand without their
type. Dates, times and decimals of logical types are texts, bytes are a text with a character for
each byte. Data may be hostile: sizes are checked against the data, and items are counted.
"""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Read = Callable[["_DatumReader"], Any]

#: Values in one datum. An array of nulls has no bytes for its items.
VALUES_MAX = 100_000
#: Bytes and scale of decimals that are shown as numbers.
DECIMAL_BYTES_MAX, DECIMAL_SCALE_MAX = 256, 1_000
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_VARINT_BYTES_MAX = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Units of time in a second.
_UNITS = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}


class InvalidAvroSchema(ValueError):
    """A schema that cannot be used."""


class MalformedData(ValueError):
    """Data that their schema does not describe."""


class AvroSchema:
    """A schema that reads data. `references` are the texts of schemas whose names it uses."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        """Raises `InvalidAvroSchema`."""
        names: dict[str, Read] = {}
        try:
            for reference in references:
                _compile(json.loads(reference), "", names)
            self._read = _compile(json.loads(text), "", names)
        except RecursionError:
            raise InvalidAvroSchema("the schema is too deep") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidAvroSchema(f"the schema is not one of Avro: {error}") from None

    def to_json(self, data: bytes) -> str:
        """Return a datum as JSON. Raises `MalformedData`."""
        source = _DatumReader(data)
        try:
            value = self._read(source)
            if source.position != len(data):
                raise MalformedData(f"{len(data) - source.position} bytes are left")
            return json.dumps(value, ensure_ascii=False)
        except RecursionError:
            raise MalformedData("the data are too deep") from None


class _DatumReader:
    """The bytes of a datum, and where to read next."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = self.values = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if not 0 <= size <= len(self.data) - self.position:
            raise MalformedData(f"{size} bytes are expected at {self.position}, where the data end")
        chunk = self.data[self.position : end]
        self.position = end
        return chunk

    def read_long(self) -> int:
        result = 0
        for shift in range(_VARINT_BYTES_MAX):
            (byte,) = self.take(1)
            result |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
        raise MalformedData("a number has too many bytes")

    def read_text(self) -> str:
        try:
            return self.take(self.read_long()).decode()
        except UnicodeDecodeError:
            raise MalformedData("a string is not UTF-8") from None

    def read_boolean(self) -> bool:
        byte = self.take(1)
        if byte not in (b"\0", b"\1"):
            raise MalformedData(f"a boolean is {byte[0]}")
        return byte == b"\1"

    def count_values(self, values: int = 1) -> None:
        self.values += values
        if self.values > VALUES_MAX:
            raise MalformedData(f"there are more than {VALUES_MAX:,} values")

    def read_blocks(self, read: Callable[[], None]) -> None:
        """Call `read` for each item of an array or map."""
        while count := self.read_long():
            if count < 0:
                self.read_long()  # The size of the block.
                count = -count
            for _ in range(count):
                self.count_values()
                read()


_READERS: dict[str, Read] = {
    "null": lambda _source: None,
    "boolean": lambda source: source.read_boolean(),
    "int": lambda source: source.read_long(),
    "long": lambda source: source.read_long(),
    "float": lambda source: struct.unpack("<f", source.take(4))[0],
    "double": lambda source: struct.unpack("<d", source.take(8))[0],
    "bytes": lambda source: source.take(source.read_long()).decode("latin-1"),
    "string": lambda source: source.read_text(),
}


def _compile(schema: Any, namespace: str, names: dict[str, Read]) -> Read:
    """Return what reads data of a schema. Named types are added to `names`."""
    if isinstance(schema, list):
        return _make_union_reader([_compile(branch, namespace, names) for branch in schema])
    if isinstance(schema, str):
        return _find_named(schema, namespace, names)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _compile(kind, namespace, names)
    if kind == "array":
        return _make_array_reader(_compile(schema["items"], namespace, names))
    if kind == "map":
        return _make_map_reader(_compile(schema["values"], namespace, names))
    if kind in ("record", "error", "enum", "fixed"):
        return _define(kind, schema, namespace, names)
    return _make_logical_reader(
        schema, _find_named(kind, namespace, names), is_bytes=kind == "bytes"
    )


def _find_named(name: str, namespace: str, names: dict[str, Read]) -> Read:
    if name in _PRIMITIVES:
        return _READERS[name]
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    if full not in names and name not in names:
        raise InvalidAvroSchema(f"it uses {name!r:.100}, which is not defined")
    # A type that is being defined refers to itself, so its reader is looked up when it is used.
    key = full if full in names else name
    return lambda source: names[key](source)


def _define(kind: str, schema: Any, namespace: str, names: dict[str, Read]) -> Read:
    name: str = schema["name"]
    if "." in name:
        namespace = name.rpartition(".")[0]
    else:
        namespace = schema.get("namespace", namespace) or ""
        name = f"{namespace}.{name}" if namespace else name
    if name in names:
        raise InvalidAvroSchema(f"it defines {name!r:.100} twice")
    if kind == "enum":
        names[name] = _make_enum_reader([str(symbol) for symbol in schema["symbols"]])
    elif kind == "fixed":
        size = int(schema["size"])
        names[name] = _make_logical_reader(
            schema, lambda s: s.take(size).decode("latin-1"), is_bytes=True
        )
    else:
        names[name] = _fail_undefined
        fields = [
            (str(field["name"]), _compile(field["type"], namespace, names))
            for field in schema["fields"]
        ]
        names[name] = _make_record_reader(fields)
    return names[name]


def _fail_undefined(_source: _DatumReader) -> Any:
    raise AssertionError("a record is read before it is defined")


def _make_record_reader(fields: list[tuple[str, Read]]) -> Read:
    def read(source: _DatumReader) -> Any:
        source.count_values(1 + len(fields))
        return {name: field(source) for name, field in fields}

    return read


def _make_enum_reader(symbols: list[str]) -> Read:
    def read(source: _DatumReader) -> str:
        index = source.read_long()
        if not 0 <= index < len(symbols):
            raise MalformedData(f"an enum has {len(symbols)} symbols, no symbol {index}")
        return symbols[index]

    return read


def _make_union_reader(branches: list[Read]) -> Read:
    def read(source: _DatumReader) -> Any:
        index = source.read_long()
        if not 0 <= index < len(branches):
            raise MalformedData(f"a union has {len(branches)} types, no type {index}")
        return branches[index](source)

    return read


def _make_array_reader(items: Read) -> Read:
    def read(source: _DatumReader) -> Any:
        values: list[Any] = []
        source.read_blocks(lambda: values.append(items(source)))
        return values

    return read


def _make_map_reader(values: Read) -> Read:
    def read(source: _DatumReader) -> Any:
        entries: dict[str, Any] = {}

        def read_entry() -> None:
            name = source.read_text()
            entries[name] = values(source)

        source.read_blocks(read_entry)
        return entries

    return read


def _make_logical_reader(schema: Any, plain: Read, *, is_bytes: bool) -> Read:
    """Return a reader for a logical type; the plain one if it is not known or does not fit."""
    kind = schema.get("logicalType", "")
    if kind == "decimal" and is_bytes:
        scale = int(schema.get("scale", 0))
        if not 0 <= scale <= DECIMAL_SCALE_MAX:
            return plain
        return lambda source: _format_decimal(plain(source), scale)
    if schema["type"] not in ("int", "long") or not isinstance(kind, str):
        return plain
    name, _, unit = kind.rpartition("-")
    if kind == "date":
        return lambda source: _format_date(plain(source))
    if name in ("timestamp", "local-timestamp") and unit in _UNITS:
        return lambda source: _format_timestamp(
            plain(source), _UNITS[unit], is_utc=name == "timestamp"
        )
    if name == "time" and unit in _UNITS:
        return lambda source: _format_time(plain(source), _UNITS[unit])
    return plain


def _format_decimal(text: str, scale: int) -> str:
    if len(text) > DECIMAL_BYTES_MAX:
        return text
    unscaled = int.from_bytes(text.encode("latin-1"), "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    point = len(digits) - scale
    return f"{'-' if unscaled < 0 else ''}{digits[:point]}{'.' if scale else ''}{digits[point:]}"


def _format_date(days: int) -> str | int:
    try:
        return (date(1970, 1, 1) + timedelta(days)).isoformat()
    except OverflowError:
        return days


def _format_timestamp(value: int, unit: int, *, is_utc: bool) -> str | int:
    seconds, fraction = divmod(value, unit)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError):
        return value
    return f"{text}.{fraction:0{len(str(unit)) - 1}}{'Z' if is_utc else ''}"


def _format_time(value: int, unit: int) -> str | int:
    seconds, fraction = divmod(value, unit)
    if not 0 <= seconds < 86_400:
        return value
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours:02}:{minutes:02}:{seconds % 60:02}.{fraction:0{len(str(unit)) - 1}}"
