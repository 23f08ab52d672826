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

    Read = Callable[["_Source"], Any]

#: Values in one datum. An array of nulls has no bytes for its items.
VALUES_MAX = 100_000
#: Bytes and scale of decimals that are shown as numbers.
DECIMAL_BYTES_MAX, DECIMAL_SCALE_MAX = 256, 1_000
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_VARINT_BYTES_MAX = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Units of time in a second.
_UNITS = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}


class InvalidSchema(ValueError):
    """A schema that cannot be used."""


class Malformed(ValueError):
    """Data that their schema does not describe."""


class Schema:
    """A schema that reads data. `references` are the texts of schemas whose names it uses."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        """Raises `InvalidSchema`."""
        names: dict[str, Read] = {}
        try:
            for reference in references:
                _compiled(json.loads(reference), "", names)
            self._read = _compiled(json.loads(text), "", names)
        except RecursionError:
            raise InvalidSchema("the schema is too deep") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidSchema(f"the schema is not one of Avro: {error}") from None

    def json(self, data: bytes) -> str:
        """Return a datum as JSON. Raises `Malformed`."""
        source = _Source(data)
        try:
            value = self._read(source)
            if source.at != len(data):
                raise Malformed(f"{len(data) - source.at} bytes are left")
            return json.dumps(value, ensure_ascii=False)
        except RecursionError:
            raise Malformed("the data are too deep") from None


class _Source:
    """The bytes of a datum, and where to read next."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = self.values = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if not 0 <= size <= len(self.data) - self.at:
            raise Malformed(f"{size} bytes are expected at {self.at}, where the data end")
        found = self.data[self.at : end]
        self.at = end
        return found

    def long(self) -> int:
        result = 0
        for shift in range(_VARINT_BYTES_MAX):
            (byte,) = self.take(1)
            result |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
        raise Malformed("a number has too many bytes")

    def text(self) -> str:
        try:
            return self.take(self.long()).decode()
        except UnicodeDecodeError:
            raise Malformed("a string is not UTF-8") from None

    def boolean(self) -> bool:
        found = self.take(1)
        if found not in (b"\0", b"\1"):
            raise Malformed(f"a boolean is {found[0]}")
        return found == b"\1"

    def count(self, values: int = 1) -> None:
        self.values += values
        if self.values > VALUES_MAX:
            raise Malformed(f"there are more than {VALUES_MAX:,} values")

    def blocks(self, read: Callable[[], None]) -> None:
        """Call `read` for each item of an array or map."""
        while count := self.long():
            if count < 0:
                self.long()  # The size of the block.
                count = -count
            for _ in range(count):
                self.count()
                read()


_READERS: dict[str, Read] = {
    "null": lambda _source: None,
    "boolean": lambda source: source.boolean(),
    "int": lambda source: source.long(),
    "long": lambda source: source.long(),
    "float": lambda source: struct.unpack("<f", source.take(4))[0],
    "double": lambda source: struct.unpack("<d", source.take(8))[0],
    "bytes": lambda source: source.take(source.long()).decode("latin-1"),
    "string": lambda source: source.text(),
}


def _compiled(schema: Any, namespace: str, names: dict[str, Read]) -> Read:
    """Return what reads data of a schema. Named types are added to `names`."""
    if isinstance(schema, list):
        return _union([_compiled(one, namespace, names) for one in schema])
    if isinstance(schema, str):
        return _named(schema, namespace, names)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _compiled(kind, namespace, names)
    if kind == "array":
        return _array(_compiled(schema["items"], namespace, names))
    if kind == "map":
        return _map(_compiled(schema["values"], namespace, names))
    if kind in ("record", "error", "enum", "fixed"):
        return _definition(kind, schema, namespace, names)
    return _logical(schema, _named(kind, namespace, names), is_bytes=kind == "bytes")


def _named(name: str, namespace: str, names: dict[str, Read]) -> Read:
    if name in _PRIMITIVES:
        return _READERS[name]
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    if full not in names and name not in names:
        raise InvalidSchema(f"it uses {name!r:.100}, which is not defined")
    # A type that is being defined refers to itself, so its reader is looked up when it is used.
    key = full if full in names else name
    return lambda source: names[key](source)


