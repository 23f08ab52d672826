"""Admin requests in every served version, against a real broker: shapes, errors, pages."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kio.static.constants import EntityType
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import CONTROLLER_ID_NOT_REGISTERED, ErrorCode
from shoal.server.handlers import HANDLERS
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
#: A request of each API that succeeds, and the required content of its response.
REQUESTS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.METADATA: {"topics": [{"name": "t"}], "allow_auto_topic_creation": False},
    ApiKey.CREATE_TOPICS: {
        "topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}],
        "timeout_ms": 1000,
        "validate_only": True,
    },
    ApiKey.DELETE_TOPICS: {"topics": [], "topic_names": [], "timeout_ms": 1000},
    ApiKey.DESCRIBE_CONFIGS: {
        "resources": [
            {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None},
            {"resource_type": BROKER, "resource_name": "1", "configuration_keys": ["node.id"]},
            {"resource_type": GROUP, "resource_name": "g", "configuration_keys": None},
        ],
        "include_synonyms": True,
        "include_documentation": True,
    },
    ApiKey.ALTER_CONFIGS: {
        "resources": [
            {
                "resource_type": TOPIC,
                "resource_name": "t",
                "configs": [{"name": "segment.ms", "value": "5"}],
            }
        ],
        "validate_only": True,
    },
    ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
    ApiKey.CREATE_PARTITIONS: {
        "topics": [{"name": "t", "count": 9, "assignments": None}],
        "timeout_ms": 1000,
        "validate_only": True,
    },
    ApiKey.ELECT_LEADERS: {"topic_partitions": None, "timeout_ms": 1000},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [
            {
                "resource_type": GROUP,
                "resource_name": "g",
                "configs": [{"name": "share.isolation.level", "value": "read_committed"}],
            }
        ],
        "validate_only": True,
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}]
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": None},
    ApiKey.DESCRIBE_QUORUM: {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    },
    ApiKey.UPDATE_FEATURES: {
        "feature_updates": [{"feature": "share.version", "max_version_level": 2}]
    },
    ApiKey.DESCRIBE_CLUSTER: {"include_cluster_authorized_operations": True},
    ApiKey.DESCRIBE_PRODUCERS: {"topics": [{"name": "t", "partition_indexes": [0]}]},
    ApiKey.LIST_TRANSACTIONS: {"state_filters": [], "producer_id_filters": []},
    ApiKey.LIST_CONFIG_RESOURCES: {},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": "t"}]},
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: {"client_instance_id": None},
}


@pytest.fixture(scope="module")
def client(shared_broker: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shared_broker.bootstrap) as found:
        found.create_topic("t", 3)
        yield found


def error_codes(answer: Any) -> Iterator[int]:
    """Yield every error code anywhere in a response."""
    if isinstance(answer, tuple):
        for item in answer:
            yield from error_codes(item)
    for name in getattr(answer, "__slots__", ()):
        value = getattr(answer, name)
        if name == "error_code":
            yield value
        else:
            yield from error_codes(value)


@pytest.mark.parametrize("key", REQUESTS, ids=lambda key: key.name)
def test_every_version_is_answered_without_error(client: WireClient, key: ApiKey) -> None:
    for version in HANDLERS[key].versions:
        answer = client.call(key, version, REQUESTS[key])
        assert set(error_codes(answer)) <= {ErrorCode.none}, (version, answer)


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: ApiKey(key).name)
def test_versions_are_those_that_have_a_schema(key: int) -> None:
    for version in HANDLERS[key].versions:
        codec.load_entity(key, version, EntityType.response)


def names(answer: Any) -> list[str]:
    return [topic.name for topic in answer.topics]


def test_metadata_asks_for_all_none_or_some(client: WireClient) -> None:
    """v0 uses an empty list for all topics, later versions null; ids came with v12."""
    assert "t" in names(client.call(ApiKey.METADATA, 0, {"topics": []}))
    assert names(client.call(ApiKey.METADATA, 1, {"topics": []})) == []
    assert "t" in names(client.call(ApiKey.METADATA, 1, {"topics": None}))
    topic = client.call(ApiKey.METADATA, 12, REQUESTS[ApiKey.METADATA]).topics[0]
    by_id = {"topics": [{"name": None, "topic_id": topic.topic_id}]}
    assert names(client.call(ApiKey.METADATA, 12, by_id)) == ["t"]
    unknown = {"topics": [{"name": None, "topic_id": uuid.uuid4()}]}
    (row,) = client.call(ApiKey.METADATA, 13, unknown).topics
    assert (row.error_code, row.name) == (ErrorCode.unknown_topic_id, None)
    too_early = {"topics": [{"name": "t", "topic_id": topic.topic_id}]}
    (row,) = client.call(ApiKey.METADATA, 10, too_early).topics
    assert row.error_code == ErrorCode.invalid_request


def test_metadata_makes_topics_where_it_may(client: WireClient) -> None:
    def ask(name: str, allowed: bool) -> Any:
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": allowed}
        return client.call(ApiKey.METADATA, 9, body).topics[0]

    assert ask("made", False).error_code == ErrorCode.unknown_topic_or_partition
    made = ask("made", True)
    assert made.error_code == ErrorCode.none
    assert len(made.partitions) == 1
    assert ask("bad name", True).error_code == ErrorCode.invalid_topic_exception


def test_authorized_operations_when_asked_for(client: WireClient) -> None:
    """KIP-430's bit fields, with the values of Kafka without an authorizer."""
    asked = REQUESTS[ApiKey.METADATA] | {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    answer = client.call(ApiKey.METADATA, 9, asked)
    assert answer.topics[0].topic_authorized_operations == 3576
    assert answer.cluster_authorized_operations == 8096
    plain = client.call(ApiKey.METADATA, 9, REQUESTS[ApiKey.METADATA])
    assert plain.topics[0].topic_authorized_operations == -(2**31)


def test_answers_kept_for_large_requests_follow_changes(client: WireClient) -> None:
    client.create_topic("kept-answers", 150)
    ask = {"topics": [{"name": "kept-answers"}], "allow_auto_topic_creation": False}
    first, again = (client.call(ApiKey.METADATA, 12, ask) for _ in range(2))
    assert first == again
    assert len(first.topics[0].partitions) == 150
    grow = {
        "topics": [{"name": "kept-answers", "count": 151, "assignments": None}],
        "timeout_ms": 60_000,
    }
    client.call(ApiKey.CREATE_PARTITIONS, 3, grow)
    assert len(client.call(ApiKey.METADATA, 12, ask).topics[0].partitions) == 151


def test_pages_of_partitions(client: WireClient) -> None:
    """KIP-966: a page ends at its limit, and the cursor names the next partition."""
    client.create_topic("page-a", 3)
    client.create_topic("page-b", 2)
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        body = {
            "topics": [{"name": "page-b"}, {"name": "page-a"}],
            "response_partition_limit": 2,
            "cursor": cursor,
        }
        answer = client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
        seen += [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        cursor = None
        if answer.next_cursor is not None:
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }
        pages += 1
    assert seen == [("page-a", i) for i in range(3)] + [("page-b", i) for i in range(2)]
    assert pages == 3


def test_a_cursor_on_a_topic_that_is_gone(client: WireClient) -> None:
    cursor = {"topic_name": "page-", "partition_index": 4}
    body = {"topics": [{"name": "page-b"}], "response_partition_limit": 5, "cursor": cursor}
    answer = client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
    assert [p.partition_index for p in answer.topics[0].partitions] == [0, 1]


def test_unknown_topics_in_a_page(client: WireClient) -> None:
    body = {"topics": [{"name": "none"}, {"name": "no name"}]}
    answer = client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
    assert {t.name: t.error_code for t in answer.topics} == {
        "none": ErrorCode.unknown_topic_or_partition,
        "no name": ErrorCode.invalid_topic_exception,
    }


def test_delete_by_id_and_refusals(client: WireClient) -> None:
    topic_id = client.create_topic("deleted")
    asked = [(None, topic_id), (None, uuid.uuid4()), ("none", None), (None, None), ("t", topic_id)]
    body = {"topics": [{"name": n, "topic_id": i} for n, i in asked], "timeout_ms": 1000}
    rows = client.call(ApiKey.DELETE_TOPICS, 6, body).responses
    assert [row.error_code for row in rows] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    assert rows[0].name == "deleted"


def test_a_topic_named_twice_is_neither_made_nor_deleted(client: WireClient) -> None:
    new = {"name": "twice", "num_partitions": 1, "replication_factor": 1}
    body = {"topics": [new, new], "timeout_ms": 1000}
    rows = client.call(ApiKey.CREATE_TOPICS, 7, body).topics
    assert [(r.name, r.error_code) for r in rows] == [("twice", ErrorCode.invalid_request)]
    body = {"topics": [{"name": "t"}, {"name": "t"}], "timeout_ms": 1000}
    rows = client.call(ApiKey.DELETE_TOPICS, 6, body).responses
    assert [(r.name, r.error_code) for r in rows] == [("t", ErrorCode.invalid_request)]
    assert "t" in names(client.call(ApiKey.METADATA, 1, {"topics": None}))


def alter(client: WireClient, kind: int, name: str, **configs: str) -> int:
    resource = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [
            {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
        ],
    }
    body = {"resources": [resource], "validate_only": False}
    code: int = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses[0].error_code
    return code


def test_configs_of_every_kind_are_listed_and_described(client: WireClient) -> None:
    """KIP-1142, KIP-569."""
    assert alter(client, GROUP, "jobs", share_delivery_count_limit="7") == ErrorCode.none
    assert alter(client, CLIENT_METRICS, "sub", interval_ms="1000", metrics="a,b") == 0
    body = {"resource_types": [GROUP, CLIENT_METRICS]}
    found = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, body).config_resources
    listed = [(r.resource_type, r.resource_name) for r in found]
    # Other files of tests share the broker, so it lists the configs of their groups as well.
    assert {(GROUP, "jobs"), (CLIENT_METRICS, "sub")} <= set(listed)
    body = {"resource_types": [3]}
    assert client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, body).error_code == 35
    resource = {
        "resource_type": GROUP,
        "resource_name": "jobs",
        "configuration_keys": ["share.delivery.count.limit"],
    }
    asked = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    (config,) = client.call(ApiKey.DESCRIBE_CONFIGS, 4, asked).results[0].configs
    assert (config.value, config.config_source, config.config_type) == ("7", 8, 3)
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("share.delivery.count.limit", "7", 8),
        ("group.share.delivery.count.limit", "5", 5),
    ]
    assert config.documentation == "Number of deliveries after which a record is archived."


