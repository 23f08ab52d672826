"""A broker on an event loop of its own, in a thread of this process.

The second one starts in 50 ms, since the modules are loaded, and a debugger sees it. It shares the
interpreter with the test: a test that keeps the CPU busy slows it down.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from shoal.testing.server_process import ANY_PORT, BrokerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from shoal.server.broker import Broker


class ServerThread:
    """A broker with a data directory and a port that it keeps over restarts."""

    def __init__(self, data_dir: Path, *, configs: Mapping[str, str]) -> None:
        self.bootstrap = ANY_PORT
        #: Always empty: its lines go to standard error.
        self.log: list[str] = []
        self._flags = {"log.dirs": str(data_dir), **configs}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def launch(self) -> None:
        """Start it; `wait` waits until it is ready."""
        assert self._thread is None
        self._failure = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-broker", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is ready. Raises `BrokerFailed`."""
        self._ready.wait()
        if self._failure is not None:
            self._join()
            raise BrokerFailed(f"the broker did not start: {self._failure}") from self._failure

    def stop(self) -> int:
        """Stop it; return 0. Raises `BrokerFailed` if it failed."""
        if self._thread is None:
            return 0
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # It has ended by a failure of its own.
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._join()
        if self._failure is not None:
            raise BrokerFailed(f"the broker failed: {self._failure}") from self._failure
        return 0

    def kill(self) -> None:
        """Raises `TypeError`: only a process can be killed."""
        raise TypeError("a broker in a thread cannot be killed. Leave out in_thread=True.")

    def _join(self) -> None:
        assert self._thread is not None
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        try:
            import uvloop

            with contextlib.closing(uvloop.new_event_loop()) as loop:
                self._loop = loop
                loop.run_until_complete(self._serve(loop))
        except BaseException as error:  # `wait` and `stop` raise it.
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stopping = asyncio.Event()
        make = _load(self._flags, self.bootstrap)
        broker = make(loop)
        try:
            await broker.start()
            address = broker.listeners[0]
            self.bootstrap = f"{address.host}:{address.port}"
            self._ready.set()
            stopping = asyncio.ensure_future(self._stopping.wait())
            await asyncio.wait((stopping, broker.failed), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        finally:
            await broker.stop()
        if broker.failed.done():
            raise BrokerFailed(broker.failed.result())


def _load(
    flags: Mapping[str, str], bootstrap: str
) -> Callable[[asyncio.AbstractEventLoop], Broker]:
    """Return what makes the broker with these configs. Raises `InvalidConfig`."""
    import structlog

    from shoal.server import config, logs, process
    from shoal.server.cluster.controller_listener import with_controller_listener

    if not structlog.is_configured():  # By default structlog prints all lines on standard output.
        logs.configure(json=False, level="warning")
    # The environment is that of the application.
    resolved = config.resolve({"listeners": f"PLAINTEXT://{bootstrap}", **flags}, {}, "", "")
    resolved = with_controller_listener(resolved)
    return lambda loop: process.compose(resolved, loop)
