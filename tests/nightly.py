"""The long tail of tests, part by part: `make nightly`.

NIGHTLY_HOURS (8) is the time in hours of the parts that can use any: simulations, fuzzing and
faults. The other parts take as long as they need. All draws come from NIGHTLY_SEED. Without it,
each night draws another one and prints it. NIGHTLY_PARTS names the parts to run, all by default.
NIGHTLY_LANES (1) is the number of parts that run at once. The longest ones begin first.

A part that fails does not stop the others. Each writes its output into build/nightly/PART.log. The
summary names the parts that failed, and then the exit code is 1.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
#: What a part may take beyond its time, in seconds, to prepare and to end.
SLACK_S = 1800.0
#: Upper bound of a part without a given time, in seconds.
UNTIMED_S = 6 * 3600.0
#: What a whole night gives the soak test of key ranges, in seconds.
RANGES_S = 1800.0
#: The exit codes of `timeout`, and of a shell whose command was interrupted.
TOO_LATE, INTERRUPTED = 124, 130
CUT_SHORT = {TOO_LATE: "did not end in time", INTERRUPTED: "was interrupted"}
#: Lines of a failed part's output that are printed.
TAIL = 40


class Command(NamedTuple):
    words: Sequence[str]
    environment: Mapping[str, str] = {}

    def shown(self) -> str:
        pairs = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join([*pairs, *self.words])


class Simulation(NamedTuple):
    """A simulation, the variable that chooses its seeds, and the number of seeds of one round,
    which takes some minutes on two cores."""

    path: str
    variable: str
    seeds: int


#: The rounds of `seeds` alternate between these.
SIMULATIONS = (
    Simulation("tests/sim/test_cluster_sim.py", "CLUSTER_SEEDS", 200),
    Simulation("tests/sim/test_quorum_sim.py", "SEEDS", 1_000),
    Simulation("tests/sim/test_replica_sim.py", "SEEDS", 1_000),
    Simulation("tests/sim/test_lost_clusters.py", "LOST_SEEDS", 300),
)


class Part(NamedTuple):
    """`command` makes the n-th command. With `seconds`, it runs again until they have passed."""

    name: str
    command: Callable[[int], Command]
    limit_s: float
    seconds: float = 0.0


class Outcome(NamedTuple):
    part: str
    seconds: float
    commands: int
    #: The command that failed, and how; empty if none did.
    failure: str


def parts_of(hours: float, seed: int) -> list[Part]:
    """All parts in the order in which they begin: the longest ones first."""
    whole_s = hours * 3600
    seeds_s, fuzz_s, faults_s = 0.4 * whole_s, 0.2 * whole_s, 0.4 * whole_s
    first = random.Random(seed).randrange(10**6, 10**9)
    #: `seeding` draws all other inputs from it.
    drawn = {"SEED": str(seed)}

    def seeds(number: int) -> Command:
        path, variable, count = SIMULATIONS[number % len(SIMULATIONS)]
        begin = first + number // len(SIMULATIONS) * count
        words = (*PYTEST, f"--timeout={UNTIMED_S:.0f}", path, "-k", "test_seeds")
        return Command(words, {variable: f"{begin}-{begin + count - 1}"})

    def faults(_number: int) -> Command:
        words = (
            *PYTEST,
            "-s",
            f"--timeout={faults_s + SLACK_S:.0f}",
            "tests/cluster/test_faults.py",
            "-k",
            "five",
        )
        return Command(words, {**drawn, "FAULTS_S": f"{faults_s:.0f}"})

    marked = Command(
        (*PYTEST, f"--timeout={UNTIMED_S:.0f}", "-m", "nightly", "tests", "--ignore=tests/e2e"),
        {**drawn, "RANGES_S": f"{min(RANGES_S, whole_s / 16):.0f}"},
    )
    fuzz = Command(("make", "fuzz", f"FUZZ=--seconds {fuzz_s:.0f}"), drawn)
    e2e = Command(("make", "e2e"), {**drawn, "PYTEST_ADDOPTS": "-m 'nightly or not nightly'"})
    return [
        Part("e2e", lambda _: e2e, UNTIMED_S),
        Part("tests", lambda _: marked, UNTIMED_S),
        Part("seeds", seeds, seeds_s + SLACK_S, seeds_s),
        Part("fuzz", lambda _: fuzz, fuzz_s + SLACK_S),
        Part("faults", faults, faults_s + SLACK_S),
    ]


def run(part: Part, folder: Path, interrupted: threading.Event) -> Outcome:
    """Run a part, its output in `folder`. It ends at its first failure, or when interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    began, number = time.monotonic(), 0
    with (folder / f"{part.name}.log").open("w") as log:
        while True:
            command = part.command(number)
            print(f"{part.name}: {command.shown()}", flush=True)
            left = part.limit_s - (time.monotonic() - began)
            status = _run(command, log.fileno(), left, interrupted)
            number += 1
            seconds = time.monotonic() - began
            if status:
                how = CUT_SHORT.get(status, f"exit code {status}")
                return Outcome(part.name, seconds, number, f"{command.shown()}: {how}")
            if seconds >= part.seconds:
                return Outcome(part.name, seconds, number, "")


