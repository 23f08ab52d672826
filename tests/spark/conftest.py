"""One Spark session for all tests here, and brokers of both kinds for each file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import leaks
import pytest
from kafkas import KafkaProcess
from queues import Queue
from servers import ShoalProcess
from shoal.client.client import SyncClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
SHORT_LOCKS = {"group.share.min.record.lock.duration.ms": "1000"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, for queries that need no separate process."""
    import spark_query

    with leaks.unmarked():
        session = spark_query.session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session", autouse=True)
def worker_python() -> None:
    """Make Spark's Python workers use the interpreter that runs the tests."""
    os.environ["PYSPARK_PYTHON"] = sys.executable


def _shoal(directory: Path) -> Iterator[str]:
    process = ShoalProcess(directory / "data", configs=SHORT_LOCKS).start()
    yield process.bootstrap
    assert process.stop() == 0, "\n".join(process.log[-40:])


def _kafka(directory: Path) -> Iterator[str]:
    process = KafkaProcess(directory / "kafka").start()
    yield process.bootstrap
    process.kill9()


@pytest.fixture(scope="module")
def shoal_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Shoal broker."""
    yield from _shoal(tmp_path_factory.mktemp("shoal"))


@pytest.fixture(scope="module", params=["shoal", pytest.param("kafka", marks=pytest.mark.java)])
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a broker: Shoal, then Apache Kafka."""
    kind = _shoal if request.param == "shoal" else _kafka
    yield from kind(tmp_path_factory.mktemp(request.param))


@pytest.fixture
def make_queue(bootstrap: str) -> Iterator[Callable[..., Queue]]:
    """Make queues on the broker; see `queues.Queue`."""
    with SyncClient(bootstrap) as client:
        yield lambda **options: Queue(client, bootstrap, **options)


@pytest.fixture
def shoal_queue(shoal_bootstrap: str) -> Iterator[Callable[..., Queue]]:
    """Make queues on Shoal, for tests that need no second broker."""
    with SyncClient(shoal_bootstrap) as client:
        yield lambda **options: Queue(client, shoal_bootstrap, **options)
