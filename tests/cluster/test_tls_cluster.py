"""Three brokers whose listeners, also those for controllers, all need certificates of clients."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_migration import Worker
from cluster.test_replication import CALM_CONFIGS, PARTITIONS
from confluent_kafka import Consumer, Producer
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.attacks import captures
from support.brokers.clusters import ShoalCluster, running
from support.brokers.queues import Queue
from support.runs.conditions import eventually
from support.runs.machine import lacking
from support.security.certificates import Authority, Stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARKER = b"a-record-in-clear-text"
#: What may leave in clear text.
RECORDS = 4_000
_names = (f"topic-{n}" for n in itertools.count())


class Secured(ShoalCluster):
    """A cluster, its authority, and the stores of its nodes and clients."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.authority = Authority()
        self.stores = Stores(folder / "stores")
        client = self.stores.configs(self.authority.issue("client"), self.authority, "client")
        super().__init__(
            folder,
            configs={
                **CALM_CONFIGS,
                "ssl.client.auth": "required",
                "shoal.ssl.reload.interval.ms": "200",
                **more,
            },
            listener="SSL",
            client={"security.protocol": "SSL", **client},
        )
        for id, node in self.nodes.items():
            node.configs |= self.certify(id)

    def certify(self, id: int) -> dict[str, str]:
        """Write new stores of a node. Return the configs that name them."""
        identity = self.authority.issue(f"node-{id}")
        return self.stores.configs(identity, self.authority, f"node-{id}")

    def librdkafka(self) -> dict[str, str]:
        """Properties of a client of librdkafka."""
        keystore = self.client["ssl.keystore.location"]
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": self.client["ssl.truststore.location"],
            "ssl.certificate.location": keystore,
            "ssl.key.location": keystore,
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Each test restarts the nodes that it kills, and changes no certificates."""
    with running(Secured(tmp_path_factory.mktemp("cluster"))) as found:
        assert isinstance(found, Secured)
        yield found


@pytest.fixture
def renewing(tmp_path: Path) -> Iterator[Secured]:
    """A cluster whose certificates a test changes."""
    with running(Secured(tmp_path)) as found:
        assert isinstance(found, Secured)
        yield found


def new_topic(cluster: Secured) -> str:
    name = next(_names)
    with SyncClient(cluster.bootstrap, cluster.client) as client:
        client.run(client.admin.topics.create([NewTopic(name, PARTITIONS, 3)]))
    cluster.on_all(name, cluster.brokers)
    return name


class Writer:
    """A producer with acks=all, and the values that were acknowledged."""

    def __init__(self, cluster: Secured, topic: str, *, first: int = 0) -> None:
        self.topic = topic
        self.acknowledged: set[bytes] = set()
        self.failed: list[str] = []
        self._numbers = itertools.count(first)
        self.producer = Producer({**cluster.librdkafka(), "enable.idempotence": True})

    def write(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            value = b"%s-%d" % (MARKER, number)
            self.producer.produce(self.topic, value, on_delivery=self._delivered)
            self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(60) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(message.value())
        else:
            self.failed.append(str(error))


def read(cluster: Secured, topic: str, expected: set[bytes]) -> None:
    """Read until all values are there."""
    consumer = Consumer(
        {**cluster.librdkafka(), "group.id": f"of-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: set[bytes] = set()

    def everything() -> bool:
        for message in consumer.consume(1000, timeout=0.5):
            assert message.error() is None, message.error()
            found.add(message.value())
        return found >= expected

    try:
        eventually(everything)
    finally:
        consumer.close()


def test_records_are_replicated_and_survive_a_kill(cluster: Secured) -> None:
    topic = new_topic(cluster)
    writer = Writer(cluster, topic)
    writer.write(2000)
    writer.flush()
    leader = cluster.topic(1, topic)[0].leader_id
    writer.write(1000)
    cluster.nodes[leader].kill9()
    writer.write(1000)
    writer.flush()
    assert not writer.failed
    assert len(writer.acknowledged) == 4000
    cluster.nodes[leader].start()
    eventually(
        lambda: all(len(p.isr_nodes) == 3 for p in cluster.topic(leader, topic)),
        what="all replicas are in sync",
    )
    read(cluster, topic, writer.acknowledged)


def test_a_controller_is_killed(cluster: Secured) -> None:
    first = cluster.controller()
    cluster.nodes[first].kill9()
    second = cluster.controller(but=first)
    assert second != first
    cluster.nodes[first].start()
    new_topic(cluster)


def test_nodes_are_known_by_their_certificates_and_others_are_refused(cluster: Secured) -> None:
    """Another authority's certificate, none, and plaintext, at both kinds of listeners."""
    other = cluster.stores.configs(
        Authority("Another CA").issue("node-1"), cluster.authority, "other"
    )
    client = dict(cluster.client)
    strangers = [
        {"security.protocol": "SSL", **other},
        {k: v for k, v in client.items() if "keystore" not in k},
        {},
    ]
    for stranger in strangers:
        cluster.client = stranger
        for api in (ApiKey.METADATA, ApiKey.VOTE):
            with pytest.raises(ClientError):
                cluster.ask(1, api, {"topics": None})
    cluster.client = client
    assert cluster.metadata(1).brokers
    logins = sum(
        sample.value
        for sample in cluster.nodes[1].samples(
            "kafka_server_socket_server_metrics_failed_authentication_total"
        )
    )
    assert logins >= 6


