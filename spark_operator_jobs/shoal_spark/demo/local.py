"""The pipeline on one machine: `shoal demo`.

A broker, the feeder and the job `image_tasks` run as processes in a temporary folder, Spark in
local mode. The queue has one partition, and the job more tasks than that. At the end the demo
reads the results and the dead letters, and compares their keys with those of the tasks.

The user's own environment names other clusters and other Sparks, so the processes get none of its
variables for them. Before the start, sentences name what this machine lacks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from shoal_spark import java, local
from shoal_spark.demo.watch import Sample, Watch, compare_keys, count_of, judge_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rich.console import Console
    from shoal.client.client import SyncClient

TASKS, RESULTS, DEAD_LETTERS, GROUP = "images", "thumbnails", "dlq.images", "thumbnailers"
PARTITIONS = 1
BROKEN_EVERY = 100
#: Minimum milliseconds per image, as of a task that calls a model or a store.
WORK_MS = 10
#: Tasks at once. They mostly wait, so a core runs several.
TASKS_AT_ONCE = max(4, os.cpu_count() or 4)
#: Records of a micro-batch, so that each task works for a second before Spark plans the next.
BATCH_RECORDS = 125 * TASKS_AT_ONCE
EVERY_S = 0.5
STARTED_S, STOPPED_S = 60.0, 15.0
#: Lines of a failed process that the user sees.
LAST_LINES = 12
#: Prefixes of variables that the user has set for other clusters and other Sparks.
FOREIGN = ("SHOAL_", "SPARK_", "PYSPARK_", "HADOOP_")
_READY = re.compile(r"listens on (\S+:\d+)")
_METRICS = re.compile(r"(http://\S+)/metrics")
_CONSOLE = re.compile(r"The console is at (http://\S+)/\.")
_FED = re.compile(r"Topic (\S+) is ready")
_END = re.compile(r'^kafka_log_Log_LogEndOffset\{[^}]*topic="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)
#: The Python modules that the demo imports beside Shoal's own requirements: the extra `demo`.
MODULES = ("pyspark", "pyarrow", "pandas", "PIL", "matplotlib")


class CannotRun(Exception):
    """What failed and the remedy, as a sentence."""


def missing(
    environment: Mapping[str, str] = os.environ,
    has: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> list[str]:
    """Return what this machine lacks for the demo, as a sentence each."""
    lacks = []
    if names := [module for module in MODULES if not has(module)]:
        lacks.append(
            f"The demo needs missing Python packages ({', '.join(names)}): "
            "pip install 'shoal[demo]', or in a checkout pip install -e '.[demo]'."
        )
    if sentence := java.missing(environment):
        lacks.append(sentence)
    if jobs() is None:
        lacks.append(
            "This installation of Shoal has no example jobs, which the demo runs. Install its "
            "wheel, or a checkout with pip install -e '.[demo]'."
        )
    return lacks


def jobs() -> Path | None:
    """Return the folder of the example jobs in a wheel or a checkout, or None."""
    package = Path(__file__).resolve().parents[1]
    folders = (package / "jobs", package.parent / "jobs")
    return next((folder for folder in folders if (folder / "image_tasks.py").exists()), None)


def name_tasks(images: int) -> tuple[set[str], set[str]]:
    """Return the keys that the feeder gives to good images and to broken ones."""
    names = [f"image-{number:06d}" for number in range(images)]
    broken = set(names[BROKEN_EVERY - 1 :: BROKEN_EVERY])
    return set(names) - broken, broken


def clean_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the user's variables without those for other clusters and other Sparks."""
    return {name: value for name, value in environment.items() if not name.startswith(FOREIGN)}


