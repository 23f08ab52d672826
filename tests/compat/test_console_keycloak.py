"""Logins of the console at Keycloak, in Chromium: code flow, renewal, log-out and expiry. The
brokers judge actions by Keycloak's access tokens."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
import zipfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsers import Tab, chromium, chromium_path
from conditions import eventually
from identity_providers import AUDIENCE, IdentityProvider
from machine import lacking
from ports import free_ports
from secured_clusters import JWKS, Secured, start_kafka, start_shoal
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.secret import Secret
from shoal.client.settings import Settings
from shoal.client.topics import NewTopic
from shoal.console.app import serving
from shoal.console.openid import OpenIdLogin
from shoal.console.providers import OpenIdSettings
from shoal.console.security import Access

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.nightly, pytest.mark.java]
VERSION = "26.5.6"
SHA256 = "490189d9dff05272432d51f71a069462eeca97f2920a694d539a1e6c26a5a347"
FOLDER = Path(__file__).parents[2] / "build" / "keycloak"
CLIENT_ID, CLIENT_SECRET = "shoal-console", "s3cret of the console"
PASSWORD = "a long passw0rd"
#: Seconds of an access token. The console renews it 30 seconds before its end.
TOKEN_S = 60
#: Seconds until the program must answer: its first start compiles it.
START_S = 400


def home() -> Path:
    """Return the folder of Keycloak, which Maven fetches once into `build`."""
    found = FOLDER / f"keycloak-{VERSION}"
    if not found.exists():
        if shutil.which("mvn") is None:
            lacking("no mvn on the PATH: apt-get install maven")
        artifact = f"-Dartifact=org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
        words = ["mvn", "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={FOLDER}"]
        subprocess.run(words, check=True)
        packed = FOLDER / f"keycloak-quarkus-dist-{VERSION}.zip"
        assert hashlib.sha256(packed.read_bytes()).hexdigest() == SHA256
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(FOLDER)
    return found


class Keycloak:
    """A Keycloak with the realm `main`, the users `admin` and `ann`, and the console as client."""

    def __init__(self, folder: Path, console_url: str) -> None:
        port, management = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.issuer = f"{self.url}/realms/main"
        self.jwks = f"{self.issuer}/protocol/openid-connect/certs"
        self._console_url = console_url
        self._log = (folder / "log").open("w")
        options = ["--db=dev-mem", "--http-host=127.0.0.1", f"--http-port={port}"]
        options += [f"--http-management-port={management}", f"--hostname={self.url}"]
        admin = {"KC_BOOTSTRAP_ADMIN_USERNAME": "root", "KC_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD}
        self._process = subprocess.Popen(
            ["sh", str(home() / "bin" / "kc.sh"), "start-dev", *options],
            env={**os.environ, **admin, "JAVA_OPTS_KC_HEAP": "-Xmx512m"},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def fill(self) -> None:
        """Wait until it answers, and create the realm."""

        def answers() -> bool:
            assert self._process.poll() is None, "Keycloak has ended"
            try:
                with urllib.request.urlopen(f"{self.url}/realms/master", timeout=10):
                    return True
            except OSError:
                return False

        eventually(answers, timeout_s=START_S, what="Keycloak")
        self._call("POST", "/admin/realms", self._realm())

    def log_out(self, user: str) -> None:
        """End all sessions of a user, as an administrator does."""
        (found,) = self._call("GET", f"/admin/realms/main/users?username={user}&exact=true")
        self._call("POST", f"/admin/realms/main/users/{found['id']}/logout")

    def events(self, type: str) -> list[dict[str, Any]]:
        """Return what Keycloak has logged of a type, such as LOGIN."""
        found: list[dict[str, Any]] = self._call("GET", f"/admin/realms/main/events?type={type}")
        return found

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _realm(self) -> dict[str, Any]:
        users = [
            {
                "username": name,
                "enabled": True,
                "email": f"{name}@example.com",
                "firstName": name,
                "lastName": "Example",
                "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
            }
            for name in ("admin", "ann")
        ]
        audience = {"included.custom.audience": AUDIENCE, "access.token.claim": "true"}
        mapper = {
            "name": "brokers",
            "protocol": "openid-connect",
            "protocolMapper": "oidc-audience-mapper",
            "config": audience,
        }
        client = {
            "clientId": CLIENT_ID,
            "secret": CLIENT_SECRET,
            "redirectUris": [f"{self._console_url}/logged-in"],
            "attributes": {"pkce.code.challenge.method": "S256"},
            "protocolMappers": [mapper],
        }
        return {
            "realm": "main",
            "enabled": True,
            "eventsEnabled": True,
            "accessTokenLifespan": TOKEN_S,
            "users": users,
            "clients": [client],
        }

    def _call(self, method: str, path: str, body: object = None) -> Any:
        login = {"client_id": "admin-cli", "grant_type": "password"}
        form = {**login, "username": "root", "password": PASSWORD}
        where = f"{self.url}/realms/master/protocol/openid-connect/token"
        with urllib.request.urlopen(where, urllib.parse.urlencode(form).encode()) as answer:
            token = json.load(answer)["access_token"]
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None


@pytest.fixture(scope="module")
def console_url() -> str:
    (port,) = free_ports(1)
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def keycloak(tmp_path_factory: pytest.TempPathFactory, console_url: str) -> Iterator[Keycloak]:
    chromium_path()
    found = Keycloak(tmp_path_factory.mktemp("keycloak"), console_url)
    try:
        found.fill()
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module", params=["shoal", "kafka"])
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, keycloak: Keycloak
) -> Iterator[Secured]:
    """Brokers that take Keycloak's access tokens. `admin` is their super user."""
    start = start_shoal if request.param == "shoal" else start_kafka
    configs = {
        JWKS: keycloak.jwks,
        "sasl.oauthbearer.expected.issuer": keycloak.issuer,
        "sasl.oauthbearer.sub.claim.name": "preferred_username",
    }
    with IdentityProvider({}) as unused:
        found = start(tmp_path_factory.mktemp("brokers"), unused, configs)
        try:
            with SyncClient(Settings.of(found.addresses["PLAINTEXT"])) as client:
                expect(client.run(client.admin.topics.create([NewTopic("orders", 1, 1)])))
            yield found
        finally:
            found.kill()


