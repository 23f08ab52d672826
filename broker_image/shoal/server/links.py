"""Connections of this broker to other nodes, for requests of its own.

A `Link` is one connection to one address that is made when it is needed and made anew when it was
lost. Requests on it are answered in their order, so a request that may wait at its peer has a link
of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from shoal.client.connection import Connection, connect, joined
from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.settings import Address, Settings
from shoal.protocol.api import ApiKey

#: What a node on the same network needs for a TCP connection and ApiVersions.
CONNECT_TIMEOUT_MS = 1_000


class Link:
    """Owns the connection to one address."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        request_timeout_ms: int,
        needs: ApiKey | None = None,
    ) -> None:
        """The peer has to serve `needs`, or requests raise `Unsupported`."""
        self.address = address
        self._needs = needs
        self._settings = Settings(
            (address,),
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
        )
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        #: Called when an open connection is lost, unless `close` ended it.
        self.on_lost: Callable[[], None] | None = None

    async def request(
        self, api_key: ApiKey, fields: Mapping[str, Any], *, timeout_ms: int | None = None
    ) -> Any:
        """kio's entity of the response. Raises `ClientError`."""
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self._connect()
        if self._needs is not None:
            connection.version(self._needs)
        try:
            return await connection.request(api_key, fields, timeout_ms=timeout_ms)
        except ConnectionLost:
            if self._connection is connection and self.on_lost is not None:
                self.on_lost()
            raise

    async def _connect(self) -> Connection:
        """Whoever asks while a connection is being made waits for the same one."""
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(connect(self._settings, self.address))
            self._connecting.add_done_callback(self._connected)
        return await joined(self._connecting, self.address)

    def _connected(self, done: asyncio.Task[Connection]) -> None:
        if done is not self._connecting:
            if not done.cancelled() and done.exception() is None:
                done.result().close()
            return
        self._connecting = None
        if not done.cancelled() and done.exception() is None:
            self._connection = done.result()

    def close(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


__all__ = ["ClientError", "Link"]
