"""Real Kafka Streams applications with `group.protocol=streams` on Shoal and on Kafka (KIP-1071).

Both servers get the same input. With exactly-once, a read_committed consumer must see the same
records in the output of both, also when an instance is killed.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka_tools
import pytest
from commands import Shoal
from conditions import eventually
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_tools import KafkaTools
from kafkas import KafkaProcess
from servers import ShoalProcess
from wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.java

SOURCE = Path(__file__).parent / "StreamsShapes.java"
PARTITIONS = 4
KEYS = [f"key-{n}" for n in range(12)]
RECORDS = 240
#: An hour ago, so that nothing is too old for the retention of any topic.
FIRST_MS = int(time.time()) // 10 * 10_000 - 3_600_000
CONFIGS = {
    "group.streams.initial.rebalance.delay.ms": "1000",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "1000",
    "group.streams.heartbeat.interval.ms": "1000",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of both servers."""
    directory = tmp_path_factory.mktemp("servers")
    kafka = KafkaProcess(directory / "kafka", configs=CONFIGS).start()
    broker = ShoalProcess(directory / "shoal", configs=CONFIGS).start()
    yield {"kafka": kafka.bootstrap, "shoal": broker.bootstrap}
    kafka.kill9()
    assert broker.stop() == 0, "\n".join(broker.log[-40:])


