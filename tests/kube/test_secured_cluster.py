"""The operator's rendering of a secured cluster, proven by three real brokers and their clients."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from kube.secured_pods import NOW, OWN, OWN_CA, LocalBrokers, SecuredPods
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError, KafkaError, SecurityError
from shoal.client.secret import Secret
from shoal.client.security_admin import ScramMechanism, ScramUpsertion
from shoal.client.topics import NewTopic
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal_operator import certificates
from shoal_operator.brokers import Brokers
from shoal_operator.model import security
from shoal_operator.model.security import CLIENTS, CLUSTER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal_operator.certificates import KeyPair

LINKS, QUORUM, MTLS, SCRAM, OWN_PORT = security.REPLICATION_PORT, 9093, 9094, 9095, 9096
TIMES = {"default.api.timeout.ms": "10000", "request.timeout.ms": "10000"}


OPERATOR = security.operator_tls("main")


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredPods]:
    found = SecuredPods(tmp_path_factory.mktemp("secured"))
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.fixture(scope="module")
def admin(pods: SecuredPods) -> Iterator[SyncClient]:
    """A client with the operator's certificate, and users and a topic that it has created."""
    own = security.client_of_secret(pods.kube.find("Secret", OPERATOR))
    with connect(pods, LINKS, own) as client:
        made = client.run(client.admin.topics.create([NewTopic("jobs", 3, 3)]))
        assert not isinstance(made["jobs"], KafkaError)
        users = [
            ScramUpsertion.of(user, ScramMechanism.SCRAM_SHA_512, Secret(f"{user}-pw"), b"salt" * 6)
            for user in ("ann", "root")
        ]
        assert client.run(client.admin.users.alter(users)) == {"ann": None, "root": None}
        yield client


def connect(pods: SecuredPods, port: int, properties: dict[str, str]) -> SyncClient:
    return SyncClient(pods.bootstrap(port), {**TIMES, **properties})


def with_tls(pods: SecuredPods, pair: KeyPair | None = None) -> dict[str, str]:
    """Return the properties of a client that trusts the cluster's authority."""
    trusted = pods.secret(security.ca_cert("main", CLUSTER))["ca.crt"]
    if pair is None:
        return {"security.protocol": "SSL", "ssl.ca.pem": trusted.decode()}
    return security.operator_client(trusted, pair)


def with_password(user: str, ca: bytes) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": f"{user}-pw",
        "ssl.ca.pem": ca.decode(),
    }


def issued(pods: SecuredPods, kind: str, name: str) -> KeyPair:
    return certificates.issue(pods.authority(kind), name, now=NOW, validity_days=1)


def produce(client: SyncClient) -> None:
    """Store a record, and wait until all replicas have it."""

    async def send() -> None:
        async with client.client.producer() as producer:
            await (await producer.send("jobs", b"x"))

    client.run(send())


def principal(client: SyncClient) -> str:
    found = client.run(client.admin.tokens.identity())
    assert found is not None
    return found.principal


def permit(admin: SyncClient, user: str) -> None:
    wanted = [
        Acl(ResourceType.TOPIC, "jobs", PatternType.LITERAL, user, "*", one, Permission.ALLOW)
        for one in (Operation.WRITE, Operation.DESCRIBE)
    ]
    assert set(admin.run(admin.admin.acls.create(wanted)).values()) == {None}


