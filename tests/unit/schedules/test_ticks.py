"""Which tick of a schedule is due, as for a CronJob of Kubernetes; the clock is an argument."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from croniter import croniter
from shoal.schedules import ticks
from shoal.schedules.specs import parse_schedule
from shoal.schedules.ticks import Cron, InvalidSchedule, TickDecision, TickRules, decide

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def at(text: str) -> datetime.datetime:
    """Return a time of 2026 in UTC: `03-29 01:30`, with seconds or another year if it has them."""
    text = text if text[4:5] == "-" else f"2026-{text}"
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


#: An expression, a zone, a time, and the ticks that follow.
FOLLOWING: dict[str, tuple[str, str, str, list[str]]] = {
    "each hour": ("0 * * * *", "Etc/UTC", "01-01 00:00", ["01-01 01:00", "01-01 02:00"]),
    "not the time itself": ("5 1 * * *", "Etc/UTC", "01-01 01:05", ["01-02 01:05"]),
    "a moment before": ("5 1 * * *", "Etc/UTC", "01-01 01:04:59.9", ["01-01 01:05"]),
    "a moment after": ("5 1 * * *", "Etc/UTC", "01-01 01:05:00.1", ["01-02 01:05"]),
    "a zone": ("0 3 * * *", BERLIN, "01-01 00:00", ["01-01 02:00", "01-02 02:00"]),
    "a skipped time has no tick": (
        "30 2 * * *",
        BERLIN,
        "03-27 12:00",
        ["03-28 01:30", "03-30 00:30"],
    ),
    "after a skipped hour": ("0 3 * * *", BERLIN, "03-28 12:00", ["03-29 01:00", "03-30 01:00"]),
    "a tick when the clocks change": ("0 3 29 3 *", BERLIN, "03-29 00:59", ["03-29 01:00"]),
    "a time that comes twice": (
        "30 2 * * *",
        BERLIN,
        "10-24 12:00",
        ["10-25 00:30", "10-25 01:30", "10-26 01:30"],
    ),
    "twice, in a yearly schedule": (
        "30 1 1 11 *",
        NEW_YORK,
        "10-31 00:00",
        ["11-01 05:30", "11-01 06:30", "2027-11-01 05:30"],
    ),
    "minutes through the skipped hour": (
        "*/30 * * * *",
        BERLIN,
        "03-29 00:30",
        ["03-29 01:00", "03-29 01:30"],
    ),
    "minutes through the repeated hour": (
        "*/30 * * * *",
        BERLIN,
        "10-25 00:00",
        ["10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"],
    ),
    "half an hour of daylight saving": (
        "45 1 * * *",
        "Australia/Lord_Howe",
        "04-03 18:00",
        ["04-04 14:45", "04-04 15:15", "04-05 15:15"],
    ),
    "years apart": ("0 0 29 2 *", NEW_YORK, "03-01 00:00", ["2028-02-29 05:00"]),
    "either of two days": ("0 0 13 * 5", "Etc/UTC", "02-06 12:00", ["02-13 00:00", "02-20 00:00"]),
}


@pytest.mark.parametrize(
    ("expression", "zone", "after", "ticks"), FOLLOWING.values(), ids=FOLLOWING
)
def test_the_ticks_that_follow_a_time(
    expression: str, zone: str, after: str, ticks: list[str]
) -> None:
    cron, moment = Cron(expression, zone), at(after)
    wanted = [at(tick) for tick in ticks]
    found = []
    for _ in ticks:
        moment = cron.find_next(moment)
        found.append(moment)
    assert found == wanted
    # Backwards, from just before the next one, they are the same.
    moment = cron.find_next(found[-1]) - datetime.timedelta(microseconds=1)
    for tick in reversed(wanted):
        moment = cron.find_last(moment)
        assert moment == tick
        assert cron.find_last(tick) == tick
        moment -= datetime.timedelta(seconds=1)
    assert cron.find_last(moment) <= at(after)


@pytest.mark.parametrize(
    ("expression", "zone", "words"),
    [
        ("0 3 * *", "Etc/UTC", "schedule is '0 3 [*] [*]'"),
        ("0 3 30 2 *", "Etc/UTC", "not come in 12 years"),
        ("0 3 29 2 mon#5", "Etc/UTC", "not come in 12 years"),
        ("0 3 29 2 thu#5", "Etc/UTC", "not come in 12 years"),
        ("0 3 * * * *", "Etc/UTC", "five fields"),
        ("r 3 * * *", "Etc/UTC", "not a cron expression"),
        ("0 H * * *", "Etc/UTC", "not a cron expression"),
        ("0,".rjust(200, "0") + "1 3 * * *", "Etc/UTC", "not a cron expression"),
        ("0 3 * * *", "Mars/Olympus", "timeZone is 'Mars/Olympus'"),
        ("0 3 * * *", "../etc/passwd", "timeZone is"),
    ],
)
def test_a_schedule_without_ticks_is_refused(expression: str, zone: str, words: str) -> None:
    with pytest.raises(InvalidSchedule, match=words):
        Cron(expression, zone)


def test_a_search_for_years_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over all schedules of a cluster asks each of them again."""
    searches: list[tuple[object, ...]] = []
    yearly = rules("0 0 29 2 *", jitter_s=60)

    def search(*words: Any) -> croniter:
        searches.append(words)
        return croniter(*words)

    monkeypatch.setattr(ticks, "croniter", search)
    first = decide(yearly, at("1990-01-01 00:00"), at("01-02 00:00"))
    searches.clear()
    assert decide(yearly, at("1990-01-01 00:00"), at("01-03 00:00")) == first
    assert not searches
    assert decide(yearly, at("1990-01-01 00:00"), at("2028-02-29 00:01")) != first


