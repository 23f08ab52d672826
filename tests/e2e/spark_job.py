"""The job of test_spark_consumer: 20 ms for each record, which is then written to another topic.
There, its key names the micro-batch and the executor.

The driver gets it in a ConfigMap, so that the test defines the work.
"""

import functools
import socket
import threading

import shoal_spark
from pyspark.sql import SparkSession
from shoal_spark import arguments, topics

WORK_S = 0.02


def worked(number, batches):
    """Hold each record for as long as real work would take."""
    name = f"{number} {socket.gethostname()}".encode()
    for batch in batches:
        threading.Event().wait(WORK_S * len(batch))
        yield batch.assign(key=name)


def main() -> None:
    parser = arguments.parser("work")
    parser.add_argument("--results", required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.appName("work").getOrCreate()
    shoal_spark.register(spark)

    def write(batch, number: int) -> None:
        work = functools.partial(worked, number)
        done = batch.select("key", "value").mapInPandas(work, "key binary, value binary")
        topics.produce(done, {**arguments.connection(given), "topic": given.results})

    writer = arguments.load(spark, given).writeStream.foreachBatch(write)
    arguments.started(writer, given).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
