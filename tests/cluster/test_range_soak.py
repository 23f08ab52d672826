"""A consumer group for as long as wanted, on three brokers: sixteen members that share partitions
by key ranges come, go and are killed, while librdkafka's and Java's consumers join and leave.

`RANGES_S=1800 pytest -s -m nightly tests/cluster/test_range_soak.py` runs half an hour. SEED
repeats the order of events.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CALM_CONFIGS
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.client.client import Client
from shoal.client.errors import expect
from support.brokers.clusters import ShoalCluster, running
from support.kafka.java_clients import JavaClient, JavaProcess
from support.runs import seeding
from support.runs.conditions import eventually
from support.scenarios.histories import History
from support.workers.range_worker import Got, Member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DURATION_S = float(os.environ.get("RANGES_S", "60"))
#: Java's clients of `JavaProcess` are in this group.
GROUP, TOPIC = "java-readers", "divided"
PARTITIONS, KEYS, MEMBERS = 6, 40, 16
#: Between two records of the producer, and between two events, at most.
PACE_S, EVENT_S = 0.005, 4.0
#: Until all records are read and committed, after the last event.
END_S = 120.0
OF_GROUPS = {
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.java,
    pytest.mark.timeout(DURATION_S + 600),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path, configs=CALM_CONFIGS | OF_GROUPS)) as found:
        yield found


class InThread:
    """Repeats a step in a thread until it is stopped."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.step()
            self.close()
        except BaseException as error:
            self._error = error

    def step(self) -> None:
        raise TypeError("a subclass has a step")

    def close(self) -> None:
        raise TypeError("a subclass closes its client")

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self} hangs"
        if self._error is not None:
            raise self._error


class Writer(InThread):
    """Writes to all partitions in turn. Record n of a partition has the key n % KEYS, and becomes
    offset n."""

    def __init__(self, bootstrap: str) -> None:
        self.counts = [0] * PARTITIONS
        self._turn = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        super().__init__()

    def step(self) -> None:
        partition = self._turn % PARTITIONS
        self._turn += 1
        self._producer.produce(
            TOPIC,
            str(self.counts[partition]),
            f"k{self.counts[partition] % KEYS}",
            partition=partition,
            on_delivery=self._delivered,
        )
        self.counts[partition] += 1
        self._producer.poll(PACE_S)
        self._stopped.wait(PACE_S)

    def close(self) -> None:
        assert not self._producer.flush(60)

    @staticmethod
    def _delivered(error: Any, _message: Any) -> None:
        if error is not None:
            raise KafkaException(error)


