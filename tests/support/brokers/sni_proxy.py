"""A proxy that routes TLS connections by the host in their ClientHello, and ends no TLS itself.

It does what an ingress controller with TLS passthrough or a Gateway with TLSRoutes does.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Content type, version and length of a TLS record (RFC 8446, 5.1).
_RECORD, _HANDSHAKE = struct.Struct(">BHH"), 22
_SIZE = struct.Struct(">H")
#: The bytes before the session id of a ClientHello: type, length, version and random.
_BEFORE_SESSION_ID = 1 + 3 + 2 + 32
#: The bytes before the name in the extension `server_name`: list length, type and length.
_SERVER_NAME, _BEFORE_NAME = 0, 2 + 1 + 2
_CHUNK_BYTES = 1 << 16


def server_name(hello: bytes) -> str:
    """Return the host in a ClientHello (RFC 6066, 3), empty without one."""
    at = _BEFORE_SESSION_ID
    at += 1 + hello[at]
    at += _SIZE.size + _SIZE.unpack_from(hello, at)[0]
    at += 1 + hello[at]
    end = at + _SIZE.size + _SIZE.unpack_from(hello, at)[0]
    at += _SIZE.size
    while at < end:
        kind, size = struct.unpack_from(">HH", hello, at)
        at += 4
        if kind == _SERVER_NAME:
            return hello[at + _BEFORE_NAME : at + size].decode("ascii")
        at += size
    return ""


class SniProxy:
    """Serves a port of 127.0.0.1 in a thread. `targets` has a local port for each host. `routed`
    counts the connections by host, among them those of hosts without a target."""

    def __init__(self, port: int, targets: Mapping[str, int]) -> None:
        self._port, self._targets = port, targets
        self.routed: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        serving = asyncio.start_server(self._accepted, "127.0.0.1", self._port)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            head = await reader.readexactly(_RECORD.size)
            kind, _, size = _RECORD.unpack(head)
            hello = await reader.readexactly(size)
            host = server_name(hello) if kind == _HANDSHAKE else ""
            self.routed[host] = self.routed.get(host, 0) + 1
            if host not in self._targets:
                return
            answers, target = await asyncio.open_connection("127.0.0.1", self._targets[host])
            with contextlib.closing(target):
                target.write(head + hello)
                both = [_copy(reader, target), _copy(answers, writer)]
                await asyncio.wait(
                    [asyncio.ensure_future(one) for one in both],
                    return_when=asyncio.FIRST_COMPLETED,
                )


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass all bytes on until one side closes."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
