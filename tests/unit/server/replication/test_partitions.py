"""The registry of partitions: opening and deleting thousands of logs takes several turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

from shoal.log.directory import DELETE_SUFFIX, LogDirectory
from shoal.log.storage import DiskStorage
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import ImageScope, MetadataImage, PartitionImage, TopicImage
from shoal.server.config import resolve
from shoal.server.metadata_cache import MetadataCache
from shoal.server.network.purgatory import Purgatory
from shoal.server.node import Node
from shoal.server.replication.partitions import WORK_MAX, Partitions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from shoal.replication.leadership import AlterPartition
    from shoal.replication.partition import Partition

PARTITION = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
COUNT = 300


def make_topic(number: int, count: int = COUNT) -> TopicImage:
    return TopicImage("t", UUID(int=number), (PARTITION,) * count)


class World:
    """A registry, the cache that it follows, and a listener behind it."""

    def __init__(self, path: Path) -> None:
        flags = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(path)}
        self.node = Node(resolve(flags, {}), asyncio.get_running_loop())
        self.directory = LogDirectory(DiskStorage(), str(path))
        purgatory = Purgatory(self.node.loop, self.node.timers)
        self.partitions = Partitions(
            self.node, self.directory, purgatory=purgatory, isr_controller=self
        )
        self.cache = MetadataCache(ImageScope(1))
        self.partitions.on_finished(self.cache.retry)
        self.cache.subscribe(self.partitions.apply)
        #: The number of partitions each time that the next listener got a change.
        self.seen: list[int] = []
        self.cache.subscribe(lambda _image, _delta: self.seen.append(len(self.partitions)))

    def submit(self, partition: Partition, change: AlterPartition) -> None:
        raise AssertionError("no ISR changes")

    def get_broker_epoch(self, broker_id: int) -> int:
        raise AssertionError("no ISR changes")

    def publish(self, delta: MetadataDelta, *topics: TopicImage) -> str | None:
        image = MetadataImage(
            scope=ImageScope(1),
            topics={topic.name: topic for topic in topics},
            topics_by_id={topic.topic_id: topic for topic in topics},
        )
        return self.cache.publish(image, delta)

    async def finish(self) -> list[str | None]:
        """Wait until all is applied. Return what is not."""
        finished: list[str | None] = []
        self.cache.call_when_finished(finished.append)
        while not finished:
            await asyncio.sleep(0)
        return finished

    @property
    def directories(self) -> list[str]:
        """The directories of logs that are not deleted."""
        names = self.directory.storage.list_directory(self.directory.path)
        return [n for n in names if n.startswith("t-") and not n.endswith(DELETE_SUFFIX)]


def run(tmp_path: Path, test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World(tmp_path)
        try:
            await test(world)
        finally:
            world.partitions.close()
            world.node.timers.stop()
            world.node.disk.close()

    asyncio.run(main())


def test_a_turn_opens_and_deletes_only_some_logs(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        topic = make_topic(1)
        assert world.publish(MetadataDelta(created=(topic,)), topic) == ""
        assert world.cache.not_applied is None
        before = 0
        while len(world.partitions) < COUNT:
            assert 0 < len(world.partitions) - before <= WORK_MAX // 4
            before = len(world.partitions)
            await asyncio.sleep(0)
        assert await world.finish() == [None]
        # A coordinator behind it has seen the topic when none of it could be served.
        assert world.seen[-1] == COUNT

        assert world.publish(MetadataDelta(deleted=(topic,))) == ""
        assert len(world.partitions) == 0
        assert len(world.directories) >= COUNT - WORK_MAX
        assert await world.finish() == [None]
        assert world.directories == []

    run(tmp_path, test)


def test_a_topic_is_created_again_while_the_logs_of_the_earlier_one_are_deleted(
    tmp_path: Path,
) -> None:
    async def test(world: World) -> None:
        earlier, later = make_topic(1), make_topic(2)
        world.publish(MetadataDelta(created=(earlier,)), earlier)
        await world.finish()
        assert world.publish(MetadataDelta(deleted=(earlier,))) == ""
        assert world.publish(MetadataDelta(created=(later,)), later) == ""
        assert await world.finish() == [None]
        assert len(world.partitions) == len(world.directories) == COUNT
        assert all(partition.topic_id == later.topic_id for partition in world.partitions)
        assert world.partitions.failures == {}

    run(tmp_path, test)


def test_a_topic_is_deleted_while_its_logs_are_opened(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        topic = make_topic(1)
        assert world.publish(MetadataDelta(created=(topic,)), topic) == ""
        world.publish(MetadataDelta(deleted=(topic,)))
        assert await world.finish() == [None]
        assert len(world.partitions) == len(world.directories) == 0

    run(tmp_path, test)


def test_a_small_topic_does_not_wait_for_a_large_one(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        large = make_topic(1)
        assert world.publish(MetadataDelta(created=(large,)), large) == ""
        await world.finish()
        await asyncio.sleep(0)
        small = TopicImage("small", UUID(int=2), (PARTITION,) * 25)
        assert world.publish(MetadataDelta(created=(small,)), large, small) is None

    run(tmp_path, test)


def test_a_stop_deletes_what_waits_for_that(tmp_path: Path) -> None:
    """The next start would keep the logs, since it does not know whether they are needed."""

    async def test(world: World) -> None:
        topic = make_topic(1)
        world.publish(MetadataDelta(created=(topic,)), topic)
        await world.finish()
        world.publish(MetadataDelta(deleted=(topic,)))
        world.partitions.close()
        assert world.directories == []

    run(tmp_path, test)


def test_a_log_that_a_later_turn_cannot_open_is_named_and_opened_again(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        topic = make_topic(1)
        last = tmp_path / f"t-{COUNT - 1}"
        last.mkdir()
        metadata = last / "partition.metadata"
        metadata.write_bytes(b"damaged")
        assert world.publish(MetadataDelta(created=(topic,)), topic) == ""
        (reason,) = await world.finish()
        assert reason is not None
        assert f"t-{COUNT - 1} is not served" in reason
        assert world.cache.not_applied == reason
        metadata.unlink()
        while world.cache.not_applied is not None:
            await asyncio.sleep(0)
            world.cache.retry()
        assert len(world.partitions) == COUNT

    run(tmp_path, test)
