"""What becomes of a record whose handler failed: the wait, the rejection, and the reason."""

from __future__ import annotations

import pickle
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.protocol.reasons import REASON_BYTES_MAX, FailureReason
from shoal.worker import PayloadError, Reject, Rejected, Released, Retry, TimedOut
from shoal.worker.backoff import JITTER, Backoff, Duration, parse_seconds
from shoal.worker.outcomes import RemoteFailure, decide, read_reason

if TYPE_CHECKING:
    from shoal.worker.outcomes import Outcome

BACKOFF = Backoff.from_text("1s..1m")


def decide_at(error: BaseException, delivery_count: int = 1) -> Outcome:
    return decide(error, delivery_count, retries=3, backoff=BACKOFF, random=Random(1))


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("200ms", 0.2), ("5m", 300), ("PT15M", 900), (3, 3), (0.5, 0.5), (timedelta(hours=1), 3600)],
)
def test_durations(duration: Duration, seconds: float) -> None:
    assert parse_seconds(duration) == seconds


@pytest.mark.parametrize("duration", ["5", "soon", -1, float("nan"), float("inf")])
def test_no_durations(duration: Duration) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_seconds(duration)


def test_a_wait_doubles_up_to_its_maximum() -> None:
    middles = [1, 2, 4, 8, 16, 32, 60, 60]
    for n, middle in enumerate(middles, 1):
        waits = [BACKOFF.draw_wait_s(n, Random(seed)) for seed in range(200)]
        assert middle * (1 - JITTER) <= min(waits) < max(waits) <= 60
        assert max(waits) <= middle * (1 + JITTER)
    assert BACKOFF.draw_wait_s(10_000, Random(1)) <= 60


def test_one_duration_is_a_wait_that_does_not_grow() -> None:
    assert Backoff.from_text("5s") == Backoff(5, 5)
    with pytest.raises(ValueError, match="begins above its maximum"):
        Backoff.from_text("5m..1s")


def test_a_failure_is_released_until_its_retries_are_used() -> None:
    for delivery_count in (1, 2, 3):
        assert isinstance(decide_at(ValueError("x"), delivery_count), Released)
    assert isinstance(decide_at(ValueError("x"), 4), Rejected)


def test_a_handler_chooses_the_wait_or_the_rejection() -> None:
    assert decide_at(Retry(after="30s")) == Released(
        30.0, FailureReason("shoal.worker.Retry", "the handler asked for another delivery")
    )
    assert decide_at(Reject("why")) == Rejected(FailureReason("shoal.worker.Reject", "why"))
    assert isinstance(decide_at(Retry(after="30s"), 4), Rejected)
    assert isinstance(decide_at(PayloadError("no JSON")), Rejected)
    assert isinstance(decide_at(TimedOut("too long")), Released)


def test_what_a_handler_raises_crosses_processes() -> None:
    retry = pickle.loads(pickle.dumps(Retry("busy", after="2s")))
    assert (str(retry), retry.after_s) == ("busy", 2.0)
    reason = FailureReason("ValueError", "x", "trace")
    assert pickle.loads(pickle.dumps(RemoteFailure(reason))).reason == reason


def fail(depth: int) -> None:
    if depth == 0:
        raise ValueError("é" * 5_000)
    fail(depth - 1)


def test_a_reason_names_the_failed_line_and_stays_small() -> None:
    with pytest.raises(ValueError, match="é") as failed:
        fail(40)
    reason = read_reason(failed.value)
    assert reason.exception_class == "ValueError"
    assert reason.message.startswith("ééé")
    assert 'raise ValueError("é" * 5_000)' in reason.stacktrace or "é" in reason.stacktrace
    assert sum(len(part.encode()) for part in reason) <= REASON_BYTES_MAX


@given(st.text(alphabet=st.characters(codec=None)))
def test_a_reason_is_valid_text_whatever_the_message(message: str) -> None:
    reason = read_reason(Reject(message))
    assert sum(len(part.encode()) for part in reason) <= REASON_BYTES_MAX


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_exception_without_text_has_a_reason() -> None:
    assert read_reason(Mute()).message == "(its message cannot be shown: RuntimeError)"
