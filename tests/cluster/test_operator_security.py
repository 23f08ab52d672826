"""Three real brokers with the configs and certificates that the operator makes for a secured
QueueCluster: who gets in, and the renewal of an authority while records are written.

Only addresses and folders differ from those in Kubernetes.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import datetime
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from kube.api_server import resource
from kube.secured_pods import SecuredPods
from shoal.client.admin import quotas as quota_calls
from shoal.client.admin.configs import ConfigChange, ConfigResource
from shoal.client.admin.configs import ConfigResourceType as ConfigType
from shoal.client.admin.security_admin import SALT_SIZE, ScramMechanism, ScramUpsertion
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.security.secret import Secret
from shoal.client.share.member import AcknowledgeType, AcquiredRecords
from shoal.dead_letters.records import ERRORS
from shoal.dead_letters.redrive import RedrivePlan
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal_operator.cluster.authorities import RENEW
from shoal_operator.kube.reconcile_loop import ReconcileLoop
from shoal_operator.model import certificates, listeners, security
from shoal_operator.model import users as users_model
from shoal_operator.queues.queue_schedules import QueueScheduleReconciler
from shoal_operator.queues.redrives import RedriveReconciler
from shoal_operator.users.reconciler import QueueUserReconciler
from support.brokers.clusters import CALM
from support.console.console_letters import send_back
from support.kafka import kafka_tools
from support.runs.conditions import eventually, eventually_async

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from shoal.client.client import Client

IDS = (0, 1, 2)
BROKER_CONFIG = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": CALM["broker.session.timeout.ms"],
    "shoal.ssl.reload.interval.ms": "200",
}
PASSWORD = "a-password"
#: Errors of librdkafka after which it would only try the same again.
REFUSALS = {"_AUTHENTICATION", "_SSL"}


def queue_cluster() -> dict[str, Any]:
    """A QueueCluster as the API server returns it."""
    spec = {
        "replicas": 3,
        "storage": {"size": "1Gi"},
        "config": {**BROKER_CONFIG, "offsets.topic.num.partitions": "1"},
        "listeners": [
            {"name": "mtls", "port": 9092, "tls": {}, "authentication": {"type": "tls"}},
            {"name": "scram", "port": 9095, "tls": {}, "authentication": {"type": "scram-sha-512"}},
        ],
        "metrics": {"port": 9404},
        "superUsers": ["User:CN=root"],
        "clusterCa": {"overlap": "1s"},
        "clientsCa": {"overlap": "1s"},
    }
    made = resource("QueueCluster", "main", **spec)
    made["metadata"]["uid"] = "u"
    return made


class Secured(SecuredPods):
    """The brokers, and clients with certificates."""

    def user(self, name: str, authority: str = security.CLIENTS) -> dict[str, str]:
        """Properties of a client with a certificate."""
        now = datetime.datetime.now(datetime.UTC)
        return security.build_operator_client(
            self.secret("main-cluster-ca-cert")["ca.crt"],
            certificates.issue(self.authority(authority), name, now=now, validity_days=1),
        )

    def renewal(self) -> tuple[str, str]:
        """Return phase and fingerprint of the brokers' authority."""
        (found,) = (
            one for one in self.resource["status"]["certificates"] if one["name"] == "cluster-ca"
        )
        return found["phase"], found["fingerprint"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("secured"), queue_cluster())
    try:
        found.start()
        with SyncClient(found.bootstrap(9091), found.operator()) as admin:
            made = admin.run(
                admin.admin.topics.create([NewTopic("jobs", 3, 3), NewTopic("others", 1, 3)])
            )
            assert not [e for e in made.values() if isinstance(e, KafkaError)]
            scram = ScramUpsertion.from_password(
                "bob", ScramMechanism.SCRAM_SHA_512, Secret(PASSWORD), bytes(SALT_SIZE), 4096
            )
            assert admin.run(admin.admin.users.alter([scram])) == {"bob": None}
            allow = [
                Acl(ResourceType.TOPIC, "jobs", PatternType.LITERAL, who, "*", op, Permission.ALLOW)
                for who in ("User:CN=ann", "User:bob")
                for op in (Operation.WRITE, Operation.DESCRIBE)
            ]
            assert set(admin.run(admin.admin.acls.create(allow)).values()) == {None}
        yield found
    finally:
        found.stop()


