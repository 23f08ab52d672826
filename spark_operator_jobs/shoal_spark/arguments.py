"""Arguments that every job has, with defaults from the operator's environment variables.

The operator sets SHOAL_BOOTSTRAP_SERVERS, SHOAL_GROUP_ID, SHOAL_COMMAND_CONFIG and so on for the
driver of a ShareConsumer. So a job needs no arguments there, and takes them on a laptop.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from shoal_spark.options import BOOTSTRAP, login

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

#: Target duration of a batch. The overhead of a second or two is a tenth of it, and it is half of
#: the default lock duration.
BATCH_TARGET_MS = 15_000


def parser(description: str, *, topics: str = "", group: str = "") -> argparse.ArgumentParser:
    """Return a parser of the common arguments; a job adds its own. `topics` and `group` are
    defaults.
    """
    made = argparse.ArgumentParser(description=description.partition("\n")[0])
    found = os.environ.get
    made.add_argument(
        "--bootstrap-servers", default=found("SHOAL_BOOTSTRAP_SERVERS", "localhost:9092")
    )
    made.add_argument("--topics", default=found("SHOAL_TOPICS", topics), help="separated by commas")
    made.add_argument("--group", default=found("SHOAL_GROUP_ID", group))
    made.add_argument("--checkpoint", default=found("SHOAL_CHECKPOINT", ""), metavar="URI")
    made.add_argument(
        "--max-records",
        type=int,
        default=int(found("SHOAL_MAX_RECORDS_PER_TRIGGER", "10000")),
        help="records of one micro-batch",
    )
    made.add_argument(
        "--batch-target-ms",
        type=int,
        default=int(found("SHOAL_BATCH_TARGET_MS", str(BATCH_TARGET_MS))),
        help="target duration of a micro-batch; not with a --trigger",
    )
    cores = int(found("SHOAL_CORES_PER_EXECUTOR", "1"))
    made.add_argument(
        "--tasks",
        type=int,
        default=cores * int(found("SHOAL_MAX_EXECUTORS", "0")),
        help="minimum tasks of a micro-batch, so that all cores have work",
    )
    made.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further option of the source, such as kafka.security.protocol=SSL",
    )
    made.add_argument(
        "--trigger", default="", help="such as '5 seconds'. Default: start batches at once"
    )
    made.add_argument(
        "--available-now", action="store_true", help="process the available records and end"
    )
    return made


def options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of the source. Raises `OSError`."""
    found = {
        BOOTSTRAP: given.bootstrap_servers,
        "group.id": given.group,
        "subscribe": given.topics,
        "maxRecordsPerTrigger": str(given.max_records),
        **login(),
    }
    if given.tasks:
        # Each task needs a record.
        found["minPartitions"] = str(min(given.tasks, given.max_records))
    if not given.trigger:
        found["batch.target.ms"] = str(given.batch_target_ms)
    for text in given.option:
        name, _, value = text.partition("=")
        found[name] = value
    return found


def connection(given: argparse.Namespace) -> dict[str, str]:
    """Return the `options` of the connection, for sinks. Raises `OSError`."""
    return {n: v for n, v in options(given).items() if n.lower().startswith("kafka.")}


def load(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Return the stream of the source."""
    return spark.readStream.format("sharegroup").options(**options(given)).load()


def started(writer: DataStreamWriter, given: argparse.Namespace) -> DataStreamWriter:
    """Return the writer with the requested checkpoint and trigger."""
    if given.checkpoint:
        writer = writer.option("checkpointLocation", given.checkpoint)
    if given.available_now:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=given.trigger) if given.trigger else writer
