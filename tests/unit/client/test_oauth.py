"""Access tokens of the client: when it fetches them, and what it does if that fails."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from shoal.client.errors import LoginUnavailable, SecurityError
from shoal.client.security import oauth
from shoal.client.settings import Settings
from support.security.identity_providers import IdentityProvider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shoal.client.security.secret import Secret
    from shoal.client.security.security import Security

SECRET = "s3cret/+ ü"


class Clock:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def time(self) -> float:
        return time.time() + self.ahead_s

    def monotonic(self) -> float:
        return time.monotonic()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(oauth, "time", found)
    return found


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider({"orders": SECRET}) as found:
        yield found


@pytest.fixture(autouse=True)
def _fewer_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "RETRY_BACKOFF_MS_MAX", 500)


def security(url: str, **properties: str) -> Security:
    return Settings.from_bootstrap(
        "a",
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.client.credentials.client.id": "orders",
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        }
        | {name.replace("_", "."): value for name, value in properties.items()},
    ).security


def token(found: Security) -> Secret:
    return asyncio.run(found.get_access_token())


def test_callers_share_a_token_until_most_of_its_lifetime_is_over(
    provider: IdentityProvider, clock: Clock
) -> None:
    found = security(f"{provider.url}/token", sasl_oauthbearer_scope="write read")

    async def both() -> tuple[Secret, Secret]:
        return await asyncio.gather(found.get_access_token(), found.get_access_token())

    first, second = asyncio.run(both())
    assert first == second
    assert provider.requests == [
        ({"grant_type": ["client_credentials"], "scope": ["write read"]}, "orders")
    ]
    clock.ahead_s = 0.79 * provider.lifetime_s
    assert token(found) == first
    clock.ahead_s = 0.86 * provider.lifetime_s
    assert token(found)
    assert len(provider.requests) == 2


def test_a_token_is_used_to_its_end_if_the_provider_does_not_answer(
    provider: IdentityProvider, clock: Clock
) -> None:
    found = security(f"{provider.url}/token")
    first = token(found)
    provider.faults = [503] * 100
    clock.ahead_s = 0.9 * provider.lifetime_s
    assert token(found) == first
    assert len(provider.requests) > 2, "503 is worth another attempt"
    clock.ahead_s = provider.lifetime_s
    with pytest.raises(LoginUnavailable, match="answers 503"):
        token(found)
    provider.faults = [503]
    assert token(found)


def test_refusals_are_final_and_do_not_show_the_secret(provider: IdentityProvider) -> None:
    provider.clients.clear()
    with pytest.raises(SecurityError, match="refuses the client, 401: invalid_client") as caught:
        token(security(f"{provider.url}/token"))
    assert len(provider.requests) == 1
    assert SECRET not in str(caught.value)


def test_the_secret_does_not_follow_a_redirect(provider: IdentityProvider) -> None:
    with IdentityProvider({"orders": SECRET}) as elsewhere:
        provider.faults, provider.fault_headers = [302], {"Location": f"{elsewhere.url}/token"}
        with pytest.raises(SecurityError, match="redirects to another address"):
            token(security(f"{provider.url}/token"))
        assert not elsewhere.requests


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>", "is not a JSON object with an access_token"),
        (b"[]", "is not a JSON object with an access_token"),
        (b'{"token": "hidd3n"}', "is not a JSON object with an access_token"),
        (b'{"access_token": "hidd3n\\u0001x=y"}', "characters that RFC 6750 does not allow"),
        (b'"%s"' % (b"x" * 1_000_000), "is larger than 1000000 bytes"),
    ],
)
def test_responses_that_cannot_be_used(provider: IdentityProvider, body: bytes, said: str) -> None:
    provider.body = body
    with pytest.raises(SecurityError, match=said) as caught:
        token(security(f"{provider.url}/token"))
    assert "hidd3n" not in str(caught.value)


def test_a_token_without_claims_lives_as_long_as_the_response_says(
    provider: IdentityProvider, clock: Clock
) -> None:
    provider.body = b'{"access_token": "opaque", "expires_in": 100}'
    found = security(f"{provider.url}/token")
    assert token(found) == "opaque"
    clock.ahead_s = 79
    assert token(found) == "opaque"
    assert len(provider.requests) == 1
    clock.ahead_s = 86
    assert token(found) == "opaque"
    assert len(provider.requests) == 2


def test_ids_and_secrets_can_be_encoded(provider: IdentityProvider) -> None:
    """RFC 6749, section 2.3.1, as in `sasl.oauthbearer.header.urlencode`."""
    provider.clients = {"a%3Ab": "c+d%2F"}
    found = security(
        f"{provider.url}/token",
        **{
            "sasl.oauthbearer.client.credentials.client.id": "a:b",
            "sasl.oauthbearer.client.credentials.client.secret": "c d/",
            "sasl.oauthbearer.header.urlencode": "true",
        },
    )
    assert token(found)


def test_a_provider_that_never_answers_blocks_neither_loop_nor_exit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/token"
        found = security(url, sasl_login_read_timeout_ms="100")

        async def ask() -> int:
            turns = 0
            asking = asyncio.create_task(found.get_access_token())
            while not asking.done():
                turns += 1
                await asyncio.sleep(0)
            with pytest.raises(LoginUnavailable, match="does not answer"):
                await asking
            return turns

        assert asyncio.run(ask()) > 100


def test_a_provider_that_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(LoginUnavailable, match="Connection refused"):
        token(security(f"http://127.0.0.1:{port}/token"))


def test_https_trusts_the_configured_ca_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, other = trustme.CA(), trustme.CA()
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(tls)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with IdentityProvider({"orders": SECRET}, tls=tls) as provider:
        url = f"{provider.url}/token"
        assert token(security(url))
        assert token(security(url, https_ca_location=str(tmp_path / "ca.pem")))
        with pytest.raises(LoginUnavailable, match="certificate verify failed"):
            token(security(url, https_ca_location=str(tmp_path / "other.pem")))


@pytest.mark.parametrize("ahead_s", [-600, 600])
def test_clocks_need_not_agree(provider: IdentityProvider, clock: Clock, ahead_s: int) -> None:
    provider.lifetime_s = 100
    clock.ahead_s = ahead_s
    found = security(f"{provider.url}/token")
    first = token(found)
    clock.ahead_s += 79
    assert token(found) == first
    clock.ahead_s += 7
    token(found)
    assert len(provider.requests) == 2


def test_tokens_of_files_are_read_for_each_login(tmp_path: Path, clock: Clock) -> None:
    issuer = IdentityProvider({})
    file = tmp_path / "a token"
    found = security(file.as_uri())
    for _ in range(2):
        file.write_text(issuer.token("orders", 100) + "\n")
        assert token(found) == file.read_text().strip()
    last = file.read_text().strip()
    file.write_text("")
    clock.ahead_s = 99
    assert token(found) == last, "it is still valid"
    clock.ahead_s = 101
    with pytest.raises(SecurityError, match="characters that RFC 6750"):
        token(found)
    file.unlink()
    with pytest.raises(SecurityError, match="cannot be read: No such file"):
        token(found)


def test_a_new_secret_replaces_the_token(provider: IdentityProvider, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    properties: dict[str, Any] = {
        "sasl.oauthbearer.client.credentials.client.secret": f"${{directory:{tmp_path}:secret}}"
    }
    found = security(f"{provider.url}/token", **properties)
    assert token(found.reload())
    assert token(found.reload())
    assert len(provider.requests) == 1
    secret.write_text("other")
    with pytest.raises(SecurityError, match="401"):
        token(found.reload())
