"""The broker: what it is composed of, and in which order its parts start and stop.

Start: take the addresses, lock the data directory, load the metadata, open the logs, load the
coordinators, serve. Stop: the other way round; the last act marks the stop as a clean one.
Everything but the disk's worker runs on one event loop, and no call of a core awaits.
"""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any, NamedTuple

from shoal.log.directory import LogDirectory
from shoal.log.storage import DiskStorage
from shoal.log.uuids import uuid_text
from shoal.metadata import controller
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import BrokerImage, Endpoint, MetadataImage, Scope
from shoal.metadata.names import INTERNAL_TOPICS
from shoal.metadata.topics import create_topics, internal_topic
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.replication.partition import Partition
from shoal.server import broker_metrics, logs
from shoal.server.admission import Admission
from shoal.server.background import Background
from shoal.server.config import BrokerConfig
from shoal.server.coordinators import CoordinatorService, InternalTopic
from shoal.server.disk import Disk
from shoal.server.dispatch import Dispatcher
from shoal.server.fetch_sessions import FetchSessions
from shoal.server.groups import GroupService
from shoal.server.handlers import HANDLERS
from shoal.server.health import HealthListener
from shoal.server.listener import Listener
from shoal.server.metadata_log import Metadata, random_id
from shoal.server.metrics import Metrics
from shoal.server.partitions import Partitions
from shoal.server.producer_ids import ProducerIds
from shoal.server.purgatory import Purgatory
from shoal.server.quotas import Quotas
from shoal.server.share import ShareService
from shoal.server.timers import Clock, Timers
from shoal.server.transactions import TransactionService

#: After which a client's fetch session may give way to another's
#: (min.incremental.fetch.session.eviction.ms in Kafka, which has no setting for it either).
FETCH_SESSION_EVICTION_MS = 120_000


#: Bytes of answers that may wait in memory for clients to take them, over all connections, and what
#: one answer may have in any case: a client's default for one partition.
ANSWERS_HELD_MAX = 128 << 20
ANSWER_ROOM_MIN = 1 << 20


class Features(NamedTuple):
    """What ApiVersions tells of features: the levels supported, and those in force."""

    supported: dict[str, tuple[int, int]]
    finalized: dict[str, int]
    epoch: int


