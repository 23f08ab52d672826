"""Spark's daemon of Python workers, which imports once what each worker would import.

    spark.python.daemon.module = shoal_spark.daemon

Each core of an executor has a worker that reads the source and one for the job's own functions, all
forked from the daemon. Spark's own imports nothing before, since imports may start threads, which
no fork may follow; so each worker imports for half a second of CPU and more. Here the two that
would are kept from it, and a daemon that has another thread all the same becomes Spark's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def preload() -> bool:
    """Import what workers need; False if that was not safe before a fork."""
    # Spark gives executors the cores of a task here. With one, OpenBLAS starts no threads.
    if os.environ.get("OMP_NUM_THREADS") != "1":
        return False
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    from pyspark import worker  # noqa: F401
    from pyspark.sql.pandas import serializers  # noqa: F401

    import shoal_spark.range_reader  # noqa: F401

    tasks = Path("/proc/self/task")
    return tasks.exists() and len(list(tasks.iterdir())) == 1


def main() -> None:
    if not preload():
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