def _definition(kind: str, schema: Any, namespace: str, names: dict[str, Read]) -> Read:
    name: str = schema["name"]
    if "." in name:
        namespace = name.rpartition(".")[0]
    else:
        namespace = schema.get("namespace", namespace) or ""
        name = f"{namespace}.{name}" if namespace else name
    if name in names:
        raise InvalidSchema(f"it defines {name!r:.100} twice")
    if kind == "enum":
        names[name] = _enum([str(symbol) for symbol in schema["symbols"]])
    elif kind == "fixed":
        size = int(schema["size"])
        names[name] = _logical(schema, lambda s: s.take(size).decode("latin-1"), is_bytes=True)
    else:
        names[name] = _not_yet
        fields = [
            (str(field["name"]), _compiled(field["type"], namespace, names))
            for field in schema["fields"]
        ]
        names[name] = _record(fields)
    return names[name]


def _not_yet(_source: _Source) -> Any:
    raise AssertionError("a record is read before it is defined")


def _record(fields: list[tuple[str, Read]]) -> Read:
    def read(source: _Source) -> Any:
        source.count(1 + len(fields))
        return {name: field(source) for name, field in fields}

    return read


def _enum(symbols: list[str]) -> Read:
    def read(source: _Source) -> str:
        at = source.long()
        if not 0 <= at < len(symbols):
            raise Malformed(f"an enum has {len(symbols)} symbols, no symbol {at}")
        return symbols[at]

    return read


def _union(branches: list[Read]) -> Read:
    def read(source: _Source) -> Any:
        at = source.long()
        if not 0 <= at < len(branches):
            raise Malformed(f"a union has {len(branches)} types, no type {at}")
        return branches[at](source)

    return read


def _array(items: Read) -> Read:
    def read(source: _Source) -> Any:
        found: list[Any] = []
        source.blocks(lambda: found.append(items(source)))
        return found

    return read


def _map(values: Read) -> Read:
    def read(source: _Source) -> Any:
        found: dict[str, Any] = {}

        def entry() -> None:
            name = source.text()
            found[name] = values(source)

        source.blocks(entry)
        return found

    return read


def _logical(schema: Any, plain: Read, *, is_bytes: bool) -> Read:
    """Return a reader for a logical type; the plain one if it is not known or does not fit."""
    kind = schema.get("logicalType", "")
    if kind == "decimal" and is_bytes:
        scale = int(schema.get("scale", 0))
        if not 0 <= scale <= DECIMAL_SCALE_MAX:
            return plain
        return lambda source: _decimal(plain(source), scale)
    if schema["type"] not in ("int", "long") or not isinstance(kind, str):
        return plain
    name, _, unit = kind.rpartition("-")
    if kind == "date":
        return lambda source: _date(plain(source))
    if name in ("timestamp", "local-timestamp") and unit in _UNITS:
        return lambda source: _timestamp(plain(source), _UNITS[unit], is_utc=name == "timestamp")
    if name == "time" and unit in _UNITS:
        return lambda source: _time(plain(source), _UNITS[unit])
    return plain


def _decimal(text: str, scale: int) -> str:
    if len(text) > DECIMAL_BYTES_MAX:
        return text
    unscaled = int.from_bytes(text.encode("latin-1"), "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    point = len(digits) - scale
    return f"{'-' if unscaled < 0 else ''}{digits[:point]}{'.' if scale else ''}{digits[point:]}"


def _date(days: int) -> str | int:
    try:
        return (date(1970, 1, 1) + timedelta(days)).isoformat()
    except OverflowError:
        return days


def _timestamp(at: int, unit: int, *, is_utc: bool) -> str | int:
    seconds, rest = divmod(at, unit)
    try:
        whole = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError):
        return at
    return f"{whole}.{rest:0{len(str(unit)) - 1}}{'Z' if is_utc else ''}"


def _time(at: int, unit: int) -> str | int:
    seconds, rest = divmod(at, unit)
    if not 0 <= seconds < 86_400:
        return at
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours:02}:{minutes:02}:{seconds % 60:02}.{rest:0{len(str(unit)) - 1}}"
