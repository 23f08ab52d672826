"""The console's page of consumers, over the API server in memory behind real HTTP."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from kube.api_server import ApiServer, CrashPoint
from shoal.client.client import Client
from shoal.client.settings import Settings
from shoal.console.access.security import ConsoleAccess
from shoal.console.app import Console, build_application
from shoal.console.login_files import InvalidAccess
from shoal.console.sampling.kubernetes import (
    PLURALS,
    Kubernetes,
    KubernetesSettings,
    KubernetesSnapshot,
    make_pod_settings,
)
from shoal.console.sampling.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CRDS = Path(__file__).parents[3] / "crds"
TOKEN = "pod-token"
KINDS = {plural: kind for kind, plural in PLURALS.items()} | {"events": "Event"}


class Http:
    """Serves lists of an API server over HTTP, two objects a page. `refused` is by plural."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.refused: dict[str, int] = {}
        self.asked: list[str] = []

    async def serve(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        assert request.method == "GET"
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"code": 401}, status=401)
        _, _, rest = request.path.partition("/namespaces/")
        namespace, plural = rest.split("/")
        if plural in self.refused:
            return web.json_response({}, status=self.refused[plural])
        every = [
            one
            for one in self.server.all(KINDS[plural])
            if one["metadata"]["namespace"] == namespace
        ]
        if plural == "events":
            selector = request.query["fieldSelector"].removeprefix("involvedObject.apiVersion=")
            every = [one for one in every if one["involvedObject"]["apiVersion"] == selector]
        first = int(request.query.get("continue", 0))
        more = str(first + 2) if len(every) > first + 2 else ""
        return web.json_response(
            {"items": every[first : first + 2], "metadata": {"continue": more}}
        )


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "namespace").write_text("team")
    return tmp_path


def resource(kind: str, name: str, namespace: str = "team", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "shoal.dev/v1beta1", "kind": kind, "metadata": meta, "spec": spec}


def filled() -> ApiServer:
    server = ApiServer(CrashPoint())
    server.add(resource("ShareGroup", "orders", cluster="main", groupId="orders-group"))
    server.add(resource("QueueTopic", "orders", cluster="main"))
    server.add(resource("ShareConsumer", "packer", shareGroup="orders", spark={}))
    server.add(resource("ShareConsumer", "tail", shareGroup="elsewhere", deployment={}))
    server.add(resource("ShareConsumer", "other", "two", shareGroup="x", deployment={}))
    server.find("ShareConsumer", "packer")["status"] |= {
        "desiredReplicas": 4,
        "replicas": 3,
        "readyReplicas": 2,
        "ceiling": 8,
        "partitions": 2,
        "lag": 12_000,
        "decision": "lag 12000 / 3000 <wanted>",
        "lastScaleTime": "2026-01-01T00:00:00Z",
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "ScalingUp", "message": "3 of 4 run."},
            {
                "type": "Reconciling",
                "status": "True",
                "reason": "ScalingUp",
                "message": "3 of 4 run.",
            },
            {"type": "Degraded", "status": "True", "reason": "Few", "message": "One is missing."},
            {"type": "Paused", "status": "False", "reason": "No", "message": "Hidden."},
        ],
    }
    ready = [{"type": "Ready", "status": "True", "reason": "Created", "message": "It is there."}]
    server.find("QueueTopic", "orders")["status"]["conditions"] = ready
    return server


@asynccontextmanager
async def opened(
    server: ApiServer, account: Path, *namespaces: str
) -> AsyncIterator[tuple[TestClient[Any, Any], Kubernetes, Http]]:
    http = Http(server)
    app = web.Application()
    app.router.add_get("/{path:.*}", http.serve)
    async with TestServer(app) as api, Client(Settings.from_bootstrap("127.0.0.1:1")) as client:
        url = f"http://127.0.0.1:{api.port}"
        access = ConsoleAccess(kubernetes=KubernetesSettings(url, account, namespaces or ("team",)))
        parts = Console(client, Sampler(client, metrics=None, interval_s=5.0), access)
        assert parts.kubernetes is not None
        try:
            async with TestClient(TestServer(build_application(parts))) as browser:
                yield browser, parts.kubernetes, http
        finally:
            await parts.close()


