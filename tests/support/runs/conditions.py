"""Waiting for a condition with a deadline. Tests wait in no other way."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
_TICK_S = 0.01
#: A sleeping thread that wakes up later than this was stopped, not only waiting for its turn.
_STANDSTILL_S = 0.1


def eventually(probe: Callable[..., T | None], *, timeout_s: float = 60.0, what: str = "") -> T:
    """Call `probe` until it returns something true, and return that.

    `probe` is called without arguments; a default may bind a loop's variable to it.
    An `AssertionError` that `probe` raises counts as false and is raised again at the deadline.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    error: AssertionError | None = None
    while True:
        try:
            if found := probe():
                return found
        except AssertionError as caught:
            error = caught
        if time.monotonic() > deadline:
            raise error or AssertionError(f"not within {timeout_s} s: {what or probe}")
        pause.wait(0.02)


async def eventually_async(
    probe: Callable[..., T | None], *, timeout_s: float = 60.0, what: str = ""
) -> T:
    """Run `eventually` in a running loop. Other tasks of the loop run between the probes."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not (found := probe()):
        assert loop.time() < deadline, f"not within {timeout_s} s: {what or probe}"
        turn = loop.create_future()
        loop.call_later(0.02, turn.set_result, None)
        await turn
    return found


#: A ceiling on time grants a slow machine at most this multiple of what it grants a quiet one.
#: Limits are at most three times what `docs/performance.md` claims, so ceilings are at most twelve.
SLOWNESS_MAX = 4.0


def slowness() -> float:
    """Return how many times longer a busy thread takes here now: 1 to `SLOWNESS_MAX`.

    Pauses that have ended do not count: `standstills` and `stopwatch` measure them.
    """
    begun, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < 0.1:
        pass
    return min(SLOWNESS_MAX, max(1.0, (time.monotonic() - begun) / 0.1))


def ceiling(limit: float, stood_still: float = 0.0) -> float:
    """The ceiling for a time that is `limit` at most on a quiet machine, in the unit of `limit`.

    Call it after the measured work. A busy machine gets more, in proportion to its load now, and
    the time of `standstills` on top. The sum is never above `limit * SLOWNESS_MAX`.
    """
    return min(limit * slowness() + stood_still, limit * SLOWNESS_MAX)


#: Objects of `core_slowness`, and the seconds of CPU time that they take on the slowest core for
#: which limits on CPU time were measured.
_OBJECTS, _OBJECTS_S = 30_000, 0.033


def core_slowness() -> float:
    """Return how many times more CPU time the same code takes here now: 1 to `SLOWNESS_MAX`.

    Cores differ, and one that shares its units and caches with a busy core is slower meanwhile. So
    the code is of the broker's kind: it makes, sorts and finds objects.
    """
    used = time.thread_time()
    objects = {(number, number * 7): [number, str(number)] for number in range(_OBJECTS)}
    for key in sorted(objects, key=lambda key: -key[1]):
        objects[key].pop()
    return min(SLOWNESS_MAX, max(1.0, (time.thread_time() - used) / _OBJECTS_S))


def fits_cpu(used: float, limit: float) -> bool:
    """Return whether CPU time that has just been used is within a limit, in the unit of both. A
    slow core gets more, in proportion."""
    return used <= limit or used <= limit * core_slowness()


@contextlib.contextmanager
def standstills() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds of the block so far in which nothing ran here.

    A thread that only sleeps measures how late it wakes up. Use it as
    `took < ceiling(PROMISE_S, stood_still_s())`.
    """
    total_s, over = 0.0, threading.Event()

    def tick() -> None:
        nonlocal total_s
        before = time.monotonic()
        while not over.wait(_TICK_S):
            late_s = time.monotonic() - before - _TICK_S
            if late_s > _STANDSTILL_S:
                total_s += late_s
            before = time.monotonic()

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        yield lambda: total_s
    finally:
        over.set()
        ticking.join()


@contextlib.contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds since the block began, without `standstills`."""
    with standstills() as stood_still_s:
        began = time.monotonic()
        yield lambda: time.monotonic() - began - stood_still_s()
