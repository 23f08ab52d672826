"""Maintenance windows (`spec.maintenanceWindows`). Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from croniter import croniter
from shoal.schedules.ticks import is_cron

from shoal_operator.model.quantities import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_operator.model.queue_cluster import MaintenanceWindow


def find_problem(windows: Sequence[MaintenanceWindow]) -> str:
    """Return what is wrong with the windows as a sentence; empty if they are valid."""
    for number, window in enumerate(windows):
        if not is_cron(window["schedule"]):
            return (
                f"spec.maintenanceWindows[{number}].schedule is {window['schedule']!r}, which is "
                "not a cron expression of five fields, or never comes. Write it as in `0 2 * * 6`."
            )
    return ""


def find_next_begin(windows: Sequence[MaintenanceWindow], now: datetime.datetime) -> str:
    """Return when the next of these valid windows begins after `now`, an aware time, as RFC 3339
    in UTC; empty while one is open, and without windows."""
    if is_open(windows, now):
        return ""
    begins = (croniter(window["schedule"], now).get_next(datetime.datetime) for window in windows)
    return min(begins).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_open(windows: Sequence[MaintenanceWindow], now: datetime.datetime) -> bool:
    """Return whether a window is open at `now`, an aware time; without windows, always.

    A window with an invalid cron expression is never open.
    """
    if not windows:
        return True
    for window in windows:
        if not is_cron(window["schedule"]):
            continue
        began = croniter(window["schedule"], now).get_prev(datetime.datetime)
        if (now - began).total_seconds() * 1000 < parse_duration_ms(window["duration"]):
            return True
    return False
