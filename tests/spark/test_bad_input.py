"""A query reports bad input in an error that names it; it takes no records and does not hang.

`reader/test_refusals.py` has what the source refuses, without a query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import expect
from shoal.dead_letters.dead_letter_topics import read_dead_letters
from shoal.protocol.reasons import FailureReason
from support.brokers.queues import Queue
from support.spark.streams import QUERY_TIMEOUT_S, Stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from shoal.client.client import SyncClient
    from shoal.dead_letters.records import DeadLetter
    from support.brokers.servers import ShoalProcess

MakeQueue = Callable[..., Queue]
#: The class and the message of the error of a damaged batch.
DAMAGE = (
    "shoal.client.net.batches.CorruptRecords",
    "the batch at offset 0 has a wrong CRC",
)


@contextmanager
def error_summary(pattern: str) -> Iterator[None]:
    """Expect the block to fail with this line as the summary in the driver's pod status."""
    from shoal_spark import termination_message

    # PySpark wraps the error in one of several classes; the summary unwraps it.
    with pytest.raises(Exception) as raised:  # noqa: PT011
        yield
    assert re.match(f"shoal_spark\\.\\w+\\.{pattern}", termination_message.summarize(raised.value))


def test_a_query_reports_bad_input(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path
) -> None:
    """When it is defined, and when its reader is called: PySpark passes on both errors."""
    queue = shoal_queue(partitions=1)
    with error_summary("InvalidOption: unknown option 'maxrecords'"):
        Stream(spark, queue, tmp_path / "option").start(maxRecords=1)
    with error_summary(
        "InvalidOption: the schema has the columns x, .* key, value, .*; remove the schema"
    ):
        source = spark.readStream.format("sharegroup").schema("x int")
        source.options(**queue.options()).load().writeStream.format("noop").start(
            checkpointLocation=str(tmp_path / "schema")
        ).awaitTermination(QUERY_TIMEOUT_S)


@pytest.fixture
def damaged_queue(spark_broker: ShoalProcess, shoal_queue: MakeQueue) -> Queue:
    """A topic with two batches of ten records, the first of which is damaged on the disk."""
    queue = shoal_queue(partitions=1)
    queue.produce(range(20), batch=10)
    damage_first_batch(spark_broker, queue.topic)
    return queue


def test_rows_that_nobody_can_decode_are_an_error_or_left_out_or_have_the_reason(
    damaged_queue: Queue,
) -> None:
    """What an executor reads, without Spark."""
    from shoal_spark import range_reader
    from shoal_spark.options import SourceOptions
    from shoal_spark.ranges import OffsetRange

    def read_rows(**options: str) -> list[tuple[bytes | None, str | None]]:
        given = SourceOptions.from_options(damaged_queue.options(**options))
        found = range_reader.read(given, [OffsetRange(damaged_queue.topic, 0, 0, 19)])
        rows = [row for batch in found for row in batch.to_pylist()]
        return [(row["value"], row.get("decodeError")) for row in rows]

    rest = [(str(n).encode(), None) for n in range(10, 20)]
    text = r"offsets 0 to 9, cannot be decoded: .*CRC.*includeDecodeErrors.*failOnDataLoss"
    with pytest.raises(range_reader.DataLoss, match=text):
        read_rows()
    assert read_rows(failOnDataLoss="false") == rest
    assert read_rows(includeDecodeErrors="true") == [(None, ": ".join(DAMAGE))] * 10 + rest


def test_a_query_rejects_rows_that_nobody_can_decode(
    damaged_queue: Queue, spark: SparkSession, tmp_path: Path
) -> None:
    """With `includeDecodeErrors` it continues: they are dead letters with the reason, and the
    function gets the others."""
    from shoal_spark import outcomes

    client, letters = damaged_queue.client, f"dlq.{damaged_queue.topic}"
    new = NewTopic(letters, configs={"errors.deadletterqueue.group.enable": "true"})
    expect(client.run(client.admin.topics.create([new])))
    damaged_queue.configure(errors_deadletterqueue_topic_name=letters)
    stream = Stream(spark, damaged_queue, tmp_path)
    done: list[int] = []
    outcomes_dir = str(tmp_path / "outcomes")

    def sink(frame: DataFrame, _batch: int) -> None:
        judged = outcomes.apply(frame, lambda row: {"n": int(row["value"])}, "n int").persist()
        done.extend(row["n"] for row in outcomes.select_accepted(judged).collect())
        outcomes.report(judged, damaged_queue.options(outcomes_dir=outcomes_dir))
        judged.unpersist()

    stream.drain(sink, outcomes_dir=outcomes_dir, includeDecodeErrors="true")
    assert sorted(done) == list(range(10, 20))
    damaged_queue.drained()
    found = client.run(list_dead_letters(client, letters))
    assert [letter.source_offset for letter in found] == list(range(10))
    reasons = {letter.failure._replace(worker="") for letter in found}
    assert reasons == {FailureReason(*DAMAGE)}


def damage_first_batch(broker: ShoalProcess, topic: str) -> None:
    (segment,) = broker.data_dir.rglob(f"{topic}-0/*.log")
    with segment.open("r+b") as file:
        file.seek(80)
        byte = file.read(1)
        file.seek(80)
        file.write(bytes([byte[0] ^ 1]))


async def list_dead_letters(client: SyncClient, topic: str) -> list[DeadLetter]:
    return [letter async for letter in read_dead_letters(client.client, topic)]
