"""The bench counts only work that was done once and without error: each check of
bench/load_checks.py fails on a planted error."""

from __future__ import annotations

from typing import Any

import cramjam
import load_checks
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from load_checks import LoadFailed


def record(offset: int, value: bytes = b"v", partition: int = 0, error: int | None = None) -> Any:
    found = KafkaError(error) if error is not None else None
    return Message(topic="t", partition=partition, offset=offset, value=value, error=found)


class Shared:
    """A record with a delivery count. librdkafka's Message cannot be constructed with one."""

    def __init__(self, offset: int, delivery_count: int) -> None:
        self._offset, self._count = offset, delivery_count

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self._offset

    def partition(self) -> int:
        return 0

    def delivery_count(self) -> int:
        return self._count


def sent_of(*values: bytes) -> Any:
    sent = load_checks.Sent()
    for value in values:
        sent.note(0, value)
        sent(None, None)
    return sent


def test_records_that_came_once_and_unchanged_pass() -> None:
    sent, stored = sent_of(b"a", b"b"), load_checks.Stored()
    sent.check(left=0)
    stored.add([record(0, b"a"), record(1, b"b")])
    stored.check(sent)


@pytest.mark.parametrize(
    ("left", "error", "acknowledged", "message"),
    [
        (1, None, 1, "1 of 2 records are acknowledged"),
        (0, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), 1, "1 of 2 records failed"),
        (0, None, 1, "1 of 2 records are acknowledged"),
    ],
    ids=["still queued", "delivery error", "no delivery report"],
)
def test_a_producer_fails_unless_all_is_acknowledged(
    left: int, error: Any, acknowledged: int, message: str
) -> None:
    sent = load_checks.Sent()
    sent.note(0, b"v", times=2)
    for _ in range(acknowledged):
        sent(None, None)
    if error:
        sent(error, None)
    with pytest.raises(LoadFailed, match=message):
        sent.check(left)


def test_a_consumers_error_is_no_record() -> None:
    taken = load_checks.Taken()
    with pytest.raises(LoadFailed, match="a consumer got an error"):
        taken.add([record(0), record(1, error=KafkaError.OFFSET_OUT_OF_RANGE)])
    assert taken.new == 0


@pytest.mark.parametrize(
    ("offsets", "message"),
    [((0, 1, 1), "1 offsets came twice"), ((0, 2), "2 of 3 records came"), ((0, 1, 3), "3 of 3")],
    ids=["twice", "missing", "another offset"],
)
def test_each_offset_comes_once(offsets: tuple[int, ...], message: str) -> None:
    taken = load_checks.Taken()
    taken.add([record(offset) for offset in offsets])
    with pytest.raises(LoadFailed, match=message):
        taken.check({0: 3})


def test_control_records_leave_gaps_that_are_no_loss() -> None:
    taken = load_checks.Taken()
    taken.add([record(0), record(2)])
    taken.check({0: 2}, gaps=True)


def test_a_redelivery_is_no_work() -> None:
    taken = load_checks.Taken()
    taken.add_shared([Shared(0, 1), Shared(1, 1)])
    taken.add_shared([Shared(1, 2)])
    assert (taken.new, taken.redelivered) == (2, 1)
    taken.check({0: 2})


@pytest.mark.parametrize(
    ("values", "partition", "message"),
    [
        ([b"a", b"x"], 0, "the checksum of its values"),
        ([b"a"], 0, "1 of 2 records came"),
        ([b"a", b"b"], 1, "partition 0: 0 of 2 records came"),
    ],
    ids=["changed", "missing", "another partition"],
)
def test_a_topic_with_other_content_fails(
    values: list[bytes], partition: int, message: str
) -> None:
    stored = load_checks.Stored(partitions=2)
    stored.add([record(n, value, partition) for n, value in enumerate(values)])
    with pytest.raises(LoadFailed, match=message):
        stored.check(sent_of(b"a", b"b"))


def test_an_acknowledged_record_that_is_lost_or_changed_fails() -> None:
    load_checks.check_acknowledged(0, {4: b"v"}, {3: b"not acknowledged", 4: b"v"})
    with pytest.raises(LoadFailed, match="acknowledged offset 4 is lost"):
        load_checks.check_acknowledged(0, {4: b"v"}, {3: b"v"})
    with pytest.raises(LoadFailed, match="offset 4 has another value"):
        load_checks.check_acknowledged(0, {4: b"v"}, {4: b"w"})


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({}, "confirmed nothing"),
        (
            {
                TopicPartition("t", 0): None,
                TopicPartition("t", 1): KafkaException(KafkaError(KafkaError.INVALID_RECORD_STATE)),
            },
            "partition 1",
        ),
    ],
    ids=["nothing", "one partition"],
)
def test_a_commit_fails_unless_every_partition_is_confirmed(results: Any, message: str) -> None:
    with pytest.raises(LoadFailed, match=message):
        load_checks.check_commit(results)


def test_acknowledgement_callbacks_are_counted_and_their_errors_fail() -> None:
    confirmed = load_checks.Confirmed()
    confirmed({TopicPartition("t", 0): {0, 1}}, None)
    confirmed.check(2)
    with pytest.raises(LoadFailed, match="2 of 3 acknowledgements"):
        confirmed.check(3)
    confirmed(
        {TopicPartition("t", 0): {2}}, KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT))
    )
    with pytest.raises(LoadFailed, match="an acknowledgement failed"):
        confirmed.check(2)


def test_work_counts_a_record_once_over_processes() -> None:
    work = load_checks.Work(partitions=2, records=10)
    assert len(work.finish([record(3), record(3, partition=1)])) == 2
    assert work.finish([record(3)]) == []
    assert (work.count, work.repeated) == (2, 1)


def test_a_count_that_does_not_move_fails() -> None:
    stall = load_checks.Stall(wanted=5, stall_s=0.0)
    stall.look(1)

    def look_on() -> None:
        while True:
            stall.look(1)

    with pytest.raises(LoadFailed, match="1 of 5 records"):
        look_on()


def test_values_have_their_size_and_text_compresses_as_logs_do() -> None:
    values = load_checks.text_values(1024)
    assert (
        {len(value) for value in values}
        == {1024}
        == {len(v) for v in load_checks.random_values(1024)}
    )
    batch = b"".join(values[:970])
    assert 0.4 < len(cramjam.lz4.compress_block(batch)) / len(batch) < 0.6
    assert 0.25 < len(cramjam.zstd.compress(batch, 3)) / len(batch) < 0.4
