"""Consumer groups of the two clients written in Python: kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import NewTopic
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTITIONS = 4
RECORDS = 40
_names = (f"python-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(
        tmp_path_factory.mktemp("python") / "data",
        configs={"group.initial.rebalance.delay.ms": "0"},
    ).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


class Member:
    """One kafka-python consumer, driven by polls.

    If a poll times out during a join, the consumer joins again in the next poll, or never, whatever
    the group has answered meanwhile. So the timeout is generous, and records end the polls.
    """

    def __init__(self, broker: ShoalProcess, topic: str, **options: object) -> None:
        self.consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=200,
            **options,
        )
        # A leader without the topic's metadata assigns nothing, and kafka-python may not notice the
        # metadata when it arrives.
        eventually(lambda: self.consumer.partitions_for_topic(topic))
        self.consumer.subscribe([topic])
        self.read: list[tuple[int, int]] = []
        self.partitions: list[int] = []

    def poll_until(self, over: threading.Event) -> None:
        while not over.is_set():
            for partition, records in self.consumer.poll(timeout_ms=100_000).items():
                self.read += [(partition.partition, r.offset) for r in records]
            self.partitions = sorted(p.partition for p in self.consumer.assignment())


class Group:
    """The members of a group on the topic of its name, to which records are produced
    continuously."""

    def __init__(self, broker: ShoalProcess) -> None:
        self.broker, self.topic = broker, next(_names)
        self.admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])
        self._producer = KafkaProducer(bootstrap_servers=broker.bootstrap)

    def member(self, **options: object) -> Member:
        return Member(self.broker, self.topic, **options)

    def produce(self) -> None:
        """Produce a record to each partition."""
        for partition in range(PARTITIONS):
            self._producer.send(self.topic, b"value", partition=partition)
        self._producer.flush()

    def polled(self, members: list[Member], done: Callable[[], bool], what: str) -> None:
        """Poll each member in a thread until `done`."""
        over = threading.Event()

        def ended() -> bool:
            self.produce()
            if done() or any(poll.done() for poll in polls):
                over.set()
            return all(poll.done() for poll in polls)

        with ThreadPoolExecutor(len(members)) as pool:
            polls = [pool.submit(member.poll_until, over) for member in members]
            try:
                eventually(ended, timeout_s=90, what=what)
            finally:
                over.set()
        for poll in polls:
            poll.result()

    def close(self) -> None:
        self._producer.close()
        self.admin.close()


@pytest.fixture
def group(shoal: ShoalProcess) -> Iterator[Group]:
    found = Group(shoal)
    yield found
    found.close()


def test_kafka_python_members_share_and_commit(group: Group) -> None:
    for _ in range(RECORDS // PARTITIONS):
        group.produce()
    wanted = {(p, o) for p in range(PARTITIONS) for o in range(RECORDS // PARTITIONS)}

    first = group.member()
    group.polled([first], lambda: first.partitions == [0, 1, 2, 3], "one member")
    second = group.member()
    both = [first, second]
    group.polled(both, lambda: [len(m.partitions) for m in both] == [2, 2], "two")
    group.polled(both, lambda: wanted <= {*first.read, *second.read}, "all is read")
    where = TopicPartition(group.topic, first.partitions[0])
    first.consumer.commit({where: OffsetAndMetadata(7, "seven", -1)})
    assert first.consumer.committed(where) == 7
    second.consumer.close()
    group.polled([first], lambda: first.partitions == [0, 1, 2, 3], "alone again")
    first.consumer.close()

    found = [(g["group_id"], g["protocol_type"]) for g in group.admin.list_groups()]
    assert (group.topic, "consumer") in found


def test_kafka_python_static_member(group: Group) -> None:
    first = group.member(group_instance_id="a")
    group.polled([first], lambda: first.partitions == [0, 1, 2, 3], "one member")
    first.consumer.close()
    again = group.member(group_instance_id="a")
    group.polled([again], lambda: again.partitions == [0, 1, 2, 3], "the same again")
    again.consumer.close()


def test_aiokafka_members_share_and_commit(shoal: ShoalProcess) -> None:
    async def run() -> None:
        topic = next(_names)
        admin = AIOKafkaAdminClient(bootstrap_servers=shoal.bootstrap)
        await admin.start()
        await admin.create_topics([AioNewTopic(topic, PARTITIONS, 1)])
        async with AIOKafkaProducer(bootstrap_servers=shoal.bootstrap) as producer:
            for n in range(RECORDS):
                await producer.send_and_wait(topic, b"v%d" % n, partition=n % PARTITIONS)

        def consumer() -> AIOKafkaConsumer:
            return AIOKafkaConsumer(
                topic,
                bootstrap_servers=shoal.bootstrap,
                group_id=topic,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=200,
                metadata_max_age_ms=1_000,
            )

        first, second = consumer(), consumer()
        await asyncio.gather(first.start(), second.start())
        read: set[tuple[int, int]] = set()
        while len(read) < RECORDS or {len(first.assignment()), len(second.assignment())} != {2}:
            for member in (first, second):
                for records in (await member.getmany(timeout_ms=50)).values():
                    read |= {(r.partition, r.offset) for r in records}
        await first.commit()
        mine = sorted(first.assignment(), key=lambda p: p.partition)
        assert [await first.committed(p) for p in mine] == [10, 10]
        await second.stop()
        while len(first.assignment()) < PARTITIONS:
            await first.getmany(timeout_ms=50)
        await first.stop()
        assert (topic, "consumer") in await admin.list_consumer_groups()
        await admin.close()

    asyncio.run(asyncio.wait_for(run(), 60))
