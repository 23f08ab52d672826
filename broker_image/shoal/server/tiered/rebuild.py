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
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    encode,
    encode_key,
)
from shoal.tiered.remote_log import ID_SIZE, encode_custom_metadata, split_packed, unpack_all
from shoal.tiered.segment_object import (
    TRAILER_SIZE,
    DamagedObject,
    find_footer_bytes_needed,
    read_footer,
)
from shoal.tiered.store import ByteRange

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


def build_batches(
    topic: str,
    key: tuple[UUID, int],
    segments: Sequence[RemoteSegment],
    *,
    broker_id: int,
    now_ms: int,
) -> Iterable[list[Pair]]:
    """Return the records of finished segments, as the batches in which they are appended."""
    for index in range(0, len(segments), BATCH):
        out: list[Pair] = []
        for segment in segments[index : index + BATCH]:
            identity = RemoteLogSegmentId(topic, *key, segment.segment_id)
            added = RemoteLogSegmentMetadata(
                identity,
                segment.base_offset,
                segment.end_offset,
                segment.broker_id,
                segment.max_timestamp,
                now_ms,
                segment.leader_epochs,
                segment.log_size,
                RemoteLogSegmentState.COPY_SEGMENT_STARTED,
                segment.txn_index_empty,
            )
            custom = encode_custom_metadata(segment.object_size, segment.footer_size)
            finished = RemoteLogSegmentUpdate(
                identity, broker_id, now_ms, custom, RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            )
            out += [(encode_key(added), encode(added)), (encode_key(finished), encode(finished))]
        yield out


def find_unfinished(packed: bytes, remote: RemoteLog) -> list[RemoteSegment]:
    """Return the segments of a manifest whose records are missing, or end before the copy does.
    Others are not unpacked: a manifest may have thousands, and usually none is lost."""
    deleting = remote.find_in_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    known_ids = remote.get_packed_ids() | {segment.segment_id.bytes for segment in deleting}
    lost = b"".join(piece for piece in split_packed(packed) if piece[:ID_SIZE] not in known_ids)
    return list(unpack_all(lost))


async def split_present(
    store: ObjectStore, prefix: str, segments: Iterable[RemoteSegment]
) -> tuple[list[RemoteSegment], list[RemoteSegment]]:
    """Divide segments into those whose objects are whole, and the others. Raises `StoreError`."""
    sizes = {info.key: info.size async for info in store.list_objects(prefix)}
    complete: list[RemoteSegment] = []
    missing: list[RemoteSegment] = []
    for segment in segments:
        key = keys.format_segment_key(prefix, segment.base_offset, segment.segment_id)
        (complete if sizes.get(key) == segment.object_size else missing).append(segment)
    return complete, missing


async def read_descriptions(store: ObjectStore, infos: Iterable[ObjectInfo]) -> list[RemoteSegment]:
    """Return the segments that objects describe in their footers. Objects that are damaged, or
    belong to another place, are left out. Raises `StoreError`."""
    out = []
    for info in infos:
        try:
            segment = await _read_segment(store, info)
        except DamagedObject:
            continue
        if segment is not None:
            out.append(segment)
    return out


async def _read_segment(store: ObjectStore, info: ObjectInfo) -> RemoteSegment | None:
    (end,) = await store.get_ranges(
        info.key, [ByteRange(max(0, info.size - _END_BYTES), info.size)]
    )
    needed = find_footer_bytes_needed(end)
    if needed > info.size:
        raise DamagedObject(f"{info.key} has a footer that is larger than the object")
    if needed > len(end):
        (end,) = await store.get_ranges(info.key, [ByteRange(info.size - needed, info.size)])
    assert needed >= TRAILER_SIZE
    return audit.build_segment(info, read_footer(end), needed)
