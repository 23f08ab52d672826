"""Goes over a message without reading it: are its arrays as short as they claim, and few enough?

A skimmer is compiled from a `Struct` like readers and writers (see `compiler`), and is run over
every request before a parser trusts the lengths in it. It allocates nothing.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable
from typing import Any

from shoal.protocol.compiler import Source, fixed_runs, get_size, get_uvarint, is_fixed
from shoal.protocol.errors import WireError
from shoal.protocol.schema import FIXED, Field, Struct

#: Takes a buffer, an offset and how many array entries are allowed; gives the offset behind the
#: message and how many are left. Raises `WireError`, also for an array that is null and may not be.
Skimmer = Callable[[Any, int, int], tuple[int, int]]

_skimmers: dict[int, tuple[Skimmer, Struct]] = {}
_WIDTH = {kind: _struct.calcsize(">" + code) for kind, code in FIXED.items()}


def skimmer(struct: Struct) -> Skimmer:
    """The skimmer of a whole message."""
    inner = _inner(struct)

    def skim(buf: Any, at: int, left: int) -> tuple[int, int]:
        try:
            at, left = inner(buf, at, left)
        except IndexError:
            raise WireError("the message ends early") from None
        if at > len(buf):
            raise WireError("the message ends early")
        return at, left

    return skim


def _inner(struct: Struct) -> Skimmer:
    """The skimmer of one struct, compiled once; it may raise `IndexError` or run past the end."""
    found = _skimmers.get(id(struct))
    if found is None:
        found = _skimmers[id(struct)] = (_compile(struct), struct)
    return found[0]


def _compile(struct: Struct) -> Skimmer:
    src = Source("def f(buf, at, left):")
    src.names.update(get_uvarint=get_uvarint, get_size=get_size, WireError=WireError)
    for run in fixed_runs([f for f in struct.fields if f.tag is None]):
        if is_fixed(run[0]):
            src.add(f"at += {sum(_WIDTH[str(f.type)] for f in run)}")
        else:
            _field(src, run[0], struct.flexible, 1)
    if struct.flexible:
        _tagged(src, [f for f in struct.fields if f.tag is not None])
    src.add("return at, left")
    return src.function()


def _field(src: Source, field: Field, flexible: bool, depth: int) -> None:
    if field.array:
        src.add(f"n, at = get_size(buf, at, {flexible}, False)", depth)
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
            _one(src, field.type, flexible, depth + 2)
    elif isinstance(field.type, Struct) and field.nullable:
        src.add("at += 1", depth)
        # As the parser that comes after: -1 is null, and any other byte is not.
        src.add(f"if buf[at - 1] {'!= 255' if field.tag is None else '== 1'}:", depth)
        _one(src, field.type, flexible, depth + 1)
    else:
        _one(src, field.type, flexible, depth)


def _one(src: Source, kind: str | Struct, flexible: bool, depth: int) -> None:
    if isinstance(kind, Struct):
        src.add(f"at, left = {src.constant(_inner(kind))}(buf, at, left)", depth)
    elif kind in FIXED:
        src.add(f"at += {_WIDTH[kind]}", depth)
    else:
        src.add(f"m, at = get_size(buf, at, {flexible}, {kind == 'string'})", depth)
        src.add("if m > 0: at += m", depth)


def _tagged(src: Source, tagged: list[Field]) -> None:
    """Tags cost an entry each, known or not."""
    src.add("n = buf[at]; at += 1")
    src.add("if n:")
    src.add("n, at = get_uvarint(buf, at - 1)", 2)
    src.add("left -= n", 2)
    src.add("if left < 0: raise WireError('too many tagged fields')", 2)
    src.add("for _ in range(n):", 2)
    src.add("tag, at = get_uvarint(buf, at); size, at = get_uvarint(buf, at); end = at + size", 3)
    src.add("if end > len(buf): raise WireError('a tagged field past the end')", 3)
    for field in tagged:
        src.add(f"if tag == {field.tag}:", 3)
        _field(src, field, True, 4)
    src.add("at = end", 3)
