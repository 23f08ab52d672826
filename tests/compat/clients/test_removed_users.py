"""Open connections of users that are removed: by SCRAM, and by certificate."""

from __future__ import annotations

import contextlib
import itertools
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from cryptography import x509
from cryptography.x509.oid import NameOID
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError
from shoal.protocol.api import ApiKey
from shoal.security.revocations import Revocation
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security.certificates import Authority, Stores
from support.security.sasl_dialogue import CLOSED, Dialogue
from support.security.scram_users import add_scram_user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.security.certificates import Identity

MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
#: The impostor has the name of the authority, and another key.
AUTHORITY, IMPOSTOR = Authority(), Authority()
REVOKED = "shoal.ssl.revoked.subjects"
DISCONNECT = "shoal.sasl.scram.disconnect.removed.users"
#: OPEN and LIMITED are without TLS, so that tests can write frames.
LISTENERS = {
    "SCRAM": "SASL_SSL",
    "OPEN": "SASL_PLAINTEXT",
    "LIMITED": "SASL_PLAINTEXT",
    "MTLS": "SSL",
}
_users = (f"eve-{n}" for n in itertools.count())


class Broker:
    """A broker with the listener PLAINTEXT and `LISTENERS`."""

    def __init__(self, folder: Path, **configs: str) -> None:
        self.stores = Stores(folder / "stores")
        ports = free_ports(len(LISTENERS))
        self.addresses = {n: f"127.0.0.1:{p}" for n, p in zip(LISTENERS, ports, strict=True)}
        self.mtls = self.addresses["MTLS"]
        protocols = {"PLAINTEXT": "PLAINTEXT", **LISTENERS}
        self.process = ShoalProcess(
            folder / "data",
            configs=self.stores.configs(AUTHORITY.issue("server"), AUTHORITY)
            | {
                "listener.security.protocol.map": ",".join(
                    f"{name}:{protocol}" for name, protocol in protocols.items()
                ),
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.mtls.ssl.client.auth": "required",
                "listener.name.limited.connections.max.reauth.ms": "600000",
                "shoal.ssl.reload.interval.ms": "100",
            }
            | configs,
            flags=[f"--listener={name}://{at}" for name, at in self.addresses.items()],
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[Broker]:
        """Start it, and stop it afterwards."""
        self.process.start()
        try:
            yield self
        finally:
            self.process.kill9()

    def remove(self, user: str, *mechanisms: str) -> None:
        """Delete credentials of a user, each by a request of its own."""
        with WireClient(self.process.bootstrap) as client:
            for one in mechanisms or MECHANISMS:
                gone = [{"name": user, "mechanism": MECHANISMS[one]}]
                body = {"deletions": gone, "upsertions": []}
                found = client.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body)
                assert [row.error_code for row in found.results] == [0]

    def revoke(self, *entries: str) -> None:
        """Set the revoked subjects. Raises `KafkaError`."""
        everyone = ConfigResource(ConfigResourceType.BROKER, "")
        with SyncClient(self.process.bootstrap) as client:
            wanted = [ConfigChange(REVOKED, ",".join(entries))]
            done = client.run(client.admin.configs.alter({everyone: wanted}))
            if error := done[everyone]:
                raise error

    def showing(self, identity: Identity) -> ssl.SSLContext:
        """Return TLS of a client with a certificate."""
        context = ssl.create_default_context(cadata=AUTHORITY.pem)
        path = self.stores.write("client.pem", identity.pem)
        context.load_cert_chain(path)
        return context

    def librdkafka(self, **properties: str) -> dict[str, Any]:
        """Properties of a client that reconnects quickly."""
        return {
            "ssl.ca.pem": AUTHORITY.pem,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 100,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("removed")).running() as found:
        yield found


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    """The broker of the file, without revoked subjects."""
    yield shared
    shared.revoke()


@pytest.fixture
def eve(shared: Broker) -> str:
    """A new user of the broker, with the password "secret"."""
    user = next(_users)
    add_scram_user(shared.process.bootstrap, user, "secret")
    return user


# SCRAM.


def logged_in(address: str, user: str, mechanism: str = "SCRAM-SHA-256") -> Dialogue:
    """Return a connection whose user has logged in."""
    dialogue = Dialogue(address)
    dialogue.handshake(mechanism)
    dialogue.scram_login(user, "secret", mechanism=mechanism)
    dialogue.notes.clear()
    return dialogue


