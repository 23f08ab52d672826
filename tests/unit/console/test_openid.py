"""Login by OpenID Connect, against a small provider with real HTTP and real keys."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import os
import time
from collections.abc import Sized
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from shoal.client.security.secret import Secret
from shoal.console.access import openid, providers
from shoal.console.access.openid import LOGIN_S_MAX, PENDING_S_MAX, OpenIdLogin
from shoal.console.access.providers import OpenIdSettings, parse_openid, parse_url
from shoal.console.access.security import ConsoleAccess
from shoal.console.login_files import InvalidAccess
from support.brokers.ports import free_ports
from support.console.consoles import Console, another_browser, console
from support.security.openid_providers import (
    CLIENT_ID,
    CLIENT_SECRET,
    OpenIdProvider,
    openid_provider,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from aiohttp import ClientResponse


@pytest.fixture(autouse=True)
def no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """The providers speak plain HTTP, so no console reads the system's authorities for 30 ms."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)


def adding(**added: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of claims: these are added."""
    return lambda claims: claims.update(added)


class Clock:
    """The time of the provider and of the console."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class World(NamedTuple):
    page: Console
    provider: OpenIdProvider
    clock: Clock
    login: OpenIdLogin

    async def step(self, url: str) -> ClientResponse:
        """Open an address of the console without following its redirect."""
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        response = await self.page.browser.get(path, allow_redirects=False)
        await response.read()
        return response

    async def begin(self, path: str = "/topics") -> str:
        """Begin a login. Return the provider's address."""
        begun = await self.step(path)
        assert begun.status == 302
        return begun.headers["Location"]

    async def answer(self, url: str) -> str:
        """Log in at the provider. Return the address to which it sends the browser."""
        session = self.page.browser.session
        async with session.get(url, allow_redirects=False) as response:
            assert response.status == 302
            return response.headers["Location"]


@asynccontextmanager
async def world(**changes: Any) -> AsyncIterator[World]:
    clock = Clock()
    async with openid_provider(clock) as provider:
        (port,) = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        settings = OpenIdSettings(provider.issuer, CLIENT_ID, url, Secret(CLIENT_SECRET), **changes)
        login = OpenIdLogin(settings, clock)
        async with console("127.0.0.1:1", ConsoleAccess(login=login, url=url)) as page:
            yield World(page, provider, clock, login)


def run(call: Callable[[World], Coroutine[None, None, None]], **changes: Any) -> None:
    async def whole() -> None:
        async with world(**changes) as found:
            await call(found)

    asyncio.run(whole())


def test_a_login_returns_to_the_page() -> None:
    async def call(world: World) -> None:
        found = await world.page.get("/topics", q="a b&c")
        assert "Logged in as ann." in found.words
        (asked,) = world.provider.asked
        assert len(asked["state"]) == len(asked["nonce"]) == 43
        assert asked["state"] != asked["nonce"]
        (form,) = world.provider.forms
        assert form["grant_type"] == "authorization_code"
        assert "client_secret" not in form
        await world.page.get("/")
        assert len(world.provider.asked) == 1, "a cookie is enough"

    run(call)


def test_the_cookies_and_where_secrets_are() -> None:
    async def call(world: World) -> None:
        begun = await world.step("/topics?q=x")
        assert parse_qs(urlsplit(begun.headers["Location"]).query)["redirect_uri"] == [
            f"{world.page.browser.make_url('/logged-in')}"
        ]
        back = await world.answer(begun.headers["Location"])
        done = await world.step(back)
        assert (done.status, done.headers["Location"]) == (302, "/topics?q=x")
        (began,) = begun.cookies.values()
        assert began.key.startswith("shoal-begun-")
        for cookie in (began, done.cookies["shoal-login"]):
            assert cookie["httponly"]
            assert (cookie["samesite"], cookie["path"]) == ("Lax", "/")
        for response in (begun, done):
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert "access.ann" not in str(response.headers)
            assert response.headers["Cache-Control"] == "no-store"
        assert "access.ann" not in back

    run(call)


def test_what_is_not_a_page_is_refused_without_a_login() -> None:
    async def call(world: World) -> None:
        for path in ("/live/", "/live/group?id=x"):
            found = await world.page.get(path, status=401)
            assert "You are not logged in, or your login has ended." in found.words
        await world.page.post("/logout", {}, status=401)
        async with world.page.browser.get("/topics", headers={"Sec-Fetch-Mode": "cors"}) as one:
            assert one.status == 401
        await world.page.get("/static/console.css")
        assert not world.provider.asked

    run(call)


@pytest.mark.parametrize("path", ["//evil.example/x", "/" + "x" * 3_000])
def test_a_login_never_returns_to_another_host(path: str) -> None:
    async def call(world: World) -> None:
        url = f"http://{world.page.browser.host}:{world.page.browser.port}"
        async with world.page.browser.session.get(url + path, allow_redirects=False) as begun:
            done = await world.step(await world.answer(begun.headers["Location"]))
        assert done.headers["Location"] == "/"

    run(call)


def test_a_state_is_valid_once_in_its_browser_for_some_minutes() -> None:
    async def refused(world: World, url: str) -> None:
        done = await world.step(url)
        assert done.status == 400
        assert "shoal-login" not in done.cookies
        assert "This login was used before" in await done.text()

    async def call(world: World) -> None:
        back = await world.answer(await world.begin())
        assert (await world.step(back)).status == 302
        await refused(world, back)
        await refused(world, "/logged-in?code=x&state=unknown")
        await refused(world, "/logged-in")
        world.page.browser.session.cookie_jar.clear()
        theirs = await world.answer(await world.begin())
        async with another_browser(world.page) as other:
            await refused(world._replace(page=other), theirs)
        late = await world.answer(await world.begin())
        world.clock.ahead_s = PENDING_S_MAX + 1
        await refused(world, late)

    run(call)


@pytest.mark.parametrize("count", [20, pytest.param(5_000, marks=pytest.mark.nightly)])
def test_requests_without_a_login_take_no_memory_and_push_out_no_login(count: int) -> None:
    async def call(world: World) -> None:
        back = await world.answer(await world.begin())
        before = count_kept(world)
        async with another_browser(world.page) as other:
            for _ in range(count):
                await world._replace(page=other).begin()
        assert count_kept(world) == before
        assert (await world.step(back)).status == 302

    run(call)


def count_kept(world: World) -> int:
    """Return how much the console keeps of logins and their states."""
    return sum(len(one) for one in vars(world.login).values() if isinstance(one, Sized))


def test_a_state_asks_the_provider_once() -> None:
    """Also with wrong codes: otherwise one login that began makes any number of requests to it. The
    state is forgotten when it is too old for a login."""

    async def call(world: World) -> None:
        back = await world.answer(await world.begin())
        wrong = back.replace("code=", "code=guessed-")
        answers = [await world.step(wrong) for _ in range(3)]
        assert [answer.status for answer in answers] == [401, 400, 400]
        assert len(world.provider.forms) == 1
        kept = count_kept(world)
        for times in (1, 2):
            world.clock.ahead_s = times * (PENDING_S_MAX + 1)
            back = await world.answer(await world.begin())
            assert (await world.step(back.replace("code=", "code=guessed-"))).status == 401
        assert count_kept(world) == kept

    run(call)


def test_a_user_who_logs_in_again_and_again_ends_no_login_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openid, "LOGINS_OF_USER_MAX", 2)

    async def call(world: World) -> None:
        assert (await world.step(await world.answer(await world.begin()))).status == 302
        world.provider.user = "bob"
        async with (
            another_browser(world.page) as first,
            another_browser(world.page) as second,
            another_browser(world.page) as third,
        ):
            theirs = [world._replace(page=page) for page in (first, second, third)]
            for one in theirs:
                assert (await one.step(await one.answer(await one.begin()))).status == 302
            ended = [(await one.step("/nothing-here")).status == 302 for one in theirs]
        assert ended == [True, False, False]
        assert (await world.step("/nothing-here")).status != 302

    run(call)


