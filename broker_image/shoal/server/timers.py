"""The broker's clock, and all of its timers on one heap.

Deadlines are given in the clock's milliseconds, the unit of `now_ms` everywhere below the shell,
and kept in monotonic time; who is called sees by the clock whether its deadline has come. A timer
with leeway may come early, when the broker is awake for another one: a hundred idle consumers wake
it ten times a second, not two hundred times. A cancelled timer stays on the heap until it comes up,
or until such ones are the larger part.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable

#: Below this number of timers the heap is not worth cleaning of cancelled ones.
_CLEAN_FROM = 512


class Clock:
    """Wall-clock time in milliseconds that never goes back.

    Deadlines are compared with it, so one that followed a wall clock that is set back would keep
    locks and sessions alive for as long as that was. It goes on at half speed instead until the
    wall clock is there, so that a wait takes twice its time at most. A clock that is set forward is
    followed at once: a machine that slept has let those waits pass.
    """

    __slots__ = ("_behind_at_ns", "_monotonic_ns", "_told_ns", "_wall_ns")

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._told_ns = 0
        #: The monotonic time of the last look, while the wall clock is behind.
        self._behind_at_ns = 0

    def now_ms(self) -> int:
        now_ns = self._wall_ns()
        if now_ns < self._told_ns:
            now_ns = self._behind()
        else:
            self._behind_at_ns = 0
        self._told_ns = now_ns
        return now_ns // 1_000_000

    def _behind(self) -> int:
        at_ns = self._monotonic_ns()
        passed_ns = at_ns - self._behind_at_ns if self._behind_at_ns else 0
        self._behind_at_ns = at_ns
        return self._told_ns + (passed_ns >> 1)


class Timer:
    """A callback that is due once; `cancel` may be called at any time, also after it has run."""

    __slots__ = ("_timers", "call", "due", "early", "turn")

    def __init__(self, timers: Timers, early: float, due: float, call: Callable[[], None]) -> None:
        self._timers = timers
        #: In seconds of the loop's clock: when it may be called, and when it has to be.
        self.early = early
        self.due = due
        #: How often timers had fired when it was made.
        self.turn = timers.turn
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: Timer) -> bool:
        return self.due < other.due

    def cancel(self) -> None:
        if self.call is not None:
            self.call = None
            self._timers.cancelled()


class Timers:
    """Owns the heap and the one event-loop timer that stands for its earliest entry."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._heap: list[Timer] = []
        self._cancelled = 0
        #: How often timers have fired.
        self.turn = 0
        self._armed: asyncio.TimerHandle | None = None

    def at(self, deadline_ms: int, call: Callable[[], None], *, leeway: float = 0.0) -> Timer:
        """Call once when the clock has reached `deadline_ms`, at once if it has passed. Where other
        timers fire in the last part of the wait, `leeway` of it (0 to 1), with them."""
        delay_s = max(0, deadline_ms - self._clock.now_ms()) / 1000
        due = self._loop.time() + delay_s
        timer = Timer(self, due - delay_s * leeway, due, call)
        heapq.heappush(self._heap, timer)
        if self._heap[0] is timer:
            self._arm()
        return timer

    def every(self, interval_ms: int | Callable[[], int], call: Callable[[], None]) -> None:
        """Call again and again, `interval_ms` after each call has returned, until `stop`. An
        interval that may change is a function, asked each time."""
        interval = interval_ms if callable(interval_ms) else lambda: interval_ms

        def run() -> None:
            try:
                call()
            finally:
                self.at(self._clock.now_ms() + max(1, interval()), run)

        self.at(self._clock.now_ms() + max(1, interval()), run)

    def cancelled(self) -> None:
        """A timer on the heap was cancelled."""
        self._cancelled += 1
        if self._cancelled > _CLEAN_FROM and self._cancelled * 2 > len(self._heap):
            self._heap = [t for t in self._heap if t.call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def stop(self) -> None:
        """Forget every timer."""
        self._heap.clear()
        if self._armed is not None:
            self._armed.cancel()

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed = self._loop.call_at(self._heap[0].due, self._fire)

    def _fire(self) -> None:
        self._armed = None
        # The loop's own timers count whole milliseconds and may come a little early. Who sees that
        # it is early and sets its timer again gets the next turn, instead of going round in this.
        now = self._loop.time() + 0.001
        self.turn += 1
        heap = self._heap
        try:
            while heap and heap[0].early <= now and heap[0].turn < self.turn:
                timer = heapq.heappop(heap)
                call, timer.call = timer.call, None
                if call is None:
                    self._cancelled = max(0, self._cancelled - 1)
                else:
                    call()
                heap = self._heap
        finally:
            if self._heap and self._armed is None:
                self._arm()
