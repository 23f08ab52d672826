"""The operator's rendering of a secured cluster, proven by three real brokers and their clients."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from kube.secured_pods import (
    NOW,
    OWN,
    OWN_CA,
    SCRAPE_TOKEN,
    LocalBrokers,
    SecuredPods,
    queue_cluster,
    tls_secret,
    token_secret,
)
from shoal.client.admin.security_admin import ScramMechanism, ScramUpsertion
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError, KafkaError, SecurityError
from shoal.client.security.secret import Secret
from shoal.monitoring.exposition import parse_samples
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.feature_levels import RELEASE_FEATURES
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster.authorities import RENEW
from shoal_operator.model import certificates, security
from shoal_operator.model.security import CLIENTS, CLUSTER
from support.brokers.servers import without_configs
from support.runs.conditions import eventually
from support.security.identity_providers import IdentityProvider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shoal_operator.model.certificates import KeyPair

LINKS, QUORUM, MTLS, SCRAM = security.REPLICATION_PORT, 9093, 9094, 9095
OWN_PORT, BEARER = 9096, 9097
TIMES = {"default.api.timeout.ms": "10000", "request.timeout.ms": "10000"}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    store = tmp_path_factory.mktemp("provider") / "store.pem"
    store.write_bytes(OWN.key + OWN.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(store)
    with IdentityProvider({}, tls=context) as found:
        yield found


@pytest.fixture(scope="module")
def pods(
    tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider
) -> Iterator[SecuredPods]:
    found = SecuredPods(
        tmp_path_factory.mktemp("secured"),
        queue_cluster(f"{provider.url}/jwks"),
        tls_secret(OWN),
        token_secret(),
    )
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.fixture(scope="module")
def admin(pods: SecuredPods) -> Iterator[SyncClient]:
    """A client with the operator's certificate, and users and a topic that it has created."""
    with connect(pods, LINKS, pods.operator()) as client:
        made = client.run(client.admin.topics.create([NewTopic("jobs", 3, 3)]))
        assert not isinstance(made["jobs"], KafkaError)
        users = [
            ScramUpsertion.from_password(
                user, ScramMechanism.SCRAM_SHA_512, Secret(f"{user}-pw"), b"salt" * 6
            )
            for user in ("ann", "root")
        ]
        assert client.run(client.admin.users.alter(users)) == {"ann": None, "root": None}
        yield client


def connect(pods: SecuredPods, port: int, properties: dict[str, str]) -> SyncClient:
    return SyncClient(pods.bootstrap(port), {**TIMES, **properties})


def with_tls(pods: SecuredPods, pair: KeyPair | None = None) -> dict[str, str]:
    """Return the properties of a client that trusts the cluster's authority."""
    trusted = pods.secret(security.format_ca_cert_secret("main", CLUSTER))["ca.crt"]
    if pair is None:
        return {"security.protocol": "SSL", "ssl.ca.pem": trusted.decode()}
    return security.build_operator_client(trusted, pair)


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


