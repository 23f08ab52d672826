"""The ports of pods on this machine, and what names of pods and Services mean here.

A pod's address is its name under the headless Service and a port of its spec. Here it is 127.0.0.1
and a port that was free when the pod first ran, which is kept for as long as the state folder is: a
broker advertises it. `translate` puts these addresses into files and variables, and `LocalLoop`
connects the operator's own clients, which use the names.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import zlib
from typing import TYPE_CHECKING, Any

from shoal_operator.local.state_folder import read_json, write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOST = "127.0.0.1"
#: `main-broker-0.main-brokers.shop.svc:9092`, `main-bootstrap.shop.svc:9092`.
_NAME = re.compile(
    r"(?P<first>[a-z0-9][a-z0-9-]*)(\.(?P<headless>[a-z0-9-]+))?\.(?P<namespace>[a-z0-9-]+)"
    r"\.svc(\.cluster\.local)?"
)
_ADDRESS = re.compile(rf"(?<![a-z0-9.-]){_NAME.pattern}:(?P<port>\d+)")
#: Ports for pods are chosen here: below those that systems give to outgoing connections.
PORTS = range(20000, 32000)


class Addresses:
    """The ports in a state folder. `list_pods` returns the names of the pods behind a Service,
    those that are ready first."""

    def __init__(self, file: Path, list_pods: Callable[[str, str], list[str]]) -> None:
        self._file, self._list_pods = file, list_pods
        self._ports: dict[str, int] = read_json(file) or {}

    def get_port(self, namespace: str, pod: str, port: int) -> int:
        """Return the port of this machine for a port of a pod; choose one if it has none."""
        key = f"{namespace}/{pod}:{port}"
        if key not in self._ports:
            self._ports[key] = self._choose_port(key)
            write_text(self._file, json.dumps(self._ports, indent=1, sort_keys=True))
        return self._ports[key]

    def _choose_port(self, key: str) -> int:
        # Folders begin at different places, so that two of them seldom want the same port.
        first = zlib.crc32(f"{self._file} {key}".encode()) % len(PORTS)
        taken = set(self._ports.values())
        for step in range(len(PORTS)):
            port = PORTS[(first + step) % len(PORTS)]
            if port not in taken and is_free(port):
                return port
        raise OSError("no port of this machine is free")

    def translate(self, text: str) -> str:
        """Return a text with the addresses of this machine; a Service becomes all of its pods."""
        return _ADDRESS.sub(self._format_address, text)

    @staticmethod
    def has_names(text: str) -> bool:
        """Return whether a translated text still names a Service: none of its pods exists."""
        return _ADDRESS.search(text) is not None

    def _format_address(self, match: re.Match[str]) -> str:
        namespace, port = match["namespace"], int(match["port"])
        pods = [match["first"]] if match["headless"] else self._list_pods(namespace, match["first"])
        servers = [f"{HOST}:{self.get_port(namespace, pod, port)}" for pod in pods]
        return ",".join(servers) or match[0]

    def find(self, host: str, port: int) -> int | None:
        """Return the port of this machine for an address, None for a host that is no pod here."""
        name = _NAME.fullmatch(host)
        if name is None:
            return None
        pods = [name["first"]]
        if not name["headless"]:
            pods = self._list_pods(name["namespace"], name["first"])
        return self.get_port(name["namespace"], pods[0], port) if pods else None


def is_free(port: int) -> bool:
    """Return whether nothing listens on a port of the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class LocalLoop(asyncio.SelectorEventLoop):
    """An event loop in which names of pods and Services are addresses of this machine.

    Some clients resolve a name before they connect, and then drop its port. So a name has an
    address of its own, `127.77.x.y`, which only `create_connection` knows.
    """

    addresses: Addresses

    def __init__(self) -> None:
        super().__init__()
        self._aliases: dict[str, str] = {}

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Resolve the name of a pod or Service to its alias, and all others as asyncio does."""
        if isinstance(host, bytes):
            host = host.decode()
        if isinstance(host, str) and _NAME.fullmatch(host):
            alias = self._get_alias(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (alias, port or 0))]
        return await super().getaddrinfo(host, port, **options)

    def _get_alias(self, name: str) -> str:
        aliases = {host: alias for alias, host in self._aliases.items()}
        if name not in aliases:
            number = len(aliases) + 1
            aliases[name] = f"127.77.{number >> 8}.{number & 255}"
            self._aliases[aliases[name]] = name
        return aliases[name]

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """Connect as asyncio does; the name for TLS stays the one that was asked for."""
        missing: list[Any] = [None, None][len(args) - 1 :]
        factory, host, port, *more = [*args, *missing]
        name = self._aliases.get(host or "", host or "")
        if _NAME.fullmatch(name):
            local = self.addresses.find(name, port)
            if local is None:
                raise ConnectionRefusedError(f"no pod of {name} runs on this machine")
            host, port = HOST, local
        return await super().create_connection(factory, host, port, *more, **options)
