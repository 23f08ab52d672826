"""Spark on one machine, for quick starts and the demo.

Spark asks for the machine's host name and ends with a long trace if it does not resolve. It also
listens on the network, which a session of one machine does not need. Both end here: local mode uses
the loopback address.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import shoal_spark
from shoal_spark import java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
#: Variables for a process that starts Spark's JVM. Before it reads its settings, Spark looks up the
#: host name, unless SPARK_LOCAL_IP is set.
VARIABLES = {"SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
SETTINGS = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.showConsoleProgress": "false",
    # Short jobs end before the better compiler has paid for itself.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # A busy machine starts a Python worker slowly.
    "spark.python.authenticate.socketTimeout": "120s",
    # Python workers start with their imports done.
    "spark.python.daemon.module": "shoal_spark.daemon",
}


class NoJava(Exception):
    """What is wrong with Java on this machine and the remedy, as one line."""


def start_session(cores: int = 2, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session of `cores` tasks at once on the loopback address, with Shoal's formats.

    It serves no pages and logs errors only. `settings` are added to Spark's. Raises `NoJava`.
    """
    if lacking := java.find_problem():
        raise NoJava(lacking)
    from pyspark.sql import SparkSession

    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    session = builder.config(map={**SETTINGS, **(settings or {})}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    shoal_spark.register(session)
    return session
