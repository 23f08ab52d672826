"""Bounds check of a message before it is parsed.

The check walks a message without decoding it. It verifies that arrays hold the bytes that they
claim, that all arrays together have at most a given number of entries, and that no string is longer
than Kafka admits. The codec runs it on every request before a parser trusts the lengths in it, and
chooses the parser by the tags that the check has met. A check is compiled from a `Struct`, as
readers and writers are (see `compiler`). It allocates no memory for entries.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable
from typing import Any

from shoal.protocol.compiler import (
    STRING_SIZE_MAX,
    FunctionSource,
    group_fixed_runs,
    is_fixed,
    read_size,
)
from shoal.protocol.errors import WireError
from shoal.protocol.extensions import TAG_MIN
from shoal.protocol.schema import FIXED, TAGS_MAX, Field, Struct

#: Takes a buffer, an offset and the allowed number of array entries. Returns the offset after the
#: message, the remaining number of entries, and the message's tags beyond Kafka's schema of its
#: version, our own (`extensions`) or unknown ones, or a tag of another size than its value, with
#: which it could have some where kio looks for them. Raises `WireError`, also for a null where the
#: schema has none, as kio does.
LengthCheck = Callable[[Any, int, int], tuple[int, int, list[int]]]
#: The same for a struct in a message. It appends the tags to a list.
_StructCheck = Callable[[Any, int, int, list[int]], tuple[int, int]]

_checks: dict[int, tuple[_StructCheck, Struct]] = {}
_WIDTH = {kind: _struct.calcsize(">" + code) for kind, code in FIXED.items()}


def compile_check(struct: Struct) -> LengthCheck:
    """Return the check of a whole message."""
    inner = _get_check(struct)

    def check(buf: Any, at: int, remaining: int) -> tuple[int, int, list[int]]:
        foreign: list[int] = []
        try:
            at, remaining = inner(buf, at, remaining, foreign)
        except IndexError:
            raise WireError("the message ends early") from None
        if at > len(buf):
            raise WireError("the message ends early")
        return at, remaining, foreign

    return check


def _get_check(struct: Struct) -> _StructCheck:
    """Return the check of one struct, compiled once.

    It may raise `IndexError` or return an offset past the end.
    """
    entry = _checks.get(id(struct))
    if entry is None:
        entry = _checks[id(struct)] = (_compile(struct), struct)
    return entry[0]


def _compile(struct: Struct) -> _StructCheck:
    src = FunctionSource("def f(buf, at, left, foreign):")
    for run in group_fixed_runs([f for f in struct.fields if f.tag is None]):
        if is_fixed(run[0]):
            src.add(f"at += {sum(_WIDTH[str(f.type)] for f in run)}")
        else:
            _add_field_check(src, run[0], struct.flexible, 1)
    if struct.flexible:
        _add_tagged_check(src, [f for f in struct.fields if f.tag is not None])
    src.add("return at, left")
    return src.build_function()


def _add_field_check(src: FunctionSource, field: Field, flexible: bool, depth: int) -> None:
    if field.array:
        read_size(src, "n", flexible, False, depth)
        if not field.nullable:
            src.add(f"if n < 0: raise WireError('{field.name} is null')", depth)
        src.add("if n > 0:", depth)
        src.add("left -= n", depth + 1)
        src.add(
            "if left < 0: raise WireError(f'arrays of more than {left + n} entries')", depth + 1
        )
        if not isinstance(field.type, Struct) and field.type in FIXED:
            src.add(f"at += n * {_WIDTH[field.type]}", depth + 1)
        else:
            src.add("for _ in range(n):", depth + 1)
            _add_value_check(src, field, flexible, depth + 2)
    elif isinstance(field.type, Struct) and field.nullable:
        src.add("at += 1", depth)
        # The parser reads -1 as null and any other byte as present.
        src.add(f"if buf[at - 1] {'!= 255' if field.tag is None else '== 1'}:", depth)
        _add_value_check(src, field, flexible, depth + 1)
    else:
        _add_value_check(src, field, flexible, depth)


def _add_value_check(src: FunctionSource, field: Field, flexible: bool, depth: int) -> None:
    """Check one value of a field, of which an array has many."""
    kind = field.type
    if isinstance(kind, Struct):
        src.add(f"at, left = {src.add_constant(_get_check(kind))}(buf, at, left, foreign)", depth)
    elif kind in FIXED:
        src.add(f"at += {_WIDTH[kind]}", depth)
    else:
        read_size(src, "m", flexible, kind == "string", depth)
        if kind == "string" and flexible:
            src.add(f"if m > {STRING_SIZE_MAX}: raise WireError(f'a string of {{m}} bytes')", depth)
        src.add("if m > 0: at += m", depth)
        if kind != "records" and (field.array or not field.nullable):
            src.add(f"elif m < 0: raise WireError('{field.name} is null')", depth)


def _add_tagged_check(src: FunctionSource, tagged: list[Field]) -> None:
    """Count each tagged field as one entry, known or unknown."""
    src.add("n = buf[at]; at += 1")
    src.add("if n:")
    src.add("n, at = get_uvarint(buf, at - 1)", 2)
    src.add("left -= n", 2)
    src.add(f"if left < 0 or n > {TAGS_MAX}: raise WireError('too many tagged fields')", 2)
    src.add("for _ in range(n):", 2)
    src.add("tag, at = get_uvarint(buf, at); size, at = get_uvarint(buf, at); end = at + size", 3)
    src.add("if end > len(buf): raise WireError('a tagged field past the end')", 3)
    kafkas = [field.tag for field in tagged if field.tag is not None and field.tag < TAG_MIN]
    src.add(f"if tag not in {src.add_constant(frozenset(kafkas))}: foreign.append(tag)", 3)
    for field in tagged:
        src.add(f"if tag == {field.tag}:", 3)
        _add_field_check(src, field, True, 4)
        # kio would go on where the value ends, and find other tags than these.
        src.add("if at != end: foreign.append(tag)", 4)
    src.add("at = end", 3)