def _run(command: Command, log: int, limit_s: float, interrupted: threading.Event) -> int:
    """Exit code of a command. One that is cut short is killed, with all it started."""
    process = subprocess.Popen(
        command.words,
        cwd=ROOT,
        env={**os.environ, **command.environment},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    end = time.monotonic() + max(1.0, limit_s)
    try:
        while (left := end - time.monotonic()) > 0 and not interrupted.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(1.0, left))
        return INTERRUPTED if interrupted.is_set() else TOO_LATE
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def summary(outcomes: Sequence[Outcome], folder: Path) -> str:
    lines = [f"{'part':8} {'result':7} {'min':>6} {'commands':>9}"]
    for one in outcomes:
        result = "failed" if one.failure else "passed"
        lines.append(f"{one.part:8} {result:7} {one.seconds / 60:6.1f} {one.commands:9}")
    for one in outcomes:
        if one.failure:
            log = folder / f"{one.part}.log"
            tail = log.read_text(errors="replace").splitlines()[-TAIL:]
            lines += ["", f"{one.part}: {one.failure}", f"The end of {log}:", *tail]
    return "\n".join(lines)


def night(parts: Sequence[Part], folder: Path, lanes: int = 1) -> int:
    """Run all parts, `lanes` at once, print the summary, and return the exit code.

    An interrupt ends the parts that run, and no other one begins.
    """
    outcomes: list[Outcome] = []
    interrupted = threading.Event()

    def in_lane(part: Part) -> None:
        if interrupted.is_set():
            return
        outcome = run(part, folder, interrupted)
        print(f"{part.name}: {outcome.failure or 'passed'}", flush=True)
        outcomes.append(outcome)

    with ThreadPoolExecutor(lanes) as pool:
        begun = [pool.submit(in_lane, part) for part in parts]
        try:
            for one in begun:
                one.result()
        except KeyboardInterrupt:
            interrupted.set()
            print("interrupted", flush=True)
    print(summary(outcomes, folder), flush=True)
    return int(len(outcomes) < len(parts) or any(one.failure for one in outcomes))


def main() -> None:
    # SIGTERM ends what runs, as an interrupt does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = int(os.environ.get("NIGHTLY_SEED") or random.SystemRandom().randrange(10**6))
    parts = parts_of(float(os.environ.get("NIGHTLY_HOURS") or 8), seed)
    wanted = (os.environ.get("NIGHTLY_PARTS") or " ".join(p.name for p in parts)).split()
    if unknown := set(wanted) - {part.name for part in parts}:
        sys.exit(f"NIGHTLY_PARTS: unknown {sorted(unknown)}. Parts: {[p.name for p in parts]}")
    lanes = int(os.environ.get("NIGHTLY_LANES") or 1)
    if lanes < 1:
        sys.exit(f"NIGHTLY_LANES: {lanes} is less than 1.")
    print(f"NIGHTLY_SEED={seed}", flush=True)
    chosen = [part for part in parts if part.name in wanted]
    sys.exit(night(chosen, ROOT / "build" / "nightly", lanes))


if __name__ == "__main__":
    main()
