"""What tiered storage is for when disks are lost: a broker, all brokers, and many segments.

Clusters have three brokers with a replica of each partition. They are killed, never stopped.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from brokers import Measured, free_port, metric_at
from clusters import CLUSTER_ID, NODES, Cluster, ShoalNode, eventually
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic
from load_checks import LoadFailed, Stall, check_errors, random_values, text_values
from load_setup import CHECKED, QUIET, Figures, Run, produce
from shoal.log.config import LogConfig
from shoal.log.directory import LogDirectory
from shoal.log.producers import ProducerStateManager
from shoal.log.remote import RebuiltState
from shoal.log.storage import DiskStorage
from shoal.server.tiered import rebuild
from shoal.server.tiered.metadata_topic import compute_index
from shoal.tiered import keys, manifest
from shoal.tiered.metadata_records import TOPIC as METADATA
from shoal.tiered.metadata_records import decode
from shoal.tiered.remote_log import RemoteLog, RemoteSegment
from tiered_copies import Watched
from tiered_reads import RECORD_BYTES, SOON, TIERED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from s3_server import S3Server

TOPIC = "kept"
FROM_PEERS = "kafka_server_BrokerTopicMetrics_ReplicationBytesInPerSec_total"
SEGMENTS = "kafka_server_BrokerTopicMetrics_RemoteLogMetadataCount"
MB = 1 << 20
#: A broker without a disk: bytes that its peers keep on theirs, in partitions with segments.
LOCAL_MB, LOCAL_PARTITIONS, LOCAL_SEGMENT_MB = 200, 2, 10
#: A restored cluster.
RESTORED_PARTITIONS, RESTORED_RECORDS = 300, 100
#: Interval of the leases of the lost cluster, and how long it must have been silent.
LEASE_MS, IDLE_S = 500, 1
#: Many segments: those of one partition, and the records of each.
SEGMENTS_EACH, SEGMENT_RECORDS = 10_000, 10


class TieredNode(ShoalNode):
    """A node with further configs and a metrics listener."""

    configs: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.reconfigure(self.configs)
        self.metrics_port = free_port()

    def command(self) -> list[str]:
        return [*super().command(), f"--metrics=127.0.0.1:{self.metrics_port}"]


def node_with(configs: Mapping[str, str]) -> type[ShoalNode]:
    """Return a kind of node with these configs."""
    return type("Node", (TieredNode,), {"configs": configs})


def _create(cluster: Cluster, partitions: int, configs: dict[str, str]) -> None:
    admin = cluster.admin()
    new = NewTopic(TOPIC, partitions, 3, config=configs)
    admin.create_topics([new], request_timeout=120, operation_timeout=120)[TOPIC].result(120)
    eventually(lambda: cluster.in_sync(admin), "the new topic is not in sync")


def _logs(cluster: Cluster, id: int, name: str = "*") -> list[tuple[int, int]]:
    """Return base offset and size of a broker's segments, those of the metadata left out."""
    folder = cluster.nodes[id].directory / "data"
    paths = [path for path in folder.glob(f"{name}-*/*.log") if path.parts[-2][:9] != "__cluster"]
    found = []
    for path in paths:
        # A copied segment may be deleted at any time.
        with contextlib.suppress(FileNotFoundError):
            found.append((int(path.stem), path.stat().st_size))
    return found


def empty_disk(folder: Path, s3: S3Server, scale: float) -> Figures:
    """A broker loses its disk, with 20 GB in the store and 200 MB on disks: time from its start
    until it is in all ISRs, and what its peers sent.
    """
    configs = s3.configs("empty-disk") | SOON
    cluster = Cluster(node_with(configs), folder)
    kept = LOCAL_MB * MB // LOCAL_PARTITIONS
    topic = TIERED | {"segment.bytes": str(LOCAL_SEGMENT_MB * MB), "local.retention.ms": "-2"}
    topic |= {"local.retention.bytes": str(kept)}
    count = int(20e9 * scale / RECORD_BYTES) + LOCAL_MB * MB // RECORD_BYTES
    try:
        cluster.start()
        _create(cluster, LOCAL_PARTITIONS, topic)
        produce(
            cluster.bootstrap,
            TOPIC,
            count,
            random_values(RECORD_BYTES),
            partitions=LOCAL_PARTITIONS,
            acks="all",
        )
        most = LOCAL_PARTITIONS * (kept + 2 * LOCAL_SEGMENT_MB * MB)
        eventually(
            lambda: all(sum(s for _, s in _logs(cluster, id, TOPIC)) <= most for id in NODES),
            "the disks keep more than local.retention.bytes",
        )
        lost = cluster.nodes[3]
        assert isinstance(lost, TieredNode)
        lost.kill9()
        shutil.rmtree(lost.directory / "data")
        admin = cluster.admin()
        eventually(lambda: not cluster.in_sync(admin), "the broker is still in sync")
        lost.start()
        began = time.perf_counter() - lost.start_s
        eventually(lambda: cluster.in_sync(admin), "the broker is not in sync again")
        elapsed = time.perf_counter() - began
        local = sum(size for _, size in _logs(cluster, 1))
        copied = metric_at(lost.metrics_port, FROM_PEERS)
        return {"sync_s": elapsed, "local_mb": local / MB, "peers_to_local": copied / local}
    finally:
        cluster.kill9()


