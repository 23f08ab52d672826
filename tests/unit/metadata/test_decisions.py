"""Decisions of the controller: refusals with Kafka's error codes, and the records they write."""

import functools
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from shoal.metadata import alterations, brokers, controller, delta, elections, placement, topics
from shoal.metadata.alterations import AlterConfigOperation, ConfigAlteration, ConfigChange
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import (
    BrokerEndpoint,
    BrokerImage,
    ConfigResourceType,
    ImageScope,
    MetadataImage,
)
from shoal.metadata.names import INTERNAL_TOPICS
from shoal.metadata.records import MetadataRecord
from shoal.metadata.topics import CreatePartitionsTopic, NewTopic
from shoal.protocol.errors import ApiError, ErrorCode

DIRECTORY = UUID(int=77)


def ids() -> Callable[[], UUID]:
    counter: Iterator[int] = iter(range(100, 1_000_000))
    return lambda: UUID(int=next(counter))


def follow(image: MetadataImage, decision: ControllerResult) -> MetadataImage:
    """Return the image after a decision's records."""
    offset = image.offset + len(decision.records)
    return delta.apply(image, decision.records, offset=offset, epoch=1)[0]


def broker(broker_id: int, rack: str | None = None, *, fenced: bool = False) -> BrokerImage:
    endpoints = (BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092 + broker_id),)
    return BrokerImage(
        broker_id,
        UUID(int=broker_id),
        -1,
        endpoints,
        controller.SUPPORTED_FEATURES,
        rack,
        fenced,
        False,
        (UUID(int=DIRECTORY.int + broker_id),),
    )


@pytest.fixture
def image() -> MetadataImage:
    """A new cluster with broker 1."""
    fresh = follow(MetadataImage(), controller.bootstrap())
    return follow(fresh, controller.register_broker(fresh, broker(1), clean=True))


def create(image: MetadataImage, *new: NewTopic, validate_only: bool = False) -> ControllerResult:
    return topics.create_topics(image, new, new_id=ids(), validate_only=validate_only)


def errors(decision: ControllerResult) -> list[tuple[ErrorCode, str | None]]:
    return [(row["error_code"], row["error_message"]) for row in decision.response]


