"""Celery with `broker="shoal://..."`: real workers, one of which is killed.

A worker needs two seconds to start, so one of them runs the tasks of most tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import chord, group
from celery.exceptions import TaskRevokedError
from support.runs.conditions import eventually
from support.workers import celery_tasks
from support.workers.celery_tasks import make_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess

BROKER_CONFIG = {"group.share.min.record.lock.duration.ms": "1000"}
TESTS = Path(__file__).parents[3]
SOON_S = 60.0


class Workers:
    """An application with queues of its own, and its workers."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "notes").touch()
        broker, prefix = f"shoal://{bootstrap}", f"c-{uuid.uuid4().hex[:8]}."
        self.app = make_app(broker, prefix, str(folder))
        self._environment = {
            **os.environ,
            celery_tasks.BROKER: broker,
            celery_tasks.PREFIX: prefix,
            celery_tasks.FOLDER: str(folder),
        }

    @contextmanager
    def run(self, name: str, concurrency: int = 1) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker. Its log is in the folder."""
        log = (self.folder / f"{name}.log").open("wb")
        words = ("worker", "-c", str(concurrency), "-n", name, "-l", "INFO")
        process = subprocess.Popen(
            (sys.executable, "-m", "celery", "-A", "support.workers.celery_tasks", *words),
            cwd=TESTS,
            env=self._environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(SOON_S) == 0, self.read_log(name)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            log.close()

    def read_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def make(self, name: str, *arguments: Any) -> Any:
        """Return the signature of a task."""
        return self.app.signature(f"{celery_tasks.__name__}.{name}", args=arguments)

    def send(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Send a task; return its result to come."""
        return self.make(name, *arguments).apply_async(**options)

    def read_notes(self) -> list[str]:
        return (self.folder / "notes").read_text().splitlines()


@pytest.fixture(scope="module")
def workers(
    shared_broker: ShoalProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    """A running worker with two processes, for tests that leave it as it is."""
    workers = Workers(shared_broker.bootstrap, tmp_path_factory.mktemp("celery") / "one")
    with workers.run("one@shoal", concurrency=2):
        yield workers


@pytest.fixture
def alone(shared_broker: ShoalProcess, tmp_path: Path) -> Workers:
    """An application whose workers the test starts."""
    return Workers(shared_broker.bootstrap, tmp_path / "alone")


def test_results_retries_groups_and_chords(workers: Workers) -> None:
    assert workers.send("add", 1, 2).get(SOON_S) == 3
    assert workers.send("fail_twice").get(SOON_S) == 2
    numbers = group([workers.make("add", n, n) for n in range(5)], app=workers.app)
    assert numbers.apply_async().get(SOON_S) == [0, 2, 4, 6, 8]
    total = chord(numbers, workers.make("add_all"), app=workers.app)
    assert total.apply_async().get(SOON_S) == 20


def test_an_eta_waits_in_the_broker(workers: Workers) -> None:
    begun_s = time.time()
    result = workers.send("add", 1, 1, countdown=1.5)
    (scheduled,) = workers.app.control.inspect(timeout=1.0).scheduled().values()
    assert scheduled == [], "the worker holds it"
    assert result.get(SOON_S) == 2
    assert time.time() >= begun_s + 1.5


def test_remote_control(workers: Workers) -> None:
    control = workers.app.control
    assert workers.send("add", 1, 1).get(SOON_S) == 2, "the worker has started"
    assert control.ping(timeout=1.0, destination=["one@shoal"]) == [{"one@shoal": {"ok": "pong"}}]
    assert control.ping(timeout=0.2, destination=["two@shoal"]) == []
    result = workers.send("add", 1, 1, countdown=2.0)
    stamped = workers.make("add", 1, 1)
    stamped.stamp(tenant="acme")
    of_tenant = stamped.apply_async(countdown=2.0)
    control.revoke(result.id, reply=True, timeout=1.0)
    control.revoke_by_stamped_headers({"tenant": ["acme"]}, reply=True, timeout=1.0)
    for revoked in (result, of_tenant):
        with pytest.raises(TaskRevokedError):
            revoked.get(SOON_S)


def test_a_task_that_outlasts_its_lock_runs_once(workers: Workers) -> None:
    """The lock is a second, and the outcome arrives after two and a half."""
    workers.send("take_long", 2.5).get(SOON_S)
    eventually(lambda: count_waiting(workers) == 0)
    assert workers.read_notes() == ["long"]


def count_waiting(workers: Workers) -> int:
    with workers.app.connection_for_read() as connection, connection.channel() as channel:
        queue = workers.app.amqp.queues["celery"]
        return int(queue(channel).queue_declare(passive=True).message_count)


@pytest.mark.nightly
def test_three_workers_share_a_partition(alone: Workers) -> None:
    """Each waits in its task for the others."""
    results = [alone.send("meet", 3) for _ in range(3)]
    with alone.run("a@shoal"), alone.run("b@shoal"), alone.run("c@shoal"):
        for result in results:
            assert result.get(SOON_S) == ["a@shoal", "b@shoal", "c@shoal"]


def test_a_killed_workers_task_runs_again(alone: Workers) -> None:
    result = alone.send("hang_once")
    with alone.run("killed@shoal") as killed:
        eventually(alone.read_notes)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        with alone.run("next@shoal"):
            assert result.get(SOON_S) == "next@shoal"


def test_purge(alone: Workers) -> None:
    for number in range(3):
        alone.send("add", number, number)
    assert alone.app.control.purge() == 3
    assert count_waiting(alone) == 0
