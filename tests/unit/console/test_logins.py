"""Logins by a proxy and by client certificates, over real HTTP and TLS."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
import pytest
from shoal.cli.commands.console import PageOptions, _build_access, _make_context
from shoal.cli.session import CommandError
from shoal.client.settings import Settings
from shoal.console.access.logins import CertificateLogin, ProxyLogin, is_in, parse_networks
from shoal.console.access.openid import OpenIdLogin
from shoal.console.access.security import ConsoleAccess
from shoal.console.app import serving
from shoal.console.login_files import InvalidAccess
from shoal.console.reading.masks import OFF
from support.console.consoles import Console, console
from support.security.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

HERE = parse_networks(["127.0.0.1", "10.1.0.0/16"])
ELSEWHERE = parse_networks(["10.1.0.0/16", "fd00::/8"])


async def status(page: Console, *headers: tuple[str, str], path: str = "/topics") -> int:
    async with page.browser.get(path, headers=headers) as response:
        await response.read()
        return response.status


def test_a_trusted_proxy_names_the_user() -> None:
    async def call() -> None:
        access = ConsoleAccess(login=ProxyLogin("X-Forwarded-User", HERE))
        async with console("127.0.0.1:1", access) as page:
            async with page.browser.get("/", headers={"x-forwarded-user": " ann "}) as response:
                assert response.status == 200
            for path in ("/", "/topics", "/static/console.css", "/live/", "/none"):
                assert await status(page, path=path) == 401
            one, two = ("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob")
            assert await status(page, one) == 200
            assert await status(page, one, two) == 401, "which of them is it"
            assert await status(page, ("X-Forwarded-User", "")) == 401
            assert await status(page, ("X-Forwarded-User", "a\u202eb")) == 401
            assert await status(page, ("X-Forwarded-User", "x" * 501)) == 401
            assert await status(page, ("X-Other", "ann")) == 401

    asyncio.run(call())


def test_headers_from_other_addresses_do_not_count() -> None:
    async def call() -> None:
        access = ConsoleAccess(login=ProxyLogin("X-Forwarded-User", ELSEWHERE))
        async with console("127.0.0.1:1", access) as page:
            spoofed = {"X-Forwarded-User": "ann", "X-Forwarded-For": "10.1.0.1"}
            found = await page.browser.get("/", headers=spoofed)
            text = await found.text()
            assert found.status == 403
            assert "127.0.0.1 is not a trusted proxy of this console." in text
            assert "Cluster" not in text

    asyncio.run(call())


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("10.2.0.1", False),
        ("fd00::1", True),
        ("fd00::1%eth0", True),
        ("", False),
        ("x", False),
    ],
)
def test_trusted_addresses(address: str, wanted: bool) -> None:
    assert is_in(address, ELSEWHERE) is wanted


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            PageOptions(proxy_user_header="X-User"),
            "--proxy-user-header needs --trusted-proxy: without it, each host could log in as",
        ),
        (
            PageOptions(proxy_user_header="X-User", trusted_proxy=["0.0.0.0/0"]),
            "--trusted-proxy 0.0.0.0/0 would trust every host",
        ),
        (
            PageOptions(proxy_user_header="X-User", trusted_proxy=["proxy.example"]),
            "--trusted-proxy must be an address or a network",
        ),
        (
            PageOptions(proxy_user_header="X User", trusted_proxy=["10.0.0.1"]),
            "'X User' is not the name of an HTTP header",
        ),
        (PageOptions(trusted_proxy=["10.0.0.1"]), "need --proxy-user-header"),
        (PageOptions(url="http://queues.example"), "--url must have https://"),
    ],
)
def test_options_that_are_refused(options: PageOptions, sentence: str) -> None:
    with pytest.raises(CommandError) as raised:
        _build_access("127.0.0.1:0", options)
    assert sentence in str(raised.value)


def test_logins_exclude_each_other(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("ann:1\n")
    options = PageOptions(login=file, proxy_user_header="X-User", trusted_proxy=["10.0.0.1"])
    with pytest.raises(CommandError, match="--login and --proxy-user-header are different logins"):
        _build_access("127.0.0.1:0", options)
    with pytest.raises(CommandError, match="--client-ca needs --certificate"):
        _build_access("127.0.0.1:0", PageOptions(client_ca=file))
    found = _build_access("10.0.0.1:1", PageOptions(client_ca=file, certificate=file))
    assert isinstance(found.login, CertificateLogin)
    with pytest.raises(InvalidAccess, match="--client-principal-mapping: "):
        CertificateLogin("RULE:[")


def test_options_of_the_provider_and_the_registry(tmp_path: Path) -> None:
    provider, login = tmp_path / "openid.json", tmp_path / "login"
    provider.write_text('{"issuer": "https://login.example", "client_id": "c"}')
    login.write_text("ann:s3cret\n")
    given = PageOptions(
        openid=provider,
        url="https://queues.example/",
        schema_registry="https://registry.example/",
        schema_registry_login=login,
        no_payloads=True,
    )
    found = _build_access("127.0.0.1:0", given)
    assert isinstance(found.login, OpenIdLogin)
    assert (found.url, found.masks) == ("https://queues.example", OFF)
    assert found.hosts == {"queues.example"}
    assert found.registry is not None
    assert (found.registry.url, found.registry.user) == ("https://registry.example", "ann")
    assert "s3cret" not in repr(found)
    with pytest.raises(CommandError, match="--openid needs --url"):
        _build_access("127.0.0.1:0", PageOptions(openid=provider))


def test_a_client_certificate_names_the_user(tmp_path: Path) -> None:
    authority, stranger = Authority("Users"), Authority("Others")
    ann = authority.issue("ann")
    theirs = stranger.issue("ann")
    server = authority.issue("console")
    (tmp_path / "server.pem").write_text(server.pem)
    (tmp_path / "ca.pem").write_text(authority.pem)
    for name, one in (("ann", ann), ("theirs", theirs)):
        (tmp_path / f"{name}.pem").write_text(one.pem)
    context = _make_context(tmp_path / "server.pem", None, tmp_path / "ca.pem")

    def client(name: str = "") -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        if name:
            found.load_cert_chain(tmp_path / f"{name}.pem")
        return found

    async def opened(url: str, own: ssl.SSLContext) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(url, ssl=own) as response:
            return response.status, await response.text()

    async def call(rules: str) -> tuple[int, str]:
        access = ConsoleAccess(port=0, is_encrypted=True, login=CertificateLogin(rules))
        settings = replace(Settings.from_bootstrap("127.0.0.1:1"), retry_timeout_ms=100)
        async with serving(settings, access, ssl_context=context) as url:
            code, text = await opened(f"{url}none", client())
            assert code == 401
            assert "Log in with a client certificate." in text
            with pytest.raises((aiohttp.ClientError, OSError)):
                await opened(url, client("theirs"))
            return await opened(f"{url}none", client("ann"))

    assert asyncio.run(call("DEFAULT"))[0] == 404, "the user is in, and there is no such page"
    code, text = asyncio.run(call("RULE:^CN=(bob),.*$/$1/"))
    assert code == 403
    assert "not the name of a user" in text


def test_authorities_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text(Authority().issue("x").pem)
    for name in ("server.pem", "none.pem"):
        file = tmp_path / name
        if name == "server.pem":
            (tmp_path / "empty.pem").write_text("")
            file = tmp_path / "empty.pem"
        with pytest.raises(CommandError, match="It must be a PEM file with the certificates of"):
            _make_context(tmp_path / "server.pem", None, file)
