"""Backups of what is not in segments, and the lease of the bucket.

At an interval each leader of a partition of `__consumer_offsets`, `__transaction_state` and
`__share_group_state` writes the state of the partition to the bucket, and the broker with the
smallest id writes the metadata of the cluster. `restore` begins a cluster from them.

That broker also writes the lease, which shows that the cluster is alive. Each broker reads the
incarnation. If a restore has changed it, the bucket belongs to the restored cluster, and this
cluster, which came back, must not write there any more.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from shoal.log.errors import LogOffline, OffsetOutOfRange
from shoal.metadata.records import decode, encode
from shoal.metadata.snapshot import build_records
from shoal.record.batch import CorruptBatch
from shoal.tiered import backup
from shoal.tiered.sealing import KeyUnavailable
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import BytesSource, ObjectMissing, ObjectVersion, StoreError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from typing import Any
    from uuid import UUID

    from shoal.metadata.image import MetadataImage
    from shoal.replication.partition import Partition
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions
    from shoal.server.tiered.key_ring import Sealing
    from shoal.tiered.store import ObjectStore

#: The internal topics with a backup. The keys of updates in the last one have a type of their own.
STATE_TOPICS: dict[str, bytes | None] = {
    "__consumer_offsets": None,
    "__transaction_state": None,
    "__share_group_state": b"\x00\x01",
}
#: The cluster-wide config that has the incarnation of a restored cluster.
INCARNATION = "shoal.remote.store.incarnation"
_INTERVAL, _LEASE_INTERVAL = "shoal.remote.backup.interval.ms", "shoal.remote.lease.interval.ms"
#: Bytes of a log that are replayed in one turn of the event loop, which takes a few milliseconds.
_READ_BYTES = 64 << 10
#: Pause after such a turn, as a multiple of its time: backups take at most a tenth of the loop.
_PAUSE_FACTOR = 9
_RETRY_MS = 1_000


def is_writer(node: Node, image: MetadataImage) -> bool:
    """Whether this broker writes the objects that a cluster has once."""
    return node.id == min(image.running, default=-1)


class Lease:
    """Owns the knowledge to whom the bucket belongs."""

    def __init__(
        self, node: Node, cache: MetadataCache, store: ObjectStore, cluster_id: str
    ) -> None:
        self._node = node
        self._cache = cache
        self._store = store
        self._cluster_id = cluster_id
        self._task: asyncio.Task[None] | None = None
        #: Set once the store has answered that the bucket is this cluster's.
        self.confirmed = asyncio.Event()
        #: Whether another cluster was restored from the bucket.
        self.is_lost = False

    def start(self) -> None:
        self._task = self._node.loop.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        failing = False
        while True:
            interval_ms = self._node.config[_LEASE_INTERVAL]
            try:
                await self.check()
                failing = False
            except (StoreError, DamagedObject) as error:
                interval_ms = min(interval_ms, _RETRY_MS)
                if not failing:
                    self._node.log.warning("the lease was not renewed", error=str(error))
                failing = True
            await asyncio.sleep(interval_ms / 1000)

    async def check(self) -> None:
        """Read the incarnation, and write the lease. Raises `StoreError`, `DamagedObject`."""
        image = self._cache.image
        try:
            data = await self._store.get(backup.format_incarnation_key(self._cluster_id))
            incarnation = backup.decode_incarnation(data)
        except ObjectMissing:
            incarnation = ""
        was_lost, own = self.is_lost, str(image.broker_config[INCARNATION])
        self.is_lost = incarnation != own
        if self.is_lost:
            self.confirmed.clear()
            if not was_lost:
                self._node.log.error(
                    "another cluster was restored from the bucket: this one copies and deletes"
                    " nothing there any more. Stop its brokers",
                    cluster_id=self._cluster_id,
                )
            return
        self.confirmed.set()
        if is_writer(self._node, image):
            lease = {"broker_id": self._node.id, "written_ms": self._node.clock.now_ms()}
            source = BytesSource(json.dumps(lease).encode())
            await self._store.put(backup.format_lease_key(self._cluster_id), source)


def _read_topic_ids(body: bytes) -> set[UUID]:
    """Return the ids of the topics in a backup of the metadata. Raises `DamagedObject`."""
    records = (decode(value) for _, value in backup.read_pairs(body) if value is not None)
    return {record.fields["topic_id"] for record in records if record.kind == "TopicRecord"}


class Backups:
    """Owns what this broker has written last."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: Partitions,
        store: ObjectStore,
        sealing: Sealing,
        lease: Lease,
        cluster_id: str,
    ) -> None:
        self._node = node
        self._cache = cache
        self._partitions = partitions
        self._store = store
        self._sealing = sealing
        self._lease = lease
        self._cluster_id = cluster_id
        self._task: asyncio.Task[None] | None = None
        #: Whether the backup in the store is known to be this cluster's.
        self._owned = self._warned = False
        #: Offset of the last backup of the metadata, and the id of the key that encrypts it.
        self._saved_metadata = (-1, "")
        #: Leader epoch, high watermark and id of the key of the last backup of a partition.
        self._saved: dict[tuple[UUID, int], tuple[int, int, str]] = {}
        self.written_total = self.failed_total = 0

    def start(self) -> None:
        if self._node.config[_INTERVAL] > 0:
            self._task = self._node.loop.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._lease.confirmed.wait()
            await self.run()
            await asyncio.sleep(self._node.config[_INTERVAL] / 1000)

    async def run(self) -> None:
        """Write what has changed since the last backup. A failure is logged."""
        image = self._cache.image
        if not await self._may_write(image):
            return
        # A former key is still needed until nothing is encrypted with it.
        key_id = self._sealing.key_id
        if is_writer(self._node, image) and (image.offset, key_id) != self._saved_metadata:
            await self._attempt("the metadata", self._save_metadata(image, key_id))
        for partition in list(self._partitions):
            if partition.topic not in STATE_TOPICS or partition.log.offline:
                continue
            if partition.is_behind:
                # A new leader takes what was committed for uncommitted until its followers fetch.
                continue
            mark = (partition.leader_epoch, partition.high_watermark, key_id)
            if partition.is_leader and self._saved.get(partition.key) != mark:
                name = f"{partition.topic}-{partition.index}"
                await self._attempt(name, self._save_state(partition, mark))

    async def _may_write(self, image: MetadataImage) -> bool:
        """Return whether the backup in the store is of this cluster, or there is none.

        A cluster that lost all of its disks may start again, empty and with the same id. What it
        lost is then only in the backup. Both have no topic in common.
        """
        if self._owned:
            return True
        key = backup.format_metadata_key(self._cluster_id)
        try:
            stored = backup.decode(await self._store.get(key))
            body = await asyncio.to_thread(stored.open_records, self._sealing.keys, key)
            theirs = await asyncio.to_thread(_read_topic_ids, body)
        except (ObjectMissing, DamagedObject):
            theirs = set()
        except (StoreError, KeyUnavailable) as error:
            self.failed_total += 1
            self._node.log.warning("the backup was not read", error=str(error))
            return False
        ours = {topic.topic_id for topic in image.topics.values()}
        self._owned = not theirs or bool(theirs & ours)
        if not self._owned:
            self.failed_total += 1
            if not self._warned:
                self._node.log.error(
                    "the bucket has the backup of a lost cluster with the same id, and this one"
                    " writes none. Restore the lost cluster, or delete the objects of its backup",
                    prefix=backup.format_folder(self._cluster_id),
                )
            self._warned = True
        return self._owned

    async def _attempt(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            self.written_total += 1
        except (
            StoreError,
            DamagedObject,
            KeyUnavailable,
            CorruptBatch,
            OSError,
            LogOffline,
            OffsetOutOfRange,
        ) as error:
            self.failed_total += 1
            self._node.log.warning("a backup was not written", of=name, error=str(error))
        except Exception:
            # A bug. The other backups continue.
            self.failed_total += 1
            self._node.log.exception("a backup failed", of=name)

    async def _save_metadata(self, image: MetadataImage, key_id: str) -> None:
        pairs: Iterable[backup.Pair] = ((None, encode(record)) for record in build_records(image))
        fields = {
            "cluster_id": self._cluster_id,
            "offset": image.offset,
            "written_ms": self._node.clock.now_ms(),
        }
        body = await self._join_batches(pairs)
        await self._replace(backup.format_metadata_key(self._cluster_id), fields, body, "offset")
        self._saved_metadata = (image.offset, key_id)

    async def _save_state(self, partition: Partition, mark: tuple[int, int, str]) -> None:
        epoch, end, _ = mark
        live = backup.CompactedView(STATE_TOPICS[partition.topic])
        loop, offset = self._node.loop, 0
        while offset < end and not partition.has_lost_leadership_since(epoch):
            began_s = loop.time()
            # Records below the log start, which moves, are superseded.
            offset = max(offset, partition.log.log_start_offset)
            data, next_offset = partition.read(offset, _READ_BYTES, committed=False, min_one=True)
            if next_offset == offset:
                break
            live.replay(bytes(data))
            offset = next_offset
            await asyncio.sleep((loop.time() - began_s) * _PAUSE_FACTOR)
        body = await self._join_batches(live)
        opened = []
        for producer_id, pairs in sorted(live.open.items()):
            part = await self._join_batches(pairs)
            opened.append({"producer_id": producer_id, "size": len(part)})
            body += part
        if partition.has_lost_leadership_since(epoch):
            return
        fields = {
            "cluster_id": self._cluster_id,
            "topic": partition.topic,
            "partition": partition.index,
            "leader_epoch": epoch,
            "high_watermark": end,
            "written_ms": self._node.clock.now_ms(),
            "open": opened,
        }
        key = backup.format_state_key(self._cluster_id, partition.topic, partition.index)
        await self._replace(key, fields, body, "leader_epoch")
        self._saved[partition.key] = mark

    async def _join_batches(self, pairs: Iterable[backup.Pair]) -> bytes:
        out = bytearray()
        for batch in backup.build_batches(pairs):
            out += batch
            await asyncio.sleep(0)
        return bytes(out)

    async def _replace(
        self, key: str, fields: dict[str, object], body: bytes, ordered_by: str
    ) -> None:
        """Replace an object unless a newer one is there."""
        version: ObjectVersion | None = None
        try:
            data, version = await self._store.get_versioned(key)
            newest = backup.decode(data).fields[ordered_by]
            if newest > fields[ordered_by]:
                return
        except ObjectMissing:
            pass
        except DamagedObject:
            pass  # A whole one replaces it.
        sealed = await asyncio.to_thread(self._seal, key, fields, body)
        await self._store.put_if(key, BytesSource(sealed), version)

    def _seal(self, key: str, fields: dict[str, object], body: bytes) -> bytes:
        """Return the contents of an object. Raises `KeyUnavailable`."""
        sealer = (
            self._sealing.make_sealer(backup.format_owner(key)) if self._sealing.key_id else None
        )
        return backup.encode(fields, body, sealer)
