"""The APIs of each listener: every API and version is sent to Shoal, and at night to Kafka."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

import compat_page
import pytest
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode, WireError
from support.brokers.clusters import ShoalCluster, running
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka import tool_runner
from support.kafka.kafkas import KafkaProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.shared_servers import SharedKafka

BROKER, CONTROLLER = "broker", "controller"
LISTENERS = (BROKER, CONTROLLER)
METADATA, METADATA_ID = "__cluster_metadata", uuid.UUID(int=1)
#: A filter that every ACL matches.
_ANY_ACL = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}
#: Kafka never answers these when they have no transactions.
SILENT_IN_KAFKA = {(ApiKey.ADD_PARTITIONS_TO_TXN, 4), (ApiKey.ADD_PARTITIONS_TO_TXN, 5)}


def _one(**partition: Any) -> dict[str, Any]:
    topic = {"topic_name": METADATA, "name": METADATA, "partitions": [partition]}
    return {"topics": [topic]}


#: Request fields whose defaults do not work: Kafka exits at a FetchSnapshot without topics.
BODIES: dict[ApiKey, dict[str, Any]] = {
    ApiKey.PRODUCE: {"acks": 1},
    ApiKey.DESCRIBE_ACLS: _ANY_ACL,
    ApiKey.FETCH_SNAPSHOT: _one(partition=0, snapshot_id={"end_offset": 1, "epoch": 1}),
    ApiKey.VOTE: _one(partition_index=0),
    ApiKey.BEGIN_QUORUM_EPOCH: _one(partition_index=0),
    ApiKey.END_QUORUM_EPOCH: _one(partition_index=0),
}


def fetch(topic: str, topic_id: uuid.UUID) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
    }
    row = {"topic": topic, "topic_id": topic_id, "partitions": [partition]}
    return {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "replica_id": -1,
        "topics": [row],
    }


@pytest.fixture(scope="module")
def peer(kafka: SharedKafka) -> dict[str, str]:
    """Kafka's addresses by kind of listener."""
    return {BROKER: kafka.bootstrap, CONTROLLER: kafka.addresses["CONTROLLER"]}


@pytest.fixture(scope="module")
def own_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Those of a Kafka for requests that change it."""
    process = KafkaProcess(tmp_path_factory.mktemp("kafka")).start()
    yield {BROKER: process.bootstrap, CONTROLLER: process.addresses["CONTROLLER"]}
    process.kill9()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("cluster"))) as found:
        yield found


@pytest.fixture(scope="module")
def shoal(cluster: ShoalCluster) -> dict[str, str]:
    """The addresses of the active controller, which is a broker too."""
    id = cluster.controller()
    return {BROKER: cluster.addresses[id], CONTROLLER: cluster.controllers[id]}


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A broker that is its own controller, with a listener for controllers."""
    (port,) = free_ports(1)
    flags = [
        f"--listener=CONTROLLER://127.0.0.1:{port}",
        "--set=controller.listener.names=CONTROLLER",
    ]
    process = ShoalProcess(tmp_path_factory.mktemp("lone"), flags=flags).start()
    yield {BROKER: process.bootstrap, CONTROLLER: f"127.0.0.1:{port}"}
    assert process.stop() == 0


def named(address: str) -> dict[int, tuple[int, int]]:
    body = {"client_software_name": "test", "client_software_version": "1"}
    with WireClient(address) as client:
        rows = client.call(ApiKey.API_VERSIONS, 4, body).api_keys
    return {row.api_key: (row.min_version, row.max_version) for row in rows}


def page_of(listener: str) -> dict[int, tuple[int, int]]:
    """Return the versions of Kafka's listeners that docs/compat.md shows."""
    page = compat_page.KAFKA if listener == BROKER else compat_page.KAFKA_CONTROLLERS
    return {int(key): span for key, span in page.items()}


def expected(kafka: dict[int, tuple[int, int]], listener: str) -> dict[int, tuple[int, int]]:
    """Return what Shoal has to list, given Kafka's list."""
    found = {key: span for key, span in kafka.items() if key not in compat_page.NOT_SERVED}
    for key, version in compat_page.OTHER_VERSIONS:
        if key in found:
            found[key] = (found[key][0], version - 1)
    if listener == BROKER:
        found |= dict.fromkeys(compat_page.CONDITIONAL, (0, 0))
    return found


