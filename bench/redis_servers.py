"""A Redis server that writes its log to the disk every second, which compares with one broker.

It runs if `redis-server` is in PATH, or REDIS_SERVER names it.
"""

from __future__ import annotations

import os
import shutil
import socket

from brokers import Broker


def find_server() -> str | None:
    """Return the path of `redis-server`, if there is one."""
    return os.environ.get("REDIS_SERVER") or shutil.which("redis-server")


class Redis(Broker):
    name = "redis"

    def command(self) -> list[str]:
        program = find_server()
        assert program is not None
        words = ("--port", f"{self.port}", "--bind", "127.0.0.1", "--dir", f"{self.directory}")
        return [program, *words, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as one:
                one.sendall(b"PING\r\n")
                return one.recv(7) == b"+PONG\r\n"
        except OSError:
            return False
