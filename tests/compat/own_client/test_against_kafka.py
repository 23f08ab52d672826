"""Our client against Apache Kafka: the scenarios of Shoal's own tests, then TLS and SASL."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from shoal.client.client import Client
from shoal.client.consume.start_offsets import Reset, find_start_offsets
from shoal.client.errors import ClientError, SecurityError, Unreachable
from shoal.client.net.batches import Isolation
from shoal.client.net.cluster import TopicPartition
from shoal.client.settings import Settings
from support.kafka.kafkas import KafkaProcess
from support.scenarios import client_scenarios, transaction_scenarios

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

#: Scenarios that wait. By day they run on Shoal alone (test_against_shoal).
AT_NIGHT = (
    client_scenarios.a_lock_that_runs_out,
    client_scenarios.a_session_that_the_broker_has_ended,
    client_scenarios.acknowledgements_ride_on_the_next_fetch,
    client_scenarios.closing_gives_records_back,
    client_scenarios.hundreds_of_objects_in_a_few_calls,
    client_scenarios.members_share_one_partition,
    client_scenarios.positions_of_share_groups,
    client_scenarios.ranges_without_their_payload,
)
SCENARIOS = [
    pytest.param(scenario, marks=[pytest.mark.nightly] if scenario in AT_NIGHT else [])
    for scenario in client_scenarios.ALL + transaction_scenarios.ALL
]
USER, PASSWORD = "ann", 'se"cret, with=signs'


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    """A Kafka with a plaintext listener, one with SASL, and one with TLS."""
    folder = tmp_path_factory.mktemp("kafka")
    key_pair = _certificate(folder)
    quoted = PASSWORD.replace('"', '\\\\"')
    plain = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{quoted}";'
    )
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    credentials = tuple(
        word
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for word in ("--add-scram", f"{mechanism}=[name={USER},password=scrambled]")
    )
    process = KafkaProcess(
        folder / "node",
        listeners={"SASL": "SASL_PLAINTEXT", "TLS": "SSL"},
        configs={
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl.plain.sasl.jaas.config": plain,
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": scram,
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": scram,
            "listener.name.tls.ssl.keystore.type": "PEM",
            "listener.name.tls.ssl.keystore.location": str(key_pair),
            "listener.name.tls.ssl.truststore.type": "PEM",
            "listener.name.tls.ssl.truststore.location": str(folder / "certificate.pem"),
            "listener.name.tls.ssl.client.auth": "required",
        },
        format_flags=credentials,
    ).start()
    yield process
    process.kill9()


def _certificate(folder: Path) -> Path:
    """Create a self-signed certificate for 127.0.0.1; key and certificate are in one file."""
    key, certificate, pair = (folder / f"{n}.pem" for n in ("key", "certificate", "pair"))
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    pair.write_text(key.read_text() + certificate.read_text())
    return pair


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_scenario(scenario: Callable[[Client], Awaitable[None]], kafka: KafkaProcess) -> None:
    async def run() -> None:
        async with Client(kafka.bootstrap) as client:
            await scenario(client)

    asyncio.run(run())


def cluster_id(settings: Settings) -> str:
    async def ask() -> str:
        async with Client(settings) as client:
            return (await client.admin.describe_cluster()).cluster_id

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("mechanism", "password"),
    [("PLAIN", PASSWORD), ("SCRAM-SHA-256", "scrambled"), ("SCRAM-SHA-512", "scrambled")],
)
def test_sasl(kafka: KafkaProcess, mechanism: str, password: str) -> None:
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    login = {"sasl.username": USER, "sasl.password": password}
    assert cluster_id(Settings.from_bootstrap(kafka.addresses["SASL"], properties | login))
    quoted = password.replace('"', '\\"')
    module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
    jaas = {"sasl.jaas.config": f'{module} required username="{USER}" password="{quoted}";'}
    assert cluster_id(Settings.from_bootstrap(kafka.addresses["SASL"], properties | jaas))
    wrong = {"sasl.username": USER, "sasl.password": "wrong"}
    with pytest.raises(SecurityError, match=f"refuses user '{USER}'"):
        cluster_id(Settings.from_bootstrap(kafka.addresses["SASL"], properties | wrong))


def test_tls_with_a_certificate_on_both_sides(kafka: KafkaProcess) -> None:
    folder = kafka.directory.parent
    trust = {"security.protocol": "SSL", "ssl.ca.location": str(folder / "certificate.pem")}
    own = {"ssl.keystore.location": str(folder / "pair.pem"), "ssl.keystore.type": "PEM"}
    address = kafka.addresses["TLS"]
    assert cluster_id(Settings.from_bootstrap(address, trust | own))
    inline = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": (folder / "certificate.pem").read_text(),
        "ssl.keystore.key": (folder / "key.pem").read_text(),
        "ssl.keystore.certificate.chain": (folder / "certificate.pem").read_text(),
    }
    assert cluster_id(Settings.from_bootstrap(address, inline))
    with pytest.raises(SecurityError, match="certificate verify failed"):
        cluster_id(Settings.from_bootstrap(address, {"security.protocol": "SSL"} | own))
    with pytest.raises(ClientError):
        cluster_id(Settings.from_bootstrap(address, trust))


def test_the_wrong_kind_of_listener(kafka: KafkaProcess) -> None:
    with pytest.raises(Unreachable, match="If it expects TLS or SASL"):
        cluster_id(Settings.from_bootstrap(kafka.addresses["SASL"]))


def test_aborted_transactions_are_left_out(kafka: KafkaProcess) -> None:
    topic = client_scenarios.name("transactions")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for values, commit in ((b"ab", True), (b"cd", False), (b"e", True)):
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, bytes([value]), partition=0)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
    # Kafka answers the end of a transaction before its marker is in the log. Only the next producer
    # of that id waits for it.
    Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic}).init_transactions(
        30
    )

    async def read(isolation: Isolation) -> bytes:
        async with Client(kafka.bootstrap) as client:
            where = TopicPartition(topic, 0)
            ends = await find_start_offsets(client.cluster, [where], Reset.LATEST)
            fetched = await client.fetch_range(*where, 0, ends[where] - 1, isolation=isolation)
            return b"".join(r.value or b"" for one in fetched for r in one.records())

    assert asyncio.run(read(Isolation.READ_COMMITTED)) == b"abe"
    assert asyncio.run(read(Isolation.READ_UNCOMMITTED)) == b"abcde"