def test_a_subscription_reaches_the_clients_that_match(client: WireClient) -> None:
    """KIP-714; the client id of these requests is `wire`."""
    assert alter(client, CLIENT_METRICS, "x", match="client_id=other", metrics="no") == 0
    assert alter(client, CLIENT_METRICS, "y", match="client_id=wi.*", metrics="yes") == 0
    answer = client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": None})
    assert "yes" in answer.requested_metrics
    assert "no" not in answer.requested_metrics
    push = {
        "client_instance_id": answer.client_instance_id,
        "subscription_id": answer.subscription_id,
        "compression_type": 0,
        "metrics": b"x" * 10,
    }

    def code(**other: Any) -> int:
        found: int = client.call(ApiKey.PUSH_TELEMETRY, 0, push | other).error_code
        return found

    assert code() == ErrorCode.none
    assert code(subscription_id=answer.subscription_id ^ 1) == ErrorCode.unknown_subscription_id
    assert code(compression_type=9) == ErrorCode.unsupported_compression_type
    assert code(metrics=bytes((1 << 20) + 1)) == ErrorCode.telemetry_too_large


def test_a_subscription_has_an_interval(client: WireClient) -> None:
    """interval.ms; the default is five minutes, and the smallest of those that match counts."""
    change = {"interval_ms": "321", "match": "client_id=wi.*", "metrics": "some"}
    assert alter(client, CLIENT_METRICS, "often", **change) == 0
    answer = client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": None})
    assert answer.push_interval.total_seconds() * 1000 == 321


