"""The ticks of a cron expression in a time zone, and which of them is due. Pure.

An instant is a tick if the wall clock of the zone shows a time then that the expression matches. So
a time that the clocks skip in spring has no tick, and one that they show twice in autumn has two,
as for a CronJob of Kubernetes.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from croniter import CroniterError, croniter

#: A schedule that has missed more ticks than this has probably a wrong clock or deadline
#: (Kubernetes, "CronJob limitations").
MISSED_MAX = 100
#: A date is on the same day of the week at least once in this many years.
GAP_YEARS_MAX = 12
#: As in the definition of QueueSchedules.
EXPRESSION_CHARS_MAX = 128
#: Cron has whole minutes, so this is between two of its times.
_SECOND = datetime.timedelta(seconds=1)
_SOME_TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
#: The clocks of a zone change at most once within this many seconds.
_STEP_S = 86_400
#: Ticks of which the following one is kept: those that `decide` asks for again.
_FOLLOWING_KEPT = 8


class InvalidSchedule(ValueError):
    """A schedule that has no ticks; the message names the field and the remedy."""


def is_cron(expression: str) -> bool:
    """Return whether a cron expression is valid, and its time comes within `GAP_YEARS_MAX`.

    February has no 30th day, and its 29th is a Monday once in 28 years: a long search.
    """
    if len(expression) > EXPRESSION_CHARS_MAX or len(expression.split()) != 5:
        return False
    # For croniter, these are a hash and a random number.
    if any(part[:1] in ("h", "r") for part in re.split(r"[\s,]", expression.lower())):
        return False
    try:
        times = croniter(expression, _SOME_TIME, max_years_between_matches=GAP_YEARS_MAX)
        times.get_prev(datetime.datetime)
        times.set_current(_SOME_TIME, force=True)
        times.get_next(datetime.datetime)
    except (CroniterError, KeyError, ValueError):
        return False
    return True


class Cron:
    """A cron expression of five fields in a time zone. Times are aware, and ticks are in UTC."""

    def __init__(self, expression: str, time_zone: str = "Etc/UTC") -> None:
        """`time_zone` is a name of the IANA database. Raises `InvalidSchedule`."""
        if not is_cron(expression):
            raise InvalidSchedule(
                f"schedule is {expression!r}, which is not a cron expression of five fields, or "
                f"does not come in {GAP_YEARS_MAX} years. Write it as in `0 8 * * 1-5`."
            )
        try:
            self._zone = ZoneInfo(time_zone)
        except (KeyError, ValueError, OSError):
            raise InvalidSchedule(
                f"timeZone is {time_zone!r}, which is not a time zone of the IANA database. Write "
                "it as in `Europe/Berlin`."
            ) from None
        self.expression, self.time_zone = expression, time_zone
        #: Two ticks without another one between them, to which most searches come. Years may lie
        #: between them, and then a search takes tens of milliseconds.
        self._gap = (_SOME_TIME, _SOME_TIME)
        self._find_following = lru_cache(_FOLLOWING_KEPT)(self._search_next)
        #: A tick that has to wait is counted again and again.
        self.count_missed = lru_cache(1)(self._count_missed)

    def find_next(self, after: datetime.datetime) -> datetime.datetime:
        """Return the first tick later than `after`."""
        last, following = self._gap
        return following if last <= after < following else self._find_following(after)

    def find_last(self, until: datetime.datetime) -> datetime.datetime:
        """Return the last tick that is not later than `until`."""
        last, following = self._gap
        if not last <= until < following:
            last = self.search_last(until)
            self._gap = (last, self._search_next(last))
        return last

    def _search_next(self, after: datetime.datetime) -> datetime.datetime:
        moment = int(after.timestamp())
        wall = moment + self._get_offset_s(moment)
        while True:
            offset_s = self._get_offset_s(moment)
            tick = int(croniter(self.expression, wall).get_next(float)) - offset_s
            change = self._find_first_change(moment, tick)
            if change is None:
                return datetime.datetime.fromtimestamp(tick, datetime.UTC)
            # The clocks change before this tick, so search again from the time that they show then.
            moment = change
            wall = change + self._get_offset_s(change) - 1

    def search_last(self, until: datetime.datetime) -> datetime.datetime:
        """Return what `find_last` does, of a tick that nobody asks for again."""
        moment = int(until.timestamp())
        while True:
            offset_s = self._get_offset_s(moment)
            tick = int(croniter(self.expression, moment + offset_s + 1).get_prev(float)) - offset_s
            change = self._find_last_change(tick, moment)
            if change is None:
                return datetime.datetime.fromtimestamp(tick, datetime.UTC)
            moment = change - 1

    def _count_missed(self, latest: datetime.datetime, begin: datetime.datetime) -> int:
        """Return the number of ticks after `begin` until `latest`, which counts in any case, and
        `MISSED_MAX` + 1 at most."""
        tick = latest
        for missed in range(1, MISSED_MAX + 1):
            tick = self.search_last(tick - _SECOND)
            if tick <= begin:
                return missed
        return MISSED_MAX + 1

    def _get_offset_s(self, moment: int) -> int:
        """Return how far the wall clock is ahead of UTC, in seconds; `moment` is since 1970."""
        offset = datetime.datetime.fromtimestamp(moment, self._zone).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())

    def _find_first_change(self, low: int, high: int) -> int | None:
        """Return when the offset changes first after `low` until `high`, None if it does not."""
        while low < high:
            above = min(low + _STEP_S, high)
            if self._get_offset_s(above) != self._get_offset_s(low):
                return self._bisect(low, above)
            low = above
        return None

    def _find_last_change(self, low: int, high: int) -> int | None:
        """Return when the offset changes last after `low` until `high`, None if it does not."""
        while low < high:
            below = max(high - _STEP_S, low)
            if self._get_offset_s(below) != self._get_offset_s(high):
                return self._bisect(below, high)
            high = below
        return None

    def _bisect(self, low: int, high: int) -> int:
        """Return the first second after `low` with the offset of `high`."""
        offset_s = self._get_offset_s(high)
        while high - low > 1:
            middle = (low + high) // 2
            if self._get_offset_s(middle) == offset_s:
                high = middle
            else:
                low = middle
        return high


@dataclass(frozen=True, slots=True)
class TickRules:
    """When a schedule has ticks, and how late their records may be.

    `deadline` is how long after its time a record may still be produced; None means any time. A
    record is produced up to `jitter` after its tick, at a moment that `seed` and the tick decide,
    so that every process chooses the same one.
    """

    cron: Cron
    seed: str
    deadline: datetime.timedelta | None = None
    jitter: datetime.timedelta = datetime.timedelta(0)

    def compute_due_time(self, tick: datetime.datetime) -> datetime.datetime:
        """Return when the record of a tick is produced: before the next tick in any case."""
        if not self.jitter:
            return tick
        span = min(self.jitter, self.cron.find_next(tick) - tick)
        digest = hashlib.sha256(f"{self.seed} {format_tick(tick)}".encode()).digest()
        share = int.from_bytes(digest[:8], "big") / 2**64
        return tick + span * share


class TickDecision(NamedTuple):
    """What to do at a time.

    The record of the tick `due` is produced now, None for none; it stands for `missed` ticks,
    itself among them, at most `MISSED_MAX` + 1. The deadline of the tick `expired` is over.
    `next_tick` is the next one to come, and `wake` the time to decide again.
    """

    due: datetime.datetime | None
    missed: int
    expired: datetime.datetime | None
    next_tick: datetime.datetime
    wake: datetime.datetime


def decide(rules: TickRules, settled: datetime.datetime, now: datetime.datetime) -> TickDecision:
    """Return what to do at `now`, if all ticks until `settled` are done.

    Of several ticks that were missed, only the latest gets a record, unless its deadline is over
    (Kubernetes, "CronJob limitations"). `settled` is the tick produced last or, before the first
    one, when the schedule was created.
    """
    latest = rules.cron.find_last(now)
    if latest > settled and rules.compute_due_time(latest) > now:
        # Its jitter is not over. The ticks before it are due, as no jitter reaches the next tick.
        next_tick, latest = latest, rules.cron.find_last(latest - _SECOND)
    else:
        next_tick = rules.cron.find_next(now)
    wake = rules.compute_due_time(next_tick)
    if latest <= settled:
        return TickDecision(None, 0, None, next_tick, wake)
    begin = settled
    if rules.deadline is not None:
        if rules.compute_due_time(latest) + rules.deadline < now:
            return TickDecision(None, 0, latest, next_tick, wake)
        begin = max(settled, now - rules.deadline)
    missed = rules.cron.count_missed(latest, begin)
    return TickDecision(latest, missed, None, next_tick, wake)


def format_tick(tick: datetime.datetime) -> str:
    """Return a tick as RFC 3339 in UTC, as in `2026-03-29T01:00:00Z`."""
    return tick.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_tick(text: str) -> datetime.datetime:
    """Return the time of an RFC 3339 text."""
    return datetime.datetime.fromisoformat(text)
