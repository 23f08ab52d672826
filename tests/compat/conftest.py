"""Clients that are no Python packages: Kafka's own tools (Java) and kcat.

A machine without them skips their tests and says why; under CI their absence is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import kafka_tools
import pytest
from kafka_tools import KafkaTools
from servers import ShoalProcess


def _lacks(reason: str) -> None:
    if os.environ.get("CI", "").lower() in {"", "0", "false"}:
        pytest.skip(reason)
    pytest.fail(reason)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("java") and (reason := kafka_tools.absent()):
        _lacks(reason)


@pytest.fixture(scope="module")
def tools_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    """A broker for the tools of a file; groups do not wait for members of the first second."""
    process = ShoalProcess(
        tmp_path_factory.mktemp("tools") / "data",
        configs={"group.initial.rebalance.delay.ms": "0"},
    ).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


@pytest.fixture
def tools(tools_broker: ShoalProcess) -> KafkaTools:
    return KafkaTools(tools_broker.bootstrap)


@pytest.fixture
def kcat() -> str:
    """The program's name."""
    if shutil.which("kcat") is None:
        _lacks("no kcat on the PATH: apt-get install kcat")
    return "kcat"
