"""DescribeCluster: the cluster's id, controller and brokers (KIP-700, KIP-919, KIP-1073)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server import operations
from shoal.server.api import Answer, Request

if TYPE_CHECKING:
    from shoal.server.broker import Broker

_BROKERS = 1


def handle(broker: Broker, request: Request) -> Answer:
    body, image = request.body, broker.image
    endpoint_type = getattr(body, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        raise ApiError(
            ErrorCode.mismatched_endpoint_type,
            "This is an endpoint of brokers, and the request is for one of controllers",
        )
    fenced_too = getattr(body, "include_fenced_brokers", False)
    rows: list[dict[str, Any]] = []
    for broker_id, known in sorted(image.brokers.items()):
        endpoint = known.endpoint(request.peer.listener)
        if endpoint is not None and (fenced_too or not known.fenced):
            rows.append(
                {
                    "broker_id": broker_id,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "rack": known.rack,
                    "is_fenced": known.fenced,
                }
            )
    return {
        "error_code": ErrorCode.none,
        "endpoint_type": _BROKERS,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.controller_id,
        "brokers": rows,
        "cluster_authorized_operations": operations.allowed(
            operations.CLUSTER, body.include_cluster_authorized_operations
        ),
    }
