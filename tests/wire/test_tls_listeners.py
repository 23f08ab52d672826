"""TLS of a broker process: its stores, versions, ciphers and clients' certificates, and changes of
them while it runs. The clients are Python's `ssl`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import socket
import ssl
import subprocess
import time
import warnings
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.client import SyncClient
from shoal.client.errors import SecurityError
from shoal.metadata.image import ImageScope
from shoal.protocol.api import ApiKey
from shoal.server.audit import AuditLogger
from shoal.server.config import InvalidConfig, resolve
from shoal.server.metadata_cache import MetadataCache
from shoal.server.network.link_security import LinkSecurity
from shoal.server.network.links import Link, SetupTimeouts
from shoal.server.network.node_tls import NodeTls
from shoal.server.node import Node
from shoal.server.process import compose
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.runs.machine import lacking
from support.security.certificates import PASSWORD, Authority, Identity, Stores, named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shoal.client.errors import KafkaError

AUTHORITY = Authority()
STRANGERS = Authority("Another CA")
SERVER = AUTHORITY.issue("server")
CLIENT = AUTHORITY.issue("client")
NAME = "listener.name.ssl."
#: Connections of which the memory is measured.
IDLE = 200
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class Secured:
    """A broker with a listener SSL beside a plain one, and its stores."""

    def __init__(self, folder: Path) -> None:
        self.stores = Stores(folder / "stores")
        self._folder = folder
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.process: ShoalProcess | None = None

    def prepare(self, configs: dict[str, str]) -> ShoalProcess:
        self.process = ShoalProcess(
            self._folder / "data",
            configs=configs,
            flags=[f"--listener=SSL://{self.address}", "--log-level=debug"],
        )
        return self.process

    def refusal(self, configs: dict[str, str]) -> str:
        """Return why a broker with these configs is not made. It would be one of this process;
        `test_stores_of_keytool` has one that is a process and prints the reason."""
        own = {
            "log.dirs": str(self._folder / "data"),
            "listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]},SSL://{self.address}",
        }
        with closing(asyncio.new_event_loop()) as loop, pytest.raises(InvalidConfig) as raised:
            compose(resolve(own | configs, {}), loop)
        return str(raised.value)

    def start(self, configs: dict[str, str]) -> Secured:
        self.prepare(configs).start()
        return self

    def connect(self, context: ssl.SSLContext | None = None) -> WireClient:
        """Connect, and exchange a request: with TLS 1.3 a refusal comes after the handshake."""
        client = WireClient(self.address, tls=context or trusting())
        try:
            answer = client.call(ApiKey.API_VERSIONS, 0, {})
            assert answer.error_code == 0
        except BaseException:
            client.sock.close()
            raise
        return client

    def session(self, context: ssl.SSLContext | None = None) -> tuple[str, str, str]:
        """Return version, cipher suite and certificate (its fingerprint) of a new connection."""
        with self.connect(context) as client:
            assert isinstance(client.sock, ssl.SSLSocket)
            certificate = client.sock.getpeercert(binary_form=True)
            cipher = client.sock.cipher()
            assert certificate is not None
            assert cipher is not None
            fingerprint = hashlib.sha256(certificate).hexdigest()
            return str(client.sock.version()), cipher[0], fingerprint

    def refuses(self, context: ssl.SSLContext) -> None:
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError, EOFError)):
            self.connect(context)

    def principal(self, context: ssl.SSLContext) -> str:
        """Return the principal of a new connection, as the audit log has it."""
        assert self.process is not None
        log = self.process.log
        before = len(log)

        def line() -> str | None:
            found = [one for one in log[before:] if "logged in" in one]
            return found[0] if found else None

        with self.connect(context):
            return eventually(line).partition("principal=")[2].strip("'")

    def failures(self, text: str) -> list[str]:
        """Return the lines of the audit log about refused clients that contain a text."""
        assert self.process is not None
        return [one for one in self.process.log if "login failed" in one and text in one]

    def metric(self, name: str, **labels: str) -> float:
        assert self.process is not None
        (sample,) = self.process.samples(name, listener="SSL", **labels)
        return sample.value

    def alter(self, **configs: str | None) -> KafkaError | None:
        """Alter configs of the listener, whose names have `_` for a dot."""
        changes = [
            ConfigChange(f"{NAME}{name.replace('_', '.')}", value)
            for name, value in configs.items()
        ]
        assert self.process is not None
        with SyncClient(self.process.bootstrap) as client:
            resource = ConfigResource(ConfigResourceType.BROKER, "1")
            return client.run(client.admin.configs.alter({resource: changes}))[resource]

    def pem(self, identity: Identity = SERVER) -> dict[str, str]:
        """Configs with PEM stores in files."""
        return self.stores.configs(identity, AUTHORITY)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    found = Secured(tmp_path)
    yield found
    if found.process is not None:
        found.process.kill9()


def trusting(authority: Authority = AUTHORITY) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pem)
    return context


def showing(secured: Secured, identity: Identity) -> ssl.SSLContext:
    """The context of a client with a certificate."""
    context = trusting()
    context.load_cert_chain(secured.stores.write(f"{identity.fingerprint}.pem", identity.pem))
    return context


# Stores.


def truststore(*authorities: Authority) -> bytes:
    entries = [pkcs12.PKCS12Certificate(one.certificate, b"ca") for one in authorities]
    encryption = BestAvailableEncryption(PASSWORD.encode())
    return pkcs12.serialize_key_and_certificates(None, None, None, entries, encryption)


def stores_of(secured: Secured, kind: str) -> dict[str, str]:
    """The same key, certificate and authority in different formats."""
    write = secured.stores.write
    if kind == "PEM files":
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(write("k.pem", SERVER.pem)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(write("t.pem", AUTHORITY.pem)),
        }
    if kind == "encrypted PEM file":
        store = SERVER.key_pem("key-password") + SERVER.chain_pem
        return {
            **stores_of(secured, "PEM files"),
            "ssl.keystore.location": str(write("k.pem", store)),
            "ssl.key.password": "key-password",
        }
    if kind == "PEM in configs":
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": SERVER.key_pem("key-password").replace("\n", " "),
            "ssl.key.password": "key-password",
            "ssl.keystore.certificate.chain": SERVER.chain_pem,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": AUTHORITY.pem.replace("\n", " "),
        }
    assert kind in ("PKCS12", "JKS")  # JKS is Kafka's default for files that are PKCS12.
    return {
        "ssl.keystore.type": kind,
        "ssl.keystore.location": str(write("k.p12", SERVER.pkcs12())),
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.type": kind,
        "ssl.truststore.location": str(write("t.p12", truststore(STRANGERS, AUTHORITY))),
        "ssl.truststore.password": PASSWORD,
    }


@pytest.mark.parametrize(
    "kind", ["PEM files", "encrypted PEM file", "PEM in configs", "PKCS12", "JKS"]
)
def test_formats_of_stores(secured: Secured, kind: str) -> None:
    secured.start({**stores_of(secured, kind), "ssl.client.auth": "required"})
    session = secured.session(showing(secured, CLIENT))
    assert session[2] == SERVER.fingerprint
    secured.refuses(trusting())
    secured.refuses(showing(secured, Authority("Third CA").issue("client")))
    assert secured.metric("shoal_listener_certificate_info", fingerprint=SERVER.fingerprint) == 1
    trusted = "shoal_listener_trusted_certificate_info"
    assert secured.metric(trusted, fingerprint=AUTHORITY.fingerprint) == 1
    expiry_s = secured.metric("shoal_listener_certificate_expiry_seconds")
    assert 89 * 86_400 < expiry_s < 90 * 86_400


def test_stores_of_keytool(secured: Secured, tmp_path: Path) -> None:
    """A truststore that keytool wrote, and a JKS file, which is refused with the command that
    converts it."""
    if shutil.which("keytool") is None:
        lacking("keytool is part of a JRE: apt-get install default-jre-headless")
    ca, path = secured.stores.write("ca.pem", AUTHORITY.pem), tmp_path / "trust.jks"
    for type in ("pkcs12", "jks"):
        path.unlink(missing_ok=True)
        subprocess.run(
            ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", str(ca)]
            + ["-keystore", str(path), "-storepass", PASSWORD, "-storetype", type],
            check=True,
            capture_output=True,
        )
        configs = secured.pem() | {
            "ssl.client.auth": "required",
            "ssl.truststore.location": str(path),
            "ssl.truststore.type": "JKS",
            "ssl.truststore.password": PASSWORD,
        }
        if type == "jks":
            refusal = secured.prepare(configs).refusal()
            command = f"keytool -importkeystore -srckeystore {path} -destkeystore {path}.p12"
            assert command in refusal
        else:
            secured.start(configs).session(showing(secured, CLIENT))
            assert secured.process is not None
            secured.process.stop()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ssl.keystore.location": None}, "it has no certificate. Set listener.name.ssl.ssl.keyst"),
        ({"ssl.keystore.location": "missing.pem"}, "Cannot read missing.pem: No such file"),
        ({"ssl.keystore.type": None}, "is in the format PEM: set ssl.keystore.type=PEM"),
        ({"ssl.keystore.type": "BKS", "ssl.keystore.password": "x"}, "must be PEM or PKCS12"),
        ({"ssl.keystore.password": "secret-1"}, "only key password may be specified"),
        ({"ssl.keystore.key": "secret-1"}, "certificate chain is not specified"),
        ({"ssl.client.auth": "required", "ssl.truststore.location": None}, "no truststore has the"),
        ({"ssl.truststore.type": "PKCS12"}, "is in the format PEM: set ssl.truststore.type=PEM"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_RC4_128_MD5"}, "RC4_128_MD5, which is not supported"),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "must be one of: TLSv1.2, TLSv1.3"),
        ({"ssl.enabled.protocols": ""}, "ssl.enabled.protocols is empty"),
        (
            {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256", "ssl.enabled.protocols": "TLSv1.2"},
            "no cipher suite is for a version of TLS that is enabled",
        ),
        ({"ssl.principal.mapping.rules": "RULE:(a/y/"}, "no regular expression"),
        ({"shoal.ssl.crl.location": "missing.pem"}, "Cannot read missing.pem"),
        ({"ssl.engine.factory.class": "x.Y"}, "Java TLS engines cannot be loaded"),
        ({"ssl.provider": "BC"}, "Java security providers cannot be loaded"),
    ],
)
def test_configs_that_cannot_be_used_are_one_sentence(
    secured: Secured, change: dict[str, str | None], sentence: str
) -> None:
    configs = {n: v for n, v in {**secured.pem(), **change}.items() if v is not None}
    if configs.get("ssl.keystore.type") is None:
        configs["ssl.keystore.password"] = "secret-1"
    if change.get("ssl.truststore.type") == "PKCS12":
        configs["ssl.truststore.password"] = "secret-1"
    refusal = secured.refusal(configs)
    assert sentence in refusal
    assert "secret-1" not in refusal


def test_stores_whose_content_is_wrong(secured: Secured) -> None:
    other = AUTHORITY.issue("other")
    write = secured.stores.write
    bad = {
        other.key_pem() + SERVER.chain_pem: "does not belong to the first certificate (CN=server)",
        SERVER.chain_pem: "has no private key (BEGIN PRIVATE KEY)",
        SERVER.key_pem(): "has no certificate (BEGIN CERTIFICATE)",
        SERVER.pem[:700]: "store.pem",
        SERVER.key_pem("a") + SERVER.chain_pem: "is encrypted: set ssl.key.password",
        "": "has no private key",
    }
    for content, sentence in bad.items():
        path = write("store.pem", content)
        refusal = secured.refusal(secured.pem() | {"ssl.keystore.location": str(path)})
        assert sentence in refusal
    wrong = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(write("store.p12", SERVER.pkcs12())),
        "ssl.keystore.password": "another-secret",
    }
    refusal = secured.refusal(secured.pem() | wrong)
    assert "Check ssl.keystore.password" in refusal
    assert "another-secret" not in refusal


def test_a_chain_with_an_intermediate_authority(secured: Secured) -> None:
    """The server sends it, and trusts a client's chain up to any certificate in its truststore."""
    below = Authority("Intermediate", AUTHORITY)
    server, client = below.issue("server"), below.issue("client")
    configs = secured.stores.configs(server, below)
    secured.start({**configs, "ssl.client.auth": "required"})
    assert secured.session(showing(secured, client))[2] == server.fingerprint
    secured.refuses(showing(secured, CLIENT))