def restored(folder: Path, s3: S3Server, scale: float) -> Figures:
    """All brokers lose their disks: time from the start of `shoal storage restore`, which runs on
    each of three nodes, until a record is consumed, and until one of each partition is.
    """
    configs = s3.configs("restored") | SOON
    configs |= {
        "shoal.remote.copy.interval.ms": "1000",
        "shoal.remote.backup.interval.ms": "1000",
        "shoal.remote.lease.interval.ms": str(LEASE_MS),
    }
    partitions = max(3, int(RESTORED_PARTITIONS * scale))
    kind = node_with(configs)
    lost = Cluster(kind, folder / "lost")
    try:
        lost.start()
        _create(lost, partitions, dict(TIERED))
        count = partitions * RESTORED_RECORDS
        values = random_values(RECORD_BYTES)
        # `produce` sends 500 records to a partition before the next one.
        for first in range(partitions):
            produce(lost.bootstrap, TOPIC, RESTORED_RECORDS, values, first=first, acks="all")
        eventually(
            lambda: all(
                [base for base, _ in _logs(lost, id, TOPIC)] == [RESTORED_RECORDS] * partitions
                for id in NODES
            ),
            f"{count} records are not all copied",
        )
        eventually(lambda: _is_saved(s3), "the metadata was not written")
    finally:
        lost.kill9()
    new = Cluster(kind, folder / "new")
    try:
        time.sleep(2 * LEASE_MS / 1000 + IDLE_S)
        began = time.perf_counter()
        with ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(lambda id: _restore(s3, new.nodes[id].directory / "data", id), NODES))
        commands_s = time.perf_counter() - began
        new.start()
        first_s, all_s = _first_of_each(new, partitions, began)
        return {"restore_s": commands_s, "first_s": first_s, "all_s": all_s}
    finally:
        new.kill9()


def _is_saved(s3: S3Server) -> bool:
    return any(path.name == "metadata" for path in s3.bucket.rglob("backup/*"))


def _restore(s3: S3Server, data_dir: Path, id: int) -> None:
    given = s3.configs("restored")
    names = ("url", "endpoint", "region")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "shoal.cli",
            "storage",
            "restore",
            *(f"--{name}={given[f'shoal.remote.store.{name}']}" for name in names),
            f"--cluster-id={CLUSTER_ID}",
            f"--node-id={id}",
            "--brokers=1,2,3",
            f"--idle={IDLE_S}s",
            f"--data-dir={data_dir}",
            "-o",
            "json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LoadFailed(f"the restore failed: {done.stderr[-2000:]}")
    ends = [row["end"] for row in json.loads(done.stdout) if row["topic"] == TOPIC]
    if min(ends) < RESTORED_RECORDS:
        raise LoadFailed(f"a partition ends at {min(ends)} instead of {RESTORED_RECORDS}")


def _first_of_each(cluster: Cluster, partitions: int, began: float) -> tuple[float, float]:
    """Consume until each partition has sent a record. Return the times of the first and the last
    of these records.
    """
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "first", **CHECKED, **QUIET}
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(partitions)])
    seen: set[int] = set()
    first_s, stall = 0.0, Stall(partitions)
    while len(seen) < partitions:
        messages = consumer.consume(1000, 0.1)
        check_errors(messages)
        if messages and not seen:
            first_s = time.perf_counter() - began
        seen |= {message.partition() for message in messages}
        stall.look(len(seen))
    consumer.close()
    return first_s, time.perf_counter() - began


# Many segments


def segments_of(number: int, count: int) -> list[RemoteSegment]:
    """Return the segments of a partition, as a leader has them."""
    size = SEGMENT_RECORDS * RECORD_BYTES
    return [
        RemoteSegment(
            UUID(int=(number + 1 << 64) + at + 1),
            at * SEGMENT_RECORDS,
            (at + 1) * SEGMENT_RECORDS - 1,
            1_700_000_000_000 + at,
            size,
            size + 500,
            300,
            1,
            True,
            ((0, at * SEGMENT_RECORDS),),
        )
        for at in range(count)
    ]


