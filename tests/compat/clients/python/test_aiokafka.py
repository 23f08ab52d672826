"""aiokafka: producing and consuming by assignment."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

_names = (f"aiokafka-{i}" for i in itertools.count())


async def make_topic(broker: ShoalProcess) -> str:
    name = next(_names)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, 2, 1)])
    await admin.close()
    return name


async def produce(broker: ShoalProcess, topic: str, count: int, **options: Any) -> list[Any]:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **options) as producer:
        sent = [await producer.send(topic, b"v%d" % i, partition=i % 2) for i in range(count)]
        return [await future for future in sent]


@pytest.mark.parametrize(
    "options",
    [
        {"acks": 0},
        {"acks": 1},
        {"acks": "all"},
        {"enable_idempotence": True},
        {"compression_type": "lz4"},
    ],
    ids=str,
)
def test_produce_and_consume(shared_broker: ShoalProcess, options: dict[str, Any]) -> None:
    async def run() -> None:
        topic = await make_topic(shared_broker)
        sent = await produce(shared_broker, topic, 300, **options)
        if options.get("acks") != 0:
            assert [m.offset for m in sent] == [i // 2 for i in range(300)]
        consumer = AIOKafkaConsumer(
            bootstrap_servers=shared_broker.bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        consumer.assign(both)
        found = [await consumer.getone() for _ in range(300)]
        assert sorted((m.partition, m.offset, m.value) for m in found) == sorted(
            (i % 2, i // 2, b"v%d" % i) for i in range(300)
        )
        assert await consumer.end_offsets(both) == dict.fromkeys(both, 150)
        await consumer.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
