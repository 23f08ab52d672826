"""Tests that clients in Go have of themselves, built from their pinned modules.

Those of sarama run against three brokers, each behind a proxy that the tests switch off and slow
down. Some are left out: they stop brokers by `docker compose`, or want five.

Those of confluent-kafka-go need a broker with an authorizer, and a second listener with logins. One
is left out: its `Flush(-1)` returns at once, and it fails if a report is still unread.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from e2e.cluster.programs import module_directory, program
from support.brokers.clusters import CALM, ShoalCluster, running
from support.brokers.ports import free_ports
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

TIMEOUT_S = 1200
#: The addresses of brokers that sarama's tests name begin behind this port.
SARAMA_PORT = 29_090
SARAMA_LEFT_OUT = (
    "TestFuncAdminListConsumerGroupOffsets",
    "TestFuncTxnProduceWithBrokerFailure",
    "TestFuncIdempotentBufferedSequence",
    "TestFuncAdminDescribeLogDirs",
)
#: The tests that pass, at least.
SARAMA_TESTS, CONFLUENT_TESTS = 50, 39
#: As in the brokers that the tests of confluent-kafka-go start by Docker Compose.
CONFLUENT_CONFIGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_testuser="testpass";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
    "connections.max.reauth.ms": "10000",
    "num.partitions": "4",
    "broker.rack": "RACK1",
}


def run_suite(name: str, folder: Path, settings: Mapping[str, str], *words: str) -> str:
    """Run the tests of a program in this folder; return what they print."""
    done = subprocess.run(
        (program(name), "-test.v", f"-test.timeout={TIMEOUT_S}s", *words),
        cwd=folder,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    failed = [line for line in done.stdout.splitlines() if "--- FAIL" in line]
    assert done.returncode == 0, (failed, done.stdout[-10_000:])
    return done.stdout


@contextmanager
def proxies(targets: Mapping[str, str]) -> Iterator[str]:
    """A proxy with these addresses and where each leads; yields its own address for requests."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"

    def post(path: str, body: object) -> bool:
        request = urllib.request.Request(url + path, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request) as answer:
                return bool(answer.status < 300)
        except urllib.error.URLError:
            return False

    words = (program("toxiproxy"), "-host", "127.0.0.1", "-port", str(port))
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for number, (listen, upstream) in enumerate(targets.items(), 1):
                made = {"name": f"kafka{number}", "listen": listen, "upstream": upstream}
                eventually(lambda made=made: post("/proxies", made | {"enabled": True}))
            yield url
        finally:
            process.terminate()


@pytest.mark.nightly
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_sarama(tmp_path: Path) -> None:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    configs = {**CALM, "replica.selector.class": selector, "auto.create.topics.enable": "false"}
    cluster = ShoalCluster(tmp_path, configs=configs, racks=("1", "2", "3"))
    brokers = list(cluster.addresses.values())
    # The tests name five brokers; the last two addresses lead to the first ones.
    targets = {f"127.0.0.1:{SARAMA_PORT + n}": brokers[(n - 1) % 3] for n in range(1, 6)}
    for (_, node), address in zip(cluster.nodes.items(), targets, strict=False):
        node.configs["advertised.listeners"] = f"PLAINTEXT://{address}"
    with proxies(targets) as url, running(cluster):
        settings = {"TOXIPROXY_ADDR": url, "KAFKA_VERSION": "4.1.0"}
        skip = f"-test.skip=^({'|'.join(SARAMA_LEFT_OUT)})$"
        folder = module_directory("client-suites", "github.com/IBM/sarama")
        printed = run_suite("sarama", folder, settings, "-test.run=^TestFunc", skip)
    assert printed.count("\n--- PASS") >= SARAMA_TESTS


@pytest.mark.nightly
@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent_kafka_go(
    tmp_path: Path, start_broker: Callable[..., ShoalProcess], protocol: str
) -> None:
    """Building it downloads 34 MB."""
    (port,) = free_ports(1)
    sasl = f"127.0.0.1:{port}"
    broker = start_broker(configs=CONFLUENT_CONFIGS, flags=(f"--listener=SASL://{sasl}",))
    addresses = {"Brokers": broker.bootstrap, "BrokersSasl": sasl}
    login = {"SaslUsername": "testuser", "SaslPassword": "testpass", "SaslMechanism": "PLAIN"}
    (tmp_path / "testconf.json").write_text(json.dumps(addresses | login))
    names = "-test.run=^(TestIntegration|TestTransactionalSendOffsets)$"
    settings = {"TEST_CONSUMER_GROUP_PROTOCOL": protocol}
    printed = run_suite("confluent-kafka-go", tmp_path, settings, names)
    assert printed.count("    --- PASS") >= CONFLUENT_TESTS
    assert "\n--- PASS: TestTransactionalSendOffsets" in printed
