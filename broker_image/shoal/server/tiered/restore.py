"""Makes the data directory of a node of a restored cluster, from what a lost one left in a bucket.

Each node of the new cluster runs it, with the same arguments but its id, before any of them starts.
All find the same objects, so they write the same metadata and the same logs. The logs of tiered
partitions have no records: they continue behind those in the store, as for a replica with an empty
disk. Leaders then write the lost records of `__remote_log_metadata` from the manifests.

The restored cluster has the id of the lost one and continues under its prefix. A lost cluster that
comes back would write there as well. So a bucket with a fresh lease is refused, and the restore
changes the incarnation, by which brokers of the lost cluster notice that it is not theirs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share.records import ShareKey
from shoal.log import restore_mark
from shoal.log.appends import AppendOrigin
from shoal.log.config import LogConfig
from shoal.log.directory import LOCK, LogDirectory
from shoal.log.producers import CorruptSnapshot, ProducerStateManager
from shoal.log.restore_mark import RestoreMark
from shoal.log.uuids import format_uuid
from shoal.metadata.names import INTERNAL_TOPICS, METADATA_TOPIC
from shoal.metadata.records import decode, encode
from shoal.quorum import snapshots, wire
from shoal.quorum.log_index import OffsetAndEpoch
from shoal.record.control import build_marker
from shoal.server.tiered import rebuild, restored_metadata, restored_state, segments
from shoal.server.tiered.backups import STATE_TOPICS
from shoal.server.tiered.restored_state import EndOffsets
from shoal.tiered import audit, backup, keys, manifest
from shoal.tiered.remote_log import RemoteLog
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import BytesSource, ObjectMissing, StoreConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from shoal.log.log import Log
    from shoal.log.remote import RebuiltState
    from shoal.log.storage import Storage
    from shoal.metadata.image import MetadataImage, TopicImage
    from shoal.server.tiered.restored_metadata import LostCluster, RestoredMetadata
    from shoal.server.tiered.restored_state import Pair
    from shoal.tiered.sealing import KeyRing
    from shoal.tiered.store import ObjectStore

#: Records in one batch of an internal topic.
_BATCH_RECORDS = 500
#: What an empty data directory may have: `lost+found` is in the root of each volume with ext4. The
#: other files are from a restore that was interrupted at its start.
_WITHOUT_DATA = frozenset({"lost+found", LOCK, f"{restore_mark.NAME}.tmp"})


class RestoreRefused(Exception):
    """The restore cannot be made. The message names the reason and the remedy, `kind` is a word for
    programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RestoreTarget(NamedTuple):
    """The node to restore, and the brokers of its cluster. A node that is not one of them is a
    controller alone, and gets the metadata log without any partition. `topics` is None for all.

    Without `accepts_clear`, a backup that is not encrypted is refused: every
    writer of the bucket can make one, with any users and permissions in it.

    With an `id`, a restore that was interrupted begins again, and one that has ended returns its
    report again, until a broker starts in the directory.
    """

    data_dir: str
    node_id: int
    brokers: Sequence[int]
    topics: frozenset[str] | None = None
    #: How long the lost cluster must have been silent.
    idle_ms: int = 60_000
    id: str = ""
    accepts_clear: bool = True


class RestoreSource(NamedTuple):
    """What the store has of one tiered partition; `state` is None if it has no segments."""

    topic: TopicImage
    partition: int
    log_start_offset: int
    state: RebuiltState | None
    newest_ms: int
    segments: int
    #: Segments in the manifest without a whole object.
    missing: int
    leader_epoch: int
    written_ms: int
    #: (producer id, epoch, coordinator epoch) of the transactions that are open at the end.
    open: tuple[tuple[int, int, int], ...]


class PartitionReport(NamedTuple):
    """How far one partition came back. `newest_ms` is the largest timestamp of its last segment."""

    topic: str
    partition: int
    tiered: bool
    start: int
    end: int
    segments: int
    missing: int
    aborted: int
    newest_ms: int


class RestoreReport(NamedTuple):
    """The result. `written_ms` is the time of the backup of the metadata."""

    cluster_id: str
    written_ms: int
    partitions: list[PartitionReport]


async def list_clusters(store: ObjectStore) -> list[str]:
    """Return the ids of the clusters that have a backup in the store. Raises `StoreError`."""
    return sorted(
        [
            cluster_id
            for cluster_id in await store.list_children("")
            if backup.format_metadata_key(cluster_id) in await _list_modified_ms(store, cluster_id)
        ]
    )


