"""The operator's HTTP server: its metrics, and scale signals for KEDA's metrics API scaler.

GET /metrics                                     Prometheus text
GET /scale/NAMESPACE/SHARECONSUMER               {"lag": …, "due": …, "desiredReplicas": …}
GET /readyz                                      503 while this replica could not act, with the
                                                 reason; else `ready`, and a line for each watch
                                                 that fails: the scale signals are served anyway

With `HttpAccess`, the server speaks TLS and asks for a client certificate or a bearer token: one of
the operator's, or the ShareConsumer's own for its scale signal.

The status is 503 while the group's lag is unknown, so that KEDA uses its fallback.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from shoal_operator.http_access import HttpAccess
    from shoal_operator.runtime import Operator


async def serve(
    operator: Operator,
    port: int,
    access: HttpAccess | None = None,
    *,
    problem: Callable[[], str] = lambda: "",
) -> web.AppRunner:
    """Serve on all addresses; `cleanup()` of the returned runner stops the server. Without
    `access`, it serves everyone without TLS. `problem` returns why this operator does not act,
    although no replica of it does; empty if nothing keeps it from acting."""

    def check(request: web.Request, consumer: tuple[str, str] | None = None) -> None:
        if access is None:
            return
        header = request.headers.get("Authorization", "")
        certified = bool(request.get_extra_info("peercert"))
        if not access.may_read(header, consumer, certified=certified):
            text = f"{access.remedy.capitalize()} is needed.\n"
            raise web.HTTPUnauthorized(text=text, headers={"WWW-Authenticate": "Bearer"})

    async def get_metrics(request: web.Request) -> web.Response:
        check(request)
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def get_scale_signal(request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        check(request, (namespace, name))
        signal = operator.get_signal(namespace, name)
        if signal is None:
            text = f"ShareConsumer {namespace}/{name} does not exist"
            return web.json_response({"error": text}, status=404)
        if "lag" not in signal:
            text = f"the lag of the group of ShareConsumer {namespace}/{name} is unknown"
            return web.json_response({"error": text, **signal}, status=503)
        return web.json_response(signal)

    async def get_readiness(_: web.Request) -> web.Response:
        return _build_readiness(problem() or operator.obstacle, operator.warnings)

    app = web.Application()
    app.router.add_get("/readyz", get_readiness)
    app.router.add_get("/metrics", get_metrics)
    app.router.add_get("/scale/{namespace}/{name}", get_scale_signal)
    if access is not None:
        app.cleanup_ctx.append(_make_follower(access))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context = None if access is None else access.context
    await web.TCPSite(runner, "0.0.0.0", port, ssl_context=context).start()
    return runner


def _build_readiness(obstacle: str, warnings: Sequence[str]) -> web.Response:
    if obstacle:
        return web.Response(text=f"{obstacle}\n", status=503)
    return web.Response(text="\n".join(["ready", *warnings, ""]))


def _make_follower(access: HttpAccess) -> Callable[[web.Application], AsyncIterator[None]]:
    """Return a context of the application in which the certificate is reloaded."""

    async def follow(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(access.follow(), name="certificate of the HTTP server")
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return follow