# Versions and ciphers.


@pytest.mark.parametrize(
    ("configs", "served"),
    [
        ({}, {"TLSv1.2", "TLSv1.3"}),
        ({"ssl.enabled.protocols": "TLSv1.2"}, {"TLSv1.2"}),
        ({"ssl.enabled.protocols": "TLSv1.3"}, {"TLSv1.3"}),
        ({"ssl.protocol": "TLSv1.2"}, {"TLSv1.2", "TLSv1.3"}),
    ],
)
def test_versions_of_tls(secured: Secured, configs: dict[str, str], served: set[str]) -> None:
    """ssl.enabled.protocols; as with Kafka, not ssl.protocol. TLS 1.1 is never served."""
    secured.start(secured.pem() | configs)
    for name, version in VERSIONS.items():
        context = trusting()
        context.minimum_version = context.maximum_version = version
        if name in served:
            assert secured.session(context)[0] == name
        else:
            secured.refuses(context)
            assert eventually(lambda: secured.failures("ssl.enabled.protocols has"))
    old = trusting()
    with contextlib.suppress(ValueError), warnings.catch_warnings(action="ignore"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        secured.refuses(old)
        assert eventually(lambda: secured.failures("ssl.enabled.protocols has"))


@pytest.mark.parametrize(
    ("suites", "newer", "older"),
    [
        ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256", None),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_CHACHA20_POLY1305_SHA256",
            "TLS_CHACHA20_POLY1305_SHA256",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", None, "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ],
)
def test_cipher_suites(secured: Secured, suites: str, newer: str | None, older: str | None) -> None:
    """ssl.cipher.suites: only these are served, and so only their versions of TLS."""
    secured.start(secured.pem() | {"ssl.cipher.suites": suites})
    for version, expected in (("TLSv1.3", newer), ("TLSv1.2", older)):
        context = trusting()
        context.minimum_version = context.maximum_version = VERSIONS[version]
        if expected is None:
            secured.refuses(context)
        else:
            assert secured.session(context)[1] == expected


# Clients.


def test_certificates_of_clients(secured: Secured) -> None:
    """ssl.client.auth: none, requested and required."""
    strangers = showing(secured, STRANGERS.issue("client"))
    known, unknown = showing(secured, CLIENT), trusting()
    for auth in ("none", "requested", "required"):
        secured.start(secured.pem() | {"ssl.client.auth": auth})
        assert secured.process is not None
        if auth == "none":
            assert secured.principal(known) == "User:ANONYMOUS"
            secured.session(strangers)
        else:
            assert secured.principal(known) == "User:CN=client"
            secured.refuses(strangers)
            assert eventually(lambda: secured.failures("the client's certificate is refused"))
        if auth == "required":
            secured.refuses(unknown)
            assert eventually(lambda: secured.failures("the client sent no certificate"))
        else:
            assert secured.principal(unknown) == "User:ANONYMOUS"
        assert secured.process.stop() == 0


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        (AUTHORITY.issue("late", days=(-10, -1)), "certificate has expired"),
        (AUTHORITY.issue("early", days=(1, 10)), "certificate is not yet valid"),
        (
            AUTHORITY.issue("server only", usages=[ExtendedKeyUsageOID.SERVER_AUTH]),
            "unsuitable certificate purpose",
        ),
        (Authority("Third CA").issue("stranger"), "certificate"),
    ],
    ids=["expired", "not yet valid", "without the usage", "of another authority"],
)
def test_certificates_that_are_refused(secured: Secured, identity: Identity, reason: str) -> None:
    secured.start(secured.pem() | {"ssl.client.auth": "required"})
    secured.refuses(showing(secured, identity))
    assert eventually(lambda: secured.failures(reason))
    counts = "kafka_server_socket_server_metrics_failed_authentication_total"
    assert secured.metric(counts) >= 1


