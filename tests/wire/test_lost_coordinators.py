"""A client looks for a coordinator again once the broker that it remembers cannot be reached."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client import Client
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import expect
from shoal.client.net.cluster import GROUP, TRANSACTION, TopicPartition
from shoal.client.net.metadata import BrokerInfo
from support.brokers.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.brokers.servers import ShoalProcess

#: The id of a broker that is gone. No broker of the tests has it.
LOST = 4711


async def join_share_group(client: Client, name: str) -> None:
    session = await client.share(name, [name])
    await session.close()


async def join_consumer_group(client: Client, name: str) -> None:
    async with await client.group_consumer(name, [name]) as consumer:
        assert consumer is not None


async def alter_offsets(client: Client, name: str) -> None:
    where = TopicPartition(name, 0)
    assert await client.admin.groups.alter_offsets(name, {where: 0}) == {where: None}


async def fence_producers(client: Client, name: str) -> None:
    await client.admin.transactions.terminate(name)


@pytest.mark.parametrize(
    "call", [join_share_group, join_consumer_group, alter_offsets, fence_producers]
)
def test_a_coordinator_whose_broker_is_gone_is_looked_up_again(
    shared_broker: ShoalProcess, call: Callable[[Client, str], Awaitable[Any]]
) -> None:
    name = f"lost-{uuid.uuid4().hex[:8]}"

    async def run() -> None:
        async with Client(shared_broker.bootstrap) as client:
            expect(await client.admin.topics.create([NewTopic(name, 1)]))
            cluster = client.cluster
            remembered = cluster._coordinators  # noqa: SLF001 (only a dead broker could fill it)
            remembered |= {(kind, name): LOST for kind in (GROUP, TRANSACTION)}
            (port,) = free_ports(1)
            cluster.brokers[LOST] = BrokerInfo(LOST, "127.0.0.1", port)
            await call(client, name)
            cluster.brokers.pop(LOST, None)
            assert {
                await cluster.find_coordinator(name, kind) for kind in (GROUP, TRANSACTION)
            } == {1}

    asyncio.run(run())
