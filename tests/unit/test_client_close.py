"""A client that is closed while somebody waits for its connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from shoal.client.cluster import Cluster
from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.settings import Settings


@asynccontextmanager
async def two_wait() -> AsyncIterator[tuple[Cluster, list[asyncio.Task[object]]]]:
    """A client, and two who wait for its connection to a broker that never answers."""
    accepted = asyncio.Event()

    async def never_answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await asyncio.Event().wait()

    server = await asyncio.start_server(never_answer, "127.0.0.1")
    host, port = server.sockets[0].getsockname()
    cluster = Cluster(Settings(((host, port),)))
    waiting = [asyncio.create_task(cluster.refresh(())) for _ in range(2)]
    await accepted.wait()
    yield cluster, waiting
    server.close()


def test_who_waits_for_a_connection_is_told_and_not_cancelled() -> None:
    """A cancellation would end the caller's own task, silently."""

    async def main() -> None:
        async with two_wait() as (cluster, waiting):
            await cluster.close()
            for task in waiting:
                with pytest.raises(ConnectionLost, match="closed here"):
                    await task

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_client_that_is_closed_asks_nobody_anew() -> None:
    """Who would ask again after a lost connection is told at once, and so is who comes later."""

    async def main() -> None:
        async with two_wait() as (cluster, waiting):
            again = asyncio.create_task(cluster.retrying(lambda: cluster.refresh(())))
            await asyncio.sleep(0)
            await cluster.close()
            for refused in (*waiting, again, cluster.refresh(())):
                with pytest.raises(ClientError, match="closed"):
                    await refused
            assert not cluster._connections

    asyncio.run(asyncio.wait_for(main(), 5))


def test_a_caller_that_is_cancelled_leaves_the_connection_to_others() -> None:
    async def main() -> None:
        async with two_wait() as (cluster, (one, other)):
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
            assert not other.done()
            await cluster.close()
            with pytest.raises(ConnectionLost):
                await other

    asyncio.run(asyncio.wait_for(main(), 20))
