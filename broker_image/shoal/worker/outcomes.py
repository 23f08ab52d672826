"""How a job ends: what a handler raises, why it failed, and what becomes of the record.

A handler that returns accepts its record. `Retry` and `Reject` are exceptions that a handler raises
on purpose; any other exception is a failure, which `decide` turns into a release with a back-off,
or into a rejection once all retries are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.reasons import FailureReason
from shoal.worker.backoff import Backoff, Duration, parse_seconds

if TYPE_CHECKING:
    from random import Random


class Retry(Exception):
    """Raise it to get the record again. `after` is the wait, the handler's back-off by default.
    `code` is a word or number of yours for programs."""

    def __init__(self, reason: str = "", *, after: Duration | None = None, code: str = "") -> None:
        self.after_s = None if after is None else parse_seconds(after)
        self.code = code
        super().__init__(reason or "the handler asked for another delivery")

    def __reduce__(self) -> tuple[object, ...]:
        return _make_retry, (str(self), self.after_s, self.code)


def _make_retry(reason: str, after_s: float | None, code: str) -> Retry:
    return Retry(reason, after=after_s, code=code)


class Reject(Exception):
    """Raise it to send the record to the dead letters at once, with this reason. `code` is a word
    or number of yours for programs."""

    def __init__(self, reason: str = "", *, code: str = "") -> None:
        self.code = code
        super().__init__(reason)


class PayloadError(ValueError):
    """A payload that cannot be decoded. Its record is rejected: another try would fail, too."""


class JobLost(RuntimeError):
    """The record no longer belongs to this worker: its time is over, or its lock has ended."""


class JobCancelled(RuntimeError):
    """Somebody has cancelled the record for the group: it is not delivered again."""


class TimedOut(TimeoutError):
    """The handler ran longer than its `timeout`."""


#: Where programs import them from, which is what a reason names.
for _exception in (Retry, Reject, PayloadError, JobLost, TimedOut):
    _exception.__module__ = "shoal.worker"


class RemoteFailure(Exception):
    """An exception of a handler in another process, which is known by its reason alone."""

    def __init__(self, reason: FailureReason) -> None:
        self.reason = reason
        super().__init__(str(reason))

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteFailure, (self.reason,)


class Accepted(NamedTuple):
    """The record is finished. `result` is what the handler returned."""

    result: object = None


class Released(NamedTuple):
    """The record is delivered again after `delay_s`, to any member of the group."""

    delay_s: float
    reason: FailureReason


class Rejected(NamedTuple):
    """The record goes to the dead letters, or is dropped if the group has none."""

    reason: FailureReason


Outcome = Accepted | Released | Rejected


def read_reason(error: BaseException) -> FailureReason:
    """Return why a handler failed. What it raises on purpose, and its time limit, have no
    traceback that says more."""
    if isinstance(error, RemoteFailure):
        return error.reason
    if isinstance(error, Retry | Reject):
        return FailureReason.from_exception(error, trace=False, code=str(error.code))
    return FailureReason.from_exception(error, trace=not isinstance(error, TimedOut))


def decide(
    error: BaseException, delivery_count: int, *, retries: int, backoff: Backoff, random: Random
) -> Released | Rejected:
    """Return what becomes of a record whose handler raised `error` at this delivery."""
    reason = read_reason(error)
    if isinstance(error, Reject | PayloadError) or delivery_count > retries:
        return Rejected(reason)
    if isinstance(error, Retry) and error.after_s is not None:
        return Released(error.after_s, reason)
    return Released(backoff.draw_wait_s(delivery_count, random), reason)
