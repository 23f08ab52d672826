"""Our client against Apache Kafka: TLS, every SASL mechanism, and sessions that end."""

from __future__ import annotations

import asyncio
import base64
import re
import shlex
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.client import Client
from shoal.client.errors import ClientError, SecurityError, Unreachable
from shoal.client.net.connection import Connection
from shoal.client.security import authentication
from shoal.client.security.authentication import SessionLogin
from shoal.client.security.oauth import REFRESH_FACTOR
from shoal.client.settings import Settings
from shoal.client.share.member import AcknowledgeType
from support.attacks.tracebacks import shown
from support.runs.conditions import eventually_async
from support.scenarios import client_scenarios
from support.security.identity_providers import IdentityProvider
from support.security.secured_clusters import (
    LISTENERS,
    MECHANISMS,
    PASSWORDS,
    SESSION_MS,
    Secured,
    pem_pair,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

STORE_PASSWORD = "st0re-s3cret"
#: The load continues for this number of sessions of the listener BRIEF.
SESSIONS = 3


def cluster_id(address: str, properties: Mapping[str, str]) -> str:
    async def ask() -> str:
        async with Client(Settings.from_bootstrap(address, properties)) as client:
            return (await client.admin.describe_cluster()).cluster_id

    return asyncio.run(ask())


@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sasl(secured: Secured, listener: str, mechanism: str) -> None:
    address = secured.addresses[listener]
    for user in PASSWORDS:
        assert cluster_id(address, secured.properties(listener, mechanism, user))
    wrong = secured.properties(listener, mechanism)
    wrong = {n: v if v != PASSWORDS["admin"] else "wrong" for n, v in wrong.items()}
    with pytest.raises(SecurityError, match="refuses"):
        cluster_id(address, wrong)


def test_a_token_in_a_file(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "token"
    properties = secured.properties("SASL", "OAUTHBEARER") | {
        "sasl.oauthbearer.token.endpoint.url": file.as_uri()
    }
    file.write_text(secured.provider.token("ann") + "\n")
    assert cluster_id(secured.addresses["SASL"], properties)
    file.write_text(IdentityProvider({}).token("ann"))
    with pytest.raises(SecurityError, match=r"refuses the access token: invalid_token"):
        cluster_id(secured.addresses["SASL"], properties)


def test_the_java_spelling_of_oauth(secured: Secured) -> None:
    """The properties of Kafka's documentation before 4.1."""
    module = "org.apache.kafka.common.security.oauthbearer"
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{module}.secured.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": f"{secured.provider.url}/token",
        "sasl.jaas.config": f"{module}.OAuthBearerLoginModule required clientId='ann' "
        f"clientSecret='{PASSWORDS['ann']}' scope='write' extension_traceId='123';",
    }
    assert cluster_id(secured.addresses["SASL"], properties)
    assert secured.provider.requests[-1][0]["scope"] == ["write"]


def test_mutual_tls(secured: Secured, tmp_path: Path) -> None:
    address, trust = secured.addresses["MUTUAL"], secured.properties("MUTUAL")
    pair = tmp_path / "pair.pem"
    pair.write_text(pem_pair(secured.client_ca.issue_cert("ann")))
    own = {"ssl.keystore.location": str(pair), "ssl.keystore.type": "PEM"}
    assert cluster_id(address, trust | own)
    with pytest.raises(SecurityError, match=r"or needs one: set ssl\.keystore\.location"):
        cluster_id(address, trust)
    with pytest.raises(SecurityError, match=r"Set ssl\.truststore\.location"):
        cluster_id(address, {"security.protocol": "SSL"} | own)


def keytool(*words: str) -> None:
    done = subprocess.run(["keytool", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.java
@pytest.mark.nightly
@pytest.mark.parametrize("secured", ["shoal"], indirect=True)
def test_stores_of_keytool(secured: Secured, tmp_path: Path) -> None:
    """The message that refuses a JKS store has the command that converts it. Each command of
    keytool is a JVM; by day, the broker reads keytool's stores (`test_tls_listeners`)."""
    passwords = ("-srcstorepass", STORE_PASSWORD, "-deststorepass", STORE_PASSWORD)
    pair, start = tmp_path / "pair.pem", tmp_path / "start.p12"
    pair.write_text(pem_pair(secured.client_ca.issue_cert("ann")))
    export = ("openssl", "pkcs12", "-export", "-in", pair, "-out", start)
    subprocess.run([*export, "-passout", f"pass:{STORE_PASSWORD}"], check=True, timeout=60)
    jks, trust = tmp_path / "user.jks", tmp_path / "trust.p12"
    to_jks = ("-srckeystore", str(start), "-destkeystore", str(jks), "-deststoretype", "JKS")
    keytool("-importkeystore", *to_jks, *passwords, "-noprompt")
    import_ca = ("-importcert", "-noprompt", "-alias", "ca", "-file", str(secured.ca))
    keytool(*import_ca, "-keystore", str(trust), "-storepass", STORE_PASSWORD)
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(trust),
        "ssl.truststore.password": STORE_PASSWORD,
        "ssl.keystore.location": str(jks),
        "ssl.keystore.password": STORE_PASSWORD,
    }
    with pytest.raises(SecurityError) as caught:
        Settings.from_bootstrap("a", properties)
    command = re.search("`(.*)`", str(caught.value))
    assert command is not None
    keytool(*shlex.split(command[1])[1:], *passwords)
    properties["ssl.keystore.location"] = str(tmp_path / "user.p12")
    assert cluster_id(secured.addresses["MUTUAL"], properties)


@pytest.mark.parametrize(
    ("listener", "protocol", "said"),
    [
        ("PLAINTEXT", "SSL", "If it expects no TLS, set security.protocol"),
        ("PLAINTEXT", "SASL_SSL", "If it expects no TLS, set security.protocol"),
        ("PLAINTEXT", "SASL_PLAINTEXT", "only connections without SASL"),
        ("MUTUAL", "PLAINTEXT", "If it expects TLS or SASL"),
        ("MUTUAL", "SASL_PLAINTEXT", "If it expects TLS, set security.protocol to SASL_SSL"),
        ("SASL", "PLAINTEXT", "If it expects TLS or SASL"),
        ("SASL", "SSL", "If it expects no TLS, set security.protocol"),
        ("BOTH", "SSL", "set security.protocol to SASL_SSL"),
    ],
)
def test_a_protocol_that_the_listener_does_not_have(
    secured: Secured, listener: str, protocol: str, said: str
) -> None:
    properties = secured.properties("BOTH", "PLAIN") | {"security.protocol": protocol}
    with pytest.raises((SecurityError, Unreachable), match=said):
        cluster_id(secured.addresses[listener], properties)


def test_a_mechanism_that_the_listener_does_not_have(secured: Secured) -> None:
    """The error names the mechanisms that it has."""
    properties = secured.properties("SASL", "SCRAM-SHA-512")
    settings = Settings.from_bootstrap(secured.addresses["SASL"], properties)
    object.__setattr__(settings.security, "mechanism", "GSSAPI")

    async def ask() -> None:
        async with Client(settings) as client:
            await client.admin.describe_cluster()

    with pytest.raises(SecurityError, match=r"does not support GSSAPI, only .*SCRAM-SHA-512"):
        asyncio.run(ask())


class Counted:
    """Counts connections that the broker ends, and renewals of sessions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = 0
        #: By mechanism.
        self.renewals: Counter[str] = Counter()
        connection_lost, renew = Connection.connection_lost, SessionLogin.renew

        def counting_lost(link: Connection, error: Exception | None) -> None:
            self.lost += not link.closed
            connection_lost(link, error)

        async def counting_renew(login: SessionLogin, *words: Any) -> None:
            await renew(login, *words)
            self.renewals[login._security.mechanism] += 1  # noqa: SLF001

        monkeypatch.setattr(Connection, "connection_lost", counting_lost)
        monkeypatch.setattr(SessionLogin, "renew", counting_renew)


async def work(client: Client, sessions: int) -> int:
    """Produce and acquire for this number of sessions. Return how many records there were."""
    topic, group = (
        await client_scenarios.new_topic(client),
        await client_scenarios.new_group(client),
    )
    loop = asyncio.get_running_loop()
    end = loop.time() + sessions * SESSION_MS / 1000
    sent = 0
    seen: set[bytes] = set()
    settled = asyncio.Event()

    async def consume() -> None:
        async with await client.share(group, [topic]) as session:
            while not (settled.is_set() and len(seen) == sent):
                found = await session.acquire(max_wait_ms=300)
                assert not found.refusals
                for one in found.acquired:
                    for record in one.records():
                        assert record.value not in seen, "a record was acquired twice"
                        seen.add(record.value or b"")
                    accepted = one.acknowledge(AcknowledgeType.ACCEPT)
                    assert await session.acknowledge(accepted) == ()

    consuming = asyncio.create_task(consume())
    async with client.producer() as producer:
        while loop.time() < end:
            futures = [await producer.send(topic, b"%d" % (sent + n)) for n in range(20)]
            await asyncio.gather(*futures)
            sent += len(futures)
    settled.set()
    await asyncio.wait_for(consuming, 60)
    assert len(seen) == sent
    return sent


def test_sessions_are_renewed_under_load(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each mechanism. No record is lost or delivered twice, and no connection is closed.

    Clients renew early, so that a machine that stands still for seconds does not end a session.
    """
    monkeypatch.setattr(authentication, "RENEWAL_FACTORS", (0.2, 0.25))
    counted = Counted(monkeypatch)

    async def run(mechanism: str) -> None:
        properties = secured.properties("LOADED", mechanism)
        async with Client(
            Settings.from_bootstrap(secured.addresses["LOADED"], properties)
        ) as client:
            assert await work(client, SESSIONS) > 0
            assert counted.lost == 0
        assert counted.renewals[mechanism] >= SESSIONS - 1

    async def run_all() -> None:
        async with asyncio.TaskGroup() as group:
            for mechanism in MECHANISMS:
                group.create_task(run(mechanism))

    asyncio.run(run_all())


def test_an_idle_connection_logs_in_again_before_its_next_request(secured: Secured) -> None:
    properties = secured.properties("BRIEF", "SCRAM-SHA-256")

    async def run() -> None:
        async with Client(
            Settings.from_bootstrap(secured.addresses["BRIEF"], properties)
        ) as client:
            link = await client.cluster.get_any_connection()
            loop = asyncio.get_running_loop()
            over = loop.time() + 1.5 * SESSION_MS / 1000
            await eventually_async(lambda: loop.time() > over)
            await client.admin.describe_cluster()
            assert not link.closed

    asyncio.run(run())


def test_access_tokens_are_fetched_again_before_they_expire(secured: Secured) -> None:
    """Sessions end with their tokens at the latest."""
    lifetime_s = 2.5 * SESSION_MS / 1000
    provider = secured.provider
    asked = len(provider.requests)
    properties = secured.properties("BRIEF", "OAUTHBEARER")

    async def run() -> None:
        async with Client(
            Settings.from_bootstrap(secured.addresses["BRIEF"], properties)
        ) as client:
            await work(client, SESSIONS)

    begun_s = time.monotonic()
    provider.lifetime_s = lifetime_s
    try:
        asyncio.run(run())
    finally:
        provider.lifetime_s = 3600
    # One at the start, and one after 80 % of its lifetime; not one for each connection or session.
    most = 1 + (time.monotonic() - begun_s) / (REFRESH_FACTOR * lifetime_s)
    assert 2 <= len(provider.requests) - asked <= most


def test_a_renewed_password_is_used_without_a_restart(secured: Secured, tmp_path: Path) -> None:
    """As in a Secret that is mounted into a pod: first the password of a user changes, then the
    user."""
    for name in ("user", "password"):
        (tmp_path / name).write_text({"user": "ann", "password": PASSWORDS["ann"]}[name] + "\n")
    properties = secured.properties("BRIEF", "PLAIN") | {
        "sasl.username": f"${{directory:{tmp_path}:user}}",
        "sasl.password": f"${{directory:{tmp_path}:password}}",
    }

    async def run() -> None:
        async with Client(
            Settings.from_bootstrap(secured.addresses["BRIEF"], properties)
        ) as client:
            first = await client.cluster.get_any_connection()
            (tmp_path / "user").write_text("admin")
            (tmp_path / "password").write_text(PASSWORDS["admin"])
            loop = asyncio.get_running_loop()
            over = loop.time() + SESSION_MS / 1000
            await eventually_async(lambda: loop.time() > over)
            await client.admin.describe_cluster()
            assert first.closed, "brokers refuse another user on the same connection"
            (tmp_path / "password").write_text("wrong")
            over = loop.time() + SESSION_MS / 1000
            await eventually_async(lambda: loop.time() > over)
            with pytest.raises(SecurityError, match="refuses user 'admin'"):
                await client.admin.describe_cluster()

    asyncio.run(run())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["PLAINTEXT", *(n for n in LISTENERS if n != "LOADED")])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_no_traceback_shows_a_secret(
    secured: Secured, listener: str, mechanism: str, protocol: str
) -> None:
    planted = "pl4nted-s3cret"
    pair = pem_pair(secured.client_ca.issue_cert("ann"))
    given = {
        n: v if v not in PASSWORDS.values() else planted
        for n, v in (
            secured.properties("BOTH", mechanism)
            | {
                "security.protocol": protocol,
                "ssl.key.password": planted,
                "ssl.keystore.key": pair,
                "ssl.keystore.certificate.chain": pair,
            }
        ).items()
    }
    settings = Settings.from_bootstrap(secured.addresses[listener], given)

    async def ask() -> None:
        async with Client(settings) as client:
            await client.admin.describe_cluster()

    with pytest.raises(ClientError) as caught:
        asyncio.run(ask())
    text = shown(caught.value) + repr(settings) + str(settings) + repr(settings.security)
    login = base64.b64encode(f"admin:{planted}".encode()).decode()
    for secret in (planted, login, *pair.split("-----")[2].split()):
        assert secret not in text
    assert "'self':" in text, "local variables are shown"
