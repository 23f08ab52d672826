"""Batches of the share-group source: their size, their replay, and their outcomes, without a JVM.

`spark/test_source.py` has queries of Spark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.dead_letters.dead_letter_topics import read_dead_letters
from shoal.protocol.reasons import FailureReason
from shoal_spark import outcome_files
from shoal_spark.outcome_files import Outcome, OutcomeKind
from shoal_spark.range_reader import DataLoss
from support.brokers.queues import Queue
from support.runs.conditions import eventually
from support.spark.micro_batches import Query, Row

if TYPE_CHECKING:
    from pathlib import Path

MakeQueue = Callable[..., Queue]
#: How long a batch works. With a target of a millisecond, that fits fewer records than the least.
WORK_S = 0.1


def test_a_batch_is_no_larger_than_asked(make_queue: MakeQueue) -> None:
    """Whatever the size of the producer's batches; batch_optimized takes them whole."""
    queue = make_queue(partitions=2)
    for partition in range(2):
        queue.produce(range(partition, 200, 2), partition=partition)
    query = Query(queue)
    query.drain(maxRecordsPerTrigger=60)
    assert max(len(rows) for rows in query.batches.values()) <= 60
    assert query.values == list(range(200))
    queue.drained()

    whole = make_queue(partitions=1)
    whole.produce(range(100))
    query = Query(whole)
    query.drain(maxRecordsPerTrigger=60, share_acquire_mode="batch_optimized")
    assert [len(rows) for rows in query.batches.values()] == [100]


def test_a_batch_has_no_more_bytes_than_asked(shoal_queue: MakeQueue) -> None:
    """The limit extends to the end of the producer's batch in which it is reached."""
    queue = shoal_queue(partitions=1)
    queue.produce([b"%d" % n + b"x" * 10_000 for n in range(10, 50)], batch=1)
    query = Query(queue)
    query.drain(maxBytesPerTrigger=50_000)
    assert max(len(rows) for rows in query.batches.values()) <= 5
    assert sorted(int(row["value"][:2]) for row in query.rows) == list(range(10, 50))
    queue.drained()


def test_batches_take_as_long_as_asked(shoal_queue: MakeQueue) -> None:
    """A batch that takes longer than the target is followed by smaller ones, down to ten a task."""
    queue = shoal_queue(partitions=1)
    queue.produce(range(1060), batch=20)
    query = Query(queue)
    work = threading.Event()
    query.drain(lambda _: work.wait(WORK_S), minPartitions=2, batch_target_ms=1)
    assert [len(rows) for rows in query.batches.values()] == [1000, 20, 20, 20]
    assert query.values == list(range(1060))
    queue.drained()


def test_a_failed_batch_runs_again_with_its_rows(shoal_queue: MakeQueue) -> None:
    """The query fails in its sink and is restarted: the same batch, and no row elsewhere."""
    queue = shoal_queue(partitions=2)
    queue.produce(range(100), batch=10)
    query = Query(queue)
    seen: dict[int, list[Row]] = {}

    def fail_once(rows: list[Row]) -> None:
        batch = len(query.batches)
        again = batch in seen
        assert seen.setdefault(batch, rows) == rows
        if not again:
            raise RuntimeError("the sink fails the first time")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="fails the first time"):
            query.drain(fail_once, maxRecordsPerTrigger=50)
    query.drain(fail_once, maxRecordsPerTrigger=50)
    assert query.values == list(range(100))
    queue.drained()


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_killed_driver(make_queue: MakeQueue, is_committed: bool) -> None:
    """The next one continues: a batch without a commit has the same rows, and one with a commit
    does not come again, though nobody has accepted its records."""
    queue = make_queue(partitions=2)
    queue.produce(range(300), batch=20)
    options = {"maxRecordsPerTrigger": 100, "minPartitions": 3}
    query = Query(queue)
    query.start(**options)
    eventually(query.has_batch)
    before = query.read()
    assert len(before) == 3
    if is_committed:
        query.run_batch()
    query.kill()
    if not is_committed:
        query.start(**options)
        assert query.read() == before
        query.stop()
    query.drain(**options)
    assert query.values == list(range(300)), "a row is lost, or came twice"
    queue.drained()


def test_rows_that_the_log_has_dropped(shoal_queue: MakeQueue) -> None:
    """A batch runs again when the log start has moved into it: an error, or the remaining rows."""
    queue = shoal_queue(partitions=1)
    queue.produce(range(30), batch=10)
    query = Query(queue)
    query.start()
    assert query.has_batch()
    query.stop()
    where = TopicPartition(queue.topic, 0)
    expect(queue.client.run(queue.client.admin.topics.delete_records({where: 12})))
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        query.drain()
    query.drain(failOnDataLoss="false")
    assert query.values == list(range(12, 30))
    queue.drained()


def make_sink(queue: Queue, place: Path, delay_ms: int = 0) -> Callable[[list[Row]], None]:
    """Return a sink that releases all rows of the first batch, or of each one without a delay."""

    def release(rows: list[Row]) -> None:
        again = [row for row in rows if row["deliveryCount"] == 1 or not delay_ms]
        outcome_files.write(
            str(place),
            (
                Outcome(queue.topic, 0, row["offset"], row["offset"], OutcomeKind.RELEASE, delay_ms)
                for row in again
            ),
        )

    return release


def test_a_delayed_release_comes_back_later(shoal_queue: MakeQueue, tmp_path: Path) -> None:
    queue = shoal_queue(partitions=1)
    queue.produce(["0"])
    query = Query(queue)
    query.start(outcomes_dir=tmp_path, fetch_max_wait_ms=50)
    assert query.has_batch()
    query.run_batch(make_sink(queue, tmp_path, delay_ms=1000))
    began = time.monotonic()
    eventually(query.has_batch)
    assert time.monotonic() - began >= 1.0
    query.run_batch()
    assert not query.has_batch()
    query.stop()
    assert [row["deliveryCount"] for row in query.rows] == [1, 2]
    queue.drained()
    assert not list(tmp_path.iterdir()), "unsettled outcomes"


def test_rows_that_came_too_often_are_rejected(shoal_queue: MakeQueue, tmp_path: Path) -> None:
    queue = shoal_queue(partitions=1)
    letters = f"dlq.{queue.topic}"
    new = NewTopic(letters, configs={"errors.deadletterqueue.group.enable": "true"})
    expect(queue.client.run(queue.client.admin.topics.create([new])))
    queue.configure(errors_deadletterqueue_topic_name=letters)
    queue.produce(range(10))
    query = Query(queue)
    query.drain(make_sink(queue, tmp_path), outcomes_dir=tmp_path, maxDeliveryCount=2)
    queue.drained()
    assert sorted(row["deliveryCount"] for row in query.rows) == [1] * 10 + [2] * 10

    async def read() -> set[FailureReason]:
        found = read_dead_letters(queue.client.client, letters)
        return {letter.failure._replace(worker="") async for letter in found}

    why = FailureReason("TooManyDeliveries", "option maxDeliveryCount allows 2")
    assert queue.client.run(read()) == {why}
