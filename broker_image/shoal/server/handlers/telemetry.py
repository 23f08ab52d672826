"""GetTelemetrySubscriptions and PushTelemetry: what clients are to measure of themselves (KIP-714).

Subscriptions are configs of the kind client-metrics (`metadata.client_metrics`). A client's is
computed anew for each request, so nothing is remembered of clients. What they push is checked and
then dropped, as on a Kafka broker that has no receiver plugged in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from shoal.log.uuids import uuid_text
from shoal.metadata.client_metrics import Subscription, subscribe
from shoal.metadata.image import ResourceType
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.network.api import Answer, Request

if TYPE_CHECKING:
    from shoal.server.broker import Broker

#: zstd, lz4, gzip, snappy: the order in which clients should take them.
_COMPRESSION_TYPES = (4, 3, 1, 2)
_UNCOMPRESSED = 0


def get(broker: Broker, request: Request) -> Answer:
    client_id = request.body.client_instance_id or broker.node.random_id()
    subscription = _subscription(broker, request, client_id)
    return {
        "error_code": ErrorCode.none,
        "client_instance_id": client_id,
        "subscription_id": subscription.subscription_id,
        "accepted_compression_types": _COMPRESSION_TYPES,
        "push_interval_ms": subscription.interval_ms,
        "telemetry_max_bytes": broker.image.broker_config["telemetry.max.bytes"],
        "delta_temporality": True,
        "requested_metrics": subscription.metrics,
    }


def push(broker: Broker, request: Request) -> Answer:
    body = request.body
    if body.client_instance_id is None:
        raise ApiError(ErrorCode.invalid_request)
    if body.subscription_id != _subscription(broker, request, body.client_instance_id)[0]:
        raise ApiError(ErrorCode.unknown_subscription_id)
    if body.compression_type not in (_UNCOMPRESSED, *_COMPRESSION_TYPES):
        raise ApiError(ErrorCode.unsupported_compression_type)
    if len(body.metrics) > broker.image.broker_config["telemetry.max.bytes"]:
        raise ApiError(ErrorCode.telemetry_too_large)
    return {"error_code": ErrorCode.none}


def _subscription(broker: Broker, request: Request, client_id: UUID) -> Subscription:
    peer = request.peer
    client = {
        "client_instance_id": uuid_text(client_id),
        "client_id": request.header.client_id or "",
        "client_software_name": peer.client_software[0],
        "client_software_version": peer.client_software[1],
        "client_source_address": peer.host,
        "client_source_port": str(peer.port),
    }
    found = {
        name: texts
        for (kind, name), texts in broker.image.configs.items()
        if kind == ResourceType.CLIENT_METRICS
    }
    return subscribe(found, client)
