"""Measure `shoal up`: how soon a folder is ready, and what it takes when nothing happens.

`python bench/local_up.py [ROUNDS]` starts a folder with a cluster, a topic, a group and an idle
consumer for one broker and for three, in turn. It prints the seconds from the command to its line
that all is ready, the interpreter's start included; the CPU time of `shoal up` and of the brokers
until then; and the CPU time of the process `shoal up` as a share of a core, over half a minute in
which nothing happens. All are medians. Let the machine do nothing else: the CPU times alone say
something beside other loads.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from brokers import process_cpu_s
from support.brokers import forks
from support.brokers.local_up import LocalUp, make_queue, write_manifests
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

ROUNDS, SETTLE_S, IDLE_S = 3, 5.0, 30.0
READY = "All resources are ready"


class Start(NamedTuple):
    """Seconds until a new folder is ready, in which `up_cpu_s` and `brokers_cpu_s` were used, and
    the idle share of a core."""

    ready_s: float
    up_cpu_s: float
    brokers_cpu_s: float
    idle: float


def measure(brokers: int) -> Start:
    """Start a new folder with this number of brokers."""
    with tempfile.TemporaryDirectory(prefix="bench-up-") as temporary:
        folder = Path(temporary)
        write_manifests(folder, make_queue(["sleep", "1000"]))
        up = LocalUp(folder, f"--brokers={brokers}")
        began = time.monotonic()
        up.start()
        try:
            eventually(lambda: READY in up.output, what="a folder that is ready")
            ready_s = time.monotonic() - began
            used_s = process_cpu_s(up.process.pid)
            of_brokers_s = sum_cpu_s(up.list_processes().values())
            # What follows the last status is no idleness.
            time.sleep(SETTLE_S)
            idle_s, began = process_cpu_s(up.process.pid), time.monotonic()
            time.sleep(IDLE_S)
            idle_s = process_cpu_s(up.process.pid) - idle_s
            return Start(ready_s, used_s, of_brokers_s, idle_s / (time.monotonic() - began))
        finally:
            up.close()


def sum_cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU time that processes have used together."""
    return sum(map(process_cpu_s, pids))


def main() -> None:
    """Measure, and print a line for each number of brokers."""
    os.environ[forks.SWITCH] = "0"  # A user's command is no fork of one that has its modules.
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    runs: dict[int, list[Start]] = {1: [], 3: []}
    for _ in range(rounds):
        for brokers, starts in runs.items():
            starts.append(measure(brokers))
    for brokers, starts in runs.items():
        typical = Start(*map(statistics.median, zip(*starts, strict=True)))
        print(
            f"{brokers} brokers: ready after {typical.ready_s:.1f} s, with "
            f"{typical.up_cpu_s:.2f} s of CPU in shoal up and {typical.brokers_cpu_s:.2f} s in "
            f"brokers; idle {100 * typical.idle:.2f} % of a core"
        )


if __name__ == "__main__":
    main()