class Librdkafka(InThread):
    """A member that takes whole partitions. It commits after each poll."""

    def __init__(self, bootstrap: str) -> None:
        self.got: list[Got] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([TOPIC])
        super().__init__()

    def step(self) -> None:
        for message in self._consumer.consume(50, 0.1):
            if message.error() is None:
                place = message.partition() or 0, message.offset() or 0
                self.got.append(Got(time.monotonic(), *place, (message.key() or b"").decode()))
        # A partition may have moved to another member; what it committed counts.
        with suppress(KafkaException):
            self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class Java(JavaClient):
    """Java's consumer, in a JVM of its own. It takes whole partitions, and commits after each
    poll."""

    role = "reader"

    def __init__(self, bootstrap: str) -> None:
        self.got: list[Got] = []
        self._jvm = JavaProcess(bootstrap, TOPIC, PARTITIONS, "consumer")
        super().__init__(self._jvm, History(), "java")
        self.start()

    def _note(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "read":
            offset = event["o"]
            self.got.append(Got(event["t"], event["p"], offset, f"k{offset % KEYS}"))

    def stop(self) -> None:
        self.finish()
        self._jvm.kill()


class Crowd:
    """The group's members, past ones included."""

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self.bootstrap, self.rng = bootstrap, rng
        self.sharing: list[Member] = []
        self.plain: list[Librdkafka | Java] = []
        self.everyone: list[Member | Librdkafka | Java] = []
        self.events: dict[str, int] = {}

    def join(self) -> None:
        self.sharing.append(Member(self.bootstrap, GROUP, TOPIC))
        self.everyone.append(self.sharing[-1])

    def leave(self) -> None:
        self._any().stop()

    def die(self) -> None:
        self._any().kill9()

    def _any(self) -> Member:
        return self.sharing.pop(self.rng.randrange(len(self.sharing)))

    def join_plain(self) -> None:
        """One of each kind at most, so that the others have partitions to share."""
        kinds = {type(one) for one in self.plain}
        missing = [kind for kind in (Librdkafka, Java) if kind not in kinds]
        if missing:
            self.plain.append(self.rng.choice(missing)(self.bootstrap))
            self.everyone.append(self.plain[-1])

    def leave_plain(self) -> None:
        if self.plain:
            self.plain.pop(self.rng.randrange(len(self.plain))).stop()

    def event(self) -> None:
        """Let one thing happen. About sixteen members share."""
        few = len(self.sharing) < MEMBERS
        changes = [self.join] * 3 if few else [self.leave, self.die, self.die]
        happens = self.rng.choice([*changes, self.join_plain, self.leave_plain])
        happens()
        self.events[happens.__name__] = self.events.get(happens.__name__, 0) + 1

    def end(self) -> None:
        """Stop the members, so that they commit."""
        for one in (*self.plain, *self.sharing):
            one.stop()
        self.plain, self.sharing = [], []

    def kill9(self) -> None:
        for member in self.sharing:
            member.kill9()
        for one in self.plain:
            one.stop()


def unread(crowd: Crowd, counts: list[int]) -> set[tuple[int, int]]:
    """Return the records that no member has got, by partition and offset."""
    wanted = {(p, offset) for p, count in enumerate(counts) for offset in range(count)}
    for one in crowd.everyone:
        wanted.difference_update((got.partition, got.offset) for got in list(one.got))
    return wanted


def check_keys(crowd: Crowd, counts: list[int]) -> int:
    """Each key is read in order: nobody gets a record before all earlier ones of its key have been
    got. Return how many records came again. They may, where a member was killed, or a partition
    became whole or was divided, and began at the stable offset."""
    lanes: dict[tuple[int, int], list[Got]] = {}
    for member in crowd.everyone:
        for got in member.got:
            assert got.key == f"k{got.offset % KEYS}"
            lanes.setdefault((got.partition, got.offset % KEYS), []).append(got)
    assert len(lanes) == PARTITIONS * KEYS
    repeated = 0
    for (partition, key), lane in lanes.items():
        lane.sort(key=lambda got: got.at_s)
        expected = key
        for before, got in zip([None, *lane], lane, strict=False):
            assert got.offset <= expected, f"{got} before {expected}, after {before}"
            if got.offset == expected:
                expected += KEYS
            else:
                repeated += 1
        assert expected >= counts[partition]
    return repeated


def committed(bootstrap: str) -> dict[int, int]:
    """Return the stable offsets by partition."""

    async def main() -> dict[int, int]:
        async with Client(bootstrap) as client:
            found = expect(await client.admin.groups.offsets([GROUP]))[GROUP]
            return {where.partition: one.offset for where, one in found.items()}

    return asyncio.run(main())


def create_topic(cluster: ShoalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic(TOPIC, PARTITIONS, 3, config={"shoal.key.ranges.enable": "true"})
    admin.create_topics([topic], operation_timeout=60)[TOPIC].result(60)
    cluster.on_all(TOPIC, cluster.brokers)


def test_sixteen_members_come_and_go_beside_other_clients(cluster: ShoalCluster) -> None:
    create_topic(cluster)
    rng = random.Random(seeding.SEED)
    crowd = Crowd(cluster.bootstrap, rng)
    writer = Writer(cluster.bootstrap)
    try:
        for join in (*[crowd.join] * MEMBERS, crowd.join_plain, crowd.join_plain):
            join()
        end = time.monotonic() + DURATION_S
        while time.monotonic() < end:
            threading.Event().wait(rng.uniform(0.2, EVENT_S))
            crowd.event()
        writer.stop()
        counts = writer.counts
        eventually(lambda: not unread(crowd, counts), timeout_s=END_S, what="the last records")
        crowd.end()
        assert committed(cluster.bootstrap) == dict(enumerate(counts))
        repeated = check_keys(crowd, counts)
    finally:
        crowd.kill9()
        writer.stop()
    print(f"{sum(counts)} records, {repeated} repeated, events: {crowd.events}", flush=True)
    deliveries = sum(len(one.got) for one in crowd.everyone)
    assert deliveries == sum(counts) + repeated
    assert {type(one) for one in crowd.everyone if one.got} == {Member, Librdkafka, Java}
