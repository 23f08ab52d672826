"""The fixtures of `shoal.testing.pytest_plugin`, in runs of pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import leaks
import pytest

if TYPE_CHECKING:
    from pathlib import Path

_TESTS = """
import os

from kafka import KafkaConsumer, KafkaProducer


def send(broker, topic):
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(topic, b"a").get(60)


def test_one(shoal_broker, shoal_client, shoal_topic):
    send(shoal_broker, shoal_topic)
    assert shoal_topic in shoal_client.run(shoal_client.cluster.get_topics([shoal_topic]))


def test_two(shoal_broker, shoal_topic):
    send(shoal_broker, shoal_topic)
    with KafkaConsumer(
        shoal_topic, bootstrap_servers=shoal_broker.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        assert next(consumer).offset == 0


def test_three(shoal_broker, record_property):
    with open(f"broker-{os.getpid()}", "w") as file:
        file.write(shoal_broker.bootstrap)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_app.py").write_text(_TESTS)
    return tmp_path


def run_pytest(project: Path, *flags: str) -> str:
    """Return what pytest prints in a project whose tests pass."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={project}", *flags],
        cwd=project,
        # As outside of this project's own tests.
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_tests_share_a_broker_and_have_topics_of_their_own(project: Path) -> None:
    assert "3 passed" in run_pytest(project)
    assert leaks.started() == []


def test_each_worker_of_xdist_has_its_own_broker(project: Path) -> None:
    (project / "test_b.py").write_text(_TESTS)
    assert "6 passed" in run_pytest(project, "-n2", "--dist=loadfile")
    assert len({path.read_text() for path in project.glob("broker-*")}) == 2
    assert leaks.started() == []


def test_a_project_sets_the_configs_of_its_broker(project: Path) -> None:
    (project / "conftest.py").write_text(
        'import pytest\n\n@pytest.fixture(scope="session")\n'
        'def shoal_broker_configs():\n    return {"num.partitions": 3}\n'
    )
    (project / "test_app.py").write_text(
        "def test_partitions(shoal_client, shoal_topic):\n"
        "    topic = shoal_client.run(shoal_client.cluster.get_topic(shoal_topic))\n"
        "    assert len(topic.partitions) == 3\n"
    )
    assert "1 passed" in run_pytest(project)


def test_a_run_without_the_fixtures_loads_nothing_else(project: Path) -> None:
    """The plugin's module is imported at each start of pytest where Shoal is installed."""
    (project / "test_app.py").write_text(
        "import sys\n\n\ndef test_modules():\n"
        "    found = {name for name in sys.modules if name.split('.')[0] == 'shoal'}\n"
        "    assert found == {'shoal', 'shoal.testing', 'shoal.testing.pytest_plugin',\n"
        "        'shoal.testing.broker', 'shoal.testing.bound_server',\n"
        "        'shoal.testing.local_folder',\n"
        "        'shoal.testing.server_process'}\n"
        "    assert 'asyncio' not in sys.modules\n"
    )
    run_pytest(project, "-p", "no:xdist", "-p", "no:anyio", "-p", "no:timeout")
