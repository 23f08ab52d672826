"""Listeners: the socket options of accepted connections, and the limits on connections."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from shoal.server import logs
from shoal.server.network.connection_limits import ConnectionLimits
from shoal.server.network.listener import Listener
from support.brokers.connections import LISTENER, Server
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def listening(**configs: str) -> AsyncIterator[Listener]:
    """A listener at a free port, without a broker."""
    logs.configure(json=True, level="critical")
    named: dict[str, Any] = {**configs}
    server = Server(**named)
    limits = ConnectionLimits(server.node, server.cache)
    listeners: list[Listener] = []
    listener = Listener(
        server.node,
        LISTENER,
        server.dispatcher,
        limits,
        server.listener.request_limits,
        server.listener.receive_memory,
        listeners,
    )
    listeners.append(listener)
    listener.bind("127.0.0.1", 0)
    await listener.accept()
    try:
        yield listener
    finally:
        await listener.close()
        server.node.timers.stop()


@pytest.mark.parametrize("size", [20_000, 102_400])
def test_the_send_buffer_is_as_large_as_configured(size: int) -> None:
    async def main() -> int:
        async with listening(socket_send_buffer_bytes=str(size)) as listener:
            with socket.create_connection(("127.0.0.1", listener.port)):
                (connection,) = await eventually_async(lambda: list(listener._connections))
                accepted = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
                return accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    # Linux doubles the requested size, for its own bookkeeping.
    assert uvloop.run(main()) == 2 * size


@pytest.mark.parametrize("config", ["max_connections", "max_connections_per_ip"])
def test_connections_above_a_limit_are_closed(config: str) -> None:
    async def main() -> None:
        async with listening(**{config: "2"}) as listener:
            clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(3)]
            await eventually_async(lambda: listener.opened_total == 3)
            assert (listener.count, listener.refused_total) == (2, 1)
            clients[0].close()
            await eventually_async(lambda: listener.count == 1)
            clients.append(socket.create_connection(("127.0.0.1", listener.port)))
            await eventually_async(lambda: listener.count == 2)
            assert listener.refused_total == 1
            for client in clients:
                client.close()

    uvloop.run(main())
