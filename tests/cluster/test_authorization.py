"""Authorization in a cluster: forwarded requests, requests of nodes, and changes of entries."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.quorum import wire
from shoal.security import principals
from shoal.security.acls import Operation, PatternType, Permission, ResourceType
from shoal.security.principals import ForwardedPrincipal
from support.brokers.clusters import CALM, CLUSTER_ID, ShoalCluster
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security.permissions import ADMIN, CONFIGS, entry, everything, grant, withdraw

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
BROKERS = (1, 2, 3)
CHANGES = 4
#: A client with entries that are created while controllers are killed, and entries of a request.
GUEST, ENTRIES = "127.0.3.77", 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    found = ShoalCluster(tmp_path_factory.mktemp("cluster"), configs=CALM | CONFIGS).start()
    with WireClient(found.addresses[1]) as admin:
        grant(admin, everything(ADMIN))
    yield found
    found.stop()


@pytest.fixture
def admin(cluster: ShoalCluster) -> Iterator[WireClient]:
    with WireClient(cluster.addresses[1]) as client:
        yield client


def create(client: WireClient, name: str) -> ErrorCode:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 3}
    body = {"topics": [topic], "timeout_ms": 30_000}
    (row,) = client.call(ApiKey.CREATE_TOPICS, 7, body).topics
    return ErrorCode(row.error_code)


def test_forwarded_requests_have_the_rights_of_their_clients(
    cluster: ShoalCluster, admin: WireClient
) -> None:
    grant(
        admin,
        [entry("127.0.3.1", Operation.CREATE, TOPIC, "mine-", PatternType.PREFIXED)],
    )
    for id in BROKERS:
        with WireClient(cluster.addresses[id], source="127.0.3.1") as guest:
            assert create(guest, f"mine-{id}") == ErrorCode.none
            assert create(guest, f"other-{id}") == ErrorCode.topic_authorization_failed
            answer = guest.call(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 99})
            assert answer.error_code == ErrorCode.cluster_authorization_failed
        with WireClient(cluster.addresses[id], source="127.0.3.2") as stranger:
            assert create(stranger, f"mine-too-{id}") == ErrorCode.topic_authorization_failed


def _is_found(client: WireClient, body: dict[str, Any]) -> bool:
    (found,) = client.call(ApiKey.FIND_COORDINATOR, 4, body).coordinators
    assert found.error_code in (ErrorCode.none, ErrorCode.coordinator_not_available)
    return bool(found.error_code == ErrorCode.none)


def test_nodes_act_for_themselves(cluster: ShoalCluster) -> None:
    """They register, keep their sessions, allocate producer ids and create internal topics."""
    for id in BROKERS:
        with WireClient(cluster.addresses[id]) as client:
            body: dict[str, Any] = {"transactional_id": None, "transaction_timeout_ms": 1}
            assert client.call(ApiKey.INIT_PRODUCER_ID, 4, body).error_code == ErrorCode.none
            for key_type in (0, 1):
                body = {"key_type": key_type, "coordinator_keys": [f"of-{id}"]}
                # A broker may hear of the topic that it has created after its answer.
                eventually(lambda body=body, client=client: _is_found(client, body))
    cluster.nodes[3].kill9()
    cluster.nodes[3].start()
    eventually(
        lambda: {b.node_id for b in cluster.metadata(3).brokers} == set(BROKERS),
        what="the broker is back",
    )


def test_a_change_takes_effect_on_every_broker(cluster: ShoalCluster, admin: WireClient) -> None:
    create(admin, "changes")
    acl = entry("127.0.3.3", Operation.DESCRIBE, TOPIC, "changes")
    body = {"topics": [{"name": "changes"}], "allow_auto_topic_creation": False}
    guests = [WireClient(cluster.addresses[id], source="127.0.3.3") for id in BROKERS]

    def sees(guest: WireClient) -> bool:
        return guest.call(ApiKey.METADATA, 12, body).topics[0].error_code == ErrorCode.none

    for change in range(CHANGES):
        (withdraw if change % 2 else grant)(admin, [acl])
        wanted = {change % 2 == 0}
        eventually(lambda w=wanted: set(map(sees, guests)) == w, what="the change")
    for guest in guests:
        guest.close()


def test_a_broker_that_is_cut_off_learns_of_a_withdrawal(
    cluster: ShoalCluster, admin: WireClient
) -> None:
    """The client stays connected to it. Once the broker is back, it refuses, and it stays so."""
    create(admin, "withdrawn")
    acl = entry("127.0.3.4", Operation.DESCRIBE, TOPIC, "withdrawn")
    grant(admin, [acl])
    body = {"topics": [{"name": "withdrawn"}], "allow_auto_topic_creation": False}
    victim = next(id for id in (2, 3) if id != cluster.controller())
    with WireClient(cluster.addresses[victim], source="127.0.3.4") as guest:

        def answer() -> ErrorCode:
            (row,) = guest.call(ApiKey.METADATA, 12, body).topics
            return ErrorCode(row.error_code)

        eventually(lambda: answer() is ErrorCode.none, what="the permission")
        cluster.freeze(victim)
        try:
            withdraw(admin, [acl])
        finally:
            cluster.thaw(victim)
        refused = ErrorCode.topic_authorization_failed
        eventually(lambda: answer() is refused, what="the refusal")
        assert {answer() for _ in range(20)} == {refused}


# Listeners of controllers

#: Requests that would do nothing, since they concern another cluster or an unknown broker.
OF_NODES: list[tuple[ApiKey, int, dict[str, Any]]] = [
    (ApiKey.VOTE, 2, {"cluster_id": "another"}),
    (ApiKey.BEGIN_QUORUM_EPOCH, 1, {"cluster_id": "another"}),
    (ApiKey.END_QUORUM_EPOCH, 1, {"cluster_id": "another"}),
    (ApiKey.FETCH_SNAPSHOT, 1, {"cluster_id": "another"}),
    (ApiKey.UPDATE_RAFT_VOTER, 0, {"cluster_id": "another"}),
    (ApiKey.ALTER_PARTITION, 3, {"broker_id": 99, "broker_epoch": 1}),
    (ApiKey.BROKER_REGISTRATION, 4, {"cluster_id": "another", "broker_id": 99}),
    (ApiKey.BROKER_HEARTBEAT, 1, {"broker_id": 99, "broker_epoch": 1}),
    (ApiKey.ALLOCATE_PRODUCER_IDS, 0, {"broker_id": 99, "broker_epoch": 1}),
]


def metadata_fetch(leader_epoch: int) -> dict[str, Any]:
    """Return a Fetch of the metadata log from its start, by a node that is no voter."""
    partition = {
        "partition": 0,
        "current_leader_epoch": leader_epoch,
        "fetch_offset": 0,
        "last_fetched_epoch": 0,
        "partition_max_bytes": 1 << 20,
    }
    return {
        "cluster_id": CLUSTER_ID,
        "replica_state": {"replica_id": 99, "replica_epoch": -1},
        "max_wait_ms": 0,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic_id": wire.TOPIC_ID, "partitions": [partition]}],
    }


def controller(cluster: ShoalCluster) -> tuple[str, int]:
    """Return the address of the active controller, and the epoch that it leads."""
    with WireClient(cluster.addresses[1]) as client:
        topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
        answer = client.call(ApiKey.DESCRIBE_QUORUM, 2, {"topics": [topic]})
    found = answer.topics[0].partitions[0]
    return cluster.controllers[found.leader_id], found.leader_epoch


def test_requests_of_nodes_need_cluster_action(cluster: ShoalCluster, admin: WireClient) -> None:
    grant(admin, [entry("127.0.3.5", Operation.CLUSTER_ACTION, CLUSTER)])
    (address, epoch), refused = controller(cluster), ErrorCode.cluster_authorization_failed
    fetch = metadata_fetch(epoch)
    with (
        WireClient(address, source="127.0.3.4") as stranger,
        WireClient(address, source="127.0.3.5") as node,
    ):
        for api, version, body in [*OF_NODES, (ApiKey.FETCH, 18, fetch)]:
            assert stranger.call(api, version, body).error_code == refused, api.name
            assert node.call(api, version, body).error_code != refused, api.name
        answer = node.call(ApiKey.FETCH, 18, fetch)
        assert answer.responses[0].partitions[0].records
        # As in Kafka, this needs ALTER at a controller.
        body = {"endpoint_type": 2}
        for client in (stranger, node):
            assert client.call(ApiKey.DESCRIBE_CLUSTER, 1, body).error_code == refused


def envelope(name: str, principal: bytes | None, host: bytes) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    body = {"topics": [topic], "timeout_ms": 30_000, "validate_only": True}
    frame = frames.build_request_head(ApiKey.CREATE_TOPICS, 7, 1, "node")
    return {
        "request_data": bytes(frame + codec.write_request(ApiKey.CREATE_TOPICS, 7, body)),
        "request_principal": principal,
        "client_host_address": host,
    }


def test_an_envelope_carries_the_principal_of_its_client(
    cluster: ShoalCluster, admin: WireClient
) -> None:
    grant(admin, [entry("127.0.3.6", Operation.CLUSTER_ACTION, CLUSTER)])
    alice = entry("10.1.2.3", Operation.CREATE, TOPIC, "of-alice")._replace(principal="User:alice")
    grant(admin, [alice])
    bytes_of = {
        name: principals.encode(ForwardedPrincipal(f"User:{name}")) for name in ("alice", "bob")
    }
    address, _ = controller(cluster)

    def code_of(client: WireClient, name: str, principal: str, host: bytes) -> ErrorCode:
        body = envelope(name, bytes_of[principal], host)
        answer = client.call(ApiKey.ENVELOPE, 0, body)
        assert answer.error_code == ErrorCode.none, answer
        head = len(frames.build_response_head(ApiKey.CREATE_TOPICS, 7, 1))
        data = bytes(answer.response_data)[head:]
        (row,) = codec.read_response(ApiKey.CREATE_TOPICS, 7, data).topics
        return ErrorCode(row.error_code)

    refused = ErrorCode.topic_authorization_failed
    with WireClient(address, source="127.0.3.6") as node:
        assert code_of(node, "of-alice", "alice", b"\x0a\x01\x02\x03") == ErrorCode.none
        mapped = bytes(10) + b"\xff\xff\x0a\x01\x02\x03"
        assert code_of(node, "of-alice", "alice", mapped) == ErrorCode.none
        assert code_of(node, "of-alice", "alice", b"\x0a\x01\x02\x04") == refused
        assert code_of(node, "of-alice", "bob", b"\x0a\x01\x02\x03") == refused
        assert code_of(node, "of-bob", "alice", b"\x0a\x01\x02\x03") == refused
        for principal in (None, b"", b"\x00\x01x", bytes_of["alice"][:-3]):
            answer = node.call(ApiKey.ENVELOPE, 0, envelope("t", principal, b"\x0a\x01\x02\x03"))
            assert answer.error_code == ErrorCode.principal_deserialization_failure
    with WireClient(address, source="127.0.3.7") as stranger:
        body = envelope("of-alice", bytes_of["alice"], b"\x0a\x01\x02\x03")
        answer = stranger.call(ApiKey.ENVELOPE, 0, body)
        assert answer.error_code == ErrorCode.cluster_authorization_failed
        assert not answer.response_data


class Granter:
    """Creates entries by requests to one broker until the context ends."""

    def __init__(self, address: str, prefix: str) -> None:
        self._address, self._prefix = address, prefix
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        #: The topics of each request, and those of each request that was acknowledged.
        self.asked: list[list[str]] = []
        self.acknowledged: list[list[str]] = []

    def __enter__(self) -> Granter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                with WireClient(self._address) as admin:
                    self._grant(admin)
            except (OSError, EOFError, IndexError, AssertionError):
                self._ends.wait(0.05)

    def _grant(self, admin: WireClient) -> None:
        while not self._ends.is_set():
            topics = [f"{self._prefix}-{len(self.asked)}-{n}" for n in range(ENTRIES)]
            self.asked.append(topics)
            grant(admin, [entry(GUEST, Operation.READ, TOPIC, topic) for topic in topics])
            self.acknowledged.append(topics)


def granted(cluster: ShoalCluster, id: int) -> set[str]:
    """Return the topics that a broker has entries of the guest for."""
    body = {
        "resource_type_filter": TOPIC,
        "pattern_type_filter": PatternType.LITERAL,
        "host_filter": GUEST,
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    }
    found = cluster.ask(id, ApiKey.DESCRIBE_ACLS, body)
    return {resource.resource_name for resource in found.resources}


def described(cluster: ShoalCluster, id: int, topics: Iterable[str]) -> set[ErrorCode]:
    """Return what the guest gets for topics that do not exist."""
    names = [{"name": topic} for topic in topics]
    body = {"topics": names, "allow_auto_topic_creation": False}
    with WireClient(cluster.addresses[id], source=GUEST) as guest:
        return {row.error_code for row in guest.call(ApiKey.METADATA, 8, body).topics}


def uncommitted(cluster: ShoalCluster, controller: int) -> int:
    """Return how many records only the controller has."""
    quorum = cluster.describe_quorum(controller)
    (own,) = [voter for voter in quorum.current_voters if voter.replica_id == controller]
    return own.log_end_offset - quorum.high_watermark


@pytest.mark.nightly
def test_the_controller_is_killed_while_entries_are_created(cluster: ShoalCluster) -> None:
    """Each acknowledged entry is in force on all brokers, and each request as a whole or not."""
    controller = cluster.controller()
    others = [id for id in BROKERS if id != controller]
    asked = [*BROKERS, controller, controller]
    with contextlib.ExitStack() as stack:
        granters = [
            stack.enter_context(Granter(cluster.addresses[id], f"t{number}"))
            for number, id in enumerate(asked)
        ]

        def go_on(ids: Iterable[int]) -> None:
            chosen = [one for one, id in zip(granters, asked, strict=True) if id in ids]
            before = [len(one.acknowledged) for one in chosen]
            eventually(
                lambda: all(
                    len(one.acknowledged) > count + 20
                    for one, count in zip(chosen, before, strict=True)
                ),
                timeout_s=60,
                what="more entries are acknowledged",
            )

        go_on(BROKERS)
        for id in others:
            cluster.freeze(id)
        # The requests of three clients have reached nobody but the controller when it is killed.
        eventually(lambda: uncommitted(cluster, controller) >= 3 * ENTRIES)
        cluster.nodes[controller].kill9()
        for id in others:
            cluster.thaw(id)
        go_on(others)
        cluster.nodes[controller].start()
    requests = [topics for granter in granters for topics in granter.asked]
    sure = {t for granter in granters for topics in granter.acknowledged for t in topics}
    eventually(
        lambda: granted(cluster, 1) == granted(cluster, 2) == granted(cluster, 3),
        timeout_s=60,
        what="all brokers have the same entries",
    )
    found = granted(cluster, 1)
    assert found >= sure
    assert {len(found.intersection(topics)) for topics in requests} <= {0, ENTRIES}
    assert found <= {topic for topics in requests for topic in topics}
    for id in BROKERS:
        assert described(cluster, id, sure) == {ErrorCode.unknown_topic_or_partition}
        assert described(cluster, id, ["t"]) == {ErrorCode.topic_authorization_failed}
