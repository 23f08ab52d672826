"""`shoal.django`: tasks of a Django project, with a real broker and `manage.py shoal_worker`.

On Python 3.11 it is Django 5.2 with the backport `django-tasks`, on newer ones Django 6.
`tests/support/workers/django_cases.py` runs Django's own tests of task backends.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest
from shoal.client.admin.topics import OffsetSpec
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.django.messages import to_priority
from support.brokers.servers import without_configs
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

#: With Django 6, checks of task backends need no application.
_APPS = ["shoal.django", *([] if find_spec("django.tasks") else ["django_tasks"])]
_SETTINGS = """
import json, os

SECRET_KEY = "tests"
USE_TZ = True
INSTALLED_APPS = {apps}
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}}}
TASKS = {{
    "default": {{
        "BACKEND": "shoal.django.ShoalBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {options},
    }},
    "other": {{
        "BACKEND": "shoal.django.ShoalBackend",
        "OPTIONS": {{**{options}, "topic_prefix": "no-such."}},
    }},
}}
"""
_JOBS = """
from django.db import connection
from django.utils import timezone

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


def note(*words):
    with open("done", "a") as file:
        print(*words, file=file)


@task
def add(a, b):
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s + %s", [a, b])
        note("add", cursor.fetchone()[0])


@task(queue_name="mail")
async def send(address):
    note("send", address)


@task(takes_context=True)
def fail_once(context):
    note("attempt", context.attempt, context.task_result.id)
    if context.attempt == 1:
        raise ConnectionError("no route")


@task
def fail():
    raise ValueError("never")


@task
def tell_time():
    note("time", timezone.now().timestamp())
"""
#: Runs code in the project: `python in_project.py CODE`.
_IN_PROJECT = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from jobs import *
exec(sys.argv[1])
"""


_WORKER = ("-m", "django", "shoal_worker", "--pythonpath=.")
#: Prints what the checks find for the OPTIONS in a list, one line for each.
_CHECKS = """
from django.core.checks import run_checks
from django.test import override_settings
for options in {cases}:
    backend = {{"BACKEND": "shoal.django.ShoalBackend", "OPTIONS": options}}
    with override_settings(TASKS={{"default": backend}}):
        print(*(f'{{found.id}} {{found.msg}} {{found.hint}}' for found in run_checks()))
with override_settings(TASKS={{"default": backend}}, INSTALLED_APPS=[]):
    print(*(f'{{found.id}} {{found.msg}} {{found.hint}}' for found in run_checks()))
"""


_DEAD = f"dlq.{uuid4().hex}"


class Project:
    """A Django project in a folder, with queues of its own on a broker."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.configure(options)
        (folder / "jobs.py").write_text(_JOBS)
        (folder / "in_project.py").write_text(_IN_PROJECT)
        self.environment = without_configs() | {"DJANGO_SETTINGS_MODULE": "settings"}

    def configure(self, options: dict[str, Any]) -> None:
        (self.folder / "settings.py").write_text(_SETTINGS.format(options=options, apps=_APPS))

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program in the folder."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def run(self, code: str) -> str:
        """Run code in the project and return what it prints."""
        done = self.call("in_project.py", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def set_up(self) -> str:
        """Return what the command for topics and the group prints."""
        done = self.call(*_WORKER, "--setup-only")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def list_done(self) -> list[list[str]]:
        """Return the words of each line that tasks have written."""
        path = self.folder / "done"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Run a worker beside the block; stop it, and expect that it ends in order."""
        with (self.folder / "log").open("w") as log:
            worker = subprocess.Popen(
                [sys.executable, *_WORKER],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0, (self.folder / "log").read_text()
        finally:
            worker.kill()
            worker.wait()


class Running(NamedTuple):
    """A project with a worker, and what its first command printed."""

    project: Project
    set_up: str


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, shared_broker: ShoalProcess
) -> Iterator[Running]:
    """One for all tests: each program that loads Django takes a second."""
    folder = tmp_path_factory.mktemp("project")
    project = Project(
        folder,
        bootstrap_servers=shared_broker.bootstrap,
        topic_prefix=f"{uuid4().hex}.",
        group=uuid4().hex,
        dead_letters=_DEAD,
        retries=1,
        backoff="100ms",
    )
    printed = project.set_up()
    with project.working():
        yield Running(project, printed)


def read_topic(broker: ShoalProcess, topic: str) -> list[Any]:
    """Return the records of a topic with one partition."""

    partition = TopicPartition(topic, 0)
    with SyncClient(broker.bootstrap) as client:
        end = client.run(client.admin.topics.offsets({partition: OffsetSpec.LATEST}))[partition]
        assert not isinstance(end, KafkaError)
        batches = client.fetch_range(topic, 0, 0, end.offset - 1) if end.offset else []
        return [record for batch in batches for record in batch.records()]