def is_open(dialogue: Dialogue) -> bool:
    """Whether the broker answers a request on this connection."""
    dialogue.request()
    return bool(dialogue.notes.pop() != CLOSED)


def test_a_removed_credential_ends_its_connections(broker: Broker, eve: str) -> None:
    """Those of this user and mechanism only. A new password ends none."""
    bootstrap, address, bob = broker.process.bootstrap, broker.addresses["OPEN"], next(_users)
    add_scram_user(bootstrap, bob, "secret")
    with contextlib.ExitStack() as stack:
        own, other, bobs = (
            stack.enter_context(logged_in(address, *login))
            for login in ((eve, "SCRAM-SHA-256"), (eve, "SCRAM-SHA-512"), (bob, "SCRAM-SHA-256"))
        )
        add_scram_user(bootstrap, eve, "secret")
        assert all(map(is_open, (own, other, bobs)))
        broker.remove(eve, "SCRAM-SHA-256")
        # Without a request of its own.
        assert own.receive() is None
        assert is_open(other)
        assert is_open(bobs)
    (ended,) = eventually(lambda: ends_of(broker, eve))
    assert "connections=1" in ended


def ends_of(broker: Broker, user: str) -> list[str]:
    """Return the broker's log of sessions of a user that it has ended."""
    lines = broker.process.log
    return [line for line in lines if "sessions ended" in line and f"User:{user}" in line]


def test_a_session_that_ends_later_ends_too(broker: Broker, eve: str) -> None:
    """With connections.max.reauth.ms, and with a login again on the same connection."""
    with logged_in(broker.addresses["LIMITED"], eve) as dialogue:
        dialogue.handshake("SCRAM-SHA-256")
        dialogue.scram_login(eve, "secret")
        assert is_open(dialogue)
        broker.remove(eve)
        assert dialogue.receive() is None


def test_connections_stay_open_as_in_kafka(tmp_path: Path) -> None:
    """shoal.sasl.scram.disconnect.removed.users=false: new logins are refused only."""
    with Broker(tmp_path, **{DISCONNECT: "false"}).running() as found:
        add_scram_user(found.process.bootstrap, "eve", "secret")
        with logged_in(found.addresses["OPEN"], "eve") as eve:
            found.remove("eve")

            def is_refused() -> bool:
                with Dialogue(found.addresses["OPEN"]) as again:
                    again.handshake("SCRAM-SHA-256")
                    again.scram_login("eve", "secret")
                    return "SASL_AUTHENTICATION_FAILED" in str(again.notes[-1]).upper()

            eventually(is_refused)
            assert is_open(eve)


def errors_of(properties: dict[str, Any]) -> tuple[Producer, list[str]]:
    """Return a producer that is connected, and the names of its errors."""
    names: list[str] = []
    producer = Producer(properties | {"error_cb": lambda error: names.append(error.name())})
    producer.list_topics(timeout=30)
    names.clear()
    return producer, names


def test_librdkafka_is_locked_out(broker: Broker, eve: str) -> None:
    producer, names = errors_of(
        broker.librdkafka(
            bootstrap_servers=broker.addresses["SCRAM"],
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username=eve,
            sasl_password="secret",
        )
    )
    broker.remove(eve)

    def is_out() -> bool:
        producer.poll(0.05)
        return "_AUTHENTICATION" in names

    eventually(is_out, what="the producer's error of authentication")


# Certificates.


def connected(broker: Broker, name: str = "eve") -> WireClient:
    """Return a connection that shows a new certificate of a user."""
    client = WireClient(broker.mtls, tls=broker.showing(AUTHORITY.issue(name)))
    assert client.call(ApiKey.METADATA, 12, {"topics": []}) is not None
    return client


def entry(subject: str, days: float = 0) -> str:
    """Return an entry for the certificates of a subject that are older than some days from now."""
    now = datetime.now(UTC)
    return str(Revocation(subject, now + timedelta(days=days), now + timedelta(days=90)))


