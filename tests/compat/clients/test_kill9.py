"""kill -9 under load at random points, with a checker that reads all records back.

No acknowledged record is lost, no unknown one appears, and offsets are dense. Records of an
idempotent producer appear once and in order.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.runs.conditions import ceiling, eventually, stopwatch
from support.runs.seeding import SEED

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

PARTITIONS = 3
#: Three times what `docs/performance.md` claims, with far more of log.
RESTART_S = 2.8
KILLS = 4


class Load:
    """A producer that continues through crashes, and the result of each record that it sent."""

    def __init__(self, bootstrap: str, topic: str, **conf: Any) -> None:
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.failed: list[str] = []
        self.sent = 0
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 2,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 100,
                "message.timeout.ms": 600_000,
                # Bounds the queued records; a longer queue only takes time at the end.
                "queue.buffering.max.messages": 3000,
                "log_level": 0,
                **conf,
            }
        )
        # A test that fails while it runs must end too.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rng = random.Random(SEED)
        while not self._stop.is_set():
            for _ in range(rng.randrange(1, 200)):
                value = b"%d " % self.sent + rng.randbytes(rng.choice([0, 10, 1000]))
                try:
                    self._producer.produce(
                        self._topic,
                        value,
                        partition=self.sent % PARTITIONS,
                        on_delivery=self._delivered,
                    )
                except BufferError:
                    break
                self.sent += 1
            self._producer.poll(0.01)

    def _delivered(self, error: Any, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged[message.value()] = (message.partition(), message.offset())

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(300) == 0


def read_back(bootstrap: str, topic: str) -> dict[int, list[Message]]:
    """Return every record, by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
    partitions = [TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(p, timeout=90)[1] for p in partitions]
    consumer.assign(partitions)
    found: dict[int, list[Message]] = {p: [] for p in range(PARTITIONS)}
    while (left := sum(ends) - sum(map(len, found.values()))) > 0:
        batch = consumer.consume(min(left, 10_000), 20)
        assert batch, "records are missing below the log's end"
        for message in batch:
            assert message.error() is None, message.error()
            found[message.partition()].append(message)
    consumer.close()
    return found


@pytest.mark.parametrize(
    ("idempotent", "group_commit"),
    [
        (False, "false"),
        (True, "true"),
        pytest.param(False, "true", marks=pytest.mark.nightly),
        pytest.param(True, "false", marks=pytest.mark.nightly),
    ],
)
def test_nothing_acknowledged_is_lost(
    start_broker: Callable[..., ShoalProcess], idempotent: bool, group_commit: str
) -> None:
    rng = random.Random(f"{idempotent} {group_commit}")
    broker = start_broker(
        configs={"shoal.log.flush.group.commit": group_commit, "log.segment.bytes": "1048576"}
    )
    topic = "load"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)
    load = Load(broker.bootstrap, topic, **{"enable.idempotence": idempotent})
    for _ in range(KILLS):
        target = len(load.acknowledged) + rng.randrange(200, 3000)
        eventually(lambda target=target: len(load.acknowledged) >= target, timeout_s=120)
        broker.kill9()
        with stopwatch() as passed_s:
            broker.start()
            assert passed_s() < ceiling(RESTART_S)
    load.stop()
    assert load.failed == []
    assert len(load.acknowledged) == load.sent

    found = read_back(broker.bootstrap, topic)
    for partition, messages in found.items():
        assert [m.offset() for m in messages] == list(range(len(messages)))
        sequence = [int(m.value().split(b" ", 1)[0]) for m in messages]
        assert all(number % PARTITIONS == partition for number in sequence)
        if idempotent:
            assert sequence == sorted(set(sequence))
    values = Counter(m.value() for messages in found.values() for m in messages)
    assert set(values) == set(load.acknowledged)
    for value, (partition, offset) in load.acknowledged.items():
        assert found[partition][offset].value() == value
    if idempotent:
        assert max(values.values()) == 1
