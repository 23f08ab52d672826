"""Apache Kafka as the cluster of ShareGroups and ShareConsumers: QueueClusters of type external."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kube.api_server import ApiServer, CrashPoint, resource
from kube.consumers.test_spark_consumers import CONSUMER, env
from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.client import Client
from shoal.client.errors import Unreachable
from shoal.client.produce.producer import Producer
from shoal.client.share.acquired import AcknowledgeType
from shoal.client.share.member import ShareSession
from shoal.security.acls import Acl, Operation, PatternType, Permission
from shoal.security.acls import ResourceType as AclResource
from shoal_operator import clock
from shoal_operator.brokers.broker_states import ExternalState, GroupState
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster.external import decide_verdict, find_release
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.consumers.reconciler import ShareConsumerReconciler
from shoal_operator.model import certificates, external
from shoal_operator.model.external import BadCredentials, build_client_properties
from shoal_operator.model.users import Credentials, build_secret_data
from shoal_operator.queues.group_monitor import GroupMonitor
from shoal_operator.queues.groups import ShareGroupReconciler, find_unsupported
from shoal_operator.queues.redrives import RedriveReconciler
from shoal_operator.queues.topics import QueueTopicReconciler
from shoal_operator.rebalance.reconciler import QueueRebalanceReconciler
from shoal_operator.settings import ChartSettings
from shoal_operator.users.reconciler import QueueUserReconciler
from support.kafka.kafkas import KafkaProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
NOW = datetime.datetime.now(datetime.UTC)
CA = certificates.make_ca("kafka-ca", now=NOW, validity_days=2)
SERVER = certificates.issue(CA, "kafka", now=NOW, validity_days=1, ips=["127.0.0.1"], server=True)
USER = certificates.issue(CA, "ann", now=NOW, validity_days=1)
PASSWORD = 'se"cret, with=signs'
JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="ann" password="se\\"cret, with=signs";'
)
POD = {"template": {"spec": {"containers": [{"name": "a"}]}}}


def user(kind: str) -> Any:
    return {"metadata": {"name": "ann"}, "spec": {"authentication": {"type": kind}}}


# The credentials.


def test_secrets_of_queue_users_are_credentials() -> None:
    """A Secret names its files by their paths in a pod, where the operator does not have them."""
    scram = build_secret_data(
        user("scram-sha-512"), "a:1", CA.certificate, Credentials(password="x")
    )
    found = build_client_properties(scram, None)
    assert found["security.protocol"] == "SASL_SSL"
    assert found["ssl.truststore.certificates"] == CA.certificate.decode()
    assert 'password="x"' in found["sasl.jaas.config"]
    tls = build_secret_data(user("tls"), "a:1", CA.certificate, Credentials(USER, b"", "p"))
    found = build_client_properties(tls, None)
    assert found["security.protocol"] == "SSL"
    assert found["ssl.keystore.key"] == (USER.key + USER.certificate).decode()


def test_secrets_of_strimzi_users_are_credentials() -> None:
    scram = build_client_properties(
        {"password": b"x", "sasl.jaas.config": JAAS.encode()}, CA.certificate
    )
    assert scram == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": JAAS,
        "ssl.truststore.certificates": CA.certificate.decode(),
    }
    files = {"ca.crt": CA.certificate, "user.crt": USER.certificate, "user.key": USER.key}
    tls = build_client_properties({**files, "user.p12": b"\xff", "user.password": b"x"}, None)
    assert tls["ssl.keystore.certificate.chain"] == USER.certificate.decode()


def test_without_credentials_there_is_tls_only_with_an_authority() -> None:
    assert build_client_properties(None, None) == {}
    assert build_client_properties(None, CA.certificate)["security.protocol"] == "SSL"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "none of client.properties"),
        ({"client.properties": b"sasl.jaas.config=${file:/run/token:x}"}, "refers to a file"),
        ({"client.properties": b"ssl.truststore.location=/etc/passwd"}, "name a file of this"),
        ({"client.properties": b"ssl.truststore.location=/etc/shoal/user/ca.crt"}, "a file of"),
        ({"client.properties": b"ssl.truststore.type=JKS"}, "reads PEM"),
        ({"client.properties": b"sasl.oauthbearer.token.endpoint.url=file:///x"}, "does not use"),
        ({"client.properties": b"sasl.mechanism=OAUTHBEARER"}, "use SCRAM"),
        ({"client.properties": b"\xff"}, "is not text"),
        ({"sasl.jaas.config": b"some.Krb5LoginModule required;"}, "Krb5LoginModule"),
        ({"sasl.jaas.config": b"required"}, "sasl.jaas.config"),
        ({"ca.crt": b"hello"}, "not PEM"),
    ],
)
def test_secrets_that_are_no_credentials_are_refused(data: dict[str, bytes], words: str) -> None:
    """Nothing of the operator's own pod may get into a connection to an address of a user."""
    with pytest.raises(BadCredentials, match=words):
        build_client_properties(data, None)


