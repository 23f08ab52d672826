"""Links to other nodes: what callers get when a link is closed, lost or slow to open."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.errors import ConnectionLost, Unreachable
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.cluster.controller_channel import ControllerChannel
from shoal.server.config import resolve
from shoal.server.handlers import HANDLERS
from shoal.server.network.links import Link, SetupTimeouts
from shoal.server.node import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from shoal.client.settings import Address
    from shoal.server.network.api import Peer


class Silent(asyncio.Protocol):
    """Accepts connections and sends nothing."""

    def __init__(self, connected: asyncio.Event) -> None:
        self._connected = connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connected.set()


@asynccontextmanager
async def two_wait() -> AsyncIterator[tuple[Link, list[asyncio.Future[Any]]]]:
    """A link and two callers that wait for its connection."""
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
        asked: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(link.request(ApiKey.METADATA, {})) for _ in range(2)
        ]
        await connected.wait()
        yield link, asked


def test_closing_a_link_that_is_connecting_fails_its_callers() -> None:
    """The callers are not cancelled: one may be the task that sends heartbeats."""

    async def main() -> None:
        async with two_wait() as (link, asked):
            link.close()
            for one in asked:
                with pytest.raises(ConnectionLost, match="this client closed"):
                    await one

    asyncio.run(main())


def test_a_cancelled_caller_does_not_close_the_connection() -> None:
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
    """A link whose peer stops answering, while its connection seems to be alive."""

    address = ("127.0.0.1", 9)
    closed = False

    async def request(self, api_key: int, fields: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    def close(self) -> None:
        self.closed = True


class FollowedQuorum:
    """A quorum that node 2 leads."""

    leader_id = 2
    alone = False

    def __init__(self, leader: Address) -> None:
        self._leader = leader
        self._step_calls: list[Callable[[], None]] = []

    def on_step(self, call: Callable[[], None]) -> None:
        self._step_calls.append(call)

    def find_address(self, id: int) -> Address | None:
        return self._leader if id == self.leader_id else None

    def find_listener(self, _address: Address) -> str:
        return "CONTROLLER"


class Inactive:
    """The metadata log of a node that is not the active controller."""

    is_active = False


async def refuse_locally(_frame: bytes, _peer: Peer, _request_id: bytes) -> bytes:
    raise ApiError(ErrorCode.not_controller)


def test_a_request_that_times_out_is_repeated_on_a_new_connection() -> None:
    """After a network partition, TCP may take minutes to send on the old connection again."""

    async def main() -> None:
        link = Deaf()
        channel = ControllerChannel(
            Node(resolve({"node.id": "1"}, {}), asyncio.get_running_loop()),
            FollowedQuorum(link.address),
            Inactive(),
            apis=HANDLERS,
            handle=refuse_locally,
            timeouts=SetupTimeouts(1_000, 1_000),
        )
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
    """socket.connection.setup.timeout.ms and .max.ms, for all links to one address. A connection
    that opens resets the limit. A request does not wait longer than its own timeout."""

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
                assert timeouts.get_timeout_ms(address) == limit_ms
                assert limit_ms <= await failed(60_000) + 1
            assert await failed(10) + 1 >= 10
            assert timeouts.get_timeout_ms(address) == 70
            timeouts.on_opened(address)
            assert timeouts.get_timeout_ms(address) == 20

    asyncio.run(main())
