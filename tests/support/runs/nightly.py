"""The long tail of tests, part by part: `make nightly`.

NIGHTLY_HOURS (1.5) is the length of the night in hours. Most parts take as long as they need, and
begin first. Simulations, fuzzing and faults can use any time: they divide what is left. A part that
still runs at the end of the night is ended. All draws come from NIGHTLY_SEED. Without it, each
night draws another one and prints it. NIGHTLY_PARTS names the parts to run, all by default.
NIGHTLY_LANES (3) is the number of parts that run at once: those on Kubernetes mostly wait.

A part that fails does not stop the others. Each writes its output into build/nightly/PART.log. The
summary names the parts that failed or did not end, and then the exit code is 1.
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

ROOT = Path(__file__).resolve().parents[3]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
#: How long before the end of the night timed parts are to end, in seconds: they need some of it to
#: prepare and to judge.
SLACK_S = 360.0
#: What a part that is cut short may take to end what it has started, such as a cluster, in seconds.
END_S = 60.0
#: What a long night gives the soak test of key ranges, in seconds.
RANGES_S = 1800.0
#: Pause between two records of a producer beside faults, in seconds.
FAULTS_PACE_S = "0.004"
#: The exit codes of `timeout`, and of a shell whose command was interrupted.
TOO_LATE, INTERRUPTED = 124, 130
#: The Debian with the newest Python that we support, 3.14. Django 6 needs it, too.
NEWEST_SUITE = "forky"
#: What the tests use there beside Python, Java and make.
PROGRAMS = "gcc git iproute2 libc6-dev openssl python3-dev"
#: Racks and drains, on three nodes.
NODES = "tests/e2e/test_nodes.py"
#: Folders of tests that are parts of their own.
APART = ("e2e", "compat", "hostile")
#: Files of wire tests that draw examples.
DRAWN_FROM_WIRE = tuple(
    f"tests/wire/test_{name}.py"
    for name in ("codec_against_kio", "key_hash", "log_fuzz", "record_fuzz", "request_fuzz")
)
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
    which takes a few minutes on two cores."""

    path: str
    variable: str
    seeds: int
    #: The test that runs the seeds.
    test: str = "test_seeds"


#: The rounds of `seeds` alternate between these.
SIMULATIONS = (
    Simulation("tests/sim/test_cluster_sim.py", "CLUSTER_SEEDS", 100),
    Simulation("tests/sim/test_quorum_sim.py", "SEEDS", 1_000),
    Simulation("tests/sim/test_replica_sim.py", "SEEDS", 1_000),
    Simulation("tests/sim/test_metadata_sim.py", "METADATA_SEEDS", 100, "test_all_nodes_converge"),
    Simulation("tests/sim/test_quorum_sim.py", "DISK_SEEDS", 60, "test_voters_that_lose"),
    Simulation("tests/sim/test_lost_clusters.py", "LOST_SEEDS", 300),
)


class Part(NamedTuple):
    """`command` makes the n-th command of a part for a time in seconds, which is 0 for a part
    without a share. One with a share gets that of the time which is left when it begins, among the
    parts that have not begun. It runs again while there is time for another command."""

    name: str
    command: Callable[[int, float], Command]
    share: float = 0.0


class Outcome(NamedTuple):
    part: str
    seconds: float
    commands: int
    #: The command that failed, and how; empty if none did.
    failure: str


#: The tests on Kubernetes, as two parts of about the same length. Each starts a cluster of its own.
WITH_SPARK = tuple(
    f"tests/e2e/test_{name}.py"
    for name in (
        "spark_bad_input",
        "spark_consumer",
        "spark_kills",
        "spark_operator",
        "cert_manager",
        "gitops",
        "keda",
        "kueue",
        "upgrade",
        "brokers_per_pod",
        "three_brokers",
        "tiered_storage",
    )
)


