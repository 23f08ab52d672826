"""Reads the bodies of large requests in slices, so that others have a turn between them.

A body of 40,000 entries takes a tenth of a second to read, and the event loop serves nobody else
meanwhile. `SlicedReader` walks such a body by its layout, and yields after so much work as takes a
few milliseconds. A struct without arrays is read at once, by the parser that reads whole bodies of
other requests (`codec`), so both return the same. The caller has checked the lengths in the body.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from shoal.protocol import compiler
from shoal.protocol.compiler import get_uvarint
from shoal.protocol.errors import WireError
from shoal.protocol.schema import Field, Struct

#: Entries of a slice, and the bytes that count as one more. An entry takes some microseconds.
SLICE_ENTRIES, ENTRY_BYTES = 1000, 1024

#: What reads in slices: it yields None after each, and returns the body.
Slices = Generator[None, None, Any]
#: A step of the walk. It returns a value, and the offset after it.
_Step = Generator[None, None, tuple[Any, int]]


def drain(slices: Slices) -> Any:
    """Return what is read, without a break between the slices."""
    try:
        while True:
            next(slices)
    except StopIteration as end:
        return end.value


class Maker(NamedTuple):
    """How a body is made of what was read.

    `read_leaf` reads a struct without arrays: (layout, buffer, offset) to the value and the offset
    after it. `make` makes a struct of its plain values, and of those in the set of names, which
    are made.
    """

    read_leaf: Callable[[Struct, memoryview, int], tuple[Any, int]]
    make: Callable[[Struct, dict[str, Any], set[str]], Any]
    make_array: Callable[[list[Any]], Any]


class SlicedReader:
    """Reads one body, which has `buf` to itself."""

    def __init__(self, buf: memoryview, maker: Maker) -> None:
        self._buf = buf
        self._maker = maker
        self._entries_left = SLICE_ENTRIES

    def read(self, layout: Struct, at: int) -> Slices:
        """Read the struct at an offset. Raises `WireError` if the bytes do not fit the layout."""
        try:
            return (yield from self._read_struct(layout, at))[0]
        except IndexError:
            raise WireError("the message ends early") from None

    def _read_struct(self, layout: Struct, at: int) -> _Step:
        """Read a struct with arrays."""
        values: dict[str, Any] = {}
        made: set[str] = set()
        for run in _group_fields(layout):
            if len(run.fields) > 1 or not _is_cut(run.fields[0]):
                some, at = compiler.get_reader(run, reads_tags=False)(self._buf, at)
                values |= some
            else:
                name = run.fields[0].name
                values[name], at = yield from self._read_cut(run.fields[0], at, layout.flexible)
                made.add(name)
        if layout.flexible:
            at = yield from self._read_tags(layout, at, values, made)
        return self._maker.make(layout, values, made), at

    def _read_tags(
        self, layout: Struct, at: int, values: dict[str, Any], made: set[str]
    ) -> Generator[None, None, int]:
        tagged = {field.tag: field for field in layout.fields if field.tag is not None}
        for field in tagged.values():
            values[field.name] = field.default
        count, at = get_uvarint(self._buf, at)
        for _ in range(count):
            tag, at = get_uvarint(self._buf, at)
            size, at = get_uvarint(self._buf, at)
            end = at + size
            read = tagged.get(tag)
            if read is not None and _is_cut(read):
                values[read.name], _ = yield from self._read_cut(read, at, True)
                made.add(read.name)
            elif read is not None:
                some, _ = compiler.get_reader(_wrap(read, True), reads_tags=False)(self._buf, at)
                values |= some
            at = end
            if self._is_spent(size):
                yield
        return at

    def _read_cut(self, field: Field, at: int, flexible: bool) -> _Step:
        """Read an array, or a struct that has some."""
        kind = field.type
        if not field.array:
            assert isinstance(kind, Struct)
            if field.nullable:
                at += 1
                is_present = self._buf[at - 1]
                if is_present == 0xFF or (field.tag is not None and is_present != 1):
                    return None, at
            return (yield from self._read_struct(kind, at))
        count, at = _read_count(self._buf, at, flexible)
        if count < 0:
            return (None if field.nullable else self._maker.make_array([])), at
        entries: list[Any] = []
        for _ in range(count):
            begin = at
            if not isinstance(kind, Struct):
                entry, at = compiler.get_reader(_wrap_item(field, flexible), reads_tags=False)(
                    self._buf, at
                )
                entries.append(entry["item"])
            elif _has_arrays(kind):
                entry, at = yield from self._read_struct(kind, at)
                entries.append(entry)
            else:
                entry, at = self._maker.read_leaf(kind, self._buf, at)
                entries.append(entry)
            if self._is_spent(at - begin):
                yield
        return self._maker.make_array(entries), at

    def _is_spent(self, size: int) -> bool:
        """Count an entry of that many bytes. Return whether the slice ends with it."""
        self._entries_left -= 1 + size // ENTRY_BYTES
        if self._entries_left > 0:
            return False
        self._entries_left = SLICE_ENTRIES
        return True


def _read_count(buf: memoryview, at: int, flexible: bool) -> tuple[int, int]:
    """Return the length of an array, -1 for null, and the offset after it."""
    if flexible:
        count, at = get_uvarint(buf, at)
        return count - 1, at
    return int.from_bytes(buf[at : at + 4], "big", signed=True), at + 4


def _is_cut(field: Field) -> bool:
    """Whether a field may have many entries."""
    return field.array or (isinstance(field.type, Struct) and _has_arrays(field.type))


# The layouts are those of `codec.build_struct`, which are never dropped.
_by_id: dict[tuple[int, str, bool], Any] = {}


def _has_arrays(layout: Struct) -> bool:
    key = id(layout), "", False
    if key not in _by_id:
        _by_id[key] = any(map(_is_cut, layout.fields)), layout
    return bool(_by_id[key][0])


def _group_fields(layout: Struct) -> list[Struct]:
    """Return the fields without tags: those that are read at once together, others alone."""
    key = id(layout), "", True
    if key not in _by_id:
        runs: list[list[Field]] = []
        for field in layout.fields:
            if field.tag is not None:
                continue
            if runs and not _is_cut(field) and not _is_cut(runs[-1][0]):
                runs[-1].append(field)
            else:
                runs.append([field])
        structs = [Struct(layout.name, layout.flexible, tuple(run)) for run in runs]
        _by_id[key] = structs, layout
    grouped: list[Struct] = _by_id[key][0]
    return grouped


def _wrap(field: Field, flexible: bool) -> Struct:
    """Return the layout of a struct with that field alone."""
    key = id(field), "field", flexible
    if key not in _by_id:
        _by_id[key] = Struct(field.name, flexible, (field,)), field
    struct: Struct = _by_id[key][0]
    return struct


def _wrap_item(field: Field, flexible: bool) -> Struct:
    """Return the layout of a struct with an entry of an array, under the name "item"."""
    key = id(field), "item", flexible
    if key not in _by_id:
        item = Field("item", field.type)
        _by_id[key] = Struct(field.name, flexible, (item,)), field
    struct: Struct = _by_id[key][0]
    return struct