def test_the_operator_connects_by_its_certificate_and_reports_the_cluster_ready(
    pods: SecuredPods, admin: SyncClient
) -> None:
    del admin  # It has created a topic with three replicas: the brokers reach each other.
    asyncio.run(pods.reconcile())
    status = pods.kube.find("QueueCluster", "main")["status"]
    (ready,) = (c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Reconciled"), ready
    assert status["quorumVoters"] == [0, 1, 2]
    assert status["bootstrapServers"] == "main-bootstrap.n.svc:9094"
    rows = {row["name"]: row.get("caCertificateSecret") for row in status["listeners"]}
    assert rows == {
        "mtls": "main-cluster-ca-cert",
        "scram": "main-cluster-ca-cert",
        "own": None,
    }
    known = {row["name"]: row["fingerprint"] for row in status["certificates"]}
    assert known == {
        f"{kind}-ca": certificates.fingerprint(pods.authority(kind).certificate)
        for kind in security.KINDS
    }


def test_brokers_replicate_and_elect_over_their_own_listeners(
    pods: SecuredPods, admin: SyncClient
) -> None:
    produce(admin)
    (found,) = admin.run(admin.admin.topics.describe(["jobs"])).values()
    assert not isinstance(found, KafkaError)
    assert all(sorted(p.isr) == [0, 1, 2] for p in found.partitions)
    quorum = admin.run(admin.admin.describe_quorum())
    assert sorted(v.node_id for v in quorum.voters) == [0, 1, 2]
    for broker in pods.brokers:
        shown = {s.labels["listener"] for s in broker.samples("shoal_listener_certificate_info")}
        assert shown == {"REPLICATION", "CONTROLLER", "MTLS", "SCRAM", "OWN"}


def test_a_user_with_a_certificate_may_do_what_its_entries_permit(
    pods: SecuredPods, admin: SyncClient
) -> None:
    pair = issued(pods, CLIENTS, "eve")
    with connect(pods, MTLS, with_tls(pods, pair)) as client:
        assert principal(client) == "User:CN=eve"
        with pytest.raises(KafkaError) as refused:
            produce(client)
        assert refused.value.code == ErrorCode.topic_authorization_failed
        permit(admin, "User:CN=eve")
        produce(client)


def test_a_user_with_a_password_may_do_what_its_entries_permit(
    pods: SecuredPods, admin: SyncClient
) -> None:
    trusted = pods.secret(security.ca_cert("main", CLUSTER))["ca.crt"]
    with connect(pods, SCRAM, with_password("ann", trusted)) as client:
        with pytest.raises(KafkaError) as refused:
            produce(client)
        assert refused.value.code == ErrorCode.topic_authorization_failed
        permit(admin, "User:ann")
        produce(client)
    with (
        connect(pods, SCRAM, {**with_password("ann", trusted), "sasl.password": "x"}) as other,
        pytest.raises(SecurityError, match="invalid credentials"),
    ):
        produce(other)


def test_a_listener_shows_the_users_own_certificate_and_a_super_user_needs_no_entry(
    pods: SecuredPods, admin: SyncClient
) -> None:
    del admin
    address = ("127.0.0.1", pods.ports[0, OWN_PORT])
    shown = ssl.get_server_certificate(address).encode()
    assert certificates.fingerprint(shown) == certificates.fingerprint(OWN.certificate)
    with connect(pods, OWN_PORT, with_password("root", OWN_CA.certificate)) as client:
        produce(client)


@pytest.mark.parametrize(
    ("port", "kind"),
    [
        (LINKS, None),
        (LINKS, CLIENTS),
        (QUORUM, None),
        (QUORUM, CLIENTS),
        (MTLS, None),
        (MTLS, CLUSTER),
    ],
)
def test_a_client_without_a_certificate_of_the_listeners_authority_is_refused(
    pods: SecuredPods, port: int, kind: str | None
) -> None:
    pair = issued(pods, kind, "shoal-operator") if kind else None
    with (
        connect(pods, port, with_tls(pods, pair)) as client,
        pytest.raises(ClientError, match="certificate"),
    ):
        client.run(client.admin.describe_cluster())


def test_commands_in_a_brokers_container_connect_to_that_broker(
    pods: SecuredPods, admin: SyncClient
) -> None:
    del admin
    variables = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
    said = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "topics", "list"],
        env={**variables, **pods.environment(1)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "jobs" in said.stdout


def test_the_operator_uses_a_new_certificate_for_new_connections(
    pods: SecuredPods, admin: SyncClient
) -> None:
    del admin

    async def reach() -> list[bool]:
        found = []
        brokers = LocalBrokers(pods.bootstrap(LINKS))
        for pair in (issued(pods, CLIENTS, "x"), issued(pods, CLUSTER, "x")):
            brokers.set_client(with_tls(pods, pair))
            found.append(await brokers.is_reachable())
        await brokers.close()
        return found

    assert asyncio.run(reach()) == [False, True]


def test_brokers_report_the_certificates_that_a_renewal_waits_for(pods: SecuredPods) -> None:
    """A listener with the user's certificate does not count; unknown brokers are no brokers."""

    async def loaded() -> list[Any]:
        urls = {number: f"{one.metrics_url}/" for number, one in enumerate(pods.brokers)}
        found = []
        for known in ({}, urls):
            brokers = Brokers(pods.bootstrap(LINKS), known)
            found.append(await brokers.loaded_certificates({"own"}))
            await brokers.close()
        return found

    unknown, found = asyncio.run(loaded())
    assert unknown is None
    shown = certificates.fingerprint(pods.secret("main-broker-tls")["broker.crt"])
    for kind in security.KINDS:
        trusted = certificates.fingerprint(pods.authority(kind).certificate)
        assert set(found[kind]) == {0, 1, 2}
        assert {(*one.own, *one.trusted) for one in found[kind].values()} == {(shown, trusted)}
