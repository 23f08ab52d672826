"""Hand-written codecs of ShareFetch and ShareAcknowledge, which every delivered record uses.

Fetch responses carry record data without a copy. The codecs are equal to kio's in every version
(`tests/wire/test_share_messages`). Acknowledge types stay bytes, so that a batch with a single type
is recognized without a loop. Source: Kafka's ShareFetchRequest, ShareFetchResponse,
ShareAcknowledgeRequest and ShareAcknowledgeResponse JSON, versions 1 and 2.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from shoal.protocol import slices
from shoal.protocol.codec import BODY_SIZE_MAX, WHOLE_ENTRIES_MAX
from shoal.protocol.compiler import STRING_SIZE_MAX, find_uuid, get_uvarint, put_uvarint
from shoal.protocol.errors import WireError
from shoal.protocol.extensions import (
    CANCELLED_TAG,
    FAILURE_REASON_TAG,
    RELEASE_DELAY_TAG,
    UNDELIVERED_TAG,
)
from shoal.protocol.reasons import REASONS_MAX, REQUEST_BYTES_MAX
from shoal.protocol.schema import TAGS_MAX
from shoal.protocol.slices import SLICE_ENTRIES
from shoal.protocol.text import decode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

#: First version with record limits as acquire mode and with renewals (KIP-1206, KIP-1222).
RENEWAL_FROM = 2

_FETCH_HEAD = struct.Struct(">iiiiii")
_EPOCH = struct.Struct(">i")
_INDEX = struct.Struct(">i")
_DELAY = struct.Struct(">q")
_BOOL = struct.Struct(">?")
_ONE_TYPE = struct.Struct(">qqB1sB")
_ALIKE, _SIZE_AT, _TAGS_AT = struct.Struct(">qqx1sx"), 16, 18
_ERROR = struct.Struct(">ih")
_FETCH_RESPONSE_HEAD = struct.Struct(">ih")
_PARTITION_HEAD = struct.Struct(">ihBhB")
_LEADER = struct.Struct(">iiB")
_ACQUIRED = struct.Struct(">qqhx")
_CANCELLED = struct.Struct(">qqB")
#: The bytes after the epoch if one batch of one partition is acknowledged, as a worker does that
#: commits each record: counts (+1), topic id, index, offsets, type, and no tags.
_ALONE = struct.Struct(">B16sBiBqqB1s4s")
_NO_TAGS = bytes(4)
#: The response without errors, in versions 1 and 2.
_ALONE_DONE = {
    1: struct.Struct(">ihBB16sBihBiiBBBBB"),
    2: struct.Struct(">ihBiB16sBihBiiBBBBB"),
}
#: Minimum bytes of a topic, a partition, and a batch of acknowledgements.
_TOPIC_SIZE_MIN, _PARTITION_SIZE_MIN, _BATCH_SIZE_MIN = 18, 6, 18

#: Up to this number of batches it is faster to parse them one by one.
_FEW = 4


#: Maximum acknowledgements of a request: one for each record that a member may hold, and more.
BATCHES_MAX = 100_000


class InFlightState(IntEnum):
    """What a record in flight waits for, in Shoal's extension of DescribeShareGroupOffsets."""

    AVAILABLE = 0
    #: A member holds it.
    ACQUIRED = 1
    #: Its dead letter is being written.
    ARCHIVING = 3
    #: Its retry back-off ends at a time.
    BACKING_OFF = 5
    #: Its dead letter is written, and it blocks the records of its key.
    HOLDS_KEY = 6
    #: Its delay ends at a time.
    DELAYED = 7
    #: An earlier record of its key is in flight.
    BEHIND_KEY = 8
    #: Its tenant is at a limit of the group, or is paused.
    BEHIND_LIMIT = 9


