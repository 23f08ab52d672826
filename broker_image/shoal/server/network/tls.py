"""TLS on accepted connections: a transport between a connection and its socket.

A `TlsTransport` is the protocol of the socket's transport, and the transport of a `Connection`. It
has no buffers of its own for bytes of TLS. All connections of an event loop share those of one
`TlsEngine`: OpenSSL takes all received bytes out of `incoming`, and what it puts into `outgoing` is
passed on at once. Both are empty whenever other code runs. So an idle connection costs the memory
of its OpenSSL object only, about a quarter of what a transport with buffers of its own takes.

Responses wait in the clear until the socket accepts more, and are encrypted in chunks. Slices of
files are read chunk by chunk, so a large response is never in memory as a whole. `sendfile` is not
used: it would send records in clear text.

Handshakes are expensive. They wait in the queue of `Handshakes`, which takes a few in a turn of the
loop, so that a thousand clients that reconnect do not stall others. A handshake has a deadline, and
its connection counts against the limits of connections from the moment it is accepted.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, cast

from shoal.log.slices import FileSlice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.server.network.api import Buffer, Peer

#: Bytes of one read from a socket. uvloop reads at most this many at a time.
RECEIVE_SIZE = 256 * 1024
#: Bytes that are encrypted at a time: several records of TLS, which fit into a processor's cache.
CHUNK_SIZE = 128 * 1024
#: Buffers from this size on are encrypted where they are, instead of being gathered in a chunk.
DIRECT_SIZE = 16 * 1024
#: Bytes that one connection may encrypt in a turn of the loop.
TURN_BYTES = 1024 * 1024
#: Encrypted bytes that wait for a socket. Above this, nothing more is encrypted for it.
SOCKET_BUFFER_HIGH = 64 * 1024
#: Handshake steps in a turn of the loop. A step takes up to a millisecond.
HANDSHAKES_PER_TURN = 4
#: Bytes that a client may send ahead while its handshake waits. Above this, they are not read.
HANDSHAKE_BYTES_MAX = 64 * 1024
#: The first byte of a connection with TLS: a record of the handshake.
_HANDSHAKE_RECORD = 0x16


class DecryptStop(Enum):
    """Where decryption stopped."""

    BUFFER_FULL = 1
    #: OpenSSL has no whole record left.
    NEEDS_MORE = 2
    #: The client closed its side of TLS.
    CLOSED = 3


class AppProtocol(Protocol):
    """The protocol above TLS: the connection of a Kafka client, or of a reader of the metrics."""

    peer: Peer | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None, /) -> None: ...
    def get_buffer(self, sizehint: int, /) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def fail(self, reason: str) -> None:
        """Close at once and log `reason`."""


class TlsPort(Protocol):
    """What a transport needs of the listener's TLS."""

    @property
    def engine(self) -> TlsEngine: ...
    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""

    @property
    def handshake_timeout_ms(self) -> int: ...

    def authenticate(self, peer: Peer, tls: ssl.SSLObject) -> str | None:
        """Set the principal of a client whose handshake is complete. Return why it is refused, or
        None."""

    def on_handshake_failed(self, connection: AppProtocol, reason: str) -> None:
        """Count and log a handshake that failed."""

    def on_send_failed(self, connection: AppProtocol, reason: str) -> None:
        """Count and log a response that could not be sent."""


class TlsEngine:
    """Owns the buffers that all TLS connections of an event loop share, and their handshakes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.received = memoryview(bytearray(RECEIVE_SIZE))
        self.chunk = memoryview(bytearray(CHUNK_SIZE))
        self.handshakes = Handshakes(loop)


class Handshakes:
    """Transports with a handshake step to do. A few are done in each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: dict[TlsTransport, None] = {}
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, transport: TlsTransport) -> None:
        self._queue[transport] = None
        self._schedule()

    def remove(self, transport: TlsTransport) -> None:
        self._queue.pop(transport, None)

    def _schedule(self) -> None:
        if self._queue and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        for _ in range(min(HANDSHAKES_PER_TURN, len(self._queue))):
            transport = next(iter(self._queue))
            del self._queue[transport]
            transport.step()
        self._schedule()