class Pipeline:
    """The processes of the demo in one folder. All end with it."""

    def __init__(self, folder: Path, *, has_console: bool = False) -> None:
        self.folder = folder
        self.bootstrap = self.metrics = self.console = ""
        self._has_console = has_console
        self._stack = contextlib.ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, images: int) -> Iterator[str]:
        """Start the broker, the feeder and the job; yield what begins. Raises `CannotRun`."""
        yield "A broker starts."
        self._start_broker()
        yield f"Broker {self.bootstrap}. The queue fills."
        self._start_feeder(images)
        self._start_job()
        yield f"Broker {self.bootstrap}. Spark starts, which takes longest."

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
        # A job that joined the group before it has its configs would start at the topic's end.
        self._said("feeder", _FED)

    def _start_job(self) -> None:
        options = {
            "--bootstrap-servers": self.bootstrap,
            "--topics": TASKS,
            "--group": GROUP,
            "--results-topic": RESULTS,
            "--work-ms": WORK_MS,
            "--tasks": TASKS_AT_ONCE,
            "--max-records": BATCH_RECORDS,
            "--checkpoint": self.folder / "checkpoint",
        }
        settings = {
            **local.SETTINGS,
            "spark.ui.enabled": "false",
            # Plans of a few records are not worth a second thought.
            "spark.sql.adaptive.enabled": "false",
        }
        submit = ["--master", f"local[{TASKS_AT_ONCE}]"]
        submit += chain.from_iterable(("--conf", f"{n}={v}") for n, v in settings.items())
        variables = {
            **local.VARIABLES,
            "SPARK_LOCAL_DIRS": str(self.folder),
            "PYSPARK_SUBMIT_ARGS": shlex.join([*submit, "pyspark-shell"]),
        }
        job = [sys.executable, "-m", "shoal_spark.demo.job", self.folder / "tasks"]
        job += [self._job("image_tasks"), *_words(options)]
        self._run("job", *job, variables=variables)

    def sample(self, last: Sample, began: float) -> Sample:
        """Take a sample; a value that is unavailable keeps its last state."""
        try:
            ends: dict[str, int] = dict.fromkeys((TASKS, RESULTS, DEAD_LETTERS), 0)
            for topic, value in _END.findall(_get(f"{self.metrics}/metrics")):
                ends[topic] = ends.get(topic, 0) + int(float(value))
        except OSError:
            return Sample(time.monotonic() - began, *_counts(last))
        done = ends[RESULTS] + ends[DEAD_LETTERS]
        at_once, _ = self.read_tasks()
        return Sample(
            time.monotonic() - began,
            max(0, ends[TASKS] - done),
            at_once,
            at_once,
            ends[RESULTS],
            ends[DEAD_LETTERS],
        )

    def read_tasks(self) -> tuple[int, int]:
        """Return how many tasks run at once now, and the most at any time so far."""
        try:
            count, most = map(int, (self.folder / "tasks").read_text().split())
        except FileNotFoundError:
            return 0, 0
        return count, most

    def check(self) -> None:
        """Raise `CannotRun` with its last words if a process has failed."""
        for name, process in self._processes.items():
            ended = process.poll()
            if ended is not None and (name, ended) != ("feeder", 0):
                raise CannotRun(f"The {name} ended with status {ended}:\n{self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """Return the last lines that a process has printed."""
        lines = self._log(name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-LAST_LINES:])

    def read_keys(self, *topics: str) -> list[list[str]]:
        """Return the keys of all records in each topic, in their order. Raises `CannotRun`."""
        from shoal.client.client import SyncClient
        from shoal.client.errors import ClientError

        try:
            with SyncClient(self.bootstrap) as client:
                return [list(_keys(client, topic)) for topic in topics]
        except (ClientError, OSError) as error:
            raise CannotRun(f"The results cannot be read: {error}") from error

    def _job(self, name: str) -> Path:
        folder = jobs()
        assert folder is not None, "`missing` says so before anything starts"
        return folder / f"{name}.py"

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _run(self, name: str, *words: object, variables: Mapping[str, str] | None = None) -> None:
        """Start a process that ends with the demo."""
        with self._log(name).open("wb") as out:
            process = subprocess.Popen(
                [str(word) for word in words],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**clean_environment(), **(variables or {})},
                # Spark leaves a Python process behind, so a process ends with its group.
                start_new_session=True,
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


def run(images: int, timeout_s: float, picture: Path, *, console: bool = False) -> list[str]:
    """Run and show the pipeline; return broken promises as sentences. Raises `CannotRun`."""
    from rich.console import Console

    from shoal_spark.demo import view

    terminal = Console()
    watch = Watch(images, images // BROKEN_EVERY, PARTITIONS, "tasks at once", is_scaled=False)
    good, broken = name_tasks(images)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-demo-"))
        pipeline = stack.enter_context(Pipeline(Path(folder), has_console=console))
        _follow(pipeline, watch, timeout_s, terminal)
        watch.most_seen = pipeline.read_tasks()[1]
        results, letters = pipeline.read_keys(RESULTS, DEAD_LETTERS)
        if watch.settled:
            wrong = [
                *compare_keys("results", good, results),
                *compare_keys("dead letters", broken, letters),
                *judge_workers(watch),
            ]
        else:
            words = pipeline.last_words("job")
            wrong = [
                f"{watch.last.backlog or images:,} of {images:,} tasks are not finished after "
                f"{timeout_s:.0f} s. A busy machine needs a longer --timeout. Spark said:\n{words}"
            ]
    watch.verdict = _sum_up(watch, good, results, letters) if not wrong else ""
    view.picture(watch, picture)
    # Print whole lines, also if the output goes to a file.
    terminal.print()
    for line in filter(None, (watch.verdict, f"The picture of the run is {picture}.")):
        terminal.print(line, highlight=False, soft_wrap=True)
    return wrong


def _follow(pipeline: Pipeline, watch: Watch, timeout_s: float, terminal: Console) -> None:
    """Start the pipeline and show it until every task has ended, at most for `timeout_s`."""
    from rich.live import Live

    from shoal_spark.demo import view

    began = time.monotonic()
    with Live(console=terminal, refresh_per_second=4) as live:
        for state in pipeline.start(watch.fed):
            watch.state = state
            live.update(view.view(watch, terminal.width))
        if pipeline.console:
            live.console.print(f"The console is at {pipeline.console}/.", highlight=False)
        while not watch.settled and time.monotonic() - began < timeout_s:
            pipeline.check()
            watch.samples.append(pipeline.sample(watch.last, began))
            if watch.last.results:
                watch.state = f"Broker {pipeline.bootstrap}. Spark works."
            live.update(view.view(watch, terminal.width))
            time.sleep(EVERY_S)


def _sum_up(watch: Watch, good: set[str], results: list[str], letters: list[str]) -> str:
    """Return what a run without failures has shown."""
    first_s = next((sample.at_s for sample in watch.samples if sample.results), 0.0)
    return (
        f"{len(results):,} of {len(good):,} results, none twice. "
        f"{len(letters):,} of {count_of(watch.broken, 'broken image')} in the dead-letter topic. "
        f"Up to {watch.most_workers} tasks at once on {count_of(watch.partitions, 'partition')}. "
        f"{watch.last.at_s:.0f} s in all, the first result after {first_s:.0f} s."
    )


def _keys(client: SyncClient, topic: str) -> Iterable[str]:
    from shoal.client.cluster import TopicPartition
    from shoal.client.errors import expect
    from shoal.client.topics import OffsetSpec

    for index in range(PARTITIONS):
        place = TopicPartition(topic, index)
        ends = expect(client.run(client.admin.topics.offsets({place: int(OffsetSpec.LATEST)})))
        end = ends[place].offset
        for chunk in client.fetch_range(topic, index, 0, end - 1) if end else ():
            for record in chunk.records():
                yield (record.key or b"").decode(errors="replace")


def _words(options: Mapping[str, object]) -> Iterator[object]:
    """Yield options and their values as words of a command line."""
    return chain.from_iterable(options.items())


def _counts(sample: Sample) -> Iterator[int]:
    return (getattr(sample, name) for name in Sample.__slots__[1:])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill what is left of its group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOPPED_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
