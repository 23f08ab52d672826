"""The pipeline on one machine: `shoal demo`.

A broker, the feeder and the job `image_tasks` run as processes in a temporary folder, Spark in
`local[*]`. The queue has one partition, so that two cores are enough to show more tasks than
partitions. Before the start, a sentence names what this machine lacks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from shoal_spark.demo.watch import Sample, Watch, failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TASKS, RESULTS, DEAD_LETTERS, GROUP = "images", "thumbnails", "dlq.images", "thumbnailers"
PARTITIONS = 1
BROKEN_EVERY = 50
#: Minimum milliseconds per image, long enough to be visible.
WORK_MS = 20
EVERY_S = 0.25
STARTED_S, STOPPED_S = 30.0, 15.0
#: Lines of a failed process that the user sees.
LAST_LINES = 12
_READY = re.compile(r"listens on (\S+:\d+)")
_METRICS = re.compile(r"(http://\S+)/metrics")
_CONSOLE = re.compile(r"The console is at (http://\S+)/\.")
_END = re.compile(r'^kafka_log_Log_LogEndOffset\{[^}]*topic="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)
#: Python modules and the packages to install for them.
PACKAGES = {
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "PIL": "jobs",
    "skimage": "jobs",
}


class CannotRun(Exception):
    """What is missing or failed, and the remedy, as a sentence."""


def missing(
    environment: Mapping[str, str] = os.environ,
    has: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> str:
    """Return what this machine lacks for the demo, as a sentence; empty if nothing."""
    lacks = sorted({extra for module, extra in PACKAGES.items() if not has(module)}, reverse=True)
    if lacks:
        names = [module for module in PACKAGES if not has(module)]
        return (
            f"The demo needs missing Python packages ({', '.join(names)}): "
            f"pip install 'shoal[{','.join(lacks)}]', or in a checkout pip install -e "
            f"'.[{','.join(lacks)}]'."
        )
    home = environment.get("JAVA_HOME", "")
    if home and not Path(home, "bin", "java").exists():
        return f"JAVA_HOME is {home}, which has no bin/java. Set it to Java 17 or newer."
    if not home and shutil.which("java", path=environment.get("PATH")) is None:
        return (
            "Spark needs Java 17 or newer, which was not found: apt-get install "
            "openjdk-17-jre-headless, or set JAVA_HOME."
        )
    if jobs() is None:
        return (
            "The demo runs the jobs of Shoal's source tree, which are not in this installation: "
            "clone the repository and pip install -e '.[spark,jobs]' there."
        )
    return ""


def jobs() -> Path | None:
    """Return the folder of the jobs in a checkout, or None."""
    folder = Path(__file__).resolve().parents[2] / "jobs"
    return folder if (folder / "image_tasks.py").exists() else None


class Pipeline:
    """The processes of the demo in one folder. All end with it."""

    def __init__(self, folder: Path, *, has_console: bool = False) -> None:
        self.folder = folder
        self.bootstrap = self.metrics = self.console = ""
        self._has_console = has_console
        self.ui = f"http://127.0.0.1:{_free_port()}"
        self._stack = contextlib.ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, images: int) -> None:
        """Start the broker, fill the queue and start the job. Raises `CannotRun`."""
        self._start_broker()
        self._start_feeder(images)
        self._start_job()

    def _start_broker(self) -> None:
        options = {
            "--listener": "127.0.0.1:0",
            "--data-dir": self.folder / "data",
            "--metrics": "127.0.0.1:0",
            **({"--console": "127.0.0.1:0"} if self._has_console else {}),
        }
        self._run("broker", sys.executable, "-m", "shoal.cli", "server", *_words(options))
        self.bootstrap = self._said("broker", _READY)
        self.metrics = self._said("broker", _METRICS)
        if self._has_console:
            self.console = self._said("broker", _CONSOLE)

    def _start_feeder(self, images: int) -> None:
        options = {
            "--bootstrap-servers": self.bootstrap,
            "--topic": TASKS,
            "--partitions": PARTITIONS,
            "--count": images,
            "--size": 128,
            "--replication-factor": 1,
            "--broken-every": BROKEN_EVERY,
            "--group": GROUP,
            "--dead-letters": DEAD_LETTERS,
            "--results-topic": RESULTS,
        }
        self._run("feeder", sys.executable, self._job("feed_images"), *_words(options))

    def _start_job(self) -> None:
        cores = max(2, os.cpu_count() or 2)
        options = {
            "--bootstrap-servers": self.bootstrap,
            "--topics": TASKS,
            "--group": GROUP,
            "--results-topic": RESULTS,
            "--work-ms": WORK_MS,
            "--tasks": 2 * cores,
            "--max-records": 40 * cores,
            "--output": self.folder / "thumbnails",
            "--checkpoint": self.folder / "checkpoint",
        }
        confs = {
            "spark.ui.port": self.ui.rpartition(":")[2],
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        }
        submit = [f"--master local[{cores}]", *(f"--conf {n}={v}" for n, v in confs.items())]
        environment = {
            "PYSPARK_SUBMIT_ARGS": " ".join([*submit, "pyspark-shell"]),
            "PYSPARK_PYTHON": sys.executable,
        }
        job = self._job("image_tasks")
        self._run("job", sys.executable, job, *_words(options), environment=environment)

    def sample(self, last: Sample, began: float) -> Sample:
        """Take a sample; a value that is unavailable keeps its last state."""
        try:
            ends: dict[str, int] = dict.fromkeys((TASKS, RESULTS, DEAD_LETTERS), 0)
            for topic, value in _END.findall(_get(f"{self.metrics}/metrics")):
                ends[topic] = ends.get(topic, 0) + int(float(value))
        except OSError:
            return Sample(time.monotonic() - began, *_counts(last))
        done = ends[RESULTS] + ends[DEAD_LETTERS]
        at_once = self._tasks_at_once()
        return Sample(
            time.monotonic() - began,
            max(0, ends[TASKS] - done),
            at_once,
            at_once,
            ends[RESULTS],
            ends[DEAD_LETTERS],
        )

    def _tasks_at_once(self) -> int:
        try:
            (found,) = json.loads(_get(f"{self.ui}/api/v1/applications"))
            url = f"{self.ui}/api/v1/applications/{found['id']}/executors"
            return sum(int(one["activeTasks"]) for one in json.loads(_get(url)))
        except (OSError, ValueError, KeyError):
            return 0

    def check(self) -> None:
        """Raise `CannotRun` if a process has failed."""
        for name, process in self._processes.items():
            ended = process.poll()
            if ended is None or (name == "feeder" and ended == 0):
                continue
            words = self._log(name).read_text(errors="replace").splitlines()[-LAST_LINES:]
            raise CannotRun(f"The {name} ended with status {ended}:\n" + "\n".join(words))

    def distinct_results(self) -> int:
        """Return the number of tasks with a result, each counted once."""
        words = ("consume", RESULTS, "--from-beginning", "--exit-at-end", "--format", "{key}")
        said = subprocess.run(
            [sys.executable, "-m", "shoal.cli", *words],
            env={**os.environ, "SHOAL_BOOTSTRAP": self.bootstrap},
            capture_output=True,
            text=True,
            check=False,
        )
        return len(set(said.stdout.split()))

    def _job(self, name: str) -> Path:
        folder = jobs()
        assert folder is not None, "`missing` says so before anything starts"
        return folder / f"{name}.py"

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _run(self, name: str, *words: object, environment: Mapping[str, str] | None = None) -> None:
        """Start a process that ends with the demo."""
        with self._log(name).open("wb") as out:
            process = subprocess.Popen(
                [str(word) for word in words],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        self._processes[name] = process
        self._stack.callback(_end, process)

    def _said(self, name: str, pattern: re.Pattern[str]) -> str:
        """Wait for output of a process that matches, and return the match."""
        deadline = time.monotonic() + STARTED_S
        while not (found := pattern.search(self._log(name).read_text())):
            self.check()
            if time.monotonic() > deadline:
                raise CannotRun(f"The {name} did not start within {STARTED_S:.0f} s.")
            time.sleep(0.02)
        return found[1]


def run(images: int, timeout_s: float, picture: Path | None, *, console: bool = False) -> list[str]:
    """Run and show the pipeline; return broken promises as sentences. Raises `CannotRun`."""
    from rich.console import Console
    from rich.live import Live

    from shoal_spark.demo import view

    terminal = Console()
    watch = Watch(images, images // BROKEN_EVERY, PARTITIONS, workers="tasks at once")
    watch.state = "Starting a broker, filling the queue, starting Spark."
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-demo-"))
        pipeline = stack.enter_context(Pipeline(Path(folder), has_console=console))
        began = time.monotonic()
        with Live(view.view(watch), console=terminal, refresh_per_second=4) as live:
            pipeline.start(images)
            if console:
                live.console.print(f"The console is at {pipeline.console}/.", highlight=False)
            while not watch.settled and time.monotonic() - began < timeout_s:
                pipeline.check()
                watch.samples.append(pipeline.sample(watch.last, began))
                if watch.last.results:
                    watch.state = f"Broker {pipeline.bootstrap}, Spark's pages {pipeline.ui}"
                live.update(view.view(watch))
                time.sleep(EVERY_S)
        distinct = pipeline.distinct_results()
    if picture:
        view.picture(watch, picture)
    good = watch.fed - watch.broken
    # Print whole lines, also if the output goes to a file.
    terminal.print()
    terminal.print(
        f"{distinct} of {good} images have a thumbnail and a hash; "
        f"{watch.last.dead_letters} of {watch.broken} broken ones are dead letters; "
        f"{watch.last.at_s:.0f} s in all.",
        highlight=False,
        soft_wrap=True,
    )
    return failures(watch, distinct)


def _words(options: Mapping[str, object]) -> Iterator[object]:
    """Yield options and their values as words of a command line."""
    return chain.from_iterable(options.items())


def _counts(sample: Sample) -> Iterator[int]:
    return (getattr(sample, name) for name in Sample.__slots__[1:])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(STOPPED_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
