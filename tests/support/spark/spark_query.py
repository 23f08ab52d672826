"""A streaming query as a separate program, which tests start, kill and restart.

    python spark_query.py '{"options": {…}, "checkpoint": "…", "out": "…", "kill": ["during", 2]}'

`format` and `cores` may be given, too.

The sink writes the rows of batch N to `out/N.RUN.json`, where RUN is unique. It is idempotent as
any sink that overwrites by batch id. `kill` names a step and the batch to end in, by SIGKILL to the
whole process group: driver, JVM, reader and workers at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: Before the sink writes, half-way, after it has written, and after Spark has committed the batch.
STEPS = ("before", "during", "after", "committed")
COLUMNS = ("topic", "partition", "offset", "value", "deliveryCount")


def session(directory: Path, cores: int = 2) -> SparkSession:
    """A local session that shares nothing and logs little."""
    import shoal_spark
    from pyspark.sql import SparkSession

    settings = {
        # Short-lived programs: better compilation costs more than it gains.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.session.timeZone": "UTC",
        # An idle query reports its counts each second, not every ten.
        "spark.sql.streaming.noDataProgressEventInterval": "1000",
        # Each worker of Spark's own daemon spends half a second of CPU on imports.
        "spark.python.daemon.module": "shoal_spark.daemon",
        # A busy machine starts a Python worker slowly, and answers late.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.network.timeout": "600s",
    }
    builder = SparkSession.builder.master(f"local[{cores}, 3]").appName("shoal tests")
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    shoal_spark.register(spark)
    return spark


def rows_of(frame: DataFrame) -> list[list[Any]]:
    """Return the identity and the value of each row, sorted, with its delivery count or task."""
    from pyspark.sql.functions import spark_partition_id

    if "deliveryCount" not in frame.columns:
        frame = frame.withColumn("deliveryCount", spark_partition_id())
    return sorted(
        [*(row[name] for name in COLUMNS[:3]), bytes(row["value"]).decode(), row["deliveryCount"]]
        for row in frame.select(*COLUMNS).collect()
    )


def written(out: Path) -> Iterator[tuple[int, list[list[Any]]]]:
    """Yield everything the sink has written: batch id and rows, oldest run first."""
    for path in sorted(out.glob("*.json"), key=lambda p: p.stat().st_mtime_ns):
        yield int(path.name.split(".")[0]), json.loads(path.read_text())


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def start(spark: SparkSession, plan: dict[str, Any]) -> StreamingQuery:
    """Start the query of the plan, which ends once it has drained the queue."""
    out, run = Path(plan["out"]), uuid.uuid4().hex[:8]
    step, last_batch = plan.get("kill") or ("", -1)

    def sink(frame: DataFrame, batch: int) -> None:
        if step == "committed" and batch > last_batch:
            # A thread of Spark's reports batches, and the query may overtake it.
            threading.Event().wait()
        found = rows_of(frame)
        if batch == last_batch and step == "before":
            die()
        text = json.dumps(found)
        path = out / f"{batch}.{run}.json"
        part = path.with_suffix(".part")
        part.write_text(text[: len(text) // 2])
        if batch == last_batch and step == "during":
            die()
        part.write_text(text)
        part.rename(path)
        if batch == last_batch and step == "after":
            die()

    form = plan.get("format", "sharegroup")
    source = spark.readStream.format(form).options(**plan["options"]).load()
    writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", plan["checkpoint"])
    return writer.trigger(availableNow=True).start()


def die_when_committed(spark: SparkSession, last_batch: int) -> None:
    """Die when Spark reports a batch, which it does once its commit log has the batch."""
    from pyspark.sql.streaming import StreamingQueryListener

    class Watch(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            if event.progress.batchId == last_batch:
                die()

    spark.streams.addListener(Watch())


def main(plan: dict[str, Any]) -> None:
    spark = session(Path(plan["checkpoint"]).parent, plan.get("cores", 2))
    step, last_batch = plan["kill"]
    if step == "committed":
        die_when_committed(spark, last_batch)
    start(spark, plan).awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
