"""Which segments are copied to the object store, and when, is as in Kafka 4.4.0 (KIP-1241,
KIP-1235). Kafka's store is `FolderStore.java`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from shoal.metadata.image import ConfigResourceType
from shoal.metadata.names import REMOTE_LOG_METADATA
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from support.brokers.clusters import ShoalCluster, running
from support.brokers.wireclient import WireClient
from support.kafka import java_classes
from support.kafka.kafkas import KafkaCluster, KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

#: A Kafka of its own, and a few megabytes for each topic.
pytestmark = [pytest.mark.java, pytest.mark.nightly]

SOON = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "100",
    "log.retention.check.interval.ms": "200",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
}
MB, HOUR_MS = 1 << 20, 3_600_000
#: A batch of a third of a segment, so that each segment has two.
BATCH_BYTES = 400_000
#: What each topic has: ages of its batches in hours. The last segment stays open.
OLD_AND_NEW = (9, 9, 5, 5, 3, 3, 0, 0, 0, 0, 0)
NEW = (0,) * 11
LATEST_TIERED = -5
TIERED = {"remote.storage.enable": "true", "segment.bytes": str(MB), "retention.ms": "-1"}
LAG_MS, LAG_BYTES = "remote.copy.lag.ms", "remote.copy.lag.bytes"
LOCAL_MS, LOCAL_BYTES = "local.retention.ms", "local.retention.bytes"
HOURS_4, HOURS_9, MB_2 = str(4 * HOUR_MS), str(9 * HOUR_MS), str(2 * MB)
#: Topics: their own configs, and the ages of their batches.
TOPICS: dict[str, tuple[dict[str, str], tuple[int, ...]]] = {
    "defaults": ({}, NEW),
    "age": ({LAG_MS: HOURS_4}, OLD_AND_NEW),
    "size": ({LAG_MS: HOURS_4, LAG_BYTES: MB_2}, NEW),
    "age-or-size": ({LAG_MS: HOURS_4, LAG_BYTES: MB_2}, OLD_AND_NEW),
    "at-once": ({LAG_MS: HOURS_4, LAG_BYTES: "0"}, NEW),
    "local-age": ({LAG_MS: "-1", LOCAL_MS: HOURS_4}, OLD_AND_NEW),
    "local-size": ({LAG_MS: "-1", LAG_BYTES: "-1", LOCAL_BYTES: MB_2}, NEW),
    "no-limit": ({LAG_MS: "-1", LAG_BYTES: "-1", LOCAL_MS: "-1"}, OLD_AND_NEW),
    "age-without-limit-of-size": ({LAG_MS: HOURS_4, LAG_BYTES: "-1"}, NEW),
    "from-the-future": ({LAG_MS: HOURS_4, "message.timestamp.after.max.ms": HOURS_9}, (-5,) * 11),
}
#: Changes of a topic's configs, one after another.
CHANGES: list[tuple[str, dict[str, str]]] = [
    ("age", {LAG_MS: str(2 * HOUR_MS)}),
    ("size", {LAG_BYTES: str(MB)}),
    ("local-age", {LOCAL_MS: str(2 * HOUR_MS)}),
    ("age", {LAG_MS: "0"}),
    ("no-limit", {LAG_BYTES: MB_2}),
]
#: Topics and changes that may be refused: the topic's configs, and a change of them.
REFUSALS: list[tuple[dict[str, str], dict[str, str]]] = [
    ({LAG_MS: "2000", LOCAL_MS: "1000"}, {}),
    ({LAG_MS: "1000", LOCAL_MS: "1000"}, {LAG_MS: "1001"}),
    ({LAG_MS: "1000", LOCAL_MS: "1000"}, {LOCAL_MS: "999"}),
    ({LAG_BYTES: "2000", LOCAL_BYTES: "1000"}, {}),
    ({LAG_BYTES: "1000", LOCAL_BYTES: "1000"}, {LOCAL_BYTES: "999"}),
    ({LAG_BYTES: "1000", "retention.bytes": "900"}, {}),
    ({LAG_MS: "1000", "retention.ms": "900"}, {}),
    ({LAG_MS: "-2"}, {}),
    ({LAG_BYTES: "-2"}, {}),
    ({LAG_MS: "x"}, {}),
    ({LAG_MS: "2000", LOCAL_MS: "1000", "remote.storage.enable": "false"}, {}),
    ({LAG_MS: "2000", LOCAL_MS: "1000", "remote.storage.enable": "false"}, TIERED),
    ({LAG_MS: "-1", LAG_BYTES: "-1", LOCAL_MS: "-1", LOCAL_BYTES: "-1"}, {}),
]
#: Changes of the brokers' defaults.
DEFAULTS: list[dict[str, str]] = [
    {"log.remote.copy.lag.ms": "-2"},
    {"log.remote.copy.lag.bytes": "x"},
    *(
        {f"log.{name}.{unit}": value for name, value in defaults.items()}
        for unit in ("ms", "bytes")
        for defaults in (
            {"retention": "1000", "local.retention": "2000"},
            {"retention": "1000", "local.retention": "-1"},
            {"retention": "1000", "local.retention": "-2", "remote.copy.lag": "2000"},
            {"local.retention": "1000", "remote.copy.lag": "2000"},
        )
    ),
    {"log.remote.copy.lag.ms": HOURS_4, "log.remote.copy.lag.bytes": MB_2},
]


class Broker:
    """Requests to one broker."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._rounds = 0

    def create(self, topic: str, configs: Mapping[str, str]) -> tuple[int, str | None]:
        rows = [{"name": name, "value": value} for name, value in {**TIERED, **configs}.items()]
        new = {
            "name": topic,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [1]}],
            "configs": rows,
        }
        body = {"topics": [new], "timeout_ms": 10_000, "validate_only": False}
        (row,) = self._client.call(ApiKey.CREATE_TOPICS, 7, body).topics
        if not row.error_code:
            eventually(lambda: self._client.is_led(topic))
        return row.error_code, row.error_message

    def alter(self, kind: int, name: str, configs: Mapping[str, str]) -> tuple[int, str | None]:
        rows = [{"name": n, "config_operation": 0, "value": v} for n, v in configs.items()]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        body = {"resources": [resource], "validate_only": False}
        (row,) = self._client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
        return row.error_code, row.error_message

    def produce(self, topic: str, ages_hours: tuple[int, ...]) -> None:
        now_ms = int(time.time() * 1000)
        for age_hours in ages_hours:
            timestamp_ms = now_ms - age_hours * HOUR_MS
            records = bytes(build_batch([(timestamp_ms, None, bytes(BATCH_BYTES), ())]))
            answer = self._client.produce(topic, records=records)
            assert answer.error_code == 0, answer

    def find_tiered(self, topic: str) -> int:
        """Return the offset of the last record in the store, -1 without any."""
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST_TIERED}
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [partition]}],
            "timeout_ms": 10_000,
        }
        (row,) = self._client.call(ApiKey.LIST_OFFSETS, 11, body).topics
        assert row.partitions[0].error_code == 0, row
        return int(row.partitions[0].offset)

    def copy_more(self) -> None:
        """Wait until a new topic is copied at once, so that all others had their turn."""
        self._rounds += 1
        topic = f"control-{self._rounds}"
        assert self.create(topic, {LAG_MS: "0"}) == (0, None)
        self.produce(topic, NEW[:3])
        eventually(lambda: self.find_tiered(topic) >= 1, timeout_s=60)

    def wait_for_copies(self, topics: Iterable[str] = TOPICS) -> dict[str, int]:
        """Return the last tiered offset of each topic, once nothing more is copied."""
        before: dict[str, int] = {}
        now = {topic: self.find_tiered(topic) for topic in topics}
        while now != before:
            before = now
            self.copy_more()
            self.copy_more()
            now = {topic: self.find_tiered(topic) for topic in topics}
        return now

    def read(self, topic: str, name: str) -> str:
        """Return a topic's effective config."""
        resource = {
            "resource_type": ConfigResourceType.TOPIC,
            "resource_name": topic,
            "configuration_keys": [name],
        }
        body = {"resources": [resource], "include_synonyms": False}
        (result,) = self._client.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results
        (config,) = result.configs
        return str(config.value)


