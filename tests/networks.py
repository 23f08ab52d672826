"""Machines that are namespaces: one network namespace for each host, and a router among them.

Each host has an address of its own (198.18.0.0/15, which is for such tests, RFC 2544) and reaches
the others through the router's namespace, where the clients are. The router loses what goes from
one host to another when it is told to, in one direction or both: what was sent is gone without a
word, as with a cable that is cut, while clients reach both. It takes Linux, root and iproute2.

Nothing is outside of these namespaces, and their names have the test's process id in them. They end
with the test; those of a test whose process is gone go when the next one begins.
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
    """Why this machine cannot do it."""
    if os.geteuid():
        return "network namespaces need root: run the test as root"
    if shutil.which("ip") is None:
        return "network namespaces need the command `ip`: apt-get install iproute2"
    try:
        with Network(2) as network:
            network.part([1])
    except (AssertionError, OSError) as error:
        return f"this machine lets nobody make network namespaces and rules for them: {error}"
    return None


def sweep() -> None:
    """Remove the namespaces of tests whose process is gone, and end what runs in them."""
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
    """Hosts 1 to n. Used in a `with`, which makes and removes it."""

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
        """End all that runs in it, and it."""
        there = {line.split(" ")[0] for line in _ip("netns", "list").split("\n")}
        for name in (*self.hosts.values(), self.router):
            if name in there:
                _remove(name)

    def command(self, id: int) -> list[str]:
        """What starts a command on a host when it stands before it; the process stays the same."""
        return ["ip", "netns", "exec", self.hosts[id]]

    def clients(self) -> contextlib.AbstractContextManager[None]:
        """Within it, what this thread opens or starts is where all hosts are reached from."""
        return inside(self.router)

    # Faults.

    def lose(self, source: int, to: int) -> None:
        """What `source` sends to `to` is lost from now on."""
        if (source, to) not in self._lost:
            self._rule("add", source, to)
            self._lost.add((source, to))

    def part(self, ids: Iterable[int], *, one_way: bool = False) -> None:
        """What these hosts send to the others is lost, and what they are sent unless `one_way`."""
        some = set(ids)
        for source in some:
            for to in self.hosts.keys() - some:
                self.lose(source, to)
                if not one_way:
                    self.lose(to, source)

    def heal(self) -> None:
        """Nothing is lost any more."""
        for source, to in list(self._lost):
            self._rule("delete", source, to)
            self._lost.discard((source, to))

    def _rule(self, verb: str, source: int, to: int) -> None:
        ends = ["from", self.addresses[source], "to", self.addresses[to]]
        _ip("-n", self.router, "rule", verb, *ends, "blackhole")


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread, and the threads and processes that it starts meanwhile, are in a namespace."""
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
