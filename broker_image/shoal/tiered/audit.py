"""What a partition's objects and its metadata have, compared both ways.

An object that no metadata names is an orphan: a leader was deposed or killed between two steps, or
the metadata was lost. After a grace period, orphans are deleted. If finished segments do not have
all offsets that they must have, the orphans may be the only copies, and none may be deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.tiered import keys
from shoal.tiered.remote_log import ID_SIZE, RemoteSegment, unpack
from shoal.tiered.segment_object import Footer, Section

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from uuid import UUID

    from shoal.tiered.remote_log import RemoteLog
    from shoal.tiered.store import ObjectInfo

#: Objects or segments that one step looks at: 3 ms of work. A partition may have 100,000 of them.
STEP = 500


class ObjectAudit(NamedTuple):
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

    def find_due(self, now_ms: int, grace_ms: int) -> list[ObjectInfo]:
        """Return the orphans whose grace period is over."""
        return [info for info in self.orphans if now_ms - info.modified_ms >= grace_ms]


def compare(infos: Iterable[ObjectInfo], remote: RemoteLog) -> ObjectAudit:
    """Compare the objects of a partition with its remote log. Objects that are not segments are
    ignored."""
    work = compare_in_steps(infos, remote)
    while True:
        try:
            next(work)
        except StopIteration as end:
            audit: ObjectAudit = end.value
            return audit


def compare_in_steps(
    infos: Iterable[ObjectInfo], remote: RemoteLog
) -> Generator[None, None, ObjectAudit]:
    """Compare in steps of `STEP` objects or segments, and return what `compare` does. The segments
    are those at the beginning."""
    finished, unfinished_ids = remote.list_finished(), remote.get_unfinished_ids()
    finished_ids: set[bytes] = set()
    for start in range(0, len(finished), STEP):
        finished_ids.update(packed[:ID_SIZE] for packed in finished[start : start + STEP])
        yield
    sizes: dict[UUID, int] = {}
    orphans: list[ObjectInfo] = []
    for number, info in enumerate(infos, 1):
        segment_id = keys.parse_segment_id(info.key)
        if segment_id is not None:
            sizes[segment_id] = info.size
            if segment_id.bytes not in finished_ids and segment_id not in unfinished_ids:
                orphans.append(info)
        if number % STEP == 0:
            yield
    missing: list[RemoteSegment] = []
    for start in range(0, len(finished), STEP):
        segments = map(unpack, finished[start : start + STEP])
        missing += [s for s in segments if sizes.get(s.segment_id) != s.object_size]
        yield
    orphans.sort(key=lambda info: (info.modified_ms, info.key))
    return ObjectAudit(len(sizes), sum(sizes.values()), tuple(orphans), tuple(missing))


def find_unnamed(infos: Iterable[ObjectInfo], remote: RemoteLog) -> list[ObjectInfo]:
    """Return the objects that no metadata names now."""
    finished, unfinished_ids = remote.get_packed_ids(), remote.get_unfinished_ids()
    out = []
    for info in infos:
        segment_id = keys.parse_segment_id(info.key)
        if segment_id is None or (
            segment_id.bytes not in finished and segment_id not in unfinished_ids
        ):
            out.append(info)
    return out


def build_segment(info: ObjectInfo, footer: Footer, footer_size: int) -> RemoteSegment | None:
    """Return the segment that an object describes, None if its name is that of another one."""
    description = footer.description
    if keys.parse_segment_id(info.key) != description.segment_id:
        return None
    transactions = footer.sections.get(Section.TRANSACTION_INDEX)
    return RemoteSegment(
        description.segment_id,
        description.base_offset,
        description.end_offset,
        description.max_timestamp,
        description.log_size,
        info.size,
        footer_size,
        description.broker_id,
        transactions is None or not transactions.size,
        description.leader_epochs,
    )
