"""AlterConfigs: replace all configs of a resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata import listener_configs
from shoal.metadata.alterations import Alteration, Change, alter_configs, altered
from shoal.metadata.image import ResourceType
from shoal.protocol.errors import ErrorCode
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request


def handle(broker: Broker, request: Request) -> Answer:
    return alter(broker, request, incremental=False)


def check(broker: Broker, request: Request) -> Awaitable[Body | None] | None:
    return check_tls(broker, request, incremental=False)


def check_tls(
    broker: Broker, request: Request, *, incremental: bool
) -> Awaitable[Body | None] | None:
    """Check that this broker could use its certificates with the altered configs, before the
    controller stores them. As in Kafka, only the broker itself can check its files."""
    own = ResourceType.BROKER, str(broker.node_id)
    for resource in request.body.resources if broker.tls.listeners else ():
        alteration = _alteration(resource, incremental=incremental)
        if alteration.key != own or not any(map(_is_tls, alteration.changes)):
            continue
        # The result is about files, so only those who may alter the configs get it.
        if authorization.of_config(broker, request, resource) is not None:
            continue
        after = altered(broker.image, alteration, incremental=incremental)
        if after is not None:
            layers = broker.image.layers._replace(broker=after)
            return _refusal(broker.tls.refusal(layers), request)
    return None


def _is_tls(change: Change) -> bool:
    override = listener_configs.split(change.name)
    if override is None and change.name in listener_configs.SECURITY:
        return False  # The controller refuses it without a listener.
    target = change.name if override is None else override.target
    return target.removeprefix("shoal.").startswith("ssl.")


async def _refusal(found: Awaitable[str | None], request: Request) -> Body | None:
    """Return the response if there is a reason to refuse the request."""
    reason = await found
    return None if reason is None else refuse(request, ErrorCode.invalid_request, reason)


def _alteration(resource: Any, *, incremental: bool) -> Alteration:
    return Alteration(
        resource.resource_type,
        resource.resource_name,
        [
            Change(c.name, c.value, c.config_operation if incremental else 0)
            for c in resource.configs
        ],
    )


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
        _alteration(resource, incremental=incremental)
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
