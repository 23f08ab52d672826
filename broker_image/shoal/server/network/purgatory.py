"""The purgatory: requests that wait for an event or a deadline.

A request is parked under one or more keys, with two functions: `attempt` returns its response or
None, and `expire` returns its response at the deadline. Nothing polls. The part that changes (a
high watermark, a synced offset, a released record) calls `wake(key)`. The attempts of that key run
once, at the end of the turn of the event loop, so all appends of one turn cost one attempt.

While the broker is not busy, a consumer's fetch completes before the end of the turn
(`complete_early`). Its response leaves before the response to the produce request that woke it.
This matters because a write to a socket whose reader sleeps takes longer than the rest of a produce
request.

Callers: produce (acks that wait for the disk or for replicas), fetch and share fetch (min bytes,
max wait), DeleteRecords.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.server.network.api import Body
from shoal.server.network.deferred import DeferredResponse

if TYPE_CHECKING:
    import asyncio

    from shoal.server.timers import Timer, Timers

Attempt = Callable[[], Body | None]
B = TypeVar("B")
#: The last part of a fetch's `max_wait` in which it may expire early, together with others: 50 of
#: 500 ms.
FETCH_LEEWAY = 0.1
#: The most fetches that complete before the responses to the requests of one read, which wait for
#: them.
EARLY_FETCHES_MAX = 2
#: After a window with more reads than this (5,000 a second), no fetch completes early in the next
#: window.
WINDOW_S, READS_MAX = 0.01, 50


class _ParkedRequest:
    __slots__ = ("attempt", "future", "is_early", "keys", "timer")

    def __init__(
        self,
        keys: Sequence[Hashable],
        attempt: Callable[[], Any],
        future: asyncio.Future[Any] | DeferredResponse,
        *,
        is_early: bool = False,
    ) -> None:
        #: Whether it may complete before the end of a turn, and expire a little early.
        self.is_early = is_early
        self.keys = keys
        self.attempt = attempt
        self.future = future
        self.timer: Timer | None = None


class Purgatory:
    """Owns the parked requests of one broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
        self._loop = loop
        self._timers = timers
        self._by_key: dict[Hashable, dict[_ParkedRequest, None]] = {}
        self._woken: dict[Hashable, None] = {}
        self._reads = 0
        self._window_ends_s = 0.0
        self._is_busy = False
        self.size = 0
        #: Those that may complete early.
        self._early = 0

    def park(
        self,
        keys: Sequence[Hashable],
        attempt: Callable[[], B | None],
        expire: Callable[[], B],
        deadline_ms: int,
    ) -> asyncio.Future[B]:
        """Park a request. Return a future of the first response of `attempt`, or of `expire`.

        Cancel the future to remove the request, when its connection is closed.
        """
        future: asyncio.Future[B] = self._loop.create_future()
        self._park(_ParkedRequest(keys, attempt, future), expire, deadline_ms)
        return future

    def park_fetch(
        self,
        keys: Sequence[Hashable],
        attempt: Attempt,
        expire: Callable[[], Body],
        deadline_ms: int,
    ) -> DeferredResponse:
        """Park a consumer's fetch. Its callbacks run at once when it completes. It may complete
        before the end of the turn, and expire a little early with fetches of other consumers."""
        response = DeferredResponse()
        parked = _ParkedRequest(keys, attempt, response, is_early=True)
        self._park(parked, expire, deadline_ms)
        return response

    def park_response(
        self,
        keys: Sequence[Hashable],
        attempt: Attempt,
        expire: Callable[[], Body],
        deadline_ms: int,
    ) -> DeferredResponse:
        """Park a request as `park` does. Its response leaves in the turn in which it completes."""
        response = DeferredResponse()
        self._park(_ParkedRequest(keys, attempt, response), expire, deadline_ms)
        return response

    def _park(self, parked: _ParkedRequest, expire: Callable[[], Any], deadline_ms: int) -> None:
        for key in parked.keys:
            self._by_key.setdefault(key, {})[parked] = None
        self.size += 1
        self._early += parked.is_early

        def on_expired() -> None:
            self._finish(parked, expire)

        leeway = FETCH_LEEWAY if parked.is_early else 0.0
        parked.timer = self._timers.call_at(deadline_ms, on_expired, leeway=leeway)
        parked.future.add_done_callback(lambda _: self._remove(parked))

    def wake(self, key: Hashable) -> None:
        """Run the attempts of the requests under `key` at the end of this turn of the loop."""
        if key in self._by_key:
            if not self._woken:
                self._loop.call_soon(self._attempt_woken)
            self._woken[key] = None

    def complete_early(self, now_s: float) -> None:
        """Run the attempts of some fetches that the requests of one read have woken. The connection
        calls this before it sends the responses to those requests. `now_s` is the loop's time."""
        if now_s >= self._window_ends_s:
            just_ended = now_s < self._window_ends_s + WINDOW_S
            self._is_busy = just_ended and self._reads > READS_MAX
            self._reads, self._window_ends_s = 0, now_s + WINDOW_S
        self._reads += 1
        if self._early and self._woken and not self._is_busy:
            woken = (parked for key in self._woken for parked in self._by_key.get(key, ()))
            fetches = (parked for parked in woken if parked.is_early)
            for parked in list(itertools.islice(fetches, EARLY_FETCHES_MAX)):
                self._finish(parked, parked.attempt)

    def _attempt_woken(self) -> None:
        woken, self._woken = self._woken, {}
        for key in woken:
            for parked in list(self._by_key.get(key, ())):
                self._finish(parked, parked.attempt)

    def _finish(self, parked: _ParkedRequest, answer: Callable[[], Any]) -> None:
        if parked.future.done():
            return
        try:
            body = answer()
        except Exception as error:  # Dispatch turns it into an error response.
            parked.future.set_exception(error)
            return
        if body is not None:
            parked.future.set_result(body)
            self._remove(parked)

    def _remove(self, parked: _ParkedRequest) -> None:
        timer, parked.timer = parked.timer, None
        if timer is None:
            return
        timer.cancel()
        self.size -= 1
        self._early -= parked.is_early
        for key in parked.keys:
            waiting = self._by_key.get(key)
            if waiting is not None:
                waiting.pop(parked, None)
                if not waiting:
                    del self._by_key[key]
