"""Outcomes for each row: what a job rejects or releases, and the effect on the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers.queues import Queue
from support.spark.streams import QUERY_TIMEOUT_S, Stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MakeQueue = Callable[..., Queue]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    """The directory for outcomes, which must be empty when all of them are settled."""
    directory = tmp_path / "outcomes"
    yield str(directory)
    left = [path.name for path in directory.glob("*")] if directory.exists() else []
    assert not left, "unsettled outcomes"


@pytest.mark.java
def test_a_functions_exception_is_its_rows_outcome(
    kafka_queue: MakeQueue, spark: SparkSession, tmp_path: Path, place: str
) -> None:
    """Multiples of ten are poison, sevens fail twice; the batches continue, and no row is lost.
    On Kafka; `reader/test_batches.py` has Shoal, delays and limits."""
    from shoal_spark import outcomes

    queue = kafka_queue(partitions=2, share_delivery_count_limit="5")
    queue.produce(range(100), batch=25)
    done: list[int] = []
    seen: dict[int, list[int]] = {}

    def number(row: dict[str, Any]) -> dict[str, Any]:
        value = int(row["value"])
        if value % 10 == 0:
            raise ValueError("no multiples of ten")
        if value % 10 == 7 and row["deliveryCount"] == 1:
            raise outcomes.Released("in a moment", delay_ms=100)
        if value % 10 == 7 and row["deliveryCount"] == 2:
            raise OSError("not now")
        return {"number": value}

    def sink(frame: DataFrame, _batch: int) -> None:
        judged = outcomes.apply(frame, number, "number int", release=(OSError,)).persist()
        done.extend(row["number"] for row in outcomes.select_accepted(judged).collect())
        outcomes.report(judged, queue.options(outcomes_dir=place))
        judged.unpersist()

    stream = Stream(spark, queue, tmp_path)
    stream.drain(sink, outcomes_dir=place)
    queue.drained()
    for row in stream.rows:
        seen.setdefault(int(bytes(row["value"])), []).append(row["deliveryCount"])
    assert sorted(done) == [n for n in range(100) if n % 10]
    assert all(seen[n] == ([1, 2, 3] if n % 10 == 7 else [1]) for n in range(100))


def test_outcomes_by_a_column(
    shoal_queue: MakeQueue, spark: SparkSession, tmp_path: Path, place: str
) -> None:
    """A query whose only sink is `sharegroup-outcome`."""
    queue = shoal_queue(partitions=1)
    queue.produce(range(20))
    source = spark.readStream.format("sharegroup").options(**queue.options(outcomes_dir=place))
    odd = "cast(cast(value as string) as int) % 2 = 1"
    again = f"case when {odd} and deliveryCount = 1 then 'release' else 'accept' end as outcome"
    rows = source.load().selectExpr("topic", "partition", "offset", again, "'odd' as reason")
    writer = rows.writeStream.format("sharegroup-outcome").options(
        **{k: v for k, v in queue.options(outcomes_dir=place).items() if k != "subscribe"},
        checkpointLocation=str(tmp_path / "checkpoint"),
    )
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    queue.drained()
    settled = [p["sources"][0] for p in query.recentProgress]
    assert sum(one["numInputRows"] for one in settled) == 30, "twenty rows, ten of them twice"


def test_a_row_with_a_decode_error_is_rejected_whatever_the_query_says() -> None:
    """Most expressions make null of its null value, which would be no outcome."""
    from pyspark.sql import Row
    from shoal_spark.outcomes import parse_outcome

    why = "app.Broken: no such codec"
    row = Row(topic="t", partition=0, offset=7, outcome=None, decodeError=why)
    outcome = parse_outcome(row)
    assert (outcome.first, outcome.last, outcome.kind, outcome.reason) == (7, 7, "reject", why)
    with pytest.raises(ValueError, match="must be accept, release or reject"):
        parse_outcome(Row(**row.asDict() | {"decodeError": None}))
