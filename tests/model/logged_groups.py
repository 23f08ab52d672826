"""Managers of groups over a log of records, and metadata, for the models of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from shoal.coordinator.contract import RecordOrigin
from shoal.coordinator.group.groups import ShardContext
from shoal.coordinator.group.records import decode
from shoal.coordinator.group.settings import GroupSettings
from shoal.metadata.image import MetadataImage, PartitionImage, TopicImage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.coordinator.contract import CoordinatorRecord

GROUP = "g"


def build_image(
    counts: Mapping[str, int], ids: Mapping[str, int], *, offset: int = 0
) -> MetadataImage:
    """Return metadata with topics of these numbers of partitions and these ids."""
    partition = PartitionImage((0,), (0,), 0, 0, 0)
    topics = {
        name: TopicImage(name, UUID(int=ids[name]), (partition,) * count)
        for name, count in counts.items()
    }
    by_id = {topic.topic_id: topic for topic in topics.values()}
    return MetadataImage(offset=offset, topics=topics, topics_by_id=by_id)


class LoggedGroups:
    """One shard's groups over a log of records. `load` begins again with the log, as after a crash.

    A model says which manager it runs, and what it does with results.
    """

    manager: ClassVar[type[Any]]

    def __init__(self, image: MetadataImage) -> None:
        self.log: list[CoordinatorRecord] = []
        self.image = image
        self.load(0)

    def load(self, now_ms: int) -> None:
        self.context = ShardContext(GroupSettings(), image=self.image)
        self.groups = self.manager(self.context)
        for record in self.log:
            self._replay(record)
        self.groups.on_loaded(now_ms)

    def _replay(self, record: CoordinatorRecord) -> None:
        decoded = decode(record)
        assert decoded is not None
        replay = self.groups.replays[decoded.type]
        replay(decoded.key, decoded.value, RecordOrigin(0, 0))

    def run(self, result: Any) -> Any:
        """Append the records of a result, and replay them."""
        for record in result.records:
            self.log.append(record)
            self._replay(record)

    def tick(self, now_ms: int) -> None:
        while (key := self.context.deadlines.pop_due(now_ms)) is not None:
            self.run(self.groups.on_deadline(key, now_ms))

    @property
    def group(self) -> Any:
        return self.context.groups.get(GROUP)
