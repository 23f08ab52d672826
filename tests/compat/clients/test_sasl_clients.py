"""Clients that this project did not write log in over SASL_PLAINTEXT, with every mechanism.

Users of SCRAM come from AlterUserScramCredentials. Bearer tokens are signed, and the broker reads
the provider's keys from a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
import trustme
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AiokafkaTokens
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens
from support.brokers.commands import Shoal
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafka_tools import KafkaTools, command, events
from support.runs.conditions import eventually
from support.security.sasl_dialogue import CLOSED, Dialogue
from support.security.scram_users import add_scram_user
from unit.security.test_jwt_tokens import jwk, private_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MODULE = "org.apache.kafka.common.security"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USER, PASSWORD = "alice", "secret"
#: Sessions of OPEN have no end (other than a token's), those of BRIEF last five seconds.
#: SECURED is like OPEN, over TLS.
OPEN, BRIEF, SECURED = "OPEN", "BRIEF", "SECURED"
BRIEF_MS = 5000
LOAD_S = 11.0
_names = (f"sasl-{i}" for i in itertools.count())


def token(subject: str = USER, lifetime_s: int = 3600) -> str:
    now_s = int(time.time())
    claims = {"sub": subject, "iat": now_s, "exp": now_s + lifetime_s}
    return jwt.encode(claims, private_key(), "RS256", headers={"kid": "k1"})


class SaslBroker:
    """A broker with the listeners PLAINTEXT, OPEN, BRIEF and SECURED."""

    def __init__(self, directory: Path) -> None:
        keys = directory / "keys.json"
        keys.write_text(json.dumps({"keys": [jwk(private_key())]}))
        self.token_file = directory / "token"
        self.token_file.write_text(token())
        names = ("PLAINTEXT", OPEN, BRIEF, SECURED)
        self.addresses = dict(zip(names, (f"127.0.0.1:{p}" for p in free_ports(4)), strict=True))
        authority = trustme.CA()
        self.authority = directory / "ca.pem"
        authority.cert_pem.write_to_path(self.authority)
        certificate = directory / "broker.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
        configs = {
            "listener.security.protocol.map": (
                f"PLAINTEXT:PLAINTEXT,{OPEN}:SASL_PLAINTEXT,{BRIEF}:SASL_PLAINTEXT,"
                f"{SECURED}:SASL_SSL"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
            "shoal.oauthbearer.allowed.urls": f"file://{keys}",
            f"listener.name.{BRIEF.lower()}.connections.max.reauth.ms": str(BRIEF_MS),
            "group.initial.rebalance.delay.ms": "0",
        }
        for name in (OPEN, BRIEF, SECURED):
            configs[f"listener.name.{name.lower()}.plain.sasl.jaas.config"] = (
                f'{MODULE}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            )
        self.process = ShoalProcess(
            directory / "data",
            configs=configs,
            flags=[f"--listener={name}://{self.addresses[name]}" for name in names[1:]],
        )
        self.process.bootstrap = self.addresses["PLAINTEXT"]

    def start(self) -> SaslBroker:
        self.process.start()
        add_scram_user(self.addresses["PLAINTEXT"], USER, PASSWORD)
        return self

    def topic(self) -> str:
        """Create a topic, and return its name."""
        name = next(_names)
        with WireClient(self.addresses["PLAINTEXT"]) as client:
            client.create_topic(name)
        return name

    def logins(self, name: str, listener: str) -> float:
        return self.process.metric(
            f'kafka_server_socket_server_metrics_{name}_total{{listener="{listener}"}}'
        )

    def java_properties(self, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
        found = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            return found | {
                "sasl.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;",
                "sasl.login.callback.handler.class": (
                    f"{MODULE}.oauthbearer.OAuthBearerLoginCallbackHandler"
                ),
                "sasl.oauthbearer.jwt.retriever.class": f"{MODULE}.oauthbearer.FileJwtRetriever",
                "sasl.oauthbearer.assertion.file": "",
                "sasl.oauthbearer.token.endpoint.url": f"file://{self.token_file}",
            }
        kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        return found | {
            "sasl.jaas.config": (
                f'{MODULE}.{kind}LoginModule required username="{USER}" password="{password}";'
            )
        }


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    found = SaslBroker(tmp_path_factory.mktemp("sasl")).start()
    yield found
    assert found.process.stop() == 0, "\n".join(found.process.log[-40:])


def librdkafka(address: str, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return found | {"oauth_cb": lambda _config: (token(), time.time() + 3600)}
    return found | {"sasl.username": USER, "sasl.password": password}


class _KafkaPythonTokens(KafkaPythonTokens):  # type: ignore[misc]
    """It has extensions too (KIP-342)."""

    def token(self) -> str:
        return token()

    def extensions(self) -> dict[str, str]:
        return {"traceId": "1"}


class _AiokafkaTokens(AiokafkaTokens):  # type: ignore[misc]
    async def token(self) -> str:
        return token()


def python_options(address: str, mechanism: str, tokens: Any) -> dict[str, Any]:
    found = {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return found | {"sasl_oauth_token_provider": tokens}
    return found | {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}


def through_librdkafka(broker: SaslBroker, mechanism: str, topic: str) -> list[bytes]:
    settings = librdkafka(broker.addresses[OPEN], mechanism)
    producer = Producer(settings)
    for n in range(10):
        producer.produce(topic, b"v%d" % n)
    assert producer.flush(60) == 0
    consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = consumer.consume(10, 60)
    consumer.close()
    return [message.value() for message in found]


def through_kafka_python(broker: SaslBroker, mechanism: str, topic: str) -> list[bytes]:
    options = python_options(broker.addresses[OPEN], mechanism, _KafkaPythonTokens())
    producer = KafkaProducer(**options)
    for n in range(10):
        producer.send(topic, b"v%d" % n)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000, **options
    )
    found = [message.value for message in itertools.islice(consumer, 10)]
    consumer.close()
    return found


def through_aiokafka(broker: SaslBroker, mechanism: str, topic: str) -> list[bytes]:
    async def run() -> list[bytes]:
        options = python_options(broker.addresses[OPEN], mechanism, _AiokafkaTokens())
        async with AIOKafkaProducer(**options) as producer:
            for n in range(10):
                await producer.send_and_wait(topic, b"v%d" % n)
        consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **options)
        async with consumer:
            return [(await consumer.getone()).value for _ in range(10)]

    return asyncio.run(asyncio.wait_for(run(), 120))


def through_kcat(broker: SaslBroker, mechanism: str, topic: str) -> list[bytes]:
    words = ["kcat", "-b", broker.addresses[OPEN], "-t", topic]
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    words += [word for pair in options.items() for word in ("-X", "=".join(pair))]
    lines = "".join(f"v{n}\n" for n in range(10)).encode()
    subprocess.run([*words, "-P"], input=lines, check=True, timeout=120)
    done = subprocess.run(
        [*words, "-C", "-e", "-o", "beginning"], capture_output=True, check=True, timeout=120
    )
    return done.stdout.split()


def through_shoal(broker: SaslBroker, mechanism: str, topic: str) -> list[bytes]:
    shoal = Shoal(broker.addresses[OPEN])
    shoal.environment["SHOAL_CLIENT_SASL_PASSWORD"] = PASSWORD
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
    }
    words = [word for pair in properties.items() for word in ("-X", "=".join(pair))]
    shoal.says("produce", topic, *words, stdin="".join(f"v{n}\n" for n in range(10)))
    said = shoal.says("consume", topic, "--from-beginning", "--max-messages", "10", *words)
    return said.encode().split()


THROUGH: dict[str, Callable[[SaslBroker, str, str], list[bytes]]] = {
    "librdkafka": through_librdkafka,
    "kafka-python": through_kafka_python,
    "aiokafka": through_aiokafka,
    "kcat": through_kcat,
    "shoal": through_shoal,
}


#: These get their tokens from an identity provider, which this file does not have.
WITH_A_PROVIDER = ("kcat", "shoal")
LOGINS = [
    (client, mechanism)
    for client in THROUGH
    for mechanism in MECHANISMS
    if mechanism != "OAUTHBEARER" or client not in WITH_A_PROVIDER
]


@pytest.mark.parametrize(("client", "mechanism"), LOGINS)
def test_produce_and_consume(sasl: SaslBroker, client: str, mechanism: str) -> None:
    found = THROUGH[client](sasl, mechanism, sasl.topic())
    assert sorted(found) == [b"v%d" % n for n in range(10)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_over_tls(sasl: SaslBroker, mechanism: str) -> None:
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(sasl.authority)}
    settings = librdkafka(sasl.addresses[SECURED], mechanism) | tls
    topic = sasl.topic()
    producer = Producer(settings)
    producer.produce(topic, b"v" * 100_000)
    assert producer.flush(60) == 0
    consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    (message,) = consumer.consume(1, 60)
    consumer.close()
    assert message.value() == b"v" * 100_000


def run_java(
    tool: str, broker: SaslBroker, config: Path, *words: str, option: str = "--command-config"
) -> str:
    """Run a tool of Kafka's to its end, and return its output."""
    flags = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{broker.token_file}"
    line = command(tool, "--bootstrap-server", broker.addresses[OPEN], option, str(config), *words)
    done = subprocess.run(
        [line[0], flags, *line[1:]],
        input="v0\nv1\n",
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.java
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java_logs_in(sasl: SaslBroker, tmp_path: Path, mechanism: str) -> None:
    """All of Kafka's clients log in by the same code, so one of them shows each mechanism."""
    config = tmp_path / "client.properties"
    lines = sasl.java_properties(mechanism)
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items() if value))
    topic = next(_names)
    words = ("--create", "--topic", topic)
    if mechanism == "OAUTHBEARER":  # It needs a property of its JVM.
        said = run_java("kafka-topics", sasl, config, *words)
    else:
        said = KafkaTools(sasl.addresses[OPEN], config).run("topics", *words)
    assert f"Created topic {topic}" in said, said


