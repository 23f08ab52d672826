"""What a listener sets on the connections that it accepts."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
import uvloop
from conditions import eventually_async
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.process import compose


@pytest.mark.parametrize("size", [20_000, 102_400])
def test_the_send_buffer_is_as_large_as_configured(tmp_path: Path, size: int) -> None:
    async def main() -> int:
        flags = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
            "socket.send.buffer.bytes": str(size),
        }
        broker = compose(resolve(flags, {}), asyncio.get_running_loop())
        await broker.start()
        (listener,) = broker.listeners
        try:
            with socket.create_connection(("127.0.0.1", listener.port)):
                (connection,) = await eventually_async(lambda: list(listener._connections))
                accepted = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
                return accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        finally:
            await broker.stop()

    logs.configure(json=True, level="critical")
    # Linux gives twice what is asked for, half of it for its own bookkeeping.
    assert uvloop.run(main()) == 2 * size
