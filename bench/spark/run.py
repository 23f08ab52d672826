"""The Spark source's figures: `make bench-spark`, `BENCH="throughput scaling latency"` for some.

* throughput: rows a second in `local[2]` against Spark's own Kafka source, same topic and broker;
* scaling: records of 20 ms each, two partitions, six one-core executors (`local-cluster`), against
  the same job over Spark's Kafka source, whose tasks are as many as the partitions;
* latency: from produce to accepted, light load, default trigger, no work.

Each starts a Shoal broker of its own. The time from a backlog to the third executor needs a
Kubernetes and is not measured here. Spark's Kafka source comes from Maven:
`mvn -q -f bench/spark/pom.xml dependency:copy-dependencies -DoutputDirectory=lib`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import shoal_spark
from pyspark.sql import DataFrame, SparkSession
from shoal.client.client import SyncClient
from shoal.client.configs import ConfigChange, Resource, ResourceType
from shoal.client.errors import KafkaError, expect
from shoal.client.topics import NewTopic
from shoal_spark.arguments import BATCH_TARGET_MS

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from servers import ShoalProcess  # noqa: E402

LIBRARY = HERE / "lib"
#: Jars without which the Kafka source does not load; PySpark has the others.
JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
PARTITIONS = 2
WORK_S = 0.02
EXECUTORS = 6
#: `share.partition.max.record.locks`, unless a batch needs more.
LOCKS = 2_000


@contextmanager
def session(master: str, **confs: str) -> Iterator[SparkSession]:
    """A session with Spark's Kafka source and ours."""
    jars = [str(p) for p in LIBRARY.glob("*.jar") if p.name.startswith(JARS)]
    if len(jars) < len(JARS):
        sys.exit(f"Spark's Kafka source is missing in {LIBRARY}: mvn -q -f {HERE / 'pom.xml'} "
                 "dependency:copy-dependencies -DoutputDirectory=lib")  # fmt: skip
    paths = os.pathsep.join(sys.path)
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYTHONPATH=paths)
    settings = {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.jars": ",".join(jars), "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2", **confs,
    }  # fmt: skip
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    shoal_spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def new_topic(client: SyncClient) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    expect(client.run(client.admin.topics.create([NewTopic(name, PARTITIONS, 1)])))
    return name


