"""Client quotas over the wire: set, listed, kept over a restart, and enforced."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RATES = ("producer_byte_rate", "consumer_byte_rate")
Pair = tuple[str, str | None]


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    """A broker for the tests of this file, which list all quotas and restart it."""
    broker = ShoalProcess(tmp_path_factory.mktemp("quotas") / "data").start()
    yield broker
    assert broker.stop() == 0, "\n".join(broker.log[-40:])


@pytest.fixture
def client(shared_broker: ShoalProcess, request: pytest.FixtureRequest) -> Iterator[WireClient]:
    """A client whose client id is the test's name; its quotas are removed afterwards."""
    name = request.node.name
    with WireClient(shared_broker.bootstrap, client_id=name) as client:
        yield client
    with WireClient(shared_broker.bootstrap) as other:
        every = dict.fromkeys((*RATES, "request_percentage", "controller_mutation_rate"))
        assert alter(other, ("client-id", name), **every).error_code == 0


def alter(client: WireClient, *entity: Pair, **values: float | None) -> Any:
    """Set quotas of one entity, where None removes one; return the entity's row."""
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in values.items()
        ],
    }
    body = {"entries": [entry], "validate_only": False}
    (row,) = client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, body).entries
    return row


def describe(client: WireClient, *components: tuple[str, int, str | None], strict: bool) -> Any:
    body = {
        "components": [
            {"entity_type": kind, "match_type": match_type, "match": match}
            for kind, match_type, match in components
        ],
        "strict": strict,
    }
    return client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, body)


