"""Reads of the parts of a segment's object behind its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.checkpoints import parse_epochs
from shoal.log.remote import RebuiltState
from shoal.tiered import keys
from shoal.tiered.remote_log import Encryption
from shoal.tiered.segment_object import DamagedObject, Footer, Section, read_footer
from shoal.tiered.store import ByteRange

if TYPE_CHECKING:
    from shoal.tiered.remote_log import RemoteSegment
    from shoal.tiered.sealing import KeyRing
    from shoal.tiered.store import ObjectStore


async def download_footer(
    store: ObjectStore, prefix: str, segment: RemoteSegment, *, accepts_clear: bool
) -> Footer:
    """Download the footer of a segment. Raises `DamagedObject`, `StoreError`.

    With `accepts_clear`, an object may be in the clear if nothing says that it was encrypted.
    Otherwise the metadata must say that it was not: every writer of the bucket can put one there.
    """
    key = keys.format_segment_key(prefix, segment.base_offset, segment.segment_id)
    end = segment.object_size
    (data,) = await store.get_ranges(key, [ByteRange(end - segment.footer_size, end)])
    parsed = read_footer(data)
    if parsed.description.segment_id != segment.segment_id:
        raise DamagedObject(f"{key} has the segment {parsed.description.segment_id}")
    if parsed.envelope is None:
        _check_clear(key, segment.encryption, accepts_clear=accepts_clear)
    return parsed


def _check_clear(key: str, encryption: Encryption, *, accepts_clear: bool) -> None:
    """Raise `DamagedObject` unless an object may be in the clear."""
    if encryption is Encryption.ENCRYPTED:
        raise DamagedObject(
            f"{key} is not encrypted, and it was when it was copied: a writer of the bucket has"
            " replaced it. Restore an older version of the object"
        )
    if encryption is Encryption.UNKNOWN and not accepts_clear:
        raise DamagedObject(
            f"{key} is not encrypted, and no metadata of this cluster says that it was copied so: a"
            " writer of the bucket may have put it there. If it was copied before there was a key,"
            " by an earlier release or before the cluster was restored, accept it with"
            " shoal.remote.encryption.clear.segments.enable=true"
        )


async def fetch_state_behind(
    store: ObjectStore,
    prefix: str,
    segment: RemoteSegment,
    ring: KeyRing,
    *,
    accepts_clear: bool,
) -> RebuiltState:
    """Return what a segment knows of all records up to its end. Raises `DamagedObject`,
    `KeyUnavailable`, `StoreError`."""
    of = await download_footer(store, prefix, segment, accepts_clear=accepts_clear)
    needed = (Section.LEADER_EPOCHS, Section.PRODUCER_SNAPSHOT)
    missing = [kind.name for kind in needed if kind not in of.sections]
    if missing:
        raise DamagedObject(f"segment {segment.segment_id} has no {' and no '.join(missing)}")
    key = keys.format_segment_key(prefix, segment.base_offset, segment.segment_id)
    sealed = await store.get_ranges(key, [of.get_section_range(kind) for kind in needed])
    cipher = of.open_cipher(ring)
    checkpoint, snapshot = (
        bytes(of.open_section(kind, data, cipher))
        for kind, data in zip(needed, sealed, strict=True)
    )
    epochs = parse_epochs(checkpoint)
    if not epochs:
        raise DamagedObject(f"segment {segment.segment_id} has no valid LEADER_EPOCHS")
    return RebuiltState(segment.end_offset + 1, tuple(epochs), snapshot)
