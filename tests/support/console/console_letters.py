"""A queue with dead letters, for tests of the console."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from shoal.client.admin.topics import NewTopic
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.acquired import Acknowledgement, AcknowledgeType, AcquireMode
from shoal.dead_letters.redrive import Redrive, RedrivePlan, RedriveResult
from support.brokers.queues import Queue

if TYPE_CHECKING:
    from shoal.client.client import SyncClient
    from shoal.protocol.reasons import FailureReason
    from shoal.record.records import Record


def send_back(client: SyncClient, plan: RedrivePlan) -> RedriveResult:
    """Send dead letters back with the rights of a client."""

    async def run() -> RedriveResult:
        return await Redrive(client.client.cluster, plan).run()

    return client.run(run())


class ClusterLike(Protocol):
    """A cluster and a client of it."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def client(self) -> SyncClient: ...


class Letters(Queue):
    """A queue whose group writes dead letters with copies of their records."""

    def __init__(
        self, cluster: ClusterLike, *, topic: str = "", group: str = "", **configs: str
    ) -> None:
        super().__init__(cluster.client, cluster.bootstrap, topic=topic, group=group)
        self.configure(**configs)
        self.letters = f"dlq.{self.topic}"
        new = NewTopic(self.letters, 1, configs={"errors.deadletterqueue.group.enable": "true"})
        expect(self.client.run(self.client.admin.topics.create([new])))
        self.configure(
            errors_deadletterqueue_topic_name=self.letters,
            errors_deadletterqueue_copy_record_enable="true",
        )

    async def reject(self, count: int, reason: FailureReason | None = None) -> None:
        """Join the group, reject this number of records, and wait for their letters."""
        session = await self.client.client.share(self.group, [self.topic])
        left = count
        async with asyncio.timeout(120):
            while left:
                acquired = await session.acquire(
                    max_records=left, max_wait_ms=1_000, mode=AcquireMode.RECORD_LIMIT
                )
                for batch in acquired:
                    for record in batch.records():
                        place = (record.topic, record.partition, record.offset, record.offset)
                        one = Acknowledgement(*place, AcknowledgeType.REJECT, reason=reason)
                        assert not await session.acknowledge([one])
                        left -= 1
            while await self.written() < count:
                await session.acquire(max_wait_ms=100)
        await session.close()

    async def written(self) -> int:
        return len(await self.records(self.letters))

    async def records(self, topic: str = "") -> list[Record]:
        name = topic or self.topic
        found = await self.client.client.admin.topics.offsets({TopicPartition(name, 0): -1})
        end = expect(found)[TopicPartition(name, 0)].offset
        starts = await self.client.client.admin.topics.offsets({TopicPartition(name, 0): -2})
        start = expect(starts)[TopicPartition(name, 0)].offset
        if start == end:
            return []
        fetched = await self.client.client.fetch_range(name, 0, start, end - 1)
        return [record for one in fetched for record in one.records()]
