"""Celery's own smoke tests, by `shoal://`.

They are in Celery's source distribution (`t/smoke`), which pip fetches with a pinned hash. Their
containers are processes (`celery_containers`). A conftest.py in its folder names Shoal as the only
broker, also where a test asks for RabbitMQ or Redis. Results are stored by a Redis server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.workers import celery_containers

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
CONFTEST = """
import pytest
import pytest_docker_tools.wrappers.container
from support.workers.celery_containers import SHOAL_IMAGE, SHOAL_PORT, Daemon
from pytest_celery import CeleryTestBroker, CeleryTestContainer
from pytest_docker_tools import container

# In a container, it would look for the others by their address in Docker's network.
pytest_docker_tools.wrappers.container.tests_inside_container = lambda: False


@pytest.fixture(scope="session")
def docker_client():
    daemon = Daemon()
    yield daemon
    daemon.close()


class ShoalContainer(CeleryTestContainer):
    ready_prompt = "Ready after"

    @property
    def celeryconfig(self):
        url = "shoal://{}:{}//".format(*self.get_addr(SHOAL_PORT))
        return {"url": url, "host_url": url}


shoal_container = container(
    image=SHOAL_IMAGE, ports={SHOAL_PORT: None}, wrapper_class=ShoalContainer, timeout=60
)


@pytest.fixture
def celery_broker(shoal_container):
    broker = CeleryTestBroker(shoal_container)
    yield broker
    broker.teardown()


@pytest.fixture
def celery_redis_broker(celery_broker):
    return celery_broker


@pytest.fixture
def celery_rabbitmq_broker(celery_broker):
    return celery_broker


@pytest.fixture
def default_rabbitmq_broker(shoal_container):
    return shoal_container
"""
#: The smoke tests that run here: canvases, limits of tasks, revokes, signals, and workers that are
#: killed, restarted and stopped. docs/celery.md has the results of all.
FILES = (
    "failover/test_worker_failover",
    "test_canvas",
    "test_revoke",
    "test_signals",
    "test_tasks",
    "test_worker",
)
#: Tests that look for what Kombu's Redis transport logs, those that refuse other brokers, and one
#: that ends a worker when the first of three tasks runs, and then waits for all three.
LEFT_OUT = "not reset_visibility_timeout and not cancel_and_reconnect and not long_running_tasks"
#: The tests of these files in Celery 5.7, without those.
TESTS_COUNT = 65


def run(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of the suite. Its output is standard output and errors."""
    return subprocess.run(
        (sys.executable, "-m", *words),
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_celerys_own_smoke_tests(tmp_path: Path) -> None:
    """Nine minutes: each test starts a broker and workers, and waits for what they log."""
    assert shutil.which("redis-server"), "redis-server is missing: apt-get install redis-server"
    source, packages = tmp_path / "source", tmp_path / "packages"
    pins = ("--require-hashes", "--no-deps", "-r")
    sdist = str(REQUIREMENTS / "celery.txt")
    words = ("download", "-q", "--no-binary", ":all:", *pins, sdist, "-d", str(tmp_path))
    downloaded = run("pip", *words, folder=tmp_path)
    assert downloaded.returncode == 0, downloaded.stdout
    tests = str(REQUIREMENTS / "celery-tests.txt")
    installed = run("pip", "install", "-q", *pins, tests, "-t", str(packages), folder=tmp_path)
    assert installed.returncode == 0, installed.stdout
    (archive,) = tmp_path.glob("celery-*.tar.gz")
    with tarfile.open(archive) as content:
        content.extractall(source, filter="data")
    (folder,) = source.iterdir()
    (folder / "conftest.py").write_text(CONFTEST)
    path = os.pathsep.join((str(packages), str(Path(celery_containers.__file__).parent)))
    files = [f"t/smoke/tests/{name}.py" for name in FILES]
    options = ("-p", "no:cacheprovider", "-n", "4", "--tb=short", "-q", "-k", LEFT_OUT)
    done = run("pytest", *options, *files, folder=folder, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout[-20_000:]
    assert f"{TESTS_COUNT} passed" in done.stdout, "not all of them ran"
