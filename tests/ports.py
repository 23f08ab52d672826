"""Free ports of this machine."""

from __future__ import annotations

import contextlib
import random
import socket

from conditions import eventually


def free_ports(count: int) -> list[int]:
    """Return `count` free ports from the ephemeral range."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def free_run(count: int) -> int:
    """Return a free port that is followed by `count - 1` free ones, below the ephemeral range."""

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