def many_segments(folder: Path, count: int) -> Figures:
    """Start a broker whose partitions have many remote segments: time until it knows them, and the
    memory that they add. The segments have records in the metadata topic, and empty objects.
    """
    partitions = max(1, count // SEGMENTS_EACH)
    each = count // partitions
    store = folder / "store"
    configs = {
        "remote.log.storage.system.enable": "true",
        "shoal.remote.store.url": f"file://{store}",
        "shoal.remote.copy.interval.ms": "200",
        "remote.log.manager.task.interval.ms": "200",
    }
    broker = Watched(folder / "broker", configs)
    try:
        broker.start()
        run = Run(broker.bootstrap, 1.0)
        # The first copy creates the metadata topic.
        small = run.topic(configs=TIERED)
        produce(run.bootstrap, small, 1, text_values(100), acks="all")
        eventually(lambda: _known(broker) == 1, "nothing is copied")
        topic = run.topic(partitions, configs=TIERED)
        broker.reconfigure({"remote.log.manager.task.interval.ms": "5000"})
        broker.stop()
        broker.start()
        eventually(lambda: _known(broker) == 1, "the segment is lost")
        before_mb = broker.rss_mb()
        broker.stop()
        _add_segments(broker, store, topic, each)
        broker.start()
        began = time.perf_counter() - broker.start_s
        eventually(lambda: _known(broker) == 1 + partitions * each, "segments are missing")
        start_s, grown_mb = time.perf_counter() - began, broker.rss_mb() - before_mb
        broker.pauses()
        time.sleep(10)  # Two passes of the copier.
        pauses = broker.pauses()
        factor = 1_000_000 / (partitions * each)
        more_s = (start_s - broker.start_s) * factor
        return {
            "start_s": start_s,
            "segments_mb": grown_mb,
            "million_start_s": broker.start_s + more_s,
            "million_mb": grown_mb * factor,
            **pauses,
        }
    finally:
        broker.kill9()


def _known(broker: Measured) -> float:
    """Return the number of remote segments in a broker's metadata, -1 before it has metrics."""
    try:
        return broker.metric(SEGMENTS)
    except OSError:
        return -1


def _add_segments(broker: Measured, store: Path, topic: str, each: int) -> None:
    """Write the metadata of segments, and the logs behind them, into the broker's directory, and
    manifests and objects into the store. The objects have holes instead of records.
    """
    storage = DiskStorage()
    directory = LogDirectory(storage, str(broker.directory / "data"))
    directory.open(cluster_id="", node_id=1, directory_id=UUID(int=1))
    directory.broker_epoch = directory.stopped_epoch
    known = dict(directory.find_partitions())
    metadata_count = sum(name == METADATA for name, _ in known)
    now_ms = int(time.time() * 1000)

    def opened(name: str, index: int) -> Any:
        config = LogConfig(remote_storage_enable=name == topic)
        return directory.open_log(name, index, config, now_ms=now_ms, topic_id=None)

    for (name, index), topic_id in sorted(known.items()):
        if name != topic:
            continue
        assert topic_id is not None
        log, key = opened(topic, index), (topic_id, index)
        segments = segments_of(index, each)
        end = segments[-1].end_offset + 1
        log.rebuild(RebuiltState(end, ((0, 0),), ProducerStateManager().to_snapshot()), 0)
        directory.high_watermarks[(topic, index)] = end
        where = compute_index(key, metadata_count)
        metadata, remote = opened(METADATA, where), RemoteLog()
        for pairs in rebuild.build_batches(topic, key, segments, broker_id=1, now_ms=now_ms):
            metadata.append_records(pairs, now_ms=now_ms, leader_epoch=0)
            for _, value in pairs:
                record = decode(value or b"")
                assert record is not None
                remote.replay(record)
        directory.high_watermarks[(METADATA, where)] = metadata.log_end_offset
        listed = manifest.Manifest(
            directory.cluster_id,
            topic,
            topic_id,
            index,
            0,
            1,
            UUID(int=index + 1),
            1,
            now_ms,
            0,
            remote.pack_finished(),
        )
        prefix = keys.format_partition_prefix(directory.cluster_id, topic, topic_id, index)
        path = store / keys.format_manifest_key(prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(manifest.encode(listed))
        for segment in segments:
            object_key = keys.format_segment_key(prefix, segment.base_offset, segment.segment_id)
            with (store / object_key).open("wb") as file:
                file.truncate(segment.object_size)
    directory.close()
