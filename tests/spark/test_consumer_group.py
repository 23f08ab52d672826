"""The source of consumer groups: key ranges of partitions as tasks, with replay."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.errors import KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.record.key_ranges import KeyRanges
from spark.test_replay import RUN_TIMEOUT_S, killed
from support.spark import spark_query
from support.spark.streams import QUERY_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from support.brokers.queues import Queue

RANGES = 4
ALLOWED = {"shoal.key.ranges.enable": "true"}
KEYS = 20


def key_of(value: int) -> bytes:
    return b"k%d" % (value % KEYS)


def fill(queue: Queue, first: int, end: int) -> None:
    """Produce records in partition 0 whose values are their offsets."""

    async def send() -> None:
        producer = queue.client.client.producer(linger_ms=2)
        for n in range(first, end):
            await producer.send(queue.topic, b"%d" % n, key=key_of(n), partition=0)
        await producer.flush()

    queue.client.run(send())


def options(queue: Queue, **more: Any) -> dict[str, str]:
    given = {
        "kafka.bootstrap.servers": queue.bootstrap,
        "groupId": queue.topic,  # The queue's own group is a share group.
        "subscribe": queue.topic,
        "keyRanges": RANGES,
        "startingOffsets": "earliest",
        **more,
    }
    return {name: str(value) for name, value in given.items()}


def drained(spark: SparkSession, place: Path, given: dict[str, str]) -> list[list[list[Row]]]:
    """Run a query with Trigger.AvailableNow. Return the rows of each task of each batch."""
    batches: list[list[list[Row]]] = []

    def sink(frame: DataFrame, _: int) -> None:
        batches.append(frame.rdd.glom().collect())

    source = spark.readStream.format("consumergroup").options(**given).load()
    writer = source.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(place)).start()
    assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
    return batches


def position(queue: Queue) -> int:
    found = queue.client.run(queue.client.admin.groups.offsets([queue.topic]))[queue.topic]
    assert not isinstance(found, KafkaError), found
    offset: int = found[TopicPartition(queue.topic, 0)].offset
    return offset


def test_each_key_is_in_one_task(
    shoal_queue: Callable[..., Queue], spark: SparkSession, tmp_path: Path
) -> None:
    """One partition is four tasks. All rows come once, and each key in order in one task."""
    queue = shoal_queue(partitions=1, topic_configs=ALLOWED)
    fill(queue, 0, 200)
    batches = drained(spark, tmp_path / "one", options(queue, maxOffsetsPerTrigger=150))
    assert [len(tasks) for tasks in batches] == [RANGES] * 2
    tasks: dict[bytes, set[int]] = defaultdict(set)
    offsets: dict[bytes, list[int]] = defaultdict(list)
    for batch in batches:
        for number, rows in enumerate(batch, 1):
            for row in rows:
                assert KeyRanges.from_part(number, RANGES).has_record(row["key"], row["offset"])
                assert row["value"] == b"%d" % row["offset"]
                tasks[bytes(row["key"])].add(number)
                offsets[bytes(row["key"])].append(row["offset"])
    assert all(len(found) == 1 for found in tasks.values())
    assert set().union(*tasks.values()) == set(range(1, RANGES + 1))
    assert offsets == {key_of(n): list(range(n, 200, KEYS)) for n in range(KEYS)}
    row = batches[0][0][0].asDict()
    assert {**row, "timestamp": None} == {
        "key": key_of(row["offset"]),
        "value": b"%d" % row["offset"],
        "topic": queue.topic,
        "partition": 0,
        "offset": row["offset"],
        "timestamp": None,
    }
    assert row["timestamp"].year >= 2024
    assert position(queue) == 200


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_killed_query_continues(
    shoal_queue: Callable[..., Queue], spark: SparkSession, tmp_path: Path
) -> None:
    """Killed at each step of a batch, with four cores, and started again: a batch that runs again
    has the same rows in the same tasks, and all rows come once."""
    queue = shoal_queue(partitions=1, topic_configs=ALLOWED)
    steps = spark_query.STEPS
    count = 100 * (len(steps) + 2)
    fill(queue, 0, count)
    out = tmp_path / "out"
    out.mkdir()
    plan = {
        "format": "consumergroup",
        "cores": RANGES,
        "options": options(queue, maxOffsetsPerTrigger=100),
        "checkpoint": str(tmp_path / "checkpoint"),
        "out": str(out),
    }
    for batch, step in enumerate(steps):
        killed({**plan, "kill": [step, batch]})
    assert spark_query.start(spark, plan).awaitTermination(RUN_TIMEOUT_S)
    batches: dict[int, list[list[Any]]] = {}
    for batch, rows in spark_query.written(out):
        assert batches.setdefault(batch, rows) == rows, f"batch {batch} has other rows now"
    delivered = [row for rows in batches.values() for row in rows]
    assert sorted(row[2] for row in delivered) == list(range(count))
    for _, _, offset, value, task in delivered:
        assert KeyRanges.from_part(task + 1, RANGES).has_record(key_of(offset), offset)
        assert value == str(offset)
    assert position(queue) == count
