"""The console and the brokers with Keycloak, by the settings in `docs/console.md`: people log in,
act and log out in Chromium, and clients log in to brokers by Keycloak's tokens."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import urllib.parse
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jwt
import pytest
from confluent_kafka import KafkaError, Producer
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError as Refused
from shoal.client.errors import SecurityError, expect
from shoal.client.settings import Settings
from shoal.protocol.errors import ErrorCode
from support.brokers.commands import SHOAL, Shoal
from support.brokers.ports import free_ports
from support.console.browsers import Tab, chromium, chromium_path
from support.console.console_letters import Letters
from support.console.console_screens import Page
from support.pages.console import files
from support.runs.conditions import eventually
from support.security.identity_providers import IdentityProvider
from support.security.keycloaks import PASSWORD, Keycloak
from support.security.sasl_dialogue import log_in_by_token
from support.security.secured_clusters import JWKS, Secured, start_kafka, start_shoal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.nightly, pytest.mark.java]
PAGE = (Path(__file__).parents[3] / "docs" / "console.md").read_text()
(COMMAND,) = re.findall(r"^```sh\n(shoal console [^`]*--openid openid.json[^`]*)^```", PAGE, re.M)
SECRET = "a secret of your own"
#: Seconds of an access token. The console renews it 30 seconds before its end.
TOKEN_S = 33
#: People. `admin` is a super user of the brokers.
USERS = ("admin", "ann", "bob")
#: What each user may do, as options of `shoal acls add`.
RIGHTS = {
    "service-account-shoal-console": (
        "--operation describe --operation describe-configs --cluster",
        "--operation describe --operation describe-configs --operation read -t *",
        "--operation describe --operation describe-configs -g *",
    ),
    "ann": ("--producer -t orders", "--operation describe -t payments"),
    "service-account-packer": ("--producer -t orders", "--operation describe -t payments"),
}


class Cluster(NamedTuple):
    bootstrap: str
    client: SyncClient


class World(NamedTuple):
    """Keycloak, brokers that take its tokens, and a console that logs users in at it."""

    keycloak: Keycloak
    brokers: Secured
    url: str
    console_log: Path


def filled(text: str, keycloak: Keycloak, url: str, folder: Path) -> str:
    """Replace the addresses and files that stand for the reader's own."""
    replaced = {
        "https://login.example": keycloak.url,
        "https://queues.example": url,
        "ca.pem": str(folder / "ca.pem"),
    }
    for name, value in replaced.items():
        text = text.replace(name, value)
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keycloak")


@pytest.fixture(scope="module")
def url() -> str:
    """The address of the console."""
    return f"http://127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(scope="module")
def keycloak(folder: Path, url: str) -> Iterator[Keycloak]:
    chromium_path()
    # A refresh token is valid once: the console must keep the newest one.
    found = Keycloak(
        folder / "keycloak.log",
        eventsEnabled=True,
        enabledEventTypes=["REFRESH_TOKEN", "REFRESH_TOKEN_ERROR"],
        accessTokenLifespan=TOKEN_S,
        revokeRefreshToken=True,
    )
    try:
        client = json.loads(filled(files(PAGE)["shoal-console.json"], found, url, folder))
        found.add_client(client)
        # The last test takes longer than a token of people.
        more = {"serviceAccountsEnabled": True, "attributes": {"access.token.lifespan": "3600"}}
        found.add_client({**client, **more, "clientId": "packer"})
        found.add_client({**more, "clientId": "stranger", "secret": SECRET})
        found.add_client({"clientId": "mail", "redirectUris": [f"{url}/static/*"]})
        for user in USERS:
            found.add_user(user)
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def brokers(keycloak: Keycloak, folder: Path) -> Iterator[Secured]:
    with IdentityProvider({}) as unused:
        # An expired token is refused soon.
        skew = {"sasl.oauthbearer.clock.skew.seconds": "1"}
        found = start_shoal(folder, unused, configs_of(keycloak) | skew)
        try:
            grant(found)
            yield found
        finally:
            found.kill()


