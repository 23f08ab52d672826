"""The clock of a node, and all of its timers on one heap.

Deadlines are in milliseconds of the clock, as `now_ms` in all cores, and kept in monotonic time. A
callback checks with the clock whether its deadline has passed. A timer with leeway may fire early,
together with another one: a hundred idle consumers wake the broker ten times a second, not two
hundred times. A cancelled timer stays on the heap until it is due, or until most timers on the heap
are cancelled.
"""

from __future__ import annotations

import heapq
import itertools
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: Cancelled timers up to this number stay on the heap.
_CLEAN_FROM = 512


class Clock:
    """Wall-clock time in milliseconds that never goes back.

    Deadlines are compared with it. If it went back with the wall clock, locks and sessions would
    last longer by that time. Instead it runs at half speed until the wall clock has caught up, so a
    wait takes at most twice its time. If the wall clock is set forward, the clock follows at once:
    a machine that slept has waited.
    """

    __slots__ = ("_behind_at_ns", "_last_ns", "_monotonic_ns", "_wall_ns")

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._last_ns = 0
        #: The monotonic time of the last call, while the wall clock is behind.
        self._behind_at_ns = 0

    def now_ms(self) -> int:
        now_ns = self._wall_ns()
        if now_ns < self._last_ns:
            now_ns = self._advance_behind()
        else:
            self._behind_at_ns = 0
        self._last_ns = now_ns
        return now_ns // 1_000_000

    def _advance_behind(self) -> int:
        at_ns = self._monotonic_ns()
        passed_ns = at_ns - self._behind_at_ns if self._behind_at_ns else 0
        self._behind_at_ns = at_ns
        return self._last_ns + (passed_ns >> 1)


class Timer:
    """A callback that runs once. `cancel` may be called at any time, even after it has run."""

    __slots__ = ("_timers", "call", "due", "early", "turn")

    def __init__(self, timers: Timers, early: float, due: float, call: Callable[[], None]) -> None:
        self._timers = timers
        #: In seconds of the loop's clock: the earliest and the latest time of the call.
        self.early = early
        self.due = due
        #: The value of `Timers.turn` when the timer was made.
        self.turn = timers.turn
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        if self.call is not None:
            self.call = None
            self._timers.on_cancelled()


class Timers:
    """Owns the heap, and the event loop's timer for its earliest entry."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        #: By the latest time of the call, in the order in which they were made.
        self._heap: list[tuple[float, int, Timer]] = []
        self._made = itertools.count()
        self._cancelled = 0
        #: How often timers have fired.
        self.turn = 0
        self._armed: asyncio.TimerHandle | None = None

    def call_at(self, deadline_ms: int, call: Callable[[], None], *, leeway: float = 0.0) -> Timer:
        """Call once when the clock reaches `deadline_ms`, or at once if it has passed.

        The call may come early, with another timer, in the last part of the wait. `leeway` is the
        size of that part, from 0 to 1.
        """
        delay_s = max(0, deadline_ms - self._clock.now_ms()) / 1000
        due = self._loop.time() + delay_s
        timer = Timer(self, due - delay_s * leeway, due, call)
        heapq.heappush(self._heap, (due, next(self._made), timer))
        if self._heap[0][2] is timer:
            self._arm()
        return timer

    def call_every(self, interval_ms: int | Callable[[], int], call: Callable[[], None]) -> None:
        """Call repeatedly, `interval_ms` after the previous call has returned, until `stop`.

        `interval_ms` may be a function, for an interval that changes.
        """
        interval = interval_ms if callable(interval_ms) else lambda: interval_ms

        def run() -> None:
            try:
                call()
            finally:
                self.call_at(self._clock.now_ms() + max(1, interval()), run)

        self.call_at(self._clock.now_ms() + max(1, interval()), run)

    def on_cancelled(self) -> None:
        """Note that a timer on the heap was cancelled."""
        self._cancelled += 1
        if self._cancelled > _CLEAN_FROM and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def stop(self) -> None:
        """Remove all timers."""
        self._heap.clear()
        if self._armed is not None:
            self._armed.cancel()

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed = self._loop.call_at(self._heap[0][0], self._fire)

    def _fire(self) -> None:
        self._armed = None
        # The loop's timers have a resolution of a millisecond and may fire early. A callback that
        # finds it is early and sets its timer again runs in the next turn, not in this one.
        now = self._loop.time() + 0.001
        self.turn += 1
        heap = self._heap
        try:
            while heap and (timer := heap[0][2]).early <= now and timer.turn < self.turn:
                heapq.heappop(heap)
                call, timer.call = timer.call, None
                if call is None:
                    self._cancelled = max(0, self._cancelled - 1)
                else:
                    call()
                heap = self._heap
        finally:
            if self._heap and self._armed is None:
                self._arm()
