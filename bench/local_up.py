"""Measure `shoal up`: how soon a folder is ready, and what it takes when nothing happens.

`python bench/local_up.py [ROUNDS]` starts a folder with a cluster, a topic, a group and an idle
consumer for one broker and for three, in turn. It prints the seconds from the command to its line
that all is ready, the interpreter's start included, and the CPU time of the process `shoal up` as a
share of a core, over half a minute in which nothing happens. Both are medians. Let the machine do
nothing else.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from brokers import process_cpu_s
from conditions import eventually
from local_up import LocalUp, make_queue, write_manifests

ROUNDS, IDLE_S = 3, 30.0
READY = "All resources are ready"


def measure(brokers: int) -> tuple[float, float]:
    """Return the seconds until a new folder is ready, and the idle share of a core."""
    with tempfile.TemporaryDirectory(prefix="bench-up-") as temporary:
        folder = Path(temporary)
        write_manifests(folder, make_queue(["sleep", "1000"]))
        up = LocalUp(folder, f"--brokers={brokers}")
        began = time.monotonic()
        up.start()
        try:
            eventually(lambda: READY in up.output, what="a folder that is ready")
            ready_s = time.monotonic() - began
            used_s, began = process_cpu_s(up.process.pid), time.monotonic()
            time.sleep(IDLE_S)
            used_s = process_cpu_s(up.process.pid) - used_s
            return ready_s, used_s / (time.monotonic() - began)
        finally:
            up.close()


def main() -> None:
    """Measure, and print a line for each number of brokers."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    runs: dict[int, list[tuple[float, float]]] = {1: [], 3: []}
    for _ in range(rounds):
        for brokers, measured in runs.items():
            measured.append(measure(brokers))
    for brokers, measured in runs.items():
        ready_s, idle = (statistics.median(figures) for figures in zip(*measured, strict=True))
        print(f"{brokers} brokers: ready after {ready_s:.1f} s, idle {100 * idle:.2f} % of a core")


if __name__ == "__main__":
    main()
