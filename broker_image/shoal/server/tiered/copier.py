"""What the leader of a tiered partition does in the object store: copy, and delete.

The first pass of a leader claims the manifest, and writes metadata again that the manifest has and
`__remote_log_metadata` has not. Each pass moves the log start by retention, deletes what lies below
it, ends attempts of leaders that are gone, copies closed segments below the last stable offset, and
deletes orphans from time to time. Each step is written to `__remote_log_metadata` before and after
it takes effect:

    COPY_SEGMENT_STARTED, put the object, read it back, put the manifest, COPY_SEGMENT_FINISHED
    DELETE_SEGMENT_STARTED, put the manifest, delete the objects,
        DELETE_SEGMENT_FINISHED and tombstones

So after a crash anywhere the metadata has every object that may exist, the manifest has every
finished segment, and every object in the manifest exists. A pass that fails is repeated with the
next interval.
"""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from shoal.log.segment import INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX, format_file_name
from shoal.server.metrics.tiered import RemoteState
from shoal.server.tiered import rebuild
from shoal.server.tiered.manifests import LostLeadership, Manifests
from shoal.server.tiered.reconciliation import Reconciliation
from shoal.tiered import keys, retention
from shoal.tiered.metadata_records import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    build_tombstones,
    encode,
    encode_key,
)
from shoal.tiered.remote_log import Encryption, RemoteSegment, encode_custom_metadata
from shoal.tiered.segment_object import (
    DamagedObject,
    SealedSource,
    Section,
    SegmentDescription,
    SegmentSource,
    build_tail,
    scan,
)
from shoal.tiered.store import ByteRange, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from shoal.log.log import Log
    from shoal.log.segment import Segment
    from shoal.replication.partition import Partition
    from shoal.server.metrics.tiered import RemoteMeters
    from shoal.server.node import Node
    from shoal.server.tiered.chunk_cache import ChunkCache
    from shoal.server.tiered.key_ring import Sealing
    from shoal.server.tiered.metadata_topic import MetadataTopic
    from shoal.server.tiered.quota import TransferQuota
    from shoal.tiered.remote_log import RemoteLog
    from shoal.tiered.sealing import Sealer
    from shoal.tiered.store import ObjectStore

#: How long an unfinished attempt of another broker may still be finished by it.
ABANDONED_AFTER_MS = 3_600_000
_FILES = {
    Section.OFFSET_INDEX: INDEX,
    Section.TIME_INDEX: TIME_INDEX,
    Section.TRANSACTION_INDEX: TXN_INDEX,
}


#: Sections whose offsets are relative to the base offset of the file.
_RELATIVE = (Section.OFFSET_INDEX, Section.TIME_INDEX)


class PreparedSegment(NamedTuple):
    """A segment that is ready to be uploaded."""

    source: SegmentSource | SealedSource
    description: SegmentDescription
    txn_index_empty: bool
    encryption: Encryption

    def as_remote(self) -> RemoteSegment:
        """Return the segment as the remote log has it once the copy has finished, after the
        upload."""
        description = self.description
        return RemoteSegment(
            description.segment_id,
            description.base_offset,
            description.end_offset,
            description.max_timestamp,
            description.log_size,
            self.source.size,
            len(self.source.footer),
            description.broker_id,
            self.txn_index_empty,
            description.leader_epochs,
            self.encryption,
        )