async def restore(
    store: ObjectStore,
    storage: Storage,
    cluster_id: str,
    target: RestoreTarget,
    random_id: Callable[[], UUID],
    ring: KeyRing,
) -> RestoreReport:
    """Write the data directory. `ring` has the keys of encrypted objects. Raises `RestoreRefused`,
    `StoreError`, `DamagedObject`, `KeyUnavailable`, `OSError`."""
    if report := _find_ended_report(storage, target):
        return report
    metadata = await _read_metadata(store, ring, cluster_id, target)
    incarnation = await _take_over(store, cluster_id, target.idle_ms, random_id)
    lost, written_ms = metadata
    sources = await _find_sources(store, ring, cluster_id, lost, target.topics)
    epochs = {(s.topic.topic_id, s.partition): s.leader_epoch for s in sources}
    image = restored_metadata.build_restored(
        lost,
        brokers=target.brokers,
        topics=target.topics,
        incarnation=incarnation,
        leader_epochs=epochs,
    )
    states = {
        name: await _read_states(store, ring, cluster_id, image.image.topics[name], target)
        for name in STATE_TOPICS
        if name in image.image.topics
    }
    writer = _DirectoryWriter(storage, cluster_id, target, image, incarnation, written_ms)
    return writer.write(sources, states)


def _find_ended_report(storage: Storage, target: RestoreTarget) -> RestoreReport | None:
    """Return the report of the same restore if it has ended. Raises `RestoreRefused` if the
    directory has data that is not of a restore."""
    mark = restore_mark.read(storage, target.data_dir)
    if mark is not None and target.id:
        if mark.complete and mark.id == target.id:
            rows = [PartitionReport(**row) for row in mark.report["partitions"]]
            return RestoreReport(mark.report["cluster_id"], mark.report["written_ms"], rows)
        return None
    if set(storage.list_directory(target.data_dir)) - _WITHOUT_DATA:
        raise RestoreRefused(
            "DataNotEmpty",
            f"{target.data_dir} is not empty. Name a directory without files.",
        )
    return None


def _make_room(storage: Storage, target: RestoreTarget) -> None:
    """Mark the directory, and remove what an earlier restore has left. Raises `OSError`."""
    storage.make_directory(target.data_dir)
    try:
        lock = storage.lock(f"{target.data_dir}/{LOCK}")
    except BlockingIOError:
        raise RestoreRefused(
            "DataNotEmpty", f"{target.data_dir} is in use by another process. Stop it."
        ) from None
    restore_mark.write(storage, target.data_dir, RestoreMark(target.id))
    for name in storage.list_directory(target.data_dir):
        path = f"{target.data_dir}/{name}"
        if name == restore_mark.NAME or name in _WITHOUT_DATA:
            continue
        if storage.is_directory(path):
            storage.remove_directory(path)
        else:
            storage.remove(path)
    storage.sync_directory(target.data_dir)
    lock.close()


async def _list_modified_ms(store: ObjectStore, cluster_id: str) -> dict[str, int]:
    return {
        info.key: info.modified_ms
        async for info in store.list_objects(backup.format_folder(cluster_id))
    }


async def _read_metadata(
    store: ObjectStore, ring: KeyRing, cluster_id: str, target: RestoreTarget
) -> tuple[LostCluster, int]:
    key = backup.format_metadata_key(cluster_id)
    try:
        stored = backup.decode(await store.get(key))
    except ObjectMissing:
        other_ids = ", ".join(await list_clusters(store))
        has = f" It has backups of {other_ids}." if other_ids else ""
        raise RestoreRefused(
            "BackupNotFound",
            f"The store has no backup of cluster {cluster_id}.{has} Check the URL and the cluster"
            " id; brokers write backups if shoal.remote.backup.interval.ms is positive.",
        ) from None
    body = _open_backup(stored, ring, key, target)
    values = (value for _, value in backup.read_pairs(body) if value is not None)
    lost = restored_metadata.make_lost_cluster(map(decode, values), stored.fields["offset"])
    unknown = sorted((target.topics or frozenset()) - lost.image.topics.keys())
    if unknown:
        raise RestoreRefused(
            "TopicNotFound",
            f"The backup of cluster {cluster_id} has no topic {', '.join(unknown)}.",
        )
    return lost, stored.fields["written_ms"]