def unsigned(claims: dict[str, Any], algorithm: str = "none", key: bytes = b"") -> str:
    """Return a token without a signature, or with an HMAC, whose header claims an algorithm."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head = part(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
    text = f"{head}.{part(json.dumps(claims).encode())}"
    return f"{text}.{part(hmac.digest(key, text.encode(), 'sha256')) if key else ''}"


def _by_public_key(provider: OpenIdProvider) -> None:
    pem = provider.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    provider.sign = lambda claims: unsigned(claims, "HS256", pem)


def _by_another_key(provider: OpenIdProvider) -> None:
    mine, theirs = provider.key, rsa.generate_private_key(65537, 2048)

    def sign(claims: dict[str, Any]) -> str:
        provider.key = theirs
        token = provider.signed(claims)
        provider.key = mine
        return token

    provider.sign = sign


def _claims(**wrong: Any) -> Callable[[OpenIdProvider], None]:
    def change(provider: OpenIdProvider) -> None:
        def apply(claims: dict[str, Any]) -> None:
            for name, value in wrong.items():
                if value is None:
                    del claims[name]
                else:
                    claims[name] = value

        provider.change = apply

    return change


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda p: setattr(p, "sign", unsigned), "algorithm &#39;none&#39; is not permitted"),
        (_by_public_key, "algorithm &#39;HS256&#39; is not permitted"),
        (_by_another_key, "signature is wrong"),
        (lambda p: setattr(p, "sign", lambda _claims: "x"), "no signed JSON Web Token"),
        (lambda p: setattr(p, "sign", lambda _claims: ""), "no signed JSON Web Token"),
        (_claims(iss="https://evil.example"), "has another issuer"),
        (_claims(iss=None), "has another issuer"),
        (_claims(aud="other"), "for another client"),
        (_claims(aud=["other"]), "for another client"),
        (_claims(aud=None), "for another client"),
        (_claims(aud=[CLIENT_ID, "other"]), "issued to another client"),
        (_claims(azp="other"), "issued to another client"),
        (_claims(nonce="other"), "belongs to another login"),
        (_claims(nonce=None), "belongs to another login"),
        (_claims(nonce=["x"]), "belongs to another login"),
        (_claims(exp=1_000, iat=900), "has expired"),
        (_claims(exp=None), "no number in the claim exp"),
        (_claims(iat=int(time.time()) + 86_400), "issued in the future"),
        (_claims(sub=None), "has no text for the subject"),
        (_claims(sub=7), "has no text for the subject"),
        (_claims(sub="a\u202eb"), "is not a printable name"),
        (lambda p: p.answer.update(iss="https://evil.example"), "from another provider"),
        (lambda p: p.answer.update(error="<b>denied</b>"), "&lt;b&gt;denied&lt;/b&gt;"),
        (lambda p: p.answer.update(code="stolen"), "invalid_grant"),
        (
            lambda p: setattr(p, "refuses", True),
            "it reports &#39;invalid_grant&#39;: &#39;Session not &lt;active&gt;&#39;",
        ),
        (
            lambda p: p.answer.update(error="access_denied", error_description="No <role>"),
            "it reports &#39;access_denied&#39;: &#39;No &lt;role&gt;&#39;",
        ),
    ],
)
def test_bad_answers_are_no_login(
    spoil: Callable[[OpenIdProvider], object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "shoal.console")

    async def call(world: World) -> None:
        spoil(world.provider)
        back = await world.answer(await world.begin())
        done = await world.step(back)
        assert done.status == 401
        assert "shoal-login" not in done.cookies
        text = await done.text()
        assert reason in text
        assert "<h1>Not logged in</h1>" in text
        assert (await world.step("/topics")).status == 302, "still not logged in"

    run(call)
    assert "login from 127.0.0.1 failed" in caplog.text
    assert "access.ann" not in caplog.text


def test_a_new_key_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(world: World) -> None:
        await world.page.get("/topics")
        world.page.browser.session.cookie_jar.clear()
        world.provider.rotate()
        monkeypatch.setattr(providers, "KEYS_S_MIN", 0.0)
        assert "Logged in as ann." in (await world.page.get("/topics")).words

    run(call)


def test_log_out_and_the_end_of_a_login() -> None:
    async def call(world: World) -> None:
        await world.page.get("/")
        (kept,) = [c for c in world.page.browser.session.cookie_jar if c.key == "shoal-login"]
        forged = {"Origin": "https://evil.example"}
        async with world.page.browser.post("/logout", headers=forged) as refused:
            assert refused.status == 403
        out = await world.page.post("/logout", {})
        assert "You are logged out" in out.words
        assert f'href="{world.provider.issuer}/end"' in out.text
        assert "Cluster" not in out.words
        assert (await world.step("/")).status == 302
        async with world.page.browser.get(
            "/", headers={"Cookie": f"shoal-login={kept.value}"}, allow_redirects=False
        ) as again:
            assert again.status == 302, "the cookie of an ended login"
        await world.page.get("/")
        world.clock.ahead_s = LOGIN_S_MAX + 1
        assert (await world.step("/")).status == 302

    run(call)


def test_a_log_out_revokes_the_newest_refresh_token() -> None:
    async def call(world: World) -> None:
        world.provider.has_refresh = True
        await world.page.get("/")
        world.clock.ahead_s = 280
        await world.page.get("/")
        assert world.provider.renewals == 1
        await world.page.post("/logout", {})
        revoked = {"token": "refresh 1", "token_type_hint": "refresh_token"}
        assert world.provider.revoked == [revoked]

    run(call)


@pytest.mark.parametrize("metadata", [{}, {"revocation_endpoint": None}])
def test_a_log_out_without_anything_to_revoke(metadata: dict[str, None]) -> None:
    async def call(world: World) -> None:
        world.provider.metadata = metadata
        world.provider.has_refresh = bool(metadata)
        await world.page.get("/")
        assert "You are logged out" in (await world.page.post("/logout", {})).words
        assert not world.provider.revoked

    run(call)


async def _never() -> web.Response:
    return await asyncio.get_running_loop().create_future()


async def _unsupported() -> web.Response:
    return web.json_response({"error": "unsupported_token_type"}, status=400)


async def _broken() -> web.Response:
    return web.Response(status=503, text="<html>")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_never, "no answer in time"),
        (_unsupported, "it reports 'unsupported_token_type'"),
        (_broken, "/revoke answers 503 without a JSON object"),
    ],
)
def test_a_log_out_succeeds_without_the_provider(
    answer: Callable[[], Awaitable[web.Response]],
    reason: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if answer is _never:
        monkeypatch.setattr(openid, "REVOKE_S_MAX", 0.2)

    async def call(world: World) -> None:
        world.provider.has_refresh = True
        world.provider.revoke = answer
        await world.page.get("/")
        assert "You are logged out" in (await world.page.post("/logout", {})).words
        assert (await world.step("/")).status == 302, "not logged in"

    run(call)
    assert "the provider may still have the login of ann" in caplog.text
    assert reason in caplog.text
    assert "refresh 0" not in caplog.text


def test_a_forged_cookie_is_no_login() -> None:
    async def call(world: World) -> None:
        await world.page.get("/")
        (good,) = [c for c in world.page.browser.session.cookie_jar if c.key == "shoal-login"]
        id, ends_at, mac = good.value.split(".")
        world.page.browser.session.cookie_jar.clear()
        for value in (
            f"{id}.{int(ends_at) + 1}.{mac}",
            f"{id}.{ends_at}.{mac[:-1]}",
            f"{id}.{ends_at}",
            f"{'y' if id[0] == 'x' else 'x'}{id[1:]}.{ends_at}.{mac}",
            "..",
            "\u00fc.1.x",
        ):
            headers = {"Cookie": f"shoal-login={value}"}
            async with world.page.browser.get("/", headers=headers, allow_redirects=False) as one:
                assert one.status == 302, value

    run(call)


def test_an_access_token_is_renewed() -> None:
    async def call(world: World) -> None:
        world.provider.has_refresh = True
        await world.page.get("/")
        world.clock.ahead_s = 200
        await world.page.get("/")
        assert world.provider.renewals == 0
        world.clock.ahead_s = 280
        await world.page.get("/")
        await world.page.get("/")
        assert world.provider.renewals == 1
        assert world.provider.forms[-1]["refresh_token"] == "refresh 0"
        world.provider.refuses = True
        world.clock.ahead_s = 580
        assert (await world.step("/")).status == 302, "the provider has ended the login"

    run(call)


def test_an_open_page_renews_the_token_and_ends_with_the_login() -> None:
    async def call(world: World) -> None:
        world.provider.has_refresh = True
        page = world.page
        await page.get("/")
        async with page.browser.get("/live/") as response:
            events = page.events(response)
            assert (await anext(events))[0] == "state"
            world.clock.ahead_s = 280
            await page.sampler.step()
            assert "No answer from the cluster" in (await anext(events))[1]
            assert world.provider.renewals == 1
            await page.post("/logout", {})
            await page.sampler.step()
            ended = "Your login has ended. Reload the page to log in again."
            assert await anext(events) == ("problem", ended)

    run(call)


def test_a_provider_that_does_not_answer() -> None:
    async def whole() -> None:
        (port, own) = free_ports(2)
        url = f"http://127.0.0.1:{own}"
        settings = OpenIdSettings(f"http://127.0.0.1:{port}", CLIENT_ID, url)
        access = ConsoleAccess(login=OpenIdLogin(settings), url=url)
        async with console("127.0.0.1:1", access) as page:
            found = await page.get("/", status=502)
            assert f"Nobody can log in now: http://127.0.0.1:{port}/" in found.words

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"issuer": "https://evil.example"}, "is not the metadata of"),
        ({"token_endpoint": "http://evil.example/token"}, "must have https://"),
        ({"jwks_uri": "file:///etc/passwd"}, "must be an address with https://"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "must be an address with https://"),
        ({"end_session_endpoint": "javascript:alert(1)"}, "must be an address with https://"),
        ({"revocation_endpoint": "http://evil.example/"}, "must have https://"),
    ],
)
def test_metadata_that_cannot_be_trusted(metadata: dict[str, str], reason: str) -> None:
    async def call(world: World) -> None:
        world.provider.metadata = metadata
        assert reason in (await world.page.get("/", status=502)).words

    run(call)


def test_the_email_must_be_verified() -> None:
    async def call(world: World) -> None:
        address: dict[str, Any] = {"email": "a@b.example"}
        some: list[dict[str, Any]] = [{}, {"email_verified": False}, {"email_verified": "true"}]
        for said in some:
            world.provider.change = adding(**address, **said)
            assert "email_verified" in (await world.page.get("/", status=401)).words
        world.provider.change = lambda c: c.update(email="a@b.example", email_verified=True)
        assert "Logged in as a@b.example." in (await world.page.get("/")).words

    run(call, user_claim="email")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "f is not JSON"),
        ("[]", "f must be a JSON object"),
        ('{"issuer": "https://i"}', "f has no client_id"),
        ('{"issuer": "https://i", "client_id": ""}', "client_id of f must be a text"),
        ('{"issuer": "https://i", "client_id": "c", "secret": "x"}', "f has 'secret'. Use issuer"),
        ('{"issuer": "http://i", "client_id": "c"}', "issuer of f must have https://"),
        ('{"issuer": "i", "client_id": "c"}', "issuer of f must be an address"),
        ('{"issuer": "https://i", "client_id": "c", "scopes": ["x"]}', 'texts with "openid"'),
    ],
)
def test_files_that_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidAccess) as raised:
        parse_openid(text, "f", "https://c")
    assert sentence in str(raised.value)


def test_files_and_addresses() -> None:
    text = '{"issuer": "https://i", "client_id": "c", "client_secret": "s3"}'
    found = parse_openid(text, "f", "https://c")
    assert found.client_secret.reveal() == "s3"
    assert "s3" not in repr(found)
    with pytest.raises(InvalidAccess, match="--openid needs --url"):
        parse_openid(text, "f", "")
    assert parse_url("https://c.example:444/") == "https://c.example:444"
    assert parse_url("http://127.0.0.1:9080") == "http://127.0.0.1:9080"
    for wrong in ("http://c.example", "c.example", "https://c/x", "https://u@c", "https://c:x"):
        with pytest.raises(InvalidAccess, match="--url must"):
            parse_url(wrong)
