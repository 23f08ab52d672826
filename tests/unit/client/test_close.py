"""Clients that wait for a connection: the client is closed, or the broker's name moves."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from shoal.client.errors import ClientError, ConnectionLost, Unreachable
from shoal.client.net import connection
from shoal.client.net.cluster import Cluster
from shoal.client.settings import Settings
from shoal.client.share.member import ShareMembership, ShareSession


class Opened:
    """A connection that is open."""

    closed = False


@asynccontextmanager
async def two_wait() -> AsyncIterator[tuple[Cluster, list[asyncio.Task[Any]]]]:
    """A client, and two callers that wait for its connection to a broker that never answers."""
    accepted = asyncio.Event()

    async def never_answer(_: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await asyncio.Event().wait()

    server = await asyncio.start_server(never_answer, "127.0.0.1")
    host, port = server.sockets[0].getsockname()
    cluster = Cluster(Settings(((host, port),)))
    waiting = [asyncio.create_task(cluster.refresh(())) for _ in range(2)]
    await accepted.wait()
    yield cluster, waiting
    server.close()


def test_callers_that_wait_for_a_connection_get_an_error_and_no_cancellation() -> None:
    """A cancellation would end the caller's own task, silently."""

    async def main() -> None:
        async with two_wait() as (cluster, waiting):
            await cluster.close()
            for task in waiting:
                with pytest.raises(ConnectionLost, match="this client closed"):
                    await task

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_closed_client_does_not_retry() -> None:
    """Callers that would retry after a lost connection get the error at once, as later ones do."""

    async def main() -> None:
        async with two_wait() as (cluster, waiting):
            again = asyncio.create_task(cluster.retry(lambda: cluster.refresh(())))
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


@pytest.mark.parametrize("turns", range(8))
def test_a_cancellation_is_never_lost(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every moment of the call. A Ctrl-C at the moment of the connection used to be lost."""
    opened = Opened()

    async def connection(*_: object) -> object:
        await asyncio.sleep(0)
        return opened

    async def main() -> None:
        cluster = Cluster(Settings((("127.0.0.1", 1), ("127.0.0.1", 2))))
        monkeypatch.setattr(cluster, "_get_connection", connection)
        monkeypatch.setattr(cluster, "get_connection", connection)
        session = ShareSession(cluster, ShareMembership(cluster, "group", (), None))
        for asked in (cluster.get_any_connection, partial(session._get_node_session, 1, 1.0)):
            asking: asyncio.Task[object] = asyncio.create_task(asked())
            for _ in range(turns):
                await asyncio.sleep(0)
            late = not asking.cancel()
            await asyncio.wait((asking,))
            assert asking.cancelled() is not late

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_name_is_resolved_again_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a pod was restarted and a resolver still returns its old address."""
    said = iter(("127.0.0.2", "127.0.0.2", "127.0.0.1"))
    look_up = socket.getaddrinfo

    def moving(host: str, *rest: object, **options: object) -> object:
        return look_up(next(said) if host == "broker-0" else host, *rest, **options)  # type: ignore[arg-type]

    async def main() -> None:
        taken = asyncio.Event()

        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken.set()
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            with socket.socket() as silent, socket.socket() as before:
                # Its queue is full: further connections get no answer.
                silent.bind(("127.0.0.2", port))
                silent.listen(0)
                before.connect(("127.0.0.2", port))
                host = "broker-0"
                with pytest.raises(Unreachable, match="before it answered ApiVersions"):
                    await connection.connect(Settings(((host, port),)), (host, port))
        assert taken.is_set()

    monkeypatch.setattr(socket, "getaddrinfo", moving)
    monkeypatch.setattr(connection, "PATIENCE_S", (0.05, 0.05))
    asyncio.run(asyncio.wait_for(main(), 20))