def _open_backup(stored: backup.Backup, ring: KeyRing, key: str, target: RestoreTarget) -> bytes:
    """Return the record batches of a backup. Raises `RestoreRefused`, `DamagedObject`,
    `KeyUnavailable`."""
    if not (target.accepts_clear or stored.is_sealed):
        raise RestoreRefused(
            "BackupInTheClear",
            f"The backup {key} is not encrypted, although there is a directory of keys: a"
            " stranger who can write to the bucket may have put it there. If the cluster wrote it"
            " while it had no key, accept it with --clear-backup.",
        )
    return stored.open_records(ring, key)


async def _take_over(
    store: ObjectStore, cluster_id: str, idle_ms: int, random_id: Callable[[], UUID]
) -> str:
    """Return the incarnation of the restored cluster. The first node of a restore chooses it.

    All times are the store's, so clocks do not matter. Raises `RestoreRefused`, `DamagedObject`.
    """
    probe = f"{backup.format_folder(cluster_id)}/probe-{format_uuid(random_id())}"
    await store.put(probe, BytesSource(b"probe"))
    try:
        modified_ms = await _list_modified_ms(store, cluster_id)
    finally:
        await store.delete([probe])
    key = backup.format_incarnation_key(cluster_id)
    lease_ms = modified_ms.get(backup.format_lease_key(cluster_id), 0)
    silent_ms = modified_ms[probe] - lease_ms
    if silent_ms < idle_ms:
        raise RestoreRefused(
            "ClusterAlive",
            f"Cluster {cluster_id} is alive: it wrote its lease {silent_ms / 1000:.0f} s ago. Stop"
            f" all of its brokers, and wait until {idle_ms / 1000:.0f} s have passed.",
        )
    version = None
    if key in modified_ms:
        data, version = await store.get_versioned(key)
        if modified_ms[key] > lease_ms:
            return backup.decode_incarnation(data)
    incarnation = format_uuid(random_id())
    try:
        source = BytesSource(backup.encode_incarnation(incarnation))
        await store.put_if(key, source, version)
    except StoreConflict:
        # Another node of the restore was faster.
        return backup.decode_incarnation(await store.get(key))
    return incarnation


async def _find_sources(
    store: ObjectStore,
    ring: KeyRing,
    cluster_id: str,
    lost: LostCluster,
    topics: frozenset[str] | None,
) -> list[RestoreSource]:
    partitions = [
        (keys.format_partition_prefix(cluster_id, name, topic.topic_id, index), topic, index)
        for name, topic in sorted(lost.image.topics.items())
        if (topics is None or name in topics) and _is_tiered(lost.image, name)
        for index in range(len(topic.partitions))
    ]
    # The store bounds how many requests there are at the same time.
    return await asyncio.gather(
        *(_find_source(store, ring, *partition) for partition in partitions)
    )


def _is_tiered(image: MetadataImage, topic: str) -> bool:
    return bool(image.resolve_topic_config(topic)["remote.storage.enable"])


async def _find_source(
    store: ObjectStore, ring: KeyRing, prefix: str, topic: TopicImage, index: int
) -> RestoreSource:
    """Find where a partition ends, and the state behind its last segment."""
    start, epoch, written_ms = 0, 0, 0
    try:
        stored = manifest.decode(await store.get(keys.format_manifest_key(prefix)))
        start, epoch, written_ms = stored.log_start_offset, stored.leader_epoch, stored.written_ms
        complete, missing = await rebuild.split_present(store, prefix, stored.segments)
    except ObjectMissing:
        infos = [info async for info in store.list_objects(prefix)]
        complete = await rebuild.read_descriptions(store, audit.compare(infos, RemoteLog()).orphans)
        missing = []
        start = min((segment.base_offset for segment in complete), default=0)
    nothing = RestoreSource(topic, index, start, None, -1, 0, len(missing), epoch, written_ms, ())
    if not complete:
        return nothing
    last = max(complete, key=lambda segment: segment.end_offset)
    # Its records stay in the store. The brokers decide whether they read them.
    state = await segments.fetch_state_behind(store, prefix, last, ring, accepts_clear=True)
    producers = ProducerStateManager()
    try:
        producers.load(state.producer_snapshot, 0)
    except CorruptSnapshot as error:
        raise DamagedObject(f"segment {last.segment_id}: its producer snapshot: {error}") from None
    opened = tuple(
        (p.producer_id, p.epoch, p.coordinator_epoch)
        for p in sorted(producers, key=lambda p: p.producer_id)
        if p.transaction_start >= 0
    )
    return nothing._replace(
        state=state,
        newest_ms=last.max_timestamp,
        segments=len(complete),
        open=opened,
        log_start_offset=min(start, state.next_offset),
    )


