"""The fixtures of `shoal.testing.pytest_plugin`, in runs of pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.runs import leaks

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


def test_three(shoal_broker):
    note(shoal_broker)


def test_partitions(shoal_broker, shoal_client, shoal_topic):
    note(shoal_broker)
    topic = shoal_client.run(shoal_client.cluster.get_topic(shoal_topic))
    assert len(topic.partitions) == (3 if os.path.exists("conftest.py") else 1)


def note(broker):
    with open(f"broker-{os.getpid()}", "a") as file:
        print(broker.bootstrap, file=file)
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


def test_tests_of_a_process_share_a_broker_with_configs(project: Path) -> None:
    """Each worker of pytest-xdist has a broker of its own. Tests have topics of their own."""
    (project / "conftest.py").write_text(
        'import pytest\n\n@pytest.fixture(scope="session")\n'
        'def shoal_broker_configs():\n    return {"num.partitions": 3}\n'
    )
    (project / "test_b.py").write_text(_TESTS)
    assert "8 passed" in run_pytest(project, "-n2", "--dist=loadfile")
    brokers = [path.read_text().splitlines() for path in project.glob("broker-*")]
    assert [len(set(used)) for used in brokers] == [1, 1]
    assert brokers[0] != brokers[1]
    assert leaks.started() == []


@pytest.mark.nightly
def test_without_workers_all_tests_share_a_broker(project: Path) -> None:
    assert "4 passed" in run_pytest(project, "-p", "no:xdist")
    assert leaks.started() == []


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
