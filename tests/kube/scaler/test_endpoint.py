"""The operator's HTTP server, as KEDA and Prometheus see it."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
from kube.api_server import ApiServer, CrashPoint
from kube.consumers.test_due import Shop
from prometheus_client import CONTENT_TYPE_LATEST
from shoal_operator import runtime
from shoal_operator.kube import watch
from shoal_operator.kube.kube import KubeError
from shoal_operator.runtime import Operator
from shoal_operator.scaler import endpoint
from shoal_operator.settings import ChartSettings
from support.brokers.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest


class Site:
    """A standby replica of the operator that knows a ShareConsumer with a lag of 20, and a client
    of its server."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self.another_leads = True
        self.client = client

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.client.get(path) as response:
            return response.status, await response.json()


def test_an_operator_beside_another_one_is_not_ready() -> None:
    """`helm install --wait` then fails, and the probe's event says why."""

    async def scenario() -> None:
        problem = "The operator in namespace 'one' acts on all namespaces."
        operator = Operator(Shop().kube, ChartSettings("b:1", "s:1", "role", "http"))
        (port,) = free_ports(1)
        runner = await endpoint.serve(operator, port, problem=lambda: problem)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                async with client.get("/readyz") as refused:
                    assert (refused.status, await refused.text()) == (503, f"{problem}\n")
                problem = ""
                async with client.get("/readyz") as answer:
                    assert answer.status == 200
        finally:
            await runner.cleanup()
            await operator.close()

    asyncio.run(scenario())


class FailingLists(ApiServer):
    """Lists of these kinds fail, and watches end when `end` is set."""

    def __init__(self, *kinds: str) -> None:
        super().__init__(CrashPoint())
        self.failing, self.end = set(kinds), asyncio.Event()

    async def list_snapshot(self, api_version: str, kind: str, *further: Any) -> Any:
        if kind in self.failing:
            raise LookupError(kind) if kind in runtime.CUSTOM else KubeError(500, kind)
        return await super().list_snapshot(api_version, kind, *further)

    @asynccontextmanager
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[Any]]:
        async def wait() -> AsyncIterator[Any]:
            await self.end.wait()
            raise KubeError(403, "forbidden")
            yield

        yield wait()


def test_readiness_says_what_keeps_the_operator_from_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails until the operator can begin. A watch that fails later is a line of its answer: the
    scale signals are served anyway."""
    monkeypatch.setattr(runtime, "LOAD_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(watch, "RETRY_SECONDS_MAX", 0.01)

    async def scenario() -> None:
        kube = FailingLists("SparkApplication", "QueueCluster")
        operator = Operator(kube, ChartSettings("b:1", "s:1", "role", "http"))
        operator.set_leading(True)
        (port,) = free_ports(1)
        runner = await endpoint.serve(operator, port)

        async def read() -> tuple[int, str]:
            async with client.get("/readyz") as answer:
                return answer.status, await answer.text()

        def is_expected(answer: tuple[int, str], status: int, words: str) -> bool:
            return answer[0] == status and bool(re.fullmatch(words, answer[1]))

        async def await_answer(status: int, words: str) -> None:
            async with asyncio.timeout(20):
                while not is_expected(await read(), status, words):
                    await asyncio.sleep(0)

        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                await await_answer(503, r"It cannot list what .*LookupError\('QueueCluster'\)\n")
                kube.failing.discard("QueueCluster")
                await await_answer(503, r"It cannot list what .*: SparkApplication\n")
                kube.failing.clear()
                await await_answer(200, "ready\n")
                kube.failing.add("SparkApplication")
                kube.end.set()
                await await_answer(200, r"(?s:ready\nThe watch of SparkApplication .* fails: .*\n)")
        finally:
            await runner.cleanup()
            await operator.close()

    asyncio.run(scenario())


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    shop = Shop(targetLagPerReplica=5, startupTime="60s")
    await shop.look()
    (port,) = free_ports(1)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        found = Site(client)
        settings = ChartSettings("b:1", "s:1", "role", "http://o")
        operator = Operator(shop.kube, settings, another_leads=lambda: found.another_leads)
        runner = await endpoint.serve(operator, port)
        try:
            for known in shop.kube.all("ShareConsumer") + shop.kube.all("ShareGroup"):
                operator.store.put(known)
            yield found
        finally:
            await runner.cleanup()
            await operator.close()


def test_a_scale_signal_has_the_numbers_of_the_consumer() -> None:
    async def scenario() -> None:
        async with site() as here:
            status, body = await here.get("/scale/n/eaters")
            assert status == 200
            assert (body["lag"], body["due"], body["desiredReplicas"]) == (20, 15, 3)

    asyncio.run(scenario())


def test_an_unknown_consumer_is_not_found() -> None:
    async def scenario() -> None:
        async with site() as here:
            for path in ("n/nobody", "elsewhere/eaters"):
                error = f"ShareConsumer {path} does not exist"
                assert await here.get(f"/scale/{path}") == (404, {"error": error})

    asyncio.run(scenario())


def test_an_unknown_lag_is_an_error_that_makes_keda_fall_back() -> None:
    """No replica leads. A number in its place would scale the consumers; KEDA treats any other
    status than 200 as a failed read."""

    async def scenario() -> None:
        async with site() as here:
            here.another_leads = False
            assert await here.get("/scale/n/eaters") == (
                503,
                {
                    "error": "the lag of the group of ShareConsumer n/eaters is unknown",
                    "desiredReplicas": 3,
                    "ceiling": 4,
                },
            )
            here.another_leads = True
            assert (await here.get("/scale/n/eaters"))[0] == 200

    asyncio.run(scenario())


def test_metrics_are_served_as_prometheus_reads_them() -> None:
    async def scenario() -> None:
        async with site() as here, here.client.get("/metrics") as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == CONTENT_TYPE_LATEST
            assert "# TYPE " in await response.text()

    asyncio.run(scenario())
