"""Real Kafka Streams applications with `group.protocol=streams` on Shoal and on Kafka (KIP-1071).

Both servers get the same input. With exactly-once, a read_committed consumer must see the same
records in the output of both, also when an instance is killed.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.brokers.commands import Shoal
from support.brokers.wireclient import WireClient
from support.kafka.java_classes import SOURCES
from support.kafka.kafka_tools import KafkaTools
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually
from support.streams.streams_applications import StreamsApplication

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

pytestmark = pytest.mark.java

SOURCE = SOURCES / "StreamsShapes.java"
PARTITIONS = 4
KEYS = [f"key-{n}" for n in range(12)]
RECORDS = 240
#: The shapes of applications, and how many records each writes.
SHAPES = {
    "stateless": RECORDS - RECORDS // 10,
    "windows": RECORDS,
    "join": RECORDS * (RECORDS // 8) // len(KEYS),
    "repartition": RECORDS,
    "global": RECORDS,
}
#: An hour ago, so that nothing is too old for the retention of any topic.
FIRST_MS = int(time.time()) // 10 * 10_000 - 3_600_000
CONFIGS = {
    "group.streams.initial.rebalance.delay.ms": "200",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "200",
    "group.streams.heartbeat.interval.ms": "200",
}
BROKER_CONFIG = CONFIGS


@pytest.fixture(scope="module")
def servers(get_kafka: Callable[..., SharedKafka], shared_broker: ShoalProcess) -> dict[str, str]:
    """The addresses of both servers."""
    return {"kafka": get_kafka(CONFIGS).bootstrap, "shoal": shared_broker.bootstrap}


class Instance(StreamsApplication):
    """An instance of an application of one of the shapes."""

    def __init__(self, bootstrap: str, shape: str, prefix: str, state: Path, **more: str) -> None:
        """`more` has settings of the application, with underscores for dots."""
        settings = {
            "group.protocol": "streams",
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": "200",
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        super().__init__(
            SOURCE,
            shape,
            prefix,
            bootstrap=bootstrap,
            name=prefix,
            state=state,
            settings=settings,
        )

    def place_of(self, key: str) -> str:
        """Ask which instance has the count of a key."""
        said = f"{key} is at "
        known = sum(line.startswith(said) for line in self.lines)
        self.write(key)

        def places() -> list[str]:
            return [line.removeprefix(said) for line in self.lines if line.startswith(said)]

        eventually(lambda: len(places()) > known, timeout_s=30, what=said)
        return places()[-1]


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
        eventually(enough, timeout_s=240, what=f"{count} records in {topic}")
        enough()
    finally:
        consumer.close()
    return dict(found)


def run(bootstrap: str, directory: Path) -> dict[str, dict[str, list[str]]]:
    """Run an application of each shape over the input, all in one JVM. Return the output of each
    shape by key."""
    for shape in SHAPES:
        create(bootstrap, f"shape-{shape}")
        right = RECORDS // 8 if shape == "join" else RECORDS
        write(bootstrap, f"shape-{shape}-right", range(right))
    instance = Instance(bootstrap, ",".join(SHAPES), "shape", directory, num_stream_threads="1")
    try:
        for shape in SHAPES:
            write(bootstrap, f"shape-{shape}-left", range(RECORDS))
        return {
            shape: read(bootstrap, f"shape-{shape}-out", expected, [instance])
            for shape, expected in SHAPES.items()
        }
    finally:
        instance.stop()


@pytest.mark.nightly
def test_applications_have_the_results_of_kafka(servers: dict[str, str], tmp_path: Path) -> None:
    folders = [tmp_path / name for name in servers]
    with ThreadPoolExecutor(len(servers)) as pool:
        found = dict(zip(servers, pool.map(run, servers.values(), folders), strict=True))
    for outputs in found.values():
        for shape in ("join", "repartition"):
            # The order in which two partitions are read is free.
            outputs[shape] = {key: sorted(values) for key, values in outputs[shape].items()}
    for shape, expected in SHAPES.items():
        assert found["shoal"][shape] == found["kafka"][shape], shape
        assert sum(map(len, found["shoal"][shape].values())) == expected, shape


def test_exactly_once_when_an_instance_is_killed(
    shared_broker: ShoalProcess, tmp_path: Path
) -> None:
    bootstrap, prefix = shared_broker.bootstrap, "killed"
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


@pytest.mark.nightly
@pytest.mark.parametrize("server", ["shoal", "kafka"])
def test_interactive_queries_find_the_instance_of_each_key(
    servers: dict[str, str], tmp_path: Path, server: str
) -> None:
    """Each instance has one thread: with two, Kafka Streams 4.3.1 does not find all keys."""
    bootstrap, prefix = servers[server], "queried"
    create(bootstrap, prefix)
    places = ["127.0.0.1:1001", "127.0.0.1:1002"]
    instances = [
        Instance(
            bootstrap,
            "repartition",
            prefix,
            tmp_path / place[-1],
            application_server=place,
            num_stream_threads="1",
        )
        for place in places
    ]
    keys = [f"last-{n}" for n in range(10)]

    def agree(*alive: Instance) -> bool:
        """Each instance finds the same places, and all instances have keys."""
        found = [[instance.place_of(key) for key in keys] for instance in alive]
        assert set(found[0]) == set(places[: len(alive)]), found
        assert found[0] == found[-1]
        return True

    try:
        write(bootstrap, f"{prefix}-left", range(RECORDS))
        read(bootstrap, f"{prefix}-out", RECORDS, instances)
        eventually(lambda: agree(*instances), timeout_s=60)
        instances.pop().kill9()
        eventually(lambda: agree(*instances), timeout_s=60)
    finally:
        for instance in instances:
            instance.stop()


@pytest.mark.nightly
@pytest.mark.parametrize("server", ["shoal", "kafka"])
def test_an_instance_shuts_down_the_application(
    servers: dict[str, str], tmp_path: Path, server: str
) -> None:
    """With either server, the other instance ends in the same state."""
    bootstrap, prefix = servers[server], "fatal"
    create(bootstrap, prefix)
    instances = [Instance(bootstrap, "repartition", prefix, tmp_path / str(n)) for n in range(2)]
    try:
        for instance in instances:
            instance.wait_running()
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        producer.produce(f"{prefix}-left", key="key", value="fatal", partition=0)
        assert producer.flush(60) == 0
        for instance in instances:
            eventually(
                lambda one=instance: "state ERROR" in one.lines,
                timeout_s=60,
                what=f"the end of {instances.index(instance)}",
            )
        # One of them has failed, and the other has ended at its request.
        assert sum(any("fatal" in line for line in i.died) for i in instances) == 1
    finally:
        for instance in instances:
            instance.kill9()


@pytest.mark.nightly
def test_kafkas_tool_and_ours(shared_broker: ShoalProcess, tmp_path: Path) -> None:
    bootstrap, prefix = shared_broker.bootstrap, "tooled"
    create(bootstrap, prefix)
    tools = KafkaTools(bootstrap)
    write(bootstrap, f"{prefix}-left", range(RECORDS))
    instance = Instance(bootstrap, "repartition", prefix, tmp_path)
    try:
        read(bootstrap, f"{prefix}-out", RECORDS, [instance])
        assert f"{prefix}" in tools.run("streams-groups", "--list")
        state = tools.run("streams-groups", "--describe", "--group", prefix, "--state")
        assert re.search(r"\) +sticky +Stable +2$", state, re.MULTILINE), state
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


#: Forms of the tool while the application runs, and after its end.
LIVE_FORMS = (
    "--list",
    "--list --state",
    "--describe --group {0}",
    "--describe --group {0} --offsets --verbose",
    "--describe --group {0} --members",
    "--describe --group {0} --members --verbose",
    "--describe --group {0} --state",
    "--describe --group {0} --state --verbose",
    "--reset-offsets --group {0} --input-topic {0}-left --to-earliest --dry-run",
    "--delete --group {0}",
)
ENDED_FORMS = (
    "--describe --group {0} --state",
    "--reset-offsets --group {0} --input-topic {0}-left --shift-by -1 --dry-run",
    "--reset-offsets --group {0} --input-topic {0}-left --to-earliest --execute",
    "--describe --group {0} --offsets",
    "--delete-offsets --group {0} --input-topic {0}-left",
    "--delete --group {0}",
)


def _comparable(text: str) -> list[str]:
    """The lines of the tool without ids and addresses, in order; in tables with epochs without
    numbers."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}(-StreamThread-\d+)?\S*", "ID", text)
    text = re.sub(r"(?<!\S)[\w-]{22}(?!\S)", "ID", text)  # Member ids.
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    if "EPOCH" in text:
        text = re.sub(r"\b\d+\b", "N", text)
    return sorted(" ".join(line.split()) for line in text.splitlines())


