"""The README's Python program completes the jobs that it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.queues import Queue

README = Path(__file__).parents[3] / "README.md"
_PROGRAM = re.compile(r"^```python\n(from shoal.client .*?)^```$", re.MULTILINE | re.DOTALL)


def test_no_run_of_the_program_leaves_a_job(queue: Queue) -> None:
    """Without an outcome, its jobs die: each run delivers them again. Each run adds a job."""
    (program,) = _PROGRAM.findall(README.read_text())
    for before, after in {
        "127.0.0.1:9092": queue.bootstrap,
        '"workers"': f'"{queue.group}"',
        '"jobs"': f'"{queue.topic}"',
        # A run takes as long as it waits for more work.
        "max_wait_ms=10_000": "max_wait_ms=2_000",
    }.items():
        assert before in program
        program = program.replace(before, after)
    jobs = [f"job {number}" for number in range(20)]
    printed: list[str] = []

    def run() -> bool:
        """Whether no job is left after one more run; a slow start may end before it gets any."""
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        printed.extend(done.stdout.splitlines())
        return queue.lag == 0

    queue.produce(jobs[:10])
    run()
    queue.produce(jobs[10:])
    eventually(run)
    own = [line for line in printed if "resize cat.png" in line]
    assert sorted(printed) == sorted([*(f"b'{job}' 1" for job in jobs), *own])
    assert own
