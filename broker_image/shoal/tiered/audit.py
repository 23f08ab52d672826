"""What a partition's objects and its metadata have, compared both ways.

An object that no metadata names is an orphan: a leader was deposed or killed between two steps, or
the metadata was lost. After a grace period, orphans are deleted. If finished segments do not have
all offsets that they must have, the orphans may be the only copies, and none may be deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.tiered import keys
from shoal.tiered.remote_log import RemoteSegment
from shoal.tiered.segment_object import Footer, Section

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from shoal.tiered.remote_log import RemoteLog
    from shoal.tiered.store import ObjectInfo


class Audit(NamedTuple):
    """The result for one partition."""

    #: Objects of segments, and their sizes in bytes together.
    objects: int
    size_bytes: int
    #: Objects that no metadata names, oldest first.
    orphans: tuple[ObjectInfo, ...]
    #: Finished segments without an object, or with one of another size.
    missing: tuple[RemoteSegment, ...]

    @property
    def orphans_bytes(self) -> int:
        return sum(info.size for info in self.orphans)

    def due(self, now_ms: int, grace_ms: int) -> list[ObjectInfo]:
        """Return the orphans whose grace period is over."""
        return [info for info in self.orphans if now_ms - info.modified_ms >= grace_ms]


def compare(infos: Iterable[ObjectInfo], remote: RemoteLog) -> Audit:
    """Compare the objects of a partition with its remote log. Objects that are not segments are
    ignored."""
    known = remote.ids()
    sizes: dict[UUID, int] = {}
    orphans: list[ObjectInfo] = []
    for info in infos:
        segment_id = keys.segment_id_of(info.key)
        if segment_id is None:
            continue
        sizes[segment_id] = info.size
        if segment_id not in known:
            orphans.append(info)
    missing = tuple(
        segment for segment in remote if sizes.get(segment.segment_id) != segment.object_size
    )
    orphans.sort(key=lambda info: (info.modified_ms, info.key))
    return Audit(len(sizes), sum(sizes.values()), tuple(orphans), missing)


def described(info: ObjectInfo, footer: Footer, footer_size: int) -> RemoteSegment | None:
    """Return the segment that an object describes, None if its name is that of another one."""
    found = footer.description
    if keys.segment_id_of(info.key) != found.segment_id:
        return None
    transactions = footer.sections.get(Section.TRANSACTION_INDEX)
    return RemoteSegment(
        found.segment_id,
        found.base_offset,
        found.end_offset,
        found.max_timestamp,
        found.log_size,
        info.size,
        footer_size,
        found.broker_id,
        transactions is None or not transactions.size,
        found.leader_epochs,
    )