def test_the_rest_of_an_alteration_reaches_the_controller(cluster: Secured) -> None:
    """A broker refuses certificates of its own that it cannot use. It forwards the other
    resources of the request."""
    topic = new_topic(cluster)
    id = next(id for id in cluster.brokers if id != cluster.controller())

    def retention() -> str:
        asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
        (found,) = cluster.ask(id, ApiKey.DESCRIBE_CONFIGS, {"resources": [asked]}).results
        return {config.name: config.value for config in found.configs}["retention.ms"]

    def alter(api: ApiKey, ms: str, **more: Any) -> None:
        def row(kind: int, name: str, config: str, value: str) -> dict[str, Any]:
            configs = [{"name": config, "value": value, **more}]
            return {"resource_type": kind, "resource_name": name, "configs": configs}

        resources = [
            row(2, "unknown", "retention.ms", ms),
            row(4, str(id), "listener.name.ssl.ssl.keystore.location", "/missing"),
            row(2, topic, "retention.ms", ms),
        ]
        rows = cluster.ask(id, api, {"resources": resources, "validate_only": False}).responses
        assert [(row.resource_name, row.error_code) for row in rows] == [
            ("unknown", ErrorCode.unknown_topic_or_partition),
            (str(id), ErrorCode.invalid_request),
            (topic, ErrorCode.none),
        ]
        assert "Cannot read" in rows[1].error_message
        eventually(lambda: retention() == ms, what="the topic is altered")

    alter(ApiKey.ALTER_CONFIGS, "1111111")
    alter(ApiKey.INCREMENTAL_ALTER_CONFIGS, "2222222", config_operation=0)


def test_no_record_leaves_in_clear_text(tmp_path: Path) -> None:
    """Produce, replication, fetches from files, and share fetches, on all ports."""
    reason = captures.lacks()
    if reason is not None:
        lacking(reason)
    cluster = Secured(tmp_path)
    addresses = [*cluster.addresses.values(), *cluster.controllers.values()]
    with captures.Capture(MARKER, [int(a.rpartition(":")[2]) for a in addresses]) as capture:
        try:
            cluster.start()
            with SyncClient(cluster.bootstrap, cluster.client) as client:
                queue = Queue(client, cluster.bootstrap, partitions=PARTITIONS, replicas=3)
            cluster.on_all(queue.topic, cluster.brokers)
            writer = Writer(cluster, queue.topic)
            writer.write(RECORDS)
            writer.flush()
            read(cluster, queue.topic, writer.acknowledged)
            with Worker(cluster.librdkafka(), queue) as worker:
                eventually(lambda: worker.got >= writer.acknowledged, what="all jobs")
        finally:
            cluster.stop()
    assert capture.bytes > 5 * RECORDS * len(MARKER), "the capture missed packets"
    assert capture.found == 0


@pytest.mark.nightly
def test_a_broker_is_killed_while_it_loads_certificates(renewing: Secured) -> None:
    """Its files change all the time. It starts again with what is there, and nothing is lost."""
    cluster = renewing
    topic = new_topic(cluster)
    writer, over = Writer(cluster, topic), threading.Event()

    def renew() -> None:
        while not over.is_set():
            for id in cluster.nodes:
                cluster.certify(id)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        for id in cluster.nodes:
            writer.write(500)
            loaded = cluster.nodes[id].samples("shoal_listener_certificate_loads_total")
            before = min(sample.value for sample in loaded)
            eventually(
                lambda id=id, before=before: all(
                    sample.value > before
                    for sample in cluster.nodes[id].samples(
                        "shoal_listener_certificate_loads_total"
                    )
                ),
                what="certificates are loaded",
            )
            cluster.nodes[id].kill9()
            cluster.nodes[id].start()
            eventually(
                lambda id=id: all(len(p.isr_nodes) == 3 for p in cluster.topic(id, topic)),
                timeout_s=60,
                what="all replicas are in sync",
            )
        writer.flush()
    finally:
        over.set()
        thread.join()
    assert not writer.failed
    assert len(writer.acknowledged) == 1500
    read(cluster, topic, writer.acknowledged)