def test_describe_producers_shows_the_last_batch(client: WireClient) -> None:
    client.create_topic("produced")
    row = client.call(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None})
    client.produce(
        "produced", b"1", b"2", producer_id=row.producer_id, producer_epoch=0, base_sequence=0
    )
    body = {"topics": [{"name": "produced", "partition_indexes": [0, 7]}]}
    here, missing = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics[0].partitions
    (producer,) = here.active_producers
    assert (producer.producer_id, producer.last_sequence) == (row.producer_id, 1)
    assert missing.error_code == ErrorCode.unknown_topic_or_partition
    body = {"topics": [{"name": "no name", "partition_indexes": [0]}]}
    (invalid,) = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics[0].partitions
    assert invalid.error_code == ErrorCode.invalid_topic_exception
    assert client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}).results[0].total_bytes > 0


def test_a_topic_that_is_named_again_is_answered_once(client: WireClient) -> None:
    """As in Kafka, by id as by name. A topic of many partitions, named 40,000 times, would fill the
    memory."""
    topic_id = client.create_topic("answered-once")
    for topic in ({"topic_id": None, "name": "answered-once"}, {"topic_id": topic_id}):
        for repeated in (2, 600):
            body = {"topics": [{"name": None, **topic}] * repeated}
            (found,) = client.call(ApiKey.METADATA, 12, body).topics
            assert (found.name, found.topic_id) == ("answered-once", topic_id)


