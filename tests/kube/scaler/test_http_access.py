"""TLS and tokens of the operator's HTTP server, with real clients over HTTPS."""

from __future__ import annotations

import asyncio
import base64
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from kube.api_server import resource
from kube.consumers.test_due import Shop
from shoal_operator import http_access
from shoal_operator.consumers import scale_secret
from shoal_operator.http_access import CLIENT_CA_FILE, TLS_DIR, TOKEN_FILE, BadAccess, HttpAccess
from shoal_operator.model.certificates import KeyPair
from shoal_operator.runtime import Operator
from shoal_operator.scaler import endpoint
from shoal_operator.settings import ChartSettings
from shoal_spark import scaling
from support.brokers.ports import free_ports
from support.runs.conditions import eventually_async
from support.security.certificates import Authority, Identity, Stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

AUTHORITY = Authority()
METRICS, SCALE = "/metrics", "/scale/n/eaters"
CONSUMER: Any = {**resource("ShareConsumer", "eaters"), "kind": "ShareConsumer"}
CONSUMER["metadata"]["uid"] = "u"


class Folder:
    """The mounted Secrets of the operator."""

    def __init__(self, path: Path) -> None:
        self.path, self._stores = path, Stores(path)
        self.certify(AUTHORITY.issue("operator"))
        self._stores.write("ca.crt", AUTHORITY.pem)
        self.write_tokens("first", "second")

    def certify(self, identity: Identity) -> None:
        self._stores.write("tls.crt", identity.chain_pem)
        self._stores.write("tls.key", identity.key_pem())

    def write_tokens(self, *tokens: str) -> None:
        self._stores.write("tokens", "".join(f"{one}\n" for one in tokens))

    def write_readers(self, text: str) -> Path:
        """Write the authorities of readers."""
        self._stores.write("readers.crt", text)
        return self.path / "readers.crt"

    def environment(self) -> dict[str, str]:
        return {TLS_DIR: str(self.path), TOKEN_FILE: str(self.path / "tokens")}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(http_access, "RELOAD_SECONDS", 0.02)
    return Folder(tmp_path / "mounted")


class Site:
    """The server of a standby operator that knows a ShareConsumer, and its clients."""

    def __init__(self, port: int, access: HttpAccess) -> None:
        self.url, self.access = f"https://127.0.0.1:{port}", access

    async def get(
        self, path: str, token: str = "", certificate: Path | None = None
    ) -> tuple[int, str]:
        """Return status and body, on a new connection."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        context = ssl.create_default_context(cadata=AUTHORITY.pem)
        if certificate is not None:
            context.load_cert_chain(certificate)
        async with (
            aiohttp.ClientSession(self.url) as client,
            client.get(path, headers=headers, ssl=context) as response,
        ):
            return response.status, await response.text()

    async def serial(self) -> int:
        """Return the serial number of the certificate that new clients see."""
        context = ssl.create_default_context(cadata=AUTHORITY.pem)
        host, port = self.url.removeprefix("https://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        found = writer.get_extra_info("peercert")
        writer.close()
        return int(found["serialNumber"], 16)


@asynccontextmanager
async def site(folder: Folder, environment: dict[str, str] | None = None) -> AsyncIterator[Site]:
    access = HttpAccess.from_environment(environment or folder.environment())
    assert access is not None
    shop = Shop(targetLagPerReplica=5, startupTime="60s")
    await shop.look()
    (port,) = free_ports(1)
    settings = ChartSettings("b:1", "s:1", "role", "https://o", http_access=access)
    operator = Operator(shop.kube, settings, another_leads=lambda: True)
    runner = await endpoint.serve(operator, port, access)
    try:
        for known in shop.kube.all("ShareConsumer") + shop.kube.all("ShareGroup"):
            operator.store.put(known)
        yield Site(port, access)
    finally:
        await runner.cleanup()
        await operator.close()


def test_readers_need_a_token(folder: Folder) -> None:
    async def scenario() -> None:
        async with site(folder) as here:
            for path in (METRICS, SCALE, "/scale/n/nobody"):
                for token in ("", "third", "firs", "first\tsecond"):
                    status, body = await here.get(path, token)
                    assert (status, body) == (401, "A bearer token is needed.\n")
            for token in ("first", "second"):
                assert (await here.get(METRICS, token))[0] == 200
                assert (await here.get(SCALE, token))[0] == 200
            # Files are read again: a token is exchanged by two changes.
            folder.write_tokens("second", "third")
            assert (await here.get(METRICS, "first"))[0] == 401
            assert (await here.get(METRICS, "third"))[0] == 200
            folder.write_tokens()
            assert (await here.get(METRICS, "third"))[0] == 401
            assert (await here.get(METRICS, "x"))[0] == 401

    asyncio.run(scenario())


def test_nothing_is_served_without_tls(folder: Folder) -> None:
    async def scenario() -> None:
        async with site(folder) as here, aiohttp.ClientSession() as client:
            with pytest.raises(aiohttp.ClientError):
                await client.get(here.url.replace("https", "http") + METRICS)

    asyncio.run(scenario())


def test_the_certificate_is_read_again(folder: Folder) -> None:
    """One that cannot be used leaves the previous one in force."""

    async def scenario() -> None:
        async with site(folder) as here:
            first = await here.serial()
            renewed = AUTHORITY.issue("operator")
            folder.path.joinpath("tls.crt").write_text(renewed.chain_pem)
            here.access.reload()
            assert await here.serial() == first
            folder.certify(renewed)

            wanted = KeyPair(renewed.chain_pem.encode(), renewed.key_pem().encode())
            await eventually_async(lambda: here.access.pair == wanted)
            assert await here.serial() == renewed.certificate.serial_number
            assert (await here.get(METRICS, "first"))[0] == 200

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_share_consumer_has_a_token_for_its_signal_only(folder: Folder) -> None:
    async def scenario() -> None:
        async with site(folder) as here:
            data = scale_secret.build_manifest(CONSUMER, "main", here.url, here.access)["data"]
            token, ca = (base64.b64decode(data[key]).decode() for key in ("token", "ca.crt"))
            assert ca == AUTHORITY.pem
            assert (await here.get(SCALE, token))[0] == 200
            for path in (METRICS, "/scale/n/others", "/scale/other/eaters"):
                assert (await here.get(path, token))[0] == 401
            # It follows from the first token, and stays valid while that is in the file.
            folder.write_tokens("third", "first")
            assert (await here.get(SCALE, token))[0] == 200
            assert here.access.derive_token("n", "eaters") != token.encode()
            folder.write_tokens("third")
            assert (await here.get(SCALE, token))[0] == 401

    asyncio.run(scenario())


def shown(path: Path, identity: Identity) -> Path:
    """Write a reader's certificate and key."""
    path.write_text(identity.key_pem() + identity.chain_pem)
    return path


