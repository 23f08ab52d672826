"""One connection to one broker: frames, correlation ids, versions, TLS and SASL.

Requests are pipelined. A broker answers in request order, so each frame belongs to the oldest
pending request. A different correlation id means that the stream is out of step. A request that
times out closes the connection, because every later answer would wait for the missing one. A
cancelled caller leaves its request pending, and its answer is dropped.

The connection sends ApiVersions first. Each later request uses the highest version that both ends
support (KIP-35, KIP-511).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import ssl
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from shoal import __version__
from shoal.client.errors import (
    ConnectionLost,
    KafkaError,
    Refused,
    RequestTimeout,
    SecurityError,
    Unreachable,
    Unsupported,
)
from shoal.client.scram import ScramClient
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode, WireError
from shoal.protocol.features import OWN_CLIENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.settings import Security, Settings

#: Largest accepted frame. Fetch responses are smaller, since requests bound them.
RESPONSE_SIZE_MAX = 256 << 20
#: Pending requests on one connection. The next caller waits for room.
PIPELINE_MAX = 64
#: Seconds to try an address before the host name is resolved again: first attempt, later ones.
PATIENCE_S = (2.0, 3.0)
_SIZE = struct.Struct(">i")


class _Waiting:
    """A request that was sent, and the future of its caller."""

    __slots__ = ("api_key", "correlation_id", "future", "version")

    def __init__(
        self, api_key: int, version: int, correlation_id: int, future: asyncio.Future[Any]
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.future = future


class Connection(asyncio.Protocol):
    """A socket and its pending requests. Created by `connect`."""

    def __init__(self, settings: Settings, address: tuple[str, int]) -> None:
        self.address = address
        self.versions: dict[int, range] = {}
        self.features: dict[str, range] = {}
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._buffer = bytearray()
        self._next_id = 0
        self._room = asyncio.Semaphore(PIPELINE_MAX)
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed: Exception | None = None

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def closed(self) -> bool:
        return self._closed is not None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance check: uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 4:
            (size,) = _SIZE.unpack_from(buffer, at)
            if not 4 <= size <= RESPONSE_SIZE_MAX:
                self._end(
                    ConnectionLost(
                        f"{self} sent a frame of {size} bytes. It may not be a Kafka broker"
                    )
                )
                return
            if len(buffer) - at - 4 < size:
                break
            self._answered(bytes(memoryview(buffer)[at + 4 : at + 4 + size]))
            if self._closed:
                return
            at += 4 + size
        if at:
            del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        detail = f": {exc}" if exc else ""
        self._end(ConnectionLost(f"the broker at {self} closed the connection{detail}"))

    def _answered(self, frame: bytes) -> None:
        waiting = self._waiting[0] if self._waiting else None
        correlation_id = _SIZE.unpack_from(frame)[0]
        if waiting is None or waiting.correlation_id != correlation_id:
            self._end(ConnectionLost(f"{self} answered a request that was not sent"))
            return
        self._waiting.popleft()
        self._room.release()
        if waiting.future.done():
            return
        at = len(frames.response_head(waiting.api_key, waiting.version, correlation_id))
        try:
            if waiting.api_key == ApiKey.API_VERSIONS and frame[at : at + 2] == b"\x00\x23":
                raise Unsupported(f"{self} does not support version 3 of ApiVersions")
            body = codec.read_response(waiting.api_key, waiting.version, frame, at)
            waiting.future.set_result(body)
        except (WireError, Unsupported) as error:
            waiting.future.set_exception(error)

    def _end(self, error: Exception) -> None:
        """Close once, and fail all pending requests with `error`."""
        if self._closed is not None:
            return
        self._closed = error
        self._writable.set()
        if self._transport is not None:
            self._transport.close()
        while self._waiting:
            waiting = self._waiting.popleft()
            self._room.release()
            if not waiting.future.done():
                waiting.future.set_exception(error)
        self._buffer.clear()

    def close(self) -> None:
        self._end(ConnectionLost(f"this client closed the connection to {self}"))

    # Requests

    def version(self, api_key: ApiKey, most: int | None = None) -> int:
        """Return the highest common version, at most `most`. Raises `Unsupported`."""
        ours = codec.known_versions(api_key)
        theirs = self.versions.get(api_key, range(0))
        last = min(ours[-1], theirs[-1] if theirs else -1)
        if most is not None:
            last = min(last, most)
        if last < max(ours[0], theirs[0] if theirs else 0):
            raise Unsupported(
                f"the broker at {self} and this client share no version of {api_key.name}"
                + (f": {theirs[0]} to {theirs[-1]}" if theirs else "")
            )
        return last

    async def request(
        self,
        api_key: ApiKey,
        body: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
        version: int | None = None,
        answered: bool = True,
    ) -> Any:
        """Send one request and return kio's response entity of the version used.

        `timeout_ms` bounds the wait for the answer; the default comes from the settings. `answered`
        is False for the one request without an answer, Produce with acks=0. Raises
        `ConnectionLost`, `RequestTimeout`, `Unsupported`. The caller checks error codes inside the
        response.
        """
        if version is None:
            version = self.version(api_key)
        await self._room.acquire()
        if not self._writable.is_set():
            await self._writable.wait()
        if self._closed is not None or self._transport is None:
            self._room.release()
            raise self._closed or ConnectionLost(f"not connected to {self}")
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        head = frames.request_head(api_key, version, self._next_id, self.settings.client_id)
        data = codec.write_request(api_key, version, body)
        self._transport.writelines([_SIZE.pack(len(head) + len(data)), head, data])
        if not answered:
            self._room.release()
            return None
        waiting = _Waiting(api_key, version, self._next_id, self._loop.create_future())
        self._waiting.append(waiting)
        if timeout_ms is None:
            timeout_ms = self.settings.request_timeout_ms
        timer = self._loop.call_later(timeout_ms / 1000, self._timed_out, waiting, timeout_ms)
        try:
            return await waiting.future
        finally:
            timer.cancel()

    def _timed_out(self, waiting: _Waiting, timeout_ms: int) -> None:
        name = ApiKey(waiting.api_key).name
        self._end(RequestTimeout(f"{self} did not answer {name} within {timeout_ms} ms"))


async def connect(settings: Settings, address: tuple[str, int]) -> Connection:
    """Return a connection that is ready for requests, after TLS, ApiVersions and SASL.

    Raises `Unreachable`, `SecurityError` or `Unsupported`.
    """
    host, port = address
    security = settings.security
    try:
        async with asyncio.timeout(settings.connect_timeout_ms / 1000):
            connection = await _open(settings, address)
            try:
                await _negotiate(connection)
                if security.sasl:
                    await _authenticate(connection, security)
            except BaseException:
                connection.close()
                raise
            return connection
    except TimeoutError:
        raise Unreachable(
            f"no broker answers at {host}:{port} within {settings.connect_timeout_ms} ms"
        ) from None
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        reason = "connection refused" if refused else error.strerror or str(error)
        if isinstance(error, ssl.SSLError):
            raise SecurityError(f"TLS with {host}:{port} failed: {reason}") from None
        kind = Refused if refused else Unreachable
        raise kind(f"no broker at {host}:{port}: {reason}") from None
    except ConnectionLost as error:
        hint = (
            ""
            if security.tls or security.sasl
            else ". If it expects TLS or SASL, set security.protocol"
        )
        raise Unreachable(f"{error} before it answered ApiVersions{hint}") from None


async def _open(settings: Settings, address: tuple[str, int]) -> Connection:
    """Return a connection whose TLS handshake is done. Raises `OSError`.

    The host name is resolved again while nothing answers. A restarted pod has a new address, which
    DNS returns seconds later, and its old address may not even refuse connections.
    """
    first_s, then_s = PATIENCE_S
    # Double the time for slow networks. `connect` ends the loop at its own timeout.
    for patience_s in itertools.chain((first_s,), (then_s * 2**n for n in itertools.count())):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                return await _attempt(settings, address)
    raise AssertionError("unreachable")


async def _attempt(settings: Settings, address: tuple[str, int]) -> Connection:
    host, port = address
    tls = settings.security.tls
    connection = Connection(settings, address)
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: connection,
            host,
            port,
            ssl=tls,
            server_hostname=host if tls else None,
        )
    except BaseException:
        connection.close()
        raise
    return connection


async def joined(connecting: asyncio.Task[Connection], address: tuple[str, int]) -> Connection:
    """Wait for the connection that a `connect` task makes; several callers may wait for it.

    The task itself is not awaited: closing the connection cancels the task, and must not cancel the
    callers. They get `ConnectionLost`. Other errors of `connect` are raised as they are.
    """
    await asyncio.wait((connecting,))
    if connecting.cancelled():
        raise ConnectionLost(f"this client closed the connection to {address[0]}:{address[1]}")
    return connecting.result()


async def _negotiate(connection: Connection) -> None:
    body = {"client_software_name": OWN_CLIENT, "client_software_version": __version__}
    timeout_ms = connection.settings.connect_timeout_ms
    newest = codec.known_versions(ApiKey.API_VERSIONS)[-1]
    try:
        answer = await connection.request(
            ApiKey.API_VERSIONS, body, version=newest, timeout_ms=timeout_ms
        )
    except Unsupported:
        answer = await connection.request(ApiKey.API_VERSIONS, {}, version=0, timeout_ms=timeout_ms)
    if answer.error_code:
        raise KafkaError(answer.error_code, f"ApiVersions of {connection}")
    connection.versions = {
        row.api_key: range(row.min_version, row.max_version + 1) for row in answer.api_keys
    }
    connection.features = {
        row.name: range(row.min_version, row.max_version + 1)
        for row in getattr(answer, "supported_features", None) or ()
    }


async def _authenticate(connection: Connection, security: Security) -> None:
    """Authenticate by SaslHandshake v1 and SaslAuthenticate (KIP-152)."""
    answer = await connection.request(ApiKey.SASL_HANDSHAKE, {"mechanism": security.mechanism})
    if answer.error_code:
        raise SecurityError(
            f"{connection} does not support {security.mechanism}, only "
            f"{', '.join(answer.mechanisms) or 'connections without SASL'}"
        )
    if security.mechanism == "PLAIN":
        await _sasl(connection, f"\0{security.username}\0{security.password}".encode(), security)
        return
    nonce = base64.b64encode(os.urandom(18)).decode()
    scram = ScramClient(security.mechanism, security.username, security.password, nonce)
    challenge = await _sasl(connection, scram.first(), security)
    scram.verify(await _sasl(connection, scram.final(challenge), security))


async def _sasl(connection: Connection, token: bytes, security: Security) -> bytes:
    answer = await connection.request(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token})
    if answer.error_code == ErrorCode.sasl_authentication_failed:
        raise SecurityError(
            f"{connection} refuses user {security.username!r}: "
            f"{answer.error_message or 'authentication failed'}"
        )
    if answer.error_code:
        raise KafkaError(answer.error_code, answer.error_message)
    return answer.auth_bytes
