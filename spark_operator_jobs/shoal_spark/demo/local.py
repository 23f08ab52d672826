"""The pipeline on one machine: `shoal demo`.

`shoal up` runs the manifests of the demo (examples/demo) in a temporary folder: a broker with TLS,
topics, a share group, users, and the job `image_tasks` in Spark's local mode, which starts with the
lag. The topic has two partitions, and the job more tasks than that. At the end the demo reads the
results and the dead letters, and compares their keys with those of the tasks.

The user's own environment names other clusters and other Sparks, so the processes get none of its
variables for them. Before the start, sentences name what this machine lacks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from shoal_spark import java
from shoal_spark.demo.watch import (
    PipelineSample,
    PipelineWatch,
    compare_keys,
    format_count,
    judge_workers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

#: Names in the manifests.
TASKS, RESULTS, DEAD_LETTERS = "images", "thumbnails", "dlq.images"
CONSUMER, BROKER_METRICS = "thumbnailer", "default/demo-broker-0:9404"
PARTITIONS = 2
BROKEN_EVERY = 100
EVERY_S = 0.5
#: `shoal up` ends Spark first, and then the broker.
STARTED_S, STOPPED_S = 90.0, 60.0
#: Lines of a failed process that the user sees.
LAST_LINES = 12
_SHOAL = (sys.executable, "-m", "shoal.cli")
#: Prefixes of variables that the user has set for other clusters and other Sparks.
FOREIGN = ("SHOAL_", "SPARK_", "PYSPARK_", "HADOOP_")
_READY = re.compile(r"(All resources) are ready")
_CONSOLE = re.compile(r"The console is at (http://\S+)/\.")
_END = re.compile(
    r'^kafka_log_Log_LogEndOffset\{[^}\n]*topic="([^"\n]+)"[^}\n]*\} (\S+)$', re.MULTILINE
)
#: The Python modules that the demo imports beside Shoal's own requirements: the extra `demo`.
MODULES = (
    "pyspark",
    "pyarrow",
    "pandas",
    "PIL",
    "matplotlib",
    "jsonschema_rs",
    "cel",
)


class DemoError(Exception):
    """What failed and the remedy, as a sentence."""


def list_missing(
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
    if sentence := java.find_problem(environment):
        lacks.append(sentence)
    if find_jobs() is None or find_manifests() is None:
        lacks.append(
            "This installation of Shoal has no example jobs and manifests, which the demo runs. "
            "Install its wheel, or a checkout with pip install -e '.[demo]'."
        )
    return lacks


def find_jobs() -> Path | None:
    """Return the folder of the example jobs in a wheel or a checkout, or None."""
    package = Path(__file__).resolve().parents[1]
    folders = (package / "jobs", package.parent / "jobs")
    return next((folder for folder in folders if (folder / "image_tasks.py").exists()), None)


def find_manifests() -> Path | None:
    """Return the file with the demo's manifests in a wheel or a checkout, or None."""
    here = Path(__file__).resolve()
    files = (here.parent / "pipeline.yaml", here.parents[3] / "examples" / "demo" / "pipeline.yaml")
    return next((file for file in files if file.is_file()), None)


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
        self.folder, self._state = folder, folder / ".shoal"
        self.bootstrap = self.metrics = self.console = ""
        self._has_console = has_console
        self._stack = contextlib.ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, images: int) -> Iterator[str]:
        """Start the resources and the feeder; yield what begins. Raises `DemoError`."""
        yield "`shoal up` starts a broker, and makes topics, group and users."
        self._start_resources()
        yield f"Broker {self.bootstrap}. The queue fills, and Spark starts by its lag."
        self._start_feeder(images)
        if self._has_console:
            self._start_console()

    def _start_resources(self) -> None:
        manifests = find_manifests()
        assert manifests is not None, "`list_missing` says so before anything starts"
        # Relative paths of the driver begin where its manifests are.
        shutil.copy(manifests, self.folder)
        # A driver is started as spark-submit starts it. This one notes its tasks.
        driver = self.folder / "driver"
        words = [sys.executable, "-m", "shoal_spark.demo.job", str(self.folder / "tasks")]
        driver.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        driver.chmod(0o700)
        variables = {"SPARK_LOCAL_DIRS": str(self.folder), "PYSPARK_DRIVER_PYTHON": str(driver)}
        file = f"--filename={self.folder / manifests.name}"
        self._stack.callback(self._end_leftovers)
        self._run("up", *_SHOAL, "up", file, f"--state={self._state}", variables=variables)
        self._wait_for_output("up", _READY)
        lines = self._get_properties().read_text().splitlines()
        self.bootstrap = dict(line.split("=", 1) for line in lines)["bootstrap.servers"]
        port = json.loads((self._state / "ports.json").read_text())[BROKER_METRICS]
        self.metrics = f"http://127.0.0.1:{port}"

    def _end_leftovers(self) -> None:
        """End what `shoal up` has started, unless it has done so."""
        if self._processes["up"].returncode:
            words = [*_SHOAL, "down", f"--dir={self.folder}"]
            subprocess.run(words, env=clean_environment(), capture_output=True, check=False)

    def _get_properties(self) -> Path:
        """Return the file with which clients reach the broker."""
        return self._state / "client.properties"

    def _start_feeder(self, images: int) -> None:
        options = {
            "--bootstrap-servers": self.bootstrap,
            "--topic": TASKS,
            "--partitions": PARTITIONS,
            "--count": images,
            "--size": 128,
            "--broken-every": BROKEN_EVERY,
        }
        variables = {"SHOAL_COMMAND_CONFIG": str(self._get_properties())}
        job = self._get_job_path("feed_images")
        words = (sys.executable, job, *_iterate_words(options), "--spread")
        self._run("feeder", *words, variables=variables)

    def _start_console(self) -> None:
        words = ["console", "--listen=127.0.0.1:0", f"--command-config={self._get_properties()}"]
        words.append(f"--metrics={self.metrics.rpartition('/')[2]}")
        self._run("console", *_SHOAL, *words)
        self.console = self._wait_for_output("console", _CONSOLE)

    def sample(self, last: PipelineSample, began: float) -> PipelineSample:
        """Take a sample; a value that is unavailable keeps its last state."""
        try:
            ends: dict[str, int] = dict.fromkeys((TASKS, RESULTS, DEAD_LETTERS), 0)
            for topic, value in _END.findall(_get(f"{self.metrics}/metrics")):
                ends[topic] = ends.get(topic, 0) + int(float(value))
        except OSError:
            return PipelineSample(time.monotonic() - began, *_iterate_counts(last))
        finished = ends[RESULTS] + ends[DEAD_LETTERS]
        at_once, _ = self.read_tasks()
        return PipelineSample(
            time.monotonic() - began,
            max(0, ends[TASKS] - finished),
            self._read_status("shareconsumers").get("desiredReplicas", 0),
            at_once,
            ends[RESULTS],
            ends[DEAD_LETTERS],
        )

    def _read_status(self, plural: str) -> dict[str, Any]:
        """Return the status of the ShareConsumer or of its SparkApplication."""
        file = self._state / "objects" / plural / "default" / f"{CONSUMER}.yaml"
        try:
            loaded: dict[str, Any] = yaml.safe_load(file.read_text())
        except FileNotFoundError:
            return {}
        return loaded.get("status", {})

    def read_tasks(self) -> tuple[int, int]:
        """Return how many tasks run at once now, and the most at any time so far."""
        try:
            count, most = map(int, (self.folder / "tasks").read_text().split())
        except FileNotFoundError:
            return 0, 0
        return count, most

    def check(self) -> None:
        """Raise `DemoError` with its last words if a process has failed."""
        for name, process in self._processes.items():
            ended = process.poll()
            if ended is not None and (name, ended) != ("feeder", 0):
                raise DemoError(
                    f"The {name} ended with status {ended}:\n{self.read_last_lines(name)}"
                )
        state = self._read_status("sparkapplications").get("applicationState", {})
        if state.get("state") in ("FAILING", "SUBMISSION_FAILED"):
            raise DemoError(f"Spark has failed:\n{self.read_last_lines('job')}")

    def read_last_lines(self, name: str) -> str:
        """Return the last lines that a process has printed."""
        try:
            lines = self._get_log_path(name).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "nothing: it has not started"
        return "\n".join(lines[-LAST_LINES:])

    def read_keys(self, topic: str) -> list[str]:
        """Return the keys of all records in a topic. Raises `DemoError`."""
        words = ["consume", topic, f"--command-config={self._get_properties()}"]
        words += ["--from-beginning", "--exit-at-end", "--format={key}"]
        done = subprocess.run(
            [*_SHOAL, *words],
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoError(f"The results cannot be read: {done.stderr.strip()}")
        return done.stdout.split()

    def _get_job_path(self, name: str) -> Path:
        folder = find_jobs()
        assert folder is not None, "`missing` says so before anything starts"
        return folder / f"{name}.py"

    def _get_log_path(self, name: str) -> Path:
        if name == "job":
            folder = self._state / "logs" / "default" / f"{CONSUMER}-driver"
            return next(iter(folder.glob("*.log")), folder / "none")
        return self.folder / f"{name}.log"

    def _run(self, name: str, *words: object, variables: Mapping[str, str] | None = None) -> None:
        """Start a process that ends with the demo."""
        with self._get_log_path(name).open("wb") as out:
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

    def _wait_for_output(self, name: str, pattern: re.Pattern[str]) -> str:
        """Wait for output of a process that matches, and return the match."""
        deadline = time.monotonic() + STARTED_S
        while not (match := pattern.search(self._get_log_path(name).read_text())):
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(f"The {name} did not start within {STARTED_S:.0f} s.")
            time.sleep(0.02)
        return match[1]


def run(images: int, timeout_s: float, picture: Path, *, console: bool = False) -> list[str]:
    """Run and show the pipeline; return broken promises as sentences. Raises `DemoError`."""
    from rich.console import Console

    from shoal_spark.demo import view

    terminal = Console()
    watch = PipelineWatch(images, images // BROKEN_EVERY, PARTITIONS, "tasks at once")
    good, broken = name_tasks(images)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-demo-"))
        pipeline = stack.enter_context(Pipeline(Path(folder), has_console=console))
        _follow(pipeline, watch, timeout_s, terminal)
        watch.most_seen = pipeline.read_tasks()[1]
        results, dead_letters = map(pipeline.read_keys, (RESULTS, DEAD_LETTERS))
        if watch.is_settled:
            wrong = [
                *compare_keys("results", good, results),
                *compare_keys("dead letters", broken, dead_letters),
                *judge_workers(watch),
            ]
        else:
            words = pipeline.read_last_lines("job")
            wrong = [
                f"{watch.last.backlog or images:,} of {images:,} tasks are not finished after "
                f"{timeout_s:.0f} s. A busy machine needs a longer --timeout. Spark said:\n{words}"
            ]
    watch.verdict = _sum_up(watch, good, results, dead_letters) if not wrong else ""
    view.draw_picture(watch, picture)
    # Print whole lines, also if the output goes to a file.
    terminal.print()
    for line in filter(None, (watch.verdict, f"The picture of the run is {picture}.")):
        terminal.print(line, highlight=False, soft_wrap=True)
    return wrong


def _follow(pipeline: Pipeline, watch: PipelineWatch, timeout_s: float, terminal: Console) -> None:
    """Start the pipeline and show it until every task has ended, at most for `timeout_s`."""
    from rich.live import Live

    from shoal_spark.demo import view

    began = time.monotonic()
    with Live(console=terminal, refresh_per_second=4) as live:
        for state in pipeline.start(watch.fed):
            watch.state = state
            live.update(view.build_view(watch, terminal.width))
        if pipeline.console:
            live.console.print(f"The console is at {pipeline.console}/.", highlight=False)
        while not watch.is_settled and time.monotonic() - began < timeout_s:
            pipeline.check()
            watch.samples.append(pipeline.sample(watch.last, began))
            if watch.last.results:
                watch.state = f"Broker {pipeline.bootstrap}. Spark works."
            live.update(view.build_view(watch, terminal.width))
            time.sleep(EVERY_S)


def _sum_up(
    watch: PipelineWatch, good: set[str], results: list[str], dead_letters: list[str]
) -> str:
    """Return what a run without failures has shown."""
    first_s = next((sample.at_s for sample in watch.samples if sample.results), 0.0)
    return (
        f"{len(results):,} of {len(good):,} results, none twice. "
        f"{len(dead_letters):,} of {format_count(watch.broken, 'broken image')} in the dead-letter "
        f"topic. Up to {watch.most_workers} tasks at once on "
        f"{format_count(watch.partitions, 'partition')}. "
        f"{watch.last.at_s:.0f} s in all, the first result after {first_s:.0f} s."
    )


def _iterate_words(options: Mapping[str, object]) -> Iterator[object]:
    """Yield options and their values as words of a command line."""
    return chain.from_iterable(options.items())


def _iterate_counts(sample: PipelineSample) -> Iterator[int]:
    return (getattr(sample, name) for name in PipelineSample.__slots__[1:])


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
