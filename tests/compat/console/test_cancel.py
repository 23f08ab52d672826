"""Cancelling records of a share group in the console."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import pytest
from shoal.client.client import SyncClient
from shoal.client.share.acquired import AcquireMode
from shoal.console.access.security import ConsoleAccess
from support.console.console_letters import Letters
from support.console.consoles import Console, console
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from shoal.client.share.member import ShareSession
    from support.brokers.servers import ShoalProcess


class Cluster(NamedTuple):
    bootstrap: str
    client: SyncClient


@pytest.fixture
def cluster(shared_broker: ShoalProcess) -> Iterator[Cluster]:
    with SyncClient(shared_broker.bootstrap) as client:
        yield Cluster(shared_broker.bootstrap, client)


def run(call: Callable[[Console], Coroutine[None, None, None]], cluster: Cluster) -> None:
    """Run a test on a console that has read one sample."""

    async def whole() -> None:
        async with console(cluster.bootstrap, ConsoleAccess(allow_actions=True)) as page:
            await page.sample()
            await call(page)

    asyncio.run(whole())


def test_cancel_the_records_of_a_key(cluster: Cluster) -> None:
    queue = Letters(cluster)
    queue.produce([0, 1], key=b"a")
    queue.produce([2], key=b"b")
    queue.produce(["3"], headers=(("tenant", b"acme"),))
    session = cluster.client.run(_hold_one(queue))

    async def call(page: Console) -> None:
        found = await page.get("/group", id=queue.group)
        assert "Cancel records" in found.words
        chosen = {"group": queue.group, "topic": queue.topic}
        plan = await page.preview("cancel", **chosen, by="key", value="a")
        assert f"2 records of {queue.topic} are cancelled for group {queue.group}." in plan.words
        done = (await page.confirm(plan)).words
        assert "1 cancelled, 1 marked while a consumer holds them" in done
        plan = await page.preview("cancel", **chosen, by="header", value="tenant=acme", letters="1")
        assert "1 cancelled" in (await page.confirm(plan)).words
        none = await page.preview("cancel", **chosen, by="id", value="a")
        assert f"{queue.topic} has no such records for group {queue.group}." in none.words

    run(call, cluster)
    # The letter is written after the answer.
    eventually(lambda: cluster.client.run(queue.written()) == 1, what="a dead letter")
    cluster.client.run(session.close())


def test_cancel_the_records_at_offsets(cluster: Cluster) -> None:
    queue = Letters(cluster)
    queue.produce([0, 1, 2])
    session = cluster.client.run(_hold_one(queue))

    async def call(page: Console) -> None:
        chosen = {"group": queue.group, "topic": queue.topic}
        plan = await page.preview("cancel", **chosen, by="offsets", value="0:0-1,90")
        assert f"3 records of {queue.topic} are cancelled" in plan.words
        done = (await page.confirm(plan)).words
        assert "1 cancelled, 1 marked while a consumer holds them, 1 not in the log" in done
        for value, said in (
            ("1-2", "must be PARTITION:OFFSETS, such as 0:3-7,9"),
            ("0:x", "must be PARTITION:OFFSETS, such as 0:3-7,9"),
            ("7:1", f"Group {queue.group} does not read partition 7 of {queue.topic}."),
            ("0:0-100000", "or there are more than 100,000"),
        ):
            assert said in (await page.preview("cancel", **chosen, by="offsets", value=value)).words

    run(call, cluster)
    cluster.client.run(session.close())


async def _hold_one(queue: Letters) -> ShareSession:
    """Return a member that holds the first record."""
    session = await queue.client.client.share(queue.group, [queue.topic])
    async with asyncio.timeout(120):
        while not (await session.acquire(max_records=1, mode=AcquireMode.RECORD_LIMIT)).count:
            pass
    return session
