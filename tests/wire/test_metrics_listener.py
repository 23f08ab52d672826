"""The protection of `/metrics`: TLS, bearer tokens and certificates. Probes stay plain."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError

import pytest
from shoal.client.client import Client
from shoal.client.settings import Settings
from shoal.monitoring import scrape
from support.brokers.ports import free_ports
from support.runs.conditions import eventually
from support.security.certificates import Authority, Stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

AUTHORITY = Authority()
SERVER, CLIENT = AUTHORITY.issue("server"), AUTHORITY.issue("prometheus")
PROBES = ("/healthz", "/readyz")


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path / "stores")


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.pem)
    return context


def showing(stores: Stores) -> ssl.SSLContext:
    context = trusting()
    context.load_cert_chain(stores.write("client.pem", CLIENT.pem))
    return context


def get(
    broker: ShoalProcess,
    path: str,
    *,
    scheme: str = "https",
    context: ssl.SSLContext | None = None,
    token: str = "",
) -> tuple[int, str]:
    """Return status and body."""
    address = broker.metrics_url.partition("://")[2]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{scheme}://{address}{path}", headers=headers)
    if scheme == "http":
        context = None
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def tls(stores: Stores) -> dict[str, str]:
    found = stores.configs(SERVER, AUTHORITY)
    return {
        "shoal.metrics.security.protocol": "SSL",
        **{f"listener.name.metrics.{name}": value for name, value in found.items()},
    }


def test_metrics_over_tls(start_broker: Callable[..., ShoalProcess], stores: Stores) -> None:
    """shoal.metrics.security.protocol"""
    broker = start_broker(configs=tls(stores) | {"shoal.ssl.reload.interval.ms": "100"})
    assert broker.metrics_url.startswith("https://")
    status, text = get(broker, "/metrics", context=trusting())
    assert status == 200
    assert 'shoal_listener_certificate_info{listener="METRICS"' in text
    assert get(broker, "/metrics", scheme="http") == (
        403,
        "Metrics are served over TLS: use https.\n",
    )
    for path in PROBES:
        assert get(broker, path, scheme="http")[0] == 200
        assert get(broker, path, context=trusting())[0] == 200
    renewed = AUTHORITY.issue("server")
    stores.write("server.pem", renewed.pem)
    text = f'certificate_info{{listener="METRICS",fingerprint="{renewed.fingerprint}"}} 1'
    eventually(lambda: text in get(broker, "/metrics", context=trusting())[1])


def test_metrics_need_a_certificate(
    start_broker: Callable[..., ShoalProcess], stores: Stores
) -> None:
    configs = tls(stores) | {"listener.name.metrics.ssl.client.auth": "required"}
    broker = start_broker(configs=configs)
    assert get(broker, "/metrics", context=showing(stores))[0] == 200
    with pytest.raises((URLError, OSError)):
        get(broker, "/metrics", context=trusting())
    for path in PROBES:
        assert get(broker, path, scheme="http")[0] == 200


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_metrics_need_a_token(
    start_broker: Callable[..., ShoalProcess], stores: Stores, scheme: str
) -> None:
    """shoal.metrics.token.file, which is read again. A certificate takes the place of a token."""
    path = stores.write("tokens", "first-token\nsecond-token\n")
    configs = {"shoal.metrics.token.file": str(path)}
    if scheme == "https":
        configs |= tls(stores) | {"listener.name.metrics.ssl.client.auth": "requested"}
    broker = start_broker(configs=configs)

    def status(token: str, context: ssl.SSLContext | None = None) -> int:
        return get(broker, "/metrics", scheme=scheme, context=context or trusting(), token=token)[0]

    assert [status(t) for t in ("first-token", "second-token")] == [200, 200]
    assert [status(t) for t in ("", "third-token", "first-toke")] == [401, 401, 401]
    if scheme == "https":
        assert status("", showing(stores)) == 200
        assert get(broker, "/metrics", scheme="http", token="first-token")[0] == 403
    stores.write("tokens", "third-token")
    assert [status(t) for t in ("third-token", "first-token")] == [200, 401]
    path.unlink()
    assert status("third-token") == 401
    for probe in PROBES:
        assert get(broker, probe, scheme="http")[0] == 200
    assert not [line for line in broker.log if "-token" in line]


def test_commands_read_protected_metrics(
    start_broker: Callable[..., ShoalProcess], stores: Stores
) -> None:
    """The properties ssl.* and shoal.metrics.token.file of commands such as `shoal groups lag`."""
    tokens = stores.write("tokens", "of-a-test\n")
    broker = start_broker(
        configs=tls(stores)
        | {
            "shoal.metrics.token.file": str(tokens),
            "listener.name.metrics.ssl.client.auth": "requested",
        }
    )
    warnings: list[str] = []

    def numbers(properties: dict[str, str], url: str = broker.metrics_url) -> object:
        async def main() -> object:
            async with Client(Settings.from_bootstrap(broker.bootstrap, properties)) as client:
                return await scrape.read_group_numbers(client.admin, [url], warnings.append)

        warnings.clear()
        return asyncio.run(main())

    ca = {"ssl.ca.location": str(stores.write("ca.pem", AUTHORITY.pem))}
    token = "shoal.metrics.token.file"
    assert numbers(ca | {token: str(tokens)}) == {}
    own = stores.write("own.pem", CLIENT.pem)
    assert numbers(ca | {"ssl.keystore.location": str(own)}) == {}
    assert not warnings
    other = stores.write("other", "of-another-test")
    for properties, reason in (
        ({}, "certificate verify failed"),
        (ca, "it needs another token. Set shoal.metrics.token.file"),
        (ca | {token: str(other)}, "it needs another token"),
        (ca | {token: "/none"}, "/none cannot be read"),
        ({"ssl.ca.location": "/none"}, "ssl.ca.location /none cannot be read"),
    ):
        assert numbers(properties) is None
        assert len(warnings) == 1
        assert reason in warnings[0]
    assert numbers({}, broker.metrics_url.replace("https", "http")) is None
    assert "it needs TLS" in warnings[0]


def test_commands_learn_of_tls_from_the_broker(
    start_broker: Callable[..., ShoalProcess], stores: Stores
) -> None:
    (port,) = free_ports(1)
    broker = start_broker(configs=tls(stores), metrics=f"127.0.0.1:{port}")

    async def main() -> list[str]:
        async with Client(Settings.from_bootstrap(broker.bootstrap)) as client:
            return await scrape.find_metrics_addresses(client.admin)

    assert asyncio.run(main()) == [f"https://127.0.0.1:{port}"]
