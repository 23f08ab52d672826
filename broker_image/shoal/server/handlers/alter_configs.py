"""AlterConfigs: replace all configs of a resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.alterations import Alteration, Change, alter_configs
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    return alter(broker, request, incremental=False)


def alter(broker: Broker, request: Request, *, incremental: bool) -> Answer:
    """Alter configs; with `incremental` only those that the request names."""
    body = request.body
    codes = [authorization.of_config(broker, request, resource) for resource in body.resources]
    refused = [
        _row(resource, code, None)
        for resource, code in zip(body.resources, codes, strict=True)
        if code is not None
    ]
    alterations = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            [
                Change(c.name, c.value, c.config_operation if incremental else 0)
                for c in resource.configs
            ],
        )
        for resource, code in zip(body.resources, codes, strict=True)
        if code is None
    ]
    return broker.metadata.submit(
        lambda image: alter_configs(
            image, alterations, incremental=incremental, validate_only=body.validate_only
        ),
        lambda rows: {"responses": [*rows, *refused]},
    )


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {"responses": [_row(resource, code, message) for resource in request.body.resources]}


def _row(resource: Any, code: int, message: str | None) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