def new_group(client: SyncClient, locks: int) -> str:
    """A group that begins at the topic's beginning, with so many locks a partition."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    changes = [
        ConfigChange("share.auto.offset.reset", "earliest"),
        ConfigChange("share.partition.max.record.locks", str(locks)),
    ]
    expect(client.run(client.admin.configs.alter({Resource(ResourceType.GROUP, name): changes})))
    return name


def fill(client: SyncClient, topic: str, rows: int, size: int) -> None:
    """Text of that size, in the producer's default batches."""
    text = (Path(__file__).read_text() * (size // 1000 + 1)).encode()

    async def send() -> None:
        async with client.client.producer(batch_bytes=16384) as producer:
            for number in range(rows):
                at = number % 500
                await producer.send(topic, text[at : at + size], partition=number % PARTITIONS)

    client.run(send())


def progress(
    spark: SparkSession, kind: str, options: Mapping[str, str],
    sink: Callable[[DataFrame, int], None] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Drain a queue; the progress of each batch that had rows."""
    with tempfile.TemporaryDirectory() as checkpoint:
        frame = spark.readStream.format(kind).options(**options).load()
        writer = frame.writeStream.foreachBatch(sink) if sink else frame.writeStream.format("noop")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        found = [json.loads(p.json) for p in query.recentProgress]
    return [p for p in found if p["numInputRows"]]


def rate(batches: list[dict[str, Any]], rows: int, skip: int = 1) -> float:
    """Rows a second; the first batch starts the workers and does not count."""
    got = sum(p["numInputRows"] for p in batches)
    assert got == rows, f"{got} of {rows} rows"
    seconds = sum(p["durationMs"]["triggerExecution"] for p in batches[skip:]) / 1000
    return sum(p["numInputRows"] for p in batches[skip:]) / seconds


class Bench:
    """A broker with room for one micro-batch in a group's locks, and a client of it."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self._folder = tempfile.TemporaryDirectory()
        configs = {"group.share.max.partition.max.record.locks": "10000"}
        self._broker = ShoalProcess(Path(self._folder.name), configs=configs).start()
        self.bootstrap = self._broker.bootstrap
        self.client = SyncClient(self.bootstrap)

    def close(self) -> None:
        self.client.close()
        self._broker.stop()
        self._folder.cleanup()

    def compare(
        self, spark: SparkSession, rows: int, size: int, per_trigger: int, skip: int,
        sink: Callable[[DataFrame, int], None] | None = None, find: int = 0, **more: str,
    ) -> dict[str, float]:  # fmt: skip
        """Medians of rows a second, ours and Spark's, in rounds that alternate.

        `find` batches of ours do not count either, in which it finds their size.
        """
        topic = new_topic(self.client)
        fill(self.client, topic, rows, size)
        where = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic}
        limit, rates = str(per_trigger), {"sharegroup": [], "kafka": []}
        for _ in range(self.given.rounds):
            group = new_group(self.client, max(LOCKS, per_trigger // PARTITIONS))
            options = {
                "sharegroup": {
                    **where, "group.id": group, "maxRecordsPerTrigger": limit, **more
                },
                "kafka": {**where, "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit},
            }  # fmt: skip
            for kind, rounds in rates.items():
                batches = progress(spark, kind, options[kind], sink)
                told = [(p["numInputRows"], p["durationMs"]["triggerExecution"]) for p in batches]
                print("   ", *(f"{n} in {ms / 1000:.1f} s" for n, ms in told), sep="  ")
                beside = skip + (find if kind == "sharegroup" else 0)
                rounds.append(rate(batches, rows, beside))
                print(f"  {kind:10} {rounds[-1]:10,.0f} rows/s", flush=True)
        ours, theirs = (statistics.median(rounds) for rounds in rates.values())
        return {"sharegroup": ours, "kafka": theirs, "ratio": ours / theirs}

    def throughput(self) -> dict[str, float]:
        rows = int(200_000 * self.given.scale)
        with session("local[2]") as spark:
            return self.compare(spark, rows, 1000, 20_000, skip=1)

    def scaling(self) -> dict[str, float]:
        rows = int(14_000 * self.given.scale)
        with session(f"local-cluster[{EXECUTORS},1,512]",
                     **{"spark.executor.memory": "512m", "spark.executor.cores": "1",
                        "spark.python.daemon.module": "shoal_spark.daemon",
                        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", "")},
                     ) as spark:  # fmt: skip
            # As the jobs do it: batches of so many seconds, within a group's default record locks.
            more = {"minPartitions": str(EXECUTORS), "batch.target.ms": str(BATCH_TARGET_MS),
                    "maxRecordsPerTrigger": str(PARTITIONS * LOCKS)}  # fmt: skip
            return self.compare(spark, rows, 100, 2_000, skip=1, sink=working, find=2, **more)

    def latency(self) -> dict[str, float]:
        """Seconds from produce until the group's start offset has moved past the record."""
        topic, group = new_topic(self.client), new_group(self.client, 1000)
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic,
                   "group.id": group}  # fmt: skip
        took = []
        with session("local[2]") as spark, tempfile.TemporaryDirectory() as checkpoint:
            frame = spark.readStream.format("sharegroup").options(**options).load()
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.start()
            try:
                for _ in range(int(30 * self.given.scale) + WARM_UP):
                    began = time.perf_counter()
                    fill(self.client, topic, 1, 100)
                    while lag(self.client, group):
                        if error := query.exception():
                            raise error
                        time.sleep(0.002)
                    took.append(time.perf_counter() - began)
                    time.sleep(0.3)
            finally:
                query.stop()
        took = sorted(took[WARM_UP:])
        return {"p50_s": statistics.median(took), "max_s": took[-1]}


#: The first records start workers and compile Spark's plan.
WARM_UP = 5


def lag(client: SyncClient, group: str) -> int:
    """Records not settled; 1 while the group does not know its partitions."""
    found = client.run(client.admin.share_groups.offsets([group]))[group]
    if isinstance(found, KafkaError):  # The group comes to be with its first member.
        return 1
    lags = [getattr(offset, "lag", -1) for offset in found.values()]
    return sum(lags) if lags and min(lags) >= 0 else 1


def working(frame: DataFrame, batch: int) -> None:
    """20 ms for each record, on the executors."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for one in batches:
            time.sleep(WORK_S * one.num_rows)
            yield one

    frame.select("offset").mapInArrow(work, "offset long").write.format("noop").mode(
        "overwrite"
    ).save()


#: Figure and goal; a latency is better when it is lower.
GOALS = {"throughput": ("ratio", 0.8), "scaling": ("ratio", 2.5), "latency": ("p50_s", 1.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("loads", nargs="*", choices=[*GOALS, []], help="all without a name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="shorter below 1")
    given = parser.parse_args()
    for name in given.loads or GOALS:
        print(name, flush=True)
        bench = Bench(given)
        try:
            found = getattr(bench, name)()
        finally:
            bench.close()
        figure, goal = GOALS[name]
        told = ", ".join(f"{key} {value:,.2f}" for key, value in found.items())
        print(f"{name}: {told}; goal: {figure} {goal}", flush=True)


if __name__ == "__main__":
    main()
