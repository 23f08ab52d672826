"""Requests that wait for something to happen, and the keys that wake them.

A request is parked under the keys of what it waits for, with an attempt that gives its answer or
None, and a deadline after which `expire` gives one regardless. Nothing polls: `wake(key)` is called
by whatever changed (a high watermark, a synced offset, a released record), and the attempts of that
key run once at the end of the event loop's turn, so that many appends in one turn cost one attempt.

While few requests come, a consumer's fetch need not wait for that end: it goes ahead of the answers
to the requests that woke it (`complete_early`), so a record is on its way to its consumer before
its producer is told. To write to a socket whose reader sleeps takes longer than all else in a
produce.

Callers: produce (acks that wait for disk or replicas), fetch and share fetch (min bytes, max wait),
delete records.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Sequence

from shoal.server.network.api import Body
from shoal.server.network.deferred import DeferredResponse
from shoal.server.timers import Timer, Timers

Attempt = Callable[[], Body | None]
#: The part of a fetch's `max_wait`, its last, in which it may end with others: 50 of 500 ms.
FETCH_LEEWAY = 0.1
#: So many fetches at most go ahead of the answers to one read's requests, which wait for them.
EARLY_FETCHES_MAX = 2
#: More reads in a window than that, and nothing goes ahead in the next one: 5,000 a second.
WINDOW_S, READS_MAX = 0.01, 50


class _Parked:
    __slots__ = ("attempt", "future", "keys", "timer")

    def __init__(
        self,
        keys: Sequence[Hashable],
        attempt: Attempt,
        future: asyncio.Future[Body] | DeferredResponse,
    ) -> None:
        self.keys = keys
        self.attempt = attempt
        self.future = future
        self.timer: Timer | None = None


class Purgatory:
    """Owns the parked requests of one broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
        self._loop = loop
        self._timers = timers
        self._by_key: dict[Hashable, dict[_Parked, None]] = {}
        self._woken: dict[Hashable, None] = {}
        self._reads = 0
        self._window_ends_s = 0.0
        self._is_busy = False
        self.size = 0

    def park(
        self,
        keys: Sequence[Hashable],
        attempt: Attempt,
        expire: Callable[[], Body],
        deadline_ms: int,
    ) -> asyncio.Future[Body]:
        """A future of the answer: that of the first attempt that gives one, else of `expire`.

        Cancelling the future (its connection is gone) takes the request out.
        """
        future: asyncio.Future[Body] = self._loop.create_future()
        self._park(_Parked(keys, attempt, future), expire, deadline_ms)
        return future

    def park_fetch(
        self,
        keys: Sequence[Hashable],
        attempt: Attempt,
        expire: Callable[[], Body],
        deadline_ms: int,
    ) -> DeferredResponse:
        """As `park`, for a consumer's fetch: it leaves in the turn in which it is answered, may go
        ahead, and may expire a little early, with those of other idle consumers."""
        response = DeferredResponse()
        self._park(_Parked(keys, attempt, response), expire, deadline_ms, FETCH_LEEWAY)
        return response

    def _park(
        self,
        parked: _Parked,
        expire: Callable[[], Body],
        deadline_ms: int,
        leeway: float = 0.0,
    ) -> None:
        for key in parked.keys:
            self._by_key.setdefault(key, {})[parked] = None
        self.size += 1

        def expired() -> None:
            self._finish(parked, expire)

        parked.timer = self._timers.at(deadline_ms, expired, leeway=leeway)
        parked.future.add_done_callback(lambda _: self._remove(parked))

    def wake(self, key: Hashable) -> None:
        """What `key` stands for has changed: its requests try again in this turn of the loop."""
        if key in self._by_key:
            if not self._woken:
                self._loop.call_soon(self._attempt_woken)
            self._woken[key] = None

    def complete_early(self, now_s: float) -> None:
        """The requests of one read, at `now_s` by the loop's clock, have been handled and are about
        to be answered: some fetches that they woke may try before."""
        if now_s >= self._window_ends_s:
            just_ended = now_s < self._window_ends_s + WINDOW_S
            self._is_busy = just_ended and self._reads > READS_MAX
            self._reads, self._window_ends_s = 0, now_s + WINDOW_S
        self._reads += 1
        if self._woken and not self._is_busy:
            woken = (parked for key in self._woken for parked in self._by_key.get(key, ()))
            fetches = (parked for parked in woken if isinstance(parked.future, DeferredResponse))
            for parked in list(itertools.islice(fetches, EARLY_FETCHES_MAX)):
                self._finish(parked, parked.attempt)

    def _attempt_woken(self) -> None:
        woken, self._woken = self._woken, {}
        for key in woken:
            for parked in list(self._by_key.get(key, ())):
                self._finish(parked, parked.attempt)

    def _finish(self, parked: _Parked, answer: Attempt) -> None:
        if parked.future.done():
            return
        try:
            body = answer()
        except Exception as error:  # the future carries it to dispatch, which answers and logs
            parked.future.set_exception(error)
            return
        if body is not None:
            parked.future.set_result(body)
            self._remove(parked)

    def _remove(self, parked: _Parked) -> None:
        timer, parked.timer = parked.timer, None
        if timer is None:
            return
        timer.cancel()
        self.size -= 1
        for key in parked.keys:
            waiting = self._by_key.get(key)
            if waiting is not None:
                waiting.pop(parked, None)
                if not waiting:
                    del self._by_key[key]