def parts_of(hours: float, seed: int) -> list[Part]:
    """All parts in the order in which they begin: the longest ones first."""
    whole_s = hours * 3600
    first = random.Random(seed).randrange(10**6, 10**9)
    #: `seeding` draws all other inputs from it.
    drawn = {"SEED": str(seed)}
    limited = (*PYTEST, f"--timeout={whole_s:.0f}")

    def seeds(number: int, _seconds: float) -> Command:
        path, variable, count, test = SIMULATIONS[number % len(SIMULATIONS)]
        begin = first + number // len(SIMULATIONS) * count
        words = (*limited, path, "-k", test)
        return Command(words, {variable: f"{begin}-{begin + count - 1}"})

    def fuzz(_number: int, seconds: float) -> Command:
        return Command(("make", "fuzz", f"FUZZ=--seconds {seconds:.0f}"), drawn)

    def faults(_number: int, seconds: float) -> Command:
        words = (*limited, "-s", "tests/cluster/test_faults.py", "-k", "five")
        return Command(
            words, {**drawn, "FAULTS_S": f"{seconds:.0f}", "FAULTS_PACE_S": FAULTS_PACE_S}
        )

    def select_marked(path: str, *words: str) -> Command:
        """The nightly tests under a path."""
        soak = {"RANGES_S": f"{min(RANGES_S, whole_s / 16):.0f}"}
        return Command((*limited, "-m", "nightly", path, *words), {**drawn, **soak})

    def select_e2e(index: int, *words: str) -> Command:
        """All tests at these paths, marked or not, on a cluster with addresses of its own. One of
        them starts and removes the cluster with the next index."""
        every = ("-m", "nightly or not nightly")
        return Command((*PYTEST, *every, *words), {**drawn, "SHOAL_CLUSTER_INDEX": str(index)})

    others = [f"--ignore={path}" for path in (*WITH_SPARK, NODES)]
    nodes = select_e2e(8, NODES)
    once = {
        "e2e": select_e2e(0, "tests/e2e", *others),
        "e2e-spark": select_e2e(4, *WITH_SPARK),
        "compat": select_marked("tests/compat"),
        "tests": select_marked("tests", *(f"--ignore=tests/{name}" for name in APART)),
        # Turns of the event loop are measured in CPU time, so it runs beside the others.
        "hostile": select_marked("tests/hostile"),
        "e2e-nodes": Command(nodes.words, {**nodes.environment, "SHOAL_NODES": "3"}),
        "python": Command(
            (sys.executable, "tools/first_steps.py", f"--suite={NEWEST_SUITE}")
            + (f"programs=apt-get install -qy {PROGRAMS}", "venv", "unit", "wire", "model")
            + ("django=.venv/bin/python tests/support/workers/django_cases.py",),
            drawn,
        ),
        "examples": Command(
            (*limited, "tests/unit", "tests/model", *DRAWN_FROM_WIRE),
            {**drawn, "HYPOTHESIS_PROFILE": "nightly"},
        ),
    }
    return [
        *(Part(name, _repeat(command)) for name, command in once.items()),
        Part("seeds", seeds, 0.4),
        Part("fuzz", fuzz, 0.2),
        Part("faults", faults, 0.4),
    ]


def _repeat(command: Command) -> Callable[[int, float], Command]:
    return lambda _number, _seconds: command


def run(
    part: Part, folder: Path, interrupted: threading.Event, end: float, seconds: float = 0.0
) -> Outcome:
    """Run a part for `seconds`, its output in `folder`. It ends at its first failure, when
    interrupted, or at `end` by the monotonic clock."""
    folder.mkdir(parents=True, exist_ok=True)
    began, number, longest = time.monotonic(), 0, 0.0
    with (folder / f"{part.name}.log").open("w") as log:
        while True:
            command = part.command(number, seconds)
            print(f"{part.name}: {command.shown()}", flush=True)
            before = time.monotonic()
            status = _run(command, log.fileno(), end - before, interrupted)
            number += 1
            passed = time.monotonic() - began
            longest = max(longest, time.monotonic() - before)
            if status:
                how = CUT_SHORT.get(status, f"exit code {status}")
                return Outcome(part.name, passed, number, f"{command.shown()}: {how}")
            if passed + longest >= seconds:
                return Outcome(part.name, passed, number, "")


