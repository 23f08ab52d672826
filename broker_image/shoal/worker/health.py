"""The web page of a worker for Kubernetes and Prometheus: /healthz, /readyz and /metrics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.worker import metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class Status(NamedTuple):
    """How a worker is: alive, a member of its group, and its counts (`metrics`)."""

    healthy: bool
    ready: bool
    snapshots: list[dict[str, Any]]


@contextlib.asynccontextmanager
async def serve_health(address: str, read: Callable[[], Status]) -> AsyncIterator[str]:
    """Serve the page at HOST:PORT within the block; yield its URL. Raises `OSError`, and
    `ValueError` for another address."""
    from aiohttp import web

    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise ValueError(f"{address!r} is not HOST:PORT")

    async def show_health(_: web.Request) -> web.Response:
        return _answer(web, read().healthy, "a slot is left", "all slots run jobs that never end")

    async def show_readiness(_: web.Request) -> web.Response:
        return _answer(web, read().ready, "joined the group", "has not joined the group, or ends")

    async def show_metrics(_: web.Request) -> web.Response:
        body = metrics.render(read().snapshots)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/healthz", show_health)
    app.router.add_get("/readyz", show_readiness)
    app.router.add_get("/metrics", show_metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host.strip("[]"), int(port))
        await site.start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _answer(web: Any, good: bool, yes: str, no: str) -> Any:
    return web.Response(text=f"{yes if good else no}\n", status=200 if good else 503)
