"""What the Java tests of a run need, begun when it has collected its tests, beside the first ones:
the plain Kafka that they share, and the archives of classes if they are missing.

    python early_java.py DIRECTORY PID

has the directory of the run and the process that ends last, as `shared_servers` wants them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.brokers.shared_servers import shared_kafka
from support.kafka import class_archives
from support.runs import leaks

#: The priority of making archives: the tests come first.
NICENESS = 10


def start(directory: Path, controller_pid: int) -> None:
    """Start a process for the whole run, unless another test process of the run has done so."""
    try:
        log = (directory / "early-java.log").open("xb")
    except FileExistsError:
        return
    with log, leaks.unmarked():
        _processes.append(
            subprocess.Popen(
                [sys.executable, __file__, str(directory), str(controller_pid)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        )


#: Nobody waits for them.
_processes: list[subprocess.Popen[bytes]] = []


def main(directory: Path, controller_pid: int) -> None:
    leaks.mark()
    shared_kafka(directory, controller_pid)
    os.nice(NICENESS)
    class_archives.make()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
