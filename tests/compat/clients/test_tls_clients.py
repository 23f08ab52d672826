"""Clients of others over TLS with certificates, `openssl s_client`, and Apache Kafka beside."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from shoal.protocol.api import ApiKey
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafka_tools import KafkaTools
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually
from support.runs.machine import lacking
from support.security.certificates import Authority, Identity, Stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


AUTHORITY = Authority()
CLIENT = AUTHORITY.issue("client")
#: More than five megabytes in each topic: responses have slices of files.
COUNT, VALUE = 6_000, os.urandom(500).hex().encode()
_names = (f"tls-{n}" for n in itertools.count())


class Secured:
    """A broker whose listener SSL needs certificates of clients, and the clients' stores."""

    def __init__(self, folder: Path) -> None:
        self.stores = Stores(folder / "stores")
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        server = self.stores.configs(AUTHORITY.issue("server"), AUTHORITY)
        self.process = ShoalProcess(
            folder / "data",
            configs={
                **server,
                "ssl.client.auth": "required",
                "group.initial.rebalance.delay.ms": "0",
            },
            flags=[f"--listener=SSL://{self.address}"],
        ).start()
        client = self.stores.configs(CLIENT, AUTHORITY, "client")
        self.keystore, self.ca = client["ssl.keystore.location"], client["ssl.truststore.location"]
        lines = {"security.protocol": "SSL", **client}
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        self.properties = self.stores.write("client.properties", text)

    def librdkafka(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SSL",
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.keystore,
            "ssl.key.location": self.keystore,
            **more,
        }

    def topic(self) -> str:
        name = next(_names)
        admin = AdminClient(self.librdkafka())
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)
        return name

    def fill(self, topic: str) -> None:
        producer = Producer(self.librdkafka())
        for number in range(COUNT):
            producer.produce(topic, b"%d-" % number + VALUE)
            producer.poll(0)
        assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("secured"))
    yield found
    assert found.process.stop() == 0, "\n".join(found.process.log[-40:])


def test_librdkafka(secured: Secured) -> None:
    topic = secured.topic()
    secured.fill(topic)
    consumer = Consumer(secured.librdkafka(**{"group.id": topic, "auto.offset.reset": "earliest"}))
    consumer.subscribe([topic])
    found: set[bytes] = set()

    def everything() -> bool:
        for message in consumer.consume(1000, timeout=0.5):
            assert message.error() is None
            found.add(message.value())
        return len(found) == COUNT

    eventually(everything)
    consumer.close()
    assert found == {b"%d-" % n + VALUE for n in range(COUNT)}


def test_librdkafka_without_a_certificate_is_refused(secured: Secured) -> None:
    properties = {
        n: v
        for n, v in secured.librdkafka().items()
        if n not in ("ssl.certificate.location", "ssl.key.location")
    }
    with pytest.raises(KafkaException):
        AdminClient(properties).list_topics(timeout=5)


def test_kafka_python(secured: Secured) -> None:
    topic = secured.topic()
    tls = {
        "bootstrap_servers": secured.address,
        "security_protocol": "SSL",
        "ssl_cafile": secured.ca,
        "ssl_certfile": secured.keystore,
        "ssl_keyfile": secured.keystore,
    }
    producer = KafkaProducer(**tls)
    for number in range(COUNT):
        producer.send(topic, b"%d-" % number + VALUE)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(
        topic, **tls, auto_offset_reset="earliest", consumer_timeout_ms=60_000, group_id=topic
    )
    found = {message.value for message in itertools.islice(consumer, COUNT)}
    consumer.close()
    assert len(found) == COUNT