def test_tasks_run_and_fail_as_their_functions_do(
    running: Running, shared_broker: ShoalProcess
) -> None:
    project = running.project
    ids = project.run(
        "add.enqueue(2, b=3); send.enqueue('a@example.com');"
        "print(fail_once.enqueue().id, fail.enqueue().id)"
    ).split()
    expected = [["add", "5"], ["attempt", "1", ids[0]], ["attempt", "2", ids[0]]]
    expected += [["send", "a@example.com"]]

    def is_done() -> bool:
        done = project.list_done()
        return all(words in done for words in expected)

    eventually(is_done, what="the tasks ran")
    (letter,) = eventually(lambda: read_topic(shared_broker, _DEAD), what="a dead letter")
    assert dict(letter.headers)["django.task.id"] == ids[1].encode()
    assert json.loads(letter.value)["function"] == "jobs.fail"
    assert [words for words in project.list_done() if ids[0] in words] == expected[1:3]


def test_a_task_waits_for_its_time(running: Running) -> None:
    """Longer than an enqueued task needs to arrive."""
    at = float(
        running.project.run(
            "from datetime import timedelta\n"
            "at = timezone.now() + timedelta(seconds=2)\n"
            "tell_time.using(run_after=at).enqueue()\n"
            "print(at.timestamp())"
        )
    )

    def read_times() -> list[float]:
        return [float(words[1]) for words in running.project.list_done() if words[0] == "time"]

    (ran_at,) = eventually(read_times, what="the task ran")
    assert ran_at >= at - 0.001  # The header has whole milliseconds.


def test_the_command_sets_what_is_missing_and_no_more(running: Running) -> None:
    assert "Set share.delay.max.ms=604800000" in running.set_up
    assert running.project.set_up() == ""


def test_threads_and_forked_processes_enqueue(running: Running) -> None:
    """The threads share a client, and the child of a fork makes its own."""
    clients = running.project.run(
        "import os, threading\n"
        "add.enqueue(10, 10)\n"
        "started = [threading.Thread(target=add.enqueue, args=(10, 10)) for _ in range(4)]\n"
        "[thread.start() for thread in started]; [thread.join() for thread in started]\n"
        "if os.fork() == 0: add.enqueue(10, 10); os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "print(sum(thread.name == 'shoal-client' for thread in threading.enumerate()))"
    )
    assert clients == "1"
    eventually(lambda: running.project.list_done().count(["add", "20"]) == 6, what="all ran")


def test_what_cannot_be_enqueued_is_refused(running: Running) -> None:
    printed = running.project.run(
        "import datetime\n"
        "def attempt(call):\n"
        "    try: call()\n"
        "    except Exception as error: print(error)\n"
        "late = timezone.now() + datetime.timedelta(days=8)\n"
        "attempt(lambda: add.using(run_after=late))\n"
        "attempt(lambda: add.using(queue_name='mails').enqueue(1, 1))\n"
        "attempt(lambda: add.using(backend='other').enqueue(1, 1))\n"
    ).splitlines()
    assert "8.0 days ahead. A record can wait for 7 days at most" in printed[0]
    assert "Queue 'mails' is not valid" in printed[1]
    assert "there is no topic 'no-such.default'" in printed[2]


def test_checks_find_wrong_settings(running: Running) -> None:
    cases: list[dict[str, Any]]
    cases = [
        {"retry": 3},
        {"retries": -1},
        {"timeout": "soon"},
        {"bootstrap_servers": "a:b:c"},
        {"topic_prefix": "my tasks "},
        {"bootstrap_servers": "a", "client": {"security.protocoll": "SSL"}},
        {"dead_letters": "failed"},
        {"group": "redrive.mine"},
        {},
    ]
    found = running.project.run(_CHECKS.format(cases=cases)).split("\n")
    for line, said in zip(
        found,
        (
            "shoal.E001 TASKS['default']: there is no option 'retry'. Did you mean retries?",
            "retries is -1; it is a number of at least 0",
            "timeout: 'soon' is not a duration",
            "'a:b:c' is not HOST:PORT",
            "queue 'default' has no topic",
            "does not support property 'security.protocoll'",
            "a dead-letter topic is named dlq.NAME",
            "group redrive.mine is reserved",
            "",
            "Add 'shoal.django' to INSTALLED_APPS",
        ),
        strict=True,
    ):
        assert said in line
        assert said or not line


@pytest.mark.parametrize(
    ("django", "shoal"),
    [(-100, 0), (-76, 0), (-75, 1), (-1, 3), (0, 4), (1, 5), (20, 5), (21, 6), (100, 9)],
)
def test_a_priority_keeps_its_sign(django: int, shoal: int) -> None:
    assert to_priority(django) == shoal
