"""The console's screens of logins, masks, schemas and Kubernetes in Chromium, each as it looks."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from shoal.client.security.secret import Secret
from shoal.client.settings import Settings
from shoal.console.access.openid import OpenIdLogin
from shoal.console.access.providers import OpenIdSettings
from shoal.console.access.security import ConsoleAccess
from shoal.console.app import serving
from shoal.console.reading.masks import MaskRule, Masks
from shoal.console.reading.registries import RegistrySettings
from support.brokers.ports import free_ports
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.console.browsers import chromium, chromium_path
from support.console.console_letters import Letters
from support.console.console_resources import api_server
from support.console.console_screens import Page
from support.console.schema_registries import schema_registry
from support.security.openid_providers import CLIENT_ID, CLIENT_SECRET, openid_provider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.nightly
SECRET = "4111-2222"
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "card", "type": "string"}, {"name": "n", "type": "int"}],
}


class Cluster:
    """A broker with a queue of Avro records, and one with a dead letter."""

    def __init__(self, bootstrap: str, client: SyncClient) -> None:
        self.bootstrap, self.client = bootstrap, client
        self.avro = Queue(client, bootstrap, topic="t-avro", group="g-avro")
        self.avro.produce([b"\0\0\0\0\7\x12" + SECRET.encode() + b"\x02"])
        self.letters = Letters(self, topic="t-masked", group="g-masked")
        self.letters.produce([f'{{"card": "{SECRET}", "n": 1}}'], key=b"k")
        client.run(self.letters.reject(1))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    chromium_path()
    broker = ShoalProcess(tmp_path_factory.mktemp("screens") / "data").start()
    try:
        with SyncClient(broker.bootstrap) as client:
            yield Cluster(broker.bootstrap, client)
    finally:
        broker.kill9()


@asynccontextmanager
async def opened(cluster: Cluster, folder: Path) -> AsyncIterator[Page]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    async with (
        openid_provider() as provider,
        schema_registry() as registry,
        api_server(folder, cluster.avro.group) as kubernetes,
    ):
        registry.add(7, ORDER)
        given = OpenIdSettings(provider.issuer, CLIENT_ID, url, Secret(CLIENT_SECRET))
        access = ConsoleAccess(
            port=port,
            masks=Masks((MaskRule((cluster.letters.topic,), fields=("card",), key=True),)),
            login=OpenIdLogin(given),
            url=url,
            registry=RegistrySettings(registry.url),
            kubernetes=kubernetes,
        )
        settings = Settings.from_bootstrap(cluster.bootstrap)
        served = serving(settings, access, interval_s=1.0)
        async with served as address, chromium(folder) as browser:
            yield Page(address, browser, await browser.tab())


def test_each_screen(cluster: Cluster, tmp_path: Path) -> None:
    async def whole() -> None:
        async with opened(cluster, tmp_path) as page:
            tab, url, letters = page.tab, page.url, cluster.letters
            await tab.goto(f"{url}topics")
            await tab.sees("Logged in as ann.")
            await page.shows_nothing_wrong("logged-in", has_boxes=False)

            await tab.goto(f"{url}record?topic={cluster.avro.topic}&partition=0&offset=0")
            await tab.sees("JSON (Avro, schema 7), 16 B")
            await tab.sees(f'"card": "{SECRET}"')
            await page.shows_nothing_wrong("avro", has_boxes=False)

            await tab.goto(f"{url}letter?topic={letters.letters}&partition=0&offset=0")
            await tab.sees("The key is masked, 1 B. A rule of this console masks it.")
            await tab.sees("1 field masked")
            assert SECRET not in await tab.text()
            await page.shows_nothing_wrong("masked-letter", has_boxes=False)
            await tab.goto(f"{url}topic?name={letters.topic}")
            await tab.sees("Rules of this console mask parts of these records.")
            await page.shows_nothing_wrong("masked-topic", has_boxes=False)

            await tab.goto(f"{url}consumers")
            await tab.sees("due 12000 / target 3000 per replica = 4")
            await tab.sees("insufficient cpu")
            await tab.sees("Consumers of packer against partitions")
            await page.shows_nothing_wrong("consumers", has_boxes=False)

            await tab.click("Log out")
            await tab.sees("You are logged out")
            await page.shows_nothing_wrong("logged-out", has_boxes=False)
            assert tab.errors == []

    asyncio.run(whole())