def produced(
    servers: str, properties: Mapping[str, str], topic: str, timeout_ms: int = 10_000
) -> str:
    """Produce a record by librdkafka. Return the name of the error, or an empty text."""
    errors: list[str] = []
    given = {"bootstrap.servers": servers, "message.timeout.ms": str(timeout_ms), **properties}
    producer = Producer({**given, "error_cb": lambda error: errors.append(error.name())})
    producer.produce(
        topic, b"v", on_delivery=lambda error, _: errors.append(error.name() if error else "")
    )
    while len(producer) and not REFUSALS.intersection(errors):
        producer.poll(0.1)
    producer.purge()
    return "" if "" in errors else errors[0]


def test_the_operator_reads_the_state_of_the_brokers(cluster: Secured) -> None:
    async def work() -> Any:
        brokers = cluster.connection()
        try:
            return await brokers.describe_cluster(IDS, advertised=False)
        finally:
            await brokers.close()

    state = asyncio.run(work())
    assert state.registered == set(IDS)
    assert state.quorum.voters == set(IDS)


def test_clients_may_do_what_was_granted(cluster: Secured) -> None:
    ann = cluster.user("ann")
    assert produced(cluster.bootstrap(9092), ann, "jobs") == ""
    assert produced(cluster.bootstrap(9092), ann, "others") == "TOPIC_AUTHORIZATION_FAILED"
    assert produced(cluster.bootstrap(9092), cluster.user("root"), "others") == ""
    bob = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.pem": ann["ssl.ca.pem"],
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "bob",
        "sasl.password": PASSWORD,
    }
    assert produced(cluster.bootstrap(9095), bob, "jobs") == ""
    assert produced(cluster.bootstrap(9095), bob, "others") == "TOPIC_AUTHORIZATION_FAILED"
    wrong = bob | {"sasl.password": "wrong"}
    assert produced(cluster.bootstrap(9095), wrong, "jobs") == "_AUTHENTICATION"


#: What a client that does not belong there learns.
STRANGERS = {
    "nobody": "CERTIFICATE_REQUIRED",
    "plain bytes": "closed the connection before it answered",
    "the other authority": "UNKNOWN_CA",
}


def refusal(cluster: Secured, port: int, who: str) -> str:
    """Return the error of a client that does not belong there, or an empty text."""
    properties = cluster.user("main-broker", security.CLIENTS if port != 9092 else security.CLUSTER)
    if who == "nobody":
        for name in ("ssl.certificate.pem", "ssl.key.pem"):
            del properties[name]
    elif who == "plain bytes":
        properties = {}
    properties |= {"default.api.timeout.ms": "3000", "request.timeout.ms": "3000"}
    try:
        with SyncClient(cluster.bootstrap(port).partition(",")[0], properties) as client:
            client.run(client.admin.describe_cluster())
    except ClientError as error:
        return str(error)
    return ""


def test_strangers_get_no_connection(cluster: Secured) -> None:
    """Also not with a certificate of the authority for clients where brokers are expected, and the
    reverse. All try at once, since each tries again for a while."""
    tries = [(port, who) for port in (9091, 9092, 9093) for who in STRANGERS]
    with ThreadPoolExecutor(len(tries)) as pool:
        said = list(pool.map(lambda one: refusal(cluster, *one), tries))
    expected = [STRANGERS[who] for _, who in tries]
    rows = zip(tries, said, expected, strict=True)
    assert [row for row in rows if row[2] not in row[1]] == []


