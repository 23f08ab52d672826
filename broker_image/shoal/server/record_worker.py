"""The thread that reads the records of large batches, so that the event loop does not.

A few kilobytes of a compressed batch may expand to many megabytes. One thread does this work for
all parts of a broker, one call after the other, so that a client can occupy only this thread.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

T = TypeVar("T")


class RecordWorker:
    """Owns the thread, which starts with the first call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._is_closed = False

    def run(self, call: Callable[[], None], callback: Callable[[], None]) -> None:
        """Run `call`, which must not raise, in the thread, and then `callback` on the event
        loop."""
        if self._is_closed:
            return
        work = self._loop.run_in_executor(self._executor, call)

        def on_done(work: asyncio.Future[None]) -> None:
            if not self._is_closed and not work.cancelled():
                work.result()
                callback()

        work.add_done_callback(on_done)

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` in the thread, and return its result. A call that does not begin before
        `close` is cancelled."""
        if not self._is_closed:
            return self._loop.run_in_executor(self._executor, call)
        work: asyncio.Future[T] = self._loop.create_future()
        work.cancel()
        return work

    def close(self) -> None:
        """Abandon the calls that have not begun."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
