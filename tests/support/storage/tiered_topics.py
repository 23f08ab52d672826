"""Tiered topics on brokers whose store is a directory: their records, objects and configs."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

TIMEOUT_S = 60
MB = 1 << 20
TOPIC = {
    "remote.storage.enable": "true",
    "segment.bytes": str(MB),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
BASE_MS = 1_700_000_000_000


def settings(store: Path, **more: str) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "shoal.remote.store.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "log.segment.delete.delay.ms": "0",
    } | {name.replace("_", "."): value for name, value in more.items()}


def sizes(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the sizes of files in bytes, without files that were deleted after their listing."""
    found = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_size
    return found


class Tiered(NamedTuple):
    """A broker, its store, and a client. `former` are the folders of topics in the store that were
    deleted before: their objects may go later."""

    broker: ShoalProcess
    store: Path
    admin: AdminClient
    former: frozenset[Path] = frozenset()

    def objects(self) -> list[Path]:
        return sorted(
            path
            for path in self.store.rglob("*.segment")
            if path.is_file() and path.parents[1] not in self.former
        )

    def bases(self, topic: str = "t") -> list[int]:
        """Return the base offsets of a topic's objects."""
        return sorted(int(o.name[:20]) for o in self.objects() if f"/{topic}-" in str(o))

    def local_logs(self, topic: str = "t", index: int = 0) -> list[int]:
        folder = self.broker.data_dir / f"{topic}-{index}"
        return sorted(int(path.stem) for path in folder.glob("*.log"))

    def offset(self, spec: OffsetSpec, topic: str = "t") -> int:
        where = TopicPartition(topic, 0)
        found = self.admin.list_offsets({where: spec}, request_timeout=TIMEOUT_S)[where]
        return found.result(TIMEOUT_S).offset


def create(admin: AdminClient, topic: str = "t", *, replicas: int = 1, **configs: str) -> None:
    own = TOPIC | {name.replace("_", "."): value for name, value in configs.items()}
    new = NewTopic(topic, 1, replicas, config=own)
    admin.create_topics([new])[topic].result(TIMEOUT_S)


def produce(bootstrap: str, count: int, *, start: int = 0, topic: str = "t") -> None:
    """Produce records of 1 KB that are their offsets, a second apart."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.num.messages": 100})
    filler = random.Random(start).randbytes(1000)
    for number in range(start, start + count):
        producer.produce(topic, filler, b"%d" % number, timestamp=BASE_MS + number * 1000)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def consume(bootstrap: str, count: int, *, start: int = 0, topic: str = "t", **config: str) -> None:
    """Read `count` records from an offset on, and check each."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", **config})
    client.assign([TopicPartition(topic, 0, start)])
    at = start
    try:
        while at < start + count:
            # A call waits for all that it asks for.
            found = client.consume(min(1000, start + count - at), TIMEOUT_S)
            assert found, f"nothing after offset {at}"
            for message in found:
                assert message.error() is None, message.error()
                assert (message.offset(), message.key()) == (at, b"%d" % at)
                assert len(message.value()) == 1000
                at += 1
    finally:
        client.close()


def read_committed(bootstrap: str) -> list[bytes | None]:
    """Return the keys of the topic's records from its start to its last stable offset."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition("t", 0, 0)])
    keys: list[bytes | None] = []
    while True:
        message = reader.poll(TIMEOUT_S)
        assert message is not None, f"nothing after {len(keys)} records"
        error = message.error()
        if error is None:
            keys.append(message.key())
        elif error.code() == KafkaError._PARTITION_EOF:
            break
    reader.close()
    return keys


def alter(
    admin: AdminClient, configs: dict[str, str], kind: str = "topic", name: str = "t"
) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)
