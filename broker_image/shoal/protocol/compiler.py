"""Readers and writers compiled from a `Struct`: one Python function for each struct.

A writer takes a `bytearray` and a mapping. It writes the default of a field that the mapping lacks
and ignores keys that this version lacks. So one mapping serves every version of a message. A reader
takes a buffer and an offset and returns a dict and the offset after it. Adjacent fields of fixed
size share one `struct` call.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.protocol.schema import FIXED, Field, Struct
from shoal.protocol.text import decode

Writer = Callable[[bytearray, Mapping[str, Any]], None]
Reader = Callable[[memoryview, int], tuple[dict[str, Any], int]]

# Caches by identity, since defaults may be unhashable. They keep the struct so that its id stays
# unique.
_writers: dict[int, tuple[Writer, Struct]] = {}
_readers: dict[tuple[int, bool], tuple[Reader, Struct]] = {}
_writers_around: dict[tuple[int, str], tuple[tuple[Writer, Writer], Struct]] = {}
NO_UUID = bytes(16)
_IDS_MAX = 4096
#: The longest string in bytes. Kafka refuses longer ones in flexible messages, too.
STRING_SIZE_MAX = 2**15 - 1


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint (seven bits per byte, low bits first)."""
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def get_uvarint(buf: memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned varint of at most five bytes at `at`, and the offset after it."""
    byte = buf[at]
    if byte < 0x80:
        return byte, at + 1
    value = shift = 0
    while shift < 35:
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError("a varint of more than five bytes")


#: Minimum size of record data that is passed by reference. Below it a copy is cheaper.
GATHER_SIZE_MIN = 4096


class ScatterBuffer(bytearray):
    """A writer's output that holds record data by reference: the buffers of one response.

    Only the server uses it, so that fetched batches go from the log to the socket without a copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cut: list[bytes | bytearray | memoryview] = []

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Append `data` without copying it; it must not change afterwards."""
        self._cut.append(bytes(self))
        self._cut.append(data)
        self.clear()

    def get_parts(self) -> list[bytes | bytearray | memoryview]:
        """Return all output in order."""
        return [*self._cut, self] if self or not self._cut else self._cut


def _put_records(out: bytearray, data: Any, compact: bool) -> None:
    if data is None or len(data) < GATHER_SIZE_MIN or not isinstance(out, ScatterBuffer):
        _put_sized(out, data, compact, False)
    else:
        if compact:
            put_uvarint(out, len(data) + 1)
        else:
            out += len(data).to_bytes(4, "big")
        out.add(data)


def _put_sized(out: bytearray, value: Any, compact: bool, short: bool) -> None:
    if isinstance(value, str):
        value = value.encode()
    if value is None:
        out += b"\x00" if compact else (b"\xff\xff" if short else b"\xff\xff\xff\xff")
        return
    size = len(value)
    if compact:
        if size < 0x7F:
            out.append(size + 1)
        else:
            put_uvarint(out, size + 1)
    elif short and size > STRING_SIZE_MAX:
        # The replacements of bytes that are not UTF-8 take three bytes each (`text`).
        raise ApiError(
            ErrorCode.unknown_server_error,
            f"A string has {size} bytes. It may have {STRING_SIZE_MAX}.",
        )
    else:
        out += size.to_bytes(2 if short else 4, "big")
    out += value


def _to_uuid_bytes(value: UUID | None) -> bytes:
    return NO_UUID if value is None else value.bytes


@lru_cache(_IDS_MAX)
def find_uuid(value: bytes) -> UUID:
    """Return the UUID of 16 bytes, the same object for recent ones: ids of topics come with every
    request, and a table need not compare an object with itself."""
    return UUID(bytes=value)


def parse_uuid(value: bytes) -> UUID | None:
    """Return the UUID of 16 bytes; None for zeros."""
    return None if value == NO_UUID else find_uuid(value)


class FunctionSource:
    """The source of one function during compilation, and the objects that it refers to."""

    def __init__(self, head: str) -> None:
        self.lines = [head]
        self.names: dict[str, Any] = {
            "put_uvarint": put_uvarint,
            "get_uvarint": get_uvarint,
            "put_sized": _put_sized,
            "put_records": _put_records,
            "from_bytes": int.from_bytes,
            "uuid_bytes": _to_uuid_bytes,
            "uuid": parse_uuid,
            "decode": decode,
            "WireError": WireError,
        }

    def add_constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def add(self, line: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + line)

    def build_function(self) -> Any:
        exec("\n".join(self.lines), self.names)
        return self.names["f"]


def get_writer(struct: Struct) -> Writer:
    """Return the writer of `struct`, compiled once."""
    entry = _writers.get(id(struct))
    if entry is None:
        entry = (_compile_writer(struct), struct)
        _writers[id(struct)] = entry
    return entry[0]


def get_reader(struct: Struct, *, reads_tags: bool = True) -> Reader:
    """Return the reader of `struct`, compiled once. It raises `WireError` on invalid bytes. With
    `reads_tags` false, it ends before the tagged fields."""
    entry = _readers.get((id(struct), reads_tags))
    if entry is None:
        entry = (_compile_reader(struct, reads_tags), struct)
        _readers[id(struct), reads_tags] = entry
    return entry[0]


def group_fixed_runs(fields: list[Field]) -> list[list[Field]]:
    """Group adjacent scalars of fixed size; every other field stays alone."""
    runs: list[list[Field]] = []
    for field in fields:
        if runs and is_fixed(field) and is_fixed(runs[-1][0]):
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def is_fixed(field: Field) -> bool:
    return isinstance(field.type, str) and field.type in FIXED and not field.array


def get_writers_around(struct: Struct, name: str) -> tuple[Writer, Writer]:
    """Return the writers of the fields before the array of that name, and of those after it."""
    entry = _writers_around.get((id(struct), name))
    if entry is None:
        plain = [f for f in struct.fields if f.tag is None]
        at = [f.name for f in plain].index(name)
        before = _compile_fields(plain[:at], struct.flexible).build_function()
        entry = ((before, _compile_end(plain[at + 1 :], struct)), struct)
        _writers_around[id(struct), name] = entry
    return entry[0]


def put_count(out: bytearray, entries: Sequence[Any] | None, flexible: bool) -> None:
    """Write the number of entries of an array."""
    count = -1 if entries is None else len(entries)
    if flexible:
        put_uvarint(out, count + 1)
    else:
        out += count.to_bytes(4, "big", signed=True)


def _compile_writer(struct: Struct) -> Writer:
    return _compile_end([f for f in struct.fields if f.tag is None], struct)


def _compile_end(plain: list[Field], struct: Struct) -> Writer:
    """Compile the writer of the last fields of a struct, and of its tagged ones."""
    src = _compile_fields(plain, struct.flexible)
    if struct.flexible:
        _write_tagged(src, [f for f in struct.fields if f.tag is not None])
    return src.build_function()


def _compile_fields(plain: list[Field], flexible: bool) -> FunctionSource:
    src = FunctionSource("def f(out, v):")
    src.add("get = v.get")
    for run in group_fixed_runs(plain):
        if is_fixed(run[0]):
            pack = src.add_constant(
                _struct.Struct(">" + "".join(FIXED[str(f.type)] for f in run)).pack
            )
            args = ", ".join(_format_scalar(src, f) for f in run)
            src.add(f"out += {pack}({args})")
        else:
            default = src.add_constant(run[0].default)
            src.add(f"x = get({run[0].name!r}, {default})")
            _write_value(src, run[0], flexible, 1)
    return src


def _format_scalar(src: FunctionSource, field: Field) -> str:
    value = f"get({field.name!r}, {src.add_constant(field.default)})"
    return f"uuid_bytes({value})" if field.type == "uuid" else value


def _write_value(src: FunctionSource, field: Field, flexible: bool, depth: int) -> None:
    """Generate code that writes `x`, a value of the field's type."""
    if field.array:
        _write_count(src, flexible, depth)
        loop = "for x in x or ():"
        if isinstance(field.type, Struct):
            src.add(f"w = {src.add_constant(get_writer(field.type))}", depth)
            src.add(loop, depth)
            src.add("w(out, x)", depth + 1)
        else:
            src.add(loop, depth)
            _write_one(src, str(field.type), flexible, depth + 1)
    elif isinstance(field.type, Struct):
        call = f"{src.add_constant(get_writer(field.type))}(out, x)"
        if field.nullable:
            # Kafka writes null as -1; in a tag, where lengths are unsigned, as 0.
            src.add(f"if x is None: out.append({255 if field.tag is None else 0})", depth)
            src.add(f"else: out.append(1); {call}", depth)
        else:
            src.add(call, depth)
    else:
        _write_one(src, str(field.type), flexible, depth)


def _write_count(src: FunctionSource, flexible: bool, depth: int) -> None:
    """Generate code that writes the number of entries of `x`. Most have one byte."""
    if flexible:
        src.add("n = 0 if x is None else len(x) + 1", depth)
        src.add("if n <= 0x7F: out.append(n)", depth)
        src.add("else: put_uvarint(out, n)", depth)
    else:
        pack = src.add_constant(_struct.Struct(">i").pack)
        src.add(f"out += {pack}(-1 if x is None else len(x))", depth)


def _write_one(src: FunctionSource, kind: str, flexible: bool, depth: int) -> None:
    if kind in FIXED:
        pack = src.add_constant(_struct.Struct(">" + FIXED[kind]).pack)
        src.add(f"out += {pack}({'uuid_bytes(x)' if kind == 'uuid' else 'x'})", depth)
    elif kind == "records":
        src.add(f"put_records(out, x, {flexible})", depth)
    else:
        src.add(f"put_sized(out, x, {flexible}, {kind == 'string'})", depth)


def _write_tagged(src: FunctionSource, tagged: list[Field]) -> None:
    if not tagged:
        src.add("out.append(0)")
        return
    src.add("tags = []; body = out")
    for field in sorted(tagged, key=lambda f: f.tag or 0):
        default = src.add_constant(field.default)
        src.add(f"x = get({field.name!r}, {default})")
        src.add(f"if x != {default}:")
        src.add("out = bytearray()", 2)
        _write_value(src, field, True, 2)
        src.add(f"tags.append(({field.tag}, out))", 2)
    src.add("out = body")
    src.add("put_uvarint(out, len(tags))")
    src.add("for tag, data in tags:")
    src.add("put_uvarint(out, tag); put_uvarint(out, len(data)); out += data", 2)


def _compile_reader(struct: Struct, reads_tags: bool) -> Reader:
    src = FunctionSource("def f(buf, at):")
    plain = [f for f in struct.fields if f.tag is None or not reads_tags]
    src.add("v = {}")
    for run in group_fixed_runs(plain):
        if is_fixed(run[0]):
            code = _struct.Struct(">" + "".join(FIXED[str(f.type)] for f in run))
            names = ", ".join(f"v[{f.name!r}]" for f in run)
            src.add(f"if at + {code.size} > len(buf): raise WireError('the message ends early')")
            src.add(
                f"{names}{',' if len(run) == 1 else ''} = {src.add_constant(code.unpack_from)}"
                f"(buf, at); at += {code.size}"
            )
            for f in run:
                if f.type == "uuid":
                    src.add(f"v[{f.name!r}] = uuid(v[{f.name!r}])")
        else:
            _read_value(src, run[0], struct.flexible, 1)
    for f in struct.fields:
        if f.tag is not None and reads_tags:
            src.add(f"v[{f.name!r}] = {src.add_constant(f.default)}")
    if struct.flexible and reads_tags:
        _read_tagged(src, [f for f in struct.fields if f.tag is not None])
    src.add("return v, at")
    return _wrap_reader(src.build_function())


def _wrap_reader(function: Reader) -> Reader:
    def read(buf: memoryview, at: int) -> tuple[dict[str, Any], int]:
        try:
            return function(buf, at)
        except (IndexError, _struct.error) as error:
            raise WireError(f"the message does not fit its layout: {error}") from None

    return read


def read_size(src: FunctionSource, name: str, flexible: bool, short: bool, depth: int) -> None:
    """Generate code that reads a length into a variable of that name, -1 for null."""
    if flexible:
        src.add(f"{name} = buf[at]; at += 1", depth)
        src.add(f"if {name} > 0x7F: {name}, at = get_uvarint(buf, at - 1)", depth)
        src.add(f"{name} -= 1", depth)
    else:
        width = 2 if short else 4
        src.add(f"{name} = from_bytes(buf[at : at + {width}], 'big', signed=True)", depth)
        src.add(f"at += {width}", depth)


def _read_value(src: FunctionSource, field: Field, flexible: bool, depth: int) -> None:
    name = f"v[{field.name!r}]"
    if field.array:
        read_size(src, "n", flexible, False, depth)
        src.add("if n > len(buf) - at: raise WireError(f'{n} entries in too few bytes')", depth)
        src.add(f"{name} = None if n < 0 else []", depth)
        src.add("for _ in range(n):", depth)
        _read_one(src, field.type, flexible, depth + 1)
        src.add(f"{name}.append(x)", depth + 1)
        if not field.nullable:
            src.add(f"if n < 0: {name} = []", depth)
    elif isinstance(field.type, Struct) and field.nullable:
        src.add("at += 1", depth)
        # As kio's parser: -1 is null, and in a tag all but 1.
        src.add(f"if buf[at - 1] {'== 255' if field.tag is None else '!= 1'}: {name} = None", depth)
        src.add("else:", depth)
        _read_one(src, field.type, flexible, depth + 1)
        src.add(f"{name} = x", depth + 1)
    else:
        _read_one(src, field.type, flexible, depth)
        src.add(f"{name} = x", depth)


def _read_one(src: FunctionSource, kind: str | Struct, flexible: bool, depth: int) -> None:
    if isinstance(kind, Struct):
        src.add(f"x, at = {src.add_constant(get_reader(kind))}(buf, at)", depth)
    elif kind in FIXED:
        code = _struct.Struct(">" + FIXED[kind])
        src.add(f"x = {src.add_constant(code.unpack_from)}(buf, at)[0]; at += {code.size}", depth)
        if kind == "uuid":
            src.add("x = uuid(x)", depth)
    else:
        read_size(src, "size", flexible, kind == "string", depth)
        src.add("if size < 0: x = None", depth)
        src.add("else:", depth)
        src.add("at += size", depth + 1)
        src.add("if at > len(buf): raise WireError(f'{size} bytes end early')", depth + 1)
        value = "buf[at - size : at]"
        src.add(f"x = {'decode' if kind == 'string' else 'bytes'}({value})", depth + 1)


def _read_tagged(src: FunctionSource, tagged: list[Field]) -> None:
    src.add("n = buf[at]; at += 1")
    src.add("if n > 0x7F: n, at = get_uvarint(buf, at - 1)")
    src.add("for _ in range(n):")
    src.add("tag, at = get_uvarint(buf, at); size, at = get_uvarint(buf, at); end = at + size", 2)
    src.add("if end > len(buf): raise WireError('a tagged field past the end')", 2)
    for field in tagged:
        src.add(f"if tag == {field.tag}:", 2)
        _read_value(src, field, True, 3)
    src.add("at = end", 2)