class Clock:
    """The time of this machine, and some seconds more."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@asynccontextmanager
async def opened(
    keycloak: Keycloak, brokers: Secured, url: str, folder: Path, clock: Clock
) -> AsyncIterator[Tab]:
    """Open the console in a browser. The console's own connection has a password."""
    provider = OpenIdSettings(
        keycloak.issuer,
        CLIENT_ID,
        url,
        Secret(CLIENT_SECRET),
        user_claim="preferred_username",
    )
    access = Access(
        port=int(url.rpartition(":")[2]),
        login=OpenIdLogin(provider, clock),
        url=url,
        allow_actions=True,
    )
    properties = brokers.properties("SASL", "SCRAM-SHA-256")
    settings = Settings.of(brokers.addresses["SASL"], properties)
    async with serving(settings, access, interval_s=1.0), chromium(folder) as browser:
        yield await browser.tab()


async def asks(tab: Tab, address: str) -> None:
    """Open an address of the console, and wait for Keycloak's form."""
    await tab.call("Page.navigate", url=address)
    await tab.until("document.readyState === 'complete' && document.getElementById('password')")
    tab.errors.clear()  # Those of Keycloak's page.


async def log_in(tab: Tab, user: str, password: str = PASSWORD) -> None:
    """Fill in Keycloak's form."""
    await tab.fill("Username or email", user)
    # Next to the label is a button that shows the password.
    await tab.until("(document.getElementById('password').focus(), true)")
    await tab.call("Input.insertText", text=password)
    await tab.click("Sign In")


def audited(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    lines = [json.loads(r.message) for r in caplog.records if r.name == "shoal.console.audit"]
    return [(one["action"], one["user"], one["result"]) for one in lines]


def test_a_user_acts_and_logs_out(
    keycloak: Keycloak,
    brokers: Secured,
    console_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def whole() -> None:
        async with opened(keycloak, brokers, console_url, tmp_path, Clock()) as tab:
            await asks(tab, f"{console_url}/topic?name=orders")
            await log_in(tab, "admin", "a wrong password")
            await tab.sees("Invalid username or password.")
            await log_in(tab, "admin")
            await tab.sees("Logged in as admin.")
            await tab.sees("Topic orders")
            await tab.click("Produce a test record")
            await tab.fill("Value", "1")
            await tab.click("Show what will happen")
            await tab.sees("You act as admin.")
            await tab.click("Produce 1 record")
            await tab.sees("Produced the record orders-0@")

            await tab.click("Log out")
            await tab.sees("You are logged out")
            await tab.goto(f"{console_url}/topics")
            await tab.sees("Logged in as admin.")
            await tab.click("Log out")
            await tab.click("Log out at the provider, too")
            await tab.click("Logout")
            await asks(tab, f"{console_url}/topics")

    asyncio.run(whole())
    assert audited(caplog) == [("produce", "admin", "done")]
    logged = "".join(record.getMessage() for record in caplog.records)
    assert "eyJ" not in logged, "no token is in the log"
    assert CLIENT_SECRET not in logged


def test_the_brokers_refuse_a_user_without_rights(
    keycloak: Keycloak, brokers: Secured, console_url: str, tmp_path: Path
) -> None:
    async def whole() -> None:
        async with opened(keycloak, brokers, console_url, tmp_path, Clock()) as tab:
            await asks(tab, f"{console_url}/act-produce?topic=orders")
            await log_in(tab, "ann")
            await tab.sees("Ask an administrator for access to the topic.")

    asyncio.run(whole())


def test_renewal_and_the_end_of_a_login(
    keycloak: Keycloak, brokers: Secured, console_url: str, tmp_path: Path
) -> None:
    clock = Clock()
    renewed = len(keycloak.events("REFRESH_TOKEN"))

    async def whole() -> None:
        async with opened(keycloak, brokers, console_url, tmp_path, clock) as tab:
            await asks(tab, f"{console_url}/topics")
            await log_in(tab, "admin")
            await tab.sees("Logged in as admin.")
            clock.ahead_s += TOKEN_S - 25
            await tab.goto(f"{console_url}/act-produce?topic=orders")
            await tab.sees("Show what will happen")
            assert len(await asyncio.to_thread(keycloak.events, "REFRESH_TOKEN")) == renewed + 1

            await asyncio.to_thread(keycloak.log_out, "admin")
            clock.ahead_s += TOKEN_S - 25
            await asks(tab, f"{console_url}/topics")

    asyncio.run(whole())