def test_readers_show_a_certificate_instead_of_a_token(folder: Folder, tmp_path: Path) -> None:
    """The authorities of readers are others than that of the server, and change while it runs."""
    one, other = Authority("One CA"), Authority("Another CA")
    prometheus = shown(tmp_path / "one.pem", one.issue("prometheus"))
    newer = shown(tmp_path / "other.pem", other.issue("prometheus"))
    readers = folder.write_readers(one.pem)
    only = {TLS_DIR: str(folder.path), CLIENT_CA_FILE: str(readers)}

    async def is_refused(here: Site, certificate: Path) -> bool:
        try:
            await here.get(METRICS, certificate=certificate)
        except (aiohttp.ClientError, ConnectionError):
            return True
        return False

    async def scenario() -> None:
        async with site(folder, only) as here:
            needed = (401, "A client certificate is needed.\n")
            for path in (METRICS, SCALE):
                assert await here.get(path) == needed
                assert await here.get(path, "first") == needed
                assert (await here.get(path, certificate=prometheus))[0] == 200
            assert await is_refused(here, newer)
            # The driver of a ShareConsumer and KEDA have a token for the signal only.
            token = here.access.derive_token("n", "eaters").decode()
            assert token
            assert (await here.get(SCALE, token))[0] == 200
            assert await here.get(METRICS, token) == needed
            # What cannot be used changes nothing.
            folder.write_readers("no certificate")
            here.access.reload()
            assert (await here.get(METRICS, certificate=prometheus))[0] == 200
            folder.write_readers(other.pem)
            here.access.reload()
            assert (await here.get(METRICS, certificate=newer))[0] == 200
            assert await is_refused(here, prometheus)
            # With a new key, the previous token stays valid until the Secrets have the new one.
            folder.certify(AUTHORITY.issue("operator"))
            here.access.reload()
            assert here.access.derive_token("n", "eaters").decode() != token
            assert (await here.get(SCALE, token))[0] == 200
        async with site(folder, {**only, **folder.environment()}) as here:
            assert await here.get(METRICS) == (
                401,
                "A bearer token or a client certificate is needed.\n",
            )
            assert (await here.get(METRICS, "first"))[0] == 200
            assert (await here.get(METRICS, certificate=newer))[0] == 200

    asyncio.run(scenario())