@pytest.mark.parametrize("field", ["startingDeadlineSeconds", "jitterSeconds"])
@pytest.mark.parametrize("seconds", [-1, 10**12, "5"])
def test_seconds_that_no_schedule_has_are_refused(field: str, seconds: object) -> None:
    """In a file, which the API server has not seen."""
    spec = {"topic": "t", "schedule": "0 * * * *", field: seconds}
    with pytest.raises(InvalidSchedule, match=f"{field} is .*Write 0 to"):
        parse_schedule({"metadata": {"name": "s"}, "spec": spec})


def rules(
    expression: str = "0 * * * *", deadline_s: int | None = None, jitter_s: int = 0
) -> TickRules:
    deadline = None if deadline_s is None else datetime.timedelta(seconds=deadline_s)
    jitter = datetime.timedelta(seconds=jitter_s)
    return TickRules(Cron(expression), "uid", deadline, jitter)


def decision(
    due: str | None, missed: int, next_tick: str, *, expired: str | None = None
) -> TickDecision:
    following = at(next_tick)
    return TickDecision(
        at(due) if due else None, missed, at(expired) if expired else None, following, following
    )


#: The rules, the tick that was produced last, the time, and what to do.
CASES: dict[str, tuple[TickRules, str, str, TickDecision]] = {
    "not yet": (rules(), "01-01 01:00", "01-01 01:59:59", decision(None, 0, "01-01 02:00")),
    "at its time": (
        rules(),
        "01-01 01:00",
        "01-01 02:00",
        decision("01-01 02:00", 1, "01-01 03:00"),
    ),
    "once": (rules(), "01-01 02:00", "01-01 02:00:01", decision(None, 0, "01-01 03:00")),
    "a clock that went back": (
        rules(),
        "01-01 05:00",
        "01-01 02:30",
        decision(None, 0, "01-01 03:00"),
    ),
    "the latest of three": (
        rules(),
        "01-01 01:00",
        "01-01 04:10",
        decision("01-01 04:00", 3, "01-01 05:00"),
    ),
    "of those since its creation": (
        rules(),
        "01-01 03:59:30",
        "01-01 04:10",
        decision("01-01 04:00", 1, "01-01 05:00"),
    ),
    "a hundred": (
        rules("* * * * *"),
        "01-01 00:00",
        "01-01 01:40",
        decision("01-01 01:40", 100, "01-01 01:41"),
    ),
    "more than a hundred": (
        rules("* * * * *"),
        "01-01 00:00",
        "01-09 01:41",
        decision("01-09 01:41", 101, "01-09 01:42"),
    ),
    "within the deadline": (
        rules(deadline_s=600),
        "01-01 01:00",
        "01-01 04:10",
        decision("01-01 04:00", 1, "01-01 05:00"),
    ),
    "after the deadline": (
        rules(deadline_s=600),
        "01-01 01:00",
        "01-01 04:10:01",
        decision(None, 0, "01-01 05:00", expired="01-01 04:00"),
    ),
    "the deadline bounds what was missed": (
        rules("* * * * *", deadline_s=180),
        "01-01 00:00",
        "01-02 00:00:30",
        decision("01-02 00:00", 3, "01-02 00:01"),
    ),
}


