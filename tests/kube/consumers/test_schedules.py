"""Bounds of consumers at some times: cron expressions, time zones, and what is refused."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal_operator.consumers.reconciler import build_policy
from shoal_operator.consumers.scaling import GroupLoad, ScalingHistory, decide
from shoal_operator.model.consumers.schedules import compute_bounds, find_problem, is_active

OFFICE: Any = {
    "name": "office",
    "start": "0 8 * * 1-5",
    "end": "0 18 * * 1-5",
    "timeZone": "Europe/Berlin",
    "minReplicas": 2,
}
NIGHT: Any = {"name": "night", "start": "0 22 * * *", "duration": "6h", "maxReplicas": 3}


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("schedule", "time", "active"),
    [
        # A Wednesday in winter: Berlin is an hour ahead of UTC.
        (OFFICE, "2026-01-14T06:59:59Z", False),
        (OFFICE, "2026-01-14T07:00:00Z", True),
        (OFFICE, "2026-01-14T16:59:59Z", True),
        (OFFICE, "2026-01-14T17:00:00Z", False),
        (OFFICE, "2026-01-17T10:00:00Z", False),
        # In summer it is two hours ahead.
        (OFFICE, "2026-07-15T06:00:00Z", True),
        (OFFICE, "2026-07-15T05:59:59Z", False),
        # The clocks of Berlin change on 29 March at 01:00 UTC, a Sunday.
        (OFFICE, "2026-03-30T06:00:00Z", True),
        (OFFICE, "2026-03-30T05:59:59Z", False),
        (NIGHT, "2026-01-14T21:59:59Z", False),
        (NIGHT, "2026-01-14T22:00:00Z", True),
        (NIGHT, "2026-01-15T03:59:59Z", True),
        (NIGHT, "2026-01-15T04:00:00Z", False),
    ],
)
def test_a_schedule_is_active_from_its_start_to_its_end(
    schedule: Any, time: str, active: bool
) -> None:
    assert is_active(schedule, at(time)) is active


def test_bounds_of_active_schedules_replace_those_of_the_spec() -> None:
    day, night = at("2026-01-14T12:00:00Z"), at("2026-01-14T23:00:00Z")
    assert compute_bounds([OFFICE, NIGHT], day, 0, 10) == (2, 10, ("office",))
    assert compute_bounds([OFFICE, NIGHT], night, 0, 10) == (0, 3, ("night",))
    assert compute_bounds([OFFICE, NIGHT], at("2026-01-14T19:00:00Z"), 0, 10) == (0, 10, ())
    # A minimum above the maximum raises it: the work of the day is not held at ten.
    assert compute_bounds([OFFICE | {"minReplicas": 12}], day, 0, 10) == (12, 12, ("office",))
    more: Any = {**OFFICE, "name": "campaign", "minReplicas": 5, "maxReplicas": 40}
    assert compute_bounds([OFFICE, more], day, 0, 10) == (5, 40, ("office", "campaign"))


def test_a_minimum_starts_consumers_without_lag_and_its_end_removes_them() -> None:
    spec: Any = {"scaling": {"minReplicas": 0, "scaleToZeroAfter": "1m", "schedules": [OFFICE]}}
    history, current, found = ScalingHistory(), 0, []
    for time in ("06:59", "07:00", "16:59", "17:00", "17:01", "17:02"):
        now = at(f"2026-01-14T{time}:00Z")
        now_ms = int(now.timestamp() * 1000)
        decision = decide(build_policy(spec, now), GroupLoad(0, 2, 2000), current, history, now_ms)
        current = decision.replicas
        found.append(current)
    assert found == [0, 2, 2, 2, 0, 0], "after the cooldown of a minute"
    assert (
        "office"
        in decide(
            build_policy(spec, at("2026-01-14T10:00:00Z")),
            GroupLoad(0, 2, 2000),
            0,
            ScalingHistory(),
            0,
        ).reason
    )


def test_executors_have_schedules_too() -> None:
    spark = {
        "minExecutors": 0,
        "maxExecutors": 4,
        "coresPerExecutor": 1,
        "maxRecordsPerTrigger": 10_000,
    }
    spec: Any = {"spark": spark, "scaling": {"schedules": [OFFICE | {"maxReplicas": 9}]}}
    found = build_policy(spec, at("2026-01-14T12:00:00Z"))
    assert (found.replicas_min, found.replicas_max) == (2, 9)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"start": "0 25 * * *"}, "schedules[0].start is '0 25 * * *'"),
        ({"end": "often"}, "schedules[0].end is 'often'"),
        ({"timeZone": "Mars/Olympus"}, "schedules[0].timeZone is 'Mars/Olympus'"),
        ({"timeZone": "../../etc/passwd"}, "schedules[0].timeZone"),
    ],
)
def test_what_the_schema_cannot_check_is_refused(changed: dict[str, str], words: str) -> None:
    assert find_problem([OFFICE, NIGHT]) == ""
    assert words in find_problem([OFFICE | changed])


@given(st.datetimes(timezones=st.just(datetime.UTC), min_value=datetime.datetime(2020, 1, 1)))
def test_a_schedule_by_duration_and_one_by_end_agree(now: datetime.datetime) -> None:
    by_end: Any = {**OFFICE, "timeZone": "Etc/UTC"}
    by_duration: Any = {k: v for k, v in by_end.items() if k != "end"} | {"duration": "10h"}
    assert is_active(by_end, now) == is_active(by_duration, now)