class InFlightRecords(NamedTuple):
    """Consecutive records in flight that wait for the same.

    `member_id` is empty unless a member holds them. `time_left_ms` is the time until the lock, the
    back-off or the delay ends; -1 for none. `failure` is the last reason that a member gave, in a
    line; empty if there is none.
    """

    first_offset: int
    last_offset: int
    state: InFlightState
    delivery_count: int
    member_id: str
    time_left_ms: int
    failure: str = ""


class CancelOutcome(IntEnum):
    """What a request to cancel a record did, in Shoal's extension of AlterShareGroupOffsets."""

    #: It waited, and the group does not get it.
    CANCELLED = 0
    #: A member holds it, and it is marked: it is not delivered again.
    IN_FLIGHT = 1
    #: Its delivery was complete before, or the group has begun behind it.
    DONE = 2
    #: The log does not have it yet.
    NOT_FOUND = 3


class CancelledRecords(NamedTuple):
    """Consecutive offsets with the same outcome."""

    first_offset: int
    last_offset: int
    outcome: CancelOutcome


_decode_text = lru_cache(4096)(decode)

#: First offset, last offset, and acknowledge types: one for all or one per offset. Shoal's client
#: may add the delay of a release in milliseconds, and the encoded reason (`reasons`).
AcknowledgementBatch = (
    tuple[int, int, bytes] | tuple[int, int, bytes, int] | tuple[int, int, bytes, int | None, bytes]
)
#: Acquired offsets: first, last, delivery count. A plain tuple, because a fetch in key order builds
#: hundreds: NamedTuples would take seven times as long.
AcquiredRange = tuple[int, int, int]
Acknowledgements = list[tuple[UUID, list[tuple[int, list[AcknowledgementBatch]]]]]


class ShareFetchRequest(NamedTuple):
    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    share_acquire_mode: int
    is_renew_ack: bool
    topics: Acknowledgements
    forgotten: list[tuple[UUID, list[int]]]


class ShareAcknowledgeRequest(NamedTuple):
    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    is_renew_ack: bool
    topics: Acknowledgements
    #: Whether records that a closed session still holds count as not delivered (Shoal's extension).
    undelivered: bool = False


class ShareFetchPartition(NamedTuple):
    """One partition of a fetch response. `records` are batches as buffers."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    current_leader: tuple[int, int] = (0, 0)
    records: Sequence[memoryview] = ()
    acquired: Sequence[AcquiredRange] = ()
    #: The same, already encoded, if available.
    acquired_encoded: bytes = b""


class ShareAcknowledgePartition(NamedTuple):
    """One partition of an acknowledge response."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    current_leader: tuple[int, int] = (0, 0)
    #: Shoal's extension: first and last offsets of cancelled records whose locks are not renewed.
    cancelled: Sequence[tuple[int, int]] = ()


def read_fetch(version: int, frame: memoryview, at: int) -> ShareFetchRequest:
    """Parse the body that starts at `at`. Raises `WireError` for invalid bytes."""
    request: ShareFetchRequest = slices.drain(read_fetch_in_slices(version, frame, at))
    return request


def read_fetch_in_slices(version: int, frame: memoryview, at: int) -> slices.Slices:
    """Parse the body of a fetch that starts at `at`, and yield between parts of the work."""
    _check_size(frame)
    try:
        group_id, at = _read_id(frame, at)
        member_id, at = _read_id(frame, at)
        head = _FETCH_HEAD.unpack_from(frame, at)
        epoch, max_wait_ms, min_bytes, max_bytes, max_records, batch_size = head
        at += _FETCH_HEAD.size
        mode, renew = 0, False
        if version >= RENEWAL_FROM:
            mode, renew = frame[at], frame[at + 1] != 0
            mode -= (mode & 0x80) << 1
            at += 2
        room = _Room()
        topics, at = yield from _read_topics(frame, at, room)
        forgotten = yield from _read_forgotten(frame, at, room)
    except (IndexError, ValueError, struct.error) as error:
        raise WireError(f"a share fetch that does not fit its layout: {error}") from None
    return ShareFetchRequest(
        group_id,
        member_id,
        epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        max_records,
        batch_size,
        mode,
        renew,
        topics,
        forgotten,
    )


