"""Form fields, form tokens, and with whose rights an action runs."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from shoal.client.client import Client
from shoal.client.errors import SecurityError
from shoal.client.security.secret import Secret
from shoal.client.security.security import Security
from shoal.client.settings import Settings
from shoal.console.access.actors import Actors
from shoal.console.access.logins import ProxyLogin, parse_networks
from shoal.console.access.security import USER, ConsoleAccess, parse_users
from shoal.console.access.sessions import COOKIE, Sessions
from shoal.console.actions.contract import ActionError, FormData
from shoal.console.actions.records import parse_payload
from shoal.console.runs import audit

if TYPE_CHECKING:
    from collections.abc import Mapping

TWO = parse_users("ann:1\nbob:2\n", "users")


def given(**values: str) -> FormData:
    return FormData({name.replace("_", "-"): [value] for name, value in values.items()})


def test_numbers() -> None:
    assert given(n=" 12 ").get_number("n", "It") == 12
    assert given(n="-3").get_number("n", "It", least=-5) == -3
    for text in ("", "x", "1.5", "-1", "9" * 20, "+1", "--1"):
        with pytest.raises(ActionError, match="It must be a number from 0 to 9"):
            given(n=text).get_number("n", "It", most=9)
    with pytest.raises(ActionError) as raised:
        given(n="x" * 1000).get_number("n", "It")
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"value": "a\r\nb"}, b"a\nb"),
        ({"value": "ü", "value_format": "text"}, "ü".encode()),
        ({"value": "FF 0a\r\n01", "value_format": "hex"}, b"\xff\x0a\x01"),
        ({"value": "kept", "value_format": "null"}, None),
        ({}, b""),
    ],
)
def test_payloads(fields: dict[str, str], wanted: bytes | None) -> None:
    assert parse_payload(given(**fields), "value", "value") == wanted


@pytest.mark.parametrize(("text", "format"), [("f", "hex"), ("zz", "hex"), ("", "avro")])
def test_payloads_that_cannot_be_read(text: str, format: str) -> None:
    with pytest.raises(ActionError, match="value"):
        parse_payload(given(value=text, value_format=format), "value", "value")


def request(user: str = "", cookie: str = "", **headers: str) -> web.Request:
    given = {"Host": "127.0.0.1:9080", **headers}
    if cookie:
        given["Cookie"] = f"{COOKIE}={cookie}"
    found = make_mocked_request("POST", "/confirm", headers=given)
    found[USER] = user
    return found


def test_a_token_belongs_to_a_session_a_user_and_a_console() -> None:
    sessions, cookie = Sessions(is_encrypted=False), "s" * 43
    token = sessions.make_token(request("ann", cookie))
    sessions.check(request("ann", cookie), {"token": token})
    for other, fields in (
        (request("bob", cookie), {"token": token}),
        (request("ann", "t" * 43), {"token": token}),
        (request("ann"), {"token": token}),
        (request("ann", cookie), {"token": token[:-1]}),
        (request("ann", cookie), {}),
        (request("ann", cookie), {"token": web.FileField("t", "f", None, "text", None)}),  # type: ignore[arg-type]
    ):
        with pytest.raises(web.HTTPForbidden):
            sessions.check(other, fields)
    with pytest.raises(web.HTTPForbidden):
        Sessions(is_encrypted=False).check(request("ann", cookie), {"token": token})


@pytest.mark.parametrize("cookie", ["short", "x" * 44, "\u00fc" * 43])
def test_a_malformed_cookie_is_a_new_session(cookie: str) -> None:
    sessions = Sessions(is_encrypted=False)
    assert sessions.get_session(request(cookie=cookie)) != cookie


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_the_cookie_of_a_new_session(is_encrypted: bool) -> None:
    sessions = Sessions(is_encrypted=is_encrypted)

    async def handler(opened: web.Request) -> web.Response:
        return web.Response(text=sessions.make_token(opened))

    response = asyncio.run(sessions.middleware(request(), handler))
    cookie = response.cookies[COOKIE]
    assert (bool(cookie["secure"]), cookie["samesite"]) == (is_encrypted, "Strict")
    assert cookie["httponly"]
    known = request(cookie=cookie.value)
    assert not asyncio.run(sessions.middleware(known, handler)).cookies


TOKENS = ProxyLogin("X-User", parse_networks(["127.0.0.1"]), "X-Token")
NAMES = ProxyLogin("X-User", parse_networks(["127.0.0.1"]))
SASL: Mapping[str, str] = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "console",
    "sasl.password": "secret",
}


@pytest.mark.parametrize(
    ("access", "properties", "why"),
    [
        (ConsoleAccess(), {}, "This console only reads."),
        (ConsoleAccess(allow_actions=True), {}, ""),
        (ConsoleAccess("::1", allow_actions=True), {}, ""),
        (
            ConsoleAccess("0.0.0.0", allow_actions=True),
            {},
            "it cannot know who acts. Give it --login.",
        ),
        (ConsoleAccess("0.0.0.0", users=parse_users("a:1", "u"), allow_actions=True), {}, ""),
        (ConsoleAccess(users=TWO, allow_actions=True), {}, "because it is connected by PLAINTEXT."),
        (
            ConsoleAccess(users=TWO, allow_actions=True),
            {"security.protocol": "SSL"},
            "connected by SSL.",
        ),
        (ConsoleAccess(users=TWO, allow_actions=True), SASL, ""),
        (ConsoleAccess("0.0.0.0", login=TOKENS, allow_actions=True), SASL, ""),
        (
            ConsoleAccess(login=TOKENS, allow_actions=True),
            {},
            "which needs SASL, and the console is",
        ),
        (ConsoleAccess("0.0.0.0", login=NAMES, allow_actions=True), SASL, ""),
        (ConsoleAccess(login=NAMES, allow_actions=True), {}, "or an access token."),
    ],
)
def test_who_may_act(access: ConsoleAccess, properties: Mapping[str, str], why: str) -> None:
    async def call() -> None:
        async with Client(Settings.from_bootstrap("127.0.0.1:1", properties)) as client:
            actors = Actors(client, access)
            assert why in actors.why_off
            assert bool(why) == bool(actors.why_off)
            if not actors.why_off and not access.acts_by:
                assert await actors.get_client("a") is client
            await actors.close()

    asyncio.run(call())


def test_a_login_by_token() -> None:
    plain = Settings.from_bootstrap("127.0.0.1:1", SASL).security
    found = plain.with_token("id", Secret("hmac"))
    assert (found.protocol, found.mechanism, found.username) == ("SASL_SSL", "SCRAM-SHA-512", "id")
    assert found.is_token
    assert found.tls == plain.tls
    scram = Settings.from_bootstrap(
        "127.0.0.1:1", {**SASL, "sasl.mechanism": "SCRAM-SHA-256"}
    ).security
    assert scram.with_token("id", Secret("hmac")).mechanism == "SCRAM-SHA-256"
    with pytest.raises(SecurityError, match=r"needs SASL, and security\.protocol is PLAINTEXT"):
        Security().with_token("id", Secret("hmac"))


def test_a_login_by_access_token() -> None:
    newest = ["a"]
    plain = Settings.from_bootstrap("127.0.0.1:1", SASL).security
    found = plain.with_access_token(lambda: Secret(newest[0]))
    assert (found.protocol, found.mechanism, found.tls) == ("SASL_SSL", "OAUTHBEARER", plain.tls)
    assert asyncio.run(found.get_access_token()).reveal() == "a"
    newest[0] = "b"
    assert asyncio.run(found.get_access_token()).reveal() == "b", "each connection takes the newest"
    assert "bearer" not in repr(found)
    with pytest.raises(SecurityError, match=r"needs SASL, and security\.protocol is PLAINTEXT"):
        Security().with_access_token(Secret)


def test_an_audit_line_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")
    audit("pause", "ann\n", "::1", {"group": "g\n{"}, "done", "a\nb")
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    found = json.loads(record.getMessage())
    assert (found["user"], found["target"], found["result"]) == ("ann\n", {"group": "g\n{"}, "done")
