"""ListConfigResources: the resources that can have configs (KIP-714, KIP-1142)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.image import MetadataImage, ResourceType
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request

_LISTED = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)


def handle(broker: Broker, request: Request) -> Answer:
    # Version 0 was ListClientMetricsResources.
    types: Sequence[int] = (ResourceType.CLIENT_METRICS,)
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
            for name in _names(broker.image, kind)
        ],
    }


def _names(image: MetadataImage, kind: int) -> list[str]:
    if kind == ResourceType.TOPIC:
        return sorted(image.topics)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(broker_id) for broker_id in sorted(image.brokers)]
    return sorted(name for found, name in image.configs if found == kind)