async def text_of(browser: TestClient[Any, Any]) -> str:
    async with browser.get("/consumers") as response:
        assert response.status == 200
        return await response.text()


def test_consumers_conditions_and_events(account: Path) -> None:
    async def call() -> None:
        server = filled()
        about = server.find("ShareConsumer", "packer")
        await server.record_event(about, "ScaledUp", "from 3 to 4", warning=False)
        await server.record_event(about, "QuotaExceeded", "<b>no room</b>", warning=True)
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"}}
        await server.record_event(pod, "Scheduled", "not ours")
        async with opened(server, account) as (browser, kubernetes, http):
            assert "Loading: waiting for the first answer" in await text_of(browser)
            await kubernetes.step()
            text = await text_of(browser)
            assert isinstance(kubernetes.snapshot, KubernetesSnapshot)
            assert not kubernetes.snapshot.problems
            packer, tail = kubernetes.snapshot.consumers
            assert (packer.wanted, packer.running, packer.ready) == (4, 3, 2)
            assert (packer.ceiling, packer.partitions, packer.workload) == (8, 2, "Spark")
            assert (packer.group, tail.group) == ("orders-group", "elsewhere")
            assert (tail.wanted, tail.workload) == (None, "Deployment")
            assert 'href="/group?id=orders-group"' in text
            assert "lag 12000 / 3000 &lt;wanted&gt;" in text
            assert "Consumers of packer against partitions" in text
            assert "<b>Degraded</b>: Few. One is missing." in text
            assert "Hidden." not in text
            assert text.count("3 of 4 run.") == 1
            assert "from 3 to 4" in text
            assert "&lt;b&gt;no room&lt;/b&gt;" in text
            assert "not ours" not in text
            first, *_, last = kubernetes.snapshot.resources
            assert (first.ready, last.ready) == ("False", "True"), "those that fail come first"
            assert all("/namespaces/team/" in path for path in http.asked)
            assert 'href="/consumers" aria-current="page"' in text

    asyncio.run(call())


def test_long_lists_and_several_namespaces(account: Path) -> None:
    async def call() -> None:
        server = filled()
        for number in range(5):
            server.add(resource("QueueTopic", f"t{number}", cluster="main"))
        async with opened(server, account, "team", "two") as (_, kubernetes, _http):
            await kubernetes.step()
            assert kubernetes.snapshot is not None
            topics = [one for one in kubernetes.snapshot.resources if one.kind == "QueueTopic"]
            assert len(topics) == 6
            names = [(one.namespace, one.name) for one in kubernetes.snapshot.consumers]
            assert names == [("team", "packer"), ("team", "tail"), ("two", "other")]

    asyncio.run(call())


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (401, "The token of the console&#39;s service account is not accepted."),
        (403, "it needs the chart&#39;s role."),
        (404, "install Shoal&#39;s CRDs."),
        (500, "It answers 500."),
    ],
)
def test_what_cannot_be_read_is_said(account: Path, status: int, sentence: str) -> None:
    async def call() -> None:
        async with opened(filled(), account) as (browser, kubernetes, http):
            http.refused = {"events": status}
            await kubernetes.step()
            text = await text_of(browser)
            assert "/api/v1/namespaces/team/events cannot be read." in text
            assert sentence in text
            assert "packer" in text, "the rest is there"
            assert TOKEN not in text

    asyncio.run(call())


