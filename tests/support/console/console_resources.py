"""An API server with resources of Shoal's and an event, for the console's page of consumers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from shoal.console.sampling.kubernetes import KubernetesSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

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


def _resource(name: str, spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": status}


@asynccontextmanager
async def api_server(folder: Path, group: str) -> AsyncIterator[KubernetesSettings]:
    """Serve two consumers of a group, the group and an event. `folder` gets a token."""
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
