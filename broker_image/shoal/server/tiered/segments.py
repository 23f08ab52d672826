"""Reads of the parts of a segment's object behind its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.checkpoints import parse_epochs
from shoal.log.remote import RebuiltState
from shoal.tiered import keys
from shoal.tiered.segment_object import DamagedObject, Footer, Section, read_footer
from shoal.tiered.store import Range

if TYPE_CHECKING:
    from shoal.tiered.remote_log import RemoteSegment
    from shoal.tiered.sealing import KeyRing
    from shoal.tiered.store import ObjectStore


async def footer(store: ObjectStore, prefix: str, segment: RemoteSegment) -> Footer:
    """Download the footer of a segment. Raises `DamagedObject`, `StoreError`."""
    key = keys.segment_key(prefix, segment.base_offset, segment.segment_id)
    end = segment.object_size
    (data,) = await store.get_ranges(key, [Range(end - segment.footer_size, end)])
    found = read_footer(data)
    if found.description.segment_id != segment.segment_id:
        raise DamagedObject(f"{key} has the segment {found.description.segment_id}")
    return found


async def state_behind(
    store: ObjectStore, prefix: str, segment: RemoteSegment, ring: KeyRing
) -> RebuiltState:
    """Return what a segment knows of all records up to its end. Raises `DamagedObject`,
    `KeyUnavailable`, `StoreError`."""
    of = await footer(store, prefix, segment)
    wanted = (Section.LEADER_EPOCHS, Section.PRODUCER_SNAPSHOT)
    missing = [kind.name for kind in wanted if kind not in of.sections]
    if missing:
        raise DamagedObject(f"segment {segment.segment_id} has no {' and no '.join(missing)}")
    key = keys.segment_key(prefix, segment.base_offset, segment.segment_id)
    sealed = await store.get_ranges(key, [of.section_range(kind) for kind in wanted])
    cipher = of.cipher(ring)
    checkpoint, snapshot = (
        bytes(of.section(kind, data, cipher)) for kind, data in zip(wanted, sealed, strict=True)
    )
    epochs = parse_epochs(checkpoint)
    if not epochs:
        raise DamagedObject(f"segment {segment.segment_id} has no valid LEADER_EPOCHS")
    return RebuiltState(segment.end_offset + 1, tuple(epochs), snapshot)
