"""Users of each login act with their own rights: the brokers decide, by token and by delegation."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import expect
from shoal.client.security.secret import Secret
from shoal.client.settings import Settings
from shoal.console.access.logins import ProxyLogin, parse_networks
from shoal.console.access.openid import OpenIdLogin
from shoal.console.access.providers import OpenIdSettings
from shoal.console.access.security import ConsoleAccess
from support.brokers.ports import free_ports
from support.console.consoles import Console, console
from support.security.openid_providers import CLIENT_ID, CLIENT_SECRET, openid_provider

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.security.secured_clusters import Secured

pytestmark = pytest.mark.parametrize(
    "secured",
    ["shoal", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.nightly])],
    indirect=True,
)
HERE = parse_networks(["127.0.0.1"])


def settings(secured: Secured) -> Settings:
    """The console's own connection is that of a super user."""
    return Settings.from_bootstrap(
        secured.addresses["SASL"], secured.properties("SASL", "SCRAM-SHA-256")
    )


async def topic_beyond(page: Console, user: str) -> str:
    """Create a topic that a user without permissions may not write to."""
    topic = f"beyond-{user}"
    expect(await page.client.admin.topics.create([NewTopic(topic, 1, 1)]))
    return topic


async def owners(page: Console) -> set[str]:
    """Return the owners of delegation tokens."""
    return {one.owner for one in await page.client.admin.tokens.describe()}


def audited(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    lines: list[dict[str, Any]] = [
        json.loads(r.message) for r in caplog.records if r.name == "shoal.console.audit"
    ]
    return [(one["user"], one["result"]) for one in lines]


async def produces(page: Console, topic: str) -> None:
    plan = await page.preview("produce", topic=topic, value="1")
    assert "Produced the record" in (await page.confirm(plan)).words


async def is_refused(page: Console, topic: str, sentence: str) -> None:
    refused = await page.get("/act-produce", topic=topic, status=403)
    assert sentence in refused.words


NO_TOPIC = "Ask an administrator for access to the topic."


def test_openid_users_act_by_their_access_tokens(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ann = secured.new_user()

    async def whole() -> None:
        (port,) = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        async with openid_provider() as provider:
            given = OpenIdSettings(provider.issuer, CLIENT_ID, url, Secret(CLIENT_SECRET))
            provider.access_token = secured.provider.token
            access = ConsoleAccess(login=OpenIdLogin(given), url=url, allow_actions=True)
            async with console(settings(secured), access) as page:
                topic = await topic_beyond(page, ann)
                provider.user = "admin"
                plan = await page.preview("produce", topic=topic, value="1")
                assert "You act as admin." in plan.words
                await page.confirm(plan)
                await page.post("/logout", {})
                provider.user = ann
                await is_refused(page, topic, NO_TOPIC)
                await page.post("/logout", {})
                provider.access_token = lambda user: f"forged.{user}.token"
                await is_refused(
                    page, topic, f"Actions are off for {ann}: the brokers do not accept the login."
                )
                assert not await owners(page) & {"User:admin", f"User:{ann}"}

    asyncio.run(whole())
    assert ("admin", "done") in audited(caplog)
    tokens = [record.getMessage() for record in caplog.records]
    assert not [text for text in tokens if "forged." in text or "eyJ" in text]


def test_tokens_of_a_proxy(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")
    ann = secured.new_user()

    async def whole() -> None:
        login = ProxyLogin("X-Forwarded-User", HERE, "Authorization")
        async with console(
            settings(secured), ConsoleAccess(login=login, allow_actions=True)
        ) as page:
            topic = await topic_beyond(page, ann)

            def be(user: str, token: str) -> None:
                page.browser.session.headers.update(
                    {"X-Forwarded-User": user, "Authorization": f"Bearer {token}"}
                )

            be("admin", secured.provider.token("admin"))
            await produces(page, topic)
            be(ann, secured.provider.token(ann))
            await is_refused(page, topic, NO_TOPIC)
            be(ann, "?")
            await is_refused(page, topic, "the login has no access token that is valid now")

    asyncio.run(whole())
    assert audited(caplog) == [("admin", "done")]


def test_users_of_a_proxy_act_by_delegation(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")
    ann = secured.new_user()

    async def whole() -> None:
        login = ProxyLogin("X-Forwarded-User", HERE)
        async with console(
            settings(secured), ConsoleAccess(login=login, allow_actions=True)
        ) as page:
            topic = await topic_beyond(page, ann)
            page.browser.session.headers["X-Forwarded-User"] = "admin"
            await produces(page, topic)
            page.browser.session.headers["X-Forwarded-User"] = ann
            await is_refused(page, topic, NO_TOPIC)
            assert await owners(page) >= {"User:admin", f"User:{ann}"}

    asyncio.run(whole())
    assert audited(caplog) == [("admin", "done")]


@pytest.mark.parametrize(
    ("login", "sentence"),
    [
        (
            lambda: ProxyLogin("X-User", HERE, "X-Token"),
            "Actions are off: each user acts by an access token (OAUTHBEARER), which needs SASL",
        ),
        (
            lambda: ProxyLogin("X-User", HERE),
            "Actions are off: each user acts by a delegation token",
        ),
    ],
)
def test_without_sasl_actions_are_off(
    secured: Secured, login: Callable[[], ProxyLogin], sentence: str
) -> None:
    async def whole() -> None:
        anonymous = Settings.from_bootstrap(secured.addresses["PLAINTEXT"])
        async with console(anonymous, ConsoleAccess(login=login(), allow_actions=True)) as page:
            page.browser.session.headers.update({"X-User": "ann", "X-Token": "x"})
            found = await page.get("/topics")
            assert sentence in found.words
            await page.get("/act-produce", topic="x", status=403)

    asyncio.run(whole())
