"""Spark's daemon of Python workers, with the workers' imports done once in the daemon.

    spark.python.daemon.module = shoal_spark.daemon

Each core of an executor has one worker for the source and one for the job's functions, all forked
from the daemon. Spark's daemon imports nothing before the fork, because imports may start threads,
and a fork must not happen with threads. So each worker spends half a second of CPU or more on
imports. This daemon prevents the two libraries from starting threads. If it has another thread
anyway, it replaces itself with Spark's daemon.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def preload() -> bool:
    """Import what workers need. Return False if a fork would not be safe."""
    # Spark sets it to the cores of a task. With one core, OpenBLAS starts no threads.
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