class Copier:
    """Owns the attempts to copy that this broker has under way."""

    def __init__(
        self,
        node: Node,
        store: ObjectStore,
        metadata: MetadataTopic,
        cache: ChunkCache,
        cluster_id: str,
        meters: RemoteMeters,
        quota: TransferQuota,
        sealing: Sealing,
    ) -> None:
        self._node = node
        self._quota = quota
        self._sealing = sealing
        self._meters = meters
        self._store = store
        self._metadata = metadata
        self._cache = cache
        self._cluster_id = cluster_id
        self.manifests = Manifests(node, store, cluster_id)
        self.reconciliation = Reconciliation(node, store, metadata, self.manifests)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tiered")
        self._under_way: set[UUID] = set()
        #: When this broker first saw an unfinished attempt of another broker.
        self._seen_ms: dict[UUID, int] = {}

    def get_prefix(self, partition: Partition) -> str:
        """Return the prefix of the partition's objects."""
        return keys.format_partition_prefix(
            self._cluster_id, partition.topic, partition.topic_id, partition.index
        )

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def run(self, partition: Partition) -> int:
        """Run one pass for a partition that this broker leads. Return 0, or the milliseconds after
        which to run the next one, because the quota does not allow the next copy yet.

        Raises `StoreError`, `MetadataUnavailable`, `LostLeadership`, `DamagedObject`,
        `CorruptBatch`, `KeyUnavailable`, `OSError`.
        """
        if not partition.is_leader or not self._metadata.is_loaded(partition.key):
            return 0
        epoch = partition.leader_epoch
        remote = self._metadata.get_remote(partition.key)
        prefix = self.get_prefix(partition)
        if not self.manifests.is_claimed(partition, epoch):
            await self.reconciliation.claim(partition, prefix, epoch)
        self._advance_start(partition, remote)
        start = partition.log.log_start_offset
        unfinished = remote.find_in_state(RemoteLogSegmentState.COPY_SEGMENT_STARTED)
        due = [
            *remote.find_below(start),
            *filter(self._is_abandoned, unfinished),
            *remote.find_in_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
        ]
        for index in range(0, len(due), rebuild.BATCH):
            await self.delete(partition, prefix, due[index : index + rebuild.BATCH])
        wait_ms = 0
        for segment, base_offset, end in list(self._find_copyable(partition, remote)):
            wait_ms = self._quota.compute_throttle_ms()
            if wait_ms:
                break
            if partition.has_lost_leadership_since(epoch):
                raise LostLeadership("another broker leads the partition")
            await self._copy(partition, prefix, segment, base_offset, end)
        if not self.manifests.is_current(partition, remote.fingerprint):
            await self.manifests.write(partition, prefix, remote)
        await self.reconciliation.sweep_when_due(partition, prefix)
        return wait_ms

    async def delete_partition(
        self, key: tuple[UUID, int], topic: str, is_due: Callable[[], bool]
    ) -> int:
        """Delete all objects of a partition whose topic is deleted or no longer tiered, while
        `is_due` returns that it is. Return 0. Raises what `run` raises."""
        prefix = keys.format_partition_prefix(self._cluster_id, topic, *key)
        remote = self._metadata.get_remote(key)
        due = [
            *remote,
            *remote.find_in_state(RemoteLogSegmentState.COPY_SEGMENT_STARTED),
            *remote.find_in_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
        ]
        for index in range(0, len(due), rebuild.BATCH):
            batch = due[index : index + rebuild.BATCH]
            if not is_due():
                return 0
            await self._begin_deletion(topic, key, batch)
            await self._delete_objects(topic, key, prefix, batch)
        await self.manifests.delete(prefix, key)
        return 0

    def forget(self, key: tuple[UUID, int]) -> None:
        """Forget a partition that is no longer on this broker."""
        self.manifests.forget(key)
        self.reconciliation.forget(key)

    # Deleting

    def _advance_start(self, partition: Partition, remote: RemoteLog) -> None:
        """Move the log start offset as retention requires, and to the first offset that exists."""
        log, config = partition.log, partition.log.config
        local = [
            retention.SegmentRange(
                segment.base_offset, end, segment.size, segment.find_max_timestamp()[0]
            )
            for segment, end in _pair_with_ends(log)
        ]
        extents = retention.join_tiers(
            map(retention.SegmentRange._make, remote.iter_segment_ranges()),
            local,
        )
        start = retention.find_start_offset(
            extents,
            log_start_offset=max(log.log_start_offset, extents[0].start),
            high_watermark=partition.high_watermark,
            now_ms=self._node.clock.now_ms(),
            retention_ms=config.retention_ms if config.delete else -1,
            retention_bytes=config.retention_bytes if config.delete else -1,
        )
        if start > log.log_start_offset:
            log.advance_log_start(start)
            partition.notify_changed()

    def _is_abandoned(self, segment: RemoteSegment) -> bool:
        """Whether nothing finishes this attempt any more."""
        if segment.segment_id in self._under_way:
            return False
        if segment.broker_id == self._node.id:
            return True
        now_ms = self._node.clock.now_ms()
        since_ms = self._seen_ms.setdefault(segment.segment_id, now_ms)
        return now_ms - since_ms >= ABANDONED_AFTER_MS

    async def delete(
        self, partition: Partition, prefix: str, segments: Sequence[RemoteSegment]
    ) -> None:
        """Delete the objects of segments, which the manifest no longer names then."""
        key = partition.key
        await self._begin_deletion(partition.topic, key, segments)
        remote = self._metadata.get_remote(key)
        if not self.manifests.is_current(partition, remote.fingerprint):
            await self.manifests.write(partition, prefix, remote)
        await self._delete_objects(partition.topic, key, prefix, segments)

    async def _begin_deletion(
        self, topic: str, key: tuple[UUID, int], segments: Sequence[RemoteSegment]
    ) -> None:
        started = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        await self._metadata.append(
            key,
            [
                self._make_update(RemoteLogSegmentId(topic, *key, s.segment_id), started)
                for s in segments
            ],
        )

    async def _delete_objects(
        self, topic: str, key: tuple[UUID, int], prefix: str, segments: Sequence[RemoteSegment]
    ) -> None:
        meter = self._meters.get_meter(topic)
        meter.deletes += len(segments)
        try:
            await self._store.delete(
                [keys.format_segment_key(prefix, s.base_offset, s.segment_id) for s in segments]
            )
        except StoreError:
            meter.delete_errors += len(segments)
            raise
        records: list[tuple[bytes, bytes | None]] = []
        for segment in segments:
            identity = RemoteLogSegmentId(topic, *key, segment.segment_id)
            records.append(
                self._make_update(identity, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
            )
            records += build_tombstones(identity)
        await self._metadata.append(key, records)
        for segment in segments:
            self._cache.drop_segment(segment.segment_id)
            self._seen_ms.pop(segment.segment_id, None)

    def _make_update(
        self, segment: RemoteLogSegmentId, state: RemoteLogSegmentState, custom: bytes | None = None
    ) -> tuple[bytes, bytes]:
        record = RemoteLogSegmentUpdate(
            segment, self._node.id, self._node.clock.now_ms(), custom, state
        )
        return encode_key(record), encode(record)

    # Copying

    def _find_copyable(
        self, partition: Partition, remote: RemoteLog
    ) -> Iterable[tuple[Segment, int, int]]:
        """Return the closed segments below the last stable offset that are not copied, with the
        first offset of each and the offset behind it. A segment that the cleaner has emptied
        belongs to the next one."""
        log = partition.log
        if log.config.remote_log_copy_disable:
            return
        bound = partition.last_stable_offset
        if log.config.compact:
            # The store gets clean segments only.
            bound = min(bound, log.cleaned_to)
        start = max(remote.end_offset + 1, log.log_start_offset)
        base_offset: int | None = None
        newer_bytes, now_ms = log.size_bytes, self._node.clock.now_ms()
        for segment, end in _pair_with_ends(log)[:-1]:
            newer_bytes -= segment.size
            if end <= start or end > bound:
                continue
            timestamp = segment.find_max_timestamp()[0]
            if not retention.may_copy(log.config, timestamp, newer_bytes, now_ms):
                return
            if base_offset is None:
                base_offset = segment.base_offset
            if segment.size:
                yield segment, base_offset, end
                base_offset = None

    async def _copy(
        self, partition: Partition, prefix: str, segment: Segment, base_offset: int, end: int
    ) -> None:
        log = partition.log
        described = self.describe(partition, base_offset, end, segment.size)
        more = {
            Section.LEADER_EPOCHS: _encode_checkpoint([e for e in log.epochs.entries if e[1] < end])
        }
        snapshot = f"{log.directory}/{format_file_name(end, SNAPSHOT)}"
        if log.storage.exists(snapshot):
            read = partial(log.storage.read_file, snapshot)
            more[Section.PRODUCER_SNAPSHOT] = await self._node.disk.run(read)
        await self.put(partition, prefix, await self.prepare(segment, described, more))

    def describe(
        self, partition: Partition, base_offset: int, end: int, size: int
    ) -> SegmentDescription:
        """Return the description of a segment with the offsets [base_offset, end), whose log has
        `size` bytes, for an attempt to copy it."""
        return SegmentDescription(
            cluster_id=self._cluster_id,
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.index,
            segment_id=self._node.make_random_id(),
            base_offset=base_offset,
            end_offset=end - 1,
            max_timestamp=-1,
            log_size=size,
            leader_epochs=_find_epochs_within(partition.log.epochs.entries, base_offset, end),
            broker_id=self._node.id,
            leader_epoch=partition.leader_epoch,
            copied_ms=self._node.clock.now_ms(),
        )

    async def prepare(
        self, segment: Segment, described: SegmentDescription, more: Mapping[Section, bytes]
    ) -> PreparedSegment:
        """Check a segment, and build its object with its indexes and the sections `more`. Raises
        `CorruptBatch`, `KeyUnavailable`, `OSError`."""
        return await self._node.loop.run_in_executor(
            self._executor, lambda: prepare(segment, described, more, self._sealing.make_sealer)
        )

    async def put(self, partition: Partition, prefix: str, ready: PreparedSegment) -> None:
        """Put a segment into the store, with all steps. Raises what `run` raises."""
        description = ready.description
        segment_id = description.segment_id
        identity = RemoteLogSegmentId(
            partition.topic, partition.topic_id, partition.index, segment_id
        )
        added = RemoteLogSegmentMetadata(
            identity,
            description.base_offset,
            description.end_offset,
            self._node.id,
            description.max_timestamp,
            description.copied_ms,
            description.leader_epochs,
            description.log_size,
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            ready.txn_index_empty,
        )
        self._under_way.add(segment_id)
        meter = self._meters.get_meter(partition.topic)
        meter.copies += 1
        self._quota.record(ready.source.size)
        try:
            await self._metadata.append(partition.key, [(encode_key(added), encode(added))])
            await self._upload(
                keys.format_segment_key(prefix, description.base_offset, segment_id), ready
            )
            remote = self._metadata.get_remote(partition.key)
            await self.manifests.write(partition, prefix, remote, ready.as_remote())
            size, footer_size = ready.source.size, len(ready.source.footer)
            custom = encode_custom_metadata(size, footer_size, ready.encryption)
            finished = self._make_update(
                identity, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, custom
            )
            await self._metadata.append(partition.key, [finished])
        except Exception:
            meter.copy_errors += 1
            raise
        finally:
            self._under_way.discard(segment_id)
        meter.copied_bytes += ready.source.size

    async def _upload(self, key: str, ready: PreparedSegment) -> None:
        """Put the object, and read its end back: the store has all of it."""
        await self._store.put(key, ready.source)
        size = await self._store.get_size(key)
        if size != ready.source.size:
            raise DamagedObject(
                f"{key} has {size} bytes in the store instead of {ready.source.size}"
            )
        written = ready.source.footer
        (footer,) = await self._store.get_ranges(key, [ByteRange(size - len(written), size)])
        if footer != written:
            raise DamagedObject(f"{key} has another footer in the store than was written")


def compute_state(partition: Partition, remote: RemoteLog) -> RemoteState:
    """Return what a partition has in the store, and what the next passes have to do."""
    start = partition.log.log_start_offset
    pending_sizes = [
        segment.size
        for segment, end in _pair_with_ends(partition.log)[:-1]
        if end > max(remote.end_offset + 1, start) and segment.size
    ]
    due = [
        segment.log_size
        for segment in (
            *remote.find_below(start),
            *remote.find_in_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
        )
    ]
    return RemoteState(
        partition.topic,
        len(remote),
        remote.size_bytes,
        len(pending_sizes),
        sum(pending_sizes),
        len(due),
        sum(due),
    )


def _pair_with_ends(log: Log) -> list[tuple[Segment, int]]:
    """Return the segments of a log, each with the offset behind it."""
    return list(zip(log.segments, [*log.bases[1:], log.log_end_offset], strict=True))


def _find_epochs_within(
    entries: Sequence[tuple[int, int]], base_offset: int, end: int
) -> tuple[tuple[int, int], ...]:
    """Return the leader epochs of the offsets [base_offset, end), with their first offset there."""
    first = max(0, bisect_right(entries, base_offset, key=lambda entry: entry[1]) - 1)
    return tuple(
        (epoch, max(start, base_offset)) for epoch, start in entries[first:] if start < end
    )


def _encode_checkpoint(entries: Sequence[tuple[int, int]]) -> bytes:
    """Return leader epochs as the file `leader-epoch-checkpoint`."""
    lines = ["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]
    return "".join(f"{line}\n" for line in lines).encode()


def prepare(
    segment: Segment,
    described: SegmentDescription,
    more: Mapping[Section, bytes],
    sealer: Callable[[bytes], Sealer | None],
) -> PreparedSegment:
    """Check a closed segment and build what its object has behind the log. Runs in a thread.
    Raises `CorruptBatch`, `KeyUnavailable`, `OSError`."""
    storage = segment.storage
    scanned = scan(segment.file.read, described.log_size)
    sections = dict(more)
    for section, kind in _FILES.items():
        if section in _RELATIVE and described.base_offset != segment.base_offset:
            continue
        if storage.exists(segment.build_path(kind)):
            sections[section] = storage.read_file(segment.build_path(kind))
    described = described._replace(max_timestamp=scanned.max_timestamp)
    read = segment.file.read
    seals = sealer(described.owner)
    source: SegmentSource | SealedSource
    if seals is None:
        end = build_tail(described, scanned.chunks, sections)
        source = SegmentSource(read, described.log_size, end)
    else:
        source = SealedSource(read, described, scanned.chunks, sections, seals)
    is_clear = seals is None or seals.envelope is None
    encryption = Encryption.CLEAR if is_clear else Encryption.ENCRYPTED
    return PreparedSegment(
        source, described, not sections.get(Section.TRANSACTION_INDEX), encryption
    )