def test_authorities_of_readers_that_cannot_be_used_are_named(folder: Folder) -> None:
    readers = folder.write_readers("no certificate")
    only = {TLS_DIR: str(folder.path), CLIENT_CA_FILE: str(readers)}
    with pytest.raises(BadAccess, match=f"{CLIENT_CA_FILE}: the authorities in .* cannot be used"):
        HttpAccess.from_environment(only)
    readers.unlink()
    with pytest.raises(BadAccess, match=f"{CLIENT_CA_FILE}: cannot read .*readers.crt"):
        HttpAccess.from_environment(only)
    with pytest.raises(BadAccess, match=f"Set {TLS_DIR} to a folder"):
        HttpAccess.from_environment({CLIENT_CA_FILE: str(readers)})


def test_a_driver_reads_its_signal(folder: Folder, tmp_path: Path) -> None:
    """With the files of its mounted Secret. Other tokens and authorities are refused."""

    async def scenario() -> None:
        async with site(folder) as here:
            data = scale_secret.build_manifest(CONSUMER, "main", here.url, here.access)["data"]
            for key, value in data.items():
                (tmp_path / key).write_bytes(base64.b64decode(value))
            environment = {
                "SHOAL_SCALE_URL_FILE": str(tmp_path / "url"),
                "SHOAL_SCALE_CA_FILE": str(tmp_path / "ca.crt"),
                "SHOAL_SCALE_TOKEN_FILE": str(tmp_path / "token"),
            }
            read = scaling.find_published(environment)
            assert read is not None
            assert await asyncio.to_thread(read) == 3
            (tmp_path / "token").write_text("another")
            with pytest.raises(scaling.NumberUnavailable, match="401"):
                await asyncio.to_thread(read)
            (tmp_path / "ca.crt").write_text(Authority().pem)
            with pytest.raises(scaling.NumberUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await asyncio.to_thread(read)

    asyncio.run(scenario())


BAD: dict[str, tuple[dict[str, str], str]] = {
    "tokens without TLS": ({TOKEN_FILE: "tokens"}, "tokens would travel in clear text"),
    "no folder": ({TLS_DIR: "nowhere"}, "cannot read nowhere/tls.crt"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_environment_that_cannot_be_used(case: str) -> None:
    environment, text = BAD[case]
    with pytest.raises(BadAccess, match=text):
        HttpAccess.from_environment(environment)


def test_files_that_cannot_be_used(folder: Folder) -> None:
    folder.write_tokens()
    with pytest.raises(BadAccess, match="has no token"):
        HttpAccess.from_environment(folder.environment())
    (folder.path / "tls.key").write_text(AUTHORITY.issue("operator").key_pem())
    with pytest.raises(BadAccess, match="its key belongs to another certificate"):
        HttpAccess.from_environment(folder.environment())


def test_without_an_authority_readers_trust_the_certificate(folder: Folder) -> None:
    (folder.path / "ca.crt").unlink()
    access = HttpAccess.from_environment({TLS_DIR: str(folder.path)})
    assert access is not None
    assert access.get_authority() == (folder.path / "tls.crt").read_bytes()
    assert access.derive_token("n", "eaters") == b""
    assert access.may_read("")
    assert HttpAccess.from_environment({}) is None


def test_the_secret_of_a_share_consumer(folder: Folder) -> None:
    """It follows the operator's files. One that is somebody else's is not changed."""

    async def scenario() -> None:
        access = HttpAccess.from_environment(folder.environment())
        assert access is not None
        shop = Shop(http_access=access, targetLagPerReplica=5, startupTime="60s")
        foreign = {**resource("Secret", "eaters-scale"), "apiVersion": "v1", "data": {"a": "b25l"}}
        shop.kube.add(foreign)
        status = await shop.look()
        assert "SecretNotOwned" in {one["reason"] for one in status["conditions"]}
        assert shop.kube.find("Secret", "eaters-scale")["data"] == foreign["data"]
        del shop.kube.objects["Secret", "eaters-scale"]

        def token() -> bytes:
            return base64.b64decode(shop.kube.find("Secret", "eaters-scale")["data"]["token"])

        await shop.look()
        assert token() == access.derive_token("n", "eaters") != b""
        before = token()
        folder.write_tokens("another")
        await shop.look()
        assert token() == access.derive_token("n", "eaters") != before

    asyncio.run(scenario())
