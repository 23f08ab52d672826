"""MirrorMaker 2 copies topics of Apache Kafka into Shoal, as docs/migration.md says, and among
clusters of both."""

from __future__ import annotations

import asyncio
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import expect
from support.brokers.commands import Shoal
from support.kafka.connect_jars import find_class_path
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shoal.client.net.cluster import TopicPartition
    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

#: Two jars from Maven Central, and a JVM that takes half a minute to begin.
pytestmark = [pytest.mark.java, pytest.mark.nightly, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples/mirror-maker.properties"
#: How long MirrorMaker may take to start, and to copy a few records.
COPIED_WITHIN_S = 300.0


#: Each cluster's topic is copied into the next one. Names get the source's before them.
FLOWS = {"red": "blue", "blue": "kafka", "kafka": "red"}
#: MirrorMaker copies permissions only between clusters that have some.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@contextmanager
def run_mirror_maker(folder: Path, properties: str) -> Iterator[None]:
    """MirrorMaker with these properties, which must still run at the end."""
    path = folder / "mirror-maker.properties"
    path.write_text(properties)
    class_path = find_class_path("connect-mirror", "connect-mirror-client")
    words = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    words += ["org.apache.kafka.connect.mirror.MirrorMaker", str(path)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, (folder / "log").read_text()[-4000:]
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def mirror_maker(
    get_kafka: Callable[..., SharedKafka], shared_broker: ShoalProcess, tmp_path: Path
) -> Iterator[str]:
    """MirrorMaker with the example's properties; yield the address of Kafka."""
    kafka = get_kafka().bootstrap
    text = EXAMPLE.read_text().replace("kafka.example:9092", kafka)
    text = text.replace("shoal.example:9092", shared_broker.bootstrap)
    text = re.sub(r"(replication\.factor) = 3", r"\1 = 1", text)
    with run_mirror_maker(tmp_path, text.replace("interval.seconds = 10", "interval.seconds = 1")):
        yield kafka


def find_offsets(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    """Return the positions of a group."""

    async def ask() -> dict[TopicPartition, int]:
        async with Client(bootstrap) as client:
            offsets = (await client.admin.groups.offsets([group]))[group]
            assert isinstance(offsets, dict), offsets
            return {partition: row.offset for partition, row in offsets.items()}

    return asyncio.run(ask())


def test_topics_and_positions_of_groups_are_copied(
    mirror_maker: str, shared_broker: ShoalProcess
) -> None:
    source, target = Shoal(mirror_maker), Shoal(shared_broker.bootstrap)

    async def fill() -> None:
        async with Client(mirror_maker) as client:
            new = NewTopic("orders", 2, 1, configs={"max.message.bytes": "2000000"})
            expect(await client.admin.topics.create([new]))

    asyncio.run(fill())
    source.run("produce", "orders", "-K", ":", stdin="".join(f"{n}:v{n}\n" for n in range(100)))
    source.run("consume", "orders", "-g", "billing", "--from-beginning", "-n", "60")

    def read() -> list[str]:
        return target.says("consume", "orders", "--from-beginning", "-e", "-f", "{value}").split()

    def is_copied() -> bool:
        topics = [row["topic"] for row in target.json("topics", "list")]
        return "orders" in topics and len(read()) == 100

    eventually(is_copied, timeout_s=COPIED_WITHIN_S)
    assert sorted(read()) == sorted(f"v{n}" for n in range(100))
    (described,) = target.json("topics", "describe", "orders")
    assert len(described["partitions"]) == 2
    assert described["configs"]["max.message.bytes"] == "2000000"

    def is_translated() -> bool:
        return sum(find_offsets(shared_broker.bootstrap, "billing").values()) > 0

    eventually(is_translated, timeout_s=COPIED_WITHIN_S)
    ours = find_offsets(shared_broker.bootstrap, "billing")
    theirs = find_offsets(mirror_maker, "billing")
    # A translated position may be earlier than the original one, never later.
    assert all(0 <= ours[partition] <= theirs[partition] for partition in ours)


def format_properties(bootstraps: Mapping[str, str]) -> str:
    """Return the properties of a MirrorMaker that copies along `FLOWS`, with all that it offers."""
    lines = [f"clusters = {', '.join(bootstraps)}"]
    lines += [f"{name}.bootstrap.servers = {address}" for name, address in bootstraps.items()]
    for source, target in FLOWS.items():
        lines += [
            f"{source}->{target}.enabled = true",
            f"{source}->{target}.topics = of-{source}",
            f"{source}->{target}.groups = readers-of-{source}",
            f"{source}->{target}.sync.group.offsets.enabled = true",
            f"{source}->{target}.sync.group.offsets.interval.seconds = 1",
            f"{source}->{target}.emit.checkpoints.interval.seconds = 1",
            f"{source}->{target}.sync.topic.acls.enabled = true",
            f"{source}->{target}.sync.topic.acls.interval.seconds = 1",
            f"{source}->{target}.sync.topic.configs.interval.seconds = 1",
            # The other direction would only send heartbeats.
            f"{target}->{source}.emit.heartbeats.enabled = false",
        ]
    topics = ("checkpoints", "heartbeats", "offset-syncs")
    lines += [f"{topic}.topic.replication.factor = 1" for topic in topics]
    lines += [f"{kind}.storage.replication.factor = 1" for kind in ("config", "offset", "status")]
    return "\n".join([*lines, "replication.factor = 1", "refresh.topics.interval.seconds = 1", ""])


def fill(name: str, shoal: Shoal) -> None:
    """Give a cluster a topic with records, configs, permissions, and a group that has read some."""
    topic = f"of-{name}"
    configs = ("-c", "max.message.bytes=2000000", "-c", "retention.ms=-1")
    shoal.run("topics", "create", topic, "-p", "2", *configs)
    shoal.run("acls", "add", "-t", topic, "-p", "ann", "--operation", "read")
    shoal.run("produce", topic, "-K", ":", stdin="".join(f"{n}:{name}-{n}\n" for n in range(100)))
    shoal.run("consume", topic, "-g", f"readers-of-{name}", "--from-beginning", "-n", "60")


def list_missing(source: str, bootstrap: str) -> list[str]:
    """Return what the target, which has this address, does not have yet of the source's topic."""
    target = Shoal(bootstrap)
    topic, missing = f"{source}.of-{source}", []
    names = [row["topic"] for row in target.json("topics", "list", "--internal")]
    needed = (topic, f"{source}.checkpoints.internal", f"{source}.heartbeats", "heartbeats")
    missing += [name for name in needed if name not in names]
    if missing:
        return missing
    values = target.says("consume", topic, "--from-beginning", "-e", "-f", "{value}").split()
    if sorted(values) != sorted(f"{source}-{n}" for n in range(100)):
        missing.append(f"{100 - len(values)} records")
    (described,) = target.json("topics", "describe", topic)
    own = described["configs"]
    if (own.get("max.message.bytes"), own.get("retention.ms")) != ("2000000", "-1"):
        missing.append(f"configs: {own}")
    entries = [str(row) for row in target.json("acls", "list", "-t", topic)]
    if not any("ann" in entry and "read" in entry.lower() for entry in entries):
        missing.append(f"permissions: {entries}")
    offsets = find_offsets(bootstrap, f"readers-of-{source}")
    # A translated position may be earlier than the original one, never later.
    if not 0 < sum(offsets.values()) <= 60:
        missing.append(f"positions: {offsets}")
    heartbeats = target.says("consume", f"{source}.heartbeats", "--from-beginning", "-n", "1")
    return missing if heartbeats else [*missing, "heartbeats"]


def wait_for_copies(source: str, bootstrap: str) -> None:
    missing: list[str] = []

    def has_all() -> bool:
        missing[:] = list_missing(source, bootstrap)
        return not missing

    try:
        eventually(has_all, timeout_s=COPIED_WITHIN_S)
    except AssertionError:
        raise AssertionError(f"{bootstrap} lacks of {source}: {missing}") from None


def test_two_brokers_and_kafka_are_copied_in_a_ring(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    """From Shoal to Shoal, to Kafka, and back: records, configs, permissions, positions,
    checkpoints and heartbeats."""
    kafka = KafkaProcess(tmp_path / "kafka", configs=AUTHORIZER).start()
    try:
        bootstraps = {
            "red": start_broker("red", configs=AUTHORIZER).bootstrap,
            "blue": start_broker("blue", configs=AUTHORIZER).bootstrap,
            "kafka": kafka.bootstrap,
        }
        clusters = {name: Shoal(bootstrap) for name, bootstrap in bootstraps.items()}
        for name, cluster in clusters.items():
            fill(name, cluster)
        with run_mirror_maker(tmp_path, format_properties(bootstraps)):
            for source, target in FLOWS.items():
                wait_for_copies(source, bootstraps[target])
            for source, target in FLOWS.items():
                names = [row["topic"] for row in clusters[source].json("topics", "list")]
                assert f"mm2-offset-syncs.{target}.internal" in names
    finally:
        kafka.kill9()
