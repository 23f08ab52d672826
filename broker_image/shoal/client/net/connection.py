"""One connection to one broker: frames, correlation ids, versions, TLS and SASL.

Requests are pipelined. A broker answers in request order, so each frame belongs to the oldest
pending request. A different correlation id means that the stream is out of step. A request that
times out closes the connection, because every later answer would wait for the missing one. A
cancelled caller leaves its request pending, and its answer is dropped.

The connection sends ApiVersions first. Each later request uses the highest version that both ends
support (KIP-35, KIP-511). If it is known which broker should answer, the connection says so, and a
broker that is another one refuses it (KIP-1242).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from shoal import __version__
from shoal.client.errors import (
    ClientError,
    ConnectionLost,
    ConnectionRefused,
    KafkaError,
    RequestTimeout,
    SecurityError,
    Unreachable,
    UnsupportedVersion,
    WrongBroker,
)
from shoal.client.security.authentication import SessionLogin
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode, WireError
from shoal.protocol.features import OWN_CLIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.client.security.security import Security
    from shoal.client.settings import Settings

#: Largest accepted frame. Fetch responses are smaller, since requests bound them.
RESPONSE_SIZE_MAX = 256 << 20
#: Pending requests on one connection. The next caller waits for room.
PIPELINE_MAX = 64
#: Seconds to try an address before the host name is resolved again: first attempt, later ones.
PATIENCE_S = (2.0, 3.0)
#: Versions of ApiVersions: the first one that names the broker, and the one before.
_NAMING, _PLAIN = 5, 4
_SIZE = struct.Struct(">i")
_UNSUPPORTED = int(ErrorCode.unsupported_version).to_bytes(2, "big")


class BrokerIdentity(NamedTuple):
    """The broker that a connection is meant for."""

    cluster_id: str
    node_id: int


class _ApiVersionsUnsupported(UnsupportedVersion):
    """The broker supports ApiVersions up to another version."""

    def __init__(self, newest: int) -> None:
        super().__init__(f"ApiVersions is supported up to version {newest}")
        self.newest = newest


class MessageCodec(NamedTuple):
    """How the messages of an API are written and read, where not by `protocol.codec`."""

    #: (version, body) -> bytes.
    write: Callable[[int, Any], bytearray]
    #: (version, frame, offset of the body) -> body.
    read: Callable[[int, bytes, int], Any]


class _PendingRequest:
    """A request that was sent, and the future of its caller."""

    __slots__ = ("api_key", "correlation_id", "future", "own", "version")

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        future: asyncio.Future[Any],
        own: MessageCodec | None,
    ) -> None:
        self.own = own
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
        #: Levels of the features that the cluster had finalized when the connection opened.
        self.finalized: dict[str, int] = {}
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_PendingRequest] = deque()
        self._buffer = bytearray()
        self._next_id = 0
        self._room = asyncio.Semaphore(PIPELINE_MAX)
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed: Exception | None = None
        self._login: SessionLogin | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        #: Called once when the connection ends.
        self.on_close: set[Callable[[], None]] = set()
        #: The TLS error that ended the connection. TLS 1.3 refuses a certificate after the
        #: handshake.
        self.tls_error: ssl.SSLError | None = None

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
            self._on_response(bytes(memoryview(buffer)[at + 4 : at + 4 + size]))
            if self._closed:
                return
            at += 4 + size
        if at:
            del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        detail = f": {exc}" if exc else ""
        if isinstance(exc, ssl.SSLError):
            self.tls_error = exc
        self._end(ConnectionLost(f"the broker at {self} closed the connection{detail}"))

    def _on_response(self, frame: bytes) -> None:
        waiting = self._waiting[0] if self._waiting else None
        correlation_id = _SIZE.unpack_from(frame)[0]
        if waiting is None or waiting.correlation_id != correlation_id:
            self._end(ConnectionLost(f"{self} answered a request that was not sent"))
            return
        self._waiting.popleft()
        self._room.release()
        if not self._waiting:
            self._drained.set()
        if waiting.future.done():
            return
        at = len(frames.build_response_head(waiting.api_key, waiting.version, correlation_id))
        try:
            if waiting.api_key == ApiKey.API_VERSIONS and frame[at : at + 2] == _UNSUPPORTED:
                raise _ApiVersionsUnsupported(_find_newest_version(frame, at))
            if waiting.own is None:
                body = codec.read_response(waiting.api_key, waiting.version, frame, at)
            else:
                body = waiting.own.read(waiting.version, frame, at)
            waiting.future.set_result(body)
        except (WireError, UnsupportedVersion) as error:
            waiting.future.set_exception(error)

    def _end(self, error: Exception) -> None:
        """Close once, and fail all pending requests with `error`."""
        if self._closed is not None:
            return
        self._closed = error
        self._writable.set()
        self._drained.set()
        if self._transport is not None:
            self._transport.close()
        while self._waiting:
            waiting = self._waiting.popleft()
            self._room.release()
            if not waiting.future.done():
                waiting.future.set_exception(error)
        self._buffer.clear()
        for call in tuple(self.on_close):
            call()

    def close(self) -> None:
        self._end(ConnectionLost(f"this client closed the connection to {self}"))

    # Requests

    def choose_version(self, api_key: ApiKey, most: int | None = None) -> int:
        """Return the highest common version, at most `most`. Raises `UnsupportedVersion`."""
        ours = codec.find_known_versions(api_key)
        theirs = self.versions.get(api_key, range(0))
        last = min(ours[-1], theirs[-1] if theirs else -1)
        if most is not None:
            last = min(last, most)
        if last < max(ours[0], theirs[0] if theirs else 0):
            raise UnsupportedVersion(
                f"the broker at {self} and this client share no version of {api_key.name}"
                + (f": {theirs[0]} to {theirs[-1]}" if theirs else "")
            )
        return last

    async def request(
        self,
        api_key: ApiKey,
        body: Any,
        *,
        timeout_ms: int | None = None,
        version: int | None = None,
        answered: bool = True,
        own: MessageCodec | None = None,
    ) -> Any:
        """Send one request and return kio's response entity of the version used.

        `body` is a mapping. With a codec of its `own`, it is what that writes, and the response is
        what that reads. `timeout_ms` bounds the wait for the answer; the default comes from the
        settings. `answered` is False for the one request without an answer, Produce with acks=0.
        Raises `ConnectionLost`, `RequestTimeout`, `UnsupportedVersion`. The caller checks error
        codes inside the response.
        """
        if version is None:
            version = self.choose_version(api_key)
        await self._acquire_room()
        waiting = self._write(api_key, version, body, answered, own)
        if waiting is None:
            return None
        return await self._wait_for_response(waiting, timeout_ms)

    async def _acquire_room(self) -> None:
        """Wait until a request may be written. It must be written before the next `await`."""
        while True:
            await self._room.acquire()
            if not self._writable.is_set():
                try:
                    await self._writable.wait()
                except asyncio.CancelledError:
                    self._room.release()
                    raise
            if self._closed is not None or self._transport is None:
                self._room.release()
                raise self._closed or ConnectionLost(f"not connected to {self}")
            if self._login is None:
                return
            renewal = self._renewal
            if renewal is None:
                if not self._login.is_due(self._loop.time()):
                    return
                renewal = self._renewal = self._loop.create_task(self._renew(self._login))
            self._room.release()
            await asyncio.wait((renewal,))

    def _write(
        self,
        api_key: ApiKey,
        version: int,
        body: Any,
        answered: bool,
        own: MessageCodec | None = None,
    ) -> _PendingRequest | None:
        """Write a request. Return its entry among the waiting ones, if it has an answer."""
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        head = frames.build_request_head(api_key, version, self._next_id, self.settings.client_id)
        if own is None:
            data = codec.write_request(api_key, version, body)
        else:
            data = own.write(version, body)
        assert self._transport is not None
        self._transport.writelines([_SIZE.pack(len(head) + len(data)), head, data])
        if not answered:
            self._room.release()
            return None
        future = self._loop.create_future()
        waiting = _PendingRequest(api_key, version, self._next_id, future, own)
        self._waiting.append(waiting)
        return waiting

    async def _wait_for_response(self, waiting: _PendingRequest, timeout_ms: int | None) -> Any:
        if timeout_ms is None:
            timeout_ms = self.settings.request_timeout_ms
        timer = self._loop.call_later(timeout_ms / 1000, self._on_timeout, waiting, timeout_ms)
        try:
            return await waiting.future
        finally:
            timer.cancel()

    def _on_timeout(self, waiting: _PendingRequest, timeout_ms: int) -> None:
        name = ApiKey(waiting.api_key).name
        self._end(RequestTimeout(f"{self} did not answer {name} within {timeout_ms} ms"))

    # Login

    async def log_in(self, security: Security) -> None:
        """Authenticate a new connection. Raises `SecurityError`."""
        login = SessionLogin(str(self), security)
        await login.log_in(self.request, self._loop.time)
        self._login = login

    async def _renew(self, login: SessionLogin) -> None:
        """Log in again between two requests. A failure closes the connection."""
        try:
            while self._waiting:
                self._drained.clear()
                await self._drained.wait()
            await login.renew(self._send_login, self._loop.time)
        except (ClientError, WireError) as error:
            self._end(error)
        finally:
            self._renewal = None

    async def _send_login(self, api_key: ApiKey, body: Mapping[str, Any]) -> Any:
        """Send a request of a login while all others wait."""
        await self._room.acquire()
        if self._closed is not None:
            self._room.release()
            raise self._closed
        waiting = self._write(api_key, self.choose_version(api_key), body, True)
        assert waiting is not None
        return await self._wait_for_response(waiting, None)


async def connect(
    settings: Settings, address: tuple[str, int], meant: BrokerIdentity | None = None
) -> Connection:
    """Return a connection that is ready for requests, after TLS, ApiVersions and SASL.

    Raises `Unreachable`, `SecurityError` or `UnsupportedVersion`; `WrongBroker` if another broker
    than the one `meant` answers.
    """
    host, port = address
    security = settings.security
    connection = None
    try:
        async with asyncio.timeout(settings.connect_timeout_ms / 1000):
            security, tls = await security.load_for_connection()
            connection = await _open(settings, address, tls)
            try:
                # A broker compares its identity only after the login.
                await _negotiate(connection, None if security.sasl else meant)
                if security.sasl:
                    await connection.log_in(security)
                    if meant and connection.versions[ApiKey.API_VERSIONS][-1] >= _NAMING:
                        await _negotiate(connection, meant)
            except BaseException:
                connection.close()
                raise
            return connection
    except TimeoutError:
        raise Unreachable(
            f"no broker answers at {host}:{port} within {settings.connect_timeout_ms} ms"
        ) from None
    except ssl.SSLError as error:
        raise SecurityError(_describe_tls_error(address, error)) from None
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        reason = (
            "connection refused"
            if refused
            else error.strerror or str(error) or type(error).__name__
        )
        kind = ConnectionRefused if refused else Unreachable
        raise kind(
            f"no broker at {host}:{port}: {reason}{_format_hint(security, refused)}"
        ) from None
    except ConnectionLost as error:
        if connection is not None and connection.tls_error is not None:
            raise SecurityError(_describe_tls_error(address, connection.tls_error)) from None
        logging_in = connection is not None and connection.versions
        stage = "the login was complete" if logging_in else "it answered ApiVersions"
        raise Unreachable(f"{error} before {stage}{_format_hint(security)}") from None


def _format_hint(security: Security, refused: bool = False) -> str:
    """Return what to check if the two ends may expect different protocols."""
    if refused:
        return ""
    if security.encrypted:
        return ". If it expects no TLS, set security.protocol"
    if security.sasl:
        return ". If it expects TLS, set security.protocol to SASL_SSL"
    return ". If it expects TLS or SASL, set security.protocol"


def _describe_tls_error(address: tuple[str, int], error: ssl.SSLError) -> str:
    """Return OpenSSL's error with its remedy."""
    reason = error.reason or ""
    remedy = ""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = ". Set ssl.truststore.location or ssl.ca.location to the CA of the brokers"
        if "match" in error.verify_message:
            remedy = ". Use a name that is in its certificate"
    elif reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        remedy = ". The listener may not use TLS: check the port and security.protocol"
    elif "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        remedy = ". The broker refuses this client's certificate, or needs one:"
        remedy += " set ssl.keystore.location"
    text = error.strerror or str(error)
    return f"TLS with {address[0]}:{address[1]} failed: {text}{remedy}"