def configs_of(keycloak: Keycloak) -> dict[str, str]:
    """Return the configs of brokers that the page has."""
    text = files(PAGE)["server.properties"].replace("https://login.example", keycloak.url)
    found = dict(line.split("=", 1) for line in text.splitlines())
    assert found[JWKS] == keycloak.keys_url
    return found


def grant(brokers: Secured) -> None:
    """Create the topics, and what users may do with them."""
    bootstrap = brokers.addresses["PLAINTEXT"]
    for user, options in RIGHTS.items():
        for words in options:
            Shoal(bootstrap).run("acls", "add", "-p", user, *words.split())
    with SyncClient(Settings.from_bootstrap(bootstrap)) as client:
        topics = [NewTopic(name, 1, 1) for name in ("orders", "payments")]
        expect(client.run(client.admin.topics.create(topics)))


@pytest.fixture(scope="module")
def world(keycloak: Keycloak, brokers: Secured, url: str, folder: Path) -> Iterator[World]:
    """Run the console's command as the page has it, without HTTPS for browsers."""
    saved = files(PAGE)
    command = filled(COMMAND.replace("\\\n", ""), keycloak, url, folder)
    for name in ("openid.json", "console.properties"):
        (folder / name).write_text(filled(saved[name], keycloak, url, folder))
        command = command.replace(name, str(folder / name))
    command = command.replace("broker.example:9093", brokers.addresses["BOTH"])
    command = command.replace("0.0.0.0:9443 --certificate console.pem", url.removeprefix("http://"))
    words = [*SHOAL, *shlex.split(command)[1:], "--interval", "1"]
    log = folder / "console.log"
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        return f"The console is at {url}/." in log.read_text()

    try:
        eventually(listens, what="the console")
        yield World(keycloak, brokers, url, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def nobody_is_logged_in(keycloak: Keycloak) -> None:
    for user in USERS:
        keycloak.end_sessions(user)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Tab]:
    async with chromium(folder) as browser:
        yield await browser.tab()


async def asks(tab: Tab, address: str) -> None:
    """Open an address, and expect Keycloak's form."""
    await tab.call("Page.navigate", url=address)
    await asked(tab)


async def asked(tab: Tab) -> None:
    """Wait for Keycloak's form."""
    await tab.until("document.readyState === 'complete' && document.getElementById('kc-login')")
    # Keycloak's page has an error of its own: an icon that is not there.
    tab.errors.clear()


async def log_in(tab: Tab, user: str, password: str = PASSWORD) -> None:
    """Fill in Keycloak's form."""
    for name, text in (("username", user), ("password", password)):
        field = f"document.getElementById('{name}')"
        await tab.until(f"{field} && ({field}.select(), {field}.focus(), true)")
        await tab.call("Input.insertText", text=text)
    await tab.click("Sign In")


def audited(world: World) -> list[dict[str, Any]]:
    lines = world.console_log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"at"')]


def test_a_user_acts_by_their_own_rights(world: World, tmp_path: Path) -> None:
    async def whole() -> None:
        async with opened(tmp_path) as tab:
            await asks(tab, f"{world.url}/topic?name=orders")
            await log_in(tab, "ann", "a wrong password")
            await tab.sees("Invalid username or password.")
            await log_in(tab, "ann")
            await tab.sees("Logged in as ann.")
            await tab.sees("Topic orders")
            await tab.click("Produce a test record")
            await tab.fill("Value", "1")
            await tab.click("Show what will happen")
            await tab.sees("You act as ann.")
            await tab.click("Produce 1 record")
            await tab.sees("Produced the record orders-0@0")
            assert await tab.faults() == []
            assert tab.errors == []

            await tab.goto(f"{world.url}/act-produce?topic=payments")
            await tab.fill("Value", "1")
            await tab.click("Show what will happen")
            await tab.click("Produce 1 record")
            await tab.sees("Ask an administrator for access to the topic.")

    asyncio.run(whole())
    done, refused = audited(world)[-2:]
    assert (done["user"], done["target"]["topic"], done["result"]) == ("ann", "orders", "done")
    assert (refused["user"], refused["target"]["topic"]) == ("ann", "payments")
    assert refused["result"] == "failed"
    text = world.console_log.read_text()
    assert "eyJ" not in text, "no token is in the log"
    assert SECRET not in text


