"""The console's screens of logins, masks, schemas and Kubernetes in Chromium, each as it looks."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from browsers import chromium, chromium_path
from compat.test_console_in_a_browser import Page
from console_letters import Letters
from openid_providers import CLIENT_ID, CLIENT_SECRET, openid_provider
from ports import free_ports
from queues import Queue
from schema_registries import schema_registry
from servers import ShoalProcess
from shoal.client.client import SyncClient
from shoal.client.secret import Secret
from shoal.client.settings import Settings
from shoal.console.app import serving
from shoal.console.kubernetes import KubernetesSettings
from shoal.console.masks import Masks, Rule
from shoal.console.openid import OpenIdLogin
from shoal.console.providers import OpenIdSettings
from shoal.console.registries import RegistrySettings
from shoal.console.security import Access

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
READY = [{"type": "Ready", "status": "True", "reason": "Created", "message": "It is there."}]
SCALING = [
    {
        "type": "Ready",
        "status": "False",
        "reason": "ScalingUp",
        "message": "3 of 4 consumers run. One pod waits for a node with 2 CPUs.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
]


class Cluster:
    """A broker with a queue of Avro records, and one with a dead letter."""

    def __init__(self, bootstrap: str, client: SyncClient) -> None:
        self.bootstrap, self.client = bootstrap, client
        self.avro = Queue(client, bootstrap)
        self.avro.produce([b"\0\0\0\0\7\x12" + SECRET.encode() + b"\x02"])
        self.letters = Letters(self)
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


def _resource(name: str, spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": status}


@asynccontextmanager
async def api_server(folder: Path, group: str) -> AsyncIterator[KubernetesSettings]:
    """Serve some resources and one event."""
    numbers = {"desiredReplicas": 4, "replicas": 3, "readyReplicas": 3, "ceiling": 8}
    status = {**numbers, "partitions": 2, "lag": 12_000, "conditions": SCALING}
    status["decision"] = "due 12000 / target 3000 per replica = 4"
    event = {
        "involvedObject": {"kind": "ShareConsumer", "namespace": "team", "name": "packer"},
        "type": "Warning",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: insufficient cpu.",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 3,
    }
    lists: dict[str, list[dict[str, Any]]] = {
        "shareconsumers": [
            _resource("packer", {"shareGroup": group, "spark": {}}, status),
            _resource("tail", {"shareGroup": group, "deployment": {}}, {"conditions": READY}),
        ],
        "sharegroups": [_resource(group, {}, {"conditions": READY})],
        "events": [event],
    }

    async def listed(request: web.Request) -> web.Response:
        return web.json_response({"items": lists.get(request.path.rpartition("/")[2], [])})

    app = web.Application()
    app.router.add_get("/{path:.*}", listed)
    (folder / "token").write_text("t")
    async with TestServer(app) as server:
        yield KubernetesSettings(f"http://127.0.0.1:{server.port}", folder, ("team",))


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
        access = Access(
            port=port,
            masks=Masks((Rule((cluster.letters.topic,), fields=("card",), key=True),)),
            login=OpenIdLogin(given),
            url=url,
            registry=RegistrySettings(registry.url),
            kubernetes=kubernetes,
        )
        settings = Settings.of(cluster.bootstrap)
        served = serving(settings, access, interval_s=1.0)
        async with served as address, chromium(folder) as browser:
            yield Page(address, browser, await browser.tab())


def test_each_screen(cluster: Cluster, tmp_path: Path) -> None:
    async def whole() -> None:
        async with opened(cluster, tmp_path) as page:
            tab, url, letters = page.tab, page.url, cluster.letters
            await tab.goto(f"{url}topics")
            await tab.sees("Logged in as ann.")
            await page.shows_nothing_wrong("logged-in")

            await tab.goto(f"{url}record?topic={cluster.avro.topic}&partition=0&offset=0")
            await tab.sees("JSON (Avro, schema 7), 16 B")
            await tab.sees(f'"card": "{SECRET}"')
            await page.shows_nothing_wrong("avro")

            await tab.goto(f"{url}letter?topic={letters.letters}&partition=0&offset=0")
            await tab.sees("The key is masked, 1 B. A rule of this console masks it.")
            await tab.sees("1 field masked")
            assert SECRET not in await tab.text()
            await page.shows_nothing_wrong("masked-letter")
            await tab.goto(f"{url}topic?name={letters.topic}")
            await tab.sees("Rules of this console mask parts of these records.")
            await page.shows_nothing_wrong("masked-topic")

            await tab.goto(f"{url}consumers")
            await tab.sees("due 12000 / target 3000 per replica = 4")
            await tab.sees("insufficient cpu")
            await tab.sees("Consumers of packer against partitions")
            await page.shows_nothing_wrong("consumers")

            await tab.click("Log out")
            await tab.sees("You are logged out")
            await page.shows_nothing_wrong("logged-out")
            assert tab.errors == []

    asyncio.run(whole())
