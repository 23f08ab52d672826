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
        self.audits: dict[tuple[UUID, int], audit.ObjectAudit] = {}
        self.segments_rebuilt_total = self.orphans_deleted_total = 0

    def forget(self, key: tuple[UUID, int]) -> None:
        """Forget a partition that is no longer on this broker."""
        self._swept_ms.pop(key, None)
        self.audits.pop(key, None)

    async def claim(self, partition: Partition, prefix: str, epoch: int) -> None:
        """Take over the manifest, and complete the metadata from it or from the objects."""
        log, remote = partition.log, self._metadata.get_remote(partition.key)
        stored = await self._manifests.read(prefix, epoch)
        if stored is not None:
            stored_manifest, _ = stored
            lost = rebuild.find_unfinished(stored_manifest.packed, remote)
            if lost:
                complete, missing = await rebuild.split_present(self._store, prefix, lost)
                await self._write_again(partition, complete, missing, "its manifest")
            start = min(stored_manifest.log_start_offset, partition.high_watermark)
            if log.advance_log_start(start):
                partition.notify_changed()
        if not remote.has_offsets(log.log_start_offset, log.local_start_offset):
            await self._claim_objects(partition, prefix)
        self._manifests.claim(partition, epoch, stored)
        if stored is not None or remote.fingerprint:
            await self._manifests.write(partition, prefix, remote)

    async def _claim_objects(self, partition: Partition, prefix: str) -> None:
        """Complete the metadata from the objects: neither it nor a manifest has all offsets.

        Raises `ObjectMissing` if the objects do not have them. The log start must not move over
        offsets that may be in another bucket.
        """
        log, remote = partition.log, self._metadata.get_remote(partition.key)
        infos = [info async for info in self._store.list_objects(prefix)]
        comparison = await compare_in_steps(infos, remote)
        segments = await rebuild.read_descriptions(self._store, comparison.orphans)
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
        batches = rebuild.build_batches(
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
        log, remote = partition.log, self._metadata.get_remote(partition.key)
        now_ms = self._node.clock.now_ms()
        infos = [info async for info in self._store.list_objects(prefix)]
        comparison = await compare_in_steps(infos, remote)
        for segment in comparison.missing:
            self._node.log.error(
                "the object of a remote segment is missing or incomplete",
                key=keys.format_segment_key(prefix, segment.base_offset, segment.segment_id),
                offsets=f"{segment.base_offset}-{segment.end_offset}",
            )
        if comparison.orphans and not _is_complete(log, remote):
            # Without the metadata of some offsets, an orphan may be their only copy.
            await self._claim_objects(partition, prefix)
            comparison = await compare_in_steps(infos, remote)
        due = comparison.find_due(now_ms, self._orphan_grace_ms)
        if due:
            # Other requests were served between the steps.
            due = audit.find_unnamed(due, remote)
        if due and _is_complete(log, remote):
            await self._store.delete([info.key for info in due])
            self.orphans_deleted_total += len(due)
            deleted = set(due)
            remaining = tuple(info for info in comparison.orphans if info not in deleted)
            comparison = comparison._replace(orphans=remaining)
        self.audits[partition.key] = comparison
        self._swept_ms[partition.key] = now_ms


async def compare_in_steps(infos: Sequence[ObjectInfo], remote: RemoteLog) -> audit.ObjectAudit:
    """Compare in steps, between which the event loop serves requests."""
    work = audit.compare_in_steps(infos, remote)
    while True:
        try:
            next(work)
        except StopIteration as end:
            comparison: audit.ObjectAudit = end.value
            return comparison
        await asyncio.sleep(0)


def _is_complete(log: Log, remote: RemoteLog) -> bool:
    """Whether finished segments have all offsets up to the local log, and leave out none below
    their last one: another replica may have a shorter local log."""
    end = max(log.local_start_offset, remote.end_offset + 1)
    return remote.has_offsets(log.log_start_offset, end)
