"""The remote segments of one partition, replayed from `__remote_log_metadata`.

Finished segments are packed bytes in order of their base offsets, about 200 bytes of memory each,
because a broker may have a million of them. Those of other states are few, and are objects. Two
leaders may have copied the same offsets, so segments may overlap. Offsets are served by the segment
that has them in the leader epoch of this log, and reaches furthest.

Each segment also has whether its object was encrypted when it was copied. The bucket cannot change
that, so the records of the topic have it, and manifests do not.

Only `replay` changes state. A record that is not a legal move is ignored: it was written by a
leader that did not yet know of its successor, and the segment's later state holds.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from shoal.tiered.metadata_records import (
    MOVES,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_CUSTOM = struct.Struct(">BQI")
_CUSTOM_VERSION = 0
#: A packed segment, in memory and in manifests: segment id, base and end offset, largest timestamp,
#: log size, object size, footer size, broker, whether the transaction index is empty, number of
#: leader epochs. The epochs follow, and in memory a byte with the `Encryption`.
_PACKED = struct.Struct(">16sqqqQQIi?H")
_EPOCH = struct.Struct(">iq")
_OFFSETS = struct.Struct(">16xqq")
#: Base and end offset, largest timestamp and log size.
_EXTENT = struct.Struct(">16xqqqQ")
_COUNT = struct.Struct(">H")
ID_SIZE = 16


class Encryption(IntEnum):
    """Whether a leader has encrypted the object that it copied. The metadata of earlier releases,
    and what was written again from the bucket, does not say it."""

    UNKNOWN = 0
    CLEAR = 1
    ENCRYPTED = 2


_ENCRYPTIONS = dict(enumerate(Encryption))


class RemoteSegment(NamedTuple):
    """One remote segment. Offsets are inclusive, sizes in bytes. `object_size` and `footer_size`
    are 0 until the copy has finished, and `encryption` is unknown until then."""

    segment_id: UUID
    base_offset: int
    end_offset: int
    max_timestamp: int
    log_size: int
    object_size: int
    footer_size: int
    broker_id: int
    txn_index_empty: bool
    leader_epochs: tuple[tuple[int, int], ...]
    encryption: Encryption = Encryption.UNKNOWN

    def find_epoch(self, offset: int) -> int:
        """Return the leader epoch in which an offset of this segment was written, or -1."""
        index = bisect_right(self.leader_epochs, offset, key=lambda entry: entry[1]) - 1
        return self.leader_epochs[index][0] if index >= 0 else -1


def encode_custom_metadata(
    object_size: int, footer_size: int, encryption: Encryption = Encryption.UNKNOWN
) -> bytes:
    """Return what a finished copy adds to the metadata of its segment. Earlier releases leave the
    byte at the end alone."""
    sizes = _CUSTOM.pack(_CUSTOM_VERSION, object_size, footer_size)
    return sizes if encryption is Encryption.UNKNOWN else sizes + bytes((encryption,))


def _read_encryption(end: int, data: bytes) -> Encryption:
    """Return what the byte at a position says, if there is one that this release knows."""
    number = data[end] if end < len(data) else 0
    return _ENCRYPTIONS.get(number, Encryption.UNKNOWN)


class RemoteLog:
    """The remote segments of one partition by state."""

    __slots__ = (
        "_bases",
        "_ends_max",
        "_finished",
        "_other",
        "fingerprint",
        "size_bytes",
        "transactions_end",
    )

    def __init__(self) -> None:
        self._finished: list[bytes] = []
        self._bases: list[int] = []
        #: The largest end offset up to each finished segment.
        self._ends_max: list[int] = []
        #: Segments that are being copied or deleted.
        self._other: dict[UUID, tuple[RemoteLogSegmentState, RemoteSegment]] = {}
        #: Bytes of the logs of finished segments.
        self.size_bytes = 0
        #: The ids of the finished segments by exclusive or, which are random.
        self.fingerprint = 0
        #: The last offset of finished segments that have aborted transactions.
        self.transactions_end = -1

    def __len__(self) -> int:
        return len(self._finished)

    def __iter__(self) -> Iterator[RemoteSegment]:
        """Iterate over the finished segments in order of their base offsets."""
        return map(unpack, self._finished)

    def list_finished(self) -> tuple[bytes, ...]:
        """Return the finished segments of this moment, each as `unpack` reads it, in order of their
        offsets."""
        return tuple(self._finished)

    def get_unfinished_ids(self) -> frozenset[UUID]:
        """Return the ids of the segments that are being copied or deleted."""
        return frozenset(self._other)

    def pack_finished(self) -> bytes:
        """Return the finished segments, packed one behind the other as in a manifest."""
        return b"".join([packed[:-1] for packed in self._finished])

    def iter_segment_ranges(self) -> Iterator[tuple[int, int, int, int]]:
        """Iterate over the finished segments in order of their base offsets: base offset, end
        offset (exclusive), log size and largest timestamp."""
        for packed in self._finished:
            base_offset, end_offset, max_timestamp, log_size = _EXTENT.unpack_from(packed)
            yield base_offset, end_offset + 1, log_size, max_timestamp

    def get_packed_ids(self) -> set[bytes]:
        """Return the ids of the finished segments, as they begin packed segments."""
        return {packed[:ID_SIZE] for packed in self._finished}

    def find_in_state(self, state: RemoteLogSegmentState) -> list[RemoteSegment]:
        """Return the segments that are being copied or deleted, in order of their offsets."""
        segments = (
            segment for segment_state, segment in self._other.values() if segment_state is state
        )
        return sorted(segments, key=lambda segment: segment.base_offset)

    def find_below(self, offset: int) -> list[RemoteSegment]:
        """Return the finished segments that end below an offset."""
        out = []
        for packed, base in zip(self._finished, self._bases, strict=True):
            if base >= offset:
                break
            if _OFFSETS.unpack_from(packed)[1] < offset:
                out.append(unpack(packed))
        return out

    @property
    def is_empty(self) -> bool:
        """Whether no segment is in any state before the last."""
        return not self._finished and not self._other

    @property
    def start_offset(self) -> int | None:
        """The first finished offset, None without a finished segment."""
        return self._bases[0] if self._bases else None

    @property
    def end_offset(self) -> int:
        """The last finished offset, -1 without a finished segment."""
        return self._ends_max[-1] if self._ends_max else -1

    def find(self, offset: int, leader_epoch: int) -> RemoteSegment | None:
        """Return the finished segment with `offset` in `leader_epoch`, the one that reaches
        furthest. An epoch of -1 is unknown and matches any."""
        best: RemoteSegment | None = None
        index = bisect_right(self._bases, offset) - 1
        while index >= 0 and self._ends_max[index] >= offset:
            packed = self._finished[index]
            end_offset = _OFFSETS.unpack_from(packed)[1]
            if end_offset >= offset and (best is None or end_offset > best.end_offset):
                segment = unpack(packed)
                if leader_epoch in (-1, segment.find_epoch(offset)):
                    best = segment
            index -= 1
        return best

    def has_offsets(self, start: int, end: int) -> bool:
        """Whether finished segments have every offset in [start, end), apart from gaps inside of
        segments."""
        offset = start
        while offset < end:
            last = bisect_right(self._bases, offset) - 1
            if last < 0 or self._ends_max[last] < offset:
                return False
            offset = self._ends_max[last] + 1
        return True

    def replay(self, record: RemoteLogSegmentMetadata | RemoteLogSegmentUpdate) -> None:
        """Apply a record of this partition."""
        if isinstance(record, RemoteLogSegmentMetadata):
            if not self._has(record):
                segment = RemoteSegment(
                    record.id.segment_id,
                    record.base_offset,
                    record.end_offset,
                    record.max_timestamp,
                    record.log_size,
                    0,
                    0,
                    record.broker_id,
                    record.txn_index_empty,
                    record.leader_epochs,
                )
                self._other[record.id.segment_id] = (record.state, segment)
            return
        self._update(record)

    def forget(self, segment_id: UUID) -> None:
        """Remove a segment whose records were removed from the topic, if it is known."""
        if self._find_state(segment_id) is not None:
            self._take(segment_id)

    def _update(self, record: RemoteLogSegmentUpdate) -> None:
        state = self._find_state(record.id.segment_id)
        if state is None or record.state not in MOVES[state]:
            return
        segment = self._take(record.id.segment_id)
        if record.custom is not None and len(record.custom) >= _CUSTOM.size:
            _, object_size, footer_size = _CUSTOM.unpack_from(record.custom)
            segment = segment._replace(
                object_size=object_size,
                footer_size=footer_size,
                # A record that was written again knows less.
                encryption=_read_encryption(_CUSTOM.size, record.custom) or segment.encryption,
            )
        if record.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            self._insert(segment)
        elif record.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            self._other[record.id.segment_id] = (record.state, segment)

    def _has(self, record: RemoteLogSegmentMetadata) -> bool:
        """Whether the segment is known. A producer's retry may have written its record twice."""
        if record.id.segment_id in self._other:
            return True
        index = bisect_left(self._bases, record.base_offset)
        wanted_id = record.id.segment_id.bytes
        while index < len(self._bases) and self._bases[index] == record.base_offset:
            if self._finished[index].startswith(wanted_id):
                return True
            index += 1
        return False

    def _find_state(self, segment_id: UUID) -> RemoteLogSegmentState | None:
        if segment_id in self._other:
            return self._other[segment_id][0]
        is_finished = self._find_position(segment_id) is not None
        return RemoteLogSegmentState.COPY_SEGMENT_FINISHED if is_finished else None

    def _find_position(self, segment_id: UUID) -> int | None:
        # Retention removes the oldest segments, which come first.
        wanted_id = segment_id.bytes
        for index, packed in enumerate(self._finished):
            if packed.startswith(wanted_id):
                return index
        return None

    def _take(self, segment_id: UUID) -> RemoteSegment:
        """Remove a segment from the state that it has."""
        if segment_id in self._other:
            return self._other.pop(segment_id)[1]
        index = self._find_position(segment_id)
        assert index is not None
        segment = unpack(self._finished.pop(index))
        del self._bases[index], self._ends_max[index]
        self.size_bytes -= segment.log_size
        self.fingerprint ^= segment.segment_id.int
        self._find_ends(index)
        return segment

    def _insert(self, segment: RemoteSegment) -> None:
        index = bisect_right(self._bases, segment.base_offset)
        self._finished.insert(index, pack(segment) + bytes((segment.encryption,)))
        if not segment.txn_index_empty:
            self.transactions_end = max(self.transactions_end, segment.end_offset)
        self._bases.insert(index, segment.base_offset)
        self._ends_max.insert(index, -1)
        self.size_bytes += segment.log_size
        self.fingerprint ^= segment.segment_id.int
        self._find_ends(index)

    def _find_ends(self, start: int) -> None:
        """Compute the largest end offsets again from a position on, as far as they change."""
        ends = self._ends_max
        largest = ends[start - 1] if start else -1
        for index in range(start, len(ends)):
            largest = max(largest, _OFFSETS.unpack_from(self._finished[index])[1])
            if ends[index] == largest:
                break
            ends[index] = largest


