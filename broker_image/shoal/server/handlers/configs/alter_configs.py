"""AlterConfigs: replace all configs of a resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.metadata import broker_rules, configs, listener_configs
from shoal.metadata.alterations import (
    ConfigAlteration,
    ConfigChange,
    alter_configs,
    apply_alteration,
)
from shoal.metadata.image import ConfigResourceType
from shoal.protocol import codec, frames
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import Operation
from shoal.server.handlers import authorization
from shoal.server.network.api import RemainingRequest
from shoal.server.share.dead_letters import TOPIC_NAME

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from shoal.metadata.configs import ConfigLayers
    from shoal.protocol.responses import topics as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Body, Request


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.AlterConfigsResponse]:
    return alter(broker, request, incremental=False)


def check(broker: Broker, request: Request) -> Awaitable[Body | RemainingRequest | None] | None:
    return check_own(broker, request, incremental=False)


def check_own(
    broker: Broker, request: Request, *, incremental: bool
) -> Awaitable[Body | RemainingRequest | None] | None:
    """Check that this broker could use its certificates and log directories with the altered
    configs, before the controller stores them. As in Kafka, only the broker itself can check its
    files, and the controller gets the other resources of the request.

    Nothing is checked for a client that may not alter configs, which the controller refuses.
    """
    if not broker.access.allows_cluster(request, Operation.ALTER_CONFIGS, audited=False):
        return None
    own = ConfigResourceType.BROKER, str(broker.node_id)
    alterations = [
        parse_alteration(resource, incremental=incremental) for resource in request.body.resources
    ]
    keys = [entry.key for entry in alterations]
    if keys.count(own) != 1:
        return None  # The controller refuses a resource that appears twice.
    index = keys.index(own)
    after = apply_alteration(broker.image, alterations[index], incremental=incremental)
    changes = alterations[index].changes
    has_tls = bool(broker.tls.listeners) and any(map(_is_tls, changes))
    if after is None or not (has_tls or any(c.name == broker_rules.CORDONED for c in changes)):
        return None
    layers = broker.image.layers._replace(broker=after)
    refusal = _find_refusal(broker, layers, has_tls=has_tls)
    return _refuse_resource(refusal, request, index, alterations)


async def _find_refusal(broker: Broker, layers: ConfigLayers, *, has_tls: bool) -> str | None:
    """Return why this broker cannot use its files with these configs, or None."""
    reason = broker_rules.find_foreign_cordon(configs.resolve_broker_values(layers))
    return await broker.tls.find_refusal(layers) if reason is None and has_tls else reason


def _is_tls(change: ConfigChange) -> bool:
    override = listener_configs.split_name(change.name)
    if override is None and change.name in listener_configs.SECURITY:
        return False  # The controller refuses it without a listener.
    target = change.name if override is None else override.target
    return target.removeprefix("shoal.").startswith("ssl.")


async def _refuse_resource(
    refusal: Awaitable[str | None],
    request: Request,
    index: int,
    alterations: list[ConfigAlteration],
) -> Body | RemainingRequest | None:
    """Return the response, or what is left of the request, if there is a reason to refuse the
    resource with that index."""
    reason = await refusal
    if reason is None:
        return None
    refused = build_result(request.body.resources[index], ErrorCode.invalid_request, reason)
    del alterations[index]
    if not alterations:
        return {"responses": [refused]}

    def complete(body: Body) -> responses.AlterConfigsResponse:
        other_results = read_results(request, body)
        return {"responses": [*other_results[:index], refused, *other_results[index:]]}

    return make_remainder(request, alterations, complete)


def make_remainder(
    request: Request, alterations: list[ConfigAlteration], complete: Callable[[Body], Body]
) -> RemainingRequest:
    """Return a request with these alterations only."""
    header = request.header
    key, version = header.api_key, header.api_version
    body = {
        "resources": [
            {
                "resource_type": entry.resource_type,
                "resource_name": entry.resource_name,
                "configs": [
                    {"name": c.name, "value": c.value, "config_operation": c.operation}
                    for c in entry.changes
                ],
            }
            for entry in alterations
        ],
        "validate_only": request.body.validate_only,
    }
    head = frames.build_request_head(key, version, header.correlation_id, header.client_id or "")
    encoded = codec.write_request(key, version, body)
    remaining = replace(request, body=codec.read_request(key, version, bytes(encoded)))
    return RemainingRequest(head + encoded, remaining, complete)


def read_results(request: Request, body: Body) -> list[responses.AlterConfigsResourceResponse]:
    """Return the results of a response body, which is encoded if it is the controller's."""
    if isinstance(body, Mapping):
        return list(body["responses"])
    header = request.header
    response = codec.read_response(header.api_key, header.api_version, b"".join(body))
    return [
        build_result(entry, entry.error_code, entry.error_message) for entry in response.responses
    ]


def parse_alteration(resource: Any, *, incremental: bool) -> ConfigAlteration:
    """Return the changes that a request wants of one resource."""
    return ConfigAlteration(
        resource.resource_type,
        resource.resource_name,
        [
            ConfigChange(c.name, c.value, c.config_operation if incremental else 0)
            for c in resource.configs
        ],
    )


def alter(
    broker: Broker, request: Request, *, incremental: bool
) -> asyncio.Future[responses.AlterConfigsResponse]:
    """Alter configs; with `incremental` only those that the request names."""
    body = request.body
    alterations, refused = [], []
    for resource in body.resources:
        code = authorization.check_config_access(broker, request, resource)
        change_set = parse_alteration(resource, incremental=incremental)
        if code is not None:
            refused.append(build_result(resource, code, None))
        elif (topic := _find_forbidden_topic(broker, request, change_set)) is not None:
            text = f"Setting the dead-letter topic {topic} needs WRITE on it."
            refused.append(build_result(resource, ErrorCode.topic_authorization_failed, text))
        else:
            alterations.append(change_set)

    def respond(
        altered_rows: Sequence[responses.AlterConfigsResourceResponse],
    ) -> responses.AlterConfigsResponse:
        return {"responses": [*altered_rows, *refused]}

    return broker.metadata.submit(
        lambda image: alter_configs(
            image, alterations, incremental=incremental, validate_only=body.validate_only
        ),
        respond,
    )


def _find_forbidden_topic(
    broker: Broker, request: Request, alteration: ConfigAlteration
) -> str | None:
    """Return the dead-letter topic that a group would get and the sender may not write to, or None.
    The brokers write to it with rights of their own, what the group's members reject."""
    if alteration.resource_type != ConfigResourceType.GROUP:
        return None
    for change in alteration.changes:
        if change.name == TOPIC_NAME and change.value:
            if not broker.access.allows(
                request, Operation.WRITE, authorization.TOPIC, change.value
            ):
                return change.value
    return None


def refuse(request: Request, code: int, message: str | None) -> responses.AlterConfigsResponse:
    return {
        "responses": [build_result(resource, code, message) for resource in request.body.resources]
    }


def build_result(
    resource: Any, code: int, message: str | None
) -> responses.AlterConfigsResourceResponse:
    """Return one result of the response."""
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
