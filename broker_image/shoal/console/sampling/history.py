"""An hour of each queue's numbers in memory, and rates from them.

A queue has at most `POINTS_MAX` points. A new point replaces the last one while that one is less
than `STEP_S` after the one before. The times are those of a monotonic clock.
"""

from __future__ import annotations

from array import array
from math import isnan, nan
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

STEP_S = 10.0
POINTS_MAX = 361
#: Queues with a history. Each needs about 20 kB at most.
QUEUES_MAX = 5_000
#: A rate is measured over about this period.
RATE_S = 20.0


class Point(NamedTuple):
    """One queue at one time. Numbers are nan if they are unknown; the last three are counters."""

    at_s: float
    depth: float
    in_flight: float
    produced: float
    done: float
    letters: float


class Hour(NamedTuple):
    """The last hour of one queue, for its charts: times, oldest first, and what each has.

    `end_s` is the time of the right edge, by the same clock. Numbers are nan if they are unknown;
    the rates are records per second.
    """

    end_s: float
    times: Sequence[float]
    depth: Sequence[float]
    in_flight: Sequence[float]
    rate_in: Sequence[float]
    rate_out: Sequence[float]


class Series:
    """The points of one queue, oldest first."""

    def __init__(self) -> None:
        self._columns = tuple(array("d") for _ in Point._fields)

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, point: Point) -> None:
        """Add a point that is newer than all others."""
        times = self._columns[0]
        replace = len(times) > 1 and times[-1] - times[-2] < STEP_S
        for column, value in zip(self._columns, point, strict=True):
            if replace:
                column[-1] = value
            else:
                column.append(value)
                if len(column) > POINTS_MAX:
                    del column[0]

    def get_points(self) -> list[Point]:
        return [Point(*row) for row in zip(*self._columns, strict=True)]

    def get_column(self, name: str) -> list[float]:
        return list(self._columns[Point._fields.index(name)])

    def compute_rate(self, counter: str) -> float | None:
        """Return a counter's increase per second over the last `RATE_S` or so.

        None if there are not two points, or if the counter is unknown or has gone back.
        """
        times, values = self._columns[0], self._columns[Point._fields.index(counter)]
        if len(times) < 2:
            return None
        index = len(times) - 2
        while index and times[-1] - times[index] < RATE_S:
            index -= 1
        seconds, increase = times[-1] - times[index], values[-1] - values[index]
        return None if isnan(increase) or increase < 0 or seconds <= 0 else increase / seconds

    def compute_rates(self, counter: str) -> list[float]:
        """Return the increase per second at each point since the one before; nan if unknown."""
        times, values = self._columns[0], self._columns[Point._fields.index(counter)]
        increases = [nan]
        for index in range(1, len(times)):
            increase, seconds = values[index] - values[index - 1], times[index] - times[index - 1]
            increases.append(increase / seconds if increase >= 0 and seconds > 0 else nan)
        return increases[: len(times)]

    def make_hour(self, now_s: float) -> Hour:
        """Return what the charts of a queue show."""
        return Hour(
            now_s,
            self.get_column("at_s"),
            self.get_column("depth"),
            self.get_column("in_flight"),
            self.compute_rates("produced"),
            self.compute_rates("done"),
        )

    def measure_unchanged_s(self, counter: str) -> float:
        """Return for how long a counter has had its last value, as far as points show it."""
        times, values = self._columns[0], self._columns[Point._fields.index(counter)]
        if not times or isnan(values[-1]):
            return 0.0
        index = len(times) - 1
        while index and values[index - 1] == values[-1]:
            index -= 1
        return times[-1] - times[index]


class QueueHistory:
    """The series of all queues by share group and topic."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def add(self, key: tuple[str, str], point: Point) -> None:
        """Add a point. A queue above `QUEUES_MAX` gets no history."""
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= QUEUES_MAX:
                return
            series = self._series[key] = Series()
        series.add(point)

    def keep(self, keys: set[tuple[str, str]]) -> None:
        """Forget the queues that are not among these."""
        for key in self._series.keys() - keys:
            del self._series[key]

    def get_series(self, group: str, topic: str) -> Series:
        """Return a queue's series; an empty one if it has none."""
        return self._series.get((group, topic), _EMPTY)


_EMPTY = Series()
