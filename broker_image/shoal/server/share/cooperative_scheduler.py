"""Calls that are spread over turns of the event loop, so that other work gets its turn.

Thousands of locks may expire at once, and one member may hold a million records.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

#: How long the calls of one turn take, about.
STEP_S = 0.005


class CooperativeScheduler:
    """Calls in the order of their arrival, for `STEP_S` seconds a turn of the loop, and at most
    `calls_max` of them: a call may leave as much work as it does for the next turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, calls_max: int = sys.maxsize) -> None:
        self._loop = loop
        self._calls_max = calls_max
        self._calls: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def add(self, call: Callable[[], None]) -> None:
        """Call in a later turn of the loop."""
        self._calls.append(call)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def begin(self, calls: Iterable[Callable[[], None]]) -> None:
        """Call in this turn of the loop, unless earlier calls wait."""
        self._calls.extend(calls)
        if not self._scheduled:
            self._run()

    def _run(self) -> None:
        calls, end, left = self._calls, self._loop.time() + STEP_S, self._calls_max
        try:
            while calls and left:
                left -= 1
                calls.popleft()()
                if self._loop.time() >= end:
                    break
        finally:
            self._scheduled = bool(calls)
            if calls:
                self._loop.call_soon(self._run)
