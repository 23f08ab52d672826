"""Encodes a large answer in several turns of the event loop.

One entry takes about a microsecond, and a group may have offsets of 100,000 partitions.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from kio.static.constants import EntityType

from shoal.protocol import codec, compiler
from shoal.protocol.schema import Struct
from shoal.server.network import error_counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.protocol.frames import RequestHeader
    from shoal.server.network.api import Body

#: Answers with fewer entries are encoded at once, with all others of their turn.
ENTRIES_MIN = 2_000
#: How long one turn encodes, about.
STEP_S = 0.005
#: Entries that are encoded between two looks at the clock.
_LOOK_ENTRIES = 20


async def encode_in_turns(
    header: RequestHeader, body: Mapping[str, Any], path: Sequence[str]
) -> Body:
    """Return the body if it is small, else its encoding. `path` names the arrays that may be
    long, from the outer one."""
    if not is_large(body, path):
        return body
    cls = codec.load_entity(header.api_key, header.api_version, EntityType.response)
    out = bytearray()
    end = time.monotonic() + STEP_S
    for _ in write_in_steps(out, codec.build_struct(cls), body, path):
        if time.monotonic() >= end:
            await asyncio.sleep(0)
            end = time.monotonic() + STEP_S
    counts = error_counts.count_errors(body, header.api_key, header.api_version)
    return error_counts.make_counted_body([out], counts)


def is_large(body: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Whether the arrays at `path`, with those in their entries, have many entries together."""
    count = 0
    for size in _iterate_sizes(body, path):
        count += size
        if count >= ENTRIES_MIN:
            return True
    return False


def _iterate_sizes(body: Mapping[str, Any], path: Sequence[str]) -> Iterator[int]:
    entries = body.get(path[0]) or ()
    yield len(entries)
    for entry in entries:
        if len(path) > 1:
            yield from _iterate_sizes(entry, path[1:])
        else:
            yield sum(len(value) for value in entry.values() if isinstance(value, list | tuple))


def write_in_steps(
    out: bytearray, struct: Struct, value: Mapping[str, Any], path: Sequence[str]
) -> Iterator[None]:
    """Write `value` as the compiled writer of `struct` does. Yield after some entries of the
    innermost array of `path`."""
    write_before, write_after = compiler.get_writers_around(struct, path[0])
    (array,) = (field for field in struct.fields if field.name == path[0])
    kind = array.type
    assert isinstance(kind, Struct)
    write_before(out, value)
    entries = value.get(array.name, array.default)
    compiler.put_count(out, entries, struct.flexible)
    write = compiler.get_writer(kind)
    for number, entry in enumerate(entries or ()):
        if len(path) > 1:
            yield from write_in_steps(out, kind, entry, path[1:])
        else:
            write(out, entry)
            if not number % _LOOK_ENTRIES:
                yield
    write_after(out, value)