class _StateBackup(NamedTuple):
    """The backup of one partition of an internal topic."""

    live: list[Pair]
    #: The records of open transactions, by producer id.
    open: Mapping[int, list[Pair]]


async def _read_states(
    store: ObjectStore, ring: KeyRing, cluster_id: str, topic: TopicImage, target: RestoreTarget
) -> dict[int, _StateBackup]:
    """Return the backups of a topic by partition. Raises `RestoreRefused`, `DamagedObject`,
    `KeyUnavailable`, `StoreError`."""
    indexes = range(len(topic.partitions))
    names = [backup.format_state_key(cluster_id, topic.name, index) for index in indexes]
    states = await asyncio.gather(
        *(_read_partition_state(store, ring, key, target) for key in names)
    )
    return {index: state for index, state in zip(indexes, states, strict=True) if state is not None}


async def _read_partition_state(
    store: ObjectStore, ring: KeyRing, key: str, target: RestoreTarget
) -> _StateBackup | None:
    try:
        stored = backup.decode(await store.get(key))
    except ObjectMissing:
        return None
    body = _open_backup(stored, ring, key, target)
    opened: dict[int, list[Pair]] = {}
    end = len(body)
    for entry in reversed(stored.fields["open"]):
        begin = end - entry["size"]
        opened[entry["producer_id"]] = _parse_keyed(body[begin:end])
        end = begin
    return _StateBackup(_parse_keyed(body[:end]), opened)


def _parse_keyed(body: bytes) -> list[Pair]:
    return [(key, value) for key, value in backup.read_pairs(body) if key is not None]