class Instance:
    """An instance of an application; `lines` is its output."""

    def __init__(self, bootstrap: str, shape: str, prefix: str, state: Path) -> None:
        self.lines: list[str] = []
        settings = {
            "application.id": prefix,
            "bootstrap.servers": bootstrap,
            "group.protocol": "streams",
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": "200",
            "state.dir": str(state),
            "num.stream.threads": "2",
            "replication.factor": "-1",
            "consumer.auto.offset.reset": "earliest",
        }
        given = [f"{name}={value}" for name, value in settings.items()]
        self._process = subprocess.Popen(
            kafka_tools.java(str(SOURCE), shape, prefix, *given, heap="384m"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines += (line.rstrip() for line in self._process.stdout)

    def wait_running(self) -> None:
        eventually(lambda: "state RUNNING" in self.lines or self.died, timeout_s=90, what="RUNNING")
        assert not self.died, self.lines

    @property
    def died(self) -> list[str]:
        return [line for line in self.lines if line.startswith("died ")]

    def kill9(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._end()

    def stop(self) -> None:
        """Stop it cleanly; it must not have died before."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
        assert self._end() == 0, self.lines
        assert not self.died, self.lines

    def _end(self) -> int:
        status = self._process.wait(90)
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        return status


def create(bootstrap: str, prefix: str) -> None:
    with WireClient(bootstrap) as wire:
        for end in ("left", "right", "out"):
            wire.create_topic(f"{prefix}-{end}", PARTITIONS)


def write(bootstrap: str, topic: str, numbers: range) -> None:
    """Write records whose keys, values, partitions and timestamps follow from their numbers."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for n in numbers:
        at = n % len(KEYS)
        producer.produce(
            topic,
            key=KEYS[at],
            value=f"value-{n}",
            partition=at % PARTITIONS,
            timestamp=FIRST_MS + n * 250,
        )
    assert producer.flush(60) == 0


def read(bootstrap: str, topic: str, count: int, instances: list[Instance]) -> dict[str, list[str]]:
    """Return the committed values of each key, once there are at least `count`."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reads-{topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    found: dict[str, list[str]] = defaultdict(list)

    def enough() -> bool:
        for message in consumer.consume(1_000, timeout=0.3):
            if not message.error():
                found[message.key().decode()].append(message.value().decode())
        assert not any(instance.died for instance in instances)
        return sum(map(len, found.values())) >= count

    try:
        eventually(enough, timeout_s=120, what=f"{count} records in {topic}")
        enough()
    finally:
        consumer.close()
    return dict(found)


def run(bootstrap: str, shape: str, expected: int, directory: Path) -> dict[str, list[str]]:
    """Run an application of that shape over the input, and return its output by key."""
    prefix = f"shape-{shape}"
    create(bootstrap, prefix)
    right = RECORDS // 8 if shape == "join" else RECORDS
    write(bootstrap, f"{prefix}-right", range(right))
    instance = Instance(bootstrap, shape, prefix, directory)
    try:
        write(bootstrap, f"{prefix}-left", range(RECORDS))
        return read(bootstrap, f"{prefix}-out", expected, [instance])
    finally:
        instance.stop()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("stateless", RECORDS - RECORDS // 10),
        ("windows", RECORDS),
        ("join", RECORDS * (RECORDS // 8) // len(KEYS)),
        ("repartition", RECORDS),
        ("global", RECORDS),
    ],
)
def test_an_application_has_the_results_of_kafka(
    servers: dict[str, str], tmp_path: Path, shape: str, expected: int
) -> None:
    found = {
        name: run(bootstrap, shape, expected, tmp_path / name)
        for name, bootstrap in servers.items()
    }
    if shape in ("join", "repartition"):
        # The order in which two partitions are read is free.
        found = {s: {k: sorted(v) for k, v in out.items()} for s, out in found.items()}
    assert found["shoal"] == found["kafka"]
    assert sum(map(len, found["shoal"].values())) == expected


def test_exactly_once_when_an_instance_is_killed(servers: dict[str, str], tmp_path: Path) -> None:
    bootstrap, prefix = servers["shoal"], "killed"
    create(bootstrap, prefix)
    first = Instance(bootstrap, "repartition", prefix, tmp_path / "first")
    second = Instance(bootstrap, "repartition", prefix, tmp_path / "second")
    instances = [first, second]
    try:
        for instance in instances:
            instance.wait_running()
        write(bootstrap, f"{prefix}-left", range(RECORDS // 2))
        read(bootstrap, f"{prefix}-out", RECORDS // 4, instances)
        first.kill9()
        instances.remove(first)
        write(bootstrap, f"{prefix}-left", range(RECORDS // 2, RECORDS))
        found = read(bootstrap, f"{prefix}-out", RECORDS, instances)
    finally:
        for instance in instances:
            instance.stop()
    counts = [str(n) for n in range(1, RECORDS // 10 + 1)]
    assert found == {f"last-{n}": counts for n in range(10)}


def test_kafkas_tool_and_ours(servers: dict[str, str], tmp_path: Path) -> None:
    bootstrap, prefix = servers["shoal"], "tooled"
    create(bootstrap, prefix)
    tools = KafkaTools(bootstrap)
    write(bootstrap, f"{prefix}-left", range(RECORDS))
    instance = Instance(bootstrap, "repartition", prefix, tmp_path)
    try:
        read(bootstrap, f"{prefix}-out", RECORDS, [instance])
        assert f"{prefix}" in tools.run("streams-groups", "--list")
        (state,) = tools.rows("streams-groups", "--describe", "--group", prefix, "--state")
        assert state["STATE"] == "Stable"
        members = tools.run("streams-groups", "--describe", "--group", prefix, "--members")
        assert members.count("ACTIVE:") == 2
        described = _described(bootstrap, prefix)
        assert (described["type"], described["state"]) == ("Streams", "Stable")
        tasks = sorted(task for member in described["members"] for task in member["tasks"])
        assert tasks == [f"{s}_{p}" for s in range(2) for p in range(PARTITIONS)]
        owned = {row["topic"]: row["member"] for row in described["partitions"]}
        assert owned[f"{prefix}-left"] is not None
        refused = tools.run("streams-groups", "--delete", "--group", prefix)
        assert "GroupNotEmptyException" in refused
    finally:
        instance.stop()
    reset = ("--reset-offsets", "--group", prefix, "--input-topic", f"{prefix}-left")
    rows = tools.rows("streams-groups", *reset, "--to-earliest", "--execute")
    assert {row["NEW-OFFSET"] for row in rows} == {"0"}
    tools.run("streams-groups", "--delete", "--group", prefix)
    assert f"{prefix}\n" not in tools.run("streams-groups", "--list")


def _described(bootstrap: str, group: str) -> dict[str, Any]:
    (found,) = Shoal(bootstrap).json("groups", "describe", group)
    return found
