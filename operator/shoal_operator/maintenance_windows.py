"""Maintenance windows (`spec.maintenanceWindows`). Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from croniter import croniter

from shoal_operator.quantities import duration_ms
from shoal_operator.schedules import is_cron

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def problem(windows: Sequence[Mapping[str, Any]]) -> str:
    """Return what is wrong with the windows as a sentence; empty if they are valid."""
    for number, window in enumerate(windows):
        if not is_cron(window["schedule"]):
            return (
                f"spec.maintenanceWindows[{number}].schedule is {window['schedule']!r}, which is "
                "not a cron expression of five fields, or never comes. Write it as in `0 2 * * 6`."
            )
    return ""


def next_begin(windows: Sequence[Mapping[str, Any]], now: datetime.datetime) -> str:
    """Return when the next of these valid windows begins after `now`, an aware time, as RFC 3339
    in UTC; empty while one is open, and without windows."""
    if is_open(windows, now):
        return ""
    begins = (croniter(one["schedule"], now).get_next(datetime.datetime) for one in windows)
    return min(begins).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_open(windows: Sequence[Mapping[str, Any]], now: datetime.datetime) -> bool:
    """Return whether a window is open at `now`, an aware time; without windows, always.

    A window with an invalid cron expression is never open.
    """
    if not windows:
        return True
    for window in windows:
        if not is_cron(window["schedule"]):
            continue
        began = croniter(window["schedule"], now).get_prev(datetime.datetime)
        if (now - began).total_seconds() * 1000 < duration_ms(window["duration"]):
            return True
    return False
