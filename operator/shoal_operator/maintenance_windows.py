"""Maintenance windows: whether one is open."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from croniter import croniter

from shoal_operator.quantities import duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def is_open(windows: Sequence[Mapping[str, Any]], now: datetime.datetime) -> bool:
    """Whether brokers may be restarted at `now` (with time zone). No windows: always.

    A schedule that is no cron expression counts as never open; the schema lets few through.
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