@pytest.mark.java
@pytest.mark.parametrize("listener", LISTENERS)
def test_each_listener_names_what_kafkas_does(
    peer: dict[str, str],
    cluster: ShoalCluster,
    shoal: dict[str, str],
    lone: dict[str, str],
    listener: str,
) -> None:
    kafka = named(peer[listener])
    assert kafka == page_of(listener), "docs/compat.md is made of this"
    wanted = expected(kafka, listener)
    assert named(shoal[listener]) == wanted
    assert named(lone[listener]) == wanted
    addresses = cluster.addresses if listener == BROKER else cluster.controllers
    assert all(named(address) == wanted for address in addresses.values())


def read_printed_versions(address: str, listener: str) -> dict[int, str]:
    """Return what `kafka-cluster.sh api-versions` prints of each API, by its key (KIP-1220)."""
    of = "bootstrap-server" if listener == BROKER else "bootstrap-controller"
    main = "org.apache.kafka.tools.ClusterTool"
    ended = tool_runner.shared().run(main, "api-versions", f"--{of}", address, timeout_s=180)
    assert ended.status == 0, ended.out + ended.errors
    return {int(k): t for k, t in re.findall(r"^\t\w+\((\d+)\): (.*?),?$", ended.out, re.MULTILINE)}


@pytest.mark.java
@pytest.mark.parametrize("listener", LISTENERS)
def test_kafkas_tool_prints_the_versions_of_each_kind_of_listener(
    peer: dict[str, str], shoal: dict[str, str], listener: str
) -> None:
    kafka, found = (
        read_printed_versions(addresses[listener], listener) for addresses in (peer, shoal)
    )
    others = compat_page.NOT_SERVED.keys() | compat_page.CONDITIONAL.keys()
    assert {k: found[k] for k in found if k not in others} == {
        k: kafka[k] for k in kafka if k not in others
    }
    assert len(found) > 30


def outcome(address: str, key: ApiKey, version: int, body: dict[str, Any]) -> str:
    """Return whether the request is answered or its connection closed."""
    with WireClient(address, timeout_s=20) as client:
        client.send(key, version, body)
        try:
            client.receive(key, version)
        except ConnectionResetError:
            return "closed"
        except WireError:
            return "answered"  # kio rejects times that Kafka sends
    return "answered"


def expect_outcome(listed: dict[int, tuple[int, int]], key: ApiKey, version: int) -> str:
    """Return what becomes of a request to a listener that names these versions."""
    if key is ApiKey.API_VERSIONS:  # Its answer to any version names those that there are.
        return "answered"
    lowest, highest = listed.get(key, (1, 0))
    return "answered" if lowest <= version <= highest else "closed"


def list_requests() -> Iterator[tuple[ApiKey, int]]:
    """Yield the APIs and versions that both brokers know."""
    left_out = SILENT_IN_KAFKA | compat_page.OTHER_VERSIONS.keys()
    for key in ApiKey:
        if key not in compat_page.NOT_SERVED:
            yield from (
                (key, version)
                for version in codec.find_known_versions(key)
                if (key, version) not in left_out
            )


@pytest.mark.parametrize("listener", LISTENERS)
def test_each_version_is_answered_or_refused(
    shoal: dict[str, str], lone: dict[str, str], listener: str
) -> None:
    """The connection is closed for an API that is not served there, and for a version out of
    range."""
    listed = expected(page_of(listener), listener)
    differing = {}
    for key, version in list_requests():
        for name, addresses in (("three", shoal), ("lone", lone)):
            found = outcome(addresses[listener], key, version, BODIES.get(key, {}))
            if found != expect_outcome(listed, key, version):
                differing[(key.name, version, name)] = found
    assert not differing
    for key in compat_page.NOT_SERVED:
        if not codec.find_known_versions(key):
            continue
        version = codec.find_known_versions(key)[-1]
        assert outcome(shoal[listener], key, version, {}) == "closed", key


