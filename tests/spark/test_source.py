"""The share-group source in queries as users write them, against both brokers where they differ."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import AcknowledgeType as Type
from confluent_kafka import Message, ShareConsumer
from queues import Queue
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.member import Acknowledgement, AcknowledgeType, ShareSession
from streams import QUERY_TIMEOUT_S, Stream, running

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MakeQueue = Callable[..., Queue]


@contextmanager
def beside(queue: Queue) -> Iterator[ShareConsumer]:
    """A plain share consumer in the same group."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": queue.bootstrap,
            "group.id": queue.group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 20,
        }
    )
    consumer.subscribe([queue.topic])
    try:
        yield consumer
    finally:
        consumer.close()


def take(consumer: ShareConsumer, timeout_s: float = 0.2) -> list[Message]:
    """Poll once and accept the records."""
    found = consumer.poll(timeout_s)
    for message in found:
        assert message.error() is None, message.error()
        consumer.acknowledge(message, Type.ACCEPT)
    if found:
        consumer.commit_sync(10)
    return found


def test_rows_and_parallelism(make_queue: MakeQueue, spark: SparkSession, tmp_path: Path) -> None:
    """Two partitions and six tasks; all columns; AvailableNow drains and ends."""
    queue = make_queue(partitions=2)
    queue.produce(range(300), batch=30, key=b"k", headers=(("h", b"1"), ("n", None)))
    stream = Stream(spark, queue, tmp_path)
    stream.drain(minPartitions=6, includeHeaders="true")
    queue.drained()

    assert stream.values == [str(n) for n in range(300)]
    assert max(stream.tasks.values()) == 6
    row = min(stream.rows, key=lambda r: (r["partition"], r["offset"]))
    assert row.asDict(recursive=True) == {
        "key": b"k",
        "value": b"0",
        "topic": queue.topic,
        "partition": 0,
        "offset": 0,
        "timestamp": row["timestamp"],
        "timestampType": 0,
        "deliveryCount": 1,
        "headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
    }
    assert row["timestamp"].year >= 2024