class QueueUsers:
    """The operator's reconciler of QueueUsers."""

    def __init__(self, cluster: Secured) -> None:
        self.cluster, self.api = cluster, cluster.kube

    def add(self, name: str, kind: str, **spec: Any) -> None:
        given = {"cluster": "main", "authentication": {"type": kind}, **spec}
        manifest = resource("QueueUser", name, **given)
        self.api.add(manifest)

    def reconcile(self) -> dict[str, tuple[str, str]]:
        """Reconcile all of them, again where no broker answered in time, as the operator does.
        Return reason and message of Ready by name."""
        said: dict[str, tuple[str, str]] = {}

        def has_answers() -> bool:
            said.update(self._reconcile_once())
            assert "BrokersUnreachable" not in {reason for reason, _ in said.values()}, said
            return True

        eventually(has_answers, timeout_s=30)
        return said

    def _reconcile_once(self) -> dict[str, tuple[str, str]]:
        async def work() -> None:
            brokers = self.cluster.connection()
            users = QueueUserReconciler(self.api, self.api.store(), brokers, "n", "main")
            try:
                await users.reconcile(users.list_names())
            finally:
                await brokers.close()

        asyncio.run(work())
        return {
            user["metadata"]["name"]: (ready["reason"], ready["message"])
            for user in self.api.all("QueueUser")
            for ready in user["status"]["conditions"]
            if ready["type"] == "Ready"
        }

    def mounted(self, name: str, folder: Path) -> Path:
        """Write a user's Secret into a folder, as if it was mounted. Return the folder."""
        folder.mkdir(exist_ok=True)
        ports = {"9092": "main-bootstrap.n.svc:9092", "9095": "main-bootstrap.n.svc:9095"}
        for key, value in self.cluster.secret(name).items():
            for port, service in ports.items():
                servers = self.cluster.bootstrap(int(port)).encode()
                value = value.replace(service.encode(), servers)
            (folder / key).write_bytes(value.replace(users_model.MOUNT.encode(), bytes(folder)))
        return folder


def properties_in(file: Path) -> dict[str, str]:
    lines = file.read_text().splitlines()
    return {k: v.replace("\\\\", "\\") for k, v in (line.split("=", 1) for line in lines)}


PRODUCER = {"producer": {"topics": ["jobs"]}}
SHARE_CONSUMER = {"shareConsumer": {"topics": ["jo*"], "groups": ["packers"]}}


