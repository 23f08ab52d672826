"""A node checks its advertised address when it starts."""

import asyncio
import errno
import socket

import pytest
from shoal.server.cluster import lifecycle


async def hear(host: str) -> list[str]:
    """Reach a listener by a name that resolves to it from the third try on; return the lookups."""
    asked = []
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def late(name, port, **more):
        asked.append(name)
        if len(asked) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if len(asked) == 2:
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        return await resolve("127.0.0.1", port, **more)

    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1")
    async with server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "getaddrinfo", late)
            await lifecycle.reach(host, server.sockets[0].getsockname()[1])
    return asked


def test_a_name_that_leads_here_late_is_waited_for() -> None:
    assert asyncio.run(hear("pod.not.known.yet")) == ["pod.not.known.yet"] * 3


def test_a_name_that_never_resolves_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(lifecycle, "NAME_TIMEOUT_S", 0.0)
    with pytest.raises(socket.gaierror):
        asyncio.run(hear("never"))


def test_a_closed_port_is_reported_at_once() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            asyncio.run(lifecycle.reach("127.0.0.1", port))