def read_acknowledge(version: int, frame: memoryview, at: int) -> ShareAcknowledgeRequest:
    """Parse the body that starts at `at`. Raises `WireError` for invalid bytes."""
    request: ShareAcknowledgeRequest = slices.drain(read_acknowledge_in_slices(version, frame, at))
    return request


def read_acknowledge_in_slices(version: int, frame: memoryview, at: int) -> slices.Slices:
    """Parse the body of an acknowledgement, and yield between parts of the work."""
    _check_size(frame)
    try:
        group_id, at = _read_id(frame, at)
        member_id, at = _read_id(frame, at)
        epoch = _EPOCH.unpack_from(frame, at)[0]
        at += _EPOCH.size
        renew = False
        if version >= RENEWAL_FROM:
            renew = frame[at] != 0
            at += 1
        undelivered = None
        topics = _read_single(frame, at)
        if topics is None:
            room = _Room()
            topics, at = yield from _read_topics(frame, at, room)
            undelivered, _ = _read_tagged_value(frame, at, room, UNDELIVERED_TAG, _BOOL)
    except (IndexError, ValueError, struct.error) as error:
        raise WireError(f"a share acknowledgement that does not fit: {error}") from None
    return ShareAcknowledgeRequest(group_id, member_id, epoch, renew, topics, bool(undelivered))


def _check_size(frame: memoryview) -> None:
    if len(frame) > BODY_SIZE_MAX:
        raise WireError(f"a request of {len(frame)} bytes")


def _read_single(frame: memoryview, at: int) -> Acknowledgements | None:
    """Parse topics of the shape `_ALONE` in 1 µs instead of 5; None for another shape."""
    if len(frame) - at != _ALONE.size:
        return None
    topics, topic_id, partitions, index, batches, first, last, types, kind, tags = (
        _ALONE.unpack_from(frame, at)
    )
    if topics == partitions == batches == types == 2 and tags == _NO_TAGS:
        return [(find_uuid(topic_id), [(index, [(first, last, kind)])])]
    return None


def _read_topics(
    frame: memoryview, at: int, room: _Room
) -> Generator[None, None, tuple[Acknowledgements, int]]:
    """Parse the topics, in slices of some entries."""
    count, at = _read_count(frame, at, _TOPIC_SIZE_MIN, room.entries_left)
    room.entries_left -= count
    topics: Acknowledgements = []
    for _ in range(count):
        topic_id = find_uuid(bytes(frame[at : at + 16]))
        count, at = _read_count(frame, at + 16, _PARTITION_SIZE_MIN, room.entries_left)
        room.entries_left -= count
        partitions = []
        for _ in range(count):
            index = _INDEX.unpack_from(frame, at)[0]
            count, at = _read_count(frame, at + 4, _BATCH_SIZE_MIN, room.batches_left)
            room.batches_left -= count
            batches = _read_uniform_batches(frame, at, count) if count > _FEW else []
            if batches:
                at, count = at + count * _ONE_TYPE.size, 0
            while count > SLICE_ENTRIES:
                at = _read_batches(frame, at, SLICE_ENTRIES, room, batches)
                count -= SLICE_ENTRIES
                yield
            at = _read_batches(frame, at, count, room, batches)
            at = at + 1 if frame[at] == 0 else _skip_tags(frame, at, room)
            partitions.append((index, batches))
            if room.ends_slice(1 + count):
                yield
        at = at + 1 if frame[at] == 0 else _skip_tags(frame, at, room)
        topics.append((topic_id, partitions))
        if room.ends_slice():
            yield
    return topics, at


