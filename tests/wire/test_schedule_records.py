"""Whether a share group has completed the record of a tick, with a real broker."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import queue_settings
from shoal.schedules.producing import is_unfinished

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess


def test_a_group_has_completed_what_is_neither_in_flight_nor_unread(
    shared_broker: ShoalProcess,
) -> None:
    """Before the group exists, while it holds the record, out of order, and at the log's end."""

    async def run() -> None:
        async with Client(shared_broker.bootstrap) as client:
            topic = f"t-{uuid.uuid4().hex[:8]}"
            group, partition = f"g-{topic}", TopicPartition(topic, 0)
            expect(await client.admin.topics.create([NewTopic(topic, 1, 1)]))

            async def find_unfinished() -> list[int]:
                offsets = range(6)
                return [o for o in offsets if await is_unfinished(client, group, partition, o)]

            for _ in range(4):
                await client.put(topic, b"job")
            assert await find_unfinished() == [0, 1, 2, 3]
            resource = queue_settings.make_group(group)
            earliest = {queue_settings.RESET: "earliest"}
            await queue_settings.set_configs(client.admin, resource, earliest)
            async with await client.share_consumer(group, [topic]) as consumer:
                while not (records := await consumer.poll(max_records=3)):
                    pass
                first, *_ = records
                assert first.offset == 0
                assert await find_unfinished() == [0, 1, 2, 3]
                done = [record for record in records if record.offset == 1]
                consumer.accept(*done)
                await consumer.commit()
                assert await find_unfinished() == [0, 2, 3]
                # The last ones that the group has read are complete, and others are unread.
                later = [record for record in records if record.offset > 1]
                consumer.accept(*later)
                await consumer.commit()
                completed = {record.offset for record in (*done, *later)}
                assert await find_unfinished() == sorted(set(range(4)) - completed)
                consumer.accept(first)
                await consumer.commit()
                assert await find_unfinished() == sorted({3} - completed)
            # A log that has lost the record, as after its topic was created anew.
            gone = TopicPartition("no.such.topic", 0)
            assert not await is_unfinished(client, group, gone, 0)

    asyncio.run(run())