def test_aiokafka(secured: Secured) -> None:
    topic = secured.topic()
    context = ssl.create_default_context(cafile=secured.ca)
    context.load_cert_chain(secured.keystore)
    tls = {
        "bootstrap_servers": secured.address,
        "security_protocol": "SSL",
        "ssl_context": context,
    }

    async def main() -> None:
        async with AIOKafkaProducer(**tls) as producer:
            sent = [await producer.send(topic, b"%d-" % n + VALUE) for n in range(COUNT)]
            await asyncio.gather(*sent)
        consumer = AIOKafkaConsumer(topic, **tls, auto_offset_reset="earliest")
        async with consumer, asyncio.timeout(120):
            found: set[bytes] = set()
            while len(found) < COUNT:
                for messages in (await consumer.getmany(timeout_ms=1000)).values():
                    found |= {message.value for message in messages}

    asyncio.run(main())


@pytest.mark.java
def test_java(secured: Secured) -> None:
    """The console producer and consumer, with PEM stores."""
    topic = secured.topic()
    tools = KafkaTools(secured.address)
    config = ("--command-config", str(secured.properties))
    lines = "".join(f"value-{n}\n" for n in range(500))
    tools.run("console-producer", "--topic", topic, *config, stdin=lines)
    secured.fill(topic)
    reading = ("--topic", topic, "--timeout-ms", "30000", *config)
    said = tools.run(
        "console-consumer", "--from-beginning", *reading, "--max-messages", str(COUNT + 500)
    )
    assert said.count("value-") == 500
    assert f"Processed a total of {COUNT + 500} messages" in said


@pytest.mark.java
def test_java_alters_certificates(secured: Secured) -> None:
    """kafka-configs: the same words as with Kafka. The broker refuses files that it cannot use."""
    tools = KafkaTools(secured.address)
    renewed = AUTHORITY.issue("server")
    path = secured.stores.write("renewed.pem", renewed.pem)
    words = ("--alter", "--entity-type", "brokers", "--entity-name", "1")
    config = ("--command-config", str(secured.properties))
    name = "listener.name.ssl.ssl.keystore.location"
    bad = tools.run("configs", *words, "--add-config", f"{name}=/missing", *config, status=1)
    assert "Invalid TLS configuration of the listener SSL" in bad
    tools.run("configs", *words, "--add-config", f"{name}={path}", *config)
    context = ssl.create_default_context(cafile=secured.ca)
    context.load_cert_chain(secured.keystore)

    def shown() -> bool:
        with WireClient(secured.address, tls=context) as client:
            assert isinstance(client.sock, ssl.SSLSocket)
            certificate = client.sock.getpeercert(binary_form=True)
            assert certificate is not None
            return ssl.DER_cert_to_PEM_cert(certificate) in renewed.pem

    eventually(shown)
    described = tools.run(
        *("configs", "--describe", "--entity-type", "brokers", "--entity-name", "1", *config)
    )
    assert f"{name}={path}" in described


# openssl s_client.