def talk(bootstrap: str) -> list[Any]:
    """Ask for everything above; return the answers."""
    said: list[Any] = []
    with WireClient(bootstrap) as client:
        broker = Broker(client)
        for number, (configs, change) in enumerate(REFUSALS):
            topic = f"refused-{number}"
            answer = broker.create(topic, configs)
            said.append((configs, answer))
            if not answer[0] and change:
                said.append(
                    (configs, change, broker.alter(ConfigResourceType.TOPIC, topic, change))
                )
        for topic, (configs, ages) in TOPICS.items():
            said.append((topic, broker.create(topic, configs)))
            broker.produce(topic, ages)
        said.append(broker.wait_for_copies())
        for topic, change in CHANGES:
            said.append((topic, change, broker.alter(ConfigResourceType.TOPIC, topic, change)))
            said.append(broker.wait_for_copies())
        answers = [broker.alter(ConfigResourceType.BROKER, "", change) for change in DEFAULTS]
        said += zip(DEFAULTS, answers, strict=True)
        eventually(lambda: broker.read("defaults", LAG_BYTES) == MB_2)
        said.append(broker.create("afterwards", {}))
        broker.produce("afterwards", NEW)
        said.append(broker.wait_for_copies(("afterwards",)))
    return said


def find_min_isr_of_metadata(bootstrap: str) -> str:
    """Copy a segment; return the min.insync.replicas of the topic about segments in the store."""
    with WireClient(bootstrap) as client:
        broker = Broker(client)
        broker.copy_more()
        return broker.read(REMOTE_LOG_METADATA, "min.insync.replicas")


def configure_store(folder: Path, **more: str) -> dict[str, str]:
    """Return the configs of a Kafka with a store in this folder."""
    return SOON | {
        "remote.log.storage.manager.class.name": "FolderStore",
        "remote.log.storage.manager.class.path": str(java_classes.find_compiled()),
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(folder / "remote"),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        **more,
    }


def test_the_same_segments_are_copied(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    kafka = KafkaProcess(tmp_path / "kafka", configs=configure_store(tmp_path)).start()
    try:
        theirs = talk(kafka.bootstrap)
    finally:
        kafka.kill9()
    configs = SOON | {"shoal.remote.store.url": f"file://{tmp_path / 'store'}"}
    ours = talk(start_broker(configs=configs).bootstrap)
    differing = [(m, t) for m, t in zip(ours, theirs, strict=True) if m != t]
    assert differing == []


def test_the_topic_about_segments_has_its_min_insync_replicas(tmp_path: Path) -> None:
    """Shoal limits it to one less than the replicas, so three brokers are needed to compare."""
    own = {
        "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
        "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    }
    kafka = KafkaCluster(tmp_path, configs=configure_store(tmp_path) | own)
    try:
        theirs = find_min_isr_of_metadata(kafka.start().nodes[1].bootstrap)
    finally:
        kafka.stop()
    store = {"shoal.remote.store.url": f"file://{tmp_path / 'store'}"}
    with running(ShoalCluster(tmp_path / "shoal", configs=SOON | store | own)) as shoal:
        ours = find_min_isr_of_metadata(shoal.addresses[1])
    assert ours == theirs == "1"