def _every_form(bootstrap: str, prefix: str, state: Path) -> dict[str, list[str]]:
    create(bootstrap, prefix)
    tools = KafkaTools(bootstrap)
    write(bootstrap, f"{prefix}-left", range(RECORDS))
    instance = Instance(bootstrap, "repartition", prefix, state)
    try:
        read(bootstrap, f"{prefix}-out", RECORDS, [instance])
        owned = ("--describe", "--group", prefix, "--members")
        eventually(lambda: tools.run("streams-groups", *owned).count("ACTIVE:") == 2, timeout_s=60)
        found = {
            form: tools.run("streams-groups", *form.format(prefix).split()) for form in LIVE_FORMS
        }
        # Neither server has a plugin that stores descriptions of topologies.
        described = ("--describe", "--group", prefix, "--topology")
        found["topology"] = tools.run("streams-groups", *described, status=1)
    finally:
        instance.stop()
    for form in ENDED_FORMS:
        found[f"ended: {form}"] = tools.run("streams-groups", *form.format(prefix).split())
    return {form: _comparable(text) for form, text in found.items()}


@pytest.mark.nightly
def test_every_form_of_kafkas_tool_prints_the_same(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    """It lists all groups of each server, so both are new."""
    kafka = KafkaProcess(tmp_path / "node", configs=CONFIGS).start()
    broker = start_broker(configs=CONFIGS)
    try:
        found = {
            name: _every_form(server.bootstrap, "forms", tmp_path / name)
            for name, server in (("kafka", kafka), ("shoal", broker))
        }
    finally:
        kafka.kill9()
    assert found["shoal"] == found["kafka"]


def _described(bootstrap: str, group: str) -> dict[str, Any]:
    (found,) = Shoal(bootstrap).json("groups", "describe", group)
    return found