def test_the_producers_of_a_partition_are_described_once(client: WireClient) -> None:
    """Found from outside: a request that repeats a partition 20,000 times took 20 GB."""
    client.create_topic("described-once", 2)
    for repeated in (2, 600):
        topic = {"name": "described-once", "partition_indexes": [0, 1] * repeated}
        body = {"topics": [topic, topic]}
        found = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics
        indexes = [p.partition_index for one in found for p in one.partitions]
        assert (indexes, {one.name for one in found}) == ([0, 1], {"described-once"})


def test_whole_request_errors_keep_their_shape(
    client: WireClient, shared_broker: ShoalProcess
) -> None:
    wrong = {"include_cluster_authorized_operations": False, "endpoint_type": 2}
    answer = client.call(ApiKey.DESCRIBE_CLUSTER, 1, wrong)
    assert answer.error_code == ErrorCode.mismatched_endpoint_type
    assert client.call(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 1}).error_code == 42
    assert client.call(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 9}).error_code == 102
    answer = client.call(ApiKey.UNREGISTER_CONTROLLER, 0, {"controller_id": 1})
    assert answer.error_code == CONTROLLER_ID_NOT_REGISTERED
    assert 'error="CONTROLLER_ID_NOT_REGISTERED"' in shared_broker.scrape()
    elect = {"election_type": 5, "topic_partitions": [{"topic": "t", "partitions": [0]}]}
    answer = client.call(ApiKey.ELECT_LEADERS, 2, elect)
    assert answer.replica_election_results[0].partition_result[0].error_code == 42
    listed = {"state_filters": ["Odd"], "producer_id_filters": []}
    found = client.call(ApiKey.LIST_TRANSACTIONS, 1, listed)
    assert found.unknown_state_filters == ("Odd",)
    pattern = listed | {"transactional_id_pattern": "["}
    assert client.call(ApiKey.LIST_TRANSACTIONS, 2, pattern).error_code == 128