def s_client(secured: Secured, *words: str, stdin: str = "") -> str:
    if shutil.which("openssl") is None:
        lacking("no openssl on the PATH")
    done = subprocess.run(
        ["openssl", "s_client", "-connect", secured.address, "-CAfile", secured.ca]
        + ["-cert", secured.keystore, "-key", secured.keystore, *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-tls1_3"], ["New, TLSv1.3, Cipher is TLS_AES_256_GCM_SHA384", "Verify return code: 0"]),
        (["-tls1_2"], ["Protocol  : TLSv1.2", "Verify return code: 0"]),
        (
            ["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
            ["Cipher is TLS_CHACHA20_POLY1305_SHA256"],
        ),
        (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], ["Cipher is (NONE)", "alert protocol version"]),
        (["-tls1", "-cipher", "ALL:@SECLEVEL=0"], ["Cipher is (NONE)"]),
        (["-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"], ["Cipher is (NONE)"]),
        (["-tls1_2", "-cipher", "aNULL:@SECLEVEL=0"], ["Cipher is (NONE)"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_versions_and_ciphers(secured: Secured, flags: list[str], expected: list[str]) -> None:
    said = s_client(secured, *flags)
    assert [text for text in expected if text not in said] == [], said
    if "(NONE)" not in expected[0]:
        assert "Secure Renegotiation IS" in said
        assert "Compression: NONE" in said
        assert "issuer=CN = Test CA" in said or "issuer=CN=Test CA" in said


def test_renegotiation_is_refused(secured: Secured) -> None:
    """TLS 1.2 only; TLS 1.3 has none. The connection ends, or continues as it was."""
    said = s_client(secured, "-tls1_2", stdin="R\n")
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said


def test_new_keys_are_agreed_on(secured: Secured) -> None:
    """TLS 1.3: the client asks for new keys in both directions."""
    said = s_client(secured, "-tls1_3", stdin="K\n")
    assert "KEYUPDATE" in said
    assert "error" not in said.partition("KEYUPDATE")[2].lower()


# Beside Apache Kafka, at night: tests/wire/test_tls_listeners.py has its answers.


#: The configs of each listener, as its name would prefix them.
LISTENERS = {
    "REQUIRED": {"ssl.client.auth": "required", "ssl.enabled.protocols": "TLSv1.2"},
    "PROTOCOL": {"ssl.protocol": "TLSv1.2"},
    "ENABLED": {"ssl.enabled.protocols": "TLSv1.3"},
    "OLDER_SUITE": {"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
    "NEWER_SUITE": {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"},
    "REQUESTED": {"ssl.client.auth": "requested"},
}
#: The version of TLS that a listener refuses.
REFUSED = {"ENABLED": "1.2", "OLDER_SUITE": "1.3", "NEWER_SUITE": "1.2"}


class Both:
    """Kafka and Shoal with the same listeners, stores and configs."""

    def __init__(self, folder: Path) -> None:
        self.stores = Stores(folder / "stores")
        server = self.stores.configs(AUTHORITY.issue("server"), AUTHORITY)
        own = {
            f"listener.name.{listener.lower()}.{name}": value
            for listener, configs in LISTENERS.items()
            for name, value in configs.items()
        }
        configs = {**server, **own}
        protocols = dict.fromkeys(LISTENERS, "SSL")
        self._kafka = KafkaProcess(folder / "kafka", listeners=protocols, configs=configs).start()
        ports = free_ports(len(LISTENERS))
        addresses = {n: f"127.0.0.1:{port}" for n, port in zip(LISTENERS, ports, strict=True)}
        protocol_map = ",".join(f"{name}:SSL" for name in LISTENERS)
        self._shoal = ShoalProcess(
            folder / "shoal",
            configs={
                **configs,
                "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{protocol_map}",
            },
            flags=[f"--listener={name}://{address}" for name, address in addresses.items()],
        ).start()
        self._addresses = {"kafka": self._kafka.addresses, "shoal": addresses}
        self.plain = {"kafka": self._kafka.bootstrap, "shoal": self._shoal.bootstrap}

    def stop(self) -> None:
        self._kafka.kill9()
        self._shoal.kill9()

    def results(self, listener: str, context: ssl.SSLContext) -> dict[str, str]:
        """Return what each answers: the version of TLS, or refused."""
        found = {}
        for name, addresses in self._addresses.items():
            try:
                with WireClient(addresses[listener], tls=context) as client:
                    client.call(ApiKey.API_VERSIONS, 0, {})
                    assert isinstance(client.sock, ssl.SSLSocket)
                    found[name] = str(client.sock.version())
            except (OSError, IndexError, EOFError, AssertionError):
                found[name] = "refused"
        return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    found = Both(tmp_path_factory.mktemp("both"))
    yield found
    found.stop()


def trusting(version: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.pem)
    if version:
        found = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
        context.minimum_version = context.maximum_version = found
    return context


def showing(stores: Stores, identity: Identity) -> ssl.SSLContext:
    context = trusting()
    context.load_cert_chain(stores.write(f"{identity.fingerprint}.pem", identity.pem))
    return context


@pytest.mark.nightly
@pytest.mark.java
def test_handshakes_are_refused_as_by_kafka(both: Both) -> None:
    from cryptography.x509.oid import ExtendedKeyUsageOID

    below = Authority("Intermediate", AUTHORITY)
    contexts = {
        "known": showing(both.stores, CLIENT),
        "below an intermediate authority": showing(both.stores, below.issue("client")),
        "expired": showing(both.stores, AUTHORITY.issue("client", days=(-9, -1))),
        "early": showing(both.stores, AUTHORITY.issue("client", days=(1, 9))),
        "another authority": showing(both.stores, Authority("Another CA").issue("client")),
        "usage of servers": showing(
            both.stores, AUTHORITY.issue("client", usages=[ExtendedKeyUsageOID.SERVER_AUTH])
        ),
        "no usage": showing(both.stores, AUTHORITY.issue("client", usages=[])),
        "none": trusting(),
        "only TLS 1.3": trusting("1.3"),
    }
    found = {name: both.results("REQUIRED", context) for name, context in contexts.items()}
    assert {n: r["shoal"] for n, r in found.items()} == {n: r["kafka"] for n, r in found.items()}
    assert [name for name, result in found.items() if result["kafka"] != "refused"] == [
        "known",
        "below an intermediate authority",
        "no usage",
    ]


@pytest.mark.nightly
@pytest.mark.java
@pytest.mark.parametrize("listener", [name for name in LISTENERS if name != "REQUIRED"])
def test_versions_are_those_of_kafka(both: Both, listener: str) -> None:
    for version in ("1.2", "1.3", ""):
        found = both.results(listener, trusting(version))
        assert found["shoal"] == found["kafka"], (version, found)
        if REFUSED.get(listener) == version:
            assert found["kafka"] == "refused"
    stranger = showing(both.stores, Authority("Another CA").issue("client"))
    found = both.results(listener, stranger)
    assert found["shoal"] == found["kafka"], found


TOPIC, BROKER = 2, 4
KEYSTORE = "listener.name.protocol.ssl.keystore.location"


def alteration(kind: int, name: str, config: str, value: str) -> dict[str, Any]:
    row = {"name": config, "value": value, "config_operation": 0}
    return {"resource_type": kind, "resource_name": name, "configs": [row]}


@pytest.mark.nightly
@pytest.mark.java
def test_an_altered_certificate_is_refused_by_itself(both: Both) -> None:
    """The other resources of the request are altered, as with Kafka."""
    bad = alteration(BROKER, "1", KEYSTORE, "/missing")
    good = alteration(BROKER, "1", "background.threads", "8")
    topic = alteration(TOPIC, "t", "retention.ms", "1234567")
    unknown = alteration(TOPIC, "unknown", "retention.ms", "1")
    requests = {
        "alone": [bad],
        "first": [bad, topic],
        "between": [unknown, bad, topic],
        "twice": [bad, bad, topic],
        "twice, once well": [bad, good, topic],
    }
    found = {name: _altered(both, resources) for name, resources in requests.items()}
    for name, results in found.items():
        assert results["shoal"] == results["kafka"], name
    assert found["first"]["kafka"] == [(BROKER, "1", 42), (TOPIC, "t", 0)]


def _altered(both: Both, resources: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows of each response. Check that the topic is altered if its row says so."""
    found: dict[str, Any] = {}
    for name, address in both.plain.items():
        with WireClient(address) as client:
            client.create_topic("t")
            body = {"resources": resources, "validate_only": False}
            rows = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
            found[name] = [(r.resource_type, r.resource_name, r.error_code) for r in rows]
            expected = "1234567" if (TOPIC, "t", 0) in found[name] else "604800000"
            eventually(lambda c=client, e=expected: _retention(c) == e)
            deletion = {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 30_000}
            assert not client.call(ApiKey.DELETE_TOPICS, 6, deletion).responses[0].error_code
    return found


def _retention(client: WireClient) -> str:
    key = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": ["retention.ms"]}
    (found,) = client.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [key]}).results
    return str(found.configs[0].value) if found.configs else ""
