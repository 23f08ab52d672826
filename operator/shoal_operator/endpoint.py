"""The operator's HTTP server: its metrics, and scale signals for KEDA's metrics API scaler.

GET /metrics                                     Prometheus text
GET /scale/NAMESPACE/SHARECONSUMER               {"lag": …, "due": …, "desiredReplicas": …}

The status is 503 while the group's lag is unknown, so that KEDA uses its fallback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from shoal_operator.runtime import Operator


async def serve(operator: Operator, port: int) -> web.AppRunner:
    """Serve on all addresses; `cleanup()` of the returned runner stops the server."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def scale(request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = operator.signal(namespace, name)
        if found is None:
            text = f"ShareConsumer {namespace}/{name} does not exist"
            return web.json_response({"error": text}, status=404)
        if "lag" not in found:
            text = f"the lag of the group of ShareConsumer {namespace}/{name} is unknown"
            return web.json_response({"error": text, **found}, status=503)
        return web.json_response(found)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/scale/{namespace}/{name}", scale)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
