"""A streaming query as a separate program, with an event log and the UI, whose pages it saves.

    python spark_secrets.py '{"options": {…}, "folder": "…", "spoil": "…"}'

Everything that Spark shows about the query goes into the folder: plans, progress, event log,
checkpoint, and pages of the UI. In each batch, before executors read, the query overwrites the file
`spoil`, which its login may refer to, and restores it afterwards.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGES = ("environment/", "SQL/execution/?id=0", "StreamingQuery/")
API = ("environment", "sql?details=true&planDescription=true")


def session(folder: Path) -> SparkSession:
    import shoal_spark
    from pyspark.sql import SparkSession

    (folder / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder.parent / "local"),
        # Each worker of Spark's own daemon spends half a second of CPU on imports.
        "spark.python.daemon.module": "shoal_spark.daemon",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.network.timeout": "600s",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("INFO")
    shoal_spark.register(spark)
    return spark


def explained(frame: DataFrame) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        frame.explain(True)
        frame.explain("formatted")
    return out.getvalue()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=180) as answer:
        return bytes(answer.read())


def drain(spark: SparkSession, options: dict[str, str], folder: Path, spoiled: Path) -> None:
    """Run a query to its end, and write what Spark shows about it."""
    folder.mkdir()
    source = spark.readStream.format("sharegroup").options(**options).load()
    rows: list[str] = []

    def sink(frame: DataFrame, batch: int) -> None:
        (folder / f"batch-{batch}.txt").write_text(explained(frame))
        kept = spoiled.read_bytes()
        spoiled.write_text("spoiled")
        try:
            rows.extend(bytes(row["value"]).decode() for row in frame.select("value").collect())
        finally:
            spoiled.write_bytes(kept)

    writer = source.writeStream.foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    (folder / "plan.txt").write_text(explained(source))
    (folder / "query.txt").write_text("\n".join(str(one) for one in query.recentProgress))
    (folder / "rows.json").write_text(json.dumps(sorted(rows)))


def main(plan: dict[str, Any]) -> None:
    folder = Path(plan["folder"])
    spark = session(folder)
    drain(spark, plan["options"], folder / "query", Path(plan["spoil"]))
    url = spark.sparkContext.uiWebUrl
    for number, page in enumerate(PAGES):
        (folder / f"page-{number}.html").write_bytes(get(f"{url}/{page}"))
    for number, page in enumerate(API):
        where = f"{url}/api/v1/applications/{spark.sparkContext.applicationId}/{page}"
        (folder / f"api-{number}.json").write_bytes(get(where))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
