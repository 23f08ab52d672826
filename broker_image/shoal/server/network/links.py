"""Connections of this node to other nodes, for its own requests.

A `Link` is one connection to one address. It connects at the first request, and again after the
connection is lost. Responses come in the order of the requests, so requests that may wait at the
other node have a link of their own.

An attempt to connect fails after `socket.connection.setup.timeout.ms`. The limit doubles with each
failure in a row at that address, up to `socket.connection.setup.timeout.max.ms`, so that a slow
node is reached in the end. All links of a node share one `SetupTimeouts`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.client.errors import ClientError, ConnectionLost, Unreachable
from shoal.client.net.connection import (
    BrokerIdentity,
    Connection,
    connect,
    wait_for_connection,
)
from shoal.client.security.security import Security
from shoal.client.settings import Address, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.client.net.connection import MessageCodec
    from shoal.protocol.api import ApiKey
    from shoal.server.config import BrokerConfig


class SetupTimeouts:
    """The time that a connection may take to open, by address, in milliseconds."""

    def __init__(self, initial_ms: int, max_ms: int) -> None:
        self._initial_ms, self._max_ms = initial_ms, max_ms
        #: Failures in a row, for addresses whose last attempt failed.
        self._failures: dict[Address, int] = {}

    @classmethod
    def from_config(cls, config: BrokerConfig) -> SetupTimeouts:
        """The limits that the settings of a node give."""
        return cls(
            config["socket.connection.setup.timeout.ms"],
            config["socket.connection.setup.timeout.max.ms"],
        )

    def get_timeout_ms(self, address: Address) -> int:
        """Return the limit of the next attempt to connect."""
        # No limit has more bits; a longer shift would only use memory.
        timeout_ms = self._initial_ms << min(self._failures.get(address, 0), 63)
        return min(timeout_ms, max(self._initial_ms, self._max_ms))

    def on_failed(self, address: Address) -> None:
        self._failures[address] = self._failures.get(address, 0) + 1

    def on_opened(self, address: Address) -> None:
        self._failures.pop(address, None)


def make_plaintext(_listener: object = None) -> Security:
    """The security of connections to listeners without TLS and SASL."""
    return Security()


class Link:
    """Owns the connection to one address."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        request_timeout_ms: int,
        timeouts: SetupTimeouts,
        security: Callable[[], Security] = make_plaintext,
        needs: ApiKey | None = None,
        on_lost: Callable[[], None] | None = None,
        find_identity: Callable[[], BrokerIdentity | None] = lambda: None,
    ) -> None:
        """`security` returns the settings for a new connection; it may raise `ClientError`.
        Requests raise `UnsupportedVersion` if the peer does not serve the API `needs`. `on_lost` is
        called when an open connection is lost, unless `close` ended it. `find_identity` returns
        the broker that a new connection is meant for, if it is known."""
        self.address = address
        self._needs = needs
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._timeouts = timeouts
        self._security = security
        self._find_identity = find_identity
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self.on_lost = on_lost

    async def request(
        self,
        api_key: ApiKey,
        fields: Any,
        *,
        timeout_ms: int | None = None,
        own: MessageCodec | None = None,
    ) -> Any:
        """Send a request. Return kio's entity of the response, or what a codec of its `own` reads.
        Raises `ClientError`."""
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self._connect(timeout_ms or self._request_timeout_ms)
        if self._needs is not None:
            connection.choose_version(self._needs)
        try:
            return await connection.request(api_key, fields, timeout_ms=timeout_ms, own=own)
        except ConnectionLost:
            if self._connection is connection and self.on_lost is not None:
                self.on_lost()
            raise

    async def _connect(self, timeout_ms: int) -> Connection:
        """Return a connection; concurrent callers share one attempt. Raises `ClientError` after
        `timeout_ms`."""
        if self._connecting is None:
            settings = Settings(
                (self.address,),
                client_id=self._client_id,
                security=self._security(),
                request_timeout_ms=self._request_timeout_ms,
                connect_timeout_ms=self._timeouts.get_timeout_ms(self.address),
            )
            self._connecting = asyncio.ensure_future(
                connect(settings, self.address, self._find_identity())
            )
            self._connecting.add_done_callback(self._on_connected)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await wait_for_connection(self._connecting, self.address)
        except TimeoutError:
            host, port = self.address
            raise Unreachable(f"no connection to {host}:{port} within {timeout_ms} ms") from None

    def _on_connected(self, task: asyncio.Task[Connection]) -> None:
        if not task.cancelled():
            if task.exception() is None:
                self._timeouts.on_opened(self.address)
            else:
                self._timeouts.on_failed(self.address)
        if task is not self._connecting:
            if not task.cancelled() and task.exception() is None:
                task.result().close()
            return
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()

    def close(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


__all__ = ["ClientError", "Link"]
