"""Our client against our broker: the scenarios that it passes against Apache Kafka too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client, SyncClient
from shoal.client.errors import expect
from shoal.client.share.member import AcknowledgeType
from support.brokers.servers import ShoalProcess
from support.scenarios import client_scenarios, transaction_scenarios

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@pytest.mark.parametrize(
    "scenario", client_scenarios.ALL + transaction_scenarios.ALL, ids=lambda s: s.__name__
)
def test_scenario(
    scenario: Callable[[Client], Awaitable[None]], roomy_broker: ShoalProcess
) -> None:
    async def run() -> None:
        async with Client(roomy_broker.bootstrap) as client:
            await scenario(client)

    asyncio.run(run())


@pytest.fixture(scope="module")
def roomy_broker(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A broker that allows groups to have short locks."""
    process = ShoalProcess(
        tmp_path_factory.mktemp("roomy") / "data",
        configs={"group.share.min.record.lock.duration.ms": "1000"},
    ).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


def test_a_program_without_an_event_loop(roomy_broker: ShoalProcess) -> None:
    with SyncClient(roomy_broker.bootstrap) as client:
        admin = client.admin
        expect(client.run(admin.topics.create([NewTopic("sync", 1)])))
        group = client.run(client_scenarios.new_group(client.client))
        client.run(client_scenarios.fill(client.client, "sync", [b"a", b"b"]))
        session = client.run(client.share(group, ["sync"]))
        (found,) = client.run(client_scenarios.acquire(session))
        values = [r.value for one in client.fetch_range("sync", 0, 0, 1) for r in one.records()]
        assert values == [r.value for r in found.records()] == [b"a", b"b"]
        done = found.acknowledge(AcknowledgeType.ACCEPT)
        assert client.run(session.acknowledge(done)) == ()
        client.run(session.close())
    client.close()  # A second close does nothing.
