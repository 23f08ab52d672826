"""MirrorMaker 2 copies topics of Apache Kafka into Shoal, as docs/migration.md says."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import Shoal
from conditions import eventually
from connect_jars import find_class_path
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import ShoalProcess
    from shared_servers import SharedKafka
    from shoal.client.net.cluster import TopicPartition

#: Two jars from Maven Central, and a JVM that takes half a minute to begin.
pytestmark = [pytest.mark.java, pytest.mark.nightly]
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/mirror-maker.properties"
#: How long MirrorMaker may take to start, and to copy a few records.
COPIED_WITHIN_S = 180.0


@pytest.fixture
def mirror_maker(
    get_kafka: Callable[..., SharedKafka], shared_broker: ShoalProcess, tmp_path: Path
) -> Iterator[str]:
    """MirrorMaker with the example's properties; yield the address of Kafka."""
    kafka = get_kafka().bootstrap
    text = EXAMPLE.read_text().replace("kafka.example:9092", kafka)
    text = text.replace("shoal.example:9092", shared_broker.bootstrap)
    text = re.sub(r"(replication\.factor) = 3", r"\1 = 1", text)
    properties = tmp_path / "mirror-maker.properties"
    properties.write_text(text.replace("interval.seconds = 10", "interval.seconds = 1"))
    path = find_class_path("connect-mirror", "connect-mirror-client")
    words = ["java", "-Xmx512m", "-cp", path]
    words += ["org.apache.kafka.connect.mirror.MirrorMaker", str(properties)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
        yield kafka
        assert process.poll() is None, (tmp_path / "log").read_text()[-4000:]
        process.terminate()
        process.wait(60)


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

    async def find_positions(bootstrap: str) -> dict[TopicPartition, int]:
        async with Client(bootstrap) as client:
            offsets = (await client.admin.groups.offsets(["billing"]))["billing"]
            assert isinstance(offsets, dict), offsets
            return {partition: one.offset for partition, one in offsets.items()}

    def is_translated() -> bool:
        return sum(asyncio.run(find_positions(shared_broker.bootstrap)).values()) > 0

    eventually(is_translated, timeout_s=COPIED_WITHIN_S)
    ours = asyncio.run(find_positions(shared_broker.bootstrap))
    theirs = asyncio.run(find_positions(mirror_maker))
    # A translated position may be earlier than the original one, never later.
    assert all(0 <= ours[partition] <= theirs[partition] for partition in ours)
