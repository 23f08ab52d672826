"""A batch that runs again has exactly the same rows, wherever its driver died."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.spark import spark_query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession
    from support.brokers.queues import Queue

PROGRAM = Path(spark_query.__file__)
RUN_TIMEOUT_S = 180


def killed(plan: dict[str, Any]) -> None:
    """Run the query in its own process group until it kills itself."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), json.dumps(plan)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        raise AssertionError(f"the query did not end:\n{said[-4000:]}") from None
    assert process.returncode == -signal.SIGKILL, said[-4000:]


def prove(spark: SparkSession, queue: Queue, place: Path, steps: Sequence[str]) -> None:
    """Kill a driver at each step, in consecutive batches; the last one may finish."""
    values = range(100 * (len(steps) + 2))
    queue.produce(values, batch=20)
    out = place / "out"
    out.mkdir()
    plan = {
        "options": queue.options(maxRecordsPerTrigger=100, minPartitions=3),
        "checkpoint": str(place / "checkpoint"),
        "out": str(out),
    }
    for batch, step in enumerate(steps, 1):
        killed({**plan, "kill": [step, batch]})
    assert spark_query.start(spark, plan).awaitTermination(RUN_TIMEOUT_S)

    batches: dict[int, list[list[Any]]] = {}
    for batch, rows in spark_query.written(out):
        assert batches.setdefault(batch, rows) == rows, f"batch {batch} has other rows now"
    delivered = [row for rows in batches.values() for row in rows]
    assert sorted(int(row[3]) for row in delivered) == list(values)
    queue.drained()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(("during",), id="in the sink"),
        pytest.param(spark_query.STEPS, id="every step", marks=pytest.mark.nightly),
    ],
)
def test_killed_drivers(
    shoal_queue: Callable[..., Queue],
    spark: SparkSession,
    tmp_path: Path,
    steps: Sequence[str],
) -> None:
    """To the source, a batch is the same before, in and after the sink: planned and not committed.
    Each kill starts a program with a JVM, so there is one by day. `reader/test_batches.py` has
    drivers that die without a JVM, also after a commit."""
    prove(spark, shoal_queue(partitions=2), tmp_path, steps)


@pytest.mark.java
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_killed_in_the_sink_on_kafka(
    kafka_queue: Callable[..., Queue], spark: SparkSession, tmp_path: Path
) -> None:
    prove(spark, kafka_queue(partitions=2), tmp_path, ["during"])