def refused(broker: Broker, identity: Identity) -> bool:
    """Whether the broker refuses a new connection with this certificate."""
    try:
        with WireClient(broker.mtls, tls=broker.showing(identity)) as client:
            client.call(ApiKey.METADATA, 12, {"topics": []})
    except (ssl.SSLError, ConnectionError, EOFError, IndexError):
        return True
    return False


def test_revoked_subjects(broker: Broker) -> None:
    """Open connections end, and new ones are refused, also after a restart. Newer certificates of
    the subject are accepted."""
    old, new = AUTHORITY.issue("eve"), AUTHORITY.issue("eve", days=(-0.01, 90))
    with connected(broker) as eve, connected(broker, "bob") as bob:
        broker.revoke(entry("CN=zoe"), entry("CN=eve", days=-0.5))
        assert eve.closed()
        assert bob.call(ApiKey.METADATA, 12, {"topics": []}) is not None
    assert refused(broker, old)
    assert not refused(broker, new)
    (ended,) = eventually(lambda: ends_of(broker, "CN=eve"))
    assert REVOKED in ended
    broker.process.restart()
    assert eventually(lambda: refused(broker, old))
    assert not refused(broker, new)
    broker.revoke()
    assert eventually(lambda: not refused(broker, old))


@pytest.mark.parametrize("files", ["good", "bad"])
def test_a_revocation_needs_no_files(broker: Broker, files: str) -> None:
    """A keystore that cannot be read does not delay it."""
    if files == "bad":
        broker.stores.write("server.pem", "no keystore")
        log = broker.process.log
        eventually(lambda: [line for line in log if "certificates cannot be loaded" in line])
    with connected(broker) as eve:
        broker.revoke(entry("CN=eve"))
        assert eve.closed()
    broker.stores.write("server.pem", AUTHORITY.issue("server").pem)


def test_a_subject_with_commas_and_percents(broker: Broker) -> None:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "50% a/b, Inc"),
            x509.NameAttribute(NameOID.COMMON_NAME, "eve"),
        ]
    )
    client = WireClient(broker.mtls, tls=broker.showing(AUTHORITY.issue(name)))
    with client:
        client.call(ApiKey.METADATA, 12, {"topics": []})
        broker.revoke(entry(r"CN=eve,O=50% a/b\, Inc"))
        assert client.closed()


@pytest.mark.parametrize(
    "text", ["CN=eve", "now/later/CN=eve", f"{'2026-01-01T00:00:00Z/' * 2}eve"]
)
def test_entries_that_cannot_be_read(broker: Broker, text: str) -> None:
    with pytest.raises(ClientError, match="An entry is FROM/UNTIL/SUBJECT"):
        broker.revoke(text)


def test_a_list_of_revoked_certificates_ends_connections(tmp_path: Path) -> None:
    """The file shoal.ssl.crl.location, when it changes. A list that another key has
    signed ends none."""
    stores = Stores(tmp_path / "stores")
    crl = stores.write("crl.pem", AUTHORITY.revoke())
    own, other = AUTHORITY.issue("eve"), AUTHORITY.issue("eve")
    with Broker(tmp_path, **{"shoal.ssl.crl.location": str(crl)}).running() as broker:
        with (
            WireClient(broker.mtls, tls=broker.showing(own)) as revoked,
            WireClient(broker.mtls, tls=broker.showing(other)) as kept,
        ):
            for client in (revoked, kept):
                client.call(ApiKey.METADATA, 12, {"topics": []})
            stores.write("crl.pem", AUTHORITY.revoke(own) + IMPOSTOR.revoke(other))
            assert revoked.closed()
            assert kept.call(ApiKey.METADATA, 12, {"topics": []}) is not None
        assert refused(broker, own)


def test_librdkafka_with_a_revoked_certificate_is_locked_out(broker: Broker) -> None:
    identity = AUTHORITY.issue("eve")
    producer, names = errors_of(
        broker.librdkafka(
            bootstrap_servers=broker.mtls,
            security_protocol="SSL",
            ssl_certificate_pem=identity.chain_pem,
            ssl_key_pem=identity.key_pem(),
        )
    )
    broker.revoke(entry("CN=eve"))

    def is_out() -> bool:
        producer.poll(0.05)
        return "_ALL_BROKERS_DOWN" in names or "_SSL" in names

    eventually(is_out, what="the producer's error of TLS")
