"""DescribeConfigs: the configs of topics, brokers, groups, client metrics and loggers, with their
sources.

If requested, each config has its synonyms, in the order of precedence, and its documentation
(KIP-133, KIP-226, KIP-569, KIP-1240).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.metadata import client_metrics, configs, listener_configs, names
from shoal.metadata.config_keys import ConfigKey, Scope, text_of
from shoal.metadata.configs import BROKER, GROUP, TOPIC, Origin, Source
from shoal.metadata.image import MetadataImage, ResourceType
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.handlers import authorization, broker_loggers

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request

Found = Iterable[tuple[ConfigKey, Any, list[Origin]]]
#: The source of the configs of a client metrics subscription.
_SUBSCRIPTION = 7


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    return {
        "results": [
            _describe(
                broker.image,
                resource,
                body.include_synonyms,
                getattr(body, "include_documentation", False),
            )
            if (code := authorization.of_config(broker, request, resource)) is None
            else {
                "error_code": code,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
            for resource in body.resources
        ]
    }


def _describe(
    image: MetadataImage, resource: Any, synonyms: bool, documentation: bool
) -> dict[str, Any]:
    result = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    look = _LOOKS.get(resource.resource_type)
    wanted = resource.configuration_keys
    try:
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            levels = broker_loggers.describe(image.scope.node_id, resource.resource_name, wanted)
            return result | {"error_code": ErrorCode.none, "configs": list(levels)}
        if look is None:
            raise ApiError(
                ErrorCode.invalid_request, f"Unsupported resource type: {resource.resource_type}"
            )
        found = look(image, resource.resource_name)
    except ApiError as error:
        return result | {"error_code": error.code, "error_message": error.message}
    return result | {
        "error_code": ErrorCode.none,
        "configs": [
            _result(resource.resource_type, key, value, origins, synonyms, documentation)
            for key, value, origins in found
            if not wanted or key.name in wanted
        ],
    }


def _result(
    resource_type: int,
    key: ConfigKey,
    value: Any,
    origins: list[Origin],
    synonyms: bool,
    documentation: bool,
) -> dict[str, Any]:
    hidden = key.sensitive
    return {
        "name": key.name,
        "value": None if hidden else text_of(value),
        "read_only": resource_type == ResourceType.BROKER and key.scope is Scope.READ_ONLY,
        "config_source": origins[0].source if origins else Source.DEFAULT,
        "is_sensitive": hidden,
        "synonyms": [
            {"name": o.name, "value": None if hidden else o.text, "source": o.source}
            for o in origins
        ]
        if synonyms
        else [],
        "config_type": key.type,
        "documentation": key.doc if documentation else None,
    }


def _topic(image: MetadataImage, name: str) -> Found:
    reason = names.invalid_topic(name)
    if reason is not None:
        raise ApiError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")
    if name not in image.topics:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"Topic '{name}' does not exist.")
    return _effective(image, ResourceType.TOPIC, name, TOPIC, image.topic_config(name))


def _group(image: MetadataImage, name: str) -> Found:
    if not name:
        raise ApiError(ErrorCode.invalid_request, "Group name must not be empty")
    return _effective(image, ResourceType.GROUP, name, GROUP, image.group_config(name))


def _broker(image: MetadataImage, name: str) -> Found:
    if name == "":
        return _cluster_wide(image)
    if name != str(image.scope.node_id):
        raise ApiError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {image.scope.node_id} or empty string, but received"
            f" {name}",
        )
    found = _effective(image, ResourceType.BROKER, name, BROKER, image.broker_config)
    return [*found, *_overrides(image)]


def _overrides(image: MetadataImage) -> Found:
    """Return the configs of single listeners. As in Kafka, they are shown as read-only."""
    found = []
    for name in sorted({n for layer in image.layers for n in layer}):
        override, key = listener_configs.split(name), listener_configs.key_of(name)
        if override is not None and key is not None:
            own = configs.origins(key, image.layers, names=(name,))
            general = configs.origins(key, image.layers)
            named = replace(key, name=name, scope=Scope.READ_ONLY)
            found.append((named, key.read(own[0].text), own + general))
    return found


def _effective(
    image: MetadataImage,
    resource_type: int,
    name: str,
    table: Mapping[str, ConfigKey],
    values: Mapping[str, Any],
) -> Found:
    return [
        (key, values[key.name], image.origins(resource_type, name, key.name))
        for key in table.values()
        if not key.internal
    ]


def _cluster_wide(image: MetadataImage) -> Found:
    """Only the configs that are set for all brokers."""
    texts = image.layers.broker_default
    return [
        (BROKER[name], BROKER[name].read(text), [Origin(name, text, Source.BROKER_DEFAULT)])
        for name, text in sorted(texts.items())
    ]


def _client_metrics(image: MetadataImage, name: str) -> Found:
    if not name:
        raise ApiError(ErrorCode.invalid_request, "Client metrics subscription name is empty")
    texts = image.configs.get((ResourceType.CLIENT_METRICS, name), configs.NONE)
    found = []
    for key in client_metrics.SUBSCRIPTION.values():
        if key.name in texts:
            own = [Origin(key.name, texts[key.name], _SUBSCRIPTION)]  # type: ignore[arg-type]
            found.append((key, key.read(texts[key.name]), own))
        else:
            found.append((key, key.default, []))
    return found


_LOOKS = {
    ResourceType.TOPIC: _topic,
    ResourceType.BROKER: _broker,
    ResourceType.GROUP: _group,
    ResourceType.CLIENT_METRICS: _client_metrics,
}


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {
        "results": [
            {
                "error_code": code,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
            for resource in request.body.resources
        ]
    }
