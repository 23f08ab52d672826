"""Topics in an object store, and reads of them: by a consumer, by a share group, of one record.

`Stored` fills a topic and waits until its records have left the disk. It writes one segment more
than is read, so all records that are read are in closed segments.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from brokers import ROOT, Kafka
from clusters import eventually
from confluent_kafka import Consumer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from load_checks import Confirmed, LoadFailed, Stall, Taken, check_errors, text_values
from load_setup import CHECKED, QUIET, Run, produce

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from brokers import Broker
    from s3_server import S3Server

#: The topics of reads stay while other loads remove theirs.
PREFIX = "kept-"
RECORD_BYTES = 1024
GB = 10**9
LIBRARY = ROOT / "bench/kafka-tiered/lib"
COMMIT_TIMEOUT_S = 10
#: How often brokers look for segments to copy, and to delete from the disk.
SOON = {"remote.log.manager.task.interval.ms": "100", "log.retention.check.interval.ms": "200"}
SEGMENT_MB = 64
TIERED = {"remote.storage.enable": "true", "local.retention.ms": "1", "retention.ms": "-1"}


class Timed(NamedTuple):
    """Seconds of a read, and CPU seconds of the broker."""

    elapsed_s: float
    cpu_s: float
    records: int

    @property
    def rate(self) -> float:
        return self.records / self.elapsed_s

    @property
    def cpu_s_gb(self) -> float:
        return self.cpu_s / (self.records * RECORD_BYTES / GB)


class TieredKafka(Kafka):
    """Kafka with `LocalTieredStorage`, a store in a directory."""

    def __init__(self, directory: Path) -> None:
        jars = list(LIBRARY.glob("kafka-storage-*-test.jar"))
        if not jars:
            raise SystemExit(f"No LocalTieredStorage in {LIBRARY}: run `make bench-tiered`.")
        package = "org.apache.kafka.server.log.remote"
        configs = {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": f"{package}.storage.LocalTieredStorage",
            "remote.log.storage.manager.class.path": str(jars[0]),
            "remote.log.storage.manager.impl.prefix": "rsm.config.",
            "rsm.config.dir": str(directory / "remote"),
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "4",
        }
        super().__init__(directory, configs=configs | SOON)


class Stored:
    """A topic with one partition. `count` records are read; those of a tiered one are remote."""

    def __init__(self, broker: Broker, count: int, *, tiered: bool) -> None:
        self.broker, self.count = broker, count
        self._run = Run(broker.bootstrap, 1.0)
        # A small topic has several segments, too.
        segment_mb = min(SEGMENT_MB, max(1, count * RECORD_BYTES // (16 << 20)))
        configs = {"segment.bytes": str(segment_mb << 20), "retention.ms": "-1"}
        self.topic = self._run.topic(prefix=PREFIX, configs=configs | (TIERED if tiered else {}))
        more = (segment_mb << 20) // RECORD_BYTES + 1
        values = text_values(RECORD_BYTES)
        produce(self._run.bootstrap, self.topic, count + more, values, acks="all")
        if tiered:
            eventually(lambda: min(self.local()) >= count, f"{self.topic} stays on the disk")

    def local(self) -> list[int]:
        """Return the base offsets of the segments on the disk."""
        return local_segments(self.broker, self.topic)

    def read(self) -> Timed:
        """Read the records with one consumer."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": "read",
                "enable.auto.commit": False,
                "queued.min.messages": 1_000_000,
                "queued.max.messages.kbytes": 1 << 20,
                "fetch.message.max.bytes": 8 << 20,
                **CHECKED,
                **QUIET,
            }
        )
        before, began = self.broker.cpu_s(), time.perf_counter()
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        taken, stall = Taken(), Stall(self.count)
        while taken.new < self.count:
            taken.add(consumer.consume(10_000, timeout=1.0))
            stall.look(taken.new)
        found = Timed(time.perf_counter() - began, self.broker.cpu_s() - before, taken.new)
        consumer.close()
        taken.check({0: taken.new})
        return found

    def share(self) -> Timed:
        """Read the records with one member of a new share group, from its first record on."""
        run = Run(self.broker.bootstrap, 1.0)
        consumer = ShareConsumer(
            {
                "bootstrap.servers": run.bootstrap,
                "group.id": run.share_group(),
                "max.poll.records": 500,
                **CHECKED,
                **QUIET,
            }
        )
        taken, confirmed, stall = Taken(), Confirmed(), Stall(self.count)
        consumer.set_acknowledgement_commit_callback(confirmed)
        consumer.subscribe([self.topic])
        first, began, before = 0, 0.0, 0.0
        while taken.new < self.count:
            messages = consumer.poll(1.0)
            taken.add_shared(messages)
            if messages and not began:
                first, began, before = taken.new, time.perf_counter(), self.broker.cpu_s()
            stall.look(taken.new)
        elapsed, used = time.perf_counter() - began, self.broker.cpu_s() - before
        consumer.commit_sync(COMMIT_TIMEOUT_S)
        consumer.close()
        taken.check({0: taken.new})
        if confirmed.errors:
            raise LoadFailed(f"an acknowledgement failed: {confirmed.errors[0]}")
        return Timed(elapsed, used, taken.new - first)


def local_segments(broker: Broker, topic: str) -> list[int]:
    """Return the base offsets of the segments of a topic's one partition on the disk."""
    return [int(path.stem) for path in (broker.directory / f"data/{topic}-0").glob("*.log")]


def first_records(stored: Stored, s3: S3Server, samples: int) -> list[float]:
    """Measure from `assign` to the first record, at the beginning of segments. Return seconds.

    It goes from the last segment to the first one, so nothing that it reads was prefetched. The
    consumer is connected and knows the topic.
    """
    bases = [int(path.name[:20]) for path in s3.segments(stored.topic)][:-1]
    if not bases:
        raise LoadFailed(f"{stored.topic} has no segments in the store")
    step = max(1, len(bases) // samples)
    consumer = Consumer(
        {
            "bootstrap.servers": stored.broker.bootstrap,
            "group.id": "first",
            "enable.auto.commit": False,
            **CHECKED,
            **QUIET,
        }
    )
    _take_first(consumer, stored.topic, max(stored.local()))
    found = [_take_first(consumer, stored.topic, base) for base in bases[::-1][::step]]
    consumer.close()
    return sorted(found)


def _take_first(consumer: Any, topic: str, offset: int) -> float:
    began, stall = time.perf_counter(), Stall(1)
    consumer.assign([TopicPartition(topic, 0, offset)])
    while (message := consumer.poll(1.0)) is None:
        stall.look(0)
    took = time.perf_counter() - began
    check_errors([message])
    if message.offset() != offset:
        raise LoadFailed(f"a reader of offset {offset} got {message.offset()}")
    consumer.unassign()
    return took


def alter(run: Run, configs: Mapping[str, str], kind: str, name: str) -> None:
    """Set configs of a topic or a broker."""
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in configs.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in run.admin.incremental_alter_configs([resource]).values():
        future.result(30)