def _read_batches(
    frame: memoryview, at: int, count: int, room: _Room, batches: list[AcknowledgementBatch]
) -> int:
    """Add acknowledgements of a partition to `batches`. Return the offset after them."""
    for _ in range(count):
        # One type for all offsets and no tags, as for a record that is acknowledged individually.
        first, last, size, kind, tags = _ONE_TYPE.unpack_from(frame, at)
        if size == 2 and tags == 0:
            batches.append((first, last, kind))
            at += _ONE_TYPE.size
            continue
        size, at = _read_count(frame, at + 16, 1)
        types = bytes(frame[at : at + size])
        extensions, at = _read_extensions(frame, at + size, room)
        batches.append((first, last, types, *extensions))
    return at


class _Room:
    """How many entries and acknowledgements a request may still have in all its arrays, how many
    of its reasons are still read, how many bytes of them, and how many entries this slice has."""

    __slots__ = ("batches_left", "bytes_left", "entries_left", "reasons_left", "slice_left")

    def __init__(self) -> None:
        self.entries_left, self.batches_left = WHOLE_ENTRIES_MAX, BATCHES_MAX
        self.slice_left = SLICE_ENTRIES
        self.reasons_left, self.bytes_left = REASONS_MAX, REQUEST_BYTES_MAX

    def take_entries(self, count: int) -> None:
        """Count entries that are read one by one. Raises `WireError` for more than there may be."""
        self.entries_left -= count
        if self.entries_left < 0:
            raise WireError(f"arrays of more than {WHOLE_ENTRIES_MAX} entries")

    def ends_slice(self, count: int = 1) -> bool:
        """Count entries that were read. Return whether the slice ends with them."""
        self.slice_left -= count
        if self.slice_left > 0:
            return False
        self.slice_left = SLICE_ENTRIES
        return True

    def take(self, size: int) -> bool:
        """Whether a reason of this size is read. Others are passed over."""
        if self.reasons_left == 0 or size > self.bytes_left:
            return False
        self.reasons_left -= 1
        self.bytes_left -= size
        return True


def _read_extensions(
    frame: memoryview, at: int, room: _Room
) -> tuple[tuple[()] | tuple[int] | tuple[int | None, bytes], int]:
    """Return what the tagged fields at `at` add to a batch, and the offset after them."""
    end = _skip_tags(frame, at, room)
    delay_ms, reason = None, b""
    count, at = get_uvarint(frame, at)
    for _ in range(count):
        tag, at = get_uvarint(frame, at)
        size, at = get_uvarint(frame, at)
        if tag == RELEASE_DELAY_TAG and size == _DELAY.size:
            delay_ms = _DELAY.unpack_from(frame, at)[0]
        elif tag == FAILURE_REASON_TAG and room.take(size):
            reason = bytes(frame[at : at + size])
        at += size
    if reason:
        return (delay_ms, reason), end
    return (() if delay_ms is None else (delay_ms,)), end


def _read_uniform_batches(frame: memoryview, at: int, count: int) -> list[AcknowledgementBatch]:
    """Parse batches with one type each and no tags, five times as fast as one by one; return an
    empty list if another shape is among them.
    """
    data = bytes(frame[at : at + count * _ONE_TYPE.size])
    if len(data) < count * _ONE_TYPE.size:
        return []
    if data[_SIZE_AT :: _ONE_TYPE.size] != b"\2" * count or any(data[_TAGS_AT :: _ONE_TYPE.size]):
        return []
    return list(_ALIKE.iter_unpack(data))


def _read_tagged_value(
    frame: memoryview, at: int, room: _Room, wanted_tag: int, form: struct.Struct
) -> tuple[int | None, int]:
    """Return one value of the tagged fields at `at`, or None, and the offset after them."""
    end = _skip_tags(frame, at, room)
    count, at = get_uvarint(frame, at)
    for _ in range(count):
        tag, at = get_uvarint(frame, at)
        size, at = get_uvarint(frame, at)
        if tag == wanted_tag and size == form.size:
            return form.unpack_from(frame, at)[0], end
        at += size
    return None, end


