"""A broker's connections to other nodes: who waits on one is told when it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from shoal.client.errors import ConnectionLost, Unreachable
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError
from shoal.server.cluster.controller_channel import ControllerChannel
from shoal.server.network.links import Link, SetupTimeouts


class Silent(asyncio.Protocol):
    """Takes connections and never answers."""

    def __init__(self, connected: asyncio.Event) -> None:
        self._connected = connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connected.set()


@asynccontextmanager
async def two_wait() -> AsyncIterator[tuple[Link, list[asyncio.Future[Any]]]]:
    """A link, and two who wait for its connection."""
    connected = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Silent(connected), "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()[:2]
        link = Link(
            address,
            client_id="test",
            request_timeout_ms=60_000,
            timeouts=SetupTimeouts(1_000, 30_000),
        )
        asked = [asyncio.ensure_future(link.request(ApiKey.METADATA, {})) for _ in range(2)]
        await connected.wait()
        yield link, asked


def test_closing_a_link_that_is_connecting_refuses_who_waits_and_cancels_nobody() -> None:
    """A cancelled caller would be a node's heartbeats, or its start, ended by another's closing."""

    async def main() -> None:
        async with two_wait() as (link, asked):
            link.close()
            for one in asked:
                with pytest.raises(ConnectionLost, match="this client closed"):
                    await one

    asyncio.run(main())


def test_a_caller_that_is_cancelled_leaves_the_connection_to_the_others() -> None:
    async def main() -> None:
        async with two_wait() as (link, (first, second)):
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert not second.done()
            link.close()
            with pytest.raises(ConnectionLost):
                await second

    asyncio.run(main())


class Deaf:
    """A link whose peer does not answer any more; nothing tells that its connection is dead."""

    address = ("127.0.0.1", 9)
    closed = False

    async def request(self, api_key: int, fields: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    def close(self) -> None:
        self.closed = True


def test_a_controller_that_does_not_answer_is_asked_on_another_connection() -> None:
    """After a partition the old one may take minutes to carry anything: TCP backs off."""

    async def main() -> None:
        link = Deaf()
        broker = SimpleNamespace(
            node_id=1,
            table={ApiKey.BROKER_HEARTBEAT: SimpleNamespace(versions=range(1))},
            metadata=SimpleNamespace(is_active=False),
            quorum=SimpleNamespace(leader_id=2, address_of=lambda id: link.address),
        )
        channel = ControllerChannel(broker)  # type: ignore[arg-type]
        channel._link = link  # type: ignore[assignment]
        beat = {
            "broker_id": 1,
            "broker_epoch": 1,
            "current_metadata_offset": 0,
            "want_fence": False,
            "want_shut_down": False,
        }
        with pytest.raises(ApiError, match="no controller that answers"):
            await channel.request(ApiKey.BROKER_HEARTBEAT, beat, timeout_ms=50)
        assert link.closed
        assert channel._link is None

    asyncio.run(main())


def test_the_limit_on_opening_doubles_with_each_failure() -> None:
    """socket.connection.setup.timeout.ms and .max.ms, for all links to one address; an open
    connection ends it. A request waits no longer than its own time."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Silent(asyncio.Event()), "127.0.0.1", 0)
        async with server:
            address = server.sockets[0].getsockname()[:2]
            timeouts = SetupTimeouts(20, 70)

            async def failed(request_timeout_ms: int) -> float:
                link = Link(
                    address,
                    client_id="test",
                    request_timeout_ms=request_timeout_ms,
                    timeouts=timeouts,
                )
                begun = loop.time()
                with pytest.raises(Unreachable):
                    await link.request(ApiKey.METADATA, {})
                link.close()
                return (loop.time() - begun) * 1000

            for limit_ms in (20, 40, 70, 70):
                assert timeouts.of(address) == limit_ms
                assert limit_ms <= await failed(60_000) + 1
            assert await failed(10) + 1 >= 10 and timeouts.of(address) == 70
            timeouts.opened(address)
            assert timeouts.of(address) == 20

    asyncio.run(main())