@pytest.mark.java
@pytest.mark.nightly
@pytest.mark.parametrize("listener", LISTENERS)
def test_kafka_answers_and_refuses_the_same(own_peer: dict[str, str], listener: str) -> None:
    listed = expected(page_of(listener), listener)
    found = {
        (key, version): outcome(own_peer[listener], key, version, BODIES.get(key, {}))
        for key, version in list_requests()
    }
    assert found == {one: expect_outcome(listed, *one) for one in found}


def _row(answer: Any) -> tuple[Any, ...]:
    """Return the errors of a Fetch response: the top-level one, and that of the only partition."""
    error = ErrorCode(getattr(answer, "error_code", 0))
    if not answer.responses:
        return error, None
    (partition,) = answer.responses[0].partitions
    return error, ErrorCode(partition.error_code), partition.high_watermark, partition.records


@pytest.mark.java
@pytest.mark.parametrize("version", [4, 12, 13, 18])
@pytest.mark.parametrize("topic", [(METADATA, METADATA_ID), ("other", uuid.UUID(int=77))])
@pytest.mark.parametrize("listener", LISTENERS)
def test_fetch_of_the_metadata_log_and_of_another_topic(
    peer: dict[str, str],
    shoal: dict[str, str],
    listener: str,
    topic: tuple[str, uuid.UUID],
    version: int,
) -> None:
    """Listeners of brokers do not serve the metadata log; listeners of controllers serve only
    that."""
    rows = []
    for addresses in (peer, shoal):
        with WireClient(addresses[listener]) as client:
            rows.append(_row(client.call(ApiKey.FETCH, version, fetch(*topic))))
    assert rows[0] == rows[1]


@pytest.mark.java
def test_a_replica_finds_no_metadata_log_at_brokers_either(
    peer: dict[str, str], shoal: dict[str, str]
) -> None:
    replica = {"replica_state": {"replica_id": 1, "replica_epoch": -1}}
    rows = []
    for addresses in (peer, shoal):
        with WireClient(addresses[BROKER]) as client:
            body = fetch(METADATA, METADATA_ID) | replica
            rows.append(_row(client.call(ApiKey.FETCH, 18, body)))
    assert rows[0] == rows[1]


@pytest.mark.java
def test_a_voter_is_added_with_an_endpoint_for_controllers(
    peer: dict[str, str], shoal: dict[str, str]
) -> None:
    """An endpoint of another listener's name is refused."""
    elsewhere = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 1}
    body = {
        "voter_id": 9,
        "voter_directory_id": uuid.UUID(int=9),
        "listeners": [elsewhere],
        "timeout_ms": 1000,
    }
    codes = []
    for addresses in (peer, shoal):
        with WireClient(addresses[BROKER]) as client:
            codes.append(ErrorCode(client.call(ApiKey.ADD_RAFT_VOTER, 1, body).error_code))
    assert codes == [ErrorCode.invalid_request] * 2


@pytest.mark.java
@pytest.mark.parametrize("listener", LISTENERS)
def test_describe_cluster_by_the_kind_of_endpoint(
    peer: dict[str, str], cluster: ShoalCluster, shoal: dict[str, str], listener: str
) -> None:
    """KIP-919: brokers' listeners describe brokers, controllers' describe controllers."""
    for version in range(3):
        for kind in (1, 2):
            body = {"endpoint_type": kind} if version else {}
            codes = []
            for addresses in (peer, shoal):
                with WireClient(addresses[listener]) as client:
                    answer = client.call(ApiKey.DESCRIBE_CLUSTER, version, body)
                codes.append(ErrorCode(answer.error_code))
            assert codes[0] == codes[1], (version, kind)
            if codes[1] is ErrorCode.none:
                known = {row.broker_id: f"{row.host}:{row.port}" for row in answer.brokers}
                wanted = cluster.addresses if listener == BROKER else cluster.controllers
                assert known == wanted


def test_clients_see_no_listener_of_controllers(cluster: ShoalCluster) -> None:
    for id in cluster.addresses:
        known = {b.node_id: f"{b.host}:{b.port}" for b in cluster.metadata(id).brokers}
        assert known == cluster.addresses


def test_requests_for_the_controller_reach_it_from_any_broker(cluster: ShoalCluster) -> None:
    for id, address in cluster.addresses.items():
        with WireClient(address) as client:
            client.create_topic(f"forwarded-{id}", retention_ms="1000")
