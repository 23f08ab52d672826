"""Clients that are not Python packages: Kafka's own tools (Java) and kcat.

On a machine without them their tests are skipped with the reason; in CI they fail.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.brokers.shared_servers import controller_pid
from support.kafka import early_java, kafka_tools
from support.kafka.kafka_tools import KafkaTools
from support.runs.machine import lacking
from support.security.secured_clusters import Secured, SharedClusters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.brokers.shared_servers import SharedKafka


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("java") and (reason := kafka_tools.absent()):
        lacking(reason)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the run's Kafka in the background if one of its tests will use it."""
    wanted = any("get_kafka" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly and not kafka_tools.absent():
        factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined] # noqa: SLF001
        directory = factory.getbasetemp()
        if "PYTEST_XDIST_WORKER" in os.environ:
            directory = directory.parent
        early_java.start(directory, controller_pid())


@pytest.fixture(scope="module")
def tools_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    """A broker for the tools of a file; groups do not wait for further members at their start."""
    process = ShoalProcess(
        tmp_path_factory.mktemp("tools") / "data",
        configs={"group.initial.rebalance.delay.ms": "0"},
    ).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


@pytest.fixture
def tools(tools_broker: ShoalProcess) -> KafkaTools:
    return KafkaTools(tools_broker.bootstrap)


@pytest.fixture(scope="session")
def kafka(get_kafka: Callable[..., SharedKafka]) -> SharedKafka:
    """The run's Apache Kafka with one node."""
    return get_kafka()


@pytest.fixture(scope="session")
def secured_clusters(
    run_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedClusters]:
    """The secured clusters that the files of a run share."""
    clusters = SharedClusters(run_directory, controller_pid(), tmp_path_factory.mktemp("secured"))
    yield clusters
    clusters.stop()


@pytest.fixture(
    scope="module",
    params=["shoal", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.nightly])],
)
def secured(request: pytest.FixtureRequest, secured_clusters: SharedClusters) -> Secured:
    """A shared broker with TLS, SASL and access control: ours, and at night Kafka's."""
    return secured_clusters.kafka() if request.param == "kafka" else secured_clusters.shoal()


@pytest.fixture
def chosen_broker(request: pytest.FixtureRequest) -> ShoalProcess:
    """The file's shared broker, or a broker for this test alone if it uses `start_broker`: that is
    for tests that kill their broker or change its configs."""
    if "start_broker" not in request.fixturenames:
        return request.getfixturevalue("shared_broker")
    configs = getattr(request.module, "BROKER_CONFIG", None)
    return request.getfixturevalue("start_broker")(configs=configs)


@pytest.fixture
def queue(broker: ShoalProcess) -> Iterator[Queue]:
    """A topic and a share group on the broker."""
    with SyncClient(broker.bootstrap) as client:
        yield Queue(client, broker.bootstrap)


@pytest.fixture
def kcat() -> str:
    """Return the program's name."""
    if shutil.which("kcat") is None:
        lacking("no kcat on the PATH: apt-get install kcat")
    return "kcat"
