"""Schedules of a ShareConsumer (`spec.scaling.schedules`): bounds that hold at some times. Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from croniter import croniter
from shoal.schedules.ticks import is_cron

from shoal_operator.model import field_defaults
from shoal_operator.model.quantities import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_operator.model.resources.share_consumer import (
        ShareConsumerSpecScalingSchedules,
    )


class ReplicaBounds(NamedTuple):
    """The bounds of the number of consumers, and the names of the schedules that set them."""

    replicas_min: int
    replicas_max: int
    schedules: tuple[str, ...] = ()


def find_problem(schedules: Sequence[ShareConsumerSpecScalingSchedules]) -> str:
    """Return what is wrong with the schedules as a sentence; empty if they are valid."""
    for number, schedule in enumerate(schedules):
        path = f"spec.scaling.schedules[{number}]"
        for field in ("start", "end"):
            if field in schedule and not is_cron(schedule[field]):
                return (
                    f"{path}.{field} is {schedule[field]!r}, which is not a cron expression of "
                    "five fields, or never comes. Write it as in `0 8 * * 1-5`."
                )
        try:
            _get_zone(schedule)
        except (KeyError, ValueError, OSError):
            return (
                f"{path}.timeZone is {schedule['timeZone']!r}, which is not a time zone of the "
                "IANA database. Write it as in `Europe/Berlin`."
            )
    return ""


def _get_zone(schedule: ShareConsumerSpecScalingSchedules) -> ZoneInfo:
    return ZoneInfo(field_defaults.fill(schedule, field_defaults.SCHEDULE)["timeZone"])


def is_active(schedule: ShareConsumerSpecScalingSchedules, now: datetime.datetime) -> bool:
    """Return whether `now`, an aware time, is between a start and the end that follows it."""
    local = now.astimezone(_get_zone(schedule))
    # croniter returns times before its argument only, and cron has whole minutes.
    after = local + datetime.timedelta(seconds=1)
    began: datetime.datetime = croniter(schedule["start"], after).get_prev(datetime.datetime)
    if "duration" in schedule:
        return (now - began).total_seconds() * 1000 < parse_duration_ms(schedule["duration"])
    ended: datetime.datetime = croniter(schedule["end"], after).get_prev(datetime.datetime)
    return began > ended


def compute_bounds(
    schedules: Sequence[ShareConsumerSpecScalingSchedules],
    now: datetime.datetime,
    replicas_min: int,
    replicas_max: int,
) -> ReplicaBounds:
    """Return the bounds at `now`: those of the active schedules, otherwise the given ones.

    Of several active schedules, the highest `minReplicas` and the highest `maxReplicas` count. A
    minimum above the maximum raises the maximum.
    """
    active = [schedule for schedule in schedules if is_active(schedule, now)]
    low = max((s["minReplicas"] for s in active if "minReplicas" in s), default=replicas_min)
    high = max((s["maxReplicas"] for s in active if "maxReplicas" in s), default=replicas_max)
    if any("minReplicas" in s for s in active):
        high = max(high, low)
    return ReplicaBounds(min(low, high), high, tuple(s["name"] for s in active))
