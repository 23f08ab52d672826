"""Simulated machines: a disk, an address, a clock, and the process that runs on them.

A broker gets its machine as a `SimSystem`, and a client as an `Environment`. Both lead to the disk,
the sockets, the clocks, the random numbers and the log lines of the simulation.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shoal.client.net.environment import Environment
from shoal.log.memory import MemoryStorage
from shoal.server.system import System
from sim.cluster_kernel import Kernel, Process
from sim.cluster_network import FIN, RESET, BoundSocket, Host, Network

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that a sync takes, on a good disk and on a busy one.
SYNC_S = (0.0005, 0.004)


class Died(BaseException):
    """The process ends within a call of the disk. No code of the broker catches this. Disk calls in
    its `finally` blocks raise it too."""


class SimDisk(MemoryStorage):
    """A machine's disk, with file times, delays, errors, and a way to die in a call."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        super().__init__()
        self.slowness = 1.0
        #: Whether syncs fail.
        self.broken = False
        self.fault = self._fault
        self._left = 0
        self._may: Callable[[], bool] = lambda: False
        self._die: Callable[[], None] = lambda: None

    def die_in(self, operations: int, may: Callable[[], bool], die: Callable[[], None]) -> None:
        """End the process of this machine during the n-th change, if `may` allows it then, and call
        `die`. `operations` of 0 cancels that."""
        self._left, self._may, self._die = operations, may, die

    def _fault(self, operation: str, path: str) -> None:
        process = self._machine.kernel.current
        if process is not None and not process.alive:
            raise Died
        if self.broken and operation == "sync":
            raise OSError(errno.EIO, "Input/output error", path)
        if self._left and operation not in ("read", "open"):
            self._left -= 1
            if not self._left and process is not None and self._may():
                process.alive = False
                self._machine.kernel.trace(f"{self._machine.name} dies in {operation} of {path}")
                self._machine.kernel.soon(None, self._die)
                raise Died

    @property
    def now_ms(self) -> int:
        return self._machine.now_ms()

    @now_ms.setter
    def now_ms(self, _: int) -> None:
        pass

    def work_s(self) -> float:
        return self._machine.kernel.random.uniform(*SYNC_S) * self.slowness


class Machine:
    """A computer: its address, its disk, its clock, and the process that runs on it."""

    def __init__(self, kernel: Kernel, network: Network, name: str, address: str) -> None:
        self.kernel = kernel
        self.network = network
        self.name = name
        self.host: Host = network.add(name, address)
        self.disk = SimDisk(self)
        #: How far its wall clock is off, in seconds.
        self.clock_offset_s = 0.0
        self.process: Process | None = None
        self._past: list[Process] = []

    def now_ms(self) -> int:
        return self.kernel.wall_time_ns() // 1_000_000

    @property
    def runs(self) -> bool:
        return self.process is not None

    def boot(self) -> Process:
        """Start a new process on this machine."""
        assert self.process is None
        process = Process(
            self.kernel,
            self.name,
            host=self.host,
            network=self.network,
            clock_offset=lambda: self.clock_offset_s,
            work_s=self.disk.work_s,
        )
        self.host.powered = True
        self.process = process
        self._past.append(process)
        return process

    def environment(self) -> Environment:
        """Return the environment of a client on this machine."""
        kernel = self.kernel
        return Environment(
            wall_ns=kernel.wall_time_ns,
            random=kernel.shared_random,
            uuid=lambda: UUID(bytes=kernel.entropy.randbytes(16), version=4),
        )

    def ended(self) -> None:
        """Close what its process left open when it ended."""
        if self.process is not None:
            self.process.kill()
            self.process = None
            self.host.close_all(FIN)
            self.disk.crash(lambda n: n - 1)

    def kill(self) -> None:
        """`kill -9`: the operating system keeps the written data and closes the sockets."""
        if self.process is None:
            return
        self.kernel.trace(f"{self.name} killed")
        self.process.kill()
        self.process = None
        self.host.close_all(self.kernel.random.choice((FIN, RESET)))
        self.disk.crash(lambda n: n - 1)

    def lose_power(self) -> None:
        """Lose unsynced data, or a part of it. No peer gets a notification."""
        if self.process is None:
            return
        self.kernel.trace(f"{self.name} without power")
        self.process.kill()
        self.process = None
        self.host.power_off()
        self.disk.crash(self.kernel.random.randrange)

    def pause(self) -> None:
        """Stop the process (SIGSTOP)."""
        assert self.process is not None
        self.process.pause()

    def resume(self) -> None:
        """Continue the process (SIGCONT)."""
        assert self.process is not None
        self.process.resume()

    def bury(self) -> None:
        for past in self._past:
            past.bury()


class SimSystem(System):
    """The operating system of a process on a simulated machine."""

    def __init__(self, process: Process, machine: Machine) -> None:
        kernel = process.kernel
        self._process, self._kernel = process, kernel
        self.storage = machine.disk
        self.random = kernel.shared_random
        self.wall_ns = kernel.wall_time_ns
        self.monotonic_ns = kernel.monotonic_ns
        self.random_bytes = kernel.entropy.randbytes

    def bind(self, host: str, port: int) -> Any:
        return BoundSocket(self._process, port)

    def make_logger(self, **context: Any) -> _Log:
        return _Log(self._kernel, context)


class _Log:
    """A logger whose lines go to the trace."""

    def __init__(self, kernel: Kernel, context: dict[str, Any]) -> None:
        self._kernel, self._context = kernel, context

    def bind(self, **context: Any) -> _Log:
        return _Log(self._kernel, self._context | context)

    def _line(self, event: str, **facts: Any) -> None:
        what = " ".join(f"{k}={v}" for k, v in (self._context | facts).items())
        self._kernel.trace(f"log: {event} {what}")

    debug = info = warning = error = exception = _line