@pytest.mark.parametrize(("given", "settled", "now", "wanted"), CASES.values(), ids=CASES)
def test_what_is_due(given: TickRules, settled: str, now: str, wanted: TickDecision) -> None:
    assert decide(given, at(settled), at(now)) == wanted


def test_jitter_is_different_for_each_tick_and_the_same_in_each_process() -> None:
    jittered = rules(jitter_s=600)
    ticks = [at(f"01-01 {hour:02}:00") for hour in range(24)]
    delays = [(jittered.compute_due_time(tick) - tick).total_seconds() for tick in ticks]
    assert all(0 <= delay < 600 for delay in delays)
    assert len(set(delays)) == len(ticks)
    assert min(delays) < 100
    assert max(delays) > 500
    assert delays == [(rules(jitter_s=600).compute_due_time(t) - t).total_seconds() for t in ticks]


def test_a_jitter_longer_than_the_schedule_ends_before_the_next_tick() -> None:
    jittered = rules("* * * * *", jitter_s=86_400)
    for minute in range(59):
        tick = at(f"01-01 00:{minute:02}")
        assert tick <= jittered.compute_due_time(tick) < tick + datetime.timedelta(minutes=1)


def test_a_record_waits_for_its_jitter_while_an_earlier_one_is_due() -> None:
    jittered = rules(jitter_s=600)
    tick = at("01-01 04:00")
    due_time = jittered.compute_due_time(tick)
    before = due_time - datetime.timedelta(milliseconds=1)
    assert decide(jittered, at("01-01 03:00"), before) == TickDecision(
        None, 0, None, tick, due_time
    )
    missed = decide(jittered, at("01-01 01:00"), before)
    assert (missed.due, missed.missed) == (at("01-01 03:00"), 2)
    assert (missed.next_tick, missed.wake) == (tick, due_time)
    now_due = decide(jittered, at("01-01 03:00"), due_time)
    following = at("01-01 05:00")
    assert (now_due.due, now_due.missed, now_due.next_tick) == (tick, 1, following)
    assert now_due.wake == jittered.compute_due_time(following)


def test_a_schedule_that_begins_within_a_jitter_waits_for_the_next_tick() -> None:
    jittered = rules(jitter_s=600)
    tick, following = at("01-01 04:00"), at("01-01 05:00")
    begun = tick + datetime.timedelta(milliseconds=1)
    assert begun < jittered.compute_due_time(tick)
    due_time = jittered.compute_due_time(following)
    assert decide(jittered, begun, begun) == TickDecision(None, 0, None, following, due_time)


def test_the_deadline_begins_after_the_jitter() -> None:
    jittered = rules(deadline_s=10, jitter_s=3_600)
    tick = at("01-01 04:00")
    last = jittered.compute_due_time(tick) + datetime.timedelta(seconds=10)
    assert last < tick + datetime.timedelta(hours=1), "the case is not about two ticks"
    assert decide(jittered, at("01-01 03:00"), last).due == tick
    late = decide(jittered, at("01-01 03:00"), last + datetime.timedelta(milliseconds=1))
    assert (late.due, late.expired) == (None, tick)