@pytest.mark.java
def test_java_with_a_wrong_password(sasl: SaslBroker, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    lines = sasl.java_properties("PLAIN", "wrong")
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    said = KafkaTools(sasl.addresses[OPEN], config).run("topics", "--list", status=1)
    assert "Authentication failed: Invalid username or password" in said, said


def test_a_session_ends_with_its_bearer_token(sasl: SaslBroker) -> None:
    message = f"n,,\x01auth=Bearer {token(lifetime_s=2)}\x01\x01"
    ended = sasl.logins("expired_connections_killed", OPEN)
    with Dialogue(sasl.addresses[OPEN]) as dialogue:
        dialogue.handshake("OAUTHBEARER")
        dialogue.token(message.encode())
        code, _, lifetime_s, _ = dialogue.notes[-1]
        assert code == "none"
        assert 0 < lifetime_s <= 2

        def closed() -> bool:
            dialogue.request()
            return dialogue.notes[-1] == CLOSED

        eventually(closed, what="the end of the token")
    assert sasl.logins("expired_connections_killed", OPEN) == ended + 1


class Load:
    """A producer that sends numbers until it is stopped, and a consumer that receives them."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        self.errors: list[str] = []
        self.sent = 0
        self.received: list[int] = []
        settings = settings | {"error_cb": lambda error: self.errors.append(str(error))}
        self._producer = Producer(settings | {"acks": "all", "linger.ms": 5})
        self._consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
        self._topic = topic
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce),
            threading.Thread(target=self._consume),
        ]

    def start(self) -> None:
        self._consumer.subscribe([self._topic])
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending, and wait until everything sent is received."""
        self._stop.set()
        self._threads[0].join()
        with contextlib.suppress(AssertionError):
            eventually(lambda: len(self.received) >= self.sent, timeout_s=60)
        self.done = True
        self._threads[1].join()
        self._consumer.close()

    done = False

    def _produce(self) -> None:
        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                self.errors.append(str(error))

        while not self._stop.wait(0.001):
            try:
                self._producer.produce(self._topic, b"%d" % self.sent, on_delivery=delivered)
            except (BufferError, KafkaException) as error:
                self.errors.append(str(error))
            self.sent += 1
            self._producer.poll(0)
        if self._producer.flush(60):
            self.errors.append("not everything was sent")

    def _consume(self) -> None:
        while not self.done:
            for message in self._consumer.consume(1000, 0.1):
                if message.error():
                    self.errors.append(str(message.error()))
                else:
                    self.received.append(int(message.value()))


@pytest.mark.nightly
def test_logins_again_under_load_lose_nothing(sasl: SaslBroker) -> None:
    names = ("successful_reauthentication", "expired_connections_killed", "failed_reauthentication")
    before = [sasl.logins(name, BRIEF) for name in names]
    mechanisms = ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER")
    loads = [Load(librdkafka(sasl.addresses[BRIEF], each), sasl.topic()) for each in mechanisms]
    for load in loads:
        load.start()
    begun = time.monotonic()
    # Each has a producer and a consumer with two connections each, of which one is used.
    logins = before[0] + 4 * len(loads)
    eventually(
        lambda: sasl.logins(names[0], BRIEF) >= logins and time.monotonic() - begun > LOAD_S,
        what="two logins again of each",
    )
    for load in loads:
        load.stop()
    for load, mechanism in zip(loads, mechanisms, strict=True):
        assert not load.errors, mechanism
        assert sorted(load.received) == list(range(load.sent)), mechanism
        assert load.sent > 100, mechanism
    after = [sasl.logins(name, BRIEF) for name in names]
    assert after[1:] == before[1:], "a session ended although its client logs in again"


@pytest.mark.java
def test_java_logs_in_again(sasl: SaslBroker, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    lines = sasl.java_properties("SCRAM-SHA-256")
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    before = sasl.logins("successful_reauthentication", BRIEF)
    ended = sasl.logins("expired_connections_killed", BRIEF)
    done = subprocess.run(
        command(
            "kafka-verifiable-producer",
            *("--bootstrap-server", sasl.addresses[BRIEF], "--topic", sasl.topic()),
            *("--max-messages", "3500", "--throughput", "500", "--command-config", str(config)),
        ),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    (summary,) = events(done.stdout.splitlines(), "tool_data")
    assert (summary["sent"], summary["acked"]) == (3500, 3500), done.stderr
    assert sasl.logins("successful_reauthentication", BRIEF) > before
    assert sasl.logins("expired_connections_killed", BRIEF) == ended
