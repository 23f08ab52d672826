"""Supervises the broker processes of one host: starts, restarts and stops them.

* The host is ready when all of its brokers are. If a broker fails at its first start, the host
  stops with the message of that broker: an error in the settings is not retried.
* A broker that ends later is restarted after a pause. The pause doubles up to a maximum, and is
  reset after the broker has run for `STEADY_S`. The other brokers continue.
* SIGTERM or SIGINT stops all brokers. Controllers stop last, since the other brokers hand over
  their partitions through them. A second signal kills the brokers that still run.
* The kernel terminates the brokers when this process ends.

The output of the brokers is forwarded line by line. The number of the broker is added to lines that
do not contain it.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
import time
from typing import TYPE_CHECKING

from shoal.server.cluster_config import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.server.host.broker_slots import BrokerSlot

#: The first and the longest pause before a restart, and the running time that resets the pause.
PAUSE_S, PAUSE_MAX_S, STEADY_S = 1.0, 30.0, 60.0
_LINE_SIZE_MAX = 1 << 20
_PR_SET_PDEATHSIG = 1
_STOPPED = (0, -signal.SIGTERM)


class _BrokerProcess:
    """One broker's process."""

    def __init__(self, slot: BrokerSlot, command_line: Sequence[str]) -> None:
        self.slot = slot
        self.command_line = command_line
        self.process: asyncio.subprocess.Process | None = None
        self.ready = asyncio.Event()
        self.last_line = ""
        self.status = 0

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.slot.settings["process.roles"]


class Host:
    """Owns the processes. `command` returns the command line of a broker. `say` writes a line for
    the user, `warn` writes one to standard error."""

    def __init__(
        self,
        slots: Sequence[BrokerSlot],
        command: Callable[[BrokerSlot], Sequence[str]],
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._processes = [_BrokerProcess(slot, command(slot)) for slot in slots]
        self._say, self._warn = say, warn
        self._stopping = False
        self._all_ready = False
        self._stop = asyncio.Event()

    async def run(self, started: float) -> int:
        """Run until a signal comes or a broker does not start. Return the exit status. `started` is
        the `perf_counter` at the start of this process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        watches = [asyncio.ensure_future(self._supervise(broker)) for broker in self._processes]
        readying = asyncio.ensure_future(self._await_ready(started))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((stopping, *watches), return_when=asyncio.FIRST_COMPLETED)
        readying.cancel()
        failed = any(watch.done() and watch.result() for watch in watches)
        await self._stop_all()
        await asyncio.wait(watches)
        if not failed:
            self._say("Stopped.")
        # A broker that has no signal handler yet ends by the signal.
        return (
            1 if failed or any(broker.status not in _STOPPED for broker in self._processes) else 0
        )

    def _on_signal(self) -> None:
        if self._stop.is_set():
            for broker in self._processes:
                self._signal(broker, signal.SIGKILL)
        self._stop.set()

    async def _await_ready(self, started: float) -> None:
        for broker in self._processes:
            await broker.ready.wait()
        self._all_ready = True
        took_s = time.perf_counter() - started
        count = len(self._processes)
        self._say(f"Ready after {took_s:.2f} s: {count} brokers. Ctrl-C or SIGTERM stops them.")

    async def _supervise(self, broker: _BrokerProcess) -> bool:
        """Run and restart a broker until the host stops. Return True if it did not start."""
        pause_s = PAUSE_S
        while not self._stopping:
            began = time.monotonic()
            await self._run_once(broker)
            if self._stopping:
                return False
            if not self._all_ready:
                cause = broker.last_line.removeprefix("shoal server: ")
                self._warn(
                    f"shoal server: broker {broker.slot.id} did not start: "
                    f"{cause or _format_exit(broker.status)}"
                )
                return True
            if time.monotonic() - began > STEADY_S:
                pause_s = PAUSE_S
            self._warn(
                f"shoal server: broker {broker.slot.id} ended ({_format_exit(broker.status)}); it "
                f"is started again in {pause_s:g} s."
            )
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return False

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._stop.wait()
        except TimeoutError:
            pass

    async def _run_once(self, broker: _BrokerProcess) -> None:
        """Run a broker once."""
        process = broker.process = await asyncio.create_subprocess_exec(
            *broker.command_line,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_SIZE_MAX,
            # Ctrl-C in a terminal reaches only this process, which stops the brokers in order.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        if self._stopping:  # The signal came while the process was created.
            self._signal(broker, signal.SIGTERM)
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(
            self._forward_output(broker, process.stdout, self._say),
            self._forward_output(broker, process.stderr, self._warn),
        )
        broker.status = await process.wait()
        broker.process = None

    async def _forward_output(
        self,
        broker: _BrokerProcess,
        stream: asyncio.StreamReader,
        write_line: Callable[[str], None],
    ) -> None:
        while True:
            try:
                line = (await stream.readline()).decode(errors="replace")
            except ValueError:  # The line is too long.
                continue
            if not line:
                return
            line = line.rstrip("\n")
            if line.startswith("Ready after"):
                broker.ready.set()
            refusal = line.startswith("shoal server: ")
            if refusal:
                broker.last_line = line
            if write_line is self._say or (refusal and self._all_ready):
                line = f"broker {broker.slot.id}: {line}"
            elif refusal:
                continue  # `_supervise` writes it.
            write_line(line)

    async def _stop_all(self) -> None:
        """Stop the brokers that run, controllers last."""
        self._stopping = True
        self._stop.set()
        for is_controller in (False, True):
            brokers = [
                broker for broker in self._processes if broker.is_controller is is_controller
            ]
            for broker in brokers:
                self._signal(broker, signal.SIGTERM)
            ends = [broker.process.wait() for broker in brokers if broker.process is not None]
            await asyncio.gather(*ends)

    def _signal(self, broker: _BrokerProcess, number: signal.Signals) -> None:
        if broker.process is not None and broker.process.returncode is None:
            broker.process.send_signal(number)


def _format_exit(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent ends. Runs in the broker's process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
