"""The partitions that this broker hosts, by topic id and by name.

The registry follows the metadata image: `apply` opens, changes and removes partitions according to
a delta. The effective configs of a topic become the `LogConfig` of its logs here.

To create or delete a log takes some system calls. So a turn of the event loop does no more of that
than `WORK_MAX`, and the next ones do the rest: a topic may have thousands of partitions.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from shoal.log.config import LogConfig
from shoal.log.dedup_store import remove_files
from shoal.log.errors import CorruptLog
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import ConfigResourceType, MetadataImage, TopicImage
from shoal.record.batch import CorruptBatch
from shoal.replication.leadership import LAG_TIME_MAX_MS, AlterPartition
from shoal.replication.partition import Partition
from shoal.server import open_files
from shoal.server.metadata_cache import NotApplied, Unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    from shoal.log.directory import LogDirectory
    from shoal.log.log import Log
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node

#: Errors of the disk, or of what is on it, that keep one partition from being opened.
_DISK = (OSError, CorruptLog, CorruptBatch)
#: The metadata log lies among the topics' logs, but the image does not contain it.
_OWN_TOPICS = ("__cluster_metadata",)
#: What a turn does at most, and what it costs to open a log, whose deletion costs 1. On a busy
#: machine, opening takes 1 ms.
WORK_MAX, _OPENING = 100, 4
#: The most directories that a line of the log names.
_NAMED_MAX = 10


class IsrController(Protocol):
    """Changes ISRs (`isr_changes`)."""

    def submit(self, partition: Partition, change: AlterPartition) -> None:
        """Ask the controller for another ISR."""

    def get_broker_epoch(self, broker_id: int) -> int:
        """Return the epoch of a broker that may join an ISR, or `NOT_ELIGIBLE`."""


class Partitions:
    """Owns the partitions of one broker; the log directory owns their files."""

    def __init__(
        self,
        node: Node,
        directory: LogDirectory,
        *,
        purgatory: Purgatory,
        isr_controller: IsrController,
        id_work_requested: Callable[[Partition], None] | None = None,
    ) -> None:
        self._node = node
        self._directory = directory
        self._purgatory = purgatory
        self._isr_controller = isr_controller
        self._id_work_requested = id_work_requested
        #: Whether a topic here has had a deduplication window since the start.
        self.has_deduplication = False
        self._lag_time_max_ms = LAG_TIME_MAX_MS
        self._by_id: dict[tuple[UUID, int], Partition] = {}
        self._by_name: dict[tuple[str, int], Partition] = {}
        #: By partition: why it is not opened, or not deleted. Later deltas repeat the attempt.
        self.failures: dict[tuple[UUID, int], str] = {}
        self._shortage: OSError | None = None
        #: The newest image. Its partitions whose logs are not opened yet; and logs that are not
        #: deleted yet, with the ids of their topics.
        self._image = MetadataImage()
        self._unopened: dict[tuple[UUID, int], None] = {}
        self._undeleted: dict[tuple[str, int], UUID] = {}
        #: What this turn may still do.
        self._room = WORK_MAX
        self._is_turn_scheduled = self._is_unfinished = False
        self._finished_calls: list[Callable[[], None]] = []
        self._removed_calls: list[Callable[[Partition], None]] = []
        self._registered_calls: list[Callable[[Partition], None]] = []

    def on_removed(self, call: Callable[[Partition], None]) -> None:
        """Call `call` with each partition that is removed."""
        self._removed_calls.append(call)

    def on_finished(self, call: Callable[[], None]) -> None:
        """Call `call` when logs are opened and deleted for which `apply` has raised
        `Unfinished`."""
        self._finished_calls.append(call)

    def on_registered(self, call: Callable[[Partition], None]) -> None:
        """Call `call` with each partition that is opened or gets other leaders or replicas."""
        self._registered_calls.append(call)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, topic_id: UUID, index: int) -> Partition | None:
        return self._by_id.get((topic_id, index))

    def find_by_name(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index))

    def find(self, name: str, topic_id: UUID | None, index: int) -> Partition | None:
        """Find a partition by topic id, or by name if there is no id."""
        if topic_id is not None:
            return self._by_id.get((topic_id, index))
        return self._by_name.get((name, index))

    def load(self, image: MetadataImage) -> MetadataDelta:
        """Set aside the directories of unknown topics, and open the partitions of the image.

        Return the topics whose partitions could not all be opened, as a delta to repeat. Raises
        `OSError` if the descriptors do not suffice: none would be left for connections.
        """
        self._lag_time_max_ms = image.broker_config["replica.lag.time.max.ms"]
        self._image = image
        self._set_aside(image)
        for topic in image.topics.values():
            self._register(topic)
            while self._unopened:
                self._open_next()
        if self._shortage is not None:
            raise self._shortage
        for staged in self._directory.find_staged_deletes():
            self._purge(staged)
        failed = {topic_id for topic_id, _ in self.failures}
        return MetadataDelta(created=tuple(image.topics_by_id[id] for id in sorted(failed)))

    def _set_aside(self, image: MetadataImage) -> None:
        """Rename the directories of partitions that the image does not place here. They are kept:
        their topics may have been deleted while this broker was down, or the metadata be lost."""
        renamed = []
        for (name, index), topic_id in list(self._directory.find_partitions()):
            if name not in _OWN_TOPICS and not self._is_placed(name, index, topic_id, image):
                now_ms = self._node.clock.now_ms()
                renamed.append(self._directory.set_aside(name, index, now_ms))
        if renamed:
            self._node.log.warning(
                "logs that the metadata does not know were renamed to -stray and are kept: remove"
                " them if nobody needs their records",
                count=len(renamed),
                directories=renamed[:_NAMED_MAX],
            )

    def _is_placed(
        self, name: str, index: int, topic_id: UUID | None, image: MetadataImage
    ) -> bool:
        """Whether the image has that partition, with a replica on this broker."""
        topic = image.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            return False
        is_its_topic = topic_id in (None, topic.topic_id)
        return is_its_topic and self._node.id in topic.partitions[index].replicas

    def apply(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Apply one change of the image, as far as the disk permits. Raises `NotApplied` for the
        rest, and `Unfinished` if that is left to the next turns."""
        self._image = image
        for topic in delta.deleted:
            for index in range(len(topic.partitions)):
                self._remove(topic, index)
        for topic in delta.created:
            self._register(topic)
        for _, topic in delta.changed:
            self._register(topic)
        self._work()
        if delta.broker_config_changed:
            self._lag_time_max_ms = image.broker_config["replica.lag.time.max.ms"]
            self._configure(image, {p.topic for p in self})
        else:
            names = {name for kind, name in delta.configs if kind == ConfigResourceType.TOPIC}
            self._configure(image, names)
        self._raise_failures(delta)

    def _raise_failures(self, delta: MetadataDelta) -> None:
        """Raise `NotApplied` if a partition in the delta was not opened or not removed, and
        `Unfinished` if it waits for that."""
        if not (self.failures or self._unopened or self._undeleted):
            return
        topics = [*delta.deleted, *delta.created, *(topic for _, topic in delta.changed)]
        topic_ids = {topic.topic_id for topic in topics}
        failed = [why for (topic_id, _), why in self.failures.items() if topic_id in topic_ids]
        if failed:
            raise NotApplied(_join(failed))
        waiting = {topic_id for topic_id, _ in self._unopened}.union(self._undeleted.values())
        if not topic_ids.isdisjoint(waiting):
            self._is_unfinished = True
            raise Unfinished

    def _work(self) -> None:
        """Delete logs, then open others, as far as this turn may: a new topic may have the name of
        one that is deleted."""
        self._directory.forget_log_starts(list(islice(self._undeleted, max(0, self._room))))
        while self._undeleted and self._room > 0:
            self._room -= 1
            self._delete(next(iter(self._undeleted)))
        while self._unopened and self._room > 0:
            self._room -= _OPENING
            self._open_next()
        if self._room < WORK_MAX and not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._node.loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_turn_scheduled = False
        self._room = WORK_MAX
        self._work()
        if self._is_unfinished and not self._unopened and not self._undeleted:
            self._is_unfinished = False
            for call in self._finished_calls:
                call()

    def close(self) -> None:
        """Delete what waits for that, and open no more: the logs are about to be closed."""
        self._unopened.clear()
        self._directory.forget_log_starts(list(self._undeleted))
        while self._undeleted:
            self._delete(next(iter(self._undeleted)))

    def _register(self, topic: TopicImage) -> None:
        """Register the leaders and replicas of partitions that are open, and queue the others."""
        for index, registered in enumerate(topic.partitions):
            key = (topic.topic_id, index)
            partition = self._by_id.get(key)
            if self._node.id not in registered.replicas:
                self._remove(topic, index)  # Reassigned to other brokers, if it was here.
                continue
            if partition is None:
                self._unopened[key] = None
            else:
                self.failures.pop(key, None)
                partition.register(registered, self._node.clock.now_ms())
                self._on_registered(partition)
                partition.notify_changed()

    def _open_next(self) -> None:
        """Open the next log that waits for it."""
        key = topic_id, index = next(iter(self._unopened))
        del self._unopened[key]
        topic = self._image.topics_by_id[topic_id]
        settings = self._image.resolve_topic_config(topic.name)
        try:
            self._add(topic, index, self._open_log(topic, index, settings), self._image)
        except _DISK as error:
            if isinstance(error, OSError) and error.errno in open_files.SHORTAGES:
                self._shortage = error
            self.failures[key] = f"{topic.name}-{index} is not served: {error}"
        else:
            self.failures.pop(key, None)

    def _open_log(self, topic: TopicImage, index: int, settings: Mapping[str, Any]) -> Log:
        return self._directory.open_log(
            topic.name,
            index,
            LogConfig.from_settings(settings),
            now_ms=self._node.clock.now_ms(),
            topic_id=topic.topic_id,
        )

    def _add(
        self,
        topic: TopicImage,
        index: int,
        log: Log,
        image: MetadataImage,
    ) -> None:
        registered = topic.partitions[index]
        partition = Partition(
            topic.name,
            topic.topic_id,
            index,
            log,
            node_id=self._node.id,
            leader_id=registered.leader,
            leader_epoch=registered.leader_epoch,
            isr=registered.isr,
            replicas=registered.replicas,
            partition_epoch=registered.partition_epoch,
            high_watermark=self._directory.high_watermarks.get((topic.name, index), 0),
            now_ms=self._node.clock.now_ms(),
            sync_requested=self._node.disk.sync_soon,
            alter_isr=self._isr_controller.submit,
            broker_epoch_of=self._isr_controller.get_broker_epoch,
            id_work_requested=self._id_work_requested,
        )
        partition.on_advance(self._on_advanced)
        partition.on_append(self._on_appended)
        self._adopt(partition, image.resolve_topic_config(topic.name))
        self._by_id[partition.key] = self._by_name[(topic.name, index)] = partition
        self._on_registered(partition)

    def _remove(self, topic: TopicImage, index: int) -> None:
        """Remove a partition, if it is here, and queue its log for deletion. What a failed attempt
        left is removed, too."""
        key = (topic.topic_id, index)
        self._unopened.pop(key, None)
        partition = self._by_id.pop(key, None)
        if partition is not None:
            del self._by_name[(topic.name, index)]
            partition.leader_id = -1
            partition.is_removed = True
            partition.notify_changed()
            for call in self._removed_calls:
                call(partition)
        elif key not in self.failures:
            return
        self._undeleted[topic.name, index] = topic.topic_id

    def _delete(self, name: tuple[str, int]) -> None:
        """Delete a log that waits for it."""
        topic, index = name
        key = (self._undeleted.pop(name), index)
        try:
            self._delete_files(topic, index)
        except OSError as error:
            self.failures[key] = f"{topic}-{index} is not deleted: {error}"
        else:
            self.failures.pop(key, None)

    def _delete_files(self, topic: str, index: int) -> None:
        staged = self._directory.delete_log(topic, index)
        if staged is not None:
            self._purge(staged)

    def _purge(self, staged: str) -> None:
        self._node.disk.remove(lambda: self._directory.purge(staged))

    def _configure(self, image: MetadataImage, names: set[str]) -> None:
        for partition in self:
            if partition.topic in names:
                settings = image.resolve_topic_config(partition.topic)
                log, deduplicated = partition.log, partition.log.config.deduplicates
                log.config = LogConfig.from_settings(settings)
                self._adopt(partition, settings)
                if deduplicated and not log.config.deduplicates:
                    self._node.disk.remove(partial(remove_files, log.storage, log.directory))

    def _adopt(self, partition: Partition, settings: Mapping[str, Any]) -> None:
        """Apply the topic configs that concern the partition and not its log."""
        partition.flush_messages = settings["flush.messages"]
        partition.min_isr = settings["min.insync.replicas"]
        partition.lag_time_max_ms = self._lag_time_max_ms
        # With flush.messages=1 Kafka syncs before it responds, so that enables group commit too.
        partition.group_commit = (
            settings["shoal.flush.group.commit"] or settings["flush.messages"] <= 1
        )
        if partition.log.config.deduplicates:
            self.has_deduplication = True
        else:
            partition.deduplication = None
        partition.sync_tail()

    def _on_registered(self, partition: Partition) -> None:
        for call in self._registered_calls:
            call(partition)

    def _on_advanced(self, partition: Partition) -> None:
        self._purgatory.wake(partition.key)

    def _on_appended(self, partition: Partition) -> None:
        if partition.leadership is not None:
            for replica in partition.leadership.followers:
                self._purgatory.wake(("replica", replica))


def _join(reasons: Sequence[str]) -> str:
    """Return the first reason, and how many there are behind it."""
    more = len(reasons) - 1
    return f"{reasons[0]} ({more} more)" if more else reasons[0]
