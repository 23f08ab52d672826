"""Figures of the Spark source: `make bench-spark`, `BENCH="throughput scaling latency"` for some.

* throughput: rows per second in `local[2]` against Spark's own Kafka source, same topic and broker;
* scaling: records of 20 ms each, two partitions, six one-core executors (`local-cluster`), against
  the same job over Spark's Kafka source, which has one task per partition;
* latency: from produce to accepted, light load, default trigger, no work.

Each starts its own Shoal broker. The time from a backlog to the third executor needs Kubernetes and
is not measured here. Spark's Kafka source comes from Maven: `mvn -q -f bench/spark/pom.xml
dependency:copy-dependencies -DoutputDirectory=lib`.

Every timed drain must return each row once. A separate drain after the timed ones compares the
checksum of all values with the producer's, so that Spark's timed work does not change. A load that
fails has a row with the error, and the exit code is 1.
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
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shoal_spark
from pyspark.sql import DataFrame, SparkSession
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError, expect
from shoal_spark.arguments import BATCH_TARGET_MS

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parents[1] / "tests"), str(HERE.parent)]

from load_checks import LoadFailed  # noqa: E402
from report import show  # noqa: E402
from results import Clock, Goal, Results, document  # noqa: E402
from support.brokers.servers import ShoalProcess  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LIBRARY = HERE / "lib"
#: Jars that the Kafka source needs and PySpark lacks.
JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
PARTITIONS = 2
WORK_S = 0.02
EXECUTORS = 6
#: `share.partition.max.record.locks`, unless a batch needs more.
LOCKS = 2_000


@contextmanager
def session(master: str, **confs: str) -> Iterator[SparkSession]:
    """Return a session with Spark's Kafka source and Shoal's."""
    jars = [str(p) for p in LIBRARY.glob("*.jar") if p.name.startswith(JARS)]
    if len(jars) < len(JARS):
        sys.exit(
            f"Spark's Kafka source is missing in {LIBRARY}: mvn -q -f {HERE / 'pom.xml'} "
            "dependency:copy-dependencies -DoutputDirectory=lib"
        )
    paths = os.pathsep.join(sys.path)
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYTHONPATH=paths)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.jars": ",".join(jars),
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        **confs,
    }
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
    """Return a group that starts at the beginning of the topic, with this limit of locks."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    changes = [
        ConfigChange("share.auto.offset.reset", "earliest"),
        ConfigChange("share.partition.max.record.locks", str(locks)),
    ]
    expect(
        client.run(
            client.admin.configs.alter({ConfigResource(ConfigResourceType.GROUP, name): changes})
        )
    )
    return name


