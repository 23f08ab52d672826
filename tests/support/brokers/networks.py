"""Hosts that are network namespaces, with a router between them.

Each host has its own address (198.18.0.0/15, reserved for tests by RFC 2544). It reaches the others
through the router's namespace, where the clients are. On request the router drops traffic from one
host to another, in one direction or both. Packets vanish silently, as with a cut cable, while
clients still reach both hosts. This needs Linux, root and iproute2.

Nothing outside these namespaces changes. Their names contain the test's process id. They are
removed when the test ends; leftovers of dead processes are removed when the next test begins.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NAMES = re.compile(r"^shoal-net-(\d+)-\d+-\w+$")
NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_numbers = itertools.count(1)


def lacks() -> str | None:
    """Return why this machine cannot create namespaces, or None."""
    if os.geteuid():
        return "network namespaces need root: run the test as root"
    if shutil.which("ip") is None:
        return "network namespaces need the command `ip`: apt-get install iproute2"
    try:
        with Network(2) as network:
            network.part([1])
    except (AssertionError, OSError) as error:
        return f"this machine does not allow network namespaces and rules for them: {error}"
    return None


def sweep() -> None:
    """Remove the namespaces of tests whose process is dead, and end what runs in them."""
    for name in _ip("netns", "list").split("\n"):
        found = NAMES.match(name.split(" ")[0])
        if found and not Path("/proc", found[1]).exists():
            _remove(found[0])


def _remove(name: str) -> None:
    for pid in _ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "delete", name)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


class Network:
    """Hosts 1 to n, as a context manager that creates and removes them."""

    def __init__(self, hosts: int) -> None:
        prefix = f"shoal-net-{os.getpid()}-{next(_numbers)}"
        self.router = f"{prefix}-router"
        self.hosts = {id: f"{prefix}-{id}" for id in range(1, hosts + 1)}
        self.addresses = {id: f"198.18.{id}.2" for id in self.hosts}
        self._lost: set[tuple[int, int]] = set()

    def __enter__(self) -> Network:
        sweep()
        try:
            self._make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _make(self) -> None:
        _ip("netns", "add", self.router)
        _ip("-n", self.router, "link", "set", "lo", "up")
        with inside(self.router):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for id, name in self.hosts.items():
            near, far, address = f"host{id}", "eth0", self.addresses[id]
            gateway = f"198.18.{id}.1"
            _ip("netns", "add", name)
            _ip("-n", self.router, "link", "add", near, "type", "veth", "peer", far, "netns", name)
            _ip("-n", self.router, "address", "add", f"{gateway}/24", "dev", near)
            _ip("-n", self.router, "link", "set", near, "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", far)
            for device in ("lo", far):
                _ip("-n", name, "link", "set", device, "up")
            _ip("-n", name, "route", "add", "default", "via", gateway)

    def remove(self) -> None:
        """End all processes in the network, and remove it."""
        there = {line.split(" ")[0] for line in _ip("netns", "list").split("\n")}
        for name in (*self.hosts.values(), self.router):
            if name in there:
                _remove(name)

    def command(self, id: int) -> list[str]:
        """Return a command prefix that runs a command on a host, in the same process."""
        return ["ip", "netns", "exec", self.hosts[id]]

    def clients(self) -> contextlib.AbstractContextManager[None]:
        """Within this context, the thread's sockets and processes are where all hosts are
        reachable."""
        return inside(self.router)

    # Faults.

    def lose(self, source: int, to: int) -> None:
        """Drop from now on what `source` sends to `to`."""
        if (source, to) not in self._lost:
            self._rule("add", source, to)
            self._lost.add((source, to))

    def part(self, ids: Iterable[int], *, one_way: bool = False) -> None:
        """Drop what these hosts send to the others and, unless `one_way`, what the others send to
        them."""
        some = set(ids)
        for source in some:
            for to in self.hosts.keys() - some:
                self.lose(source, to)
                if not one_way:
                    self.lose(to, source)

    def heal(self) -> None:
        """Stop dropping packets."""
        for source, to in list(self._lost):
            self._rule("delete", source, to)
            self._lost.discard((source, to))

    def _rule(self, verb: str, source: int, to: int) -> None:
        ends = ["from", self.addresses[source], "to", self.addresses[to]]
        _ip("-n", self.router, "rule", verb, *ends, "blackhole")


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Run this thread, and the threads and processes that it starts, in a namespace."""
    thread = threading.get_native_id()
    before = os.open(f"/proc/self/task/{thread}/ns/net", os.O_RDONLY)
    try:
        after = os.open(NAMESPACES / name, os.O_RDONLY)
        try:
            _enter(after)
        finally:
            os.close(after)
        try:
            yield
        finally:
            _enter(before)
    finally:
        os.close(before)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
