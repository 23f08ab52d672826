"""Ports of this machine that nobody listens on now."""

from __future__ import annotations

import contextlib
import random
import socket

from conditions import eventually


def free_ports(count: int) -> list[int]:
    """So many, of those that the machine gives to who asks for any."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def free_run(count: int) -> int:
    """A port that is free, as are those that follow; below those that the machine gives to who asks
    for any."""

    def found() -> int | None:
        port = random.randrange(10_000, 30_000)
        try:
            for number in range(count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port + number))
        except OSError:
            return None
        return port

    return eventually(found)