class TlsTransport(asyncio.BufferedProtocol):
    """Owns the TLS state of one connection, and its responses that are not encrypted yet."""

    __slots__ = (
        "_ciphertext",
        "_closing",
        "_connection",
        "_deadline",
        "_engine",
        "_files",
        "_handshaking",
        "_high",
        "_loop",
        "_low",
        "_memory",
        "_port",
        "_pump_scheduled",
        "_queue",
        "_reading_paused",
        "_socket",
        "_socket_full",
        "_tls",
        "_writing_paused",
    )

    #: `Connection` passes slices of files to `writelines`.
    takes_files = True

    def __init__(self, port: TlsPort, connection: AppProtocol) -> None:
        self._port = port
        self._engine = port.engine
        self._loop = port.engine.loop
        self._connection = connection
        self._socket: asyncio.Transport | None = None
        self._tls: ssl.SSLObject | None = None
        self._handshaking = True
        self._deadline: asyncio.TimerHandle | None = None
        #: Received bytes that OpenSSL has not got yet.
        self._ciphertext = b""
        self._reading_paused = False
        #: Responses in the clear, with the bytes that are in memory and the number of slices.
        self._queue: deque[Buffer | FileSlice] = deque()
        self._memory = self._files = 0
        self._socket_full = self._writing_paused = self._pump_scheduled = False
        self._closing = False
        self._high, self._low = SOCKET_BUFFER_HIGH, SOCKET_BUFFER_HIGH // 4

    # The protocol of the socket's transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it.
        self._socket.set_write_buffer_limits(high=SOCKET_BUFFER_HIGH)
        self._start_deadline()
        self._connection.connection_made(cast("asyncio.Transport", self))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        self._closing = True
        self._socket = None
        self._tls = None
        self._queue.clear()
        self._ciphertext = b""
        self._memory = self._files = 0
        self._connection.connection_lost(exc)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._engine.received

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        received = self._engine.received[:nbytes]
        if not self._handshaking:
            self._receive(received)
            return
        self._ciphertext += received
        if len(self._ciphertext) > HANDSHAKE_BYTES_MAX and self._socket is not None:
            self._socket.pause_reading()
        self._engine.handshakes.add(self)

    def eof_received(self) -> bool:
        """Close. The responses that wait are sent first."""
        self.close()
        return bool(self._queue)

    def pause_writing(self) -> None:
        self._socket_full = True

    def resume_writing(self) -> None:
        self._socket_full = False
        self._pump()

    # The handshake.

    def step(self) -> None:
        """Continue the handshake with what was received."""
        if self._closing or self._socket is None:
            return
        data, self._ciphertext = self._ciphertext, b""
        if len(data) > HANDSHAKE_BYTES_MAX and not self._reading_paused:
            self._socket.resume_reading()
        if self._tls is None:
            if data[0] != _HANDSHAKE_RECORD:
                self._fail(_describe_plaintext(data))
                return
            self._tls = self._port.context.wrap_bio(
                self._engine.incoming, self._engine.outgoing, server_side=True
            )
        self._engine.incoming.write(data)
        problem, is_complete = None, False
        try:
            self._tls.do_handshake()
            is_complete = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            problem = describe_handshake_error(error)
        remainder = self._engine.incoming.read()
        self._flush()
        if is_complete:
            assert self._connection.peer is not None
            problem = self._port.authenticate(self._connection.peer, self._tls)
        if problem is not None:
            self._fail(problem)
        elif is_complete:
            self._end_handshake()
            self._receive(remainder)

    def _start_deadline(self) -> None:
        timeout_s = self._port.handshake_timeout_ms / 1000
        self._deadline = self._loop.call_later(timeout_s, self._on_timeout)

    def _end_handshake(self) -> None:
        self._handshaking = False
        self._engine.handshakes.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def _on_timeout(self) -> None:
        if self._reading_paused:
            # A limit on the rate of connections delays this one.
            self._start_deadline()
            return
        self._fail(
            "the TLS handshake was not complete within shoal.ssl.handshake.timeout.ms"
            f" ({self._port.handshake_timeout_ms})"
        )

    def _fail(self, reason: str) -> None:
        """Close a connection whose handshake failed. OpenSSL's alert is sent already."""
        self._end_handshake()
        if not self._closing:
            self._closing = True
            self._port.on_handshake_failed(self._connection, reason)
            if self._socket is not None:
                self._socket.close()

    # Receiving.

    def _receive(self, data: Buffer) -> None:
        """Decrypt `data` into the connection's buffers, unless it has stopped reading."""
        if self._reading_paused:
            self._ciphertext += data
            return
        incoming, connection = self._engine.incoming, self._connection
        while True:
            incoming.write(data)
            filled, outcome = self._decrypt(connection.get_buffer(-1))
            data = incoming.read()
            # OpenSSL answers a request for new keys, and refuses to renegotiate.
            self._flush()
            if filled:
                connection.buffer_updated(filled)
            if self._closing:
                return
            match outcome:
                case DecryptStop.BUFFER_FULL if not self._reading_paused:
                    continue
                case DecryptStop.BUFFER_FULL:
                    # OpenSSL may have the rest of a record, too.
                    self._ciphertext = data
                case DecryptStop.CLOSED:
                    self.close()
                case str(error):
                    connection.fail(f"TLS: {error}")
            return

    def _decrypt(self, buffer: memoryview) -> tuple[int, DecryptStop | str]:
        """Decrypt into `buffer`. Return the number of bytes, and why there are no more of them; an
        error as text.

        The exception itself would refer to the caller's frame, which would refer to it: a cycle
        that has `buffer`, a request of up to a MB, until the next garbage collection.
        """
        assert self._tls is not None
        read, size, filled = self._tls.read, len(buffer), 0
        try:
            while filled < size:
                count = cast("int", read(size - filled, buffer[filled:]))
                if not count:
                    return filled, DecryptStop.CLOSED
                filled += count
        except ssl.SSLWantReadError:
            return filled, DecryptStop.NEEDS_MORE
        except ssl.SSLZeroReturnError:
            return filled, DecryptStop.CLOSED
        except ssl.SSLError as error:
            return filled, _get_reason(error)
        return filled, DecryptStop.BUFFER_FULL

    def pause_reading(self) -> None:
        self._reading_paused = True
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            # Another connection may use the shared buffers in this call.
            self._loop.call_soon(self._resume_receiving)

    def _resume_receiving(self) -> None:
        if self._reading_paused or self._closing or self._socket is None:
            return
        if not self._handshaking:
            data, self._ciphertext = self._ciphertext, b""
            self._receive(data)
        if not self._reading_paused and not self._closing:
            self._socket.resume_reading()

    # Sending.

    def write(self, data: Buffer) -> None:
        self._put(data)
        self._pump()

    def writelines(self, parts: Iterable[Buffer | FileSlice]) -> None:
        for part in parts:
            self._put(part)
        self._pump()

    def _put(self, part: Buffer | FileSlice) -> None:
        if self._closing or not len(part):
            return
        self._queue.append(part)
        if isinstance(part, FileSlice):
            self._files += 1
        else:
            self._memory += len(part)

    def _pump(self) -> None:
        """Encrypt and send what waits, while the socket accepts it."""
        budget = TURN_BYTES
        try:
            while self._queue and not self._socket_full and budget > 0:
                if self._tls is None or self._socket is None:
                    return
                chunk = self._take_chunk()
                budget -= len(chunk)
                self._tls.write(chunk)
                self._flush()
        except OSError as error:  # An error of TLS is one, too.
            self._engine.outgoing.read()  # Nothing of it may leave on another connection.
            if not isinstance(error, ssl.SSLError):
                reason = f"an answer could not be read from the log: {error}"
                self._port.on_send_failed(self._connection, reason)
            self.abort()
            return
        if self._queue and not self._socket_full and not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._continue_pump)
        if self._closing and not self._queue:
            self._shut_down()
        self._control_flow()

    def _continue_pump(self) -> None:
        self._pump_scheduled = False
        self._pump()

    def _take_chunk(self) -> Buffer:
        """Take the next bytes from the queue: of a large buffer, or gathered from several parts."""
        queue, chunk = self._queue, self._engine.chunk
        filled = 0
        while queue and filled < CHUNK_SIZE:
            part = queue[0]
            if isinstance(part, FileSlice):
                filled += self._read_slice(part, chunk[filled : filled + part.size])
                continue
            size = len(part)
            room = CHUNK_SIZE - filled
            if size >= DIRECT_SIZE and filled:
                break
            queue.popleft()
            if size >= DIRECT_SIZE:
                if size > room:
                    queue.appendleft(memoryview(part)[room:])
                    part = memoryview(part)[:room]
                self._memory -= len(part)
                return part
            if size > room:
                queue.appendleft(memoryview(part)[room:])
                part, size = memoryview(part)[:room], room
            chunk[filled : filled + size] = part
            filled += size
            self._memory -= size
        return chunk[:filled]

    def _read_slice(self, part: FileSlice, into: memoryview) -> int:
        """Read the begin of the slice at the head of the queue. Return the number of bytes."""
        count = os.preadv(part.file.fileno(), [into], part.at)
        if not count:
            raise OSError(f"{part.file.path} ends before byte {part.at + part.size}")
        if count == part.size:
            self._queue.popleft()
            self._files -= 1
        else:
            self._queue[0] = FileSlice(part.file, part.at + count, part.size - count)
        return count

    def _flush(self) -> None:
        """Pass the bytes that OpenSSL has written to the socket."""
        outgoing = self._engine.outgoing
        if outgoing.pending:
            data = outgoing.read()
            if self._socket is not None and not self._socket.is_closing():
                self._socket.write(data)

    def _control_flow(self) -> None:
        """Tell the connection when too much waits for the client, and when it does no longer."""
        if self._closing:
            return
        if not self._writing_paused:
            # What a socket that is not full has left is sent without a further call.
            waiting = self.get_write_buffer_size() if self._socket_full else self._memory
            if self._files or waiting > self._high:
                self._writing_paused = True
                self._connection.pause_writing()
        elif not self._files and not self._socket_full and self._memory <= self._low:
            self._writing_paused = False
            # Another connection may be in the middle of its request.
            self._loop.call_soon(self._resume_connection)

    def _resume_connection(self) -> None:
        if not self._writing_paused and not self._closing:
            self._connection.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = SOCKET_BUFFER_HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return the bytes in memory that wait for the client. Slices of files take none."""
        waiting = 0 if self._socket is None else self._socket.get_write_buffer_size()
        return self._memory + waiting

    # The end.

    def close(self) -> None:
        """Close after the responses that wait are sent."""
        if self._closing:
            return
        self._closing = True
        if self._socket is not None and self._queue:
            self._socket.pause_reading()
        else:
            self._shut_down()

    def _shut_down(self) -> None:
        """Send the end of the TLS session, and close the socket without waiting for the client's
        answer."""
        if self._socket is None or self._socket.is_closing():
            return
        if self._tls is not None and not self._handshaking:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # It wants to read the client's end, or the session has failed.
            self._flush()
        self._socket.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._queue.clear()
        self._memory = self._files = 0
        if self._socket is not None:
            self._socket.abort()

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's certificate (DER), once the handshake is complete; None without one."""
        if self._tls is None or self._handshaking:
            return None
        return self._tls.getpeercert(binary_form=True)

    @property
    def socket_transport(self) -> asyncio.Transport:
        """The transport below, for options of its socket."""
        assert self._socket is not None
        return self._socket

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket's transport has, but not the socket: bytes that are written to it
        would leave in clear text."""
        if name == "socket" or self._socket is None:
            return default
        return self._socket.get_extra_info(name, default)


def _describe_plaintext(data: bytes) -> str:
    """Return what is wrong with the first bytes of a client that does not use TLS."""
    kind = "bytes that are not TLS"
    if len(data) >= 6 and data[0] == 0 and data[4] == 0:
        kind = "a Kafka request without TLS"
    elif data[:8].split(b" ")[0] in (b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS"):
        kind = "an HTTP request"
    return (
        f"the client sent {kind} to a listener with TLS. Set security.protocol to SSL or SASL_SSL"
        " in the client, or let it connect to a listener without TLS"
    )


def describe_handshake_error(error: ssl.SSLError) -> str:
    """Return why a handshake failed, with the remedy if there is one."""
    reason = _get_reason(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if reason in _REMEDIES:
        return f"the TLS handshake failed: {_REMEDIES[reason]}"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return (
            f"the client refuses the certificate of this listener ({reason}). Its truststore needs"
            " the CA, and the certificate the name that it connects to"
        )
    return f"the TLS handshake failed: {reason}"


def _get_reason(error: ssl.SSLError) -> str:
    return error.reason or str(error)


_REMEDIES = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the client sent no certificate, and ssl.client.auth is required. Give the client a"
        " keystore"
    ),
    "UNSUPPORTED_PROTOCOL": (
        "the client offers no version of TLS that ssl.enabled.protocols has. TLS 1.2 and 1.3 are"
        " supported"
    ),
    "NO_SHARED_CIPHER": (
        "the client offers no cipher suite that ssl.cipher.suites and the key of the certificate"
        " allow"
    ),
}