class _DirectoryWriter:
    """Writes the data directory of one node."""

    def __init__(
        self,
        storage: Storage,
        cluster_id: str,
        target: RestoreTarget,
        metadata: RestoredMetadata,
        incarnation: str,
        written_ms: int,
    ) -> None:
        self._storage = storage
        self._cluster_id = cluster_id
        self._target = target
        self._metadata = metadata
        self._written_ms = written_ms
        self._directory_id = restored_metadata.compute_directory_id(incarnation, target.node_id)
        self._directory = LogDirectory(storage, target.data_dir)

    def write(
        self, sources: Sequence[RestoreSource], states: Mapping[str, Mapping[int, _StateBackup]]
    ) -> RestoreReport:
        """Write all logs and the metadata, then the mark of a clean stop. The mark of the restore
        comes last."""
        transaction_states: dict[int, _StateBackup] = dict(states.get("__transaction_state", {}))
        transactions = {
            index: restored_state.restore_transactions(state.live)
            for index, state in transaction_states.items()
        }
        committing = {
            producer_id: partitions
            for restored in transactions.values()
            for producer_id, partitions in restored.committing.items()
        }
        directory, target = self._directory, self._target
        _make_room(self._storage, target)
        directory.open(
            cluster_id=self._cluster_id,
            node_id=target.node_id,
            directory_id=self._directory_id,
            restores=True,
        )
        reports = [self._write_tiered(source, committing) for source in sources]
        reported = {(report.topic, report.partition) for report in reports}
        reports += [
            PartitionReport(name, index, False, 0, 0, 0, 0, 0, -1)
            for name, topic in sorted(self._metadata.image.topics.items())
            for index in range(len(topic.partitions))
            if (name, index) not in reported and name not in INTERNAL_TOPICS
        ]
        ends = self._build_ends(reports)
        for index, restored in transactions.items():
            self._write_state("__transaction_state", index, restored.pairs)
        shares = states.get("__share_group_state", {})
        share_keys = frozenset[ShareKey]().union(
            *(restored_state.list_share_keys(state.live) for state in shares.values())
        )
        for index, state in states.get("__consumer_offsets", {}).items():
            decided = [
                pair
                for producer_id, pairs in state.open.items()
                if ("__consumer_offsets", index) in committing.get(producer_id, ())
                for pair in pairs
            ]
            live = backup.CompactedView()
            live.put([*state.live, *decided])
            pairs = [(key, value) for key, value in live if key is not None]
            groups = restored_state.restore_groups(pairs, ends, states=share_keys)
            self._write_state("__consumer_offsets", index, groups)
        for index, state in shares.items():
            self._write_state(
                "__share_group_state", index, restored_state.restore_share_groups(state.live, ends)
            )
        self._write_metadata()
        directory.broker_epoch = self._metadata.broker_epoch
        directory.close()
        order = sorted(reports, key=lambda report: (report.topic, report.partition))
        report = RestoreReport(self._cluster_id, self._written_ms, order)
        rows = report._asdict() | {"partitions": [row._asdict() for row in order]}
        restore_mark.write(self._storage, target.data_dir, RestoreMark(target.id, True, rows))
        return report

    def _build_ends(self, reports: Iterable[PartitionReport]) -> EndOffsets:
        by_name = {(report.topic, report.partition): report.end for report in reports}
        topics = self._metadata.image.topics
        by_id = {(topics[name].topic_id, index): end for (name, index), end in by_name.items()}
        return EndOffsets(by_name, by_id)

    def _open(self, name: str, index: int) -> tuple[Log, int] | None:
        """Open the log of a partition; None if it has no replica on this node. Also return its
        leader epoch."""
        topic = self._metadata.image.topics[name]
        partition = topic.partitions[index]
        if self._target.node_id not in partition.replicas:
            return None
        config = LogConfig.from_settings(self._metadata.image.resolve_topic_config(name))
        log = self._directory.open_log(
            name, index, config, now_ms=self._written_ms, topic_id=topic.topic_id
        )
        return log, partition.leader_epoch

    def _write_tiered(
        self, source: RestoreSource, committing: Mapping[int, frozenset[tuple[str, int]]]
    ) -> PartitionReport:
        """Write the log of a tiered partition. Its open transactions are aborted, except those
        that were decided to commit: their coordinators write the markers."""
        partition_key = (source.topic.name, source.partition)
        aborted = [
            entry for entry in source.open if partition_key not in committing.get(entry[0], ())
        ]
        start = end = source.log_start_offset
        if source.state is not None:
            end = source.state.next_offset + len(aborted)
        opened = self._open(*partition_key)
        if opened is not None:
            log, leader_epoch = opened
            if source.state is None:
                log.truncate_fully_and_start_at(start)
            else:
                log.rebuild(source.state, start)
            for producer_id, epoch, coordinator_epoch in aborted:
                marker = build_marker(
                    committed=False,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    coordinator_epoch=max(0, coordinator_epoch),
                    timestamp_ms=source.written_ms,
                )
                log.append(
                    marker,
                    now_ms=source.written_ms,
                    leader_epoch=leader_epoch,
                    origin=AppendOrigin.COORDINATOR,
                )
            assert log.log_end_offset == end
            self._directory.high_watermarks[partition_key] = end
        return PartitionReport(
            *partition_key,
            True,
            start,
            end,
            source.segments,
            source.missing,
            len(aborted),
            source.newest_ms,
        )

    def _write_state(self, topic: str, index: int, pairs: Iterable[Pair]) -> None:
        opened = self._open(topic, index)
        if opened is None:
            return
        log, leader_epoch = opened
        records = list(pairs)
        for start in range(0, len(records), _BATCH_RECORDS):
            log.append_records(
                records[start : start + _BATCH_RECORDS],
                now_ms=self._written_ms,
                leader_epoch=leader_epoch,
            )
        self._directory.high_watermarks[(topic, index)] = log.log_end_offset

    def _write_metadata(self) -> None:
        """Write the snapshot from which the metadata log begins. It has no voters: those that the
        node is configured with apply."""
        log = self._directory.open_log(
            METADATA_TOPIC, 0, LogConfig(), now_ms=self._written_ms, topic_id=wire.TOPIC_ID
        )
        snapshot_id = OffsetAndEpoch(self._metadata.image.offset + 1, 0)
        pairs = ((None, encode(record)) for record in self._metadata.records)
        data = snapshots.build(
            snapshot_id, None, backup.build_batches(pairs), last_timestamp_ms=self._written_ms
        )
        path = f"{log.directory}/{snapshots.format_file_name(snapshot_id)}"
        self._storage.replace_file(path, data, sync=True)
