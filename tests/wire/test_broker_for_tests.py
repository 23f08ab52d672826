"""`shoal.testing`: brokers for the tests of applications."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.testing import Broker, BrokerFailed
from shoal.worker import SyncQueue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Starts a broker, says what it is, and waits for its end. It waits in parts, because Python
#: notices a signal that comes just before a system call only after that call.
_APPLICATION = """
import select
import sys
from shoal.testing import Broker

broker = Broker().start()
print(broker._server.pid, broker.data_dir, flush=True)
while not select.select([sys.stdin], [], [], 0.1)[0]:
    pass
"""


@pytest.fixture(params=[False, True], ids=["process", "thread"])
def in_thread(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def put(broker: Broker, value: str) -> int:
    """Enqueue a job in a topic, which is created with the first one; return its offset."""
    with (
        SyncClient(broker.bootstrap) as client,
        SyncQueue("jobs", settings=broker.bootstrap) as queue,
    ):
        client.run(client.admin.topics.create([NewTopic("jobs")]))
        return queue.put(value).offset


def test_a_broker_serves_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, in_thread: bool
) -> None:
    """Its configs are those of Kafka. Variables of the application are none."""
    monkeypatch.setenv("SHOAL_GROUP_ID", "thumbnails")
    monkeypatch.setenv("SHOAL_NUM_PARTITIONS", "0")
    with Broker({"num.partitions": 3}, in_thread=in_thread) as broker:
        assert put(broker, "a") == 0
        with SyncClient(broker.bootstrap) as client:
            assert len(client.run(client.cluster.get_topic("jobs")).partitions) == 3
        assert broker.data_dir.is_dir()
        assert broker.is_running
    assert not broker.is_running
    assert not broker.data_dir.exists()


def test_a_broker_keeps_its_data_and_its_port_over_a_restart(in_thread: bool) -> None:
    """A process also if it was killed."""
    with Broker(in_thread=in_thread) as broker:
        put(broker, "a")
        address = broker.bootstrap
        if not in_thread:
            broker.kill()
            assert not broker.is_running
        broker.restart()
        assert broker.bootstrap == address
        assert put(broker, "b") == 1
        if not in_thread:
            broker.restart()
            assert put(broker, "c") == 2


def test_a_directory_that_you_name_stays(tmp_path: Path, in_thread: bool) -> None:
    with Broker(data_dir=tmp_path, in_thread=in_thread) as broker:
        put(broker, "a")
    with Broker(data_dir=tmp_path, in_thread=in_thread) as broker:
        assert put(broker, "b") == 1


def test_a_broker_that_does_not_start_says_why(in_thread: bool) -> None:
    broker = Broker({"num.partition": 3}, in_thread=in_thread)
    with pytest.raises(BrokerFailed, match=r"num\.partitions"):
        broker.start()
    assert not broker.data_dir.exists()


@pytest.fixture
def application() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _APPLICATION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_broker_ends_with_its_application(
    application: subprocess.Popen[str], how: signal.Signals
) -> None:
    """However that ends: by a signal to all that Ctrl-C reaches, or killed alone. It has not loaded
    what reads command lines, which would take a third of its start."""
    assert application.stdout is not None
    pid, directory = application.stdout.readline().split()
    assert "pydantic_core" not in Path(f"/proc/{pid}/maps").read_text()
    if how is signal.SIGINT:
        os.killpg(application.pid, how)
    else:
        os.kill(application.pid, how)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), what="the broker ended")
    assert not Path(directory).exists()
