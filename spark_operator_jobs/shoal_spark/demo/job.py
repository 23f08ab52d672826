"""Runs a job and notes how many of its tasks run at once; the demo reads the note.

    python -m shoal_spark.demo.job NOTE JOB.py [ARGUMENT...]

Spark's pages could be asked too, but serving them costs more CPU than the demo's images.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import threading
from collections import deque
from pathlib import Path

EVERY_S = 0.02
#: Counts of which the largest is noted. The demo looks twice a second, and tasks may be shorter.
RECENT = 25


def count_active_tasks() -> int:
    """Return the number of tasks that run in this process's Spark, 0 before it has started."""
    from pyspark.sql import SparkSession

    # The active session is that of a thread, and this is another thread than the job's.
    session = getattr(SparkSession, "_instantiatedSession", None)
    if session is None:
        return 0
    tracker = session.sparkContext.statusTracker()
    stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def note_tasks(note: Path, stopped: threading.Event) -> None:
    """Write the number of tasks of the last half second to `note`, and the largest one so far.

    Each write replaces the file.
    """
    from py4j.protocol import Py4JError

    new, most, written = note.with_suffix(".new"), 0, ""
    recent: deque[int] = deque(maxlen=RECENT)
    # A Spark that has ended is the job's own failure, which the job prints.
    with contextlib.suppress(Py4JError, OSError):
        while not stopped.wait(EVERY_S):
            recent.append(count_active_tasks())
            most = max(most, *recent)
            text = f"{max(recent)} {most}"
            if text != written:
                new.write_text(text)
                new.replace(note)
                written = text


def main() -> None:
    note, job = Path(sys.argv[1]), sys.argv[2]
    stopped = threading.Event()
    threading.Thread(target=note_tasks, args=(note, stopped), daemon=True).start()
    sys.argv = sys.argv[2:]
    try:
        runpy.run_path(job, run_name="__main__")
    finally:
        stopped.set()


if __name__ == "__main__":
    main()
