"""The job of test_spark_consumer: 20 ms for each record, which is then written to another topic.
There, its key names the micro-batch and the executor. With `--begin-with`, the first micro-batch
waits until this number of executors is there, however long they take to start.

The driver gets it in a ConfigMap, so that the test defines the work.
"""

import functools
import socket
import threading

import shoal_spark
from pyspark.sql import SparkSession
from shoal_spark import arguments, topics
from shoal_spark.allocation import Executors

WORK_S = 0.02
LOOK_EVERY_S = 0.5


def worked(number, batches):
    """Hold each record for as long as real work would take."""
    name = f"{number} {socket.gethostname()}".encode()
    for batch in batches:
        threading.Event().wait(WORK_S * len(batch))
        yield batch.assign(key=name)


def wait_for_executors(spark, count):
    """Wait until this number of executors is there."""
    present, pause = Executors(spark), threading.Event()
    while sum(one.id != "driver" for one in present.list_present()) < count:
        pause.wait(LOOK_EVERY_S)


def main() -> None:
    parser = arguments.build_parser("work")
    parser.add_argument("--results", required=True)
    parser.add_argument("--begin-with", type=int, default=0)
    given = parser.parse_args()
    spark = SparkSession.builder.appName("work").getOrCreate()
    shoal_spark.register(spark)

    def write(batch, number: int) -> None:
        if number == 0:
            wait_for_executors(spark, given.begin_with)
        work = functools.partial(worked, number)
        done = batch.select("key", "value").mapInPandas(work, "key binary, value binary")
        topics.produce(done, {**arguments.select_connection_options(given), "topic": given.results})

    writer = arguments.load(spark, given).writeStream.foreachBatch(write)
    arguments.configure_writer(writer, given).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
