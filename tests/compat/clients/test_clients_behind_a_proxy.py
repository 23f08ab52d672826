"""Clients that reach three real brokers through a proxy, which routes by the host in TLS.

The operator renders the brokers, the Services and the Ingresses or TLSRoutes into an API server in
memory. The proxy does what these routes say. Only the names of hosts are resolved to this host.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint, Manifest, resource
from kube.secured_pods import METRICS, NOW, SecuredPods
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError
from shoal_operator.model import certificates, routes, security
from support.brokers.ports import free_ports
from support.brokers.sni_proxy import SniProxy
from support.kafka.kafka_tools import KafkaTools
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shoal_operator.model.certificates import KeyPair

PORT = 9094
IDS = (0, 1, 2)
MTLS = {"type": "tls"}
BOOTSTRAP = "bootstrap.queues.example.com"
HOSTS = {BOOTSTRAP, *(f"broker-{n}.queues.example.com" for n in IDS)}
#: A host for which the brokers have a certificate, as the proxy has no route for it.
UNKNOWN = "broker-7.queues.example.com"
ROUTED: dict[str, Manifest] = {
    "Ingress": {"class": "nginx"},
    "TLSRoute": {"parentRefs": [{"name": "queues", "sectionName": "kafka"}]},
}


class Outside:
    """The brokers of a QueueCluster with a routed listener, and the proxy before them."""

    def __init__(self, folder: Path, kind: str) -> None:
        (self.port,) = free_ports(1)
        outside = {
            "name": "outside",
            "port": PORT,
            "type": kind,
            "tls": {},
            "authentication": MTLS,
            "bootstrap": {"host": BOOTSTRAP},
            "hostTemplate": "broker-{nodeId}.queues.example.com",
            "advertisedPort": self.port,
            **ROUTED[kind],
        }
        cluster = resource(
            "QueueCluster",
            "main",
            replicas=3,
            storage={"size": "1Gi"},
            listeners=[
                {
                    "name": "tls",
                    "port": 9092,
                    "type": "Internal",
                    "tls": {},
                    "authentication": MTLS,
                },
                outside,
            ],
            metrics={"port": METRICS},
            superUsers=["User:CN=ann"],
        )
        self.kind, self.folder = kind, folder
        self.api = ApiServer(CrashPoint())
        self.api.installed = {one: [kind] for one in routes.VERSIONS[kind]}
        self.pods = SecuredPods(folder, cluster, kube=self.api)
        self.proxy: SniProxy

    def start(self) -> None:
        self.pods.start()
        every = self.api.all(self.kind)
        targets = {host: self.target(route) for route in every for host in hosts_of(route)}
        assert targets.keys() == HOSTS
        self.proxy = SniProxy(self.port, targets).__enter__()

    def stop(self) -> None:
        self.proxy.__exit__()
        self.pods.stop()

    def target(self, route: Manifest) -> int:
        """Return the local port of a broker to whose pod the route's Service leads."""
        name, port = backend(route)
        spec = self.api.find("Service", name)["spec"]
        (given,) = (one for one in spec["ports"] if one["port"] == port)
        pod = next(
            one for one in self.api.all("Pod") if spec["selector"].items() <= labels(one).items()
        )
        ports = {one["name"]: one["containerPort"] for one in pod["spec"]["containers"][0]["ports"]}
        number = int(pod["metadata"]["name"].rpartition("-")[2])
        return self.pods.ports[number, ports[given["targetPort"]]]

    def ann(self) -> KeyPair:
        authority = self.pods.authority(security.CLIENTS)
        return certificates.issue(authority, "ann", now=NOW, validity_days=1)

    def trusted(self) -> bytes:
        return self.pods.secret(security.format_ca_cert_secret("main", security.CLUSTER))["ca.crt"]


def labels(pod: Manifest) -> dict[str, str]:
    """Return the labels of a pod, with the one that the StatefulSet's controller gives it."""
    name = pod["metadata"]["name"]
    return {**pod["metadata"]["labels"], "statefulset.kubernetes.io/pod-name": name}


def hosts_of(route: Manifest) -> list[str]:
    spec = route["spec"]
    if route["kind"] == "TLSRoute":
        return list(spec["hostnames"])
    return [rule["host"] for rule in spec["rules"]]


def backend(route: Manifest) -> tuple[str, int]:
    """Return the Service of a route and its port."""
    (rule,) = route["spec"]["rules"]
    if route["kind"] == "TLSRoute":
        (ref,) = rule["backendRefs"]
        return ref["name"], ref["port"]
    (path,) = rule["http"]["paths"]
    service = path["backend"]["service"]
    return service["name"], service["port"]["number"]


