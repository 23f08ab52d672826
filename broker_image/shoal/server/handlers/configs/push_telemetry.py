"""PushTelemetry: a client pushes its metrics (KIP-714).

The request is checked and its metrics are dropped, as on a Kafka broker without a receiver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.handlers.configs.get_telemetry_subscriptions import (
    COMPRESSION_TYPES,
    find_subscription,
)

if TYPE_CHECKING:
    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

_UNCOMPRESSED = 0


def handle(broker: Broker, request: Request) -> responses.PushTelemetryResponse:
    body = request.body
    if body.client_instance_id is None:
        raise ApiError(ErrorCode.invalid_request)
    if (
        body.subscription_id
        != find_subscription(broker, request, body.client_instance_id).subscription_id
    ):
        raise ApiError(ErrorCode.unknown_subscription_id)
    if body.compression_type not in (_UNCOMPRESSED, *COMPRESSION_TYPES):
        raise ApiError(ErrorCode.unsupported_compression_type)
    if len(body.metrics) > broker.image.broker_config["telemetry.max.bytes"]:
        raise ApiError(ErrorCode.telemetry_too_large)
    return {"error_code": ErrorCode.none}
