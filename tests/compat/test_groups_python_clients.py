"""Consumer groups of the two clients written in Python: kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from conditions import eventually
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import NewTopic
from servers import ShoalProcess

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
    """One kafka-python consumer, driven by polls."""

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
        # A client that leads before it has the topic's metadata deals out nothing, and kafka-python
        # may then not notice the metadata when it comes.
        eventually(lambda: self.consumer.partitions_for_topic(topic))
        self.consumer.subscribe([topic])
        self.read: list[tuple[int, int]] = []

    def poll(self) -> None:
        for partition, records in self.consumer.poll(timeout_ms=20).items():
            self.read += [(partition.partition, r.offset) for r in records]

    @property
    def partitions(self) -> list[int]:
        return sorted(p.partition for p in self.consumer.assignment())


def polled(members: list[Member], done: Callable[[], bool], what: str) -> None:
    def probe() -> bool:
        for member in members:
            member.poll()
        return done()

    eventually(probe, timeout_s=120, what=what)


def test_kafka_python_members_share_and_commit(shoal: ShoalProcess) -> None:
    topic = next(_names)
    admin = KafkaAdminClient(bootstrap_servers=shoal.bootstrap)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    producer = KafkaProducer(bootstrap_servers=shoal.bootstrap)
    for n in range(RECORDS):
        producer.send(topic, b"v%d" % n, partition=n % PARTITIONS)
    producer.flush()
    producer.close()

    first = Member(shoal, topic)
    polled([first], lambda: first.partitions == [0, 1, 2, 3], "one member")
    second = Member(shoal, topic)
    both = [first, second]
    polled(both, lambda: sorted(map(len, (first.partitions, second.partitions))) == [2, 2], "two")
    polled(both, lambda: len({*first.read, *second.read}) == RECORDS, "all is read")
    where = TopicPartition(topic, first.partitions[0])
    first.consumer.commit({where: OffsetAndMetadata(7, "seven", -1)})
    assert first.consumer.committed(where) == 7
    second.consumer.close()
    polled([first], lambda: first.partitions == [0, 1, 2, 3], "alone again")
    first.consumer.close()

    assert (topic, "consumer") in [(g["group_id"], g["protocol_type"]) for g in admin.list_groups()]
    admin.close()


def test_kafka_python_static_member(shoal: ShoalProcess) -> None:
    topic = next(_names)
    admin = KafkaAdminClient(bootstrap_servers=shoal.bootstrap)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    first = Member(shoal, topic, group_instance_id="a")
    polled([first], lambda: first.partitions == [0, 1, 2, 3], "one member")
    first.consumer.close()
    again = Member(shoal, topic, group_instance_id="a")
    polled([again], lambda: again.partitions == [0, 1, 2, 3], "the same again")
    again.consumer.close()
    admin.close()


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