def _read_forgotten(
    frame: memoryview, at: int, room: _Room
) -> Generator[None, None, list[tuple[UUID, list[int]]]]:
    """Parse the topics that leave the session, and the end of the request, in slices."""
    count, at = _read_count(frame, at, _TOPIC_SIZE_MIN, room.entries_left)
    room.entries_left -= count
    forgotten = []
    for _ in range(count):
        if room.ends_slice():
            yield
        topic_id = find_uuid(bytes(frame[at : at + 16]))
        size, at = _read_count(frame, at + 16, 4, room.batches_left)
        room.batches_left -= size
        forgotten.append((topic_id, list(struct.unpack_from(f">{size}i", frame, at))))
        at = _skip_tags(frame, at + 4 * size, room)
    _skip_tags(frame, at, room)
    return forgotten


def _read_count(
    frame: memoryview, at: int, size_min: int, count_max: int = BATCHES_MAX
) -> tuple[int, int]:
    """Return the length of a compact array whose entries take at least `size_min` bytes each."""
    count = frame[at]
    if count > 0x7F:
        count, at = get_uvarint(frame, at)
    else:
        at += 1
    count -= 1
    if count < 0:
        raise WireError("an array is null")
    if count > count_max or count * size_min > len(frame) - at:
        raise WireError(f"{count} entries announced where {len(frame) - at} bytes are left")
    return count, at


def _read_id(frame: memoryview, at: int) -> tuple[str | None, int]:
    """Return `_read_string` of an id that comes with every request, from a cache."""
    size = frame[at]
    end = at + size
    if 0 < size <= 0x7F and end <= len(frame):
        return _decode_text(bytes(frame[at + 1 : end])), end
    return _read_string(frame, at)


def _read_string(frame: memoryview, at: int) -> tuple[str | None, int]:
    size = frame[at]
    if size > 0x7F:
        size, at = get_uvarint(frame, at)
    else:
        at += 1
    if size == 0:
        return None, at
    end = at + size - 1
    if end > len(frame) or size > STRING_SIZE_MAX + 1:
        raise WireError(f"a string of {size - 1} bytes where {len(frame) - at} are left")
    return decode(frame[at:end]), end


def _skip_tags(frame: memoryview, at: int, room: _Room) -> int:
    """Return the offset after the tagged fields of a struct, each of which counts as an entry."""
    if frame[at] == 0:
        return at + 1
    count, at = get_uvarint(frame, at)
    if count > TAGS_MAX:
        raise WireError(f"a struct with {count} tagged fields")
    room.take_entries(count)
    for _ in range(count):
        _, at = get_uvarint(frame, at)
        size, at = get_uvarint(frame, at)
        at += size
    if at > len(frame):
        raise WireError("a tagged field past the end")
    return at


def write_fetch(
    topics: Mapping[UUID, Iterable[ShareFetchPartition]],
    *,
    error_code: int = 0,
    error_message: str | None = None,
    acquisition_lock_timeout_ms: int = 0,
    endpoints: Sequence[tuple[int, str, int, str | None]] = (),
) -> list[bytes | bytearray | memoryview]:
    """Return the response body of either version as buffers; record data is not copied.

    `endpoints` are node id, host, port and rack of leaders on other brokers.
    """
    buffers: list[bytes | bytearray | memoryview] = []
    out = bytearray(_FETCH_RESPONSE_HEAD.pack(0, error_code))
    _put_string(out, error_message)
    out += _EPOCH.pack(acquisition_lock_timeout_ms)
    put_uvarint(out, len(topics) + 1)
    for topic_id, partitions in topics.items():
        out += topic_id.bytes
        entries = list(partitions)
        put_uvarint(out, len(entries) + 1)
        for p in entries:
            if p.error_message is None and p.acknowledge_error_message is None:
                out += _PARTITION_HEAD.pack(
                    p.partition, p.error_code, 0, p.acknowledge_error_code, 0
                )
            else:
                out += _ERROR.pack(p.partition, p.error_code)
                _put_string(out, p.error_message)
                out += p.acknowledge_error_code.to_bytes(2, "big", signed=True)
                _put_string(out, p.acknowledge_error_message)
            out += _LEADER.pack(*p.current_leader, 0)
            put_uvarint(out, sum(map(len, p.records)) + 1)
            if p.records:
                buffers.append(out)
                buffers += p.records
                out = bytearray()
            put_uvarint(out, len(p.acquired) + 1)
            out += p.acquired_encoded or b"".join(starmap(_ACQUIRED.pack, p.acquired))
            out.append(0)
        out.append(0)
    _put_endpoints(out, endpoints)
    out.append(0)
    buffers.append(out)
    return buffers


