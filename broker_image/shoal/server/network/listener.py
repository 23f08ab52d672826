"""A listening socket and its connections.

`connection_limits` bounds the number of connections and the rate of new ones. `max.connections`
counts the connections of all listeners for clients; listeners for controllers are counted
separately. A periodic check closes connections that are idle for `connections.max.idle.ms`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import TYPE_CHECKING

from shoal.security.authorizer import canonicalize_host
from shoal.server.cluster_config import Listeners
from shoal.server.config import format_address
from shoal.server.network.api import Peer
from shoal.server.network.connection import ServerConnection
from shoal.server.network.tls import TlsTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.server.listener_security import ListenerSecurity
    from shoal.server.network.authentication import ListenerAuthentication, LoginCounts
    from shoal.server.network.connection_limits import ConnectionLimits
    from shoal.server.network.dispatch import Dispatcher
    from shoal.server.network.listener_tls import ListenerTls
    from shoal.server.network.receive_memory import ReceiveMemory
    from shoal.server.network.request_limits import RequestLimits
    from shoal.server.node import Node
    from shoal.server.system import System

#: Connections that the kernel completes before they are accepted, unless
#: `socket.listen.backlog.size` is set. Kafka's default of 50 is low for a group whose members all
#: start at the same time.
BACKLOG = 1024
#: The interval between two checks for idle connections.
IDLE_SWEEP_MS = 10_000


class ListenError(Exception):
    """The socket cannot listen at an address. The message names the remedy."""


class Listener:
    """Owns one listening socket, its connections and their traffic counters."""

    def __init__(
        self,
        node: Node,
        name: str,
        dispatch: Dispatcher,
        connection_limits: ConnectionLimits,
        request_limits: RequestLimits,
        receive_memory: ReceiveMemory,
        listeners: Sequence[Listener],
        authentication: ListenerAuthentication | None = None,
        tls: ListenerTls | None = None,
    ) -> None:
        """`listeners` are all listeners of the node, this one included once it is bound.
        `authentication` is None for a listener without SASL, and `tls` for one without TLS."""
        self.loop = node.loop
        self.name = name
        self.host, self.port = "", 0
        #: Bytes of responses in the write buffers of clients that are slow to read.
        self.bytes_buffered = 0
        self.bytes_in = self.bytes_out = self.opened_total = self.refused_total = 0
        self.request_limits = request_limits
        self.receive_memory = receive_memory
        self.security: ListenerSecurity = node.cluster.security[name]
        self._node = node
        self._connection_limits = connection_limits
        self._listeners = listeners
        self._dispatch = dispatch
        self.authentication = authentication
        self._tls = tls
        if tls is not None:
            tls.on_revoked(self._close_revoked)
        self._connections: dict[ServerConnection, None] = {}
        self._connections_by_host: dict[str, int] = {}
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._accepts = False
        config = node.config
        self.request_size_max: int = config["socket.request.max.bytes"]
        is_set = "socket.listen.backlog.size" in config.explicit
        self._backlog: int = config["socket.listen.backlog.size"] if is_set else BACKLOG
        self._idle_max_ms: int = config["connections.max.idle.ms"]
        is_set = "socket.receive.buffer.bytes" in config.explicit
        self._receive_buffer_bytes: int = config["socket.receive.buffer.bytes"] if is_set else -1
        #: A small send buffer lets client and broker work at the same time. With the megabytes that
        #: Linux would buffer, a consumer of 1 KB records is half as fast (`bench`).
        self._send_buffer_bytes: int = config["socket.send.buffer.bytes"]

    @property
    def count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def logins(self) -> LoginCounts | None:
        """How often clients have logged in, or None if they do not."""
        if self.authentication is not None:
            return self.authentication.counts
        return None if self._tls is None else self._tls.logins

    def bind(self, host: str, port: int) -> None:
        """Bind the address. Port 0 takes a free port. Raises `ListenError`."""
        self._socket = bind_socket(self._node.system, host, port)
        if self._receive_buffer_bytes > 0:  # Accepted connections inherit it.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        self.host, self.port = host, self._socket.getsockname()[1]

    async def accept(self) -> None:
        """Listen, unless the listener already does. Before that, connections are refused, so that
        an open port means a node that serves. Raises `ListenError`."""
        assert self._socket is not None
        if self._accepts:
            return
        self._accepts = True
        try:
            self._server = await self.loop.create_server(
                self.make_connection, sock=self._socket, backlog=self._backlog
            )
        except OSError as error:  # SO_REUSEADDR lets two sockets bind a port until one listens.
            raise ListenError(_format_listen_error(self.host, self.port, error)) from None
        if self._idle_max_ms >= 0:
            self._node.timers.call_every(IDLE_SWEEP_MS, self._close_idle)

    def make_connection(self) -> ServerConnection | TlsTransport:
        """Return the protocol of a new connection's socket, without a transport."""
        connection = ServerConnection(self, self._dispatch)
        if self.authentication is not None:
            self.authentication.guard(connection)
        return connection if self._tls is None else TlsTransport(self._tls, connection)

    def register(self, connection: ServerConnection, transport: asyncio.Transport) -> Peer | None:
        """Register a new connection. Return its client, or None to refuse the connection."""
        self.opened_total += 1
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        host = canonicalize_host(host)
        from_host = self._connections_by_host.get(host, 0)
        total = self._count_connections_of_kind()
        if not self._connection_limits.allows(host, total, from_host):
            self.refused_total += 1
            return None
        if self._send_buffer_bytes > 0:
            set_send_buffer(transport, self._send_buffer_bytes)
        self._connections[connection] = None
        self._connections_by_host[host] = from_host + 1
        name = f"{self.host}:{self.port}-{host}:{port}-{self.opened_total}"
        peer = Peer(
            host,
            port,
            self.name,
            "User:ANONYMOUS",
            name,
            pause=connection.mute,
            close_after_responses=connection.close_after_responses,
            number=self.opened_total,
            security_protocol=self.security.protocol,
        )
        throttle = self._connection_limits.throttle(host)
        if throttle.delay_ms:
            connection.mute(throttle.delay_ms)
            if throttle.refused:
                reason = f"{host} is over its quota of new connections"
                self.loop.call_later(throttle.delay_ms / 1000, connection.fail, reason)
        return peer

    def _count_connections_of_kind(self) -> int:
        """Return the number of connections that count against the same `max.connections`. As in
        Kafka, listeners for controllers are counted separately, so that clients cannot take all
        connections of the quorum."""
        kinds = self._node.cluster.kinds
        is_controller = kinds[self.name] is Listeners.CONTROLLER
        return sum(
            listener.count
            for listener in self._listeners
            if (kinds[listener.name] is Listeners.CONTROLLER) is is_controller
        )

    def unregister(self, connection: ServerConnection, peer: Peer) -> None:
        """Forget a connection whose transport is closed."""
        del self._connections[connection]
        remaining = self._connections_by_host[peer.host] - 1
        if remaining:
            self._connections_by_host[peer.host] = remaining
        else:
            del self._connections_by_host[peer.host]
        peer.closed_calls.run()

    def on_connection_failed(self, connection: ServerConnection, reason: str) -> None:
        """Count and log a connection that ends with an error."""
        self.refused_total += 1
        peer = connection.peer.connection_id if connection.peer else ""
        self._node.log.warning("connection closed", reason=reason, connection=peer)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()

    async def close(self) -> None:
        """Close every connection after the responses that are written are sent."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.close()
        # In this turn of the loop, transports without unsent bytes close.
        await asyncio.sleep(0)

    def _close_revoked(self) -> None:
        """Close the connections of clients whose certificates are revoked."""
        assert self._tls is not None
        ended: dict[tuple[str, str], int] = {}
        for connection in list(self._connections):
            certificate = connection.peer_certificate
            reason = None if certificate is None else self._tls.find_revocation(certificate)
            if reason is not None and connection.peer is not None:
                connection.close()
                key = connection.peer.principal, reason
                ended[key] = ended.get(key, 0) + 1
        for (principal, reason), count in ended.items():
            self._tls.log_sessions_ended(principal, reason, count)

    def _close_idle(self) -> None:
        cutoff = self.loop.time() - self._idle_max_ms / 1000
        for connection in [c for c in self._connections if c.active_at < cutoff]:
            connection.fail(f"idle for connections.max.idle.ms ({self._idle_max_ms})")


def set_send_buffer(transport: asyncio.BaseTransport, size: int) -> None:
    """Set the size of a connection's send buffer in the kernel."""
    if isinstance(transport, TlsTransport):
        transport = transport.socket_transport
    accepted = transport.get_extra_info("socket")
    if accepted is not None:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def bind_socket(system: System, host: str, port: int) -> socket.socket:
    """Return a bound TCP socket. An empty host means all addresses. Raises `ListenError`."""
    try:
        return system.bind(host, port)
    except socket.gaierror as error:
        raise ListenError(
            f"Cannot listen on {host}:{port}: the host name is not known ({error.strerror})."
            " Use an address of this machine, or 0.0.0.0 for all of them."
        ) from None
    except OSError as error:
        raise ListenError(_format_listen_error(host, port, error)) from None


def _format_listen_error(host: str, port: int, error: OSError) -> str:
    prefix = f"Cannot listen on {format_address(host, port)}: "
    match error.errno:
        case errno.EADDRINUSE:
            return prefix + (
                "another process listens there. Stop it, or choose another port"
                " (--listener HOST:PORT; port 0 takes a free one)."
            )
        case errno.EADDRNOTAVAIL:
            return prefix + (
                "this machine has no such address. Listen on an address of this machine or on"
                " 0.0.0.0, and give clients the other address by advertised.listeners."
            )
        case errno.EACCES:
            return prefix + "ports below 1024 need a privilege. Choose a higher port."
    return prefix + os.strerror(error.errno or 0) + "."
