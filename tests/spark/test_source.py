"""The share-group source in queries as users write them, against both brokers where they differ."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import AcknowledgeType as Type
from confluent_kafka import Message, ShareConsumer
from shoal.client.share.member import AcknowledgeType
from support.brokers.queues import Queue
from support.spark.streams import QUERY_TIMEOUT_S, Stream, running

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


@pytest.mark.nightly
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
@pytest.mark.nightly
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


@pytest.mark.nightly
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
