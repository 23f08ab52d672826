"""Maintenance windows (`spec.maintenanceWindows`). Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from croniter import croniter

from shoal_operator.quantities import duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def is_open(windows: Sequence[Mapping[str, Any]], now: datetime.datetime) -> bool:
    """Return whether a window is open at `now`, an aware time; without windows, always.

    A window with an invalid cron expression, which the schema does not catch, is never open.
    """
    if not windows:
        return True
    for window in windows:
        if not croniter.is_valid(window["schedule"]):
            continue
        began = croniter(window["schedule"], now).get_prev(datetime.datetime)
        if (now - began).total_seconds() * 1000 < duration_ms(window["duration"]):
            return True
    return False
