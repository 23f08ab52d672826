"""Executors as processes: they follow a published number, and no row is lost when one dies.

By day, executors on Kubernetes follow the number (`e2e/test_spark_consumer.py`), and a worker dies
in `test_source.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.runs.conditions import eventually
from support.spark import spark_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.queues import Queue

PROGRAM = Path(spark_cluster.__file__)
WAIT_S = 180.0


class Application:
    """The program, and the state that it reports."""

    def __init__(self, place: Path, process: subprocess.Popen[str], said: Path) -> None:
        self.place, self._process, self._said = place, process, said

    @property
    def state(self) -> dict[str, Any]:
        assert self._process.poll() is None, self._describe_end()
        file = self.place / "state.json"
        return (
            json.loads(file.read_text())
            if file.exists()
            else {"executors": [], "busy": [], "done": []}
        )

    def _describe_end(self) -> str:
        """Return why the query failed and the end of what was printed, mostly of the shutdown."""
        failure = self.place / "failure"
        why = failure.read_text() if failure.exists() else "The query did not fail."
        return f"{why}\n{self._said.read_text()[-4000:]}"

    def want(self, executors: int) -> None:
        (self.place / "executors").write_text(str(executors))

    def go(self) -> None:
        """Let all tasks end, which wait until then."""
        (self.place / "go").touch()

    def until(self, what: Callable[[dict[str, Any]], bool], says: str) -> None:
        eventually(lambda: what(self.state), timeout_s=WAIT_S, what=says)

    def executor_processes(self) -> list[int]:
        """The executors' JVMs, which the workers of `local-cluster` start as processes."""
        application, found = self.state["application"].encode(), []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            backend = any(word.endswith(b"CoarseGrainedExecutorBackend") for word in words)
            if backend and application in words:
                found.append(int(path.parent.name))
        return found


@contextmanager
def running(queue: Queue, place: Path, **options: Any) -> Iterator[Application]:
    """The application with one executor wanted, until the block ends."""
    (place / "executors").write_text("1")
    plan = {"options": queue.options(**options), "place": str(place)}
    said = place / "said"
    with said.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(plan)],
            cwd=place,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Application(place, process, said)
        process.terminate()
        assert process.wait(WAIT_S) == 0, said.read_text()[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_executors_follow_the_published_number_and_may_die(
    shoal_queue: Callable[..., Queue], tmp_path: Path
) -> None:
    """A second executor helps although there is one partition. One dies while both have a task,
    as all tasks wait until the end."""
    queue = shoal_queue(partitions=1)
    queue.produce(range(120), batch=10)
    with running(queue, tmp_path, minPartitions=6, maxRecordsPerTrigger=60) as application:
        application.until(lambda s: len(s["executors"]) == 1, "one executor")
        application.want(2)
        application.until(lambda s: len(s["busy"]) == 2, "two executors at work, one partition")
        before = application.state["executors"]
        os.kill(application.executor_processes()[0], signal.SIGKILL)
        application.until(
            lambda s: len(s["busy"]) == 2 and s["executors"] != before,
            "another one in place",
        )
        application.want(1)
        application.go()
        application.until(lambda s: len(s["executors"]) == 1, "one executor again")
        application.until(lambda s: len(s["done"]) >= 120, "all rows are done")
        assert sorted(map(int, application.state["done"])) == list(range(120))
        queue.drained(timeout_s=WAIT_S)