def write_acknowledge(
    version: int,
    topics: Sequence[tuple[UUID, Sequence[ShareAcknowledgePartition]]],
    *,
    error_code: int = 0,
    error_message: str | None = None,
    acquisition_lock_timeout_ms: int = 0,
    endpoints: Sequence[tuple[int, str, int, str | None]] = (),
) -> list[bytes | bytearray | memoryview]:
    """Return the response body as one buffer."""
    out = bytearray(_FETCH_RESPONSE_HEAD.pack(0, error_code))
    _put_string(out, error_message)
    if version >= RENEWAL_FROM:
        out += _EPOCH.pack(acquisition_lock_timeout_ms)
    put_uvarint(out, len(topics) + 1)
    for topic_id, partitions in topics:
        out += topic_id.bytes
        put_uvarint(out, len(partitions) + 1)
        for p in partitions:
            out += _ERROR.pack(p.partition, p.error_code)
            _put_string(out, p.error_message)
            out += _LEADER.pack(*p.current_leader, 0)
            _put_cancelled(out, p.cancelled)
        out.append(0)
    _put_endpoints(out, endpoints)
    out.append(0)
    return [out]


def write_acknowledge_success(
    version: int, topics: Acknowledgements, acquisition_lock_timeout_ms: int
) -> list[bytes | bytearray | memoryview]:
    """Return `write_acknowledge` of a request's topics without errors."""
    if len(topics) == 1 and len(topics[0][1]) == 1:
        topic_id, ((index, _),) = topics[0]
        lock = (acquisition_lock_timeout_ms,) if version >= RENEWAL_FROM else ()
        pack = _ALONE_DONE[version].pack
        # No error, one topic, one partition, no error, no other leader, no endpoints.
        return [pack(0, 0, 0, *lock, 2, topic_id.bytes, 2, index, 0, 0, 0, 0, 0, 0, 0, 1, 0)]
    results = [
        (topic_id, [ShareAcknowledgePartition(i) for i, _ in entries])
        for topic_id, entries in topics
    ]
    return write_acknowledge(
        version, results, acquisition_lock_timeout_ms=acquisition_lock_timeout_ms
    )


def _put_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
    else:
        data = text.encode()
        put_uvarint(out, len(data) + 1)
        out += data


def _put_cancelled(out: bytearray, cancelled: Sequence[tuple[int, int]]) -> None:
    """Put the tagged fields of a partition: its cancelled records, if there are any."""
    out.append(1 if cancelled else 0)
    if cancelled:
        put_uvarint(out, CANCELLED_TAG)
        field = bytearray()
        put_uvarint(field, len(cancelled) + 1)
        for first, last in cancelled:
            field += _CANCELLED.pack(first, last, 0)
        put_uvarint(out, len(field))
        out += field


def _put_endpoints(out: bytearray, endpoints: Sequence[tuple[int, str, int, str | None]]) -> None:
    put_uvarint(out, len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        out += _INDEX.pack(node_id)
        _put_string(out, host)
        out += _INDEX.pack(port)
        _put_string(out, rack)
        out.append(0)