async def _open(
    settings: Settings, address: tuple[str, int], tls: ssl.SSLContext | None
) -> Connection:
    """Return a connection whose TLS handshake is done. Raises `OSError`.

    The host name is resolved again while nothing answers. A restarted pod has a new address, which
    DNS returns seconds later, and its old address may not even refuse connections.
    """
    first_s, then_s = PATIENCE_S
    # Double the time for slow networks. `connect` ends the loop at its own timeout.
    for patience_s in itertools.chain((first_s,), (then_s * 2**n for n in itertools.count())):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                return await _attempt(settings, address, tls)
    raise AssertionError("unreachable")


async def _attempt(
    settings: Settings, address: tuple[str, int], tls: ssl.SSLContext | None
) -> Connection:
    host, port = address
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


async def wait_for_connection(
    connecting: asyncio.Task[Connection], address: tuple[str, int]
) -> Connection:
    """Wait for the connection that a `connect` task makes; several callers may wait for it.

    The task itself is not awaited: closing the connection cancels the task, and must not cancel the
    callers. They get `ConnectionLost`. Other errors of `connect` are raised as they are.
    """
    await asyncio.wait((connecting,))
    if connecting.cancelled():
        raise ConnectionLost(f"this client closed the connection to {address[0]}:{address[1]}")
    return connecting.result()