def found(answer: Any) -> dict[frozenset[Pair], dict[str, float]]:
    assert answer.error_code == 0, answer
    return {
        frozenset((e.entity_type, e.entity_name) for e in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def test_quotas_are_set_listed_and_kept(shared_broker: ShoalProcess, client: WireClient) -> None:
    assert alter(client, ("user", "ann"), producer_byte_rate=1000.0).error_code == 0
    both = alter(client, ("user", "ann"), ("client-id", "x"), request_percentage=12.5)
    assert both.error_code == 0
    assert alter(client, ("ip", "10.0.0.1"), connection_creation_rate=9.0).error_code == 0
    assert alter(client, ("user", "ann"), producer_byte_rate=2000.0).error_code == 0
    refused = alter(client, ("user", "ann"), producer_byte_rate=-1.0)
    assert refused.error_code == ErrorCode.invalid_request
    assert refused.error_message == "Quota producer_byte_rate must be greater than 0."
    ann = frozenset({("user", "ann")})
    ann_x = frozenset({("user", "ann"), ("client-id", "x")})
    address = frozenset({("ip", "10.0.0.1")})
    assert found(describe(client, ("user", 0, "ann"), strict=True)) == {
        ann: {"producer_byte_rate": 2000.0}
    }
    assert set(found(describe(client, ("user", 2, None), strict=False))) == {ann, ann_x}
    assert set(found(describe(client, strict=False))) == {ann, ann_x, address}
    answer = describe(client, ("user", 1, "a"), strict=False)
    assert (answer.error_code, answer.entries) == (ErrorCode.invalid_request, None)
    assert alter(client, ("user", "ann"), producer_byte_rate=None).error_code == 0
    shared_broker.restart()
    with WireClient(shared_broker.bootstrap) as again:
        kept = found(describe(again, strict=False))
        assert alter(again, ("ip", "10.0.0.1"), connection_creation_rate=None).error_code == 0
    assert kept == {ann_x: {"request_percentage": 12.5}, address: {"connection_creation_rate": 9.0}}


def answered_at(client: WireClient) -> float:
    """Return the monotonic time of a response, in seconds."""
    client.call(ApiKey.API_VERSIONS, 0, {})
    return time.monotonic()


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_a_producer_over_its_quota(
    shared_broker: ShoalProcess, client: WireClient, version: int
) -> None:
    """The throttle time is in the layout of its version, and reading pauses, also without a
    response."""
    name = f"produced-{version}"
    topic_id = client.create_topic(name)
    assert alter(client, ("client-id", client.client_id), producer_byte_rate=1e5).error_code == 0
    topic = {"name": name, "topic_id": topic_id}
    # Ten seconds' worth of the quota's eleven windows, and then a second's.
    for acks, size in ((1, 1_020_000), (0, 100_000)):
        records = bytes(build_batch([(1, None, b"x" * size, ())]))
        topic["partition_data"] = [{"index": 0, "records": records}]
        begun = time.monotonic()
        body = {"acks": acks, "timeout_ms": 1000, "topic_data": [topic]}
        client.send(ApiKey.PRODUCE, version, body)
        if acks:
            answer = client.receive(ApiKey.PRODUCE, version)[1]
            assert answer.responses[0].partition_responses[0].base_offset == 0
            assert answer.throttle_time.total_seconds() > 0.1
        assert answered_at(client) - begun > 0.1
        # A connection of another client is not throttled, and may remove the quota.
        with WireClient(shared_broker.bootstrap) as other:
            ours = ("client-id", client.client_id)
            assert alter(other, ours, producer_byte_rate=1e5 + acks).error_code == 0


def test_a_consumer_over_its_quota(client: WireClient) -> None:
    """A fetch gets at most what ten windows allow, and pays for it."""
    client.create_topic("consumed")
    for _ in range(5):
        client.produce("consumed", b"x" * 50_000)
    rate = alter(client, ("client-id", client.client_id), consumer_byte_rate=12_000.0)
    assert rate.error_code == 0
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 26,
        "session_epoch": -1,
        "topics": [{"topic": "consumed", "partitions": [asked]}],
    }
    answer = client.call(ApiKey.FETCH, 12, body)
    assert 100_000 < len(answer.responses[0].partitions[0].records) <= 120_000
    assert answer.throttle_time.total_seconds() == 0
    asked["partition_max_bytes"] = 50_100
    answer = client.call(ApiKey.FETCH, 12, body)
    pause_s = answer.throttle_time.total_seconds()
    assert pause_s > 0.5
    begun = time.monotonic()
    assert answered_at(client) - begun > pause_s - 0.3


def test_an_application_that_takes_the_brokers_time(client: WireClient) -> None:
    """Pauses for request time are at most a second, and no request is refused."""
    client.create_topic("asked-about", 20)
    entity = ("client-id", client.client_id)
    assert alter(client, entity, request_percentage=0.001).error_code == 0
    client.call(ApiKey.METADATA, 12, {"topics": None})
    answer = client.call(ApiKey.METADATA, 12, {"topics": None})
    assert 0 < answer.throttle_time.total_seconds() <= 1.0
    assert len(answer.topics) >= 1
    # A response that is encoded once for all clients contains no pause.
    assert alter(client, entity, request_percentage=None).error_code == 0
    answer = client.call(ApiKey.METADATA, 12, {"topics": None})
    assert answer.throttle_time.total_seconds() == 0


def test_changes_of_topics(client: WireClient) -> None:
    """KIP-599: 11 seconds' worth at once, then none until the quota allows some again."""
    entity = ("client-id", client.client_id)
    assert alter(client, entity, controller_mutation_rate=1.0).error_code == 0

    def create(name: str) -> Any:
        topic = {"name": name, "num_partitions": 14, "replication_factor": 1}
        return client.call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 1000})

    assert create("made").topics[0].error_code == 0
    refused = create("refused")
    assert refused.topics[0].error_code == ErrorCode.throttling_quota_exceeded
    assert 0 < refused.throttle_time.total_seconds() <= 3
    body = {"name": "made", "count": 15, "assignments": None}
    body = {"topics": [body], "timeout_ms": 1000, "validate_only": True}
    assert client.call(ApiKey.CREATE_PARTITIONS, 3, body).results[0].error_code == 0
    # A client too old for the error is not refused; it pauses afterwards.
    body = {"topic_names": ["made"], "timeout_ms": 1000}
    deleted = client.call(ApiKey.DELETE_TOPICS, 4, body)
    assert deleted.responses[0].error_code == 0
    assert deleted.throttle_time.total_seconds() > 5
    client.sock.close()


