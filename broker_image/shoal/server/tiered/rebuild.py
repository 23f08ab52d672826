"""Writes records of `__remote_log_metadata` again, from manifests and from the objects.

The topic may lose records, or all of them, if its replicas lose their disks. The manifest of a
partition has every finished segment. Without a manifest, each object describes itself in its
footer. The started and the finished record of a segment are written in one batch: a started one
alone would look like an attempt that nothing finishes any more, whose object is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.tiered import audit, keys
from shoal.tiered.metadata_records import (
    SegmentAdded,
    SegmentId,
    SegmentState,
    SegmentUpdated,
    encode,
    key_of,
)
from shoal.tiered.remote_log import ID_SIZE, custom_metadata, pieces, unpack_all
from shoal.tiered.segment_object import (
    TRAILER_SIZE,
    DamagedObject,
    footer_bytes_needed,
    read_footer,
)
from shoal.tiered.store import Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from shoal.tiered.remote_log import RemoteLog, RemoteSegment
    from shoal.tiered.store import ObjectInfo, ObjectStore

#: Segments whose records are written together.
BATCH = 100
#: Bytes at the end of an object that are read first. The footer of 4 GB of log fits.
_END_BYTES = 32 << 10

Pair = tuple[bytes, bytes | None]


def batches(
    topic: str,
    key: tuple[UUID, int],
    segments: Sequence[RemoteSegment],
    *,
    broker_id: int,
    now_ms: int,
) -> Iterable[list[Pair]]:
    """Return the records of finished segments, as the batches in which they are appended."""
    for at in range(0, len(segments), BATCH):
        out: list[Pair] = []
        for segment in segments[at : at + BATCH]:
            identity = SegmentId(topic, *key, segment.segment_id)
            added = SegmentAdded(
                identity,
                segment.base_offset,
                segment.end_offset,
                segment.broker_id,
                segment.max_timestamp,
                now_ms,
                segment.leader_epochs,
                segment.log_size,
                SegmentState.COPY_SEGMENT_STARTED,
                segment.txn_index_empty,
            )
            custom = custom_metadata(segment.object_size, segment.footer_size)
            finished = SegmentUpdated(
                identity, broker_id, now_ms, custom, SegmentState.COPY_SEGMENT_FINISHED
            )
            out += [(key_of(added), encode(added)), (key_of(finished), encode(finished))]
        yield out


def unfinished(packed: bytes, remote: RemoteLog) -> list[RemoteSegment]:
    """Return the segments of a manifest whose records are missing, or end before the copy does.
    Others are not unpacked: a manifest may have thousands, and usually none is lost."""
    deleting = remote.in_state(SegmentState.DELETE_SEGMENT_STARTED)
    known = remote.packed_ids() | {segment.segment_id.bytes for segment in deleting}
    lost = b"".join(one for one in pieces(packed) if one[:ID_SIZE] not in known)
    return list(unpack_all(lost))


async def present(
    store: ObjectStore, prefix: str, segments: Iterable[RemoteSegment]
) -> tuple[list[RemoteSegment], list[RemoteSegment]]:
    """Divide segments into those whose objects are whole, and the others. Raises `StoreError`."""
    sizes = {info.key: info.size async for info in store.list(prefix)}
    whole: list[RemoteSegment] = []
    missing: list[RemoteSegment] = []
    for segment in segments:
        key = keys.segment_key(prefix, segment.base_offset, segment.segment_id)
        (whole if sizes.get(key) == segment.object_size else missing).append(segment)
    return whole, missing


async def described(store: ObjectStore, infos: Iterable[ObjectInfo]) -> list[RemoteSegment]:
    """Return the segments that objects describe in their footers. Objects that are damaged, or
    belong to another place, are left out. Raises `StoreError`."""
    out = []
    for info in infos:
        try:
            found = await _segment(store, info)
        except DamagedObject:
            continue
        if found is not None:
            out.append(found)
    return out


async def _segment(store: ObjectStore, info: ObjectInfo) -> RemoteSegment | None:
    (end,) = await store.get_ranges(info.key, [Range(max(0, info.size - _END_BYTES), info.size)])
    needed = footer_bytes_needed(end)
    if needed > info.size:
        raise DamagedObject(f"{info.key} has a footer that is larger than the object")
    if needed > len(end):
        (end,) = await store.get_ranges(info.key, [Range(info.size - needed, info.size)])
    assert needed >= TRAILER_SIZE
    return audit.described(info, read_footer(end), needed)
