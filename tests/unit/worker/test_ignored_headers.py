"""Warnings of delays that a group cuts; tests/wire/test_worker_queue.py has those it ignores."""

from __future__ import annotations

import time

import pytest
from shoal.record.records import Record
from shoal.worker.group_setup import GroupFacts
from shoal.worker.ignored_headers import HeaderWatch


@pytest.mark.parametrize(
    ("delay_max_ms", "warned"),
    [
        # A worker whose clock is behind the broker's gets jobs before they are due.
        (60_000, False),
        (59_999, True),
        # The group's settings could not be read.
        (None, False),
    ],
)
def test_a_delay_that_the_group_cuts_gets_a_warning(
    delay_max_ms: int | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = time.time_ns() // 1_000_000
    delayed = Record(7, now_ms, None, b"", (("shoal.deliver.after", b"60000"),))
    HeaderWatch("g", GroupFacts(header_delay_max_ms=delay_max_ms)).check("t", 0, [delayed])
    assert ("group g had share.delay.max.ms=" in caplog.text) is warned
