"""IncrementalAlterConfigs: set, delete, append to and subtract from single configs (KIP-339).

This node changes its own log levels (KIP-412) and checks its own certificates. The controller
changes the rest.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.metadata.image import ResourceType
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.handlers import audited, authorization, broker_loggers
from shoal.server.handlers.alter_configs import (
    alter,
    alteration,
    check_tls,
    remainder,
    result,
    results,
)
from shoal.server.network.api import Remainder

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request


def handle(broker: Broker, request: Request) -> Answer:
    return alter(broker, request, incremental=True)


def check(broker: Broker, request: Request) -> Awaitable[Body | Remainder | None] | None:
    types = {resource.resource_type for resource in request.body.resources}
    if ResourceType.BROKER_LOGGER in types:
        return _with_loggers(broker, request)
    return check_tls(broker, request, incremental=True)


async def _with_loggers(broker: Broker, request: Request) -> Body | Remainder:
    """Change log levels; return the response, or what is left of the request."""
    done: dict[int, dict[str, Any]] = {}
    others = []
    keys = [(r.resource_type, r.resource_name) for r in request.body.resources]
    times = Counter(keys)
    for index, resource in enumerate(request.body.resources):
        if resource.resource_type != ResourceType.BROKER_LOGGER:
            others.append(alteration(resource, incremental=True))
            continue
        done[index] = _altered(broker, request, resource, is_unique=times[keys[index]] == 1)

    def complete(body: Body) -> Body:
        left = iter(results(request, body))
        return {"responses": [done[i] if i in done else next(left) for i in range(len(keys))]}

    if not others:
        return complete({"responses": []})
    left = remainder(request, others, complete)
    refusal = await (check_tls(broker, left.request, incremental=True) or _nothing())
    if isinstance(refusal, Remainder):
        inner = refusal.complete
        return refusal._replace(complete=lambda body: complete(inner(body)))
    return left if refusal is None else complete(refusal)


async def _nothing() -> None:
    """Refuse nothing."""


def _altered(broker: Broker, request: Request, resource: Any, *, is_unique: bool) -> dict[str, Any]:
    """Change the levels of one resource; return its result."""
    code = authorization.of_config(broker, request, resource)
    if code is not None:
        return result(resource, code, None)
    try:
        if not is_unique:
            text = "Each resource must appear at most once."
            raise ApiError(ErrorCode.invalid_request, text)
        asked = alteration(resource, incremental=True)
        changes = broker_loggers.alter(
            broker.node_id, asked, validate_only=request.body.validate_only
        )
    except ApiError as error:
        return result(resource, error.code, error.message)
    audited.changed(broker, request, changes)
    return result(resource, ErrorCode.none, None)