# The features and fields.


STATE = ExternalState("c", 1, 3, {"share.version": 1, "metadata.version": 29}, True, False)


@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        ({}, "Reconciled", "QueueUsers, Redrives and fields"),
        ({"is_shoal": True}, "Reconciled", "3 brokers run outside of the operator."),
        ({"features": {}}, "ShareGroupsDisabled", "--feature share.version=1"),
        ({"features": {"share.version": 0}}, "ShareGroupsDisabled", "share.version"),
        ({"reports_lag": False}, "LagNotReported", "4.2 or later"),
    ],
)
def test_a_cluster_needs_share_groups_and_their_lag(
    given: dict[str, Any], reason: str, words: str
) -> None:
    found = decide_verdict(dataclasses.replace(STATE, **given))
    assert (found.reason, found.ready) == (reason, reason == "Reconciled")
    assert words in found.message


@pytest.mark.parametrize(
    ("level", "name"),
    [(21, ""), (25, "4.0"), (29, "4.2"), (30, "4.3"), (33, "4.4"), (34, "later than 4.4")],
)
def test_the_release_is_that_of_the_metadata_version(level: int, name: str) -> None:
    assert find_release({"metadata.version": level}) == name


GROUP = {
    "cluster": "kafka",
    "topics": ["jobs"],
    "lockDuration": "30s",
    "deliveryLimit": 5,
    "maxRecordLocks": 2000,
    "startOffset": "Earliest",
    "isolation": "ReadUncommitted",
    "renewal": True,
    "ordering": "none",
}
OLD_KAFKA = {"share.record.lock.duration.ms", "share.auto.offset.reset", "share.isolation.level"}


def test_fields_that_brokers_lack_are_refused_by_name() -> None:
    group = resource("ShareGroup", "g", **GROUP)
    assert find_unsupported(group, OLD_KAFKA) is None, "the schema's defaults are Kafka's"
    more = {"delay": {"max": "1h", "maxRecords": 10}, "deliveryLimit": 9}
    found = find_unsupported(resource("ShareGroup", "g", **GROUP | more), OLD_KAFKA)
    assert found is not None
    assert (found.reason, found.is_stalled) == ("FieldNotSupported", True)
    assert found.message.startswith("spec.deliveryLimit, spec.delay: ")
    assert "share.delay.max.ms, share.delay.max.records" in found.message


def test_the_examples_have_fields_of_the_schema() -> None:
    files = sorted((ROOT / "examples" / "external").glob("*.yaml"))
    assert len(files) == 3
    for file in files:
        example = yaml.safe_load(file.read_text())
        crd = yaml.safe_load(
            (ROOT / "crds" / f"{example['kind'].lower()}s.shoal.dev.yaml").read_text()
        )
        version = crd["spec"]["versions"][0]
        fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        assert unknown_fields(example["spec"], fields) == []


