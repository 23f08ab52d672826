"""AlterConfigs: replace all configs of a resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.metadata import listener_configs
from shoal.metadata.alterations import Alteration, Change, alter_configs, altered
from shoal.metadata.image import ResourceType
from shoal.protocol import codec, frames
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import Operation
from shoal.server.handlers import authorization
from shoal.server.network.api import Remainder
from shoal.server.share.dead_letters import TOPIC_NAME

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request


def handle(broker: Broker, request: Request) -> Answer:
    return alter(broker, request, incremental=False)


def check(broker: Broker, request: Request) -> Awaitable[Body | Remainder | None] | None:
    return check_tls(broker, request, incremental=False)


def check_tls(
    broker: Broker, request: Request, *, incremental: bool
) -> Awaitable[Body | Remainder | None] | None:
    """Check that this broker could use its certificates with the altered configs, before the
    controller stores them. As in Kafka, only the broker itself can check its files, and the
    controller gets the other resources of the request.

    Nothing is checked for a client that may not alter configs, which the controller refuses.
    """
    if not broker.access.allows_cluster(request, Operation.ALTER_CONFIGS, audited=False):
        return None
    own = ResourceType.BROKER, str(broker.node_id)
    asked = [alteration(resource, incremental=incremental) for resource in request.body.resources]
    keys = [one.key for one in asked]
    if keys.count(own) != 1:
        return None  # The controller refuses a resource that appears twice.
    index = keys.index(own)
    after = altered(broker.image, asked[index], incremental=incremental)
    if after is None or not broker.tls.listeners or not any(map(_is_tls, asked[index].changes)):
        return None
    layers = broker.image.layers._replace(broker=after)
    return _refusal(broker.tls.refusal(layers), request, index, asked)


def _is_tls(change: Change) -> bool:
    override = listener_configs.split(change.name)
    if override is None and change.name in listener_configs.SECURITY:
        return False  # The controller refuses it without a listener.
    target = change.name if override is None else override.target
    return target.removeprefix("shoal.").startswith("ssl.")


async def _refusal(
    found: Awaitable[str | None], request: Request, index: int, asked: list[Alteration]
) -> Body | Remainder | None:
    """Return the response, or what is left of the request, if there is a reason to refuse the
    resource with that index."""
    reason = await found
    if reason is None:
        return None
    refused = result(request.body.resources[index], ErrorCode.invalid_request, reason)
    del asked[index]
    if not asked:
        return {"responses": [refused]}

    def complete(body: Body) -> Body:
        others = results(request, body)
        return {"responses": [*others[:index], refused, *others[index:]]}

    return remainder(request, asked, complete)


def remainder(
    request: Request, asked: list[Alteration], complete: Callable[[Body], Body]
) -> Remainder:
    """Return a request with these alterations only."""
    header = request.header
    key, version = header.api_key, header.api_version
    body = {
        "resources": [
            {
                "resource_type": one.resource_type,
                "resource_name": one.resource_name,
                "configs": [
                    {"name": c.name, "value": c.value, "config_operation": c.operation}
                    for c in one.changes
                ],
            }
            for one in asked
        ],
        "validate_only": request.body.validate_only,
    }
    head = frames.request_head(key, version, header.correlation_id, header.client_id or "")
    encoded = codec.write_request(key, version, body)
    remaining = replace(request, body=codec.read_request(key, version, bytes(encoded)))
    return Remainder(head + encoded, remaining, complete)


def results(request: Request, body: Body) -> list[dict[str, Any]]:
    """Return the results of a response body, which is encoded if it is the controller's."""
    if isinstance(body, Mapping):
        return list(body["responses"])
    header = request.header
    found = codec.read_response(header.api_key, header.api_version, b"".join(body))
    return [result(one, one.error_code, one.error_message) for one in found.responses]


def alteration(resource: Any, *, incremental: bool) -> Alteration:
    """Return the changes that a request wants of one resource."""
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
    alterations, refused = [], []
    for resource in body.resources:
        code = authorization.of_config(broker, request, resource)
        asked = alteration(resource, incremental=incremental)
        if code is not None:
            refused.append(result(resource, code, None))
        elif (topic := _forbidden_dead_letters(broker, request, asked)) is not None:
            text = f"Setting the dead-letter topic {topic} needs WRITE on it."
            refused.append(result(resource, ErrorCode.topic_authorization_failed, text))
        else:
            alterations.append(asked)
    return broker.metadata.submit(
        lambda image: alter_configs(
            image, alterations, incremental=incremental, validate_only=body.validate_only
        ),
        lambda altered_rows: {"responses": [*altered_rows, *refused]},
    )


def _forbidden_dead_letters(broker: Broker, request: Request, asked: Alteration) -> str | None:
    """Return the dead-letter topic that a group would get and the sender may not write to, or None.
    The brokers write to it with rights of their own, what the group's members reject."""
    if asked.resource_type != ResourceType.GROUP:
        return None
    for change in asked.changes:
        if change.name == TOPIC_NAME and change.value:
            if not broker.access.allows(
                request, Operation.WRITE, authorization.TOPIC, change.value
            ):
                return change.value
    return None


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {"responses": [result(resource, code, message) for resource in request.body.resources]}


def result(resource: Any, code: int, message: str | None) -> dict[str, Any]:
    """Return one result of the response."""
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