def _run(command: Command, log: int, limit_s: float, interrupted: threading.Event) -> int:
    """Exit code of a command. One that is cut short is interrupted, so that it can remove what it
    has started, and after `END_S` it is killed."""
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
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summary(outcomes: Sequence[Outcome], folder: Path, passed_s: float, night_s: float) -> str:
    lines = [f"{'part':10} {'result':7} {'min':>6} {'commands':>9}"]
    for one in outcomes:
        result = "failed" if one.failure else "passed"
        lines.append(f"{one.part:10} {result:7} {one.seconds / 60:6.1f} {one.commands:9}")
    lines.append(f"The night took {passed_s / 60:.1f} of {night_s / 60:.1f} min.")
    for one in outcomes:
        log = folder / f"{one.part}.log"
        if one.failure and log.exists():
            tail = log.read_text(errors="replace").splitlines()[-TAIL:]
            lines += ["", f"{one.part}: {one.failure}", f"The end of {log}:", *tail]
        elif one.failure:
            lines += ["", f"{one.part}: {one.failure}"]
    return "\n".join(lines)


class Shares:
    """The time of timed parts: what is left of the night, divided when each begins."""

    def __init__(self, parts: Sequence[Part], end: float) -> None:
        self._left = {part.name: part.share for part in parts if part.share}
        self._end = end
        self._lock = threading.Lock()

    def take(self, part: Part) -> float:
        """Return the seconds of a part that begins now; 0 if it has no share."""
        if not part.share:
            return 0.0
        with self._lock:
            left_s = max(0.0, self._end - SLACK_S - time.monotonic())
            whole = sum(self._left.values())
            return left_s * self._left.pop(part.name) / whole


def night(parts: Sequence[Part], folder: Path, night_s: float, lanes: int = 1) -> int:
    """Run all parts within `night_s`, `lanes` at once, print the summary, and return the exit code.

    An interrupt ends the parts that run, and no other one begins.
    """
    outcomes: list[Outcome] = []
    interrupted = threading.Event()
    began = time.monotonic()
    end = began + night_s - END_S
    shares = Shares(parts, end)

    def in_lane(part: Part) -> None:
        if interrupted.is_set():
            return
        seconds = shares.take(part)
        if time.monotonic() >= end or (part.share and not seconds):
            outcome = Outcome(part.name, 0.0, 0, "no time was left to begin")
        else:
            outcome = run(part, folder, interrupted, end, seconds)
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
    print(summary(outcomes, folder, time.monotonic() - began, night_s), flush=True)
    return int(len(outcomes) < len(parts) or any(one.failure for one in outcomes))


def main() -> None:
    # SIGTERM ends what runs, as an interrupt does. In the background, a shell starts programs with
    # SIGINT ignored, and their children inherit that.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    seed = int(os.environ.get("NIGHTLY_SEED") or random.SystemRandom().randrange(10**6))
    hours = float(os.environ.get("NIGHTLY_HOURS") or 1.5)
    parts = parts_of(hours, seed)
    wanted = (os.environ.get("NIGHTLY_PARTS") or " ".join(p.name for p in parts)).split()
    if unknown := set(wanted) - {part.name for part in parts}:
        sys.exit(f"NIGHTLY_PARTS: unknown {sorted(unknown)}. Parts: {[p.name for p in parts]}")
    lanes = int(os.environ.get("NIGHTLY_LANES") or 3)
    if lanes < 1:
        sys.exit(f"NIGHTLY_LANES: {lanes} is less than 1.")
    print(f"NIGHTLY_SEED={seed}", flush=True)
    chosen = [part for part in parts if part.name in wanted]
    sys.exit(night(chosen, ROOT / "build" / "nightly", hours * 3600, lanes))


if __name__ == "__main__":
    main()
