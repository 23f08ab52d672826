"""Progress of a group member that finishes records individually, for one partition.

`position` is the lowest offset that is not finished. Offsets above it that are finished form
ranges. The gaps between them are records that the application has not finished. Holes in the log,
such as control records, aborted records and what compaction removed, are finished when they are
passed: only the reader of the log sees them.

No I/O: `consumer.GroupConsumer` fetches and commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.finished_offsets import FinishedOffsets, Range
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shoal.client.consume.fetcher import FetchedBatches
    from shoal.record.records import Record


class ProgressCommit(NamedTuple):
    """What a commit of one partition names as finished: all below `position`, and `ranges`.

    `plain` means that it replaces what the coordinator has.
    """

    position: int
    ranges: tuple[Range, ...] = ()
    plain: bool = False

    def to_fields(self) -> dict[str, Any]:
        """Return the field of OffsetCommit that makes the commit individual."""
        if self.plain:
            return {}
        key_range = {
            "first_hash": 0,
            "last_hash": KEY_HASH_MAX,
            "position": self.position,
            "finished": FinishedOffsets.from_ranges(self.ranges).encode(),
        }
        return {"key_ranges": [key_range]}


class PartitionProgress:
    """Owns the finished offsets of one partition, and which of them are committed."""

    def __init__(self, position: int, finished: Iterable[Range] = (), *, committed: bool) -> None:
        """Start at a committed position with the finished ranges above it, or at a position that
        is not `committed`."""
        self.position = position
        self._finished = OffsetSet()
        self._committed = OffsetSet()
        #: All that was sent. The coordinator may have stored it although its answer was lost.
        self._sent = OffsetSet()
        self._committed_position = position if committed else -1
        #: The coordinator may have more than is finished here, so the next commit replaces it.
        self._replaces = False
        for first, last in finished:
            self._finished.add(first, last)
            self._committed.add(first, last)
            self._sent.add(first, last)

    @property
    def ranges(self) -> int:
        """Number of finished ranges above the position."""
        return self._finished.range_count

    def should_fetch(self, offset: int, ranges_max: int) -> bool:
        """Return whether to fetch at offset `offset`.

        At the limit of ranges nothing new is fetched. What is between finished offsets is fetched
        in any case: after a restart, only that closes the gaps.
        """
        return self.ranges < ranges_max or offset <= self._finished.last

    def deliver(self, fetched: FetchedBatches) -> Iterator[Record]:
        """Yield the fetched records that are not finished. Finish the holes between records."""
        next_offset = fetched.first
        for record in fetched.records():
            self._pass(next_offset, record.offset)
            next_offset = record.offset + 1
            if record.offset >= self.position and record.offset not in self._finished:
                yield record
        self._pass(next_offset, fetched.next_offset)

    def jump(self, old: int, new: int) -> None:
        """Continue to read at `new`: the log does not contain `old`.

        The offsets up to a later `new` are passed. An earlier `new` starts again from there.
        """
        if new >= old:
            self._pass(old, new)
        else:
            self.position = new
            self._finished, self._sent = OffsetSet(), OffsetSet()
            self.forget_commits()
            self._replaces = True

    def _pass(self, first: int, end: int) -> None:
        if first < end:
            self.finish(first, end - 1)

    def finish(self, first: int, last: int) -> None:
        """Finish a range of offsets; repeated ones are ignored."""
        if last < self.position:
            return
        self._finished.add(max(first, self.position), last)
        self._advance(self._finished.find_first_missing(self.position))

    def _advance(self, position: int) -> None:
        if position > self.position:
            self.position = position
            self._finished.forget(position)
            self._committed.forget(position)
            self._sent.forget(position)

    def forget_commits(self) -> None:
        """Commit everything again: another coordinator may lack it."""
        self._committed = OffsetSet()
        self._committed_position = -1

    def collect_commit(self, ranges_max: int) -> ProgressCommit | None:
        """Return what is finished and not committed; None if there is nothing.

        The coordinator stores and accepts `ranges_max` ranges. The highest ones of more wait.
        """
        if self._replaces:
            return ProgressCommit(self.position, plain=True)
        new, sent, sent_count = [], [], 0
        for first, last in self._finished.iter_ranges():
            if not any(inside for _, _, inside in self._sent.cut(first, last)):
                new.append((first, last))
                continue
            sent_count += 1
            if not all(inside for _, _, inside in self._committed.cut(first, last)):
                sent.append((first, last))
        sent = sorted(sent + new[: max(0, ranges_max - sent_count)])[:ranges_max]
        for first, last in sent:
            self._sent.add(first, last)
        if not sent and self.position <= self._committed_position:
            return None
        return ProgressCommit(self.position, tuple(sent))

    def collect_plain_commit(self) -> ProgressCommit | None:
        """Return the position for a coordinator without individual commits; None if it has it."""
        if not self._replaces and self.position <= self._committed_position:
            return None
        return ProgressCommit(self.position, plain=True)

    def make_commit(self, offsets: Iterable[int]) -> ProgressCommit:
        """Return the commit that finishes these offsets, and change nothing: a transaction may
        abort. `on_transaction_committed` notes it.

        Raises `ValueError` for an offset that is finished already.
        """
        finished = OffsetSet()
        for offset in offsets:
            if offset < self.position or offset in self._finished:
                raise ValueError(f"offset {offset} is finished already")
            finished.add(offset)
        position = self.position
        while (
            after := self._finished.find_first_missing(finished.find_first_missing(position))
        ) > position:
            position = after
        finished.forget(position)
        return ProgressCommit(position, tuple(finished.iter_ranges()))

    def on_transaction_committed(self, commit: ProgressCommit) -> None:
        """Finish what a transaction has committed, so that it is not committed again."""
        for first, last in commit.ranges:
            self._committed.add(first, last)
            self._sent.add(first, last)
        reached = max(self._committed_position, commit.position)
        self._committed_position = self._committed.find_first_missing(reached)
        for first, last in commit.ranges:
            self.finish(first, last)
        self._pass(self.position, commit.position)
        self._committed.forget(self.position)
        self._sent.forget(self.position)

    def on_committed(self, commit: ProgressCommit, stable_offset: int) -> None:
        """Note a commit that the coordinator answered with `stable_offset`."""
        self._replaces = self._replaces and not commit.plain
        self._committed_position = max(self._committed_position, commit.position)
        for first, last in commit.ranges:
            if last >= self.position:
                self._committed.add(max(first, self.position), last)
        if stable_offset > self.position:
            self.finish(self.position, stable_offset - 1)
            self._committed_position = stable_offset