@pytest.mark.parametrize(("windows", "size_s"), [(2, 4), (2, 15), (6, 3)])
def test_connections_of_an_address(
    start_broker: Callable[..., ShoalProcess], windows: int, size_s: int
) -> None:
    """At one connection a second, as many at once as all windows but the current one have
    seconds."""
    configs = {"quota.window.num": str(windows), "quota.window.size.seconds": str(size_s)}
    broker = start_broker(configs=configs)
    with WireClient(broker.bootstrap) as client:
        assert alter(client, ("ip", "127.0.0.1"), connection_creation_rate=1.0).error_code == 0
        begun = time.monotonic()
        others = [WireClient(broker.bootstrap) for _ in range(40)]
        refused = [other.refused() for other in others]
        passed_s = time.monotonic() - begun
        burst = (windows - 1) * size_s
        assert burst <= refused.count(False) <= burst + 1 + passed_s
        for other in others:
            other.sock.close()

        # The address is served again once its rate is down.
        def served() -> bool:
            with WireClient(broker.bootstrap) as again:
                return not again.refused()

        eventually(served, timeout_s=60)


def test_connections_wait_for_their_turn(start_broker: Callable[..., ShoalProcess]) -> None:
    broker = start_broker(configs={"max.connection.creation.rate": "3", "quota.window.num": "2"})
    begun = time.monotonic()
    clients = [WireClient(broker.bootstrap) for _ in range(12)]
    for client in clients:
        client.call(ApiKey.API_VERSIONS, 0, {})
        client.sock.close()
    assert time.monotonic() - begun > 1.5


def test_connections_at_a_time(start_broker: Callable[..., ShoalProcess]) -> None:
    configs = {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:2"}
    broker = start_broker(configs=configs)
    clients = [WireClient(broker.bootstrap) for _ in range(3)]
    assert [client.refused() for client in clients] == [False, False, True]
    clients[0].sock.close()

    def served() -> bool:
        with WireClient(broker.bootstrap) as again:
            return not again.refused()

    eventually(served)


def test_quotas_survive_a_metadata_snapshot(tmp_path: Path) -> None:
    """After a restart the image comes from the snapshot, not from the log before it."""
    configs = {"metadata.log.max.record.bytes.between.snapshots": "1"}
    broker = ShoalProcess(tmp_path, configs=configs).start()
    everyone, ann_x = [("user", None)], [("user", "ann"), ("client-id", "x")]
    try:
        with WireClient(broker.bootstrap) as client:
            assert alter(client, *everyone, producer_byte_rate=7.0).error_code == 0
            assert alter(client, *ann_x, request_percentage=12.5).error_code == 0
            before = found(describe(client, strict=False))
        end = max(_snapshot_ends(tmp_path), default=0)
        with WireClient(broker.bootstrap) as client:
            client.create_topic("later")
        eventually(lambda: max(_snapshot_ends(tmp_path), default=0) > end, what="a snapshot")
        broker.restart()
        with WireClient(broker.bootstrap) as client:
            assert found(describe(client, strict=False)) == before
    finally:
        broker.kill9()
    assert before == {
        frozenset(everyone): {"producer_byte_rate": 7.0},
        frozenset(ann_x): {"request_percentage": 12.5},
    }


def _snapshot_ends(data_dir: Path) -> list[int]:
    """End offsets of the metadata snapshots on disk."""
    found = data_dir.glob("__cluster_metadata-0/*.checkpoint")
    return [int(path.name.split("-")[0]) for path in found]