def test_a_new_cluster_has_kafkas_features_and_its_own(image: MetadataImage) -> None:
    assert dict(image.features) == {
        "metadata.version": 33,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 2,
        "shoal.security.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }


def test_create_makes_topic_configs_and_partitions_in_kafkas_order(image: MetadataImage) -> None:
    """ConfigRecords come between the TopicRecord and its PartitionRecords."""
    decision = create(image, NewTopic("t", 2, 1, configs=[("retention.ms", "5000")]))
    assert [r.kind for r in decision.records] == [
        "TopicRecord",
        "ConfigRecord",
        "PartitionRecord",
        "PartitionRecord",
    ]
    after = follow(image, decision)
    topic = after.topics["t"]
    assert topic.topic_id == UUID(int=100)
    assert after.find_topic_by_id(topic.topic_id) is topic
    partition = topic.partitions[1]
    assert (partition.replicas, partition.isr, partition.leader) == ((1,), (1,), 1)
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert partition.directories == (UUID(int=DIRECTORY.int + 1),)
    assert after.resolve_topic_config("t")["retention.ms"] == 5000
    row = decision.response[0]
    assert (row["num_partitions"], row["replication_factor"]) == (2, 1)
    assert {c["name"]: c["config_source"] for c in row["configs"]}["retention.ms"] == 1


def test_defaults_come_from_the_broker(image: MetadataImage) -> None:
    change = ConfigAlteration(
        ConfigResourceType.BROKER, "", [ConfigChange("min.insync.replicas", "1")]
    )
    image = follow(image, alterations.alter_configs(image, [change], incremental=True))
    assert len(follow(image, create(image, NewTopic("t"))).topics["t"].partitions) == 1


@pytest.mark.parametrize(
    ("new", "code", "part"),
    [
        (NewTopic(""), ErrorCode.invalid_topic_exception, "empty"),
        (NewTopic("."), ErrorCode.invalid_topic_exception, "not allowed"),
        (NewTopic("a b"), ErrorCode.invalid_topic_exception, "ASCII"),
        (NewTopic("ü"), ErrorCode.invalid_topic_exception, "ASCII"),
        (NewTopic("a" * 250), ErrorCode.invalid_topic_exception, "249"),
        (NewTopic("t", 1, 2), ErrorCode.invalid_replication_factor, "2 time(s)"),
        (NewTopic("t", 1, 0), ErrorCode.invalid_replication_factor, "larger than 0"),
        (NewTopic("t", 0, 1), ErrorCode.invalid_partitions, "non-positive"),
        (NewTopic("t", 10_001, 1), ErrorCode.policy_violation, "10000"),
        (NewTopic("t", -1, 1, [(0, [1])]), ErrorCode.invalid_request, "replication"),
        (NewTopic("t", 1, -1, [(0, [1])]), ErrorCode.invalid_request, "count"),
        (
            NewTopic("t", assignments=[(0, [1]), (2, [1])]),
            ErrorCode.invalid_replica_assignment,
            "consecutive",
        ),
        (
            NewTopic("t", assignments=[(0, [1]), (0, [1])]),
            ErrorCode.invalid_replica_assignment,
            "multiple",
        ),
        (NewTopic("t", assignments=[(0, [9])]), ErrorCode.invalid_replica_assignment, "broker 9"),
        (NewTopic("t", assignments=[(0, [1, 1])]), ErrorCode.invalid_replica_assignment, "once"),
        (NewTopic("t", assignments=[(0, [])]), ErrorCode.invalid_replica_assignment, "empty"),
        (NewTopic("t", configs=[("retention.ms", None)]), ErrorCode.invalid_config, "Null"),
        (NewTopic("t", configs=[("foo", "1")]), ErrorCode.invalid_config, "foo"),
        (
            NewTopic("t", configs=[("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "8")]),
            ErrorCode.invalid_config,
            "min.compaction.lag.ms",
        ),
    ],
)
def test_refused_topics(image: MetadataImage, new: NewTopic, code: ErrorCode, part: str) -> None:
    decision = create(image, new)
    ((found, message),) = errors(decision)
    assert found == code
    assert part in (message or "")
    assert not decision.records


def test_existing_and_colliding_names(image: MetadataImage) -> None:
    image = follow(image, create(image, NewTopic("a.b")))
    (exists, collides, fine) = errors(create(image, *map(NewTopic, ("a.b", "a_b", "a-b"))))
    assert exists[0] == ErrorCode.topic_already_exists
    assert collides == (
        ErrorCode.invalid_topic_exception,
        "Topic 'a_b' collides with existing topic: a.b",
    )
    assert fine[0] == ErrorCode.none


def test_names_collide_within_a_request(image: MetadataImage) -> None:
    assert [code for code, _ in errors(create(image, NewTopic("c.d"), NewTopic("c_d")))] == [
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
    ]


def test_validate_only_makes_no_records(image: MetadataImage) -> None:
    decision = create(image, NewTopic("t", 2, 1), validate_only=True)
    assert not decision.records
    assert decision.response[0]["num_partitions"] == 2


def test_delete_takes_topic_and_configs(image: MetadataImage) -> None:
    image = follow(image, create(image, NewTopic("t", configs=[("retention.ms", "1")])))
    topic = image.topics["t"]
    decision = topics.delete_topics(image, [topic])
    after, change = delta.apply(image, decision.records, offset=99, epoch=1)
    assert change.deleted == (topic,)
    assert not change.created
    assert "t" not in after.topics
    assert after.find_topic_by_id(topic.topic_id) is None
    assert (ConfigResourceType.TOPIC, "t") not in after.configs
    assert not topics.delete_topics(after, [topic]).records


@pytest.mark.parametrize(
    ("growth", "code"),
    [
        (CreatePartitionsTopic("t", 2), ErrorCode.invalid_partitions),
        (CreatePartitionsTopic("t", 1), ErrorCode.invalid_partitions),
        (CreatePartitionsTopic("t", -1), ErrorCode.invalid_partitions),
        (CreatePartitionsTopic("none", 3), ErrorCode.unknown_topic_or_partition),
        (CreatePartitionsTopic("t", 20_000), ErrorCode.policy_violation),
        (CreatePartitionsTopic("t", 4, [[1]]), ErrorCode.invalid_replica_assignment),
        (CreatePartitionsTopic("t", 3, [[9]]), ErrorCode.invalid_replica_assignment),
        (CreatePartitionsTopic("t", 3, [[]]), ErrorCode.invalid_replica_assignment),
    ],
)
def test_refused_growth(
    image: MetadataImage, growth: CreatePartitionsTopic, code: ErrorCode
) -> None:
    image = follow(image, create(image, NewTopic("t", 2, 1)))
    decision = topics.create_partitions(image, [growth])
    assert errors(decision)[0][0] == code
    assert not decision.records


def test_growth_appends_partitions(image: MetadataImage) -> None:
    image = follow(image, create(image, NewTopic("t", 2, 1)))
    before = image.topics["t"]
    decision = topics.create_partitions(image, [CreatePartitionsTopic("t", 5)])
    after, change = delta.apply(image, decision.records, offset=99, epoch=1)
    assert change.changed == ((before, after.topics["t"]),)
    assert after.topics["t"].partitions[:2] == before.partitions
    assert len(after.topics["t"].partitions) == 5


def alter(
    image: MetadataImage, kind: int, name: str, *changes: ConfigChange, incremental: bool = True
) -> tuple[ErrorCode, str, MetadataImage]:
    asked = [ConfigAlteration(kind, name, changes)]
    decision = alterations.alter_configs(image, asked, incremental=incremental)
    ((code, message),) = errors(decision)
    return code, message or "", follow(image, decision) if decision.records else image


def test_operations_on_lists(image: MetadataImage) -> None:
    """KIP-339: APPEND and SUBTRACT start from the value in force."""
    image = follow(image, create(image, NewTopic("t")))
    steps = [
        (ConfigChange("cleanup.policy", "compact", AlterConfigOperation.APPEND), "delete,compact"),
        (ConfigChange("cleanup.policy", "compact", AlterConfigOperation.APPEND), "delete,compact"),
        (ConfigChange("cleanup.policy", "delete", AlterConfigOperation.SUBTRACT), "compact"),
        (ConfigChange("cleanup.policy", None, AlterConfigOperation.DELETE), None),
    ]
    for change, text in steps:
        code, _, image = alter(image, ConfigResourceType.TOPIC, "t", change)
        assert code == ErrorCode.none
        assert image.configs.get((ConfigResourceType.TOPIC, "t"), {}).get("cleanup.policy") == text


def test_the_old_call_replaces_everything(image: MetadataImage) -> None:
    new = NewTopic("t", configs=[("retention.ms", "1"), ("segment.ms", "2")])
    image = follow(image, create(image, new))
    change = ConfigChange("retention.ms", "3")
    _, _, image = alter(image, ConfigResourceType.TOPIC, "t", change, incremental=False)
    assert image.configs[(ConfigResourceType.TOPIC, "t")] == {"retention.ms": "3"}


TOPIC, BROKER, GROUP, CLIENT = 2, 4, 32, 16


@pytest.mark.parametrize(
    ("kind", "name", "change", "code", "part"),
    [
        (
            TOPIC,
            "none",
            ConfigChange("retention.ms", "1"),
            ErrorCode.unknown_topic_or_partition,
            "none",
        ),
        (TOPIC, "", ConfigChange("retention.ms", "1"), ErrorCode.invalid_request, "Default topic"),
        (TOPIC, "t", ConfigChange("retention.ms", None), ErrorCode.invalid_request, "Null"),
        (TOPIC, "t", ConfigChange("retention.ms", "x"), ErrorCode.invalid_config, "LONG"),
        (TOPIC, "t", ConfigChange("foo", "1"), ErrorCode.invalid_config, "foo"),
        (TOPIC, "t", ConfigChange("retention.ms", "1", 2), ErrorCode.invalid_config, "LIST"),
        (TOPIC, "t", ConfigChange("retention.ms", "1", 9), ErrorCode.invalid_request, "9"),
        (
            TOPIC,
            "t",
            ConfigChange("remote.storage.enable", "true"),
            ErrorCode.invalid_config,
            "Tiered",
        ),
        (3, "t", ConfigChange("a", "1"), ErrorCode.invalid_request, "3"),
        (BROKER, "1", ConfigChange("node.id", "5"), ErrorCode.invalid_request, "node.id"),
        (BROKER, "9", ConfigChange("log.retention.ms", "5"), ErrorCode.invalid_request, "9"),
        (BROKER, "x", ConfigChange("log.retention.ms", "5"), ErrorCode.invalid_request, "integer"),
        (BROKER, "1", ConfigChange("log.retention.ms", "x"), ErrorCode.invalid_request, "LONG"),
        (BROKER, "1", ConfigChange("foo", "1"), ErrorCode.invalid_request, "foo"),
        (BROKER, "", ConfigChange("log.retention.ms", "0"), ErrorCode.invalid_request, "unlimited"),
        (
            BROKER,
            "",
            ConfigChange("group.share.assignment.interval.ms", "20000"),
            ErrorCode.invalid_request,
            "group.share.max.assignment.interval.ms",
        ),
        (
            BROKER,
            "",
            ConfigChange("ssl.keystore.type", "PKCS12"),
            ErrorCode.invalid_request,
            "prefix",
        ),
        (
            BROKER,
            "1",
            ConfigChange("min.insync.replicas", "2"),
            ErrorCode.invalid_config,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        ),
        (
            GROUP,
            "g",
            ConfigChange("share.tenant.paused", "t" * 32_768, 2),
            ErrorCode.invalid_config,
            "exceeds the maximum value size of 32767 bytes.",
        ),
        (GROUP, "", ConfigChange("share.isolation.level", "x"), ErrorCode.invalid_request, "group"),
        (
            GROUP,
            "g",
            ConfigChange("share.isolation.level", "x"),
            ErrorCode.invalid_config,
            "one of",
        ),
        (GROUP, "g", ConfigChange("foo", "1"), ErrorCode.invalid_config, "foo"),
        (
            GROUP,
            "g",
            ConfigChange("share.record.lock.duration.ms", "14999"),
            ErrorCode.invalid_config,
            "group.share.min.record.lock.duration.ms",
        ),
        (
            GROUP,
            "g",
            ConfigChange("share.delivery.count.limit", "11"),
            ErrorCode.invalid_config,
            "group.share.max.delivery.count.limit",
        ),
        (
            GROUP,
            "g",
            ConfigChange("errors.deadletterqueue.topic.name", "__letters"),
            ErrorCode.invalid_config,
            "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'",
        ),
        (CLIENT, "", ConfigChange("interval.ms", "1000"), ErrorCode.invalid_request, "empty"),
        (CLIENT, "s", ConfigChange("interval.ms", "1"), ErrorCode.invalid_request, "100"),
        (CLIENT, "s", ConfigChange("match", "client_id=("), ErrorCode.invalid_config, "pattern"),
    ],
)
def test_refused_alterations(
    image: MetadataImage, kind: int, name: str, change: ConfigChange, code: ErrorCode, part: str
) -> None:
    image = follow(image, create(image, NewTopic("t")))
    found, message, after = alter(image, kind, name, change)
    assert found == code
    assert part in message
    assert after is image


def test_a_cordon_needs_a_level(image: MetadataImage) -> None:
    change = ConfigChange("cordoned.log.dirs", "*")
    assert alter(image, BROKER, "1", change)[0] is ErrorCode.none
    level = MetadataRecord("FeatureLevelRecord", {"name": "metadata.version", "feature_level": 29})
    older = follow(image, controller.ControllerResult([level]))
    code, message, _ = alter(older, BROKER, "1", change)
    assert code is ErrorCode.invalid_config
    assert message.endswith("requires metadata.version >= 4.3-IV0")


def test_a_resource_is_altered_whole_or_not_at_all(image: MetadataImage) -> None:
    image = follow(image, create(image, NewTopic("t")))
    changes = (ConfigChange("retention.ms", "1"), ConfigChange("segment.ms", "x"))
    code, _, after = alter(image, TOPIC, "t", *changes)
    assert code == ErrorCode.invalid_config
    assert after is image


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("local.retention", "-1", "Value must not be -1 as log.retention.{} value is set as 9."),
        ("local.retention", "10", "Value must not be more than log.retention.{} property value: 9"),
        (
            "remote.copy.lag",
            "10",
            "Value must not exceed log.local.retention.{} (effective value: 9)",
        ),
        ("local.retention", "9", ""),
        ("remote.copy.lag", "9", ""),
    ],
)
def test_defaults_of_tiered_topics_agree(
    image: MetadataImage, unit: str, name: str, value: str, reason: str
) -> None:
    changes = [
        ConfigChange(f"log.retention.{unit}", "9"),
        ConfigChange(f"log.{name}.{unit}", value),
    ]
    code, message, _ = alter(image, BROKER, "", *changes)
    assert reason.format(unit) in (message or "")
    assert code == (ErrorCode.invalid_request if reason else ErrorCode.none)


def test_duplicates_are_refused(image: MetadataImage) -> None:
    image = follow(image, create(image, NewTopic("t")))
    change = ConfigChange("retention.ms", "1")
    assert alter(image, TOPIC, "t", change, change)[0] == ErrorCode.invalid_request
    twice = [ConfigAlteration(TOPIC, "t", [change])] * 2
    decision = alterations.alter_configs(image, twice, incremental=True)
    assert [code for code, _ in errors(decision)] == [ErrorCode.invalid_request] * 2


def test_an_unclean_start_moves_leader_epochs(image: MetadataImage) -> None:
    image = follow(image, create(image, NewTopic("t", 2, 1)))
    clean = follow(image, controller.register_broker(image, broker(1), clean=True))
    assert clean.topics["t"].partitions == image.topics["t"].partitions
    unclean = follow(image, controller.register_broker(image, broker(1), clean=False))
    for partition in unclean.topics["t"].partitions:
        assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 1, 1)


def test_producer_id_blocks_do_not_overlap(image: MetadataImage) -> None:
    first = controller.allocate_producer_ids(image, 1)
    second = controller.allocate_producer_ids(follow(image, first), 1)
    assert (first.response, second.response) == (range(1000), range(1000, 2000))


def test_unregister(image: MetadataImage) -> None:
    with pytest.raises(ApiError, match="not currently registered"):
        brokers.unregister(image, 9)
    with pytest.raises(ApiError, match="running"):
        brokers.unregister(image, 1)
    two = follow(image, controller.register_broker(image, broker(2, fenced=True), clean=True))
    assert list(follow(two, brokers.unregister(two, 2)).brokers) == [1]


@pytest.mark.parametrize(
    ("name", "level", "kind", "part"),
    [
        ("foo.version", 1, 1, "does not support this feature"),
        ("share.version", 9, 1, "only supports versions 0-2"),
        ("share.version", 0, 1, "downgrade"),
        ("shoal.security.version", 0, 3, "downgrade from"),
        ("share.version", 0, 0, "upgrade type"),
        ("metadata.version", 20, 2, "downgrade from"),
    ],
)
def test_refused_features(
    image: MetadataImage, name: str, level: int, kind: int, part: str
) -> None:
    decision = controller.update_features(image, [(name, level, kind)], validate_only=False)
    assert part in decision.response[name][1]
    assert not decision.records


@pytest.mark.parametrize(
    ("supported", "before", "part"),
    [
        ((0, 1), 1, "Broker 2 only supports versions 0-1"),
        (None, 0, "Broker 2 does not support this feature."),
    ],
)
@pytest.mark.parametrize("fenced", [False, True])
def test_a_level_needs_the_support_of_each_broker(
    image: MetadataImage, supported: tuple[int, int] | None, before: int, part: str, fenced: bool
) -> None:
    """Also of one that is down: it could not read the metadata when it returns."""
    lower = controller.update_features(image, [("share.version", before, 2)], validate_only=False)
    lowered = follow(image, lower)
    features = dict(controller.SUPPORTED_FEATURES)
    del features["share.version"]
    if supported is not None:
        features["share.version"] = supported
    other = broker(2, fenced=fenced)._replace(features=features)
    both = follow(lowered, controller.register_broker(lowered, other, clean=True))
    decision = controller.update_features(both, [("share.version", 2, 1)], validate_only=False)
    assert decision.response["share.version"][1].endswith(part)
    assert not decision.records


def test_features_move(image: MetadataImage) -> None:
    decision = controller.update_features(image, [("share.version", 0, 2)], validate_only=False)
    assert "share.version" not in follow(image, decision).features


def test_replicas_are_spread_over_racks_and_leaders_over_brokers() -> None:
    brokers = [broker(i, f"rack{i % 3}") for i in range(6)]
    assigned = list(placement.place(brokers, partitions=12, replicas=3, start=5))
    for replicas in assigned:
        assert len({b % 3 for b in replicas}) == 3
    leaders = [replicas[0] for replicas in assigned]
    assert all(leaders.count(b) == 2 for b in range(6))
    with pytest.raises(placement.NotPlaceable):
        list(
            placement.place([broker(1), broker(2, fenced=True)], partitions=1, replicas=2, start=0)
        )


def test_replicas_do_not_share_a_pod_although_it_has_a_rack_of_others() -> None:
    """Pods 0 and 2 are in zone a, pod 1 in zone b; each has three brokers."""
    pods = {pod + 1000 * slot: pod for pod in range(3) for slot in range(3)}
    brokers = [broker(id, "b" if pod == 1 else "a") for id, pod in pods.items()]
    hosts = {id: f"main-broker-{pod}" for id, pod in pods.items()}
    assigned = list(placement.place(brokers, partitions=90, replicas=3, start=7, hosts=hosts))
    assert all(sorted(pods[id] for id in replicas) == [0, 1, 2] for replicas in assigned)
    pairs = list(placement.place(brokers, partitions=90, replicas=2, start=7, hosts=hosts))
    zones = {broker.broker_id: broker.rack for broker in brokers}
    assert all(zones[first] != zones[second] for first, second in pairs)
    leaders = [replicas[0] for replicas in assigned]
    assert all(leaders.count(id) == 10 for id in pods)


def test_one_host_for_all_makes_no_difference() -> None:
    brokers = [broker(i, f"rack{i % 2}") for i in range(5)]
    place = functools.partial(placement.place, brokers, partitions=20, replicas=3, start=3)
    assert list(place()) == list(place(hosts=dict.fromkeys(range(5), "here")))


def test_the_host_is_that_for_other_brokers() -> None:
    named = ImageScope(1, {"inter.broker.listener.name": "inside"})
    inside, outside = BrokerEndpoint("INSIDE", "pod-0", 9092), BrokerEndpoint("WORLD", "lb", 9095)
    one = broker(0)._replace(endpoints=(outside, inside))
    assert placement.find_hosts(MetadataImage(scope=named, brokers={0: one})) == {0: "pod-0"}
    assert placement.find_hosts(MetadataImage(brokers={0: one})) == {0: "lb"}


def test_elections() -> None:
    image = follow(MetadataImage(), controller.bootstrap())
    for i in (1, 2):
        image = follow(image, controller.register_broker(image, broker(i), clean=True))
    image = follow(image, create(image, NewTopic("t", assignments=[(0, [1, 2]), (1, [2, 1])])))
    needless = elections.elect_leaders(image, elections.PREFERRED, [("t", [0, 9]), ("x", [0])])
    codes = [r["error_code"] for row in needless.response for r in row["partition_result"]]
    assert codes == [
        ErrorCode.election_not_needed,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
    ]
    topic_id = image.topics["t"].topic_id
    fields = {"topic_id": topic_id, "partition_id": 0, "leader": 2}
    moved = follow(image, ControllerResult([MetadataRecord("PartitionChangeRecord", fields)]))
    assert moved.topics["t"].partitions[0].leader == 2
    back = elections.elect_leaders(moved, elections.PREFERRED, None)
    assert [row["topic"] for row in back.response] == ["t"]
    partition = follow(moved, back).topics["t"].partitions[0]
    assert (partition.leader, partition.leader_epoch) == (1, 2)


@pytest.mark.parametrize("name", INTERNAL_TOPICS)
def test_an_internal_topic_whose_config_is_below_the_least_of_topics(name: str) -> None:
    """Kafka accepts offsets.topic.segment.bytes from 1 on, and segment.bytes from 1 MiB on."""
    static = {
        "offsets.topic.segment.bytes": "1000",
        "transaction.state.log.segment.bytes": "1000",
        "share.coordinator.state.topic.segment.bytes": "1000",
    }
    fresh = follow(MetadataImage(ImageScope(1, static)), controller.bootstrap())
    fresh = follow(fresh, controller.register_broker(fresh, broker(1), clean=True))
    after = follow(fresh, create(fresh, topics.build_internal_topic(fresh, name)))
    assert after.resolve_topic_config(name)["segment.bytes"] == 1 << 20


def test_a_request_that_is_tried_again_finds_its_own_topic(image: MetadataImage) -> None:
    """A controller may have committed a request and died before its response."""

    def ask(image: MetadataImage, request_id: bytes) -> ControllerResult:
        new = [NewTopic("t", 2, 1, configs=[("retention.ms", "5000")])]
        return topics.create_topics(image, new, new_id=ids(), request_id=request_id)

    first = ask(image, b"1" * 16)
    later = follow(image, first)
    again = ask(later, b"1" * 16)
    assert not again.records
    assert again.response == first.response
    other = ask(later, b"2" * 16)
    assert errors(other)[0][0] is ErrorCode.topic_already_exists
