"""Runs Django's own tests of task backends against `shoal.django`, with a real broker.

    .venv/bin/python tests/support/workers/django_cases.py

They are in Django's source package, which is fetched into a temporary folder. They are written for
the two backends that Django brings. One keeps tasks in a list, and one runs each at once. Here
these backends do so, too, beside what a `ShoalBackend` does: `Remembering` enqueues and remembers,
and `Running` enqueues and runs what a worker reads from the record. `DIFFERENT` names the cases
that cannot pass, and why. It needs Django 6, so Python 3.12 or newer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from shoal.testing import Broker

if django.VERSION < (6,):
    sys.exit(f"Django {django.__version__} has no task backends; Django 6 needs Python 3.12.")

ROOT = Path(__file__).resolve().parents[3]
#: What replaces the names of Django's backends in its tests.
BACKENDS = {
    "django.tasks.backends.dummy import DummyBackend": "django_backends import Remembering",
    "django.tasks.backends.dummy.DummyBackend": "django_backends.Remembering",
    "django.tasks.backends.immediate import ImmediateBackend": "django_backends import Running",
    "django.tasks.backends.immediate.ImmediateBackend": "django_backends.Running",
    "DummyBackend)": "Remembering)",
    "ImmediateBackend)": "Running)",
}
#: Cases that are skipped.
DIFFERENT = {
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "ShoalBackend supports run_after",
}
QUEUES = ("default", "high", "queue-1", "queue-2", "queue_1")


def fetch_cases(folder: Path) -> None:
    """Put Django's tests of tasks into a folder, with the names of our backends."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=django"]
        + [f"django=={django.__version__}", f"--dest={folder}"],
        check=True,
    )
    (archive,) = folder.glob("django-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    (found,) = folder.glob("django-*/tests/tasks")
    (folder / "cases").mkdir()
    found.rename(folder / "cases" / "tasks")
    for path in (folder / "cases" / "tasks").glob("test_*.py"):
        text = path.read_text()
        for theirs, ours in BACKENDS.items():
            text = text.replace(theirs, ours)
        path.write_text(text)


def skip_different(suite: unittest.TestSuite) -> None:
    """Skip the cases in `DIFFERENT`. Each of them must exist."""
    left = dict(DIFFERENT)
    for case in _list_cases(suite):
        kind, method = case.id().split(".")[-2:]
        if reason := left.pop(f"{kind}.{method}", ""):
            skipped = unittest.skip(reason)(getattr(type(case), method))
            setattr(type(case), method, skipped)
    assert not left, f"Django has no such cases: {', '.join(left)}"


def _list_cases(suite: Any) -> list[Any]:
    if isinstance(suite, unittest.TestSuite):
        return [case for inner in suite for case in _list_cases(inner)]
    return [suite]


def run_cases(folder: Path, broker: Broker) -> int:
    """Run the cases; return the number of those that failed."""
    os.environ["SHOAL_BOOTSTRAP_SERVERS"] = broker.bootstrap
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["shoal.django"],
        SECRET_KEY="tests",
        TASKS={"default": {"BACKEND": "django_backends.Remembering", "QUEUES": []}},
        USE_TZ=True,
    )
    django.setup()
    from django.test.runner import DiscoverRunner
    from shoal.django import producers
    from shoal.django.options import Options
    from shoal.django.setup import prepare

    prepare(Options(), QUEUES, lambda _sentence: None)
    runner = DiscoverRunner(top_level=str(folder), verbosity=1)
    suite = runner.build_suite([str(folder)])
    skip_different(suite)
    runner.setup_test_environment()
    databases = runner.setup_databases()
    try:
        result = runner.run_suite(suite)
    finally:
        runner.teardown_databases(databases)
        producers.close()
    for case, reason in result.skipped:
        print(f"skipped {case}: {reason}")
    return len(result.failures) + len(result.errors)


def main() -> int:
    """Return the exit code."""
    with tempfile.TemporaryDirectory() as name, Broker() as broker:
        fetch_cases(Path(name))
        sys.path.insert(0, str(Path(name, "cases")))
        return int(bool(run_cases(Path(name, "cases"), broker)))


if __name__ == "__main__":
    sys.exit(main())
