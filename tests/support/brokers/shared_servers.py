"""Servers that all tests of a run share: start one only where a test changes or kills it.

`Brokers` keeps one Shoal broker for each set of configs in this test process. `shared_kafka` keeps
one Apache Kafka for each set of configs in the whole run, since a JVM costs ten times as much: the
first test process that needs it starts it, and the others find its address in a folder of the run.
Each test creates topics and groups with names of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.api import ApiKey
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafkas import KafkaProcess
from support.runs import coverage_contexts, leaks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


#: Many tests write records with timestamps of 1970, which the first check of a broker that has run
#: for five minutes would delete.
_WITHOUT_RETENTION = {"log.retention.check.interval.ms": "86400000"}


class Brokers:
    """The shared brokers of this test process, each with its configs. `stop` ends them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._brokers: dict[tuple[tuple[str, str], ...], ShoalProcess] = {}

    def get(self, configs: Mapping[str, str] | None = None) -> ShoalProcess:
        """Return the running broker with exactly these configs, and start it if there is none.

        If a test has ended this broker, it starts again with its data.
        """
        key = tuple(sorted((configs or {}).items()))
        broker = self._brokers.get(key)
        if broker is None:
            directory = self._directory / f"broker-{len(self._brokers)}"
            broker = self._brokers[key] = ShoalProcess(
                directory,
                configs=_WITHOUT_RETENTION | dict(configs or {}),
                environment={coverage_contexts.VARIABLE: coverage_contexts.SHARED},
            )
        if not broker.is_running:
            broker.kill9()  # Reaps it, if a test has ended it.
            with leaks.unmarked():
                broker.start()
        return broker

    def stop(self) -> None:
        """Stop all brokers; fail if one of them does not end cleanly."""
        for broker in self._brokers.values():
            assert broker.stop() == 0, "\n".join(broker.log[-40:])


def list_topics(bootstrap: str) -> set[str]:
    """Return the topics that a client without a login sees, but not internal ones."""
    with WireClient(bootstrap) as client:
        listed = client.call(ApiKey.METADATA, 1, {"topics": None}).topics
        return {topic.name for topic in listed if not topic.is_internal}


def delete_topics(bootstrap: str, names: set[str]) -> None:
    """Delete topics, if they are still there."""
    with WireClient(bootstrap) as client:
        body = {"topic_names": sorted(names), "timeout_ms": 60_000}
        client.call(ApiKey.DELETE_TOPICS, 5, body)


class SharedKafka(NamedTuple):
    """A running Apache Kafka: its process and its addresses by listener name."""

    pid: int
    addresses: dict[str, str]

    @property
    def bootstrap(self) -> str:
        return self.addresses["PLAINTEXT"]


def shared_kafka(
    run_directory: Path, controller_pid: int, configs: Mapping[str, str] | None = None
) -> SharedKafka:
    """Return the run's Kafka with exactly these configs, and start it if there is none.

    `run_directory` is one for all test processes of a run, `controller_pid` the process that ends
    last. Kafka is killed once that has ended, however it ends.
    """
    text = json.dumps(sorted((configs or {}).items()))
    directory = run_directory / f"kafka-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return start_once(
        directory,
        controller_pid,
        lambda: KafkaProcess(directory / "node", configs=_WITHOUT_RETENTION | dict(configs or {})),
    )


def start_once(
    directory: Path, controller_pid: int, make: Callable[[], KafkaProcess]
) -> SharedKafka:
    """Return the run's Kafka of a directory. The first call in the run starts the one that `make`
    returns."""
    directory.mkdir(exist_ok=True)
    with lock(directory / "lock"):
        known = directory / "address.json"
        if not known.exists():
            with leaks.unmarked():
                kafka = make().start()
                _kill_after(controller_pid, kafka.pid)
            (directory / "new").write_text(json.dumps([kafka.pid, kafka.addresses]))
            (directory / "new").rename(known)
        pid, addresses = json.loads(known.read_text())
    return SharedKafka(pid, addresses)


def _kill_after(controller_pid: int, pid: int) -> None:
    """Kill a process once the controller has ended, from a process outside this one's session."""
    wait = f"tail --pid={controller_pid} -f /dev/null; kill -9 {pid}"
    subprocess.Popen(["sh", "-c", wait], start_new_session=True, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Exclude the other test processes of the run. `path` names the file that they lock."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def controller_pid() -> int:
    """Return the process that ends last: pytest, or the one that started this worker of it."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
