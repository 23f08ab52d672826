"""The broker's timers and its purgatory, on a real event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from shoal.server.network.purgatory import EARLY_FETCHES_MAX, READS_MAX, WINDOW_S, Purgatory
from shoal.server.timers import Clock, Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from shoal.server.network.api import Body


def run(test: Callable[[Timers], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        timers = Timers(asyncio.get_running_loop(), Clock())
        await asyncio.wait_for(test(timers), 20)
        timers.stop()

    uvloop.run(main())


now_ms = Clock().now_ms


def test_a_clock_that_is_set_back_doubles_waits_at_most() -> None:
    """Found by the cluster simulation: share locks and group sessions lasted longer by the whole
    step of a clock that was set back. Time runs at half speed until the wall clock has caught
    up."""
    wall, monotonic = [1_700_000_000_000], [5_000]
    clock = Clock(lambda: wall[0] * 1_000_000, lambda: monotonic[0] * 1_000_000)

    def passes(ms: int) -> None:
        wall[0] += ms
        monotonic[0] += ms

    begin = clock.now_ms()
    assert begin == 1_700_000_000_000
    passes(1_000)
    assert clock.now_ms() == begin + 1_000
    wall[0] -= 10_000
    assert clock.now_ms() == begin + 1_000
    for _ in range(4_000):
        passes(1)
        clock.now_ms()
    assert clock.now_ms() == begin + 3_000
    passes(16_001)
    assert clock.now_ms() == wall[0] == begin + 11_001
    wall[0] += 60_000
    assert clock.now_ms() == wall[0]


def test_timers_fire_in_the_order_of_their_deadlines() -> None:
    async def test(timers: Timers) -> None:
        fired: list[int] = []
        done = asyncio.Event()
        start = now_ms()
        timers.call_at(start + 60, done.set)
        for delay in (40, 10, 0, 20, 30):
            timers.call_at(start + delay, partial(fired.append, delay))
        timers.call_at(start + 15, lambda: fired.append(-1)).cancel()
        await done.wait()
        assert fired == [0, 10, 20, 30, 40]
        assert now_ms() - start >= 59

    run(test)


def test_a_timer_that_is_set_again_by_its_call_waits_for_the_next_turn() -> None:
    """Found by the cluster simulation: a timer that fired a millisecond early and was set again by
    its call fired in a loop until that millisecond was over."""
    loop = _ByHand()
    timers = Timers(loop, _AtZero())  # type: ignore[arg-type]
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        assert len(calls) == 1, "within one turn"
        timers.call_at(1, call)

    timers.call_at(1, call)
    ((_, fire),) = loop.armed.values()
    fire()
    assert len(loop.armed) == 2


class _AtZero(Clock):
    @staticmethod
    def now_ms() -> int:
        return 0


def test_a_timer_with_leeway_fires_with_others_in_the_last_part_of_its_wait() -> None:
    loop = _ByHand()
    timers = Timers(loop, _AtZero())  # type: ignore[arg-type]
    fired: list[str] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: fired.append(name)

    for name, deadline_ms in (("b", 520), ("a", 500), ("c", 549), ("late", 600)):
        timers.call_at(deadline_ms, note(name), leeway=0.1)
    timers.call_at(530, note("strict"))
    loop.advance(0.490)
    assert not fired, "no timer is due, and leeway alone fires none"
    loop.advance(0.500)
    assert fired == ["a", "b"], "c, behind one without leeway, waits for that"
    loop.advance(0.530)
    assert fired == ["a", "b", "strict", "c"]
    loop.advance(0.599)
    assert "late" not in fired
    loop.advance(0.600)
    assert fired[-1] == "late"


def test_fetches_that_expire_close_together_expire_in_one_turn() -> None:
    loop = _ByHand()
    timers = Timers(loop, _AtZero())  # type: ignore[arg-type]
    purgatory = Purgatory(loop, timers)  # type: ignore[arg-type]
    fetches = [
        purgatory.park_fetch([n], lambda: None, lambda: {"e": 1}, 500 + n) for n in range(100)
    ]
    produce = purgatory.park(["a"], lambda: None, lambda: {"e": 1}, 600)
    loop.advance(0.500)
    assert timers.turn == 1
    assert 50 <= sum(f.done() for f in fetches) < 60
    loop.advance(0.599)
    assert timers.turn == 2
    assert all(f.done() for f in fetches)
    assert not produce.done(), "a produce has no leeway"
    loop.advance(0.600)
    assert produce.done()
    assert purgatory.size == 0


class _ByHand:
    """The part of a loop that timers and futures need; the test advances its time."""

    def __init__(self) -> None:
        self._now = 0.0
        self.armed: dict[object, tuple[float, Callable[[], None]]] = {}

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, call: Callable[[], None]) -> _Handle:
        handle = _Handle(self.armed)
        self.armed[handle] = when, call
        return handle

    def create_future(self) -> asyncio.Future[Body]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False

    def call_soon(self, call: Callable[..., None], *args: Any, context: Any = None) -> None:
        call(*args)

    def advance(self, to: float) -> None:
        while due := [(when, h) for h, (when, _) in self.armed.items() if when <= to]:
            self._now, handle = min(due, key=lambda one: one[0])
            self.armed.pop(handle)[1]()
        self._now = to


class _Handle:
    def __init__(self, armed: dict[object, Any]) -> None:
        self._armed = armed

    def cancel(self) -> None:
        self._armed.pop(self, None)


def test_a_timer_that_raises_stops_no_other() -> None:
    async def test(timers: Timers) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        done = asyncio.Event()
        start = now_ms()
        timers.call_at(start, lambda: 1 / 0)  # type: ignore[arg-type]
        timers.call_at(start, done.set)
        await done.wait()

    run(test)


def test_cancelled_timers_do_not_pile_up() -> None:
    async def test(timers: Timers) -> None:
        kept = [timers.call_at(now_ms() + 60_000, lambda: None) for _ in range(10)]
        for _ in range(100_000):
            timers.call_at(now_ms() + 60_000, lambda: None).cancel()
        assert len(timers._heap) < 2000
        assert sum(timer.call is not None for _, _, timer in timers._heap) == len(kept)

    run(test)


def test_every_repeats_until_stop() -> None:
    async def test(timers: Timers) -> None:
        calls: list[int] = []
        done = asyncio.Event()

        def call() -> None:
            calls.append(now_ms())
            if len(calls) == 3:
                done.set()

        timers.call_every(10, call)
        await done.wait()
        assert calls[2] - calls[0] >= 18

    run(test)


def test_parked_requests_complete_once() -> None:
    async def test(timers: Timers) -> None:
        purgatory = Purgatory(asyncio.get_running_loop(), timers)
        ready: dict[str, Body] = {}
        attempts: list[str] = []

        def attempt() -> Body | None:
            attempts.append("")
            return ready.get("answer")

        def expire() -> Body:
            return {"expired": True}

        parked = purgatory.park(["a", "b"], attempt, expire, now_ms() + 60_000)
        purgatory.wake("other")
        purgatory.wake("a")
        purgatory.wake("a")
        await asyncio.sleep(0)
        assert len(attempts) == 1
        assert not parked.done()
        ready["answer"] = {"found": 1}
        purgatory.wake("a")
        purgatory.wake("b")
        assert await parked == {"found": 1}
        assert purgatory.size == 0
        assert not purgatory._by_key

    run(test)


def test_parked_requests_expire_and_can_be_cancelled() -> None:
    async def test(timers: Timers) -> None:
        purgatory = Purgatory(asyncio.get_running_loop(), timers)
        expired = purgatory.park(["a"], lambda: None, lambda: {"e": 1}, now_ms() + 10)
        given_up = purgatory.park(["a"], lambda: None, lambda: {"e": 2}, now_ms() + 60_000)
        assert await expired == {"e": 1}
        given_up.cancel()
        await asyncio.sleep(0)
        assert purgatory.size == 0
        assert not purgatory._by_key

    run(test)


def test_an_attempt_that_fails_fails_its_request_alone() -> None:
    async def test(timers: Timers) -> None:
        purgatory = Purgatory(asyncio.get_running_loop(), timers)

        def broken() -> Body:
            raise ValueError("broken")

        bad = purgatory.park(["a"], broken, dict, now_ms() + 60_000)
        good = purgatory.park(["a"], lambda: {"ok": 1}, dict, now_ms() + 60_000)
        purgatory.wake("a")
        assert await good == {"ok": 1}
        with pytest.raises(ValueError, match="broken"):
            await bad
        assert purgatory.size == 0

    run(test)


def test_a_few_woken_fetches_complete_early() -> None:
    async def test(timers: Timers) -> None:
        purgatory = Purgatory(asyncio.get_running_loop(), timers)
        deadline_ms = now_ms() + 60_000
        produce = purgatory.park(["a"], lambda: {"taken": 1}, dict, deadline_ms)
        fetches = [
            purgatory.park_fetch(["a"], lambda: {"found": 1}, dict, deadline_ms)
            for _ in range(EARLY_FETCHES_MAX + 2)
        ]
        other = purgatory.park_fetch(["b"], lambda: {"found": 2}, dict, deadline_ms)
        purgatory.complete_early(0.0)
        assert not any(fetch.done() for fetch in fetches)  # no wake-up yet
        purgatory.wake("a")
        purgatory.complete_early(0.0)
        assert [fetch.done() for fetch in fetches] == [True] * EARLY_FETCHES_MAX + [False] * 2
        assert not produce.done()
        assert await produce == {"taken": 1}
        assert all(fetch.result() == {"found": 1} for fetch in fetches)  # the rest, with the turn
        assert not other.done()
        assert purgatory.size == 1

    run(test)


def test_no_fetch_completes_early_while_many_requests_come() -> None:
    """Then a fetch gets all records of a turn."""

    async def test(timers: Timers) -> None:
        purgatory = Purgatory(asyncio.get_running_loop(), timers)

        def goes_ahead(now_s: float) -> bool:
            fetch = purgatory.park_fetch(["a"], lambda: {"found": 1}, dict, now_ms() + 60_000)
            purgatory.wake("a")
            purgatory.complete_early(now_s)
            ahead = fetch.done()
            fetch.cancel()
            return ahead

        for _ in range(READS_MAX):
            purgatory.complete_early(0.0)
        assert goes_ahead(WINDOW_S / 2)  # a window counts only when it has ended
        assert not goes_ahead(WINDOW_S)
        assert not goes_ahead(1.5 * WINDOW_S)
        assert goes_ahead(2 * WINDOW_S)
        for _ in range(READS_MAX):
            purgatory.complete_early(2 * WINDOW_S)
        assert goes_ahead(60.0)  # that was long ago
        assert purgatory.size == 0

    run(test)


def test_an_attempt_that_fails_early_fails_only_its_fetch() -> None:
    async def test(timers: Timers) -> None:
        purgatory = Purgatory(asyncio.get_running_loop(), timers)

        def broken() -> Body:
            raise ValueError("broken")

        bad = purgatory.park_fetch(["a"], broken, dict, now_ms() + 60_000)
        good = purgatory.park_fetch(["a"], lambda: {"ok": 1}, dict, now_ms() + 60_000)
        purgatory.wake("a")
        purgatory.complete_early(0.0)
        assert isinstance(bad.exception(), ValueError)
        assert good.result() == {"ok": 1}
        assert purgatory.size == 0

    run(test)