def fill(client: SyncClient, topic: str, rows: int, size: int) -> int:
    """Write text of this size in the producer's default batches; return the sum of all CRC-32."""
    text = (Path(__file__).read_text() * (size // 1000 + 1)).encode()

    async def send() -> None:
        async with client.client.producer(batch_bytes=16384) as producer:
            for number in range(rows):
                at = number % 500
                await producer.send(topic, text[at : at + size], partition=number % PARTITIONS)

    client.run(send())
    return sum(zlib.crc32(text[n % 500 : n % 500 + size]) for n in range(rows))


def progress(
    spark: SparkSession,
    kind: str,
    options: Mapping[str, str],
    sink: Callable[[DataFrame, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Drain a queue; return the progress of each batch with rows."""
    with tempfile.TemporaryDirectory() as checkpoint:
        frame = spark.readStream.format(kind).options(**options).load()
        writer = frame.writeStream.foreachBatch(sink) if sink else frame.writeStream.format("noop")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        found = [json.loads(p.json) for p in query.recentProgress]
    return [p for p in found if p["numInputRows"]]


def rate(batches: list[dict[str, Any]], rows: int, skip: int = 1) -> float:
    """Return rows per second; the first batch starts the workers and does not count."""
    got = sum(p["numInputRows"] for p in batches)
    if got != rows:
        raise LoadFailed(f"{got} instead of {rows} rows")
    if len(batches) <= skip:
        raise LoadFailed(f"{len(batches)} batches, of which {skip} do not count: raise --scale")
    seconds = sum(p["durationMs"]["triggerExecution"] for p in batches[skip:]) / 1000
    return sum(p["numInputRows"] for p in batches[skip:]) / seconds


class Bench:
    """A broker with room for one micro-batch in a group's locks, and a client."""

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
        self,
        spark: SparkSession,
        rows: int,
        size: int,
        per_trigger: int,
        skip: int,
        sink: Callable[[DataFrame, int], None] | None = None,
        find: int = 0,
        *,
        name: str,
        results: Results,
        **more: str,
    ) -> None:
        """Measure rows per second of Shoal's and Spark's source in alternating rounds.

        The first `find` batches of Shoal's source determine the batch size and do not count.
        """
        topic = new_topic(self.client)
        checksum = fill(self.client, topic, rows, size)
        where = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic}
        limit, sides = str(per_trigger), {"sharegroup": "shoal", "kafka": "kafka"}
        for number in range(self.given.rounds + 1):
            group = new_group(self.client, max(LOCKS, per_trigger // PARTITIONS))
            options = {
                "sharegroup": {**where, "group.id": group, "maxRecordsPerTrigger": limit, **more},
                "kafka": {**where, "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit},
            }
            for kind, side in sides.items():
                if number == self.given.rounds:
                    verify(spark, kind, options[kind], rows, checksum)
                    continue
                batches = progress(spark, kind, options[kind], sink)
                sizes = [(p["numInputRows"], p["durationMs"]["triggerExecution"]) for p in batches]
                print("   ", *(f"{n} in {ms / 1000:.1f} s" for n, ms in sizes), sep="  ")
                beside = skip + (find if kind == "sharegroup" else 0)
                found = rate(batches, rows, beside)
                results.add(name, side, {"rows_per_s": found})
                print(f"  {kind:10} {found:10,.0f} rows/s", flush=True)

    def throughput(self, name: str, results: Results) -> None:
        rows = int(200_000 * self.given.scale)
        with session("local[2]") as spark:
            self.compare(spark, rows, 1000, 20_000, skip=1, name=name, results=results)

    def scaling(self, name: str, results: Results) -> None:
        rows = int(14_000 * self.given.scale)
        with session(
            f"local-cluster[{EXECUTORS},1,512]",
            **{
                "spark.executor.memory": "512m",
                "spark.executor.cores": "1",
                "spark.python.daemon.module": "shoal_spark.daemon",
                "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            },
        ) as spark:
            # Like the jobs: batches with a target duration, within a group's default record locks.
            more = {
                "minPartitions": str(EXECUTORS),
                "batch.target.ms": str(BATCH_TARGET_MS),
                "maxRecordsPerTrigger": str(PARTITIONS * LOCKS),
            }
            self.compare(
                spark,
                rows,
                100,
                2_000,
                skip=1,
                sink=working,
                find=2,
                name=name,
                results=results,
                **more,
            )

    def latency(self, name: str, results: Results) -> None:
        """Measure seconds from produce until the group's start offset has passed the record."""
        topic, group = new_topic(self.client), new_group(self.client, 1000)
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic, "group.id": group}
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
        results.add(name, "shoal", {"p50_s": statistics.median(took), "max_s": took[-1]})


#: The first records start workers and compile Spark's plan.
WARM_UP = 5


def lag(client: SyncClient, group: str) -> int:
    """Return the number of unsettled records; 1 before the group has its partitions."""
    found = client.run(client.admin.share_groups.offsets([group]))[group]
    if isinstance(found, KafkaError):  # The group's first member creates it.
        return 1
    lags = [getattr(offset, "lag", -1) for offset in found.values()]
    return sum(lags) if lags and min(lags) >= 0 else 1


def working(frame: DataFrame, _batch: int) -> None:
    """Work 20 ms for each record on the executors."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for one in batches:
            time.sleep(WORK_S * one.num_rows)
            yield one

    frame.select("offset").mapInArrow(work, "offset long").write.format("noop").mode(
        "overwrite"
    ).save()


def verify(
    spark: SparkSession, kind: str, options: Mapping[str, str], rows: int, checksum: int
) -> None:
    """Drain the topic again, and raise LoadFailed unless its values are those sent."""
    found = [0, 0]

    def add(frame: DataFrame, _batch: int) -> None:
        count, total = frame.selectExpr("count(*)", "coalesce(sum(crc32(value)), 0)").first()
        found[0] += count
        found[1] += total

    progress(spark, kind, options, add)
    if found != [rows, checksum]:
        raise LoadFailed(f"{kind}: {found[0]} of {rows} rows, checksum {found[1]} not {checksum}")


#: The name of each load's row, and its goals.
LOADS = {
    "throughput": ("rows of 1 KB, count sink, local[2]", {"rows_per_s": Goal(0.8)}),
    "scaling": (f"20 ms a record, 2 partitions, {EXECUTORS} executors", {"rows_per_s": Goal(2.5)}),
    "latency": ("produce to accepted, light load", {"p50_s": Goal(1.0, more=False, alone=True)}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("loads", nargs="*", choices=[*LOADS, []], help="all without a name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="shorter below 1")
    parser.add_argument(
        "--into", type=Path, default=HERE.parent / "results", help="folder of the tables"
    )
    given = parser.parse_args()
    clock, results = Clock(), Results()
    for load in given.loads or LOADS:
        name = LOADS[load][0]
        print(name, flush=True)
        bench = Bench(given)
        try:
            getattr(bench, load)(name, results)
        except LoadFailed as error:
            results.fail(name, "shoal", error)
        finally:
            bench.close()
    goals = dict(LOADS.values())
    rows = results.rows(("rows_per_s", "p50_s", "max_s"), lambda n, f: goals[n].get(f))
    sides = {"shoal": "share group", "kafka": "Kafka source"}
    show(document("spark", clock, rows, scale=given.scale, sides=sides), given.into)
    print(clock.took())
    sys.exit(results.failed)


if __name__ == "__main__":
    main()