@pytest.fixture(scope="module")
def outside(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outside]:
    found = Outside(tmp_path_factory.mktemp("outside"), request.param)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve the hosts to this one, as their records in a DNS would lead to the proxy."""
    resolve = socket.getaddrinfo

    def local(host: Any, *words: Any, **more: Any) -> Any:
        return resolve("127.0.0.1" if host in {*HOSTS, UNKNOWN} else host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", local)


@pytest.mark.usefixtures("resolved")
@pytest.mark.parametrize("outside", ["TLSRoute"], indirect=True)
def test_each_broker_is_reached_by_its_host(outside: Outside) -> None:
    given = security.build_operator_client(outside.trusted(), outside.ann())
    with SyncClient(f"{BOOTSTRAP}:{outside.port}", given) as client:
        led = {n: [n] for n in IDS}
        made = client.run(client.admin.topics.create([NewTopic("jobs", assignments=led)]))
        assert not isinstance(made["jobs"], KafkaError)
        produce(client)
        # Only the leader of a partition takes a record, so that a wrong route would be an error.
        assert outside.proxy.routed.keys() == HOSTS
        identity = client.run(client.admin.tokens.identity())
        assert identity is not None
        assert identity.principal == "User:CN=ann"


def produce(client: SyncClient) -> None:
    """Store a record in each partition."""

    async def send() -> None:
        async with client.client.producer(delivery_timeout_ms=10_000) as producer:
            for partition in IDS:
                await (await producer.send("jobs", b"x", partition=partition))

    client.run(send())


@pytest.mark.parametrize("outside", ["TLSRoute"], indirect=True)
def test_the_brokers_certificate_is_for_all_hosts_that_have_a_route(outside: Outside) -> None:
    context = ssl.create_default_context(cadata=outside.trusted().decode())
    own = outside.folder / "ann.pem"
    pair = outside.ann()
    own.write_bytes(pair.key + pair.certificate)
    context.load_cert_chain(own)
    for host in sorted(HOSTS):
        with (
            socket.create_connection(("127.0.0.1", outside.port)) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            assert encrypted.version() == "TLSv1.3"
    with (
        socket.create_connection(("127.0.0.1", outside.port)) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname=UNKNOWN)


@pytest.fixture
def own_hosts(tmp_path: Path) -> tuple[str, ...]:
    """Return the beginning of a command line whose program has the hosts in its /etc/hosts."""
    if os.geteuid() or not shutil.which("unshare"):
        lacking("a mount namespace needs root and unshare")
    hosts = hosts_file(tmp_path / "hosts")
    mount = f'mount --bind {hosts} /etc/hosts && exec "$0" "$@"'
    return ("unshare", "--mount", "sh", "-c", mount)


def hosts_file(path: Path) -> Path:
    path.write_text("".join(f"127.0.0.1 {host}\n" for host in sorted(HOSTS)))
    return path


@pytest.mark.parametrize("outside", ["TLSRoute"], indirect=True)
def test_librdkafka_comes_through_the_proxy(
    outside: Outside, kcat: str, own_hosts: tuple[str, ...], tmp_path: Path
) -> None:
    pair, files = outside.ann(), {}
    mine = security.build_operator_client(outside.trusted(), pair)
    contents = {"certificate": pair.certificate, "key": pair.key, "ca": outside.trusted()}
    for name, content in contents.items():
        (tmp_path / f"{name}.pem").write_bytes(content)
        files[f"ssl.{name}.location"] = str(tmp_path / f"{name}.pem")
    given = {"security.protocol": "ssl", "topic.metadata.refresh.sparse": "false", **files}
    options = [f"-X{name}={value}" for name, value in given.items()]
    topic = [kcat, "-b", f"{BOOTSTRAP}:{outside.port}", *options, "-t", "lines"]
    with SyncClient(outside.pods.bootstrap(9092), mine) as client:
        led = {n: [n] for n in IDS}
        made = client.run(client.admin.topics.create([NewTopic("lines", assignments=led)]))
        assert not isinstance(made["lines"], KafkaError)
    outside.proxy.routed.clear()
    for number in IDS:
        where = [*own_hosts, *topic, "-p", str(number)]
        subprocess.run([*where, "-P"], input=f"line-{number}\n", text=True, check=True, timeout=60)
    read = subprocess.run(
        [*own_hosts, *topic, "-C", "-e", "-q"], capture_output=True, check=True, timeout=60
    )
    assert sorted(read.stdout.split()) == [b"line-0", b"line-1", b"line-2"]
    assert outside.proxy.routed.keys() == HOSTS


@pytest.mark.java
@pytest.mark.nightly
@pytest.mark.parametrize("outside", ["Ingress"], indirect=True)
def test_kafkas_java_client_comes_through_the_proxy(
    outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = hosts_file(tmp_path / "hosts")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djdk.net.hosts.file={hosts}")
    pair, stores = outside.ann(), {"keystore": "", "truststore": ""}
    for name, content in (
        ("keystore", pair.key + pair.certificate),
        ("truststore", outside.trusted()),
    ):
        (tmp_path / f"{name}.pem").write_bytes(content)
        stores[name] = f"ssl.{name}.type=PEM\nssl.{name}.location={tmp_path / name}.pem\n"
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=SSL\n" + "".join(stores.values()))
    tools = KafkaTools(f"{BOOTSTRAP}:{outside.port}", properties)
    assigned = ("--replica-assignment", ",".join(map(str, IDS)))
    tools.run("topics", "--create", "--topic", "words", *assigned)
    words = [f"{n}:word-{n}" for n in range(30)]
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    tools.run("console-producer", "--topic", "words", *keyed, stdin="\n".join(words) + "\n")
    limits = ("--from-beginning", "--max-messages", "30", "--timeout-ms", "30000")
    said = tools.run("console-consumer", "--topic", "words", *limits)
    assert sorted(line for line in said.splitlines() if line.startswith("word-")) == sorted(
        word.partition(":")[2] for word in words
    )
    assert outside.proxy.routed.keys() == HOSTS
