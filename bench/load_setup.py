"""Common parts of loads: the broker's address, topics, filling and verification of topics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from load_checks import LoadFailed, Sent, Stall, Stored, sent_values

if TYPE_CHECKING:
    from collections.abc import Sequence

Figures = dict[str, Any]
#: librdkafka's properties for a secured listener as JSON, for the processes of a load.
CLIENT_VARIABLE = "BENCH_CLIENT_PROPERTIES"
#: Settings of every client.
QUIET: dict[str, Any] = {"log_level": 3, **json.loads(os.environ.get(CLIENT_VARIABLE, "{}"))}
#: Settings of every consumer: a batch with a wrong CRC32C is an error.
CHECKED = {"check.crcs": True}
#: Printed at the start and end of the timed part, in which the broker's CPU time counts.
BEGIN, END = "BEGIN", "END"
#: The replication factor that the brokers are set up with: 1, and 3 in a cluster.
BROKERS_DEFAULT = -1
#: Prefix of the loads' topics.
PREFIX = "bench-"


def log_in(properties: dict[str, str]) -> None:
    """Give these properties to all further clients of this process and of its children."""
    os.environ[CLIENT_VARIABLE] = json.dumps(properties)
    QUIET.clear()
    QUIET.update({"log_level": 3, **properties})


class Run:
    """A broker's address, and the scale of each load (1 is the size for a report).

    `stores` is False for a proxy that stores no records, so that there is nothing to verify.
    """

    def __init__(self, bootstrap: str, scale: float, *, stores: bool = True) -> None:
        self.bootstrap, self.scale, self._stores = bootstrap, scale, stores

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})

    def count(self, records: int) -> int:
        return max(100, int(records * self.scale))

    def topic(
        self, partitions: int = 1, prefix: str = PREFIX, configs: dict[str, str] | None = None
    ) -> str:
        name = f"{prefix}{uuid.uuid4().hex[:10]}"
        new = NewTopic(name, partitions, BROKERS_DEFAULT, config=configs or {})
        self.admin.create_topics([new])[name].result(30)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            found = self.admin.list_topics(name, timeout=10).topics.get(name)
            if found and len(found.partitions) == partitions:
                if all(p.leader >= 0 for p in found.partitions.values()):
                    return name
            time.sleep(0.02)
        raise LoadFailed(f"topic {name} has no leaders")

    def verify(self, topic: str, sent: Sent) -> None:
        """Raise LoadFailed unless the topic holds exactly the sent records."""
        if self._stores:
            verify(self.bootstrap, topic, sent)

    def remove_topics(self) -> None:
        """Delete the loads' topics; brokers remove their files soon after."""
        found = [
            name for name in self.admin.list_topics(timeout=10).topics if name.startswith(PREFIX)
        ]
        for future in self.admin.delete_topics(found).values() if found else ():
            future.result(30)

    def share_group(self) -> str:
        group = f"bench-{uuid.uuid4().hex[:10]}"
        self.configure_group(group, {"share.auto.offset.reset": "earliest"})
        return group

    def configure_group(self, group: str, configs: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(30)


def figures_of(script: str) -> Figures:
    """Run a bench of a broker in a process of its own; return the figures of its last line.

    Raises LoadFailed if it ends with an error.
    """
    words = [sys.executable, str(Path(__file__).with_name(script))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if ended.returncode:
        raise LoadFailed(f"{script}: {ended.stderr[-2000:]}")
    print(ended.stdout, end="", flush=True)
    figures: Figures = json.loads(ended.stdout.splitlines()[-1])
    return figures


def mark(word: str) -> None:
    """Print a marker, and wait until the runner has read the broker's CPU time."""
    print(word, flush=True)
    if not sys.stdin.isatty():
        sys.stdin.readline()


def produce(
    bootstrap: str,
    topic: str,
    count: int,
    values: Sequence[bytes],
    *,
    partitions: int = 1,
    first: int = 0,
    **conf: Any,
) -> tuple[float, Sent]:
    """Send `count` records with the values in turn, 500 to a partition before the next one.

    The partitions are `first` and those after it; `conf` are settings of librdkafka. Returns the
    seconds until all are acknowledged, and the sent records. Raises LoadFailed unless every record
    is acknowledged.
    """
    sent = sent_values(values, (first + n // 500 % partitions for n in range(count)))
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 1 << 20,
            **QUIET,
            **conf,
        }
    )
    size = len(values)
    began = time.perf_counter()
    for n in range(count):
        while True:
            try:
                at = first + n // 500 % partitions
                producer.produce(topic, values[n % size], partition=at, on_delivery=sent)
                break
            except BufferError:
                producer.poll(0.01)
        if not n & 1023:
            producer.poll(0)
    left = producer.flush(120)
    elapsed = time.perf_counter() - began
    sent.check(left)
    return elapsed, sent


def verify(bootstrap: str, topic: str, sent: Sent, *, gaps: bool = False) -> None:
    """Read the whole topic and raise LoadFailed unless it holds exactly the sent records.

    `gaps`: the topic has control records, as transactions write them.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"verify-{topic}",
            **CHECKED,
            **QUIET,
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 8 << 20,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in sent.counts])
        stored, wanted = Stored(max(sent.counts) + 1), sum(sent.counts.values())
        stall = Stall(wanted)
        while stored.count < wanted:
            stored.add(consumer.consume(10_000, 1.0))
            stall.look(stored.count)
        stored.add(consumer.consume(1, 0))
        for partition, count in sent.counts.items():
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
            if not gaps and end != count:
                raise LoadFailed(f"partition {partition}: it ends at {end} instead of {count}")
        stored.check(sent, gaps=gaps)
    finally:
        consumer.close()
