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
    work = steps(infos, remote)
    while True:
        try:
            next(work)
        except StopIteration as end:
            audit: Audit = end.value
            return audit


def steps(infos: Iterable[ObjectInfo], remote: RemoteLog) -> Generator[None, None, Audit]:
    """Compare in steps of `STEP` objects or segments, and return what `compare` does. The segments
    are those at the beginning."""
    finished, other = remote.finished(), remote.unfinished_ids()
    known: set[bytes] = set()
    for at in range(0, len(finished), STEP):
        known.update(packed[:ID_SIZE] for packed in finished[at : at + STEP])
        yield
    sizes: dict[UUID, int] = {}
    orphans: list[ObjectInfo] = []
    for number, info in enumerate(infos, 1):
        segment_id = keys.segment_id_of(info.key)
        if segment_id is not None:
            sizes[segment_id] = info.size
            if segment_id.bytes not in known and segment_id not in other:
                orphans.append(info)
        if number % STEP == 0:
            yield
    missing: list[RemoteSegment] = []
    for at in range(0, len(finished), STEP):
        segments = map(unpack, finished[at : at + STEP])
        missing += [s for s in segments if sizes.get(s.segment_id) != s.object_size]
        yield
    orphans.sort(key=lambda info: (info.modified_ms, info.key))
    return Audit(len(sizes), sum(sizes.values()), tuple(orphans), tuple(missing))


def unnamed(infos: Iterable[ObjectInfo], remote: RemoteLog) -> list[ObjectInfo]:
    """Return the objects that no metadata names now."""
    finished, other = remote.packed_ids(), remote.unfinished_ids()
    out = []
    for info in infos:
        segment_id = keys.segment_id_of(info.key)
        if segment_id is None or (segment_id.bytes not in finished and segment_id not in other):
            out.append(info)
    return out


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