def test_a_user_without_rights(world: World, tmp_path: Path) -> None:
    async def whole() -> None:
        async with opened(tmp_path) as tab:
            await asks(tab, f"{world.url}/act-produce?topic=orders")
            await log_in(tab, "bob")
            await tab.sees("Ask an administrator for access to the topic.")
            await tab.sees("Logged in as bob.")

    asyncio.run(whole())


def test_renewal_and_a_session_that_ends_at_keycloak(world: World, tmp_path: Path) -> None:
    renewed = len(world.keycloak.events("REFRESH_TOKEN"))

    def has_renewed_twice() -> bool:
        return len(world.keycloak.events("REFRESH_TOKEN")) >= renewed + 2

    async def whole() -> None:
        async with opened(tmp_path) as tab:
            await asks(tab, f"{world.url}/")
            await log_in(tab, "ann")
            await tab.sees("Logged in as ann.")
            # An open page renews the token; the second time by a token from the first one.
            await asyncio.to_thread(eventually, has_renewed_twice)
            await tab.goto(f"{world.url}/act-produce?topic=orders")
            await tab.sees("Show what will happen")
            await tab.goto(f"{world.url}/")
            await tab.sees("Updated")

            await asyncio.to_thread(world.keycloak.end_sessions, "ann")
            await tab.sees("Your login has ended. Reload the page to log in again.")
            await asks(tab, f"{world.url}/")

    asyncio.run(whole())
    assert not world.keycloak.events("REFRESH_TOKEN_ERROR")[1:], "only the one that ends the login"


def test_an_action_outlasts_its_token_and_its_page(world: World, tmp_path: Path) -> None:
    count = TOKEN_S + 12
    bootstrap = world.brokers.addresses["PLAINTEXT"]
    with SyncClient(Settings.from_bootstrap(bootstrap)) as client:
        queue = Letters(Cluster(bootstrap, client), topic="mail", group="mailers")
        queue.produce(range(count))
        client.run(queue.reject(count))

    def audited_redrive() -> list[dict[str, Any]]:
        return [one for one in audited(world) if one["action"] == "redrive"]

    async def whole() -> None:
        async with opened(tmp_path) as tab:
            await asks(tab, f"{world.url}/letters?topic={queue.letters}")
            await log_in(tab, "admin")
            await tab.click("Send all letters back")
            await tab.fill("Letters per second, at most", "1")
            await tab.click("Show what will happen")
            await tab.click(f"Send {count} letters back")
            await tab.until("document.querySelector('progress')")
            await tab.call("Page.navigate", url="about:blank")
        assert not audited_redrive()

    asyncio.run(whole())
    (redrive,) = eventually(audited_redrive, timeout_s=300, what="the end of the redrive")
    assert (redrive["user"], redrive["result"]) == ("admin", "done"), redrive["detail"]


def test_a_log_out_ends_the_session_at_keycloak(world: World, tmp_path: Path) -> None:
    keycloak = world.keycloak
    query = {"client_id": "mail", "response_type": "code", "scope": "openid"}
    mail = {**query, "redirect_uri": f"{world.url}/static/console.css"}
    other = f"{keycloak.issuer}/protocol/openid-connect/auth?{urllib.parse.urlencode(mail)}"

    async def whole() -> None:
        async with chromium(tmp_path) as browser:
            tab = await browser.tab()
            await asks(tab, f"{world.url}/topics")
            await log_in(tab, "ann")
            await tab.sees("Logged in as ann.")
            assert await asyncio.to_thread(keycloak.sessions, "ann") == [{"shoal-console"}]
            await tab.click("Log out")
            await tab.sees("You are logged out")
            page = Page(world.url, browser, tab)
            await page.shows_nothing_wrong("logged-out", has_boxes=False)
            assert await asyncio.to_thread(keycloak.sessions, "ann") == []
            await asks(tab, f"{world.url}/topics")

            # The login at another site stays, until the person ends that, too.
            await log_in(tab, "ann")
            await tab.sees("Logged in as ann.")
            await tab.call("Page.navigate", url=other)
            await tab.until("location.pathname === '/static/console.css'")
            (both,) = await asyncio.to_thread(keycloak.sessions, "ann")
            assert both == {"mail", "shoal-console"}
            await tab.goto(f"{world.url}/topics")
            await tab.click("Log out")
            await tab.sees("You are logged out")
            assert await asyncio.to_thread(keycloak.sessions, "ann") == [{"mail"}]
            await tab.goto(f"{world.url}/topics")
            await tab.sees("Logged in as ann.")
            await tab.click("Log out")
            await tab.click("Log out at the provider, too")
            await tab.until("(document.getElementById('kc-logout').click(), true)")
            await tab.sees("You are logged out")
            assert await asyncio.to_thread(keycloak.sessions, "ann") == []
            await asks(tab, f"{world.url}/topics")

    asyncio.run(whole())