def test_history_follows_and_forgets(account: Path) -> None:
    async def call() -> None:
        server = filled()
        async with opened(server, account) as (browser, kubernetes, _):
            await kubernetes.step()
            server.find("ShareConsumer", "packer")["status"]["replicas"] = 4
            await kubernetes.step()
            assert kubernetes.snapshot is not None
            chart = kubernetes.make_chart(kubernetes.snapshot.consumers[0])
            assert [(label, last) for _, label, _, last in chart.paths] == [
                ("Running", "4"),
                ("Wanted", "4"),
                ("Partitions", "2"),
            ]
            del server.objects["ShareConsumer", "packer"], server.objects["ShareConsumer", "tail"]
            await kubernetes.step()
            assert "There are no ShareConsumers in team." in await text_of(browser)

    asyncio.run(call())


def test_elsewhere_the_page_says_so() -> None:
    async def call() -> None:
        async with Client(Settings.from_bootstrap("127.0.0.1:1")) as client:
            parts = Console(client, Sampler(client, metrics=None, interval_s=5.0), ConsoleAccess())
            async with TestClient(TestServer(build_application(parts))) as browser:
                text = await text_of(browser)
                assert "This console does not read Kubernetes." in text
                assert 'href="/consumers"' not in text
            await parts.close()

    asyncio.run(call())


def test_all_kinds_are_read() -> None:
    """A CRD that the page leaves out would be a resource whose conditions nobody sees there."""
    crds = [yaml.safe_load(path.read_text()) for path in CRDS.glob("*.yaml")]
    assert {one["spec"]["names"]["kind"]: one["spec"]["names"]["plural"] for one in crds} == PLURALS


def test_the_api_server_must_have_a_certificate_of_the_pods_authority(account: Path) -> None:
    """Its address is an IP address, which the certificate names, as in a real cluster."""
    ours, others = trustme.CA(), trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.issue_cert("127.0.0.1").configure_cert(context)

    async def call() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", Http(filled()).serve)
        server = TestServer(app, scheme="https")
        await server.start_server(ssl=context)
        port = str(server.port)
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}

        async def read(authority: trustme.CA) -> KubernetesSnapshot:
            authority.cert_pem.write_to_path(str(account / "ca.crt"))
            kubernetes = Kubernetes(make_pod_settings(environment, [], account))
            await kubernetes.step()
            await kubernetes.close()
            assert kubernetes.snapshot is not None
            return kubernetes.snapshot

        seen = await read(ours)
        assert (len(seen.consumers), seen.problems) == (2, ())
        seen = await read(others)
        assert not seen.consumers
        (problem,) = seen.problems
        assert problem.startswith(f"The API server at https://127.0.0.1:{port} did not answer:")
        assert "certificate verify failed" in problem.lower()
        await server.close()

    asyncio.run(call())


def test_lists_are_read_side_by_side(account: Path) -> None:
    """A slow API server costs the time of one answer, not of one for each kind."""

    async def call() -> None:
        asked = asyncio.Event()
        paths: list[str] = []

        async def serve(request: web.Request) -> web.Response:
            paths.append(request.path)
            if len(paths) == len(PLURALS) + 1:
                asked.set()
            await asked.wait()
            return web.json_response({"items": []})

        app = web.Application()
        app.router.add_get("/{path:.*}", serve)
        async with TestServer(app) as server, asyncio.timeout(60):
            settings = KubernetesSettings(f"http://127.0.0.1:{server.port}", account, ("team",))
            kubernetes = Kubernetes(settings)
            await kubernetes.step()
            await kubernetes.close()
            assert kubernetes.snapshot is not None
            assert not kubernetes.snapshot.problems

    asyncio.run(call())


def test_in_a_pod(account: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = make_pod_settings(environment, [], account)
    assert (found.url, found.namespaces) == ("https://[fd00::1]:443", ("team",))
    assert make_pod_settings(environment, ["a", "b"], account).namespaces == ("a", "b")
    for other, folder in (({}, account), (environment, account / "none")):
        with pytest.raises(InvalidAccess, match="--kubernetes works in a pod only"):
            make_pod_settings(other, [], folder)
