"""Keeps the metadata of remote segments and their objects in agreement.

A leader claims the manifest of a partition in each of its epochs. Then it writes records of
`__remote_log_metadata` again that were lost: from the manifest, or from the objects if both were
lost. From time to time it compares the objects with the metadata, and deletes orphans.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.server.tiered import rebuild
from shoal.tiered import audit, keys
from shoal.tiered.store import ObjectMissing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.log.log import Log
    from shoal.replication.partition import Partition
    from shoal.server.node import Node
    from shoal.server.tiered.manifests import Manifests
    from shoal.server.tiered.metadata_topic import MetadataTopic
    from shoal.tiered.remote_log import RemoteLog, RemoteSegment
    from shoal.tiered.store import ObjectInfo, ObjectStore


class Reconciliation:
    """Owns the results of the comparisons, and when they were made."""

    def __init__(
        self, node: Node, store: ObjectStore, metadata: MetadataTopic, manifests: Manifests
    ) -> None:
        self._node = node
        self._store = store
        self._metadata = metadata
        self._manifests = manifests
        #: When this broker last compared the objects of a partition with its metadata.
        self._swept_ms: dict[tuple[UUID, int], int] = {}
        self._sweep_interval_ms = node.config["shoal.remote.orphan.check.interval.ms"]
        self._orphan_grace_ms = node.config["shoal.remote.orphan.grace.ms"]
        #: The results of the last comparisons.
        self.audits: dict[tuple[UUID, int], audit.Audit] = {}
        self.segments_rebuilt_total = self.orphans_deleted_total = 0

    def forget(self, key: tuple[UUID, int]) -> None:
        """Forget a partition that is no longer on this broker."""
        self._swept_ms.pop(key, None)
        self.audits.pop(key, None)

    async def claim(self, partition: Partition, prefix: str, epoch: int) -> None:
        """Take over the manifest, and complete the metadata from it or from the objects."""
        log, remote = partition.log, self._metadata.remote(partition.key)
        found = await self._manifests.read(prefix, epoch)
        if found is not None:
            known, _ = found
            lost = rebuild.unfinished(known.packed, remote)
            if lost:
                whole, missing = await rebuild.present(self._store, prefix, lost)
                await self._write_again(partition, whole, missing, "its manifest")
            start = min(known.log_start_offset, partition.high_watermark)
            if log.advance_log_start(start):
                partition.notify_changed()
        if not remote.covers(log.log_start_offset, log.local_start_offset):
            await self._claim_objects(partition, prefix)
        self._manifests.claim(partition, epoch, found)
        if found is not None or remote.fingerprint:
            await self._manifests.write(partition, prefix, remote)

    async def _claim_objects(self, partition: Partition, prefix: str) -> None:
        """Complete the metadata from the objects: neither it nor a manifest has all offsets.

        Raises `ObjectMissing` if the objects do not have them. The log start must not move over
        offsets that may be in another bucket.
        """
        log, remote = partition.log, self._metadata.remote(partition.key)
        infos = [info async for info in self._store.list(prefix)]
        found = await compared(infos, remote)
        segments = await rebuild.described(self._store, found.orphans)
        await self._write_again(partition, segments, [], "its objects")
        if remote.start_offset is None:
            raise ObjectMissing(
                prefix,
                f"the store has no object of this partition, and offsets {log.log_start_offset} to "
                f"{log.local_start_offset - 1} are no longer on the disk. Check "
                "shoal.remote.store.url. If the objects are lost, delete the records with "
                "`shoal topics delete-records`",
            )

    async def _write_again(
        self,
        partition: Partition,
        segments: Sequence[RemoteSegment],
        missing: Sequence[RemoteSegment],
        source: str,
    ) -> None:
        if not segments and not missing:
            return
        node = self._node
        node.log.warning(
            "the metadata of remote segments was lost and is written again",
            topic=partition.topic,
            partition=partition.index,
            source=source,
            segments=len(segments),
            objects_missing=len(missing),
        )
        batches = rebuild.batches(
            partition.topic,
            partition.key,
            segments,
            broker_id=node.id,
            now_ms=node.clock.now_ms(),
        )
        for records in batches:
            await self._metadata.append(partition.key, records)
        self.segments_rebuilt_total += len(segments)

    async def sweep_when_due(self, partition: Partition, prefix: str) -> None:
        now_ms = self._node.clock.now_ms()
        swept_ms = self._swept_ms.get(partition.key)
        if swept_ms is not None and now_ms - swept_ms < self._sweep_interval_ms:
            return
        await self.sweep(partition, prefix)

    async def sweep(self, partition: Partition, prefix: str) -> None:
        """Compare the objects with the metadata, and delete orphans after their grace period."""
        log, remote = partition.log, self._metadata.remote(partition.key)
        now_ms = self._node.clock.now_ms()
        infos = [info async for info in self._store.list(prefix)]
        found = await compared(infos, remote)
        for segment in found.missing:
            self._node.log.error(
                "the object of a remote segment is missing or incomplete",
                key=keys.segment_key(prefix, segment.base_offset, segment.segment_id),
                offsets=f"{segment.base_offset}-{segment.end_offset}",
            )
        if found.orphans and not _is_complete(log, remote):
            # Without the metadata of some offsets, an orphan may be their only copy.
            await self._claim_objects(partition, prefix)
            found = await compared(infos, remote)
        due = found.due(now_ms, self._orphan_grace_ms)
        if due:
            # Other requests were served between the steps.
            due = audit.unnamed(due, remote)
        if due and _is_complete(log, remote):
            await self._store.delete([info.key for info in due])
            self.orphans_deleted_total += len(due)
            gone = set(due)
            left = tuple(info for info in found.orphans if info not in gone)
            found = found._replace(orphans=left)
        self.audits[partition.key] = found
        self._swept_ms[partition.key] = now_ms


async def compared(infos: Sequence[ObjectInfo], remote: RemoteLog) -> audit.Audit:
    """Compare in steps, between which the event loop serves requests."""
    work = audit.steps(infos, remote)
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: audit.Audit = end.value
            return found
        await asyncio.sleep(0)


def _is_complete(log: Log, remote: RemoteLog) -> bool:
    """Whether finished segments have all offsets up to the local log, and leave out none below
    their last one: another replica may have a shorter local log."""
    end = max(log.local_start_offset, remote.end_offset + 1)
    return remote.covers(log.log_start_offset, end)
