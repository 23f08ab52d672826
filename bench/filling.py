"""What loads begin with: a broker's address and topics, and a topic that is filled."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

Figures = dict[str, Any]
QUIET = {"log_level": 3}
#: Printed where a topic has been filled: what the broker did until then is not the load.
FILLED = "FILLED"
#: What the topics of loads are called.
PREFIX = "bench-"


class Run:
    """A broker's address, and how much of each load is wanted (1 is the size of a report)."""

    def __init__(self, bootstrap: str, scale: float) -> None:
        self.bootstrap, self.scale = bootstrap, scale
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def count(self, records: int) -> int:
        return max(100, int(records * self.scale))

    def topic(self, partitions: int = 1, prefix: str = PREFIX) -> str:
        name = f"{prefix}{uuid.uuid4().hex[:10]}"
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            found = self.admin.list_topics(name, timeout=10).topics.get(name)
            if found and len(found.partitions) == partitions:
                if all(p.leader >= 0 for p in found.partitions.values()):
                    return name
            time.sleep(0.02)
        raise SystemExit("the topic has no leaders")

    def remove_topics(self) -> None:
        """Delete the topics of loads; brokers remove their files soon after."""
        found = [
            name for name in self.admin.list_topics(timeout=10).topics if name.startswith(PREFIX)
        ]
        for future in self.admin.delete_topics(found).values() if found else ():
            future.result(30)

    def share_group(self) -> str:
        group = f"bench-{uuid.uuid4().hex[:10]}"
        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(30)
        return group


def produce(run: Run, topic: str, count: int, size: int, **conf: Any) -> float:
    """Send `count` records of `size` bytes; seconds until all are acknowledged."""
    failed: list[Any] = []
    settings = {
        "bootstrap.servers": run.bootstrap, "linger.ms": 5, "batch.size": 1_000_000,
        "queue.buffering.max.messages": 200_000, "queue.buffering.max.kbytes": 1 << 20,
        **QUIET, **conf,
    }  # fmt: skip
    partitions = settings.pop("partitions", 1)
    producer = Producer(settings)
    value = os.urandom(size)
    report = lambda error, _: failed.append(error) if error else None  # noqa: E731
    began = time.perf_counter()
    for n in range(count):
        while True:
            try:
                producer.produce(
                    topic, value, partition=(n // 500) % partitions, on_delivery=report
                )
                break
            except BufferError:
                producer.poll(0.01)
        if not n & 1023:
            producer.poll(0)
    left = producer.flush(120)
    elapsed = time.perf_counter() - began
    if left or failed:
        raise SystemExit(f"produce failed: {left} left, {failed[:1]}")
    return elapsed
