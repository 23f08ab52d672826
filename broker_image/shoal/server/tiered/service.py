"""Tiered storage of one broker: it opens tiered logs for remote reads, and runs the copier.

With `remote.log.storage.system.enable`, a partition whose topic has `remote.storage.enable` gets a
reader of its remote segments. If this broker leads it, a pass of the copier runs at an interval.
The leader of a partition of `__remote_log_metadata` deletes the objects of deleted topics.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

from shoal.log.remote import RemoteUnavailable
from shoal.record.batch import CorruptBatch
from shoal.server.config import InvalidConfig
from shoal.server.metrics.tiered import RemoteMeters, RemoteState
from shoal.server.tiered.backups import Backups, Lease
from shoal.server.tiered.chunk_cache import ChunkCache
from shoal.server.tiered.cleaning import RemoteCleaning
from shoal.server.tiered.copier import Copier, compute_state
from shoal.server.tiered.key_ring import Sealing
from shoal.server.tiered.manifests import LostLeadership
from shoal.server.tiered.metadata_topic import CreateTopic, MetadataTopic, MetadataUnavailable
from shoal.server.tiered.object_store import InvalidStore, open_store
from shoal.server.tiered.quota import COPY, FETCH, TransferQuota
from shoal.server.tiered.reader import Downloads, PartitionReader
from shoal.server.tiered.retrying_store import CallLimits, RetryingStore
from shoal.tiered.metadata_records import TOPIC
from shoal.tiered.sealing import KeyUnavailable
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any
    from uuid import UUID

    from shoal.log.directory import LogDirectory
    from shoal.log.remote import RebuiltState
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.replication.partition import Partition
    from shoal.server.config import BrokerConfig
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.peers import BrokerPeers
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions
    from shoal.tiered.remote_logs import Key
    from shoal.tiered.store import ObjectStore

#: Passes of the copier at the same time.
PASSES_MAX = 4
#: Errors that end a pass and are not bugs.
_EXPECTED = (
    StoreError,
    MetadataUnavailable,
    DamagedObject,
    CorruptBatch,
    KeyUnavailable,
    OSError,
)
#: Where remote segments are cleaned.
CLEANING_DIRECTORY = "remote-cleaning"
#: Session timeouts for which a topic must be unknown before its objects are deleted. Until then the
#: image of this broker may be behind that of the leader that has copied.
DELETED_AFTER_SESSIONS = 2


class BrokerSession(Protocol):
    """This broker's session with the controller (`cluster.lifecycle`)."""

    @property
    def is_lost(self) -> bool: ...


def make_store(config: BrokerConfig) -> ObjectStore:
    """Return the object store that the configs name. Raises `InvalidConfig`."""
    try:
        return open_store(
            config["shoal.remote.store.url"],
            endpoint=config["shoal.remote.store.endpoint"],
            region=config["shoal.remote.store.region"],
            payload_signing=config["shoal.remote.store.payload.signing"],
        )
    except InvalidStore as error:
        raise InvalidConfig(str(error)) from None