def test_a_batch_is_no_larger_than_asked(
    make_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever the size of the producer's batches; batch_optimized takes them whole."""
    queue = make_queue(partitions=2)
    for partition in range(2):
        queue.produce(range(partition, 200, 2), partition=partition)
    stream = Stream(spark, queue, tmp_path)
    stream.drain(maxRecordsPerTrigger=60)
    assert max(len(rows) for rows in stream.batches.values()) <= 60
    assert stream.values == [str(n) for n in range(200)]
    queue.drained()

    whole = make_queue(partitions=1)
    whole.produce(range(100))
    stream = Stream(spark, whole, tmp_path / "whole")
    stream.drain(maxRecordsPerTrigger=60, share_acquire_mode="batch_optimized")
    assert [len(rows) for rows in stream.batches.values()] == [100]


def test_a_batch_has_no_more_bytes_than_asked(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """The limit extends to the end of the producer's batch in which it is reached."""
    queue = shoal_queue(partitions=1)
    queue.produce([b"%d" % n + b"x" * 10_000 for n in range(10, 50)], batch=1)
    stream = Stream(spark, queue, tmp_path)
    stream.drain(maxBytesPerTrigger=50_000)
    assert max(len(rows) for rows in stream.batches.values()) <= 5
    assert sorted(int(value[:2]) for value in stream.values) == list(range(10, 50))
    queue.drained()


def test_a_query_with_a_rhythm(shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path) -> None:
    """`processingTime`: batches start at this interval, and their records are accepted."""
    queue = shoal_queue(partitions=1)
    queue.produce(range(50), batch=10)
    begun: list[float] = []

    def note(_frame: DataFrame, _batch: int) -> None:
        begun.append(time.monotonic())

    with running(spark, queue, tmp_path, note, every="1 second", maxRecordsPerTrigger=10) as stream:
        stream.until(lambda: len(stream.rows) == 50)
        queue.drained()
    assert stream.values == [str(n) for n in range(50)]
    # Spark counts from its epoch, so a slow first batch, which starts workers, may shorten the
    # pauses around the second one.
    assert len(begun) == 5
    assert begun[-1] - begun[1] >= 2.0


def test_batches_take_as_long_as_asked(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """A batch that takes longer than the target is followed by smaller ones, down to ten a task."""
    queue = shoal_queue(partitions=2)
    queue.produce(range(1060), batch=20)
    stream = Stream(spark, queue, tmp_path)
    stream.drain(minPartitions=2, batch_target_ms=1)
    assert [len(rows) for rows in stream.batches.values()] == [1000, 20, 20, 20]
    assert stream.values == [str(n) for n in range(1060)]
    queue.drained()


def test_an_idle_query_accepts_at_once(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark commits a batch only when there is another one; locks must not wait for that."""
    queue = shoal_queue(partitions=1)
    with running(spark, queue, tmp_path) as stream:
        queue.produce(range(5))
        stream.until(lambda: len(stream.rows) == 5)
        queue.drained()
        queue.produce([5])
        stream.until(lambda: len(stream.rows) == 6)
        queue.drained()
        assert stream.query is not None
        stream.until(lambda: json.loads(last_progress(stream))["accepted"] == 6)


def last_progress(stream: Stream) -> str:
    assert stream.query is not None
    return stream.query.lastProgress["sources"][0]["latestOffset"]


@pytest.mark.java
def test_stop_releases_at_once(kafka_queue: MakeQueue, spark: SparkSession, tmp_path: Path) -> None:
    """Locked records of a stopped query go to another member long before their locks expire, on
    Kafka too; the next test has Shoal."""
    queue = kafka_queue(partitions=1, share_record_lock_duration_ms="60000")
    queue.produce(range(20))
    begun, go_on = threading.Event(), threading.Event()

    def hold(frame: DataFrame, _batch: int) -> None:
        if not frame.isEmpty():
            begun.set()
            go_on.wait(QUERY_TIMEOUT_S)

    with running(spark, queue, tmp_path, hold) as stream:
        stream.until(begun.is_set)
        threading.Timer(0.2, go_on.set).start()
    taken: list[Message] = []
    with beside(queue) as consumer:
        deadline = threading.Event()
        threading.Timer(20, deadline.set).start()
        while len(taken) < 20 and not deadline.is_set():
            taken += take(consumer)
    assert sorted(int(m.value()) for m in taken) == list(range(20))


def test_a_stop_in_the_midst_of_a_batch_costs_no_attempt(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    queue = shoal_queue(partitions=1, share_record_lock_duration_ms="60000")
    queue.produce(range(20))
    for _ in range(2):  # The second time, the batch runs again from the checkpoint.
        begun, go_on = threading.Event(), threading.Event()

        def hold(_frame: DataFrame, _batch: int, begun=begun, go_on=go_on) -> None:
            begun.set()
            go_on.wait(QUERY_TIMEOUT_S)

        with running(spark, queue, tmp_path, hold) as stream:
            stream.until(begun.is_set)
            threading.Timer(0.2, go_on.set).start()
    run = queue.client.run
    session = run(queue.client.share(queue.group, [queue.topic]))
    found = [r for one in run(session.acquire(max_wait_ms=20_000)) for r in one.ranges]
    run(session.close())
    assert [(r.first_offset, r.last_offset, r.delivery_count) for r in found] == [(0, 19, 1)]


@contextmanager
def run_past_locks(
    queue: Queue, spark: SparkSession, place: Path, batch_s: float, renew: str
) -> Iterator[tuple[Stream, dict[int, int]]]:
    """Run a query whose first two batches take this long at most. Yield it, and the delivery counts
    of the records that another member gets meanwhile, by offset."""
    queue.produce(range(20))
    elsewhere: dict[int, int] = {}

    def long(frame: DataFrame, batch: int) -> None:
        if frame.isEmpty() or batch > 1:
            return
        over = threading.Event()
        threading.Timer(batch_s, over.set).start()
        run = queue.client.run
        session = run(queue.client.share(queue.group, [queue.topic]))
        while not over.is_set() and len(elsewhere) < 20:
            for acquired in run(session.acquire(max_wait_ms=200)):
                elsewhere.update((r.offset, r.delivery_count) for r in acquired.records())
                assert not run(session.acknowledge(acquired.acknowledge(AcknowledgeType.ACCEPT)))
        assert session.assignment, "the other member was never in the group"
        run(session.close())

    with running(spark, queue, place, long, **{"share.renew": renew}) as stream:
        yield stream, elsewhere


def has_all(stream: Stream) -> bool:
    return len(stream.rows) >= 20


def test_a_batch_longer_than_its_locks(
    shoal_queue: MakeQueue, kafka_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """With renewal no other member gets its rows. Without it one does, and we do not lose them. The
    queries run at once, because they mostly wait."""
    # Renewed locks are longer than the machine's standstills, and end several times in a batch.
    renewed = [make(share_record_lock_duration_ms="5000") for make in (shoal_queue, kafka_queue)]
    expiring = shoal_queue(share_record_lock_duration_ms="1500")
    with ExitStack() as stack:
        runs = [
            stack.enter_context(
                run_past_locks(queue, spark, tmp_path / str(number), batch_s, renew)
            )
            for number, (queue, batch_s, renew) in enumerate(
                [*((queue, 12.0, "true") for queue in renewed), (expiring, 60.0, "false")]
            )
        ]
        for queue, (stream, _) in zip([*renewed, expiring], runs, strict=True):
            stream.until(partial(has_all, stream))
            queue.drained()
    assert [stream.values for stream, _ in runs] == [[str(n) for n in range(20)]] * 3
    assert [elsewhere for _, elsewhere in runs] == [{}, {}, dict.fromkeys(range(20), 2)]


def test_two_queries_and_a_consumer_share_the_work(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    queue = shoal_queue(partitions=2)
    elsewhere: list[Message] = []
    limits = {"maxRecordsPerTrigger": 60}
    with (
        running(spark, queue, tmp_path / "a", **limits) as a,
        running(spark, queue, tmp_path / "b", **limits) as b,
        beside(queue) as consumer,
    ):
        count = 0

        def done() -> bool:
            elsewhere.extend(take(consumer))
            return len(a.rows) + len(b.rows) + len(elsewhere) >= count

        # They become members one after the other, so continue until each of them has had a record.
        while not (a.rows and b.rows and elsewhere):
            assert count < 100 * 100, "a member gets no records"
            queue.produce(range(count, count + 100), batch=5)
            count += 100
            a.until(done, "all rows somewhere")
        queue.drained()
    seen = [*map(int, a.values), *map(int, b.values), *(int(m.value()) for m in elsewhere)]
    assert sorted(seen) == list(range(count)), "a row was lost, or came twice"


def hold_some(queue: Queue, count: int) -> ShareSession:
    """Return a member that has locked this number of records and stays idle."""
    run = queue.client.run
    session = run(queue.client.share(queue.group, [queue.topic]))
    got = run(session.acquire(max_records=count, max_wait_ms=20_000))
    assert got.count == count
    return session


def test_available_now_waits_for_locks_that_run_out(
    make_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """Records that an idle member had locked at the start are drained too."""
    queue = make_queue(partitions=1, share_record_lock_duration_ms="6000")
    queue.produce(range(40), batch=10)
    session = hold_some(queue, 20)
    held, over = [Acknowledgement(queue.topic, 0, 0, 19, AcknowledgeType.RENEW)], threading.Event()

    def renew() -> None:
        while not over.wait(0.3):
            assert not queue.client.run(session.acknowledge(held))

    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(renew)
        stream = Stream(spark, queue, tmp_path)
        try:
            # The query starts while the records are locked, and the lock runs out afterwards.
            stream.drain(lambda _frame, _batch: over.set())
        finally:
            over.set()
        renewing.result()
    queue.client.run(session.close())
    assert stream.values == [str(n) for n in range(40)]
    assert {row["deliveryCount"] for row in stream.rows} == {1, 2}


def test_available_now_leaves_to_others_what_they_renew(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """A live member may hold records for ever; the drain ends without them."""
    queue = shoal_queue(partitions=1, share_record_lock_duration_ms="6000")
    queue.produce(range(40), batch=10)
    session = hold_some(queue, 20)
    held, over = [Acknowledgement(queue.topic, 0, 0, 19, AcknowledgeType.RENEW)], threading.Event()

    def renew() -> None:
        while not over.wait(0.3):
            assert not queue.client.run(session.acknowledge(held))

    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(renew)
        stream = Stream(spark, queue, tmp_path)
        try:
            stream.drain()
        finally:
            over.set()
        renewing.result()
    assert stream.values == [str(n) for n in range(20, 40)]
    queue.client.run(session.close())


def test_a_failed_batch_runs_again_with_its_rows(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """The query fails in its sink and is restarted: the same batch, and no row elsewhere."""
    queue = shoal_queue(partitions=2)
    queue.produce(range(100), batch=10)
    seen: dict[int, list[Any]] = {}

    def fail_once(frame: DataFrame, batch: int) -> None:
        rows = sorted(tuple(r) for r in frame.select("partition", "offset").collect())
        again = batch in seen
        assert seen.setdefault(batch, rows) == rows
        if not again:
            raise RuntimeError("the sink fails the first time")

    stream = Stream(spark, queue, tmp_path)
    for _ in range(2):
        with pytest.raises(Exception, match="fails the first time"):
            stream.drain(fail_once, maxRecordsPerTrigger=50)
    stream.drain(fail_once, maxRecordsPerTrigger=50)
    assert stream.values == [str(n) for n in range(100)]
    queue.drained()


def test_a_worker_that_dies_is_replaced(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    queue = shoal_queue(partitions=1)
    queue.produce(range(40), batch=10)
    marker = tmp_path / "died"
    got: list[int] = []

    def deadly(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    def sink(frame: DataFrame, _batch: int) -> None:
        got.extend(r["offset"] for r in frame.mapInArrow(deadly, frame.schema).collect())

    stream = Stream(spark, queue, tmp_path)
    stream.drain(sink, minPartitions=3)
    assert marker.exists()
    assert sorted(got) == list(range(40))


def test_rows_that_the_log_has_dropped(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """A batch runs again when the log start has moved into it: an error, or the remaining rows."""
    queue = shoal_queue(partitions=1)
    queue.produce(range(30), batch=10)

    def fail(_frame: DataFrame, _batch: int) -> None:
        raise RuntimeError("the sink fails")

    stream = Stream(spark, queue, tmp_path)
    with pytest.raises(Exception, match="the sink fails"):
        stream.drain(fail)
    where = TopicPartition(queue.topic, 0)
    expect(queue.client.run(queue.client.admin.topics.delete_records({where: 12})))
    with pytest.raises(Exception, match="failOnDataLoss"):
        stream.drain()
    stream.drain(failOnDataLoss="false")
    assert stream.values == [str(n) for n in range(12, 30)]
    queue.drained()
