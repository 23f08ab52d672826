"""The share service before the metadata log is open, and after."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

from shoal.log.directory import LogDirectory
from shoal.log.memory import MemoryStorage
from shoal.metadata.image import ImageScope, MetadataImage
from shoal.protocol.errors import ErrorCode
from shoal.server.audit import AuditLogger
from shoal.server.authorization import AccessControl
from shoal.server.config import resolve
from shoal.server.coordinators.groups import GroupService
from shoal.server.metadata_cache import MetadataCache
from shoal.server.metrics.registry import MetricRegistry
from shoal.server.network.links import SetupTimeouts
from shoal.server.network.peers import BrokerPeers
from shoal.server.network.purgatory import Purgatory
from shoal.server.network.response_limits import ResponseLimits
from shoal.server.node import Node
from shoal.server.replication.partitions import Partitions
from shoal.server.share.service import ShareService
from shoal.server.share.state_write import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shoal.metadata.topics import NewTopic
    from shoal.protocol.responses.topics import CreateTopicsCreatableTopicResult
    from shoal.replication.leadership import AlterPartition
    from shoal.replication.partition import Partition
    from shoal.server.coordinators.service import InternalTopic
    from shoal.server.network.api import Request


class ClosedCache(MetadataCache):
    """A cache whose image must not be read before the metadata log is open."""

    is_open = False

    @property
    def image(self) -> MetadataImage:
        assert self.is_open, "the image is read before the metadata log is open"
        return self._image

    @image.setter
    def image(self, image: MetadataImage) -> None:
        self._image = image


class Replicas:
    def is_cut_off(self, partition: Partition) -> bool:
        return False


class Quotas:
    def compute_fetch_bytes_max(self, request: Request) -> int | None:
        return None


class NoIsrChanges:
    """A controller that gets no request for another ISR (`partitions.IsrController`)."""

    def submit(self, partition: Partition, change: AlterPartition) -> None:
        raise AssertionError("no ISR changes")

    def get_broker_epoch(self, broker_id: int) -> int:
        raise AssertionError("no ISR changes")


async def no_topic(_topic: InternalTopic) -> None:
    raise AssertionError("no topic is created")


def no_topics(topics: Sequence[NewTopic]) -> asyncio.Future[list[CreateTopicsCreatableTopicResult]]:
    raise AssertionError(f"no topic is created: {topics}")


def service(node: Node, cache: MetadataCache) -> ShareService:
    purgatory, metrics, replicas = Purgatory(node.loop, node.timers), MetricRegistry(), Replicas()
    directory = LogDirectory(MemoryStorage(), "data")
    partitions = Partitions(node, directory, purgatory=purgatory, isr_controller=NoIsrChanges())
    shared = (node, cache, partitions, replicas, no_topic, metrics)
    return ShareService(
        *shared,
        groups=GroupService(*shared),
        peers=BrokerPeers(node, cache, SetupTimeouts(1_000, 1_000)),
        purgatory=purgatory,
        quotas=Quotas(),
        response_limits=ResponseLimits([]),
        create_topics=no_topics,
        listeners=[],
        access=AccessControl(node.config, cache, AuditLogger(node)),
    )


def test_it_is_constructed_and_started_without_reading_the_image(tmp_path: Path) -> None:
    async def main() -> None:
        flags = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        node = Node(resolve(flags, {}), asyncio.get_running_loop())
        cache = ClosedCache(ImageScope(node.id, {}))
        share = service(node, cache)
        share.start()
        cache.is_open = True
        assert share.lead("g", UUID(int=1), 0) == Failure(ErrorCode.unknown_topic_id)
        node.timers.stop()
        node.disk.close()

    asyncio.run(main())
