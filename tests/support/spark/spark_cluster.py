"""A streaming query on executors in separate processes, for tests to control and to kill.

    python spark_cluster.py '{"options": {…}, "place": "…"}'

Runs in `local-cluster[2,1,512]` until it is stopped. `place/executors` holds the number of
executors wanted. Each task waits until there is a file `place/go`. `place/state.json` holds the
state: the application's id, the ids of its executors and of those with a task, and the values
processed so far, each as often as it was processed. If the query fails, `place/failure` says why.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

EXECUTORS = 2
LOOK_EVERY_S = 0.2


def session(place: Path) -> SparkSession:
    import shoal_spark
    from pyspark.sql import SparkSession
    from shoal_spark import scaling

    os.environ[scaling.FILE] = str(place / "executors")
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {
        "spark.driver.extraJavaOptions": quick,
        "spark.executor.extraJavaOptions": quick,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.decommission.enabled": "true",
        "spark.local.dir": str(place / "local"),
        "spark.python.daemon.module": "shoal_spark.daemon",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    }
    builder = SparkSession.builder.master(f"local-cluster[{EXECUTORS},1,512]").appName("tests")
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    shoal_spark.register(spark)
    return spark


def hold(go: Path, batches: Iterator[Any]) -> Iterator[Any]:
    """Hold all records until there is a file `go`."""
    pause = threading.Event()
    for batch in batches:
        while not go.exists():
            pause.wait(LOOK_EVERY_S)
        yield batch


def main(plan: dict[str, Any]) -> None:
    import pyspark
    from shoal_spark.allocation import Executors

    place = Path(plan["place"])
    spark = session(place)
    done: list[str] = []
    held = partial(hold, place / "go")

    def sink(frame: DataFrame, _batch: int) -> None:
        rows = frame.select("value").mapInArrow(held, "value binary").collect()
        done.extend(bytes(row["value"]).decode() for row in rows)

    source = spark.readStream.format("sharegroup").options(**plan["options"]).load()
    writer = source.writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(place / "checkpoint")).start()
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    executors, name = Executors(spark), spark.sparkContext.applicationId
    while not over.wait(LOOK_EVERY_S) and query.isActive:
        there = [e for e in executors.list_present() if e.id != "driver"]
        state = {
            "application": name,
            "executors": [executor.id for executor in there],
            "busy": [executor.id for executor in there if executor.running],
            "done": done,
        }
        part = place / "state.part"
        part.write_text(json.dumps(state))
        part.rename(place / "state.json")
    if error := query.exception():
        (place / "failure").write_text(str(error))
        raise error
    query.stop()
    spark.stop()
    # The workers of `local-cluster` keep their executors' logs only there.
    shutil.rmtree(Path(pyspark.__file__).parent / "work" / name, ignore_errors=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