def pack(segment: RemoteSegment) -> bytes:
    """Return a segment as a manifest has it, without its encryption."""
    return _PACKED.pack(
        segment.segment_id.bytes,
        *segment[1:9],
        len(segment.leader_epochs),
    ) + b"".join(_EPOCH.pack(*entry) for entry in segment.leader_epochs)


def split_packed(packed: bytes) -> Iterator[bytes]:
    """Split packed segments. Each begins with its id. Raises `ValueError` for invalid bytes."""
    position = 0
    while position < len(packed):
        epochs = position + _PACKED.size
        if epochs <= len(packed):
            (count,) = _COUNT.unpack_from(packed, epochs - _COUNT.size)
            end = epochs + count * _EPOCH.size
        if epochs > len(packed) or end > len(packed):
            raise ValueError(
                f"a packed segment is cut off: {len(packed) - position} bytes are left"
            )
        yield packed[position:end]
        position = end


def unpack_all(packed: bytes) -> Iterator[RemoteSegment]:
    """Iterate over packed segments. Raises `ValueError` for invalid bytes."""
    return map(unpack, split_packed(packed))


def unpack(packed: bytes) -> RemoteSegment:
    """Return the segment that `pack` packed, with its encryption if that follows."""
    segment_id, *fields, count = _PACKED.unpack_from(packed)
    epochs = tuple(
        _EPOCH.unpack_from(packed, _PACKED.size + number * _EPOCH.size) for number in range(count)
    )
    encryption = _read_encryption(_PACKED.size + count * _EPOCH.size, packed)
    return RemoteSegment._make((UUID(bytes=segment_id), *fields, epochs, encryption))