def is_permitted(client: SyncClient) -> bool:
    """Whether the brokers have heard of a permission: produce a record."""
    try:
        produce(client)
    except KafkaError as refused:
        if refused.code != ErrorCode.topic_authorization_failed:
            raise
        return False
    return True


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
        "bearer": "main-cluster-ca-cert",
    }
    known = {row["name"]: row["fingerprint"] for row in status["certificates"]}
    assert known == {
        f"{kind}-ca": certificates.compute_fingerprint(pods.authority(kind).certificate)
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
    for number in range(3):
        _, page = pods.metrics(number, token=SCRAPE_TOKEN)
        rows = parse_samples(page, ["shoal_listener_certificate_info"])
        shown = {row.labels["listener"] for row in rows}
        assert shown == {"REPLICATION", "CONTROLLER", "MTLS", "SCRAM", "OWN", "BEARER", "METRICS"}


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
        eventually(lambda: is_permitted(client))


def test_a_user_with_a_password_may_do_what_its_entries_permit(
    pods: SecuredPods, admin: SyncClient
) -> None:
    trusted = pods.secret(security.format_ca_cert_secret("main", CLUSTER))["ca.crt"]
    with connect(pods, SCRAM, with_password("ann", trusted)) as client:
        with pytest.raises(KafkaError) as refused:
            produce(client)
        assert refused.value.code == ErrorCode.topic_authorization_failed
        permit(admin, "User:ann")
        eventually(lambda: is_permitted(client))
    with (
        connect(pods, SCRAM, {**with_password("ann", trusted), "sasl.password": "x"}) as other,
        pytest.raises(SecurityError, match="invalid credentials"),
    ):
        produce(other)


def test_a_user_with_a_token_is_the_tokens_subject(
    pods: SecuredPods, provider: IdentityProvider, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    login = {
        **with_tls(pods),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    token.write_text(provider.token("cal"))
    with connect(pods, BEARER, login) as client:
        assert principal(client) == "User:cal"
    with IdentityProvider({}) as other:
        token.write_text(other.token("cal"))
        with connect(pods, BEARER, login) as client, pytest.raises(SecurityError):
            principal(client)


def test_a_delegation_token_logs_in_at_every_broker(pods: SecuredPods, admin: SyncClient) -> None:
    """Without any setting: the operator gives all brokers the same key."""
    del admin
    trusted = pods.secret(security.format_ca_cert_secret("main", CLUSTER))["ca.crt"]
    ann = with_password("ann", trusted)
    with connect(pods, SCRAM, ann) as client:
        token = client.run(client.admin.tokens.create())
    login = {k: v for k, v in ann.items() if k not in ("sasl.username", "sasl.password")}
    login["shoal.delegation.token.id"] = token.token_id
    login["shoal.delegation.token.hmac"] = token.password.reveal()
    for server in pods.bootstrap(SCRAM).split(","):
        with SyncClient(server, {**TIMES, **login}) as client:
            eventually(lambda client=client: logged_in_as(client) == "User:ann", timeout_s=30)


def logged_in_as(client: SyncClient) -> str:
    """Return the principal; empty while the broker does not have its token yet."""
    try:
        return principal(client)
    except SecurityError:
        return ""


def test_a_listener_shows_the_users_own_certificate_and_a_super_user_needs_no_entry(
    pods: SecuredPods, admin: SyncClient
) -> None:
    del admin
    address = ("127.0.0.1", pods.ports[0, OWN_PORT])
    shown = ssl.get_server_certificate(address).encode()
    assert certificates.compute_fingerprint(shown) == certificates.compute_fingerprint(
        OWN.certificate
    )
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
    said = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "topics", "list"],
        env=without_configs() | pods.environment(1),
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


def loaded(pods: SecuredPods, urls: dict[int, str]) -> Any:
    """Return the certificates that the operator reads from the brokers' metrics."""

    async def read() -> Any:
        brokers = Brokers(pods.bootstrap(LINKS), urls, pods.operator())
        try:
            return await brokers.fetch_loaded_certificates({"own"})
        finally:
            await brokers.close()

    return asyncio.run(read())


def test_brokers_report_the_certificates_that_a_renewal_waits_for(pods: SecuredPods) -> None:
    """A listener with the user's certificate does not count; unknown brokers are no brokers."""
    assert loaded(pods, {}) is None
    found = loaded(pods, pods.metrics_urls())
    shown = certificates.compute_fingerprint(pods.secret("main-broker-tls")["broker.crt"])
    for kind in security.KINDS:
        trusted = certificates.compute_fingerprint(pods.authority(kind).certificate)
        assert set(found[kind]) == {0, 1, 2}
        assert {(*one.own, *one.trusted) for one in found[kind].values()} == {(shown, trusted)}


def test_the_operator_reads_metrics_of_brokers_that_have_not_restarted_since_a_change(
    pods: SecuredPods,
) -> None:
    """They serve metrics over TLS although the spec no longer says so, or the reverse."""
    urls = pods.metrics_urls()
    plain = {number: url.replace("https:", "http:") for number, url in urls.items()}
    assert loaded(pods, plain) == loaded(pods, urls)

    page = pods.metrics(0, token=SCRAPE_TOKEN)[1].encode()

    class Plain(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}/"
        found = loaded(pods, {0: url})
        server.shutdown()
    assert found == {kind: {0: of[0]} for kind, of in loaded(pods, urls).items()}


def test_a_missing_token_for_metrics_is_a_warning(pods: SecuredPods, admin: SyncClient) -> None:
    del admin  # It has created a topic with three replicas: the brokers reach each other.

    def degraded() -> tuple[str, str]:
        asyncio.run(pods.reconcile())
        conditions = pods.kube.find("QueueCluster", "main")["status"]["conditions"]
        found = {one["type"]: one for one in conditions}
        assert found["Ready"]["status"] == "True"
        return found["Degraded"]["reason"], found["Degraded"]["message"]

    theirs = pods.kube.objects.pop(("Secret", "scrape"))
    assert degraded() == (
        "MetricsTokenMissing",
        "The brokers show their metrics to no reader: Secret 'scrape' does not exist. Create it "
        "with the token in the key token, or remove spec.metrics.token.",
    )
    pods.kube.add({**theirs, "data": {"other": "eA=="}})
    assert "has no token" in degraded()[1]
    pods.kube.add(theirs)
    assert degraded()[0] != "MetricsTokenMissing"


def test_readers_of_metrics_need_tls_and_the_token(pods: SecuredPods) -> None:
    assert pods.metrics(0, scheme="http")[0] == 403
    assert pods.metrics(0)[0] == 401
    assert pods.metrics(0, token="another")[0] == 401
    status, page = pods.metrics(0, token=SCRAPE_TOKEN)
    assert (status, "shoal_" in page) == (200, True)
    with pytest.raises(OSError, match="alert unknown ca"):
        pods.metrics(0, token=SCRAPE_TOKEN, pair=issued(pods, CLIENTS, "ann"))
    assert pods.metrics(0, scheme="http", path="readyz") == (200, "ready\n")


def test_features_are_finalized_when_asked(pods: SecuredPods, admin: SyncClient) -> None:
    """`spec.metadataVersion` raises what an earlier release left."""
    lower = {"feature": "share.version", "max_version_level": 1, "upgrade_type": 2}
    body = {"timeout_ms": 10_000, "feature_updates": [lower]}
    cluster = admin.client.cluster
    answer = admin.run(cluster.ask(ApiKey.UPDATE_FEATURES, body))
    assert answer.error_code is ErrorCode.none, answer

    def status() -> dict[str, Any]:
        asyncio.run(pods.reconcile())
        return pods.kube.find("QueueCluster", "main")["status"]

    eventually(lambda: status()["metadataVersion"] == "", what="all brokers have the lower level")
    spec = pods.kube.find("QueueCluster", "main")["spec"]
    spec["metadataVersion"] = "0.1"
    try:
        assert status()["metadataVersion"] == [*RELEASE_FEATURES][-1]
        # The broker that answers may hear of it later than the one that the operator asked.
        eventually(lambda: admin.run(admin.client.admin.features())["share.version"] == 2)
        status()
        events = [e for e in pods.kube.all("Event") if e["reason"] == "FeaturesFinalized"]
        assert [e["message"] for e in events] == [
            "Features of 0.1: share.version 2. Earlier releases can no longer run."
        ]
    finally:
        del spec["metadataVersion"]


def test_a_renewal_rests_while_the_cluster_is_paused(pods: SecuredPods, admin: SyncClient) -> None:
    """In each of its phases: nothing changes, however long the pause lasts, and new clients are
    served. Afterwards it continues to its end."""
    permit(admin, "User:CN=pat")
    cluster = pods.kube.find("QueueCluster", "main")
    cluster["metadata"].setdefault("annotations", {})[RENEW] = "once"
    before = {kind: pods.authority(kind) for kind in security.KINDS}

    def look() -> tuple[str, ...]:
        """Reconcile, and mount what the operator has written. Return the phases."""
        asyncio.run(pods.reconcile(passes=2))
        pods.mount()
        found = pods.kube.find("QueueCluster", "main")["status"]["certificates"]
        return tuple(one["phase"] for one in found)

    def secrets() -> dict[str, Any]:
        every = pods.kube.all("Secret")
        return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in every}

    def is_served() -> bool:
        """Whether a new client with a certificate of the authority that signs now can produce."""
        try:
            with connect(pods, MTLS, with_tls(pods, issued(pods, CLIENTS, "pat"))) as client:
                produce(client)
        except SecurityError:
            return False
        return True

    phases = [look()]
    while phases[-1] != ("", ""):
        cluster = pods.kube.find("QueueCluster", "main")
        cluster["spec"]["paused"] = True
        known = secrets()
        # The brokers load the files within this time, and the overlap ends.
        over = time.monotonic() + 1.5
        eventually(lambda over=over: time.monotonic() > over and is_served(), timeout_s=60)
        look()
        assert secrets() == known
        del pods.kube.find("QueueCluster", "main")["spec"]["paused"]

        def next_phase() -> tuple[str, ...] | None:
            found = look()
            assert is_served()
            return found if found != phases[-1] else None

        phases.append(eventually(next_phase, timeout_s=60, what="the next phase"))
    both = ["TrustNext", "DropPrevious", ""]
    for index, kind in enumerate(security.KINDS):
        assert list(dict.fromkeys(phase[index] for phase in phases)) == both
        assert pods.authority(kind) != before[kind]
    asyncio.run(pods.reconcile())
    (ready,) = (
        c
        for c in pods.kube.find("QueueCluster", "main")["status"]["conditions"]
        if c["type"] == "Ready"
    )
    assert ready["status"] == "True"
