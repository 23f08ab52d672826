"""A client that is closed while somebody waits for its connection."""

import asyncio

import pytest
from shoal.client.cluster import Cluster
from shoal.client.errors import ConnectionLost
from shoal.client.settings import Settings


def test_who_waits_for_a_connection_is_told_and_not_cancelled() -> None:
    """A cancellation would end the caller's own task, silently."""

    async def main() -> None:
        accepted = asyncio.Event()

        async def never_answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set()
            await asyncio.Event().wait()

        server = await asyncio.start_server(never_answer, "127.0.0.1")
        host, port = server.sockets[0].getsockname()
        cluster = Cluster(Settings(((host, port),)))
        waiting = [asyncio.create_task(cluster.refresh(())) for _ in range(2)]
        await accepted.wait()
        await cluster.close()
        for task in waiting:
            with pytest.raises(ConnectionLost, match="closed here"):
                await task
        server.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_caller_that_is_cancelled_leaves_the_connection_to_others() -> None:
    async def main() -> None:
        accepted = asyncio.Event()

        async def never_answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set()
            await asyncio.Event().wait()

        server = await asyncio.start_server(never_answer, "127.0.0.1")
        host, port = server.sockets[0].getsockname()
        cluster = Cluster(Settings(((host, port),)))
        one, other = (asyncio.create_task(cluster.refresh(())) for _ in range(2))
        await accepted.wait()
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        assert not other.done()
        await cluster.close()
        with pytest.raises(ConnectionLost):
            await other
        server.close()

    asyncio.run(asyncio.wait_for(main(), 20))