@pytest.fixture
def users(cluster: Secured) -> Iterator[QueueUsers]:
    """The reconciler; all QueueUsers are deleted afterwards."""
    found = QueueUsers(cluster)
    yield found
    for user in found.api.all("QueueUser"):
        user["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found.reconcile()
    for kind, name in list(found.api.objects):
        if kind == "QueueUser":
            del found.api.objects[kind, name]
            found.api.objects.pop(("Secret", name), None)


@pytest.mark.parametrize("kind", ["tls", "scram-sha-512"])
def test_a_secret_is_all_that_a_client_needs(users: QueueUsers, tmp_path: Path, kind: str) -> None:
    """With librdkafka, our own client, and Java, which take the files as they are."""
    users.add("eve", kind, acls=[PRODUCER, SHARE_CONSUMER])
    assert users.reconcile()["eve"][0] == "Reconciled"
    folder = users.mounted("eve", tmp_path / "user")
    given = properties_in(folder / "librdkafka.properties")
    servers = given.pop("bootstrap.servers")
    assert produced(servers, given, "jobs") == ""
    assert produced(servers, given, "others") == "TOPIC_AUTHORIZATION_FAILED"

    own = properties_in(folder / "client.properties")
    with SyncClient(own.pop("bootstrap.servers"), own) as client:
        session = client.run(client.client.share("packers", ["jobs"]))
        client.run(session.acquire())
        client.run(session.close())
        with pytest.raises(KafkaError) as refused:
            client.run(client.client.share("others", ["jobs"]))
        assert refused.value.code is ErrorCode.group_authorization_failed


@pytest.mark.java
@pytest.mark.parametrize("kind", ["tls", pytest.param("scram-sha-512", marks=pytest.mark.nightly)])
def test_java_reads_the_properties(users: QueueUsers, tmp_path: Path, kind: str) -> None:
    users.add("eve", kind, acls=[PRODUCER])
    users.reconcile()
    folder = users.mounted("eve", tmp_path / "user")
    servers = properties_in(folder / "client.properties")["bootstrap.servers"]
    words = ["--bootstrap-server", servers, "--list"]
    config = ["--command-config", str(folder / "client.properties")]
    done = subprocess.run(
        kafka_tools.command("kafka-topics", *words, *config),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["jobs"], done.stderr


def test_permissions_follow_the_spec_and_go_with_the_user(users: QueueUsers) -> None:
    def entries() -> list[Acl]:
        with SyncClient(users.cluster.bootstrap(9091), users.cluster.operator()) as admin:
            every = admin.run(admin.admin.acls.describe())
        return [acl for acl in every if acl.principal == "User:CN=eve"]

    denied = {
        "resource": {"type": "topic", "name": "jobs"},
        "operations": ["delete"],
        "permission": "deny",
    }
    users.add("eve", "tls", acls=[PRODUCER, denied])
    users.reconcile()
    assert len(entries()) == 4
    assert [a.operation for a in entries() if a.permission is Permission.DENY] == [Operation.DELETE]
    users.add("eve", "tls", acls=[SHARE_CONSUMER])
    users.reconcile()
    assert len(entries()) == 3
    assert {(a.resource_name, a.pattern_type) for a in entries()} == {
        ("jo", PatternType.PREFIXED),
        ("packers", PatternType.LITERAL),
    }
    users.reconcile()
    assert len(entries()) == 3
    users.api.find("QueueUser", "eve")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    users.reconcile()
    assert entries() == []


def test_a_redrive_runs_as_its_user(
    users: QueueUsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form for redrives suffices, and the operator's own rights are not used."""
    topics = {
        "returns": {},
        "dlq.returns": {"errors.deadletterqueue.group.enable": "true"},
    }
    settings = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "dlq.returns",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    with SyncClient(users.cluster.bootstrap(9091), users.cluster.operator()) as admin:
        new = [NewTopic(name, 1, 3, configs=configs) for name, configs in topics.items()]
        expect(admin.run(admin.admin.topics.create(new)))
        group = ConfigResource(ConfigType.GROUP, "returners")
        changes = [ConfigChange(name, value) for name, value in settings.items()]
        expect(admin.run(admin.admin.configs.alter({group: changes})))
    consumer = {"shareConsumer": {"topics": ["returns"], "groups": ["returners"]}}
    producer = {"producer": {"topics": ["returns"]}}
    redrive = {"deadLetterTopics": ["dlq.*"], "topics": ["returns"], "groups": ["returners"]}
    users.add("consumer", "tls", acls=[consumer, producer])
    users.add("mender", "tls", acls=[{"redrive": redrive}])
    assert {reason for reason, _ in users.reconcile().values()} == {"Reconciled"}

    def connect(name: str) -> SyncClient:
        given = properties_in(users.mounted(name, tmp_path / name) / "client.properties")
        return SyncClient(given.pop("bootstrap.servers"), given)

    async def send(client: Client) -> None:
        async with client.producer() as sending:
            await (await sending.send("returns", b"once"))

    with connect("consumer") as client:
        client.run(send(client.client))
        session = client.run(client.client.share("returners", ["returns"]))
        acquired: list[AcquiredRecords] = []
        while not acquired:
            acquired = list(client.run(session.acquire(max_wait_ms=5_000)))
        for one in acquired:
            client.run(session.acknowledge(one.acknowledge(AcknowledgeType.REJECT)))
        client.run(session.close())
        with pytest.raises(KafkaError):
            send_back(client, RedrivePlan("dlq.returns"))
    with SyncClient(users.cluster.bootstrap(9091), users.cluster.operator()) as admin:
        letters = TopicPartition("dlq.returns", 0)
        latest = {letters: int(OffsetSpec.LATEST)}
        # The broker writes the letter after the acknowledgement.
        eventually(
            lambda: expect(admin.run(admin.admin.topics.offsets(latest)))[letters].offset == 1,
            what="the dead letter",
        )
        admin.run(forge(admin.client, "jobs"))
    monkeypatch.setattr(
        listeners,
        "get_bootstrap_servers",
        lambda _, listener: users.cluster.bootstrap(listener["port"]),
    )
    users.api.add(resource("Redrive", "again", cluster="main", topic="dlq.returns", user="mender"))
    status = asyncio.run(redriven(users))
    assert (status["sent"], status["refused"]) == (1, 1)


async def forge(client: Client, topic: str) -> None:
    """Write a letter that names a topic to which the redrive's user may not write."""
    about = {"topic": topic, "partition": "0", "offset": "0", "group": "returners"}
    headers = [(f"{ERRORS}{name}", text.encode()) for name, text in about.items()]
    async with client.producer() as sending:
        await (await sending.send("dlq.returns", b"forged", headers=headers))


async def redriven(users: QueueUsers) -> dict[str, Any]:
    """Let the operator run the Redrive to its end. Return the status."""
    brokers, store = users.cluster.connection(), users.api.store()
    redrives = RedriveReconciler(users.api, store, brokers, "n", "main")

    async def one_pass(names: list[str]) -> float | None:
        store.put(copy.deepcopy(users.api.find("Redrive", "again")))
        return await redrives.reconcile(names)

    loop = asyncio.create_task(ReconcileLoop("Redrive", one_pass, lambda: ["again"], 0.1).run())
    try:
        await eventually_async(
            lambda: users.api.find("Redrive", "again")["status"].get("completionTime")
        )
    finally:
        loop.cancel()
        await asyncio.wait([loop])
        await redrives.close()
        await brokers.close()
    return dict(users.api.find("Redrive", "again")["status"])


@pytest.mark.parametrize("kind", ["tls", "scram-sha-512"])
def test_a_schedule_produces_as_its_user(
    users: QueueUsers, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The short form for producers suffices, and the operator's own rights are not used."""
    topics = [f"ticks.{kind}", f"vault.{kind}"]
    with SyncClient(users.cluster.bootstrap(9091), users.cluster.operator()) as admin:
        expect(admin.run(admin.admin.topics.create([NewTopic(name, 1, 3) for name in topics])))
    users.add("clock", kind, acls=[{"producer": {"topics": topics[:1]}}])
    assert {reason for reason, _ in users.reconcile().values()} == {"Reconciled"}
    monkeypatch.setattr(
        listeners,
        "get_bootstrap_servers",
        lambda _, listener: users.cluster.bootstrap(listener["port"]),
    )
    for topic in topics:
        spec = {"cluster": "main", "topic": topic, "schedule": "0 * * * *", "user": "clock"}
        users.api.add(resource("QueueSchedule", topic, **spec))

    async def run() -> None:
        brokers = users.cluster.connection()
        place = (users.api, users.api.store(), brokers, "n", "main")
        try:
            await QueueScheduleReconciler(*place).reconcile(topics)
        finally:
            await brokers.close()

    asyncio.run(run())
    statuses = [users.api.objects.pop(("QueueSchedule", name))["status"] for name in topics]
    said = [(one["conditions"][0]["reason"], one.get("lastRecord")) for one in statuses]
    first = {"topic": topics[0], "partition": 0, "offset": 0}
    assert said == [("Reconciled", first), ("RequestRefused", None)]


@pytest.mark.parametrize(("kind", "name"), [("tls", "CN=ivy"), ("scram-sha-512", "ivy")])
def test_quotas_follow_the_spec_and_go_with_the_user(
    users: QueueUsers, kind: str, name: str
) -> None:
    def quotas() -> dict[quota_calls.Entity, dict[str, float]]:
        with SyncClient(users.cluster.bootstrap(9091), users.cluster.operator()) as admin:
            return admin.run(admin.admin.quotas.describe({"user": name}))

    mine = quota_calls.make_user_entity(name)
    with_client = (("client-id", "batch"), *mine)
    limits = {"producerByteRate": 1_000_000, "requestPercentage": 12.5}
    users.add("ivy", kind, quotas=limits)
    assert users.reconcile()["ivy"][0] == "Reconciled"
    wanted = {"producer_byte_rate": 1_000_000, "request_percentage": 12.5}
    assert quotas() == {mine: wanted}
    with SyncClient(users.cluster.bootstrap(9091), users.cluster.operator()) as admin:
        by_hand = {mine: {"consumer_byte_rate": 5.0}, with_client: {"producer_byte_rate": 7.0}}
        assert admin.run(admin.admin.quotas.alter(by_hand)) == dict.fromkeys(by_hand)
    users.add("ivy", kind, quotas=limits | {"producerByteRate": 2_000_000})
    users.reconcile()
    theirs = {with_client: {"producer_byte_rate": 7.0}}
    assert quotas() == {mine: wanted | {"producer_byte_rate": 2_000_000}, **theirs}
    users.api.find("QueueUser", "ivy")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    users.reconcile()
    assert quotas() == theirs
    with SyncClient(users.cluster.bootstrap(9091), users.cluster.operator()) as admin:
        admin.run(admin.admin.quotas.alter({with_client: {"producer_byte_rate": None}}))


def test_passwords(users: QueueUsers, tmp_path: Path) -> None:
    """A generated one stays. An own one is followed, and a deleted user cannot log in."""
    users.add("eve", "scram-sha-512", acls=[PRODUCER])
    users.reconcile()
    before = users.cluster.secret("eve")
    users.reconcile()
    assert users.cluster.secret("eve") == before
    assert len(before["password"]) == 32

    reference = {"secretKeyRef": {"name": "mine", "key": "word"}}
    own_password = {"type": "scram-sha-512", "password": reference}
    users.add("eve", "scram-sha-512", authentication=own_password)
    assert users.reconcile()["eve"][0] == "PasswordNotFound"
    for number in range(2):
        word = base64.b64encode(f'own "{number}\\'.encode()).decode()
        secret = {**resource("Secret", "mine"), "apiVersion": "v1", "data": {"word": word}}
        users.api.add(secret)
        users.add("eve", "scram-sha-512", authentication=own_password, acls=[PRODUCER])
        assert users.reconcile()["eve"][0] == "Reconciled"
        assert users.cluster.secret("eve")["password"] == base64.b64decode(word)
        folder = users.mounted("eve", tmp_path / str(number))
        given = properties_in(folder / "librdkafka.properties")
        servers = given.pop("bootstrap.servers")
        assert produced(servers, given, "jobs") == ""
        own = properties_in(folder / "client.properties")
        with SyncClient(own.pop("bootstrap.servers"), own) as client:
            client.run(client.admin.describe_cluster())
    users.api.find("QueueUser", "eve")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    users.reconcile()

    def is_locked_out() -> bool:
        return produced(servers, given, "jobs") == "_AUTHENTICATION"

    eventually(is_locked_out, timeout_s=10, what="no broker accepts the password")


def delete(users: QueueUsers, name: str) -> None:
    """Delete a QueueUser, and wait for its finalizer."""
    users.api.find("QueueUser", name)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    users.reconcile()
    assert ("QueueUser", name) not in users.api.objects
    users.api.objects.pop(("Secret", name))  # as the garbage collector does


@pytest.mark.parametrize("kind", ["tls", "scram-sha-512"])
def test_the_sessions_of_a_deleted_user_end(users: QueueUsers, tmp_path: Path, kind: str) -> None:
    """On every broker. Neither the certificate nor the password opens another one,
    also if the user exists again, with others."""
    users.add("eve", kind, acls=[PRODUCER])
    users.add("bob", kind, acls=[PRODUCER])
    users.reconcile()
    clients = {name: librdkafka_in(users.mounted(name, tmp_path / name)) for name in ("eve", "bob")}
    sessions = {name: Session(given) for name, given in clients.items()}
    assert all(one.connections() == 3 for one in sessions.values())
    delete(users, "eve")
    # librdkafka connects again at once, and is refused.
    eventually(lambda: sessions["eve"].connections() == 0, what="sessions end")
    assert sessions["bob"].disconnects == 0
    servers = clients["eve"]["bootstrap.servers"]
    assert produced(servers, clients["eve"], "jobs", timeout_ms=3_000) != ""

    users.add("eve", kind, acls=[PRODUCER])
    users.reconcile()
    again = librdkafka_in(users.mounted("eve", tmp_path / "again"))
    assert produced(servers, again, "jobs") == ""
    assert produced(servers, clients["eve"], "jobs", timeout_ms=3_000) != ""


def test_a_password_changes_under_load(users: QueueUsers, tmp_path: Path) -> None:
    """Each record is written, although the Secret that the client reads changes later. Open
    connections stay, and the client of a new one has read the new password."""
    users.add("eve", "scram-sha-512", acls=[PRODUCER], authentication=own_password(users, "0"))
    users.reconcile()
    folder = users.mounted("eve", tmp_path / "user")
    given = librdkafka_in(folder)
    failures: list[str] = []
    done = 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal done
        done += 1
        failures.extend([error.name()] if error else [])

    errors: list[str] = []
    producer = Producer(
        given | {"acks": "all", "error_cb": lambda e: errors.append(e.name()), "linger.ms": 1}
    )
    sent = 0

    def write(count: int) -> None:
        nonlocal sent
        goal = done + count
        while done < goal:
            producer.produce("jobs", b"v", on_delivery=delivered)
            sent += 1
            producer.poll(0.001)

    write(500)
    for number in range(1, 4):
        users.add(
            "eve", "scram-sha-512", acls=[PRODUCER], authentication=own_password(users, str(number))
        )
        assert users.reconcile()["eve"][0] == "Reconciled"
        write(500)
        fresh = librdkafka_in(users.mounted("eve", tmp_path / str(number)))
        assert produced(fresh["bootstrap.servers"], fresh, "jobs") == ""
    assert producer.flush(30) == 0
    assert (failures, errors, done) == ([], [], sent)
    assert produced(given["bootstrap.servers"], given, "jobs") == "_AUTHENTICATION"


def own_password(users: QueueUsers, word: str) -> dict[str, Any]:
    """Write a password into a Secret. Return the authentication that names it."""
    text = base64.b64encode(f"password-{word}".encode()).decode()
    users.api.add({**resource("Secret", "mine"), "apiVersion": "v1", "data": {"word": text}})
    reference = {"secretKeyRef": {"name": "mine", "key": "word"}}
    return {"type": "scram-sha-512", "password": reference}


def librdkafka_in(folder: Path) -> dict[str, Any]:
    """Return the properties in a mounted Secret for a client that reconnects quickly."""
    given: dict[str, Any] = {**properties_in(folder / "librdkafka.properties")}
    return given | {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "log_level": 2}


class Session:
    """A producer that is connected to all brokers, and its connections as statistics show them."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._states: dict[str, str] = {}
        self.disconnects = 0
        stats = {
            "statistics.interval.ms": 100,
            "stats_cb": self._seen,
            "topic.metadata.refresh.interval.ms": 500,
        }
        self._producer = Producer({**given, **stats, "enable.sparse.connections": False})
        eventually(lambda: self.connections() == 3, timeout_s=30, what="connections to all brokers")

    def _seen(self, text: str) -> None:
        brokers = [b for b in json.loads(text)["brokers"].values() if b["nodeid"] >= 0]
        self._states = {b["name"]: b["state"] for b in brokers}
        self.disconnects = sum(b["disconnects"] for b in brokers)

    def connections(self) -> int:
        """Return how many brokers it is connected to."""
        self._producer.poll(0.2)
        return list(self._states.values()).count("UP")


def test_users_that_cannot_be_made(users: QueueUsers) -> None:
    foreign = {**resource("Secret", "zoe"), "apiVersion": "v1", "data": {"a": "b25l"}}
    users.api.add(foreign)
    users.add("zoe", "tls")
    users.add("eve", "tls")
    users.add("eve-again", "tls", username="eve")
    users.api.find("QueueUser", "eve-again")["metadata"]["creationTimestamp"] = (
        "2027-01-01T00:00:00Z"
    )
    reasons = {name: reason for name, (reason, _) in users.reconcile().items()}
    assert reasons == {"zoe": "SecretNotOwned", "eve": "Reconciled", "eve-again": "UserClaimed"}
    assert users.api.find("Secret", "zoe")["data"] == foreign["data"]
    del users.api.objects["Secret", "zoe"]
    assert users.reconcile()["zoe"][0] == "Reconciled"


def test_an_authority_is_renewed_while_records_are_written(cluster: Secured) -> None:
    """All three phases. Clients take the new authorities when they change, as from a mounted
    Secret; each record is written."""
    _, before = cluster.renewal()
    cluster.resource["metadata"].setdefault("annotations", {})[RENEW] = "once"
    phases: list[str] = []

    def renewed() -> bool:
        assert produced(cluster.bootstrap(9092), cluster.user("ann"), "jobs") == ""
        # An operator has the reports of the brokers from its second pass on.
        asyncio.run(cluster.reconcile(passes=2))
        cluster.mount()
        phase, _ = cluster.renewal()
        if phases[-1:] != [phase]:
            phases.append(phase)
        return not phase and len(phases) > 1

    eventually(renewed, timeout_s=60, what="the renewal ends")
    assert phases == ["TrustNext", "DropPrevious", ""]
    assert cluster.renewal()[1] != before
    with SyncClient(cluster.bootstrap(9091), cluster.operator()) as admin:
        about = admin.run(admin.admin.describe_cluster())
        assert len(about.brokers) == 3
    assert all(broker.is_running for broker in cluster.brokers)
