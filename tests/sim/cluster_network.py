"""The network of a simulated cluster: machines, and TCP between them.

The network carries Kafka's own bytes in ordered streams: no byte is lost, duplicated or overtaken
within a connection. A lost segment stalls its stream until the retransmission. A link that is cut,
in one direction or both, stalls its streams until it is restored. Only another connection can
overtake. A connection breaks when a process ends (the peers get a reset) or a fault resets it. It
also breaks when a restarted machine gets data of a connection that it does not have. A machine
without power sends nothing, so its peers wait for a timeout.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from sim.cluster_kernel import Kernel, Process

#: Capacity of a sender's and a receiver's socket buffer, in bytes.
SOCKET_BYTES = 256 << 10
#: A chunk of a stream is at most this long, so that frames arrive in pieces.
CHUNK_BYTES = 16 << 10
#: Retransmission time-out of a segment, at first and at most.
RETRANSMIT_S, RETRANSMIT_MAX_S = 0.2, 2.0
#: Markers for the end of a stream; compared by identity, not by value.
FIN, RESET = b"fin", b"reset"
_NAMES = {int(key): key.name for key in ApiKey}


class Host:
    """A machine on the network. It may be without power."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.powered = True
        self.listening: dict[int, Server] = {}
        self.sockets: dict[Transport, None] = {}
        self._port = 40_000

    def free_port(self) -> int:
        self._port += 1
        return self._port

    def close_all(self, how: bytes) -> None:
        """The kernel closes the sockets of a dead process."""
        for listening in list(self.listening.values()):
            listening.close()
        for transport in list(self.sockets):
            transport.cut_off(how)

    def power_off(self) -> None:
        """Lose power; peers get no notification."""
        self.powered = False
        for listening in list(self.listening.values()):
            listening.close()
        for transport in list(self.sockets):
            transport.closing = True
            transport.out.clear()
        self.sockets.clear()


class Network:
    """Owns the machines and the links between them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.hosts: dict[str, Host] = {}
        #: Directed pairs of addresses between which nothing is carried.
        self.cut: set[tuple[str, str]] = set()
        #: One of this many chunks is lost and retransmitted.
        self.loss = 0.0
        self.delay_s = (0.0001, 0.001)

    def add(self, name: str, address: str) -> Host:
        host = self.hosts[address] = Host(name, address)
        return host

    def passes(self, source: Host, to: Host) -> bool:
        return source.powered and to.powered and (source.address, to.address) not in self.cut

    def delay(self) -> float:
        rng = self.kernel.random
        delay = rng.uniform(*self.delay_s)
        return delay * 20 if rng.random() < 0.01 else delay

    async def connect(self, process: Process, factory: Any, address: str, port: int) -> Any:
        """Open a connection for a process. Raises `ConnectionRefusedError`."""
        future = process.loop.create_future()
        call = _Call(self, process, factory, self.hosts[address], port, future)
        call.ask(1.0)
        try:
            return await future
        except asyncio.CancelledError:
            call.given_up()
            raise

    def serve(self, process: Process, factory: Any, bound: BoundSocket) -> Server:
        return Server(process, factory, bound)

    def connections(self) -> list[Transport]:
        """The client ends of all connections, in the order they were made."""
        return [t for h in self.hosts.values() for t in h.sockets if t.asked]


class _Call:
    """A connection attempt."""

    def __init__(
        self,
        network: Network,
        process: Process,
        factory: Any,
        to: Host,
        port: int,
        future: asyncio.Future[Any],
    ) -> None:
        self.network, self.process, self.factory, self.to, self.port = (
            network,
            process,
            factory,
            to,
            port,
        )
        self.future = future
        self.host = process.host
        self.transport: Transport | None = None

    def ask(self, again_s: float) -> None:
        """Send a SYN, and retransmit it if it does not arrive."""
        if self.future.done() or not self.process.alive:
            return
        kernel = self.network.kernel
        if self.network.passes(self.host, self.to):
            kernel.after(self.network.delay(), lambda: self._arrives(again_s))
        else:
            kernel.after(again_s, lambda: self.ask(again_s * 2))

    def _arrives(self, again_s: float) -> None:
        network, kernel = self.network, self.network.kernel
        if self.future.done() or not self.process.alive:
            return
        if not network.passes(self.to, self.host):
            kernel.after(again_s, lambda: self.ask(again_s * 2))
            return
        listening = self.to.listening.get(self.port)
        if listening is None:
            kernel.trace(f"{self.host.name}->{self.to.name} refused")
            kernel.after(network.delay(), self._refused, self.process)
            return
        local = (self.host.address, self.host.free_port())
        ours = Transport(network, self.host, self.process, local, self.to, asked=True)
        theirs = Transport(
            network, self.to, listening.process, (self.to.address, self.port), self.host
        )
        ours.peer, theirs.peer = theirs, ours
        self.transport = ours
        kernel.trace(f"{ours} opened")
        listening.accept(theirs)
        at = theirs.arrives_at = kernel.now + network.delay()
        kernel.at(at, self._made, self.process)

    def _refused(self) -> None:
        if not self.future.done():
            self.future.set_exception(ConnectionRefusedError(111, "Connection refused"))

    def _made(self) -> None:
        assert self.transport is not None
        if self.future.done() or self.transport.closing:
            self.given_up()
            return
        protocol = self.factory()
        self.transport.begin(protocol)
        self.future.set_result((self.transport, protocol))

    def given_up(self) -> None:
        if self.transport is not None and self.transport.protocol is None:
            self.transport.cut_off(RESET)


class BoundSocket:
    """A bound socket, as returned by `bind_socket`. It refuses connections until a server listens
    on it."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.host = process.host
        self.port = port
        assert port not in self.host.listening, f"port {port} of {self.host.name} is taken"

    def getsockname(self) -> tuple[str, int]:
        return self.host.address, self.port

    def close(self) -> None:
        """Release the port, on which nothing listens."""


