"""Schedules of a ShareConsumer (`spec.scaling.schedules`): bounds that hold at some times. Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from croniter import CroniterError, croniter

from shoal_operator.model import assumed
from shoal_operator.quantities import duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOME_TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Bounds(NamedTuple):
    """The bounds of the number of consumers, and the names of the schedules that set them."""

    replicas_min: int
    replicas_max: int
    schedules: tuple[str, ...] = ()


def is_cron(expression: str) -> bool:
    """Return whether a cron expression is valid, and its time comes at all: February has no 30th
    day."""
    try:
        croniter(expression, SOME_TIME).get_prev(datetime.datetime)
    except (CroniterError, KeyError, ValueError):
        return False
    return len(expression.split()) == 5


def problem(schedules: Sequence[Mapping[str, Any]]) -> str:
    """Return what is wrong with the schedules as a sentence; empty if they are valid."""
    for number, one in enumerate(schedules):
        where = f"spec.scaling.schedules[{number}]"
        for field in ("start", "end"):
            if field in one and not is_cron(one[field]):
                return (
                    f"{where}.{field} is {one[field]!r}, which is not a cron expression of "
                    "five fields, or never comes. Write it as in `0 8 * * 1-5`."
                )
        try:
            _zone(one)
        except (KeyError, ValueError, OSError):
            return (
                f"{where}.timeZone is {one['timeZone']!r}, which is not a time zone of the IANA "
                "database. Write it as in `Europe/Berlin`."
            )
    return ""


def _zone(schedule: Mapping[str, Any]) -> ZoneInfo:
    return ZoneInfo(assumed.fill(schedule, assumed.SCHEDULE)["timeZone"])


def is_active(schedule: Mapping[str, Any], now: datetime.datetime) -> bool:
    """Return whether `now`, an aware time, is between a start and the end that follows it."""
    local = now.astimezone(_zone(schedule))
    # croniter returns times before its argument only, and cron has whole minutes.
    after = local + datetime.timedelta(seconds=1)
    began: datetime.datetime = croniter(schedule["start"], after).get_prev(datetime.datetime)
    if "duration" in schedule:
        return (now - began).total_seconds() * 1000 < duration_ms(schedule["duration"])
    ended: datetime.datetime = croniter(schedule["end"], after).get_prev(datetime.datetime)
    return began > ended


def bounds(
    schedules: Sequence[Mapping[str, Any]],
    now: datetime.datetime,
    replicas_min: int,
    replicas_max: int,
) -> Bounds:
    """Return the bounds at `now`: those of the active schedules, otherwise the given ones.

    Of several active schedules, the highest `minReplicas` and the highest `maxReplicas` count. A
    minimum above the maximum raises the maximum.
    """
    active = [one for one in schedules if is_active(one, now)]
    low = max((s["minReplicas"] for s in active if "minReplicas" in s), default=replicas_min)
    high = max((s["maxReplicas"] for s in active if "maxReplicas" in s), default=replicas_max)
    if any("minReplicas" in s for s in active):
        high = max(high, low)
    return Bounds(min(low, high), high, tuple(s["name"] for s in active))
