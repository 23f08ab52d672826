"""A broker's connections to other nodes: who waits on one is told when it is closed."""

from __future__ import annotations

import asyncio

import pytest
from shoal.client.errors import ConnectionLost
from shoal.protocol.api import ApiKey
from shoal.server.links import Link


class Silent(asyncio.Protocol):
    """Takes connections and never answers."""

    def __init__(self, connected: asyncio.Event) -> None:
        self._connected = connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connected.set()


def test_closing_a_link_that_is_connecting_refuses_who_waits_and_cancels_nobody() -> None:
    """A cancelled caller would be a node's heartbeats, or its start, ended by another's closing."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        connected = asyncio.Event()
        server = await loop.create_server(lambda: Silent(connected), "127.0.0.1", 0)
        async with server:
            address = server.sockets[0].getsockname()[:2]
            link = Link(address, client_id="test", request_timeout_ms=60_000)
            asked = [asyncio.ensure_future(link.request(ApiKey.METADATA, {})) for _ in range(2)]
            await connected.wait()
            link.close()
            for one in asked:
                with pytest.raises(ConnectionLost, match="closed here"):
                    await one

    asyncio.run(main())


def test_a_caller_that_is_cancelled_leaves_the_connection_to_the_others() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        connected = asyncio.Event()
        server = await loop.create_server(lambda: Silent(connected), "127.0.0.1", 0)
        async with server:
            address = server.sockets[0].getsockname()[:2]
            link = Link(address, client_id="test", request_timeout_ms=60_000)
            first, second = (
                asyncio.ensure_future(link.request(ApiKey.METADATA, {})) for _ in range(2)
            )
            await connected.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert not second.done()
            link.close()
            with pytest.raises(ConnectionLost):
                await second

    asyncio.run(main())