def unknown_fields(value: Any, schema: dict[str, Any]) -> list[str]:
    if schema.get("x-kubernetes-preserve-unknown-fields") or "properties" not in schema:
        return []
    found = [key for key in value if key not in schema["properties"]]
    for key in value.keys() & schema["properties"].keys():
        found += unknown_fields(value[key], schema["properties"][key])
    return found


# The operator and Apache Kafka.


class Shop:
    """A namespace with an external cluster, and the operator's parts for it."""

    def __init__(self, servers: str, **more: Any) -> None:
        self.kube = ApiServer(CrashPoint())
        spec = {"bootstrapServers": servers, **more}
        self.kube.add(resource("QueueCluster", "kafka", type="external", external=spec))
        self.store = self.kube.store()
        ready = not external.needs_secrets(self.cluster)
        self.brokers = Brokers(servers, has_credentials=ready)
        parts = (self.kube, self.store, self.brokers, "n", "kafka")
        self.answers = 0
        self.clusters = QueueClusterReconciler(*parts, "image:1", on_reachable=self._count)
        self.topics, self.users = QueueTopicReconciler(*parts), QueueUserReconciler(*parts)
        self.monitor = GroupMonitor(*parts)
        self.groups = ShareGroupReconciler(*parts, monitor=self.monitor)
        self.redrives = RedriveReconciler(*parts)
        self.rebalances = QueueRebalanceReconciler(*parts)
        settings = ChartSettings("b:1", "s:1", "role", "http://o")
        self.consumers = ShareConsumerReconciler(
            self.kube, self.store, self.monitor, "n", "kafka", settings
        )

    def _count(self) -> None:
        self.answers += 1

    @property
    def cluster(self) -> Any:
        return self.kube.find("QueueCluster", "kafka")

    def apply(self, kind: str, name: str, **spec: Any) -> None:
        self.kube.add(resource(kind, name, **spec))
        self.store.put(self.kube.find(kind, name))

    def put_secret(self, name: str, data: dict[str, bytes]) -> None:
        encoded = {k: base64.b64encode(v).decode() for k, v in data.items()}
        meta = {"name": name, "namespace": "n"}
        self.kube.add({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": encoded})

    def ready(self, kind: str, name: str) -> tuple[bool, str, str]:
        (found,) = [
            c for c in self.kube.find(kind, name)["status"]["conditions"] if c["type"] == "Ready"
        ]
        return found["status"] == "True", found["reason"], found["message"]

    async def look(self) -> dict[str, Any]:
        """Read the group and decide; return the ShareConsumer's status."""
        await self.monitor.watch([])
        await self.consumers.reconcile(["eaters"])
        return self.kube.find("ShareConsumer", "eaters")["status"]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    """Apache Kafka with a listener without security, and one with TLS and SCRAM."""
    folder = tmp_path_factory.mktemp("kafka")
    pair = folder / "pair.pem"
    pair.write_bytes(SERVER.key + SERVER.certificate)
    process = KafkaProcess(
        folder / "node",
        listeners={"SECURE": "SASL_SSL"},
        configs={
            # Clients of the listener without security may do everything.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.secure.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "listener.name.secure.ssl.keystore.type": "PEM",
            "listener.name.secure.ssl.keystore.location": str(pair),
        },
        format_flags=("--add-scram", "SCRAM-SHA-512=[name=ann,password=word]"),
    ).start()
    yield process
    process.kill9()


def login(password: str) -> dict[str, bytes]:
    own = Credentials(password=password)
    return build_secret_data(user("scram-sha-512"), "elsewhere:9092", CA.certificate, own)


#: The permissions that docs/operator/clusters.md lists.
PERMISSIONS = re.findall(
    r"^\| (the cluster|topics of \w+|groups) \| (\w.*) \|$",
    (ROOT / "docs" / "operator" / "clusters.md").read_text(),
    re.MULTILINE,
)


async def permit(kafka: KafkaProcess) -> None:
    """Give the operator's user what the documentation says."""
    kinds = {
        "the cluster": (AclResource.CLUSTER, "kafka-cluster"),
        "groups": (AclResource.GROUP, "early"),
    }
    operations = {"".join(one.name.title().split("_")): one for one in Operation}
    entries = [
        Acl(*place, PatternType.LITERAL, "User:ann", "*", operations[word], Permission.ALLOW)
        for where, text in PERMISSIONS
        for place in [kinds.get(where, (AclResource.TOPIC, "early"))]
        for word in re.findall(r"\w+", re.sub("`[^`]*`", "", text))
        if word in operations
    ]
    assert len(entries) > 10
    assert len(PERMISSIONS) == 4
    async with Client(kafka.bootstrap) as client:
        done = await client.admin.acls.create(entries)
    assert not [error for error in done.values() if error]


@pytest.mark.java
@pytest.mark.timeout(120)
def test_the_operator_logs_in_with_a_secret(kafka: KafkaProcess) -> None:
    async def scenario() -> None:
        shop = Shop(kafka.addresses["SECURE"], credentials={"secretName": "login"})
        shop.apply("QueueTopic", "early", cluster="kafka", partitions=1)
        try:
            await shop.clusters.reconcile([])
            assert shop.ready("QueueCluster", "kafka")[:2] == (False, "CredentialsNotFound")
            shop.put_secret("login", login("wrong"))
            await shop.clusters.reconcile([])
            ready, reason, text = shop.ready("QueueCluster", "kafka")
            assert (ready, reason) == (False, "LoginFailed"), text
            assert "ann" in text
            assert "wrong" not in text
            assert shop.answers == 0
            shop.put_secret("login", login("word"))
            await shop.clusters.reconcile([])
            assert shop.ready("QueueCluster", "kafka")[:2] == (True, "Reconciled")
            assert shop.answers == 1, "the topics and groups are reconciled now"
            await shop.topics.reconcile(["early"])
            assert shop.ready("QueueTopic", "early")[1] == "TopicAuthorizationFailed"
            await permit(kafka)
            shop.apply("ShareGroup", "early", **GROUP | {"topics": ["early"]})
            more = {"replicas": 1, "config": {"retention.ms": "1"}}
            shop.apply("QueueTopic", "early", cluster="kafka", partitions=2, **more)
            await shop.topics.reconcile(["early"])
            assert shop.ready("QueueTopic", "early")[0], shop.ready("QueueTopic", "early")
            await shop.groups.reconcile(["early"])
            assert shop.ready("ShareGroup", "early")[0], shop.ready("ShareGroup", "early")
            found = shop.kube.find("ShareGroup", "early")["status"]["partitions"]
            assert [p["startOffset"] for p in found] == [0, 0]
        finally:
            await shop.brokers.close()

    asyncio.run(scenario())


@pytest.mark.java
@pytest.mark.timeout(120)
def test_a_group_of_apache_kafka_scales_consumers_to_zero_and_back(
    kafka: KafkaProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_ms, now_ms = 0, clock.now_ms
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms() + passed_ms)

    async def scenario() -> None:
        nonlocal passed_ms
        shop = Shop(kafka.bootstrap)
        client = Client(kafka.bootstrap)
        try:
            await shop.clusters.reconcile([])
            status = shop.cluster["status"]
            assert status["features"]["share.version"] == 1
            assert status["version"] == "4.4"
            assert (status["brokersReady"], status["bootstrapServers"]) == ("1/1", kafka.bootstrap)
            assert not [k for k, _ in shop.kube.objects if k in ("StatefulSet", "Service", "Pod")]

            config = {"retention.ms": "60000000"}
            shop.apply("QueueTopic", "jobs", cluster="kafka", partitions=2, config=config)
            await shop.topics.reconcile(["jobs"])
            assert shop.ready("QueueTopic", "jobs")[0]
            shop.apply("ShareGroup", "workers", **GROUP | {"deliveryLimit": 7})
            await shop.groups.reconcile(["workers"])
            assert shop.ready("ShareGroup", "workers")[0], shop.ready("ShareGroup", "workers")
            named = ConfigResource(ConfigResourceType.GROUP, "workers")
            found: Any = (await client.admin.configs.describe([named]))[named]
            assert found["share.delivery.count.limit"].value == "7"

            scaling = {"targetLagPerReplica": 10, "minReplicas": 0, "maxReplicas": 10}
            spec = {"shareGroup": "workers", "deployment": POD, "scaling": scaling}
            shop.apply("ShareConsumer", "eaters", **spec)
            assert (await shop.look())["desiredReplicas"] == 0
            await produce(client, 55)
            status = await shop.look()
            assert (status["desiredReplicas"], status["lag"]) == (6, 55)
            assert "inFlight" not in status, "Apache Kafka does not report it to the operator"
            assert await shop.brokers.find_oldest_record_ms({("jobs", 0): 0, ("jobs", 1): 0})
            assert await shop.brokers.list_holdings("workers", [("jobs", 0)]) is None
            variables = env(shop.kube.find("Deployment", "eaters")["spec"])
            assert variables["SHOAL_BOOTSTRAP_SERVERS"] == kafka.bootstrap

            await consume(client, 55)
            assert (await shop.look())["lag"] == 0
            passed_ms += 61_000
            assert (await shop.look())["desiredReplicas"] == 1
            passed_ms += 300_000
            assert (await shop.look())["desiredReplicas"] == 0
            assert shop.kube.find("Deployment", "eaters")["spec"]["replicas"] == 0
            await produce(client, 1)
            assert (await shop.look())["desiredReplicas"] == 1
        finally:
            await client.close()
            await shop.brokers.close()

    asyncio.run(scenario())


async def produce(client: Client, records: int) -> None:
    async with Producer(client.cluster) as producer:
        await asyncio.gather(
            *(producer.send("jobs", b"x", partition=i % 2) for i in range(records))
        )


async def consume(client: Client, records: int) -> None:
    async with await ShareSession.join(client.cluster, "workers", ["jobs"]) as session:
        async with asyncio.timeout(60):
            while records:
                for one in (await session.acquire()).acquired:
                    records -= one.count
                    await session.acknowledge(one.acknowledge(AcknowledgeType.ACCEPT))


@pytest.mark.java
@pytest.mark.timeout(120)
def test_what_apache_kafka_does_not_have_is_refused(kafka: KafkaProcess) -> None:
    async def scenario() -> None:
        shop = Shop(kafka.bootstrap)
        try:
            await shop.clusters.reconcile([])
            delayed = GROUP | {"delay": {"max": "1h", "maxRecords": 10}, "topics": []}
            shop.apply("ShareGroup", "delayed", **delayed)
            shop.apply("ShareGroup", "plain", **GROUP | {"topics": []})
            await shop.groups.reconcile(["delayed", "plain"])
            ready, reason, text = shop.ready("ShareGroup", "delayed")
            assert (ready, reason) == (False, "FieldNotSupported")
            assert text.startswith("spec.delay: ")
            assert shop.ready("ShareGroup", "plain")[0]
            login = {"type": "scram-sha-512"}
            shop.apply("QueueUser", "ann", cluster="kafka", authentication=login)
            await shop.users.reconcile(["ann"])
            assert shop.ready("QueueUser", "ann")[:2] == (False, "NotForExternalCluster")
            shop.apply("Redrive", "again", cluster="kafka", topic="dlq.jobs", id="1")
            await shop.redrives.reconcile(["again"])
            assert shop.ready("Redrive", "again")[:2] == (False, "NotForExternalCluster")
            shop.apply("QueueRebalance", "all", cluster="kafka", mode="Full")
            await shop.rebalances.reconcile(["all"])
            assert shop.ready("QueueRebalance", "all")[:2] == (False, "NotForExternalCluster")
            many = {"cluster": "kafka", "partitions": 1, "replicas": 3}
            shop.apply("QueueTopic", "wide", **many)
            await shop.topics.reconcile(["wide"])
            assert shop.ready("QueueTopic", "wide")[:2] == (False, "InvalidReplicationFactor")
        finally:
            await shop.brokers.close()

    asyncio.run(scenario())


def test_a_broker_that_does_not_answer_is_a_condition() -> None:
    async def scenario() -> None:
        shop = Shop("127.0.0.1:1")
        try:
            await shop.clusters.reconcile([])
            ready, reason, text = shop.ready("QueueCluster", "kafka")
            assert (ready, reason) == (False, "BrokersUnreachable")
            assert "127.0.0.1:1" in text
        finally:
            await shop.brokers.close()

    asyncio.run(scenario())


def test_consumers_log_in_with_their_own_secret() -> None:
    """The operator's credentials may do more than consumers should."""

    async def scenario() -> None:
        shop = Shop("127.0.0.1:1", credentials={"secretName": "login"})
        shop.apply("ShareGroup", "workers", **GROUP)
        shop.monitor.states["workers"] = GroupState("workers", lag=1)
        spec = {"shareGroup": "workers", "deployment": POD, "scaling": {}}
        shop.apply("ShareConsumer", "eaters", **spec, userSecret="theirs")
        await shop.consumers.reconcile(["eaters"])
        assert shop.ready("ShareConsumer", "eaters")[:2] == (False, "UserSecretNotFound")
        shop.put_secret("theirs", {"password": b"x"})
        await shop.consumers.reconcile(["eaters"])
        assert "no key client.properties" in shop.ready("ShareConsumer", "eaters")[2]
        shop.put_secret("theirs", login("word"))
        await shop.consumers.reconcile(["eaters"])
        pod = shop.kube.find("Deployment", "eaters")["spec"]["template"]["spec"]
        assert pod["volumes"][0]["secret"] == {"secretName": "theirs"}
        shop.apply("ShareConsumer", "eaters", **spec)
        await shop.consumers.reconcile(["eaters"])
        conditions = shop.kube.find("ShareConsumer", "eaters")["status"]["conditions"]
        assert [c["reason"] for c in conditions if c["type"] == "Degraded"] == ["NoUser"]
        shop.apply("ShareConsumer", "eaters", **spec, user="ann")
        await shop.consumers.reconcile(["eaters"])
        assert shop.ready("ShareConsumer", "eaters")[1] == "NotForExternalCluster"

    asyncio.run(scenario())


def test_spark_jobs_reach_the_external_brokers() -> None:
    async def scenario() -> None:
        shop = Shop("kafka.example:9093")
        shop.apply("ShareGroup", "workers", **GROUP)
        spec = CONSUMER["spec"] | {"shareGroup": "workers", "userSecret": "theirs"}
        shop.apply("ShareConsumer", "eaters", **spec)
        shop.put_secret("theirs", login("word"))
        await shop.consumers.reconcile(["eaters"])
        application = shop.kube.find("SparkApplication", "eaters")["spec"]
        for part in ("driver", "executor"):
            pod = application[part]["template"]["spec"]
            assert {"secretName": "theirs"} in [v.get("secret") for v in pod["volumes"]]
        variables = env(application["driver"])
        assert variables["SHOAL_BOOTSTRAP_SERVERS"] == "kafka.example:9093"
        assert variables["SHOAL_COMMAND_CONFIG"] == "/etc/shoal/user/client.properties"

    asyncio.run(scenario())


def test_calls_wait_for_the_credentials() -> None:
    """Topics and groups are reconciled at the same time as their cluster."""

    async def scenario() -> None:
        brokers = Brokers("127.0.0.1:1", has_credentials=False)
        with pytest.raises(Unreachable, match="credentials of the cluster have not been read"):
            await brokers.describe_racks()
        brokers.set_client({})
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
            await brokers.describe_racks()
        await brokers.close()

    asyncio.run(scenario())