def test_users_are_named_by_rules(secured: Secured) -> None:
    """ssl.principal.mapping.rules, over the subject as Java writes it."""
    rules = r"RULE:^CN=([^,]*),OU=people.*$/$1/L,RULE:^CN=Doe\\, J.*/jane/,RULE:^OU=only$/$9x/"
    secured.start(
        secured.pem() | {"ssl.client.auth": "required", "ssl.principal.mapping.rules": rules}
    )
    people = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Größe"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "people"),
            x509.NameAttribute(NameOID.COMMON_NAME, "Alice"),
        ]
    )
    assert secured.principal(showing(secured, AUTHORITY.issue(people))) == "User:alice"
    assert secured.principal(showing(secured, AUTHORITY.issue(named("Doe, Jane")))) == "User:jane"
    secured.refuses(showing(secured, AUTHORITY.issue("nobody")))
    assert eventually(lambda: secured.failures("No rules apply to CN=nobody"))


def test_revoked_certificates_are_refused(secured: Secured) -> None:
    """shoal.ssl.crl.location, also after a change of the file."""
    first, second = AUTHORITY.issue("first"), AUTHORITY.issue("second")
    path = secured.stores.write("crl.pem", AUTHORITY.revoke(first))
    secured.start(
        secured.pem()
        | {
            "ssl.client.auth": "required",
            "shoal.ssl.crl.location": str(path),
            "shoal.ssl.reload.interval.ms": "100",
        }
    )
    secured.session(showing(secured, second))
    secured.refuses(showing(secured, first))
    assert eventually(lambda: secured.failures("certificate revoked"))
    secured.stores.write("crl.pem", AUTHORITY.revoke(second))
    eventually(lambda: secured.metric("shoal_listener_certificate_loads_total") == 1)
    secured.refuses(showing(secured, second))


