"""Run `make test` several times, also on a busy machine, and print a table of the results.

A test that fails in one run and not in another is broken: the table names its seed, and the run's
output is in `build/steady`. By default there are ten runs: four on an otherwise quiet machine, five
beside four busy loops, and one that gets only the time that four busy loops leave it (SCHED_IDLE).
The exit code is 1 if a run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "steady"
BUSY_LOOPS = 4
LOOP = "while True: pass"
KINDS = ("quiet", "busy", "idle")
#: pytest's closing line, such as "2 failed, 8000 passed in 812.31s (0:13:32)".
_CLOSING = re.compile(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Run(NamedTuple):
    """One run: its load, its seed, its time in seconds, pytest's counts, and the failed tests."""

    kind: str
    seed: int
    seconds: float
    counts: str
    failed: list[str]
    status: int


@contextlib.contextmanager
def keep_busy(loops: int) -> Iterator[None]:
    """Run busy loops at normal priority during the block."""
    processes = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(kind: str, number: int, command: list[str]) -> Run:
    """Run the command once under a kind of load, its output in `build/steady`."""
    seed = secrets.randbelow(1 << 32)
    words = ["chrt", "--idle", "0", *command] if kind == "idle" else command
    log = OUTPUT / f"{number}-{kind}.log"
    began = time.monotonic()
    with keep_busy(0 if kind == "quiet" else BUSY_LOOPS), log.open("w") as file:
        environment = {**os.environ, "SEED": str(seed)}
        done = subprocess.run(
            words, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    text = log.read_text(errors="replace")
    closing = _CLOSING.findall(text)
    failed = sorted(set(_FAILED.findall(text)))
    counts = closing[-1] if closing else "pytest did not end"
    return Run(kind, seed, time.monotonic() - began, counts, failed, done.returncode)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for kind, count in zip(KINDS, (4, 5, 1), strict=True):
        parser.add_argument(f"--{kind}", type=int, default=count, help=f"{kind} runs ({count})")
    parser.add_argument("command", nargs="*", default=["make", "test"], help="make test")
    arguments = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    plan = [kind for kind in KINDS for _ in range(getattr(arguments, kind))]
    print("| run | load | seed | min | result | failed |\n| --- | --- | --- | --- | --- | --- |")
    status = 0
    for number, kind in enumerate(plan, 1):
        result = run(kind, number, arguments.command)
        status = status or int(result.status != 0)
        names = ", ".join(result.failed) or "none"
        minutes = result.seconds / 60
        print(f"| {number} | {kind} | {result.seed} | {minutes:.1f} | {result.counts} | {names} |")
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
