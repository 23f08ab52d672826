"""Effects of many broker configs, on one real broker that is started with all of them.

`tests/support/pages/config_effects.py` names these tests as the proofs of their configs.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import iter_headers
from shoal.record.compression import Compression
from shoal.record.records import build_batch
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess

BROKER_CONFIG = {
    "advertised.listeners": "PLAINTEXT://broker.example:7777",
    "broker.id": "7",
    "broker.rack": "rack-a",
    "controller.quota.window.num": "2",
    "controller.quota.window.size.seconds": "1",
    "default.replication.factor": "2",
    "fetch.max.bytes": "1024",
    "group.consumer.heartbeat.interval.ms": "6000",
    "group.consumer.max.size": "1",
    "group.max.session.timeout.ms": "9000",
    "group.max.size": "1",
    "group.min.session.timeout.ms": "2000",
    "group.share.heartbeat.interval.ms": "7000",
    "log.flush.offset.checkpoint.interval.ms": "50",
    "max.incremental.fetch.session.cache.slots": "1",
    "max.request.partition.size.limit": "2",
    "metadata.log.max.snapshot.interval.ms": "200",
    "node.id": "7",
    "num.partitions": "3",
    "offset.metadata.max.bytes": "10",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.segment.bytes": "2000000",
    "producer.id.expiration.check.interval.ms": "50",
    "producer.id.expiration.ms": "1",
    "share.coordinator.state.topic.compression.codec": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.segment.bytes": "2100000",
    "shoal.group.share.takeover.heartbeat.interval.ms": "0",
    "socket.listen.backlog.size": "77",
    "telemetry.max.bytes": "100",
    "transaction.max.timeout.ms": "5000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.segment.bytes": "2200000",
    "transactional.id.expiration.ms": "100",
}


@pytest.fixture
def client(shared_broker: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shared_broker.bootstrap) as client:
        yield client


def created(client: WireClient, name: str, *, partitions: int, factor: int) -> Any:
    body = {
        "timeout_ms": 10_000,
        "topics": [{"name": name, "num_partitions": partitions, "replication_factor": factor}],
    }
    return client.call(ApiKey.CREATE_TOPICS, 7, body).topics[0]


def segment_bytes(client: WireClient, topic: str) -> str:
    body = {
        "resources": [
            {"resource_type": 2, "resource_name": topic, "configuration_keys": ["segment.bytes"]}
        ]
    }
    (result,) = client.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results
    return str(result.configs[0].value)


def coordinator(client: WireClient, key_type: int, key: str) -> None:
    find = {"key_type": key_type, "coordinator_keys": [key]}

    def found() -> bool:
        (row,) = client.call(ApiKey.FIND_COORDINATOR, 6, find).coordinators
        return not row.error_code

    eventually(found)


def test_identity_of_a_broker(client: WireClient) -> None:
    """node.id, broker.id, broker.rack, advertised.listeners"""
    (broker,) = client.call(ApiKey.METADATA, 12, {"topics": []}).brokers
    assert (broker.node_id, broker.rack) == (7, "rack-a")
    assert (broker.host, broker.port) == ("broker.example", 7777)


def test_new_topics(client: WireClient) -> None:
    """num.partitions, and default.replication.factor, which a single broker cannot provide"""
    row = created(client, "defaults", partitions=-1, factor=1)
    assert (row.error_code, row.num_partitions) == (0, 3)
    row = created(client, "two", partitions=1, factor=-1)
    assert row.error_code is ErrorCode.invalid_replication_factor


@pytest.mark.parametrize(
    ("key_type", "topic", "partitions", "size"),
    [
        (0, "__consumer_offsets", 2, "2000000"),
        (1, "__transaction_state", 4, "2200000"),
        (2, "__share_group_state", 3, "2100000"),
    ],
)
def test_internal_topics(
    client: WireClient, key_type: int, topic: str, partitions: int, size: str
) -> None:
    """offsets.topic.*, transaction.state.log.*, share.coordinator.state.topic.*: num.partitions,
    replication.factor and segment.bytes"""
    key = "g:AAAAAAAAAAAAAAAAAAAAAQ:0" if key_type == 2 else "key"
    coordinator(client, key_type, key)
    asked = {"topics": [{"topic_id": None, "name": topic}]}
    (found,) = client.call(ApiKey.METADATA, 12, asked).topics
    assert len(found.partitions) == partitions
    assert {len(p.replica_nodes) for p in found.partitions} == {1}
    assert segment_bytes(client, topic) == size


@pytest.mark.parametrize("timeout_ms", [1_999, 2_000, 9_000, 9_001])
def test_session_timeouts_of_classic_members(client: WireClient, timeout_ms: int) -> None:
    """group.min.session.timeout.ms, group.max.session.timeout.ms"""
    coordinator(client, 0, f"bounds-{timeout_ms}")
    answer = join(client, f"bounds-{timeout_ms}", timeout_ms)
    refused = answer.error_code is ErrorCode.invalid_session_timeout
    assert refused == (timeout_ms in (1_999, 9_001))


def join(client: WireClient, group: str, timeout_ms: int = 5_000) -> Any:
    protocols = [{"name": "range", "metadata": b""}]
    body = {
        "group_id": group,
        "session_timeout_ms": timeout_ms,
        "rebalance_timeout_ms": 5_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": protocols,
    }
    # From version 4 on a member without an id gets one, and does not join yet.
    return client.call(ApiKey.JOIN_GROUP, 4, body)


def test_classic_groups_have_a_size(client: WireClient, shared_broker: ShoalProcess) -> None:
    """group.max.size, and group.initial.rebalance.delay.ms: by default the first member waits 3 s
    for others"""
    coordinator(client, 0, "classic")
    with WireClient(shared_broker.bootstrap) as other:
        client.send(
            ApiKey.JOIN_GROUP,
            3,
            {
                "group_id": "classic",
                "session_timeout_ms": 5_000,
                "rebalance_timeout_ms": 5_000,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
        )
        listed = {"groups": ["classic"]}
        eventually(
            lambda: other.call(ApiKey.DESCRIBE_GROUPS, 5, listed).groups[0].group_state != "Dead"
        )
        assert join(other, "classic").error_code is ErrorCode.group_max_size_reached


def heartbeat(client: WireClient, group: str, member: str) -> Any:
    body = {
        "group_id": group,
        "member_id": member,
        "member_epoch": 0,
        "rebalance_timeout_ms": 5_000,
        "subscribed_topic_names": ["none"],
        "topic_partitions": [],
    }
    return client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, body)


def test_consumer_groups(client: WireClient) -> None:
    """group.consumer.heartbeat.interval.ms, group.consumer.max.size"""
    coordinator(client, 0, "modern")
    first = heartbeat(client, "modern", "")
    assert (first.error_code, codec.to_ms(first.heartbeat_interval)) == (0, 6_000)
    assert heartbeat(client, "modern", "").error_code is ErrorCode.group_max_size_reached


def test_share_groups(client: WireClient) -> None:
    """group.share.heartbeat.interval.ms"""
    coordinator(client, 0, "shared")
    body = {
        "group_id": "shared",
        "member_id": "AAAAAAAAAAAAAAAAAAAAAQ",
        "member_epoch": 0,
        "subscribed_topic_names": ["none"],
    }
    answer = client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, body)
    assert (answer.error_code, codec.to_ms(answer.heartbeat_interval)) == (0, 7_000)


def test_metadata_of_offsets(client: WireClient) -> None:
    """offset.metadata.max.bytes"""
    coordinator(client, 0, "notes")
    created(client, "noted", partitions=1, factor=1)
    codes = []
    for size in (10, 11):
        row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * size}
        body = {
            "group_id": "notes",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "noted", "partitions": [row]}],
        }
        answer = client.call(ApiKey.OFFSET_COMMIT, 8, body)
        codes.append(answer.topics[0].partitions[0].error_code)
    assert codes == [ErrorCode.none, ErrorCode.offset_metadata_too_large]


def test_partitions_in_a_description(client: WireClient) -> None:
    """max.request.partition.size.limit"""
    created(client, "described", partitions=5, factor=1)
    body = {"topics": [{"name": "described"}], "response_partition_limit": 2_000}
    answer = client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
    assert len(answer.topics[0].partitions) == 2
    assert answer.next_cursor.partition_index == 2


def test_fetches(client: WireClient, shared_broker: ShoalProcess) -> None:
    """fetch.max.bytes: at least one batch, and no second one above it.
    max.incremental.fetch.session.cache.slots: the second fetcher gets no session."""
    created(client, "fetched", partitions=2, factor=1)
    for partition in (0, 1):
        assert client.produce("fetched", bytes(900), partition=partition).error_code == 0
    rows = [{"partition": p, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for p in (0, 1)]
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 26,
        "session_epoch": 0,
        "topics": [{"topic": "fetched", "partitions": rows}],
    }
    answer = client.call(ApiKey.FETCH, 12, body)
    sizes = [len(p.records or b"") for t in answer.responses for p in t.partitions]
    assert sum(size > 0 for size in sizes) == 1
    assert answer.session_id > 0
    with WireClient(shared_broker.bootstrap) as other:
        assert other.call(ApiKey.FETCH, 12, body).session_id == 0


def test_recovery_points_are_written(client: WireClient, shared_broker: ShoalProcess) -> None:
    """log.flush.offset.checkpoint.interval.ms"""
    created(client, "points", partitions=1, factor=1)
    path = shared_broker.data_dir / "recovery-point-offset-checkpoint"
    eventually(lambda: path.exists() and "points 0 0" in path.read_text(), timeout_s=20)


def test_metadata_snapshots_are_written(client: WireClient, shared_broker: ShoalProcess) -> None:
    """metadata.log.max.snapshot.interval.ms"""
    created(client, "saved", partitions=1, factor=1)
    folder = shared_broker.data_dir / "__cluster_metadata-0"
    eventually(lambda: list(folder.glob("*.checkpoint")), timeout_s=20)


def init(client: WireClient, transactional_id: str | None, timeout_ms: int = 4_000) -> Any:
    body = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    return client.call(
        ApiKey.INIT_PRODUCER_ID, 4, {**body, "producer_id": -1, "producer_epoch": -1}
    )


def test_producers_are_forgotten(client: WireClient) -> None:
    """producer.id.expiration.ms, producer.id.expiration.check.interval.ms"""
    created(client, "written", partitions=1, factor=1)
    producer = init(client, None)
    options = {"producer_id": producer.producer_id, "producer_epoch": 0, "base_sequence": 0}
    assert client.produce("written", b"v", **options).error_code == 0

    def producers() -> list[Any]:
        body = {"topics": [{"name": "written", "partition_indexes": [0]}]}
        answer = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, body)
        return list(answer.topics[0].partitions[0].active_producers)

    eventually(lambda: not producers(), timeout_s=20)


def test_transactional_ids(client: WireClient) -> None:
    """transaction.max.timeout.ms; transactional.id.expiration.ms and
    transaction.remove.expired.transaction.cleanup.interval.ms"""
    coordinator(client, 1, "t")
    eventually(lambda: init(client, "t").error_code is ErrorCode.none)
    assert init(client, "t", 5_001).error_code is ErrorCode.invalid_transaction_timeout

    def forgotten() -> bool:
        body: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
        answer = client.call(ApiKey.LIST_TRANSACTIONS, 0, body)
        return "t" not in [row.transactional_id for row in answer.transaction_states]

    eventually(forgotten, timeout_s=20)


def test_pushed_metrics(client: WireClient) -> None:
    """telemetry.max.bytes"""
    asked = client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": UUID(int=0)})
    assert asked.telemetry_max_bytes == 100
    body = {
        "client_instance_id": asked.client_instance_id,
        "subscription_id": asked.subscription_id,
        "terminating": False,
        "compression_type": 0,
        "metrics": bytes(101),
    }
    answer = client.call(ApiKey.PUSH_TELEMETRY, 0, body)
    assert answer.error_code is ErrorCode.telemetry_too_large


def test_the_backlog(shared_broker: ShoalProcess) -> None:
    """socket.listen.backlog.size, as ss shows it"""
    port = shared_broker.bootstrap.rpartition(":")[2]
    said = subprocess.run(
        ["ss", "-tlnH", f"sport = :{port}"], capture_output=True, text=True, check=True
    ).stdout
    assert said.split()[2] == "77", said


def test_samples_of_the_controllers_quota(client: WireClient) -> None:
    """controller.quota.window.num, controller.quota.window.size.seconds: two seconds' worth are
    allowed at once, where the default is eleven. Five partitions at 1 a second use up more."""
    entity = [{"entity_type": "client-id", "entity_name": client.client_id}]
    ops = [{"key": "controller_mutation_rate", "value": 1.0, "remove": False}]
    body = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, body)
    try:
        assert created(client, "mutated", partitions=5, factor=1).error_code == 0
        refused = created(client, "again", partitions=1, factor=1)
        assert refused.error_code is ErrorCode.throttling_quota_exceeded
    finally:
        ops[0] |= {"remove": True}
        client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, body)


def test_a_broker_alone_is_cordoned(client: WireClient) -> None:
    """cordoned.log.dirs: it places no replicas, and tells itself without heartbeats."""

    def alter(operation: int) -> None:
        config = {"name": "cordoned.log.dirs", "value": "*", "config_operation": operation}
        resource = {"resource_type": 4, "resource_name": "7", "configs": [config]}
        body = {"resources": [resource], "validate_only": False}
        (altered,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
        assert altered.error_code is ErrorCode.none, altered

    alter(0)
    try:
        eventually(
            lambda: (
                created(client, "cordoned", partitions=1, factor=1).error_code
                is ErrorCode.invalid_replication_factor
            )
        )
    finally:
        alter(1)
    eventually(lambda: created(client, "free", partitions=1, factor=1).error_code is ErrorCode.none)


def test_share_state_is_compressed(client: WireClient, shared_broker: ShoalProcess) -> None:
    """share.coordinator.state.topic.compression.codec"""
    coordinator(client, 2, "z:AAAAAAAAAAAAAAAAAAAAAQ:0")
    topic_id = created(client, "state", partitions=1, factor=1).topic_id
    partition = {"partition": 0, "state_epoch": 0, "start_offset": 0}
    body = {"group_id": "z", "topics": [{"topic_id": topic_id, "partitions": [partition]}]}

    def initialized() -> bool:
        answer = client.call(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, body)
        return not answer.results[0].partitions[0].error_code

    eventually(initialized)
    folder = shared_broker.data_dir
    logs = [f for f in folder.glob("__share_group_state-*/*.log") if f.stat().st_size]
    codecs = {h.compression for log in logs for _, h in iter_headers(log.read_bytes())}
    assert codecs == {Compression.LZ4}


def test_transactions_without_verification(client: WireClient) -> None:
    """transaction.partition.verification.enable, altered while the broker runs: a client of
    transaction version 1 need not add a partition before writing to it."""
    coordinator(client, 1, "unverified")
    created(client, "unnamed", partitions=1, factor=1)
    producer = init(client, "unverified")
    records = bytes(
        build_batch(
            [(1, None, b"v", ())],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
    )
    rows = [{"index": 0, "records": records}]
    write = {
        "transactional_id": "unverified",
        "acks": -1,
        "timeout_ms": 5_000,
        "topic_data": [{"name": "unnamed", "partition_data": rows}],
    }

    def written() -> ErrorCode:
        answer = client.call(ApiKey.PRODUCE, 11, write)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    assert written() is not ErrorCode.none
    change = {
        "name": "transaction.partition.verification.enable",
        "config_operation": 0,
        "value": "false",
    }
    resource = {"resource_type": 4, "resource_name": "", "configs": [change]}
    body = {"resources": [resource], "validate_only": False}
    client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
    eventually(lambda: written() is ErrorCode.none, timeout_s=20)
