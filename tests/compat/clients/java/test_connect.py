"""Kafka Connect's distributed workers on Shoal: a file becomes a topic, and the topic a file.

A worker is killed in the middle. The next one finds its configs, offsets and unfinished
transactions in Shoal's topics, so that the topic has each line once.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from support.brokers.ports import free_ports
from support.kafka.connect_jars import find_class_path
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

#: Two JVMs, one after the other, each of which needs ten seconds and more to begin.
pytestmark = [pytest.mark.java, pytest.mark.nightly, pytest.mark.timeout(900)]
WITHIN_S = 300.0
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
FILE = "org.apache.kafka.connect.file.FileStream"
#: Topics of the workers, and how they share the work.
SETTINGS = {
    "group.id": "connect",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "key.converter": STRINGS,
    "value.converter": STRINGS,
    "exactly.once.source.support": "enabled",
    "scheduled.rebalance.max.delay.ms": "0",
    "plugin.discovery": "service_load",
}
TOPIC = "lines"


class Worker:
    """A worker that runs, and requests to it."""

    def __init__(self, bootstrap: str, folder: Path, class_path: str) -> None:
        folder.mkdir()
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        addresses = {"bootstrap.servers": bootstrap, "listeners": self._url}
        lines = (f"{name}={value}\n" for name, value in (SETTINGS | addresses).items())
        properties = folder / "worker.properties"
        properties.write_text("".join(lines))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        words = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path, main)
        with self._log.open("w") as log:
            self.process = subprocess.Popen((*words, str(properties)), stdout=log, stderr=log)

    def ask(self, path: str, body: dict[str, str] | None = None) -> Any:
        """Send a request; return the answer, or None while the worker is not ready for it."""
        assert self.process.poll() is None, self._log.read_text()[-4000:]
        request = urllib.request.Request(
            f"{self._url}/connectors/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="GET" if body is None else "PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=100) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            return None

    def configure(self, name: str, config: dict[str, str]) -> None:
        eventually(lambda: self.ask(f"{name}/config", config), timeout_s=WITHIN_S)

    def is_running(self, name: str) -> bool:
        """Whether this worker runs the connector and its task."""
        status = self.ask(f"{name}/status")
        parts = [status["connector"], *status["tasks"]] if status else []
        here = self._url.removeprefix("http://")
        return [(p["state"], p["worker_id"]) for p in parts] == [("RUNNING", here)] * 2

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def write_lines(path: Path, first: int, end: int) -> None:
    with path.open("a") as file:
        file.writelines(f"line {n}\n" for n in range(first, end))


def read_committed(bootstrap: str, count: int) -> list[str]:
    """Return the records of committed transactions, at most `count`."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    try:
        messages = consumer.consume(count, timeout=30)
    finally:
        consumer.close()
    return [(message.value() or b"").decode() for message in messages]


def test_a_file_becomes_a_topic_and_a_file_although_a_worker_is_killed(
    shared_broker: ShoalProcess, tmp_path: Path
) -> None:
    class_path = find_class_path("connect-file")
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    write_lines(source, 0, 1000)
    sink.touch()

    def has_arrived(line: str) -> bool:
        return line in sink.read_text().splitlines()

    first = Worker(shared_broker.bootstrap, tmp_path / "first", class_path)
    try:
        config = {"connector.class": f"{FILE}SourceConnector", "topic": TOPIC}
        first.configure("source", config | {"file": str(source), "batch.size": "500"})
        config = {"connector.class": f"{FILE}SinkConnector", "topics": TOPIC}
        first.configure("sink", config | {"file": str(sink)})
        eventually(lambda: has_arrived("line 999"), timeout_s=WITHIN_S)
        write_lines(source, 1000, 40_000)
        eventually(lambda: has_arrived("line 1000"), timeout_s=WITHIN_S)
    finally:
        first.kill()
    write_lines(source, 40_000, 41_000)
    second = Worker(shared_broker.bootstrap, tmp_path / "second", class_path)
    try:
        for name in ("source", "sink"):
            eventually(lambda name=name: second.is_running(name), timeout_s=WITHIN_S)
        eventually(lambda: has_arrived("line 40999"), timeout_s=WITHIN_S)
    finally:
        second.kill()
    wanted = [f"line {n}" for n in range(41_000)]
    assert read_committed(shared_broker.bootstrap, len(wanted)) == wanted
    # The sink repeats what it had not committed, but leaves nothing out.
    assert sorted(set(sink.read_text().splitlines())) == sorted(wanted)
