"""Executors as processes: they follow a published number, and no row is lost when one dies."""

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
import spark_cluster
from conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queues import Queue

PROGRAM = Path(spark_cluster.__file__)
WAIT_S = 180.0


class Application:
    """The program, and the state that it reports."""

    def __init__(self, place: Path, process: subprocess.Popen[str], said: Path) -> None:
        self.place, self._process, self._said = place, process, said

    @property
    def state(self) -> dict[str, Any]:
        assert self._process.poll() is None, self._said.read_text()[-4000:]
        file = self.place / "state.json"
        return json.loads(file.read_text()) if file.exists() else {"executors": [], "done": []}

    def want(self, executors: int) -> None:
        (self.place / "executors").write_text(str(executors))

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


@pytest.mark.timeout(900)
def test_executors_follow_the_published_number_and_may_die(
    shoal_queue: Callable[..., Queue], tmp_path: Path
) -> None:
    """A second executor helps although there is one partition. The rows last until one is killed:
    each costs 20 ms, and more are produced before that."""
    queue = shoal_queue(partitions=1)
    queue.produce(range(900), batch=50)
    with running(queue, tmp_path, minPartitions=6, maxRecordsPerTrigger=300) as application:
        application.until(lambda s: len(s["executors"]) == 1, "one executor")
        application.want(2)
        application.until(lambda s: len(s["executors"]) == 2, "two executors, one partition")
        queue.produce(range(900, 1800), batch=50)
        before = application.state["executors"]
        os.kill(application.executor_processes()[0], signal.SIGKILL)
        application.until(
            lambda s: len(s["executors"]) == 2 and s["executors"] != before,
            "another one in place",
        )
        application.want(1)
        application.until(lambda s: len(s["executors"]) == 1, "one executor again")
        queue.drained(timeout_s=WAIT_S)
        application.until(lambda s: len(s["done"]) >= 1800, "all rows are done")
        assert sorted(map(int, application.state["done"])) == list(range(1800))
