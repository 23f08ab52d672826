"""Arguments that every job has, with defaults from the operator's environment variables.

The operator sets SHOAL_BOOTSTRAP_SERVERS, SHOAL_GROUP_ID, SHOAL_COMMAND_CONFIG and so on for the
driver of a ShareConsumer. So a job needs no arguments there, and takes them on a laptop.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from shoal_spark.options import BOOTSTRAP, load_login

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

#: Target duration of a batch. The overhead of a second or two is a tenth of it, and it is half of
#: the default lock duration.
BATCH_TARGET_MS = 15_000


def build_parser(description: str, *, topics: str = "", group: str = "") -> argparse.ArgumentParser:
    """Return a parser of the common arguments; a job adds its own. `topics` and `group` are
    defaults.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    get_variable = os.environ.get
    parser.add_argument(
        "--bootstrap-servers", default=get_variable("SHOAL_BOOTSTRAP_SERVERS", "localhost:9092")
    )
    parser.add_argument(
        "--topics", default=get_variable("SHOAL_TOPICS", topics), help="separated by commas"
    )
    parser.add_argument("--group", default=get_variable("SHOAL_GROUP_ID", group))
    parser.add_argument("--checkpoint", default=get_variable("SHOAL_CHECKPOINT", ""), metavar="URI")
    parser.add_argument(
        "--max-records",
        type=int,
        default=int(get_variable("SHOAL_MAX_RECORDS_PER_TRIGGER", "10000")),
        help="records of one micro-batch",
    )
    parser.add_argument(
        "--batch-target-ms",
        type=int,
        default=int(get_variable("SHOAL_BATCH_TARGET_MS", str(BATCH_TARGET_MS))),
        help="target duration of a micro-batch; not with a --trigger",
    )
    cores = int(get_variable("SHOAL_CORES_PER_EXECUTOR", "1"))
    parser.add_argument(
        "--tasks",
        type=int,
        default=cores * int(get_variable("SHOAL_MAX_EXECUTORS", "0")),
        help="minimum tasks of a micro-batch, so that all cores have work",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further option of the source, such as kafka.security.protocol=SSL",
    )
    parser.add_argument(
        "--trigger", default="", help="such as '5 seconds'. Default: start batches at once"
    )
    parser.add_argument(
        "--available-now", action="store_true", help="process the available records and end"
    )
    return parser


def build_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the source. Raises `OSError`."""
    options = {
        BOOTSTRAP: arguments.bootstrap_servers,
        "group.id": arguments.group,
        "subscribe": arguments.topics,
        "maxRecordsPerTrigger": str(arguments.max_records),
        **load_login(),
    }
    if arguments.tasks:
        # Each task needs a record.
        options["minPartitions"] = str(min(arguments.tasks, arguments.max_records))
    if not arguments.trigger:
        options["batch.target.ms"] = str(arguments.batch_target_ms)
    for text in arguments.option:
        name, _, value = text.partition("=")
        options[name] = value
    return options


def select_connection_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the `options` of the connection, for sinks. Raises `OSError`."""
    return {n: v for n, v in build_options(arguments).items() if n.lower().startswith("kafka.")}


def load(spark: SparkSession, arguments: argparse.Namespace, **options: str) -> DataFrame:
    """Return the stream of the source; `options` are defaults that the arguments may change."""
    chosen = options | build_options(arguments)
    return spark.readStream.format("sharegroup").options(**chosen).load()


def configure_writer(writer: DataStreamWriter, arguments: argparse.Namespace) -> DataStreamWriter:
    """Return the writer with the requested checkpoint and trigger."""
    if arguments.checkpoint:
        writer = writer.option("checkpointLocation", arguments.checkpoint)
    if arguments.available_now:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=arguments.trigger) if arguments.trigger else writer
