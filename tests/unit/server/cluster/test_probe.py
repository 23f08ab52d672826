"""Whether a broker's process has ended, judged by its port."""

from __future__ import annotations

import asyncio

from shoal.server.cluster.controller import is_gone


def test_a_process_that_ends_during_the_probe_has_ended() -> None:
    """The kernel closes one socket after the other, so the port may still accept a connection."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        class Ending(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                server.close()
                transport.abort()  # type: ignore[attr-defined]

        server = await loop.create_server(Ending, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        assert await is_gone(host, port)
        assert await is_gone(host, port)

    asyncio.run(main())


def test_a_listening_process_is_alive() -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        async with server:
            assert not await is_gone(*server.sockets[0].getsockname())

    asyncio.run(main())
