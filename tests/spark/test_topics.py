"""Producing from Spark, and the group's state and dead letters as DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from shoal_spark.options import BOOTSTRAP
from support.brokers.queues import Queue
from support.spark.micro_batches import Query
from support.spark.streams import QUERY_TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MakeQueue = Callable[..., Queue]
ROWS = "key binary, value binary, partition int, headers array<struct<key:string,value:binary>>"


def test_rows_go_to_a_topic_and_come_back(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """By `write` with partitions and headers, by `produce`, and by a stream to another topic."""
    from shoal_spark import topics

    queue, copy = shoal_queue(partitions=2), shoal_queue(partitions=2)
    rows = [(b"k", str(n).encode(), n % 2, [("h", b"1"), ("n", None)]) for n in range(100)]
    frame = spark.createDataFrame(rows, ROWS)
    where = {BOOTSTRAP: queue.bootstrap, "topic": queue.topic}
    frame.write.format("kafka-topic").options(**where, compression="zstd").mode("append").save()
    assert topics.produce(frame.selectExpr("'100' as value").limit(1), where) == 1

    source = spark.readStream.format("sharegroup").options(**queue.options(includeHeaders="true"))
    writer = source.load().select("key", "value", "headers").writeStream.format("kafka-topic")
    query = writer.options(
        **{BOOTSTRAP: queue.bootstrap, "topic": copy.topic},
        checkpointLocation=str(tmp_path / "copy"),
    )
    assert query.trigger(availableNow=True).start().awaitTermination(QUERY_TIMEOUT_S)
    queue.drained()

    copied = Query(copy)
    copied.drain(includeHeaders="true")
    assert copied.values == list(range(101))
    with_key = [row for row in copied.rows if row["key"] is not None]
    assert len(with_key) == 100
    headers = [[(h["key"], h["value"]) for h in row["headers"]] for row in with_key]
    assert headers == [rows[0][3]] * 100


def test_a_groups_state_is_a_frame(shoal_queue: MakeQueue, spark: SparkSession) -> None:
    queue = shoal_queue(partitions=2)
    queue.produce(range(30), partition=1)
    Query(queue).drain()
    queue.drained()
    queue.produce(range(12), partition=1)

    lag = spark.read.format("sharegroup-lag").option(BOOTSTRAP, queue.bootstrap)
    rows = lag.option("group.id", queue.group).load().orderBy("partition").collect()
    assert [tuple(row) for row in rows] == [
        (queue.group, queue.topic, 0, 0, 0, 0),
        (queue.group, queue.topic, 1, 30, 42, 12),
    ]
    everywhere = spark.read.format("sharegroup-lag").option(BOOTSTRAP, queue.bootstrap).load()
    assert everywhere.filter(everywhere.group == queue.group).count() == 2


def test_dead_letters_are_a_frame_with_reasons(shoal_queue: MakeQueue, spark: SparkSession) -> None:
    queue = shoal_queue(partitions=1)
    fields = {
        "topic": "orders",
        "partition": "3",
        "offset": "41",
        "group": "billing",
        "delivery.count": "5",
        "message": "Offset rejected by client.",
    }
    headers = tuple((f"__dlq.errors.{name}", value.encode()) for name, value in fields.items())
    queue.produce([b"broken"], key=b"k", headers=(*headers, ("trace", b"7")))
    source = spark.read.format("sharegroup-dead-letters").option(BOOTSTRAP, queue.bootstrap)
    (row,) = source.option("topic", queue.topic).load().collect()
    assert (row["key"], row["value"], row["reason"]) == (b"k", b"broken", fields["message"])
    assert (row["sourceTopic"], row["sourcePartition"], row["sourceOffset"]) == ("orders", 3, 41)
    assert (row["group"], row["deliveryCount"]) == ("billing", 5)
    assert [tuple(h) for h in row["headers"]] == [("trace", b"7")]


def test_a_sink_names_missing_columns(spark: SparkSession, shoal_queue: MakeQueue) -> None:
    queue = shoal_queue(partitions=1)
    frame = spark.createDataFrame([("1",)], "text string")
    writer = frame.write.format("kafka-topic").option(BOOTSTRAP, queue.bootstrap).mode("append")
    with pytest.raises(Exception, match="column 'value'"):
        writer.option("topic", queue.topic).save()
    outcome = frame.write.format("sharegroup-outcome").option(BOOTSTRAP, queue.bootstrap)
    with pytest.raises(Exception, match="lacks topic, partition, offset, outcome"):
        outcome.option("group.id", queue.group).mode("append").save()