def test_a_handshake_has_a_deadline(secured: Secured) -> None:
    """shoal.ssl.handshake.timeout.ms, also for a client that is half done."""
    secured.start(secured.pem() | {"shoal.ssl.handshake.timeout.ms": "300"})
    host, _, port = secured.address.rpartition(":")
    for sent in (b"", b"\x16\x03\x01\x02\x00\x01"):
        begun = time.monotonic()
        with socket.create_connection((host, int(port)), 60) as client:
            client.sendall(sent)
            assert client.recv(1) == b""
        assert time.monotonic() - begun >= 0.3
    assert eventually(lambda: secured.failures("shoal.ssl.handshake.timeout.ms"))


def test_bytes_without_tls_and_tls_without_a_listener_for_it(secured: Secured) -> None:
    secured.start(secured.pem())
    assert secured.process is not None
    with WireClient(secured.address) as client:
        client.send(ApiKey.API_VERSIONS, 0, {})
        assert client.closed()
    assert eventually(lambda: secured.failures("a Kafka request without TLS"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        WireClient(secured.process.bootstrap, tls=trusting())
    log = secured.process.log
    text = "the client speaks TLS on the listener PLAINTEXT"
    assert eventually(lambda: [line for line in log if text in line])


def test_connections_count_from_the_begin(secured: Secured) -> None:
    """max.connections.per.ip counts clients that have not finished the handshake."""
    secured.start(secured.pem() | {"max.connections.per.ip": "3"})
    host, _, port = secured.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection((host, int(port))))
        one_more = stack.enter_context(socket.create_connection((host, int(port)), 60))
        assert one_more.recv(1) == b""


@pytest.mark.nightly
def test_an_idle_connection_takes_at_most_64_kb(secured: Secured) -> None:
    """Clients with certificates, which have sent a request. Connections as many warm up."""
    broker = secured.start(secured.pem() | {"ssl.client.auth": "required"}).process
    assert broker is not None
    context = showing(secured, CLIENT)
    with contextlib.ExitStack() as stack:
        sizes = []
        for _ in range(3):
            for _ in range(IDLE):
                stack.enter_context(secured.connect(context))
            sizes.append(broker.resident_mb())
    each_kb = [1000 * (after - before) / IDLE for before, after in pairwise(sizes)]
    assert max(each_kb) <= 64, each_kb


@pytest.mark.parametrize(("algorithm", "works"), [("https", False), ("", True)])
def test_names_in_the_certificates_of_other_nodes(
    secured: Secured, algorithm: str, works: bool
) -> None:
    """ssl.endpoint.identification.algorithm, for connections of this node."""
    elsewhere = AUTHORITY.issue("server", names=("other.example",))
    secured.start(secured.pem(elsewhere) | {"ssl.client.auth": "required"})

    async def main() -> None:
        own = secured.pem(elsewhere) | {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.endpoint.identification.algorithm": algorithm,
        }
        node = Node(resolve(own, {}), asyncio.get_running_loop())
        cache = MetadataCache(ImageScope(1, node.config.explicit))
        security = LinkSecurity(node, cache, NodeTls(node, cache, AuditLogger(node)))
        host, _, port = secured.address.rpartition(":")
        link = Link(
            (host, int(port)),
            client_id="t",
            request_timeout_ms=10_000,
            timeouts=SetupTimeouts(10_000, 10_000),
            security=partial(security.get_security, "SSL"),
        )
        try:
            if works:
                assert (await link.request(ApiKey.METADATA, {"topics": None})).brokers
            else:
                with pytest.raises(SecurityError, match=r"not valid for '127\.0\.0\.1'"):
                    await link.request(ApiKey.METADATA, {"topics": None})
        finally:
            link.close()
            node.disk.close()

    asyncio.run(main())


# Changes.


def test_files_are_read_again(secured: Secured) -> None:
    """shoal.ssl.reload.interval.ms: all or nothing. Open connections stay."""
    secured.start(secured.pem() | {"shoal.ssl.reload.interval.ms": "100"})
    assert secured.process is not None
    failures = "shoal_listener_certificate_load_failures_total"
    with secured.connect() as open_connection:
        renewed = AUTHORITY.issue("server")
        for number, bad in enumerate(
            [
                renewed.key_pem() + SERVER.chain_pem,
                renewed.pem[: len(renewed.pem) // 2],
                AUTHORITY.issue("server", days=(-9, -1)).pem,
                "",
            ],
            1,
        ):
            secured.stores.write("server.pem", bad)
            eventually(lambda: secured.metric(failures) == number)  # noqa: B023
            assert secured.session()[2] == SERVER.fingerprint
        secured.stores.write("server.pem", renewed.pem)
        eventually(lambda: secured.session()[2] == renewed.fingerprint)
        assert open_connection.call(ApiKey.API_VERSIONS, 0, {}).error_code == 0
    assert secured.metric(failures) == 4
    assert secured.metric("shoal_listener_certificate_loads_total") == 1
    lines = [line for line in secured.process.log if "the previous ones stay in use" in line]
    assert len(lines) == 4
    assert any("does not belong to the first certificate" in line for line in lines)
    assert any("has expired" in line for line in lines)


def test_certificates_are_altered_by_requests(secured: Secured) -> None:
    """IncrementalAlterConfigs of listener.name.*.ssl.*, as Kafka's DynamicBrokerConfig. A broker
    refuses what it could not use before anything is stored, and keeps it over a restart."""
    secured.start(secured.pem())
    assert secured.process is not None
    renewed = AUTHORITY.issue("server")
    path = secured.stores.write("renewed.pem", renewed.pem)
    error = secured.alter(ssl_keystore_location=str(path.with_name("missing.pem")))
    assert error is not None
    assert "Invalid TLS configuration of the listener SSL: Cannot read" in str(error)
    assert secured.session()[2] == SERVER.fingerprint
    assert secured.alter(ssl_keystore_location=str(path)) is None
    eventually(lambda: secured.session()[2] == renewed.fingerprint)
    # The same value again: the file is read again at once.
    again = AUTHORITY.issue("server")
    secured.stores.write("renewed.pem", again.pem)
    assert secured.alter(ssl_keystore_location=str(path)) is None
    eventually(lambda: secured.session()[2] == again.fingerprint, timeout_s=5)
    assert secured.alter(ssl_client_auth="required") is None
    eventually(lambda: _refused(secured))
    secured.process.restart()
    eventually(lambda: _refused(secured))
    assert secured.session(showing(secured, CLIENT))[2] == again.fingerprint


def _refused(secured: Secured) -> bool:
    try:
        secured.session()
    except (OSError, IndexError, EOFError):
        return True
    return False


def test_security_configs_are_altered_on_single_listeners_only(secured: Secured) -> None:
    secured.start(secured.pem())
    assert secured.process is not None
    with SyncClient(secured.process.bootstrap) as client:

        def alter(name: str, value: str, broker: str = "1") -> str:
            resource = ConfigResource(ConfigResourceType.BROKER, broker)
            change = {resource: [ConfigChange(name, value)]}
            return str(client.run(client.admin.configs.alter(change))[resource])

        said = alter("ssl.keystore.location", "x.pem")
        assert "can be dynamically updated only per-listener using the listener prefix" in said
        said = alter("listener.name.ssl.ssl.principal.mapping.rules", "DEFAULT")
        assert "Cannot update these configs dynamically" in said
        said = alter("listener.name.ssl.ssl.client.auth", "none", broker="")
        assert "Cannot update these configs at default cluster level" in said
        resource = ConfigResource(ConfigResourceType.BROKER, "1")
        assert alter("listener.name.ssl.ssl.key.password", "secret-1") == "None"
        found: Any = client.run(client.admin.configs.describe([resource]))[resource]
        entry = found["listener.name.ssl.ssl.key.password"]
        assert (entry.value, entry.sensitive) == (None, True)


@pytest.mark.parametrize("allowed", [False, True])
def test_another_subject_or_name_needs_permission(secured: Secured, allowed: bool) -> None:
    """ssl.allow.dn.changes and ssl.allow.san.changes (KIP-978)."""
    configs = {"ssl.allow.dn.changes": "true", "ssl.allow.san.changes": "true"} if allowed else {}
    secured.start(secured.pem() | configs)
    more = AUTHORITY.issue("server", names=("localhost", "127.0.0.1", "more.example"))
    path = secured.stores.write("more.pem", more.pem)
    assert secured.alter(ssl_keystore_location=str(path)) is None
    eventually(lambda: secured.session()[2] == more.fingerprint)
    names = ("localhost", "127.0.0.1", "more.example")
    for name, identity, problem in (
        ("dn", AUTHORITY.issue("another", names=names), "DistinguishedName does not match"),
        ("san", AUTHORITY.issue("server", names=names[:1]), "SubjectAltNames do not match"),
    ):
        path = secured.stores.write(f"{name}.pem", identity.pem)
        error = secured.alter(ssl_keystore_location=str(path))
        if allowed:
            assert error is None
            eventually(lambda: secured.session()[2] == identity.fingerprint)  # noqa: B023
        else:
            assert problem in str(error)
            assert secured.session()[2] == more.fingerprint
