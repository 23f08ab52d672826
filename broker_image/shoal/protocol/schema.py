"""Message layouts as data: structs of typed fields, and the versions of each field.

A `Struct` comes from one of two sources: kio's generated entities (every API of the protocol, see
`codec`), or `MessageSpec` tables for the records of internal topics, which kio lacks. `compiler`
compiles readers and writers from a `Struct`.

Layout rules (KIP-482): flexible structs use compact lengths (uvarint of length + 1) and end with
tagged fields. Other structs use int16 string lengths and int32 array lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Types of fixed size, with their `struct` code.
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "error_code": "h",
    "uuid": "16s",
}
#: Maximum number of tagged fields of a struct or a header. As in Kafka 4.4, more are refused.
TAGS_MAX = 10_000
#: Types of variable size.
SIZED = ("string", "bytes", "records")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: a type name from `FIXED` or `SIZED`, or a struct; optionally an array of it."""

    name: str
    type: str | Struct
    array: bool = False
    nullable: bool = False
    tag: int | None = None
    default: Any = None


@dataclass(frozen=True, slots=True)
class Struct:
    """The ordered fields of one version of a message."""

    name: str
    flexible: bool
    fields: tuple[Field, ...]


ALL = range(1 << 15)


def parse_versions(text: str) -> range:
    """Parse a range in Kafka's notation: `0+`, `3`, `1-2`, `none`."""
    if text == "none":
        return range(0)
    low, sign, high = text.partition("-")
    if sign:
        return range(int(low), int(high) + 1)
    if low.endswith("+"):
        return range(int(low[:-1]), ALL.stop)
    return range(int(low), int(low) + 1)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A field of a `MessageSpec`, with the versions in which it exists, is nullable, and is tagged.

    `type` is a name as in `Field`, `[]name` for an array, or a tuple of columns for an array of
    structs. With `struct` the tuple is one nested struct instead of an array.
    """

    name: str
    type: str | tuple[FieldSpec, ...]
    versions: str = "0+"
    nullable: str = "none"
    tagged: str = "none"
    tag: int | None = None
    default: Any = None
    struct: bool = False


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """A record layout in all its versions, as in Kafka's JSON schemas."""

    name: str
    versions: str
    columns: tuple[FieldSpec, ...]
    flexible: str = "none"
    _cache: dict[int, Struct] = field(default_factory=dict, compare=False, repr=False)

    def get_struct(self, version: int) -> Struct:
        """Return the layout of one version. Raises `ValueError` if it does not exist."""
        if version not in parse_versions(self.versions):
            raise ValueError(f"{self.name} has no version {version}, only {self.versions}")
        layout = self._cache.get(version)
        if layout is None:
            flexible = version in parse_versions(self.flexible)
            layout = self._cache[version] = _build_struct(
                self.name, self.columns, version, flexible
            )
        return layout


def _build_struct(
    name: str, columns: tuple[FieldSpec, ...], version: int, flexible: bool
) -> Struct:
    return Struct(
        name,
        flexible,
        tuple(
            _build_field(c, version, flexible)
            for c in columns
            if version in parse_versions(c.versions)
        ),
    )


def _build_field(column: FieldSpec, version: int, flexible: bool) -> Field:
    array = not column.struct
    kind: str | Struct
    if isinstance(column.type, tuple):
        kind = _build_struct(column.name, column.type, version, flexible)
    else:
        array = column.type.startswith("[]")
        kind = column.type.removeprefix("[]")
    tag = column.tag if version in parse_versions(column.tagged) else None
    nullable = version in parse_versions(column.nullable)
    default = column.default
    if default is None and not nullable:
        default = get_default(kind, array)
    return Field(column.name, kind, array, nullable, tag, default)


def get_default(kind: str | Struct, array: bool) -> Any:
    """Return the default value of an absent field of that type."""
    if array:
        return ()
    if isinstance(kind, Struct):
        return {f.name: f.default for f in kind.fields}
    if kind in SIZED:
        return "" if kind == "string" else b""
    if kind == "uuid":
        return None
    return False if kind == "bool" else 0
