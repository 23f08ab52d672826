"""IncrementalAlterConfigs: set, delete, append to and subtract from single configs (KIP-339).

This node changes its own log levels (KIP-412) and checks its own certificates. The controller
changes the rest.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.metadata.image import ConfigResourceType
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.handlers import audited, authorization
from shoal.server.handlers.configs import broker_loggers
from shoal.server.handlers.configs.alter_configs import (
    alter,
    build_result,
    check_own,
    make_remainder,
    parse_alteration,
    read_results,
)
from shoal.server.network.api import RemainingRequest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable

    from shoal.protocol.responses import topics as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Body, Request


def handle(
    broker: Broker, request: Request
) -> asyncio.Future[responses.IncrementalAlterConfigsResponse]:
    return alter(broker, request, incremental=True)


def check(broker: Broker, request: Request) -> Awaitable[Body | RemainingRequest | None] | None:
    types = {resource.resource_type for resource in request.body.resources}
    if ConfigResourceType.BROKER_LOGGER in types:
        return _alter_with_loggers(broker, request)
    return check_own(broker, request, incremental=True)


async def _alter_with_loggers(broker: Broker, request: Request) -> Body | RemainingRequest:
    """Change log levels; return the response, or what is left of the request."""
    logger_results: dict[int, responses.AlterConfigsResourceResponse] = {}
    alterations = []
    keys = [(r.resource_type, r.resource_name) for r in request.body.resources]
    times = Counter(keys)
    for index, resource in enumerate(request.body.resources):
        if resource.resource_type != ConfigResourceType.BROKER_LOGGER:
            alterations.append(parse_alteration(resource, incremental=True))
            continue
        logger_results[index] = _alter_loggers(
            broker, request, resource, is_unique=times[keys[index]] == 1
        )

    def complete(body: Body) -> responses.IncrementalAlterConfigsResponse:
        other_results = iter(read_results(request, body))
        return {
            "responses": [
                logger_results[i] if i in logger_results else next(other_results)
                for i in range(len(keys))
            ]
        }

    if not alterations:
        return complete({"responses": []})
    remaining = make_remainder(request, alterations, complete)
    refusal = await (check_own(broker, remaining.request, incremental=True) or _refuse_nothing())
    if isinstance(refusal, RemainingRequest):
        inner = refusal.complete
        return refusal._replace(complete=lambda body: complete(inner(body)))
    return remaining if refusal is None else complete(refusal)


async def _refuse_nothing() -> None:
    """Refuse nothing."""


def _alter_loggers(
    broker: Broker, request: Request, resource: Any, *, is_unique: bool
) -> responses.AlterConfigsResourceResponse:
    """Change the levels of one resource; return its result."""
    code = authorization.check_config_access(broker, request, resource)
    if code is not None:
        return build_result(resource, code, None)
    try:
        if not is_unique:
            text = "Each resource must appear at most once."
            raise ApiError(ErrorCode.invalid_request, text)
        change_set = parse_alteration(resource, incremental=True)
        changes = broker_loggers.alter(
            broker.node_id, change_set, validate_only=request.body.validate_only
        )
    except ApiError as error:
        return build_result(resource, error.code, error.message)
    audited.log_changes(broker, request, changes)
    return build_result(resource, ErrorCode.none, None)
