"""Hand-written Produce codec: requests whose batches stay views of their frame, and responses.

kio copies record data into `bytes`, which takes 60 µs or more for 1 MB. Here the data stays where
it was received. A response without errors takes 1 µs instead of the general writer's 5, of about 60
for a small request in total. Both are equal to the general codecs in every version
(`tests/wire/test_produce_codec`). Source: Kafka's ProduceRequest.json and ProduceResponse.json,
versions 3 to 13.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.protocol.codec import WHOLE_ENTRIES_MAX
from shoal.protocol.compiler import STRING_SIZE_MAX, find_uuid, get_uvarint, put_uvarint
from shoal.protocol.errors import WireError
from shoal.protocol.schema import TAGS_MAX
from shoal.protocol.text import decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13

_ACKS_TIMEOUT = struct.Struct(">hi")
#: No transactional id, acks, timeout, one topic, the size of its name; then one partition.
_SINGLE_HEAD, _SINGLE_PARTITION = struct.Struct(">BhiBB"), struct.Struct(">Bi")
_NO_TAGS = bytes(3)
#: Bytes behind the name: the partition, the size of its batch, no tags.
_SINGLE_SIZE_MIN = _SINGLE_PARTITION.size + 1 + len(_NO_TAGS)
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
#: A partition without an error: index, error code, base offset, append time, log start offset; from
#: version 8 also no record errors and no message; in flexible versions no tags.
_SUCCESS_LAYOUTS = {
    3: struct.Struct(">ihqq"),
    5: struct.Struct(">ihqqq"),
    8: struct.Struct(">ihqqqih"),
    9: struct.Struct(">ihqqqBBB"),
}
_NOTHING: dict[int, tuple[int, ...]] = {3: (), 5: (), 8: (0, -1), 9: (1, 0, 0)}
#: Minimum bytes of a topic's entry: an empty name, no partitions, no tags.
_TOPIC_SIZE_MIN = 3
#: Minimum bytes of a partition's entry: index, and an absent batch.
_PARTITION_SIZE_MIN = 5


#: Names of topics come with every request. Longer ones than a topic may have are no client's to
#: keep here: 4,096 of them would take 200 MB.
_NAMES_MAX, _NAME_SIZE_MAX = 4096, 249
_decode_name = lru_cache(_NAMES_MAX)(decode)


class ProduceTopic(NamedTuple):
    """A topic by name (below version 13) or by id, and (index, batches) of its partitions."""

    name: str
    topic_id: UUID | None
    partitions: list[tuple[int, memoryview | None]]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


def read(version: int, frame: memoryview, at: int) -> ProduceRequest:
    """Parse the body that starts at `at`. Raises `WireError` for invalid bytes."""
    try:
        if version >= FLEXIBLE_FROM:
            single = read_single(frame, at) if version < TOPIC_IDS_FROM else None
            return single or read_flexible(version, frame, at)
        return _read_plain(frame, at)
    except (IndexError, struct.error) as error:
        raise WireError(f"a produce request that does not fit its layout: {error}") from None


def read_single(frame: memoryview, at: int) -> ProduceRequest | None:
    """Parse a request with a batch for one partition and no transaction, as producers send that
    wait for each, in a fifth of the time; None for another shape."""
    transactional, acks, timeout_ms, topics, name_size = _SINGLE_HEAD.unpack_from(frame, at)
    if transactional or topics != 2 or not 0 < name_size <= 0x7F:
        return None
    at += _SINGLE_HEAD.size
    name_end = at + name_size - 1
    if name_end + _SINGLE_SIZE_MIN > len(frame):
        return None
    partitions, index = _SINGLE_PARTITION.unpack_from(frame, name_end)
    size, begin = get_uvarint(frame, name_end + _SINGLE_PARTITION.size)
    end = begin + size - 1
    if partitions != 2 or not size or end + 3 != len(frame) or frame[end:] != _NO_TAGS:
        return None
    name = _decode_name(bytes(frame[at:name_end]))
    return ProduceRequest(
        None, acks, timeout_ms, [ProduceTopic(name, None, [(index, frame[begin:end])])]
    )


def read_flexible(version: int, frame: memoryview, at: int) -> ProduceRequest:
    """Parse any body of a flexible version."""
    size, at = get_uvarint(frame, at)
    transactional_id = None
    if size:
        transactional_id = _read_text(frame, at, size - 1)
        at += size - 1
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
    count, at = get_uvarint(frame, at + 6)
    entries_left = _check_count(count - 1, _TOPIC_SIZE_MIN, frame, at, WHOLE_ENTRIES_MAX)
    topics = []
    for _ in range(count - 1):
        name, topic_id = "", None
        if version >= TOPIC_IDS_FROM:
            topic_id = find_uuid(bytes(_read_slice(frame, at, 16)))
            at += 16
        else:
            size, at = get_uvarint(frame, at)
            if not size:
                raise WireError("a topic without a name")
            name = _read_text(frame, at, size - 1)
            at += size - 1
        entries, at = get_uvarint(frame, at)
        entries_left = _check_count(entries - 1, _PARTITION_SIZE_MIN, frame, at, entries_left)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(entries - 1):
            index = _INT.unpack_from(frame, at)[0]
            size, at = get_uvarint(frame, at + 4)
            if size:
                partitions.append((index, _read_slice(frame, at, size - 1)))
                at += size - 1
            else:
                partitions.append((index, None))
            if frame[at]:
                at, entries_left = _skip_tags(frame, at, entries_left)
            else:
                at += 1
        at, entries_left = _skip_tags(frame, at, entries_left)
        topics.append(ProduceTopic(name, topic_id, partitions))
    _skip_tags(frame, at, entries_left)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_plain(frame: memoryview, at: int) -> ProduceRequest:
    size = _SHORT.unpack_from(frame, at)[0]
    at += 2
    transactional_id = None
    if size >= 0:
        transactional_id = _read_text(frame, at, size)
        at += size
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
    count = _INT.unpack_from(frame, at + 6)[0]
    at += 10
    entries_left = _check_count(count, _TOPIC_SIZE_MIN, frame, at, WHOLE_ENTRIES_MAX)
    topics = []
    for _ in range(count):
        size = _SHORT.unpack_from(frame, at)[0]
        name = _read_text(frame, at + 2, size)
        at += 2 + size
        entries = _INT.unpack_from(frame, at)[0]
        at += 4
        entries_left = _check_count(entries, _PARTITION_SIZE_MIN, frame, at, entries_left)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(entries):
            index = _INT.unpack_from(frame, at)[0]
            size = _INT.unpack_from(frame, at + 4)[0]
            at += 8
            if size >= 0:
                partitions.append((index, _read_slice(frame, at, size)))
                at += size
            else:
                partitions.append((index, None))
        topics.append(ProduceTopic(name, None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_slice(frame: memoryview, at: int, size: int) -> memoryview:
    if size < 0 or at + size > len(frame):
        raise WireError(f"a field of {size} bytes where {len(frame) - at} are left")
    return frame[at : at + size]


def _read_text(frame: memoryview, at: int, size: int) -> str:
    if size > STRING_SIZE_MAX:
        raise WireError(f"a string of {size} bytes")
    return decode(_read_slice(frame, at, size))


def _check_count(count: int, size_min: int, frame: memoryview, at: int, entries_left: int) -> int:
    """Return how many of the `entries_left` entries are left after an array of `count`."""
    if count < 0:
        raise WireError("an array is null")
    if count > entries_left or count * size_min > len(frame) - at:
        raise WireError(f"{count} entries in {len(frame) - at} bytes")
    return entries_left - count


def _skip_tags(frame: memoryview, at: int, entries_left: int) -> tuple[int, int]:
    """Return the offset after the tagged fields of a struct, each of which counts as an entry, and
    how many of the `entries_left` entries are left."""
    if frame[at] == 0:
        return at + 1, entries_left
    count, at = get_uvarint(frame, at)
    if count > min(TAGS_MAX, entries_left):
        raise WireError(f"a struct with {count} tagged fields")
    for _ in range(count):
        _, at = get_uvarint(frame, at)
        size, at = get_uvarint(frame, at)
        at += size
        if at > len(frame):
            raise WireError("a tagged field past the end of the request")
    return at, entries_left - count


def write_success_response(version: int, topics: Sequence[Mapping[str, Any]]) -> bytearray:
    """Return the response body of a request without errors. `topics` is what the general writer
    takes as `responses`.
    """
    layout = 9 if version >= 9 else 8 if version >= 8 else 5 if version >= 5 else 3
    pack, nothing, flexible = _SUCCESS_LAYOUTS[layout].pack, _NOTHING[layout], layout == 9
    out = bytearray()
    _put_count(out, len(topics), flexible)
    for topic in topics:
        if version >= TOPIC_IDS_FROM:
            out += topic["topic_id"].bytes
        else:
            name = topic["name"]
            encode = _encode_name if len(name) > _NAME_SIZE_MAX else _encode_short_name
            out += encode(name, flexible)
        entries = topic["partition_responses"]
        _put_count(out, len(entries), flexible)
        for entry in entries:
            fields = (entry["index"], 0, entry["base_offset"], entry["log_append_time_ms"])
            if layout == 3:
                out += pack(*fields)
            else:
                out += pack(*fields, entry["log_start_offset"], *nothing)
        if flexible:
            out.append(0)
    out += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"
    return out


def _encode_name(name: str, flexible: bool) -> bytes:
    data = name.encode()
    out = bytearray()
    if flexible:
        put_uvarint(out, len(data) + 1)
    else:
        out += _SHORT.pack(len(data))
    return bytes(out + data)


_encode_short_name = lru_cache(_NAMES_MAX)(_encode_name)


def _put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible and count < 0x7F:
        out.append(count + 1)
    elif flexible:
        put_uvarint(out, count + 1)
    else:
        out += _INT.pack(count)
