"""One Spark session and a broker of each kind for all tests here."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol
from shoal.client.client import SyncClient
from support.brokers.queues import Queue
from support.runs import leaks
from support.runs.machine import lacking
from support.spark import spark_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import Brokers, SharedKafka

HERE = Path(__file__).parent
#: Words of Spark where it does not wait for a Python worker, and how often a test may meet them.
LATE_WORKER, ATTEMPTS = "Python worker failed to connect back", 5
SHORT_LOCKS = {"group.share.min.record.lock.duration.ms": "1000"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a test whose query ended because Spark did not wait for a Python worker: it waits for
    ten seconds, which no setting changes, and a busy machine may need longer."""
    if not item.path.is_relative_to(HERE):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempts_left in reversed(range(ATTEMPTS)):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not attempts_left or not any(map(_is_of_late_worker, reports)):
            break
        # As a test that has not begun. pytest has no public name for it.
        item._initrequest()  # type: ignore[attr-defined]  # noqa: SLF001
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _is_of_late_worker(report: pytest.TestReport) -> bool:
    texts = (report.longreprtext, *(text for _, text in report.sections))
    return report.failed and any(LATE_WORKER in text for text in texts)


def pytest_runtest_setup() -> None:
    if shutil.which("java") is None:
        lacking("Spark needs Java 17 or newer: make prerequisites FOR=spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, for queries that need no separate process."""
    from support.spark import spark_query

    with leaks.unmarked():
        session = spark_query.session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session", autouse=True)
def variables() -> None:
    """Make Spark's Python workers use the interpreter that runs the tests, and let their daemon
    import for all of them, which it does if libraries start no threads. Its JVMs start from an
    archive of classes."""
    spark_java.use()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def spark_broker(shared_brokers: Brokers) -> ShoalProcess:
    """A Shoal broker that all tests here share."""
    return shared_brokers.get(SHORT_LOCKS)


@pytest.fixture(scope="session")
def shoal_bootstrap(spark_broker: ShoalProcess) -> str:
    return spark_broker.bootstrap


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
