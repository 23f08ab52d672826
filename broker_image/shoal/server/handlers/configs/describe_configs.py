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
from shoal.metadata.config_keys import ConfigKey, ConfigScope, format_value
from shoal.metadata.configs import BROKER, GROUP, TOPIC, ConfigOrigin, ConfigSource
from shoal.metadata.image import ConfigResourceType, MetadataImage
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.handlers import authorization
from shoal.server.handlers.configs import broker_loggers

if TYPE_CHECKING:
    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

EffectiveConfigs = Iterable[tuple[ConfigKey, Any, list[ConfigOrigin]]]
#: The source of the configs of a client metrics subscription.
_SUBSCRIPTION = 7


def handle(broker: Broker, request: Request) -> responses.DescribeConfigsResponse:
    body = request.body
    return {
        "results": [
            _describe(
                broker.image,
                resource,
                body.include_synonyms,
                getattr(body, "include_documentation", False),
            )
            if (code := authorization.check_config_access(broker, request, resource)) is None
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
) -> responses.DescribeConfigsResult:
    result: responses.DescribeConfigsResult = {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
    look = _LOOKS.get(resource.resource_type)
    requested = resource.configuration_keys
    try:
        if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
            levels = broker_loggers.describe(image.scope.node_id, resource.resource_name, requested)
            return result | {"error_code": ErrorCode.none, "configs": list(levels)}
        if look is None:
            raise ApiError(
                ErrorCode.invalid_request, f"Unsupported resource type: {resource.resource_type}"
            )
        entries = look(image, resource.resource_name)
    except ApiError as error:
        return result | {"error_code": error.code, "error_message": error.message}
    return result | {
        "error_code": ErrorCode.none,
        "configs": [
            _build_result(resource.resource_type, key, value, origins, synonyms, documentation)
            for key, value, origins in entries
            if not requested or key.name in requested
        ],
    }


def _build_result(
    resource_type: int,
    key: ConfigKey,
    value: Any,
    origins: list[ConfigOrigin],
    synonyms: bool,
    documentation: bool,
) -> responses.DescribeConfigsResourceResult:
    hidden = key.sensitive
    return {
        "name": key.name,
        "value": None if hidden else format_value(value),
        "read_only": resource_type == ConfigResourceType.BROKER
        and key.scope is ConfigScope.READ_ONLY,
        "config_source": origins[0].source if origins else ConfigSource.DEFAULT,
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


def _describe_topic(image: MetadataImage, name: str) -> EffectiveConfigs:
    reason = names.find_topic_name_error(name)
    if reason is not None:
        raise ApiError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")
    if name not in image.topics:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"Topic '{name}' does not exist.")
    return _list_effective(
        image, ConfigResourceType.TOPIC, name, TOPIC, image.resolve_topic_config(name)
    )


def _describe_group(image: MetadataImage, name: str) -> EffectiveConfigs:
    if not name:
        raise ApiError(ErrorCode.invalid_request, "Group name must not be empty")
    return _list_effective(
        image, ConfigResourceType.GROUP, name, GROUP, image.resolve_group_config(name)
    )


def _describe_broker(image: MetadataImage, name: str) -> EffectiveConfigs:
    if name == "":
        return _list_cluster_wide(image)
    if name != str(image.scope.node_id):
        raise ApiError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {image.scope.node_id} or empty string, but received"
            f" {name}",
        )
    effective = _list_effective(image, ConfigResourceType.BROKER, name, BROKER, image.broker_config)
    return [*effective, *_list_overrides(image)]


def _list_overrides(image: MetadataImage) -> EffectiveConfigs:
    """Return the configs of single listeners. As in Kafka, they are shown as read-only."""
    overrides = []
    for name in sorted({n for layer in image.layers for n in layer}):
        override, key = listener_configs.split_name(name), listener_configs.find_key(name)
        if override is not None and key is not None:
            own = configs.find_config_origins(key, image.layers, names=(name,))
            general = configs.find_config_origins(key, image.layers)
            override_key = replace(key, name=name, scope=ConfigScope.READ_ONLY)
            overrides.append((override_key, key.read(own[0].text), own + general))
    return overrides


def _list_effective(
    image: MetadataImage,
    resource_type: int,
    name: str,
    table: Mapping[str, ConfigKey],
    values: Mapping[str, Any],
) -> EffectiveConfigs:
    return [
        (key, values[key.name], image.find_config_origins(resource_type, name, key.name))
        for key in table.values()
        if not key.internal
    ]


def _list_cluster_wide(image: MetadataImage) -> EffectiveConfigs:
    """Only the configs that are set for all brokers."""
    texts = image.layers.broker_default
    return [
        (
            BROKER[name],
            BROKER[name].read(text),
            [ConfigOrigin(name, text, ConfigSource.BROKER_DEFAULT)],
        )
        for name, text in sorted(texts.items())
    ]


def _describe_client_metrics(image: MetadataImage, name: str) -> EffectiveConfigs:
    if not name:
        raise ApiError(ErrorCode.invalid_request, "Client metrics subscription name is empty")
    texts = image.configs.get((ConfigResourceType.CLIENT_METRICS, name), configs.NONE)
    entries = []
    for key in client_metrics.SUBSCRIPTION.values():
        if key.name in texts:
            own = [ConfigOrigin(key.name, texts[key.name], _SUBSCRIPTION)]  # type: ignore[arg-type]
            entries.append((key, key.read(texts[key.name]), own))
        else:
            entries.append((key, key.default, []))
    return entries


_LOOKS = {
    ConfigResourceType.TOPIC: _describe_topic,
    ConfigResourceType.BROKER: _describe_broker,
    ConfigResourceType.GROUP: _describe_group,
    ConfigResourceType.CLIENT_METRICS: _describe_client_metrics,
}


def refuse(request: Request, code: int, message: str | None) -> responses.DescribeConfigsResponse:
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
