"""Hints on queues that look empty or stuck and are not: delayed and left-behind records."""

from __future__ import annotations

import pytest
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import skipped_records
from shoal.client.queues.lag import Position
from shoal.monitoring import delays
from shoal.monitoring.scrape import ShareNumbers

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("depth", "numbers", "is_delayed"),
    [
        (2, ShareNumbers(delayed=2), True),
        (3, ShareNumbers(delayed=2, backing_off=1), True),
        (3, ShareNumbers(delayed=2), False),
        (1, ShareNumbers(backing_off=1), False),
        (0, ShareNumbers(), False),
        (None, ShareNumbers(delayed=1), False),
    ],
)
def test_a_queue_is_delayed_if_nothing_else_is_in_it(
    depth: int | None, numbers: ShareNumbers, is_delayed: bool
) -> None:
    assert delays.is_only_delayed(depth, numbers) is is_delayed


@pytest.mark.parametrize(
    ("due_s", "says"),
    [
        (1_700_000_090.9, "The next one is due at 2023-11-14T22:14:50Z, in 1 min 30 s."),
        (1_700_007_320.0, "The next one is due at 2023-11-15T00:15:20Z, in 2 h 2 min."),
        (1_699_999_999.0, "The next one is due now."),
        (None, "When the next one is due is not known."),
    ],
)
def test_the_next_due_time(due_s: float | None, says: str) -> None:
    numbers = ShareNumbers(delayed=2, backing_off=1, next_due_s=due_s)
    assert delays.describe(numbers, 1_700_000_000_000) == (
        f"No record can be delivered yet: 2 are delayed and 1 is in retry back-off. {says}"
    )


def test_the_first_of_several_partitions_is_due_next() -> None:
    total = ShareNumbers()
    for due_s in (None, 20.0, 10.0):
        total.add(ShareNumbers(next_due_s=due_s))
    assert total.next_due_s == 10.0


def test_a_partition_that_no_broker_has_loaded_is_unknown() -> None:
    loaded = {("g", ONE): ShareNumbers()}
    assert delays.is_known("g", [Position(ONE, 0, 5, 5), Position(OTHER, 5, 5, 0)], loaded)
    assert not delays.is_known("g", [Position(ONE, 0, 5, 5), Position(OTHER, 0, 5, 5)], loaded)


def test_records_before_a_position() -> None:
    positions = [Position(ONE, 7, 9, 2), Position(OTHER, 4, 4, 0)]
    assert skipped_records.count_before({ONE: 2, OTHER: 1}, positions) == {"t": 8}
    assert skipped_records.count_before({ONE: 7, OTHER: 4}, positions) == {}
    assert skipped_records.count_before({}, positions) == {}
    assert skipped_records.count_before({ONE: 0}, [Position(ONE, None, 9, None)]) == {}


def test_a_command_quotes_the_group() -> None:
    for said in (
        skipped_records.say_left_behind("my group", "t", 1),
        skipped_records.say_perhaps_left_behind("my group", "t", 1),
    ):
        assert "`shoal groups reset-offsets 'my group' -t t --to-earliest" in said
