"""One Spark session and a broker of each kind for all tests here."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import leaks
import pytest
from machine import lacking
from queues import Queue
from shoal.client.client import SyncClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from shared_servers import Brokers, SharedKafka

HERE = Path(__file__).parent
SHORT_LOCKS = {"group.share.min.record.lock.duration.ms": "1000"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)


def pytest_runtest_setup() -> None:
    if shutil.which("java") is None:
        lacking("Spark needs Java 17 or newer: make prerequisites FOR=spark")


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
    """Make Spark's Python workers use the interpreter that runs the tests, and let their daemon
    import for all of them, which it does if libraries start no threads."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def shoal_bootstrap(shared_brokers: Brokers) -> str:
    """The address of a Shoal broker that all tests here share."""
    return shared_brokers.get(SHORT_LOCKS).bootstrap


@pytest.fixture(params=["shoal", pytest.param("kafka", marks=pytest.mark.java)])
def bootstrap(
    request: pytest.FixtureRequest, shoal_bootstrap: str, get_kafka: Callable[..., SharedKafka]
) -> str:
    """The address of a broker: Shoal, then Apache Kafka."""
    return shoal_bootstrap if request.param == "shoal" else get_kafka().bootstrap


@pytest.fixture
def make_queue(bootstrap: str) -> Iterator[Callable[..., Queue]]:
    """Make queues on the broker; see `queues.Queue`."""
    with SyncClient(bootstrap) as client:
        yield lambda **options: Queue(client, bootstrap, **options)


@pytest.fixture
def kafka_queue(get_kafka: Callable[..., SharedKafka]) -> Iterator[Callable[..., Queue]]:
    """Make queues on Apache Kafka, for tests whose behaviour on Shoal other tests show."""
    bootstrap = get_kafka().bootstrap
    with SyncClient(bootstrap) as client:
        yield lambda **options: Queue(client, bootstrap, **options)


@pytest.fixture
def shoal_queue(shoal_bootstrap: str) -> Iterator[Callable[..., Queue]]:
    """Make queues on Shoal, for tests that need no second broker."""
    with SyncClient(shoal_bootstrap) as client:
        yield lambda **options: Queue(client, shoal_bootstrap, **options)
