"""The tasks of `compat/clients/celery/test_celery.py`. Their worker is `celery -A` this module."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from celery import Celery
from support.runs.conditions import eventually

#: The variables of a test's workers: the brokers, the prefix of all queues, and a folder.
BROKER, PREFIX, FOLDER = "CELERY_TEST_BROKER", "CELERY_TEST_PREFIX", "CELERY_TEST_FOLDER"
#: The lock of a task. Those that run longer renew it.
LOCK_MS = 1_000


def make_app(broker: str, prefix: str, folder: str) -> Celery:
    """Return the application of a test and its workers."""
    app = Celery("celery_tasks", broker=broker, backend=f"file://{folder}")
    app.conf.update(
        broker_transport_options={
            "queue_name_prefix": prefix,
            "group_configs": {"share.record.lock.duration.ms": str(LOCK_MS)},
        },
        worker_prefetch_multiplier=1,
        # Celery asks a broker of results once a second otherwise.
        result_chord_retry_interval=0.05,
    )
    return app


_folder = os.environ.get(FOLDER, "")
app = make_app(os.environ.get(BROKER, "shoal://"), os.environ.get(PREFIX, ""), _folder)


def note(line: str) -> None:
    """Write a line that the test reads."""
    with Path(_folder, "notes").open("a") as notes:
        notes.write(f"{line}\n")


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def add_all(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True)
def fail_twice(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(acks_late=True)
def take_long(seconds: float) -> None:
    note("long")
    threading.Event().wait(seconds)


@app.task(bind=True, acks_late=True)
def meet(self: Any, number: int) -> list[str]:
    """Wait until this number of workers run this task at the same time; return their names."""
    note(self.request.hostname)
    eventually(lambda: len(read_hosts()) >= number)
    return read_hosts()


def read_hosts() -> list[str]:
    return sorted({*Path(_folder, "notes").read_text().split()})


@app.task(bind=True, acks_late=True)
def hang_once(self: Any) -> str:
    """Never return in the first worker that runs this."""
    note(self.request.hostname)
    eventually(lambda: len(read_hosts()) == 2)
    return str(self.request.hostname)
