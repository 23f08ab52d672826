"""Message layouts as data: structs of typed fields, and the versions a field belongs to.

Two sources give a `Struct`: kio's generated entities (every API of the protocol, see `codec`), and
`Message` tables of our own for the records that brokers write into their internal topics, which
kio does not carry. Readers and writers are compiled from a `Struct` by `compiler`.

Layout rules (KIP-482 for the flexible ones): flexible structs use compact lengths (uvarint of
length + 1) and end in tagged fields; others use int16 string and int32 array lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Types of one fixed size, with their `struct` code.
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
#: Types of variable size.
SIZED = ("string", "bytes", "records")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: a type name from `FIXED` or `SIZED`, or a struct; perhaps an array of it."""

    name: str
    type: str | Struct
    array: bool = False
    nullable: bool = False
    tag: int | None = None
    default: Any = None


@dataclass(frozen=True, slots=True)
class Struct:
    """An ordered list of fields as one version of a message lays them out."""

    name: str
    flexible: bool
    fields: tuple[Field, ...]


ALL = range(1 << 15)


def versions(text: str) -> range:
    """The range that Kafka's notation names: `0+`, `3`, `1-2`, `none`."""
    if text == "none":
        return range(0)
    low, sign, high = text.partition("-")
    if sign:
        return range(int(low), int(high) + 1)
    if low.endswith("+"):
        return range(int(low[:-1]), ALL.stop)
    return range(int(low), int(low) + 1)


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a `Message`: where it exists, where it may be null, and where it is tagged.

    `type` is a name as in `Field`, `[]name` for an array, or a tuple of columns for an array of
    structs. `struct` tells that such a tuple is one nested struct and no array.
    """

    name: str
    type: str | tuple[Column, ...]
    versions: str = "0+"
    nullable: str = "none"
    tagged: str = "none"
    tag: int | None = None
    default: Any = None
    struct: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A record layout in all its versions, as Kafka's JSON schemas describe it."""

    name: str
    versions: str
    columns: tuple[Column, ...]
    flexible: str = "none"
    _cache: dict[int, Struct] = field(default_factory=dict, compare=False, repr=False)

    def at(self, version: int) -> Struct:
        """The layout of one version. Raises `ValueError` for one that does not exist."""
        if version not in versions(self.versions):
            raise ValueError(f"{self.name} has no version {version}, only {self.versions}")
        found = self._cache.get(version)
        if found is None:
            flexible = version in versions(self.flexible)
            found = self._cache[version] = _struct(self.name, self.columns, version, flexible)
        return found


def _struct(name: str, columns: tuple[Column, ...], version: int, flexible: bool) -> Struct:
    return Struct(
        name,
        flexible,
        tuple(_field(c, version, flexible) for c in columns if version in versions(c.versions)),
    )


def _field(column: Column, version: int, flexible: bool) -> Field:
    array = not column.struct
    kind: str | Struct
    if isinstance(column.type, tuple):
        kind = _struct(column.name, column.type, version, flexible)
    else:
        array = column.type.startswith("[]")
        kind = column.type.removeprefix("[]")
    tag = column.tag if version in versions(column.tagged) else None
    nullable = version in versions(column.nullable)
    default = column.default
    if default is None and not nullable:
        default = zero(kind, array)
    return Field(column.name, kind, array, nullable, tag, default)


def zero(kind: str | Struct, array: bool) -> Any:
    """What an absent field of that type counts as."""
    if array:
        return ()
    if isinstance(kind, Struct):
        return {f.name: f.default for f in kind.fields}
    if kind in SIZED:
        return "" if kind == "string" else b""
    if kind == "uuid":
        return None
    return False if kind == "bool" else 0
