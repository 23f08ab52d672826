"""The queues of keys in C behave as those in Python, survive any input, and free their memory."""

from __future__ import annotations

import sys
from array import array
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shoal.coordinator.share import compiled
from shoal.coordinator.share.key_queues import KeyQueues, PlainKeyQueues
from shoal.coordinator.share.runs import OffsetRuns
from shoal.coordinator.share.states import ACKNOWLEDGED, ACQUIRED, AVAILABLE
from support.runs.example_counts import scale_examples
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = [1, 2, 3, 4, -(1 << 63), (1 << 63) - 1]


@pytest.fixture(autouse=True, scope="module")
def there() -> None:
    if compiled.native is None:
        lacking("the queues of keys are not compiled: python -m shoal.compile, with a C compiler")


def made() -> KeyQueues:
    assert compiled.native is not None
    queues: KeyQueues = compiled.native.KeyQueues()
    return queues


class Partition:
    """Queues, the window and the heap of available records."""

    def __init__(self, queues: KeyQueues) -> None:
        self.queues, self.runs, self.available = queues, OffsetRuns(0), list[int]()

    def state_of_all(self) -> Any:
        """Return everything that can be queried."""
        queues, offsets = self.queues, range(-1, self.runs.end + 2)
        return (
            [queues.records, queues.keys, queues.waiting, queues.waiting_records],
            [(queues.key_of(o), queues.is_reserved(o), queues.is_free(o)) for o in offsets],
            [(o, queues.first_of(o), queues.followers(o, 3)) for o in (*KEYS, 99)],
            [list(queues.followers(o, n)) for o in offsets for n in (0, 1, 9)],
            [queues.waiting_behind(offsets), queues.waiting_behind(iter(offsets[1::3]))],
            min(self.available, default=None),
        )

    # Operations; each gets the same random numbers in both kinds.

    def scan(self, random: Random) -> Any:
        keys = array("q", random.choices([0, *KEYS], k=random.randint(1, 9)))
        first = self.runs.end
        self.runs.append(first + len(keys) - 1, AVAILABLE)
        self.queues.put_new(first, keys, self.available)

    def look_at_one(self, random: Random) -> Any:
        offset, key = self.runs.end, random.choice(KEYS)
        self.runs.append(offset, AVAILABLE)
        is_first = self.queues.put(offset, key)
        if random.random() < 0.3:
            self.queues.reserve(offset)
            self._become(offset, ACQUIRED)
        elif self.queues.first_of(key) == offset:
            self.available.append(offset)
        return is_first

    def take(self, random: Random) -> Any:
        """As `Selection.choose`: what `KeyQueues.choose` leaves is taken one by one."""
        records, chosen = random.randint(1, 6), list[int]()
        self.queues.choose(self.available, self.runs, records, 3, chosen)
        self.available.sort()
        while self.available and len(chosen) < records:
            offset = self.available.pop(0)
            state = self.runs.states[self.runs.find_run(offset)]
            free = not self.queues.is_reserved(offset) and self.queues.is_free(offset)
            if free and state == AVAILABLE:
                self.queues.reserve(offset)
                chosen.append(offset)
        for offset in chosen:
            self._become(offset, ACQUIRED)
        return sorted(chosen)

    def hold_one(self, random: Random) -> Any:
        """As between a choice and its lock."""
        free = [o for o in sorted(self.available) if o < self.runs.end and self.queues.is_free(o)]
        for offset in free[: random.randint(0, 2)]:
            self.queues.reserve(offset)

    def take_behind(self, random: Random) -> Any:
        """Take the records after those that a member has."""
        for offset in self._reserved():
            for follower in self.queues.followers(offset, random.randint(0, 2)):
                if self.runs.states[self.runs.find_run(follower)] == AVAILABLE:
                    self.queues.reserve(follower)
                    self._become(follower, ACQUIRED)

    def release(self, random: Random) -> Any:
        return [self._released(o) for o in self._reserved() if random.random() < 0.3]

    def _released(self, offset: int) -> int | None:
        key = self.queues.release(offset)
        self._become(offset, AVAILABLE)
        first = offset if key is None else self.queues.first_of(key)
        if first is not None:
            self.available = sorted([*self.available, first])
        return key

    def finish(self, random: Random) -> Any:
        """Accept records: all at once if possible, else one by one."""
        done = [(o, o, ACKNOWLEDGED, 1) for o in self._reserved() if random.random() < 0.7]
        for offset, *_ in done:
            self._become(offset, ACKNOWLEDGED)
        if not self.queues.end_all(done, self.runs.end, self.available, self.runs):
            self._end_each([offset for offset, *_ in done])

    def finish_each(self, random: Random) -> Any:
        done = [o for o in self._reserved() if random.random() < 0.5]
        for offset in done:
            self._become(offset, ACKNOWLEDGED)
        return self._end_each(done)

    def _end_each(self, offsets: list[int]) -> list[int]:
        touched: dict[int, None] = {}
        self.queues.end(iter(offsets), touched)
        self._offer(touched)
        return sorted(touched)

    def _offer(self, touched: dict[int, None]) -> None:
        for key in touched:
            first = self.queues.first_of(key)
            if first is not None and self.runs.states[self.runs.find_run(first)] == AVAILABLE:
                self.available.append(first)
        self.available.sort()

    def move_start(self, random: Random) -> Any:
        start = random.randint(self.runs.start, self.runs.end)
        self.runs.drop_runs(self.runs.cut(start))
        touched: dict[int, None] = {}
        self.queues.start_moved(start, touched)
        self.available = [offset for offset in self.available if offset >= start]
        self._offer(touched)
        return list(touched)

    def _reserved(self) -> list[int]:
        return [o for o in range(self.runs.start, self.runs.end) if self.queues.is_reserved(o)]

    def _become(self, offset: int, state: int) -> None:
        run, past = self.runs.cut(offset), self.runs.cut(offset + 1)
        self.runs.states[run] = state
        self.runs.counts[run] += state == ACQUIRED
        self.runs.join(run, past)


