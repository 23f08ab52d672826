"""GetTelemetrySubscriptions: the metrics that a client is to push (KIP-714).

Subscriptions are configs of the type client-metrics (`metadata.client_metrics`). The subscription
of a client is computed for each request, so the broker keeps no state of clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.uuids import format_uuid
from shoal.metadata.client_metrics import Subscription, subscribe
from shoal.metadata.image import ConfigResourceType
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

#: zstd, lz4, gzip, snappy: the order in which clients should take them.
COMPRESSION_TYPES = (4, 3, 1, 2)


def handle(broker: Broker, request: Request) -> responses.GetTelemetrySubscriptionsResponse:
    client_id = request.body.client_instance_id or broker.node.make_random_id()
    subscription = find_subscription(broker, request, client_id)
    return {
        "error_code": ErrorCode.none,
        "client_instance_id": client_id,
        "subscription_id": subscription.subscription_id,
        "accepted_compression_types": COMPRESSION_TYPES,
        "push_interval_ms": subscription.interval_ms,
        "telemetry_max_bytes": broker.image.broker_config["telemetry.max.bytes"],
        "delta_temporality": True,
        "requested_metrics": subscription.metrics,
    }


def find_subscription(broker: Broker, request: Request, client_id: UUID) -> Subscription:
    """The subscription of the client instance that sent the request."""
    peer = request.peer
    client = {
        "client_instance_id": format_uuid(client_id),
        "client_id": request.header.client_id or "",
        "client_software_name": peer.client_software[0],
        "client_software_version": peer.client_software[1],
        "client_source_address": peer.host,
        "client_source_port": str(peer.port),
    }
    subscriptions = {
        name: texts
        for (kind, name), texts in broker.image.configs.items()
        if kind == ConfigResourceType.CLIENT_METRICS
    }
    return subscribe(subscriptions, client)
