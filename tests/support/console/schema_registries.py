"""A small schema registry with the API of Confluent's, over real HTTP."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import encode_basic_auth, web
from aiohttp.test_utils import TestServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class SchemaRegistry:
    """Schemas by id, and versions of subjects. A test changes its attributes."""

    def __init__(self) -> None:
        self.url = ""
        self.schemas: dict[int, dict[str, Any]] = {}
        self.versions: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[str] = []
        self.login = ""
        self.status = 200
        self.body: bytes | None = None

    def add(self, id: int, schema: Any, kind: str = "", references: Any = None) -> None:
        found: dict[str, Any] = {"schema": schema if kind else json.dumps(schema)}
        if kind:
            found["schemaType"] = kind
        if references:
            found["references"] = references
        self.schemas[id] = found

    def require(self, user: str, password: str) -> None:
        self.login = encode_basic_auth(user, password)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/schemas/ids/{id}", self._schema)
        app.router.add_get("/subjects/{subject}/versions/{version}", self._version)
        return app

    async def _schema(self, request: web.Request) -> web.Response:
        return self._answer(request, self.schemas.get(int(request.match_info["id"])))

    async def _version(self, request: web.Request) -> web.Response:
        place = (request.match_info["subject"], request.match_info["version"])
        return self._answer(request, self.versions.get(place))

    def _answer(self, request: web.Request, found: dict[str, Any] | None) -> web.Response:
        self.asked.append(request.path)
        if self.login and request.headers.get("Authorization") != self.login:
            return web.json_response({"error_code": 401}, status=401)
        if self.status != 200 or self.body is not None:
            return web.Response(status=self.status, body=self.body or b"")
        if found is None:
            return web.json_response({"error_code": 40403}, status=404)
        return web.json_response(found)


@asynccontextmanager
async def schema_registry() -> AsyncIterator[SchemaRegistry]:
    """Serve a registry on a free port."""
    registry = SchemaRegistry()
    async with TestServer(registry.application()) as server:
        registry.url = f"http://127.0.0.1:{server.port}"
        yield registry
