"""ListConfigResources: the resources that can have configs (KIP-714, KIP-1142)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.image import ConfigResourceType, MetadataImage
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

_LISTED = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.BROKER_LOGGER,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.GROUP,
)


def handle(broker: Broker, request: Request) -> responses.ListConfigResourcesResponse:
    # Version 0 was ListClientMetricsResources.
    types: Sequence[int] = (ConfigResourceType.CLIENT_METRICS,)
    if request.version > 0:
        types = request.body.resource_types or _LISTED
    unknown = [kind for kind in types if kind not in _LISTED]
    if unknown:
        raise ApiError(
            ErrorCode.unsupported_version, f"Resources of type {unknown[0]} cannot be listed"
        )
    return {
        "error_code": ErrorCode.none,
        "config_resources": [
            {"resource_name": name, "resource_type": kind}
            for kind in dict.fromkeys(types)
            for name in _list_names(broker.image, kind)
        ],
    }


def _list_names(image: MetadataImage, kind: int) -> list[str]:
    if kind == ConfigResourceType.TOPIC:
        return sorted(image.topics)
    if kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        return [str(broker_id) for broker_id in sorted(image.brokers)]
    return sorted(name for config_kind, name in image.configs if config_kind == kind)
