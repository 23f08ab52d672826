"""Kafka refuses the same changes of a tiered topic's configs, in the same words (KIP-950)."""

from __future__ import annotations

import random
import re
import subprocess
import zipfile
from uuid import UUID

import pytest
from shoal.metadata import alterations
from shoal.metadata.alterations import ConfigAlteration, ConfigChange
from shoal.metadata.configs import BROKER
from shoal.metadata.image import ConfigResourceType, ImageScope, MetadataImage, TopicImage
from shoal.protocol.errors import ErrorCode
from support.kafka.java_classes import LIBRARY, SOURCES, java

pytestmark = pytest.mark.java

SOURCE = SOURCES / "TieredConfigOracle.java"
STATIC = {"remote.log.storage.system.enable": "true", "shoal.remote.store.url": "memory:///"}
CASES = 2_000
#: Values that are drawn for each config; None leaves it out.
VALUES: dict[str, tuple[str | None, ...]] = {
    "remote.storage.enable": ("true", "true", "false", None),
    "remote.log.copy.disable": ("true", "false", None),
    "remote.log.delete.on.disable": ("true", "false", None),
    "cleanup.policy": (None, None, None, None, "compact", "delete"),
    "retention.ms": (None, "1000", "-1"),
    "local.retention.ms": (None, None, "-2", "1000", "500", "2000", "-1"),
    "retention.bytes": (None, None, "1000", "-1"),
    "local.retention.bytes": (None, None, "-2", "1000", "500", "2000", "-1"),
    "remote.copy.lag.ms": (None, None, "-1", "0", "700", "1500"),
    "remote.copy.lag.bytes": (None, None, "-1", "0", "700", "1500"),
}


def drawn(rng: random.Random) -> dict[str, str]:
    found = {name: rng.choice(values) for name, values in VALUES.items()}
    return {name: value for name, value in found.items() if value is not None}


def ours(before: dict[str, str], after: dict[str, str]) -> str:
    """Return why this controller refuses the change, empty if it accepts it."""
    topic = TopicImage("t", UUID(int=1), ())
    image = MetadataImage(
        ImageScope(1, STATIC),
        topics={"t": topic},
        topics_by_id={topic.topic_id: topic},
        configs={(ConfigResourceType.TOPIC, "t"): before},
    )
    changes = [ConfigChange(name, value) for name, value in after.items()]
    asked = [ConfigAlteration(ConfigResourceType.TOPIC, "t", changes)]
    (row,) = alterations.alter_configs(image, asked, incremental=False).response
    if row["error_code"] is ErrorCode.none:
        return ""
    assert row["error_code"] is ErrorCode.invalid_config, row
    return str(row["error_message"])


def test_both_refuse_the_same_changes(seed: int) -> None:
    rng = random.Random(seed)
    cases = [(drawn(rng), drawn(rng)) for _ in range(CASES)]
    lines = (
        "\t".join(",".join(f"{n}={v}" for n, v in side.items()) for side in case) for case in cases
    )
    done = subprocess.run(
        java(str(SOURCE), heap="384m"),
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    theirs = done.stdout.split("\n")[:CASES]
    differing = [
        (case, kafka, shoal)
        for case, kafka in zip(cases, theirs, strict=True)
        if (shoal := ours(*case)) != kafka
    ]
    assert differing[:3] == []
    refused = {reason for reason in theirs if reason}
    assert len(refused) > 6
    assert any("disable remote storage without deleting" in reason for reason in refused)
    assert sum(not reason for reason in theirs) > CASES // 20


def test_configs_of_the_metadata_topic_are_kafkas() -> None:
    """They belong to a plugin, so Kafka's table of broker configs lacks them."""
    (jar,) = LIBRARY.glob("kafka-storage-4*.jar")
    folder = "org/apache/kafka/server/log/remote/metadata/storage"
    with zipfile.ZipFile(jar) as classes:
        code = classes.read(f"{folder}/TopicBasedRemoteLogMetadataManagerConfig.class")
    # A constant is a byte, the length of its text in two bytes, and the text.
    texts = re.findall(rb"\x01\0(.)(remote\.log\.metadata\.[a-z.]+[a-z])", code, re.DOTALL)
    theirs = {f"rlmm.config.{text.decode()}" for size, text in texts if size[0] == len(text)}
    assert theirs == {name for name in BROKER if name.startswith("rlmm.config.")}