@pytest.mark.nightly
def test_certificates_are_renewed_under_load(renewing: Secured) -> None:
    """New leaf certificates, then another authority in three phases: no produce fails, and no
    broker restarts. A client of librdkafka keeps the certificates that it began with."""
    cluster = renewing
    topic = new_topic(cluster)
    old, new = cluster.authority, Authority("New CA")
    both = old.pem + new.pem
    cluster.stores.write("client-ca.pem", both)
    writers = [Writer(cluster, topic)]
    pids = [node.pid for node in cluster.nodes.values()]

    def loaded(times: int) -> bool:
        return all(
            sample.value >= times
            for node in cluster.nodes.values()
            for sample in node.samples("shoal_listener_certificate_loads_total")
        )

    def phase(times: int) -> None:
        writers[-1].write(1000)
        eventually(lambda: loaded(times), what="each broker has loaded its new stores")
        with SyncClient(cluster.bootstrap, cluster.client) as client:
            found = client.run(client.admin.describe_cluster())
            assert len(found.brokers) == 3
        writers[-1].write(1000)

    for id in cluster.nodes:
        cluster.certify(id)
    phase(1)
    for id in cluster.nodes:
        cluster.stores.write(f"node-{id}-ca.pem", both)
    phase(2)
    for id in cluster.nodes:
        cluster.stores.write(f"node-{id}.pem", new.issue(f"node-{id}").pem)
    phase(3)
    cluster.stores.write("client.pem", new.issue("client").pem)
    cluster.stores.write("client-ca.pem", new.pem)
    writers[0].flush()
    writers.append(Writer(cluster, topic, first=1_000_000))
    for id in cluster.nodes:
        cluster.stores.write(f"node-{id}-ca.pem", new.pem)
    phase(4)
    # Connections of before stay open, and those between nodes can be made again.
    leader = cluster.topic(1, topic)[0].leader_id
    other = next(id for id in cluster.nodes if id != leader)
    cluster.nodes[other].kill9()
    pids.remove(pids[other - 1])
    writers[-1].write(1000)
    cluster.nodes[other].start()
    writers[-1].flush()
    assert not [writer.failed for writer in writers if writer.failed]
    assert [len(writer.acknowledged) for writer in writers] == [6000, 3000]
    assert {node.pid for node in cluster.nodes.values()} > set(pids)
    eventually(
        lambda: all(len(p.isr_nodes) == 3 for p in cluster.topic(leader, topic)),
        what="all replicas are in sync",
    )
    read(cluster, topic, writers[0].acknowledged | writers[1].acknowledged)


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = ' username="node" password="of-nodes" user_node="of-nodes" user_client="of-clients";'


def test_nodes_log_in_to_each_other(tmp_path: Path) -> None:
    """SASL_SSL with PLAIN among brokers and controllers, without certificates of clients."""
    authority, stores = Authority(), Stores(tmp_path / "stores")
    trusted = stores.configs(None, authority, "client")
    cluster = ShoalCluster(
        tmp_path,
        configs={
            **CALM_CONFIGS,
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN + USERS,
        },
        listener="SASL_SSL",
        client={
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": PLAIN + ' username="client" password="of-clients";',
            **trusted,
        },
    )
    for id, node in cluster.nodes.items():
        node.configs |= stores.configs(authority.issue(f"node-{id}"), authority, f"node-{id}")
    try:
        cluster.start()
        with SyncClient(cluster.bootstrap, cluster.client) as client:
            client.run(client.admin.topics.create([NewTopic("t", PARTITIONS, 3)]))
        partitions = cluster.on_all("t", cluster.brokers)
        assert all(len(p.isr_nodes) == 3 for p in partitions)
        first = cluster.controller()
        cluster.nodes[first].kill9()
        assert cluster.controller(but=first) != first
    finally:
        cluster.stop()


def test_a_node_that_could_not_log_in_does_not_start(tmp_path: Path) -> None:
    """Each is one sentence with the remedy, without the password."""
    authority, stores = Authority(), Stores(tmp_path / "stores")
    jaas = "listener.name.sasl_ssl.plain.sasl.jaas.config"
    whole = {
        **CALM_CONFIGS,
        **stores.configs(authority.issue("node"), authority),
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        jaas: PLAIN + USERS,
    }
    for change, sentence in (
        ({"sasl.mechanism.inter.broker.protocol": None}, "protocol is GSSAPI, which is not supp"),
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}, "must be included in sasl.en"),
        ({jaas: PLAIN + ' user_client="of-clients";'}, "user"),
        ({"sasl.mechanism.controller.protocol": None}, "controller.protocol is GSSAPI"),
    ):
        configs = {n: v for n, v in {**whole, **change}.items() if v is not None}
        cluster = ShoalCluster(tmp_path / "refused", configs=configs, listener="SASL_SSL")
        refusal = cluster.nodes[1].refusal()
        assert sentence in refusal
        assert "of-nodes" not in refusal
        assert "of-clients" not in refusal