class TieredStorage:
    """Owns the readers of this broker's tiered partitions, and the passes under way."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        directory: LogDirectory,
        partitions: Partitions,
        *,
        store: ObjectStore,
        purgatory: Purgatory,
        peers: BrokerPeers,
        create_topic: CreateTopic,
        session: BrokerSession,
    ) -> None:
        """Raises `InvalidConfig`."""
        self._node = node
        self._image = cache
        self._directory = directory
        self._partitions = partitions
        self._purgatory = purgatory
        self._session = session
        limits = CallLimits(timeout_ms=node.config["shoal.remote.store.request.timeout.ms"])
        self.store = RetryingStore(store, limits, node.random)
        self.chunks = ChunkCache(
            node.system.storage, directory.path, node.config["shoal.remote.chunk.cache.bytes"]
        )
        self.copy_quota = TransferQuota(node, cache, COPY)
        self.fetch_quota = TransferQuota(node, cache, FETCH)
        self.sealing = Sealing(node, cache)
        self.downloads = Downloads(node, self.store, self.chunks, self.fetch_quota, self.sealing)
        self.metadata = MetadataTopic(
            node, cache, partitions, peers=peers, purgatory=purgatory, create_topic=create_topic
        )
        self.meters = RemoteMeters()
        self._copier: Copier | None = None
        self._lease: Lease | None = None
        self._backups: Backups | None = None
        self._cleaning: RemoteCleaning | None = None
        self.readers: dict[Key, PartitionReader] = {}
        self._passes: dict[Key, asyncio.Task[None]] = {}
        self._free_passes = asyncio.Semaphore(PASSES_MAX)
        #: When the topic of a partition with objects was first found to be unknown or not tiered.
        self._unknown_ms: dict[Key, int] = {}
        #: Partitions whose last pass has failed.
        self._failing: set[Key] = set()
        partitions.on_removed(lambda partition: self._on_removed(partition))

    def start(self) -> None:
        """Open the tiered partitions, and copy from now on. Raises `OSError`."""
        self.chunks.open()
        self._copier = Copier(
            self._node,
            self.store,
            self.metadata,
            self.chunks,
            self._directory.cluster_id,
            self.meters,
            self.copy_quota,
            self.sealing,
        )
        cluster_id = self._directory.cluster_id
        self._lease = Lease(self._node, self._image, self.store, cluster_id)
        self._backups = Backups(
            self._node,
            self._image,
            self._partitions,
            self.store,
            self.sealing,
            self._lease,
            cluster_id,
        )
        self._lease.start()
        self._backups.start()
        self._cleaning = RemoteCleaning(
            self._node,
            self._image,
            self._copier,
            (self.copy_quota, self.fetch_quota),
            f"{self._directory.path}/{CLEANING_DIRECTORY}",
        )
        self._cleaning.open()
        self._image.subscribe(self._on_metadata_changed)
        self.metadata.refresh()
        self._attach_all()
        self._node.timers.call_every(
            self._node.config["remote.log.manager.task.interval.ms"], self._tick
        )

    def stop(self) -> None:
        for task in self._passes.values():
            task.cancel()
        self.downloads.stop()
        self.metadata.stop()
        for part in (self._lease, self._backups):
            if part is not None:
                part.stop()
        if self._copier is not None:
            self._copier.close()

    def _on_metadata_changed(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        changed = (*delta.created, *(topic for _, topic in delta.changed))
        if any(topic.name == TOPIC for topic in changed):
            self.metadata.refresh()
            for key in self.readers:
                self.metadata.follow(key)
        if changed or delta.configs:
            self._attach_all()

    def _attach_all(self) -> None:
        for partition in self._partitions:
            tiered = partition.log.config.remote_storage_enable
            if tiered and partition.log.remote is None:
                self._attach(partition)
            elif not tiered and partition.log.remote is not None:
                self._detach(partition)

    def _detach(self, partition: Partition) -> None:
        """End remote reads of a partition that is no longer tiered (KIP-950): its log starts on the
        disk. The leader of its metadata deletes the objects."""
        log = partition.log
        # First what the disk may refuse: the metadata's delta is then repeated.
        has_moved = log.advance_log_start(min(log.local_start_offset, partition.high_watermark))
        log.remote = None
        self._on_removed(partition)
        if has_moved:
            partition.notify_changed()

    def _attach(self, partition: Partition) -> None:
        assert self._copier is not None
        key = partition.key
        self.metadata.follow(key)
        reader = PartitionReader(
            self.downloads,
            partition.log,
            self.metadata.get_remote(key),
            self._copier.get_prefix(partition),
            is_loaded=lambda: self.metadata.is_loaded(key),
            changed=lambda: self._on_changed(partition),
            meter=self.meters.get_meter(partition.topic),
        )
        partition.log.remote = self.readers[key] = reader

    async def fetch_state_behind(
        self, partition: Partition, offset: int, leader_epoch: int
    ) -> RebuiltState:
        """Return the state behind the remote segment with an offset, which has it in that leader
        epoch. Raises `RemoteUnavailable`."""
        key = partition.key
        reader = self.readers.get(key)
        if reader is None:
            raise RemoteUnavailable(f"topic {partition.topic} is not tiered on this broker")
        if not self.metadata.is_loaded(key):
            raise RemoteUnavailable(f"this broker has not read {TOPIC} yet")
        meter = self.meters.get_meter(partition.topic)
        meter.rebuilds += 1
        try:
            segment = self.metadata.get_remote(key).find(offset, leader_epoch)
            if segment is None:
                raise RemoteUnavailable(
                    f"no remote segment has offset {offset} in leader epoch {leader_epoch}"
                )
            return await reader.fetch_state_behind(segment)
        except (StoreError, DamagedObject, KeyUnavailable, RemoteUnavailable) as error:
            meter.rebuild_errors += 1
            raise RemoteUnavailable(str(error)) from error

    def _on_removed(self, partition: Partition) -> None:
        self.readers.pop(partition.key, None)
        self._failing.discard(partition.key)
        if not any(p.topic == partition.topic for p in self._list_tiered()):
            self.meters.forget(partition.topic)
        if self._copier is not None:
            self._copier.forget(partition.key)

    def _on_changed(self, partition: Partition) -> None:
        """Wake the requests that wait for records of the partition."""
        partition.notify_changed()
        if partition.leadership is not None:
            for replica in partition.leadership.followers:
                self._purgatory.wake(("replica", replica))

    # What the metrics read (`metrics.tiered.TieredPort`)

    @property
    def store_counts(self) -> RetryingStore:
        return self.store

    @property
    def cache_counts(self) -> ChunkCache:
        return self.chunks

    def _list_tiered(self) -> list[Partition]:
        return [partition for partition in self._partitions if partition.key in self.readers]

    def get_states(self) -> list[RemoteState]:
        return [
            compute_state(partition, self.metadata.get_remote(partition.key))
            for partition in self._list_tiered()
            if partition.is_leader and not partition.log.offline
        ]

    def get_totals(self) -> dict[str, int]:
        copier = self._copier
        led = {partition.key for partition in self._list_tiered() if partition.is_leader}
        reconciliation = None if copier is None else copier.reconciliation
        audits = {} if reconciliation is None else reconciliation.audits
        own_audits = [audit for key, audit in audits.items() if key in led]
        return {
            "manifest_writes": 0 if copier is None else copier.manifests.writes_total,
            "segments_rebuilt": reconciliation.segments_rebuilt_total if reconciliation else 0,
            "orphans_deleted": reconciliation.orphans_deleted_total if reconciliation else 0,
            "backups": self._backups.written_total if self._backups else 0,
            "backup_failures": self._backups.failed_total if self._backups else 0,
            "cleanings": 0 if self._cleaning is None else self._cleaning.cleanings_total,
            "copies_throttled": self.copy_quota.throttled_total,
            "fetches_throttled": self.fetch_quota.throttled_total,
            "orphans": sum(len(audit.orphans) for audit in own_audits),
            "orphan_bytes": sum(audit.orphans_bytes for audit in own_audits),
            "missing_objects": sum(len(audit.missing) for audit in own_audits),
            "failing_partitions": len(self._failing & led),
        }

    # Passes

    def _tick(self) -> None:
        assert self._copier is not None
        if self._lease is not None and self._lease.is_lost:
            # Nothing is copied any more. The alert on failing partitions must show it.
            self._failing.update(p.key for p in self._list_tiered() if p.is_leader)
            return
        for partition in self._partitions:
            if partition.key in self.readers and not partition.log.offline:
                self._roll(partition)
                if partition.is_leader:
                    self._start(partition.key, partial(self._run_pass, partition))
        if self._session.is_lost:
            return
        now_ms = self._node.clock.now_ms()
        wait_ms = DELETED_AFTER_SESSIONS * self._node.config["broker.session.timeout.ms"]
        for key in self.metadata.list_led_keys():
            topic_id, _ = key
            if self._is_tiered(topic_id):
                self._unknown_ms.pop(key, None)
            elif now_ms - self._unknown_ms.setdefault(key, now_ms) >= wait_ms:
                name = self.metadata.logs.names[topic_id]
                is_due = partial(self._is_untiered, topic_id)
                self._start(key, partial(self._copier.delete_partition, key, name, is_due))

    async def _run_pass(self, partition: Partition) -> int:
        """Run one pass of the copier, and clean remote segments. Return what `Copier.run` does."""
        assert self._copier is not None
        assert self._cleaning is not None
        wait_ms = await self._copier.run(partition)
        reader = self.readers.get(partition.key)
        if not wait_ms and reader is not None:
            await self._cleaning.run(partition, reader, self.metadata.get_remote(partition.key))
        return wait_ms

    def _is_tiered(self, topic_id: UUID) -> bool:
        image = self._image.image
        topic = image.topics_by_id.get(topic_id)
        return topic is not None and bool(
            image.resolve_topic_config(topic.name)["remote.storage.enable"]
        )

    def _is_untiered(self, topic_id: UUID) -> bool:
        return not self._is_tiered(topic_id)

    def _start(self, key: Key, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
        if key in self._passes:
            return
        task = self._passes[key] = self._node.loop.create_task(self._run_limited(key, work))
        task.add_done_callback(lambda _: self._passes.pop(key, None))

    async def _run_limited(self, key: Key, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Run one pass when its turn comes, and again after the quota's pauses. A failure is
        logged, and the next pass tries again."""
        try:
            wait_ms = 1
            while wait_ms:
                async with self._free_passes:
                    wait_ms = await work()
                self._failing.discard(key)
                # The limit may change meanwhile.
                longest_ms = self._node.config["remote.log.manager.task.interval.ms"]
                await asyncio.sleep(min(wait_ms, longest_ms) / 1000)
        except LostLeadership as error:
            self._failing.discard(key)
            partition = self._partitions.get(*key)
            if partition is not None and partition.is_leader and key in self.readers:
                # It does not know of its successor yet, or leader epochs were lost.
                self._failing.add(key)
                self._log_failure(key, error)
        except _EXPECTED as error:
            self._failing.add(key)
            self._log_failure(key, error)
        except Exception:
            self._failing.add(key)
            self._node.log.exception("a pass of the copier failed", partition=str(key))

    def _log_failure(self, key: Key, error: Exception) -> None:
        partition = self._partitions.get(*key)
        self._node.log.warning(
            "a tiered partition is not copied or cleaned until the store works again",
            topic=self.metadata.logs.names.get(key[0]) if partition is None else partition.topic,
            partition=key[1],
            error=str(error),
        )

    def _roll(self, partition: Partition) -> None:
        """Close an old active segment: a leader copies it, and a follower can delete it then."""
        age_ms = self._node.config["shoal.remote.copy.interval.ms"]
        if age_ms < 0 or partition.log.config.remote_log_copy_disable:
            return
        try:
            partition.log.roll_if_older(self._node.clock.now_ms(), age_ms)
        except OSError as error:
            self._log_failure(partition.key, error)