class Server:
    """A listening socket that accepts."""

    def __init__(self, process: Process, factory: Any, bound: BoundSocket) -> None:
        self.process, self._factory = process, factory
        self._host, self._port = bound.host, bound.port
        self._host.listening[self._port] = self

    def accept(self, transport: Transport) -> None:
        self.process.loop.call_soon(self._accept, transport)

    def _accept(self, transport: Transport) -> None:
        if not transport.closing:
            transport.begin(self._factory())

    def close(self) -> None:
        if self._host.listening.get(self._port) is self:
            del self._host.listening[self._port]


class Transport(asyncio.Transport):
    """One end of a connection: bytes in flight, and bytes that arrived but were not read."""

    def __init__(
        self,
        network: Network,
        host: Host,
        process: Process,
        local: tuple[str, int],
        remote: Host,
        *,
        asked: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.host, self.process, self.remote = network, host, process, remote
        self.kernel = network.kernel
        self.local = local
        self.asked = asked
        self.peer: Transport
        self.protocol: Any = None
        self.closing = False
        self._lost = False
        self._reading = True
        self._paused = False
        self._high = 64 << 10
        #: Sent but not arrived, in order, and its size in bytes.
        self.out: deque[bytes] = deque()
        self._out_bytes = 0
        self._under_way = False
        #: When the last chunk arrives.
        self.arrives_at = 0.0
        #: Arrived but not read.
        self._in: deque[bytes] = deque()
        self.in_bytes = 0
        host.sockets[self] = None

    def __str__(self) -> str:
        one, other = (self, self.peer) if self.asked else (self.peer, self)
        arrow = ">" if self.asked else "<"
        return f"{one.host.name}:{one.local[1]}{arrow}{other.host.name}"

    # asyncio's side.

    def begin(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        if self._in:
            self.process.loop.call_soon(self._read)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.peer.local, "sockname": self.local}.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else 64 << 10

    def get_write_buffer_size(self) -> int:
        return max(0, self._out_bytes - SOCKET_BYTES)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._in:
            self.process.loop.call_soon(self._read)

    def write(self, data: Any) -> None:
        if self.closing or not data or not self.process.alive:
            return
        view = memoryview(data)
        for at in range(0, len(view), CHUNK_BYTES):
            self._send(bytes(view[at : at + CHUNK_BYTES]))
        if not self._paused and self.get_write_buffer_size() > self._high:
            self._paused = True
            self.protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if self.process.alive and not self.closing:
            self._shut(FIN)
            self.process.loop.call_soon(self._tell_lost, None)

    def abort(self) -> None:
        if self.process.alive and not self.closing:
            self._shut(RESET)
            self.process.loop.call_soon(self._tell_lost, None)

    def _shut(self, how: bytes) -> None:
        self.closing = True
        self._in.clear()
        self.in_bytes = 0
        self.host.sockets.pop(self, None)
        if how is RESET:
            self.out.clear()
        self._send(how)

    def cut_off(self, how: bytes) -> None:
        """The kernel closes this end, and notifies its process if that lives."""
        if not self.closing:
            self._shut(how)
            error = ConnectionResetError(104, "Connection reset by peer")
            self.process.loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            if self.protocol is not None:
                self.protocol.connection_lost(error)

    # The way of a chunk.

    def _send(self, chunk: bytes) -> None:
        self.out.append(chunk)
        self._out_bytes += len(chunk)
        if not self._under_way:
            self._under_way = True
            self._set_off()

    def _set_off(self) -> None:
        """Send the first chunk."""
        self.arrives_at = max(self.arrives_at, self.kernel.now + self.network.delay())
        self.kernel.at(self.arrives_at, lambda: self._arrive(RETRANSMIT_S))

    def _arrive(self, again_s: float) -> None:
        """Deliver the chunks in flight, if the link is up."""
        network, kernel = self.network, self.kernel
        if not self.out:
            self._under_way = False
            return
        lost = network.loss and kernel.random.random() < network.loss
        full = self.peer.in_bytes >= SOCKET_BYTES and not self.peer.closing
        if lost or full or not network.passes(self.host, self.remote):
            wait_s = again_s * kernel.random.uniform(0.8, 1.2)
            again_s = min(again_s * 2, RETRANSMIT_MAX_S)
            kernel.after(wait_s, lambda: self._arrive(again_s))
            return
        chunk = self.out.popleft()
        self._out_bytes -= len(chunk)
        kernel.trace(f"{self} {len(chunk)}", chunk, _shown if self.asked else _end)
        self.peer.came(chunk)
        if self._paused and self.get_write_buffer_size() <= self._high // 4:
            self._paused = False
            if not self.closing:
                self.process.loop.call_soon(self._resume_writing)
        if self.out:
            self._set_off()
        else:
            self._under_way = False

    def _resume_writing(self) -> None:
        if not self.closing:
            self.protocol.resume_writing()

    def came(self, chunk: bytes) -> None:
        if self.closing or not self.host.powered:
            if chunk is not RESET and chunk is not FIN and not self.peer.closing:
                # The connection no longer exists.
                delay_s = self.network.delay()
                self.kernel.after(delay_s, lambda: self.peer.cut_off(RESET))
        elif chunk is RESET:
            self.closing = True
            self.host.sockets.pop(self, None)
            self.out.clear()
            error = ConnectionResetError(104, "Connection reset by peer")
            self.process.loop.call_soon(self._tell_lost, error)
        else:
            self._in.append(chunk)
            self.in_bytes += len(chunk)
            if self.protocol is not None and self._reading and len(self._in) == 1:
                self.process.loop.call_soon(self._read)

    def _read(self) -> None:
        """Pass received bytes to the protocol until it pauses reading."""
        while self._in and self._reading and not self.closing:
            chunk = self._in.popleft()
            self.in_bytes -= len(chunk)
            if chunk is FIN:
                if not self.protocol.eof_received():
                    self.close()
            elif isinstance(self.protocol, asyncio.BufferedProtocol):
                self._fill(chunk)
            else:
                self.protocol.data_received(chunk)

    def _fill(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view and not self.closing:
            room = self.protocol.get_buffer(-1)
            size = min(len(room), len(view))
            room[:size] = view[:size]
            view = view[size:]
            self.protocol.buffer_updated(size)
            if view and not self._reading:
                self._in.appendleft(bytes(view))
                self.in_bytes += len(view)
                return


def _shown(chunk: bytes) -> str:
    """Describe a chunk in the trace: for the start of a request, its API."""
    if len(chunk) >= 12:
        size, key, version, correlation_id = struct.unpack_from(">ihhi", chunk)
        if size + 4 == len(chunk) and 0 <= key < 100 and 0 <= version < 30:
            return f"{_NAMES.get(key, key)} v{version} #{correlation_id}"
    return _end(chunk)


def _end(chunk: bytes) -> str:
    return chunk.decode() if chunk is FIN or chunk is RESET else ""