STEPS: list[Callable[[Partition, Random], Any]] = [
    Partition.scan,
    Partition.scan,
    Partition.look_at_one,
    Partition.take,
    Partition.take,
    Partition.hold_one,
    Partition.take_behind,
    Partition.release,
    Partition.finish,
    Partition.finish_each,
    Partition.move_start,
]


@settings(max_examples=scale_examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1 << 30)), max_size=25))
# A record without a key that was ready twice used to be chosen twice in Python.
@example(
    list(
        zip(
            [Partition.scan, Partition.hold_one, Partition.release, Partition.take],
            [19030, 0, 1, 0],
            strict=True,
        )
    )
)
def test_both_kinds_come_to_the_same(steps: list[tuple[Any, int]]) -> None:
    pair = Partition(made()), Partition(PlainKeyQueues())
    for step, seed in steps:
        compiled_one, plain = (step(one, Random(seed)) for one in pair)
        assert compiled_one == plain
        assert pair[0].state_of_all() == pair[1].state_of_all()


@pytest.mark.parametrize("queues", [made, PlainKeyQueues])
def test_records_come_in_the_order_of_the_log(queues: Callable[[], KeyQueues]) -> None:
    known = queues()
    assert known.put(5, 1)
    for refused in (5, 4, -1):
        with pytest.raises(ValueError, match="order of the log"):
            known.put(refused, 1)
        with pytest.raises(ValueError, match="order of the log"):
            known.put_new(refused, array("q", [1]), [])
    known.reserve(8)  # Without a key.
    with pytest.raises(ValueError, match="order of the log"):
        known.put(8, 1)
    with pytest.raises(ValueError, match="not 0"):
        known.put(9, 0)
    assert (known.records, known.keys, known.key_of(8)) == (1, 1, None)


NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.integers(),
    st.sampled_from([(1 << 63) - 1, -(1 << 63), 1 << 63]),
    st.none(),
    st.booleans(),
    st.floats(),
)
LISTS = st.one_of(
    st.lists(NUMBERS, max_size=5),
    st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from([0, 2, 4, None]), NUMBERS), max_size=4),
    NUMBERS,
)
BUFFERS = st.binary(max_size=9) | st.lists(st.integers(-2, 5), max_size=9).map(
    lambda x: array("q", x)
)
CALLS = [
    ("key_of", [NUMBERS]),
    ("is_reserved", [NUMBERS]),
    ("is_free", [NUMBERS]),
    ("first_of", [NUMBERS]),
    ("followers", [NUMBERS, NUMBERS]),
    ("waiting_behind", [LISTS]),
    ("put", [NUMBERS, NUMBERS]),
    ("put_new", [NUMBERS, LISTS | BUFFERS, LISTS]),
    ("reserve", [NUMBERS]),
    ("release", [NUMBERS]),
    ("end", [LISTS, st.just({})]),
    ("start_moved", [NUMBERS, st.just({})]),
]


def window(data: st.DataObject) -> Any:
    """Mostly a window; else inconsistent columns, or no window."""
    runs = OffsetRuns(data.draw(st.integers(0, 5)))
    if data.draw(st.booleans()):
        runs.append(runs.end + data.draw(st.integers(0, 40)), AVAILABLE)
    broken = data.draw(st.integers(0, 9))
    if broken == 1:
        runs.counts += b"1"
    if broken == 2:
        runs.firsts.append(3)
    return None if broken == 3 else runs


@settings(max_examples=scale_examples(100), deadline=None)
@given(st.data())
def test_whatever_they_are_given(data: st.DataObject) -> None:
    """Each call returns or raises, and the state stays consistent."""
    queues: Any = made()
    for _ in range(data.draw(st.integers(1, 25))):
        name, kinds = data.draw(st.sampled_from([*CALLS, ("choose", []), ("end_all", [])]))
        given = [data.draw(kind) for kind in kinds]
        if name == "choose":
            given = [data.draw(LISTS), window(data), *data.draw(st.tuples(NUMBERS, NUMBERS)), []]
        elif name == "end_all":  # A range is processed whole.
            given = [
                data.draw(LISTS),
                data.draw(st.integers(-5, 50)),
                data.draw(LISTS),
                window(data),
            ]
            if isinstance(given[0], list):
                given[0] = [x for x in given[0] if type(x) is not tuple or (x[0] or 0) > -100]
        try:
            getattr(queues, name)(*given)
        except (TypeError, ValueError, OverflowError, AttributeError):
            pass
    assert 0 <= queues.waiting <= queues.keys <= queues.records
    assert queues.waiting_records <= queues.records
    touched: dict[int, None] = {}
    queues.start_moved((1 << 63) - 1, touched)
    assert [queues.records, queues.keys, queues.waiting, queues.waiting_records] == [0, 0, 0, 0]


def test_memory_is_bounded_and_given_back() -> None:
    queues = made()
    empty = sys.getsizeof(queues)
    for first in range(0, 1_000_000, 1000):
        queues.put_new(first, array("q", [n % 997 + 1 for n in range(1000)]), [])
        queues.end(range(first, first + 990), {})
        if first % 100_000 == 0:
            queues.end(range(first + 1), {})
    assert sys.getsizeof(queues) < 200_000  # Of 2,000 records at most.
    queues.end(range(1_000_000), {})
    assert (queues.records, queues.keys) == (0, 0)
    assert sys.getsizeof(queues) == empty
