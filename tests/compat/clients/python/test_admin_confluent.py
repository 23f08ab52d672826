"""librdkafka's AdminClient (confluent-kafka): topics, partitions, configs, cluster, restarts."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

_names = (f"admin-{i}" for i in itertools.count())
TIMEOUT_S = 90


@pytest.fixture
def admin(shared_broker: ShoalProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared_broker.bootstrap})


@pytest.fixture
def topic(admin: AdminClient) -> str:
    name = next(_names)
    create(admin, NewTopic(name, 2, 1))
    return name


def create(admin: AdminClient, new: NewTopic, **options: object) -> None:
    admin.create_topics([new], **options)[new.topic].result(TIMEOUT_S)


def code(call: Callable[[], object]) -> str:
    """Return the name of the error that a call fails with."""
    with pytest.raises(KafkaException) as caught:
        call()
    return str(caught.value.args[0].name())


def configs(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    return found


def alter(
    admin: AdminClient, kind: ResourceType, name: str, *entries: tuple[str, str | None, str]
) -> None:
    changes = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType[operation])
        for key, value, operation in entries
    ]
    resource = ConfigResource(kind, name, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def test_create_list_describe_delete(admin: AdminClient) -> None:
    name = next(_names)
    create(admin, NewTopic(name, 3, 1, config={"retention.ms": "60000"}))
    listed = admin.list_topics(timeout=TIMEOUT_S).topics[name]
    assert sorted(listed.partitions) == [0, 1, 2]
    assert {p.leader for p in listed.partitions.values()} == {1}
    described = admin.describe_topics(TopicCollection([name]), include_authorized_operations=True)[
        name
    ].result(TIMEOUT_S)
    assert len(described.partitions) == 3
    assert not described.is_internal
    assert {o.name for o in described.authorized_operations} >= {"READ", "WRITE", "ALTER_CONFIGS"}
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_refusals(admin: AdminClient, topic: str) -> None:
    new = next(_names)
    assert code(lambda: create(admin, NewTopic(topic, 1, 1))) == "TOPIC_ALREADY_EXISTS"
    assert code(lambda: create(admin, NewTopic("a b", 1, 1))) == "TOPIC_EXCEPTION"
    assert code(lambda: create(admin, NewTopic(new, 1, 3))) == "INVALID_REPLICATION_FACTOR"
    bad = NewTopic(new, 1, 1, config={"retention.ms": "soon"})
    assert code(lambda: create(admin, bad)) == "INVALID_CONFIG"
    tiered = NewTopic(new, 1, 1, config={"remote.storage.enable": "true"})
    assert code(lambda: create(admin, tiered)) == "INVALID_CONFIG"
    delete = admin.delete_topics([new])[new]
    assert code(lambda: delete.result(TIMEOUT_S)) == "UNKNOWN_TOPIC_OR_PART"


def test_validate_only(admin: AdminClient) -> None:
    name = next(_names)
    create(admin, NewTopic(name, 3, 1), validate_only=True)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_more_partitions(admin: AdminClient, topic: str) -> None:
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(TIMEOUT_S)
    assert len(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) == 5
    fewer = admin.create_partitions([NewPartitions(topic, 1)])[topic]
    assert code(lambda: fewer.result(TIMEOUT_S)) == "INVALID_PARTITIONS"


def test_topic_configs_with_source_and_synonyms(admin: AdminClient, topic: str) -> None:
    found = configs(admin, ResourceType.TOPIC, topic)
    assert found["retention.ms"].value == "604800000"
    assert found["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    alter(admin, ResourceType.TOPIC, topic, ("retention.ms", "5000", "SET"))
    alter(admin, ResourceType.TOPIC, topic, ("cleanup.policy", "compact", "APPEND"))
    found = configs(admin, ResourceType.TOPIC, topic)
    assert found["retention.ms"].value == "5000"
    assert found["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert set(found["retention.ms"].synonyms) >= {"retention.ms", "log.retention.hours"}
    assert found["cleanup.policy"].value == "delete,compact"
    alter(admin, ResourceType.TOPIC, topic, ("retention.ms", None, "DELETE"))
    assert configs(admin, ResourceType.TOPIC, topic)["retention.ms"].value == "604800000"


def test_broker_configs_reach_topics(start_broker: Callable[..., ShoalProcess]) -> None:
    """Set in the file, then changed in the running broker, then reset."""
    process = start_broker(configs={"log.segment.bytes": "2000000"})
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    name = next(_names)
    create(admin, NewTopic(name, 1, 1))

    def segment_bytes() -> tuple[str, int]:
        entry = configs(admin, ResourceType.TOPIC, name)["segment.bytes"]
        return entry.value, entry.source

    assert segment_bytes() == ("2000000", ConfigSource.STATIC_BROKER_CONFIG.value)
    alter(admin, ResourceType.BROKER, "1", ("log.segment.bytes", "4000000", "SET"))
    assert segment_bytes() == ("4000000", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    alter(admin, ResourceType.BROKER, "1", ("log.segment.bytes", None, "DELETE"))
    assert segment_bytes() == ("2000000", ConfigSource.STATIC_BROKER_CONFIG.value)


def test_broker_configs_are_guarded(admin: AdminClient) -> None:
    def change(name: str, value: str) -> Callable[[], None]:
        return lambda: alter(admin, ResourceType.BROKER, "1", (name, value, "SET"))

    assert code(change("node.id", "7")) == "INVALID_REQUEST"
    assert code(change("no.such.config", "7")) == "INVALID_REQUEST"
    assert code(change("log.segment.bytes", "1")) == "INVALID_REQUEST"
    found = configs(admin, ResourceType.BROKER, "1")
    assert found["node.id"].is_read_only
    assert not found["log.segment.bytes"].is_read_only
    assert found["ssl.key.password"].is_sensitive
    assert found["ssl.key.password"].value is None


def test_cluster(admin: AdminClient, shared_broker: ShoalProcess) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert len(cluster.cluster_id) == 22
    assert [(n.id, f"{n.host}:{n.port}") for n in cluster.nodes] == [(1, shared_broker.bootstrap)]
    assert cluster.controller.id == 1
    assert "ALTER" in {o.name for o in cluster.authorized_operations}


def test_many_topics_in_one_call(admin: AdminClient) -> None:
    names = list(itertools.islice(_names, 100))
    for future in admin.create_topics([NewTopic(n, 1, 1) for n in names]).values():
        future.result(TIMEOUT_S)
    assert set(names) <= set(admin.list_topics(timeout=TIMEOUT_S).topics)
    for future in admin.delete_topics(names).values():
        future.result(TIMEOUT_S)
    assert not set(names) & set(admin.list_topics(timeout=TIMEOUT_S).topics)


@pytest.mark.parametrize("end", ["stop", "kill9"])
def test_metadata_outlives_the_process(start_broker: Callable[..., ShoalProcess], end: str) -> None:
    process = start_broker()
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    kept, gone = next(_names), next(_names)
    for name in (kept, gone):
        create(admin, NewTopic(name, 2, 1, config={"segment.ms": "9000"}))
    admin.delete_topics([gone])[gone].result(TIMEOUT_S)
    alter(admin, ResourceType.TOPIC, kept, ("retention.ms", "5000", "SET"))
    before = admin.describe_topics(TopicCollection([kept]))[kept].result(TIMEOUT_S)
    getattr(process, end)()
    process.start()
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    after = admin.describe_topics(TopicCollection([kept]))[kept].result(TIMEOUT_S)
    assert str(after.topic_id) == str(before.topic_id)
    assert len(after.partitions) == 2
    found = configs(admin, ResourceType.TOPIC, kept)
    assert (found["retention.ms"].value, found["segment.ms"].value) == ("5000", "9000")
    assert gone not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_deletion_can_be_forbidden(start_broker: Callable[..., ShoalProcess]) -> None:
    process = start_broker(
        configs={"delete.topic.enable": "false", "auto.create.topics.enable": "false"}
    )
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    name = next(_names)
    create(admin, NewTopic(name, 1, 1))
    delete = admin.delete_topics([name])[name]
    assert code(lambda: delete.result(TIMEOUT_S)) == "TOPIC_DELETION_DISABLED"
