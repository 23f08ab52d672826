"""A world for simulations: one clock with all future events, and the network.

This module is independent of what the nodes do. One seed determines everything random. All events
are hashed, so that two runs of a seed can be compared.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Every run starts at this time, in milliseconds.
START_MS = 1_000_000
#: A run with more events than this does not make progress; usual runs take under 20,000.
EVENTS_MAX = 200_000


class World:
    """The clock, the seed's random numbers, and the trace."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now_ms = START_MS
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: list[str] | None = [] if keep_trace else None
        self.events = 0

    def after(self, delay_ms: int, call: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now_ms + max(0, delay_ms), self._sequence, call))

    def run_until(self, end_ms: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Run events up to `end_ms`, or until `done`; return whether `done` came first."""
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._queue)
            self.events += 1
            assert self.events <= EVENTS_MAX, "liveness: the run goes round in circles"
            call()
            if done():
                return True
        self.now_ms = max(self.now_ms, end_ms)
        return False

    def trace(self, line: str) -> None:
        line = f"{self.now_ms - START_MS:>7} {line}"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    @property
    def fingerprint(self) -> str:
        """Return a hash of all events of the run so far."""
        return self._hash.hexdigest()


class Network:
    """Delivers messages between nodes: in time, late, twice, or never."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Directed links that lose everything.
        self.cut: set[tuple[int, int]] = set()
        self.loss = 0.0
        self.duplication = 0.01
        self.delay_ms = (1, 8)
        #: One of a hundred messages takes much longer and so is overtaken.
        self.straggler_ms = 300
        #: Directed links whose messages wait in `deferred` for `release`.
        self.hold: set[tuple[int, int]] = set()
        self.deferred: list[tuple[int, int, Callable[[], None]]] = []

    def carry(self, source: int, to: int, deliver: Callable[[], None]) -> None:
        """Perhaps call `deliver` some time later, perhaps twice."""
        rng = self._world.random
        copies = 2 if rng.random() < self.duplication else 1
        for _ in range(copies):
            if (source, to) in self.cut or rng.random() < self.loss:
                continue
            delay_ms = rng.randint(*self.delay_ms)
            if rng.random() < 0.01:
                delay_ms += rng.randint(0, self.straggler_ms)
            self._world.after(delay_ms, lambda: self._arrive(source, to, deliver))

    def _arrive(self, source: int, to: int, deliver: Callable[[], None]) -> None:
        if (source, to) in self.hold:
            self.deferred.append((source, to, deliver))
        elif (source, to) not in self.cut:
            deliver()

    def release(self) -> None:
        """Deliver the deferred messages, and hold no more."""
        deferred, self.deferred = self.deferred, []
        self.hold.clear()
        for source, to, deliver in deferred:
            self._arrive(source, to, deliver)
