"""Rows a second of the share-group source, against Spark's own Kafka source.

    python source_throughput.py --bootstrap-servers localhost:9092

Both read the same topic of the same broker, in `local[2]`, to the sink that drops rows, with the
same limit of a micro-batch; the broker must allow a share group as many locks as that, see
`group.share.max.partition.max.record.locks`. Runs alternate, and the first batch of each, which
starts the workers, does not count. Needs the jars of `pom.xml` in `lib`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import shoal_spark
from pyspark.sql import SparkSession
from shoal.client.client import SyncClient
from shoal.client.configs import ConfigChange, Resource, ResourceType
from shoal.client.errors import expect
from shoal.client.topics import NewTopic

LIBRARY = Path(__file__).parent / "lib"
#: Jars without which the Kafka source does not load; PySpark has the others.
JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")


def fill(client: SyncClient, topic: str, given: argparse.Namespace) -> None:
    """Text of the size asked for, in batches of the producer's default size."""
    expect(client.run(client.admin.topics.create([NewTopic(topic, given.partitions, 1)])))
    text = (Path(__file__).read_text() * (given.size // 1000 + 1)).encode()

    async def send() -> None:
        async with client.client.producer(batch_bytes=given.batch_bytes) as producer:
            for number in range(given.rows):
                at = number % 500
                await producer.send(
                    topic, text[at : at + given.size], partition=number % given.partitions
                )

    client.run(send())


def measure(spark: SparkSession, kind: str, options: Mapping[str, str]) -> tuple[float, int]:
    """Rows a second over all batches but the first, and the rows of all."""
    with tempfile.TemporaryDirectory() as checkpoint:
        frame = spark.readStream.format(kind).options(**options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress: list[dict[str, Any]] = [json.loads(p.json) for p in query.recentProgress]
    batches = [p for p in progress if p["numInputRows"]]
    seconds = sum(p["durationMs"]["triggerExecution"] for p in batches[1:]) / 1000
    return sum(p["numInputRows"] for p in batches[1:]) / seconds, sum(
        p["numInputRows"] for p in batches
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap-servers", default="localhost:9092")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--batch-bytes", type=int, default=16384)
    parser.add_argument("--per-trigger", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-kafka-source", action="store_true")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = [str(p) for p in LIBRARY.glob("*.jar") if p.name.startswith(JARS)]
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
                "spark.jars": ",".join(jars), "spark.driver.memory": "2g"}  # fmt: skip
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    shoal_spark.register(spark)
    figures: dict[str, list[float]] = {"sharegroup": [], "kafka": []}
    with SyncClient(given.bootstrap_servers) as client:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        fill(client, topic, given)
        where = {"kafka.bootstrap.servers": given.bootstrap_servers, "subscribe": topic}
        for _ in range(given.rounds):
            group = f"bench-{uuid.uuid4().hex[:8]}"
            locks = str(given.per_trigger // given.partitions)
            changes = [
                ConfigChange("share.auto.offset.reset", "earliest"),
                ConfigChange("share.partition.max.record.locks", locks),
            ]
            resource = Resource(ResourceType.GROUP, group)
            expect(client.run(client.admin.configs.alter({resource: changes})))
            limit = str(given.per_trigger)
            ours = {**where, "group.id": group, "maxRecordsPerTrigger": limit}
            theirs = {**where, "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
            for kind, options in (("sharegroup", ours), ("kafka", theirs)):
                if kind == "kafka" and given.without_kafka_source:
                    continue
                rate, rows = measure(spark, kind, options)
                assert rows == given.rows, f"{kind}: {rows} of {given.rows} rows"
                figures[kind].append(rate)
                print(f"{kind:10} {rate:10,.0f} rows/s", flush=True)
    middle = {kind: statistics.median(some) for kind, some in figures.items() if some}
    if len(middle) == 2:
        print(f"ratio of medians {middle['sharegroup'] / middle['kafka']:.2f}")
    spark.stop()


if __name__ == "__main__":
    main()
