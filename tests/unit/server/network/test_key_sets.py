"""Key sets of token providers: good ones, and providers that are down, slow, endless or elsewhere.

The providers are real servers on this machine.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trustme
import uvloop
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.network import http_get, key_sets
from shoal.server.network.http_get import HttpError
from shoal.server.network.key_sets import KeySet, KeySetConfig
from shoal.server.node import Node
from support.brokers.ports import free_ports
from support.runs.conditions import eventually_async
from unit.security.test_jwt_tokens import jwk, private_key
from unit.server.network.test_authentication import mechanisms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

KEYS = json.dumps({"keys": [jwk(private_key())]}).encode()
OTHER_KEYS = json.dumps({"keys": [jwk(private_key(), kid="k2")]}).encode()


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Provider:
    """A server that answers each request with `answer`, and keeps the connection open."""

    def __init__(self, answer: bytes = response(KEYS), *, drip: bytes = b"") -> None:
        self.answer = answer
        #: Sent again and again after the answer.
        self.drip = drip
        self.paths: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.paths.append(head.split()[1].decode())
            assert b"Host: " in head
            writer.write(self.answer)
            while self.drip:
                writer.write(self.drip)
                await writer.drain()
                turn = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_later(0.001, turn.set_result, None)
                await turn
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys?v=1"


@asynccontextmanager
async def serving(provider: Provider, tls: ssl.SSLContext | None = None) -> AsyncIterator[Provider]:
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0, ssl=tls)
    provider.port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        server.close()


@asynccontextmanager
async def reading(
    url: str, *, refresh_ms: int = 3_600_000, backoff_ms: int = 20, backoff_max_ms: int = 100
) -> AsyncIterator[KeySet]:
    node = Node(resolve({}, {}), asyncio.get_running_loop())
    found = KeySet(node, KeySetConfig(url, refresh_ms, backoff_ms, backoff_max_ms))
    found.start()
    try:
        await found.wait_until_tried()
        yield found
    finally:
        found.stop()
        node.timers.stop()


def run(main: Callable[[], Awaitable[None]]) -> None:
    logs.configure(json=True, level="critical")
    uvloop.run(main())


def key_ids(found: KeySet) -> list[str | None]:
    return [key.key_id for key in found.keys]


def chunked(body: bytes) -> bytes:
    parts = [body[:5], body[5:]]
    chunks = b"".join(f"{len(p):X};x=y\r\n".encode() + p + b"\r\n" for p in parts)
    return b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [response(KEYS), chunked(KEYS), response(KEYS, "200 OK", "Content-Encoding: identity")],
)
def test_a_set_is_read(answer: bytes) -> None:
    async def main() -> None:
        async with serving(Provider(answer)) as provider, reading(provider.url) as found:
            assert key_ids(found) == ["k1"]
            assert provider.paths == ["/keys?v=1"]

    run(main)


def test_a_set_without_a_length_ends_with_its_connection() -> None:
    class Closing(Provider):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 200 OK\nX: y\n\n" + KEYS)
            writer.close()

    async def main() -> None:
        async with serving(Closing()) as provider, reading(provider.url) as found:
            assert key_ids(found) == ["k1"]

    run(main)


@pytest.mark.parametrize(
    ("answer", "drip"),
    [
        (response(b"<html>"), b""),
        (response(b'{"keys":[]}'), b""),
        (response(KEYS, "404 Not Found"), b""),
        (response(KEYS, "500 Internal Server Error"), b""),
        (response(KEYS, "302 Found"), b""),
        (response(KEYS, "200 OK", "Content-Encoding: gzip"), b""),
        (b"HTTP/1.1 200\r\nContent-Length: 1048577\r\n\r\n", b""),
        (b"HTTP/1.1 200\r\nContent-Length: -1\r\n\r\n", b""),
        (b"HTTP/1.1 200\r\nContent-Length: x\r\n\r\n", b""),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b""),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", b""),
        (b"SSH-2.0-OpenSSH\r\n", b""),
        (b"", b"x" * 100_000),
        (b"HTTP/1.1 200\r\n", b"X: y\r\n" * 50),
        (b"HTTP/1.1 200\r\nX: ", b"y" * 100_000),
        (b"HTTP/1.1 200\r\n\r\n", b"x" * 100_000),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 30_000),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", b"x" * 100_000),
    ],
)
def test_endless_and_other_responses(answer: bytes, drip: bytes) -> None:
    async def main() -> None:
        async with serving(Provider(answer, drip=drip)) as provider, reading(provider.url) as found:
            assert (found.keys, found.failures_total >= 1, found.reads_total) == ((), True, 0)

    run(main)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200\r\n", response(KEYS)[:-1]])
def test_a_slow_provider(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sets, "DEADLINE_S", 0.05)

    async def main() -> None:
        async with serving(Provider(answer)) as provider, reading(provider.url) as found:
            assert (found.keys, found.failures_total >= 1) == ((), True)

    run(main)


def test_a_provider_that_is_down_and_comes_up() -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        provider = Provider()
        async with reading(f"http://127.0.0.1:{port}/keys") as found:
            await eventually_async(lambda: found.failures_total >= 3)
            server = await asyncio.start_server(provider.serve, "127.0.0.1", port)
            await eventually_async(lambda: key_ids(found) == ["k1"])
            server.close()

    run(main)


def test_keys_stay_while_the_provider_fails() -> None:
    async def main() -> None:
        provider = Provider()
        async with serving(provider), reading(provider.url, refresh_ms=20) as found:
            assert key_ids(found) == ["k1"]
            provider.answer = response(b"oops")
            await eventually_async(lambda: found.failures_total >= 2)
            assert key_ids(found) == ["k1"]
            provider.answer = response(OTHER_KEYS)
            await eventually_async(lambda: key_ids(found) == ["k2"])

    run(main)


def test_an_unknown_key_id_reads_the_set_once() -> None:
    async def main() -> None:
        provider = Provider()
        async with serving(provider), reading(provider.url) as found:
            provider.answer = response(OTHER_KEYS)
            for n in range(1000):
                found.on_key_missing(f"made up {n}", 1_000_000 + n)
            await eventually_async(lambda: key_ids(found) == ["k2"])
            assert len(provider.paths) == 2
            found.on_key_missing("another", 1_000_000 + key_sets.EXPEDITE_MS - 1)
            for _ in range(5):  # As long as five requests take, no further one comes.
                await http_get.get(provider.url + "&other", None, 10_000)
            assert found.reads_total == 2
            provider.answer = response(KEYS)
            found.on_key_missing("k1", 1_000_000 + key_sets.EXPEDITE_MS)
            await eventually_async(lambda: key_ids(found) == ["k1"])
            assert found.reads_total == 3

    run(main)


def test_configs_of_a_key_set() -> None:
    """A short interval reads the set again and again. A long back-off stops after one failure."""

    def configured(url: str, **times: str) -> KeySet:
        configs = {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "shoal.oauthbearer.allowed.urls": url,
        }
        made, security, _ = mechanisms(**configs, **times)
        made.make_listener_sasl(security)
        (found,) = made.key_sets
        found.start()
        return found

    async def main() -> None:
        async with serving(Provider()) as provider, serving(Provider(b"oops\r\n")) as broken:
            seldom = configured(provider.url)
            often = configured(provider.url, **{"sasl.oauthbearer.jwks.endpoint.refresh.ms": "10"})
            patient = configured(
                broken.url,
                **{
                    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "3600000",
                    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "3600000",
                },
            )
            hasty = configured(
                broken.url,
                **{
                    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "1",
                    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "2",
                },
            )
            await eventually_async(lambda: often.reads_total >= 10 and hasty.failures_total >= 20)
            assert seldom.reads_total == 1
            assert patient.failures_total == 1
            for found in (seldom, often, patient, hasty):
                found.stop()

    run(main)


def test_redirects_within_the_scheme() -> None:
    async def main() -> None:
        async with serving(Provider()) as last, serving(Provider()) as first:
            for location in (last.url, f"//127.0.0.1:{last.port}/x"):
                first.answer = response(b"", "307 Temporary Redirect", f"Location: {location}")
                assert await http_get.get(first.url, None, 10_000) == KEYS

    run(main)


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("file:///etc/passwd", "neither http nor https"),
        ("https://127.0.0.1:1/x", "from http to https"),
        ("ftp://127.0.0.1/x", "neither http nor https"),
        ("http://user:pass@127.0.0.1/x", "with a user"),
        ("http://127.0.0.1:99999/x", "invalid URL"),
        ("http://127.0.0.1/a\x01b", "neither http nor https"),
        ("/again", "more than 5 redirects"),
    ],
)
def test_other_redirects(location: str, problem: str) -> None:
    async def main() -> None:
        answer = response(b"", "302 Found", f"Location: {location}")
        async with serving(Provider(answer)) as provider:
            with pytest.raises(HttpError, match=problem):
                await http_get.get(provider.url, None, 10_000)

    run(main)


def test_a_redirect_from_tls_to_plaintext() -> None:
    async def main() -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        server, client = (
            ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        certificate.configure_cert(server)
        authority.configure_trust(client)
        async with serving(Provider()) as plaintext, serving(Provider(), server) as provider:
            url = f"https://127.0.0.1:{provider.port}/keys"
            assert await http_get.get(url, client, 10_000) == KEYS
            provider.answer = response(b"", "302 Found", f"Location: {plaintext.url}")
            with pytest.raises(HttpError, match="from https to http"):
                await http_get.get(url, client, 10_000)
            assert not plaintext.paths
            with pytest.raises(ssl.SSLError):
                await http_get.get(url, ssl.create_default_context(), 10_000)

    run(main)


def test_files(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "keys.json"
        async with reading(f"file://{path}", refresh_ms=20) as found:
            assert (found.keys, found.failures_total >= 1) == ((), True)
            path.write_bytes(b" " * (key_sets.SIZE_MAX + 1))
            failures = found.failures_total
            await eventually_async(lambda: found.failures_total >= failures + 2)
            assert found.keys == ()
            path.write_bytes(KEYS)
            await eventually_async(lambda: key_ids(found) == ["k1"])

    run(main)
