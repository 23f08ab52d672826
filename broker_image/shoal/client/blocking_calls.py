"""Blocking calls that hold up neither the event loop nor the end of the process.

A read from a terminal or a network may never return. It runs in a daemon thread, so that Ctrl-C
ends the program at once. An executor's threads would prevent that.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def run_in_thread(call: Callable[[], T]) -> T:
    """Return the result of a blocking call, or raise its exception."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except Exception as failed:  # The caller handles it, as if it had made the call itself.
            error = failed
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # The loop has ended, and no caller waits.

    threading.Thread(target=run, daemon=True).start()
    return await future
