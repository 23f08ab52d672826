"""The topics that were deleted, as long as groups have offsets of them.

Many groups may have offsets of a large topic, so their tombstones are written in steps. An offset
that is committed after the deletion is of another topic of the same name and stays.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from uuid import UUID

    from shoal.coordinator.group.offsets.committed_offset import OffsetAndMetadata


class DeletedTopic(NamedTuple):
    """A deleted topic of which a group may have offsets, in records below `end_offset`."""

    group_id: str
    name: str
    topic_id: UUID
    end_offset: int

    def has(self, offset: OffsetAndMetadata) -> bool:
        return offset.topic_id in (None, self.topic_id) and offset.record_offset < self.end_offset


class DeletedTopics:
    """Owns the deleted topics of each group, in the order of their deletion."""

    def __init__(self) -> None:
        self._topics: dict[DeletedTopic, None] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

    def add(self, topics: Iterable[DeletedTopic]) -> None:
        self._topics.update(dict.fromkeys(topics))

    def take(
        self,
        find: Callable[[DeletedTopic], Iterable[Mapping[int, OffsetAndMetadata]]],
        count_max: int,
    ) -> Iterator[tuple[DeletedTopic, list[int], bool]]:
        """Yield topics with partitions that have offsets, at most `count_max` of these, and whether
        they are the last ones. Others come in the next call, when those are gone. `find` returns
        the offsets of a topic: committed ones, and those of open transactions."""
        left = count_max
        while self._topics and left > 0:
            topic = next(iter(self._topics))
            indexes = {
                index: None
                for offsets in find(topic)
                for index, offset in offsets.items()
                if topic.has(offset)
            }
            taken = list(islice(indexes, left))
            left -= 1 + len(taken)
            if is_last := len(taken) == len(indexes):
                del self._topics[topic]
            yield topic, taken, is_last
            if not is_last:
                return