def _find_newest_version(frame: bytes | bytearray | memoryview, at: int) -> int:
    """Return the newest version of ApiVersions in an answer that refuses a newer one. A broker
    before KIP-511 lists none, and supports version 0."""
    listed = codec.read_response(ApiKey.API_VERSIONS, 0, frame, at).api_keys
    return next((row.max_version for row in listed if row.api_key == ApiKey.API_VERSIONS), 0)


async def _negotiate(connection: Connection, meant: BrokerIdentity | None) -> None:
    """Ask for the versions that the broker supports. Raises `WrongBroker`."""
    body: dict[str, Any] = {
        "client_software_name": OWN_CLIENT,
        "client_software_version": __version__,
        **(meant._asdict() if meant else {}),
    }
    timeout_ms = connection.settings.connect_timeout_ms
    version = _NAMING if meant else _PLAIN
    try:
        answer = await connection.request(
            ApiKey.API_VERSIONS, body, version=version, timeout_ms=timeout_ms
        )
    except _ApiVersionsUnsupported as error:
        version = min(error.newest, _PLAIN)
        answer = await connection.request(
            ApiKey.API_VERSIONS, body, version=version, timeout_ms=timeout_ms
        )
    if answer.error_code == ErrorCode.rebootstrap_required and meant is not None:
        raise WrongBroker(
            f"the broker at {connection} is not broker {meant.node_id} of cluster"
            f" {meant.cluster_id}. Check where its address leads"
        )
    if answer.error_code:
        raise KafkaError(answer.error_code, f"ApiVersions of {connection}")
    connection.versions = {
        result.api_key: range(result.min_version, result.max_version + 1)
        for result in answer.api_keys
    }
    connection.features = {
        result.name: range(result.min_version, result.max_version + 1)
        for result in getattr(answer, "supported_features", None) or ()
    }
    connection.finalized = {
        result.name: result.max_version_level
        for result in getattr(answer, "finalized_features", None) or ()
    }
