"""An event loop whose clock jumps to the next timer, so that tests of timeouts take no time."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Clock(selectors.SelectSelector):
    """Advances the time instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        found = super().select(0)
        if not found and timeout:
            self.now_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that starts at time 0. Nothing in it may wait for other threads or processes."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s

    def advance(self, seconds: float) -> None:
        """Run everything that happens within a time."""
        over = self.create_future()
        self.call_later(seconds, over.set_result, None)
        self.run_until_complete(over)