class Broker:
    """Owns every part; handlers reach them through it."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.loop = loop
        self.node_id = config.node_id
        self.log = logs.get(broker=self.node_id)
        self.clock = Clock()
        self.timers = Timers(loop, self.clock)
        self.purgatory = Purgatory(loop, self.timers)
        self.metrics = Metrics()
        self.disk = Disk(loop, self._sync_failed)
        self.fetch_sessions = FetchSessions(
            config["max.incremental.fetch.session.cache.slots"],
            FETCH_SESSION_EVICTION_MS,
            lambda: random.randrange(1, 1 << 31),
        )
        self.quotas = Quotas(self)
        self.admission = Admission(self)
        self.table = HANDLERS
        self.dispatch = Dispatcher(self, self.table)
        self.listeners: list[Listener] = []
        self.health: HealthListener | None = None
        self.directory = LogDirectory(DiskStorage(), config.data_dir)
        self.partitions = Partitions(
            self.node_id,
            self.directory,
            purgatory=self.purgatory,
            disk=self.disk,
            clock=self.clock,
        )
        self.partitions.on_removed.append(lambda p: self.metrics.forget_topic(p.topic))
        self.producer_ids = ProducerIds(self)
        self.coordinators: list[CoordinatorService[Any]] = []
        self.background = Background(self)
        self._ready = self._opened = False
        broker_metrics.register(self)

    # Parts that the data directory has to be open for; `start` makes them.
    metadata: Metadata
    groups: GroupService
    transactions: TransactionService
    share: ShareService

    @property
    def image(self) -> MetadataImage:
        """The metadata as of now."""
        return self.metadata.image

    @property
    def cluster_id(self) -> str:
        return self.directory.cluster_id

    async def start(self) -> None:
        """Serve. Raises `ListenError`, `DirectoryInUse`, `CorruptLog`, `ApiError`, `OSError`; then
        `stop` gives back what was taken."""
        for endpoint in self.config.listeners:
            listener = Listener(self, self.dispatch, endpoint.name)
            listener.bind(endpoint.host, endpoint.port)
            self.listeners.append(listener)
        self.directory.open(
            cluster_id=uuid_text(random_id()), node_id=self.node_id, directory_id=random_id()
        )
        scope = Scope(self.node_id, self.config.given)
        self.metadata = Metadata(self.directory, self.disk, self.clock, scope)
        self.metadata.register(self._registration())
        self.partitions.load(self.image)
        self.quotas.changed()
        self.directory.started()
        self._opened = True
        self.metadata.on_change.append(self._metadata_changed)
        self.groups = GroupService(self)
        self.coordinators.append(self.groups)
        self.transactions = TransactionService(self)
        self.coordinators.append(self.transactions)
        self.share = ShareService(self)
        self.coordinators.append(self.share.states)
        for coordinator in self.coordinators:
            coordinator.metadata_changed(self.image, None)
        self.background.start()
        metrics_listener = self.config.metrics_listener
        if metrics_listener is not None:
            self.health = HealthListener(self)
            await self.health.listen(metrics_listener.host, metrics_listener.port)
        for listener in self.listeners:
            await listener.accept()
        self._ready = True

    async def stop(self) -> None:
        """Close the connections, sync and close the logs, and mark the stop as a clean one."""
        self._ready = False
        for listener in self.listeners:
            await listener.close()
        if self.health is not None:
            self.health.close()
        self.timers.stop()
        if self._opened:
            await self.disk.drained()
            self.background.stop()
            try:
                self.directory.close()
            except OSError as error:
                self.log.error("the logs were not closed cleanly", error=str(error))
        else:
            self.directory.unlock()
        self.disk.close()

    async def create_internal_topic(self, topic: InternalTopic) -> None:
        """Make the topic of a coordinator. Raises `ApiError` when it cannot be made."""
        (row,) = await self.metadata.submit(
            lambda image: create_topics(
                image, [internal_topic(image, topic.name)], new_id=random_id
            )
        )
        if row["error_code"] not in (ErrorCode.none, ErrorCode.topic_already_exists):
            self.log.error("an internal topic was not made", topic=topic.name, **row)
            raise ApiError(ErrorCode.coordinator_not_available, row["error_message"])

    def _registration(self) -> BrokerImage:
        """How this broker is known to its cluster and told to its clients."""
        advertised = self.config.advertised
        endpoints = []
        for listener in self.listeners:
            told = advertised.get(listener.name)
            host = told.host if told else listener.host
            if host in ("", "0.0.0.0", "::"):
                host = socket.getfqdn()
            port = told.port if told and told.port else listener.port
            endpoints.append(Endpoint(listener.name, host, port))
        return BrokerImage(
            self.node_id,
            random_id(),
            -1,
            tuple(endpoints),
            controller.SUPPORTED_FEATURES,
            self.config["broker.rack"],
            fenced=False,
            log_dirs=(self.directory.directory_id,),
        )

    def answer_room(self) -> int:
        """Bytes that the records of one more answer may have. Answers wait in memory for slow
        clients; when many do, each gets less at a time."""
        held = sum(listener.bytes_held for listener in self.listeners)
        return max(ANSWER_ROOM_MIN, ANSWERS_HELD_MAX - held)

    def features(self) -> Features:
        """The features of this broker and of its cluster."""
        image = self.image
        return Features(dict(controller.SUPPORTED_FEATURES), dict(image.features), image.offset)

    def is_internal(self, topic: str) -> bool:
        """Whether clients may not write to that topic or cut it."""
        return topic in INTERNAL_TOPICS

    def unhealthy(self) -> str | None:
        """Why Kubernetes should start this broker anew, or None."""
        offline = [f"{p.topic}-{p.index}" for p in self.partitions if p.log.offline]
        if offline:
            return f"the disk failed under {', '.join(sorted(offline)[:10])}"
        return None

    def not_ready(self) -> str | None:
        """Why clients are not served, or None."""
        return None if self._ready else "the broker is starting or stopping"

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.partitions.apply(image, delta)
        if delta.client_quotas:
            self.quotas.changed()
        for coordinator in self.coordinators:
            coordinator.metadata_changed(image, delta)

    def _sync_failed(self, partition: Partition, error: Exception) -> None:
        self.log.error(
            "the disk refused a sync; the log is offline until the broker starts again",
            topic=partition.topic,
            partition=partition.index,
            error=str(error),
        )
        partition.moved()
