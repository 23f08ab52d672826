"""The operating system as a node uses it: files, listening sockets, clocks, random numbers, logs.

A node reaches the system through this class and its event loop alone. A simulation passes in a
subclass that leads to a simulated machine.
"""

from __future__ import annotations

import os
import socket
import time
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shoal.log.storage import DiskStorage, Storage
from shoal.server import logs

if TYPE_CHECKING:
    from collections.abc import Callable


class System:
    """The machine that this process runs on."""

    def __init__(self) -> None:
        self.storage: Storage = DiskStorage()
        #: For choices that need not be unpredictable, such as election timeouts.
        self.random = Random()
        #: Nanoseconds since 1970 by the wall clock, which may be set back.
        self.wall_ns: Callable[[], int] = time.time_ns
        #: Nanoseconds since an arbitrary moment; never goes back.
        self.monotonic_ns: Callable[[], int] = time.monotonic_ns
        #: The given number of bytes that nobody can predict.
        self.random_bytes: Callable[[int], bytes] = os.urandom

    def make_uuid(self) -> UUID:
        """Return a new random id (RFC 9562, version 4)."""
        return UUID(bytes=self.random_bytes(16), version=4)

    def bind(self, host: str, port: int) -> socket.socket:
        """Return a non-blocking TCP socket that is bound; an empty host means all addresses. Until
        a server listens on it, connections are refused.

        Raises `OSError`, and its subclass `socket.gaierror` for an unknown host name.
        """
        info = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, proto, _, address = sorted(info, key=lambda i: i[0] != socket.AF_INET)[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock

    def make_logger(self, **context: Any) -> Any:
        """Return a structured logger bound to `context`."""
        return logs.get(**context)