def account(brokers: Secured, keycloak: Keycloak, client: str) -> Settings:
    """Return the settings of a client that logs in by its service account."""
    properties = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(brokers.ca),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": keycloak.token_url,
        "sasl.oauthbearer.client.credentials.client.id": client,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    }
    return Settings.from_bootstrap(brokers.addresses["BOTH"], properties)


def produce(settings: Settings, topic: str) -> None:
    """Produce a record by the Python client."""
    with SyncClient(settings) as client:

        async def whole() -> None:
            async with client.client.producer() as producer:
                await (await producer.send(topic, b"1"))

        client.run(whole())


def produce_by_librdkafka(
    brokers: Secured, keycloak: Keycloak, client: str, topic: str
) -> KafkaError | None:
    """Produce a record by librdkafka, which fetches its token itself. Return the error."""
    producer = Producer(
        {
            "bootstrap.servers": brokers.addresses["BOTH"],
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(brokers.ca),
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": keycloak.token_url,
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": SECRET,
        }
    )
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"1", on_delivery=lambda error, _record: errors.append(error))
    assert not producer.flush(60)
    return errors[0]


def test_clients_log_in_by_their_service_accounts(keycloak: Keycloak, brokers: Secured) -> None:
    packer = account(brokers, keycloak, "packer")
    produce(packer, "orders")
    with pytest.raises(Refused) as refused:
        produce(packer, "payments")
    assert refused.value.code is ErrorCode.topic_authorization_failed
    assert produce_by_librdkafka(brokers, keycloak, "packer", "orders") is None
    error = produce_by_librdkafka(brokers, keycloak, "packer", "payments")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    # Its tokens are not for the brokers.
    with pytest.raises(SecurityError):
        produce(account(brokers, keycloak, "stranger"), "orders")


def test_kafka_judges_the_tokens_alike(
    keycloak: Keycloak, brokers: Secured, tmp_path: Path
) -> None:
    """Keycloak ends before Kafka starts, so that one JVM runs at a time: Kafka has its keys in a
    file. No test can follow."""
    packer = keycloak.token("packer", SECRET)
    tokens = [packer, packer[:-8] + "AAAAAAAA", keycloak.token("stranger", SECRET)]
    tokens += [keycloak.root_token(), packer.replace(".", ".x", 1)]
    ours = [log_in_by_token(brokers.addresses["SASL"], token) for token in tokens]
    assert [notes[1][0] for notes in ours] == ["none"] * 5
    assert ours[0][2:] == ["METADATA answered"]
    assert [notes[1][3] for notes in ours[1:]] == ['{"status":"invalid_token"}'] * 4

    keycloak.rotate()
    renewed = keycloak.token("packer", SECRET)
    assert jwt.get_unverified_header(renewed)["kid"] != jwt.get_unverified_header(packer)["kid"]

    def is_accepted() -> bool:
        return log_in_by_token(brokers.addresses["SASL"], renewed) == ours[0]

    eventually(is_accepted, what="the new key")

    keys = tmp_path / "keys.json"
    keys.write_bytes(keycloak.keys())
    keycloak.kill()
    with IdentityProvider({}) as unused:
        kafka = start_kafka(tmp_path, unused, configs_of(keycloak) | {JWKS: keys.as_uri()})
        try:
            theirs = [log_in_by_token(kafka.addresses["SASL"], token) for token in tokens]
            assert theirs == ours
            assert log_in_by_token(kafka.addresses["SASL"], renewed) == ours[0]
        finally:
            kafka.kill()
