"""Where the console may listen, and who may open it."""

from __future__ import annotations

import asyncio
import sys

import pytest
from aiohttp import encode_basic_auth, web
from shoal.cli.commands import console as cli
from shoal.cli.session import CommandError
from shoal.client.client import Client
from shoal.console.access import security
from shoal.console.access.attempts import FAILURES_MAX, PAUSE_S, Attempts
from shoal.console.access.security import ConsoleAccess, is_loopback, parse_address, parse_users
from shoal.console.live import encode_event
from shoal.console.login_files import InvalidAccess
from support.console.consoles import console

USERS = parse_users("ann:secret\n", "users")


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("console.example", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback(host: str, wanted: bool) -> None:
    assert is_loopback(host) is wanted


def test_other_hosts_need_a_login_and_encryption_or_a_flag() -> None:
    ConsoleAccess("127.0.0.1").check(insecure=False)
    ConsoleAccess("0.0.0.0", users=USERS, is_encrypted=True).check(insecure=False)
    ConsoleAccess("0.0.0.0").check(insecure=True)
    for access in (
        ConsoleAccess("0.0.0.0"),
        ConsoleAccess("0.0.0.0", users=USERS),
        ConsoleAccess("0.0.0.0", is_encrypted=True),
    ):
        remedy = r"Give it --login and --certificate, or .*--insecure"
        with pytest.raises(InvalidAccess, match=remedy):
            access.check(insecure=False)


def test_addresses() -> None:
    assert parse_address("127.0.0.1:9080") == ("127.0.0.1", 9080)
    assert parse_address("[::1]:0") == ("::1", 0)
    for text in ("9080", "127.0.0.1", "h:x", "h:99999", ":9080", "h:1/x"):
        with pytest.raises(InvalidAccess, match="--listen must be HOST:PORT"):
            parse_address(text)


def test_users() -> None:
    assert parse_users("# users\n\nann:se:cret\nbob:x\n", "f").keys() == {"ann", "bob"}
    for text in ("ann", "ann:", ":secret"):
        with pytest.raises(InvalidAccess, match="line 1 of f must be USER:PASSWORD") as raised:
            parse_users(text, "f")
        assert "secret" not in str(raised.value)
    with pytest.raises(InvalidAccess, match="f has no users"):
        parse_users("# none\n", "f")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("shoal.console")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    remedy = r"needs jinja2\. Install it with `.* -m pip install jinja2`"

    async def command() -> None:
        async with Client("127.0.0.1:1") as client:
            await cli.console(client)

    with pytest.raises(CommandError, match=remedy):
        asyncio.run(command())


def test_events_have_no_other_line_breaks() -> None:
    assert encode_event("state", "a\nb\r\nc\rd") == (
        b"event: state\ndata: a\ndata: b\ndata: c\ndata: d\n\n"
    )


def test_an_address_waits_after_failed_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "REFUSAL_DELAY_S", 0)

    async def run() -> None:
        access = ConsoleAccess(users=parse_users("ann:right", "users"))
        async with console("127.0.0.1:1", access) as page:

            async def status(password: str | None) -> int:
                headers = {}
                if password is not None:
                    headers["Authorization"] = encode_basic_auth("ann", password)
                async with page.browser.get("/topics", headers=headers) as response:
                    if response.status == 429:
                        assert 0 < int(response.headers["Retry-After"]) <= PAUSE_S
                    return response.status

            for _ in range(FAILURES_MAX):
                assert await status("wrong") == 401
            assert await status("right") == 429
            assert await status(None) == 401, "a browser that has not tried is asked to log in"

    asyncio.run(run())


def test_attempts_are_counted_by_address_and_forgiven_in_time() -> None:
    now_s = 0.0
    attempts = Attempts(lambda: now_s)
    for _ in range(FAILURES_MAX):
        attempts.check("2001:db8::1")
        attempts.note_failure("2001:db8::1")
    for address in ("2001:db8::1", "2001:db8::2"):
        with pytest.raises(web.HTTPTooManyRequests):
            attempts.check(address)
    attempts.check("2001:db8:1::1")
    attempts.check("::ffff:192.0.2.1")
    now_s = PAUSE_S
    attempts.check("2001:db8::1")
    attempts.note_failure("2001:db8::1")
    with pytest.raises(web.HTTPTooManyRequests):
        attempts.check("2001:db8::1")
