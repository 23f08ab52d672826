"""DescribeCluster: the cluster's id, controller and brokers (KIP-700, KIP-919, KIP-1073)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import authorization
from shoal.server.handlers import authorized_operations as operations

if TYPE_CHECKING:
    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

_BROKERS, _CONTROLLERS = 1, 2


def handle(broker: Broker, request: Request) -> responses.DescribeClusterResponse:
    body, image = request.body, broker.image
    endpoint_type = getattr(body, "endpoint_type", _BROKERS)
    of_controllers = broker.served.get_kind(request.peer.listener) is Listeners.CONTROLLER
    if (endpoint_type == _CONTROLLERS) != of_controllers:
        served_kind, requested_kind = (
            ("controllers", "brokers") if of_controllers else ("brokers", "controllers")
        )
        raise ApiError(
            # Version 0 does not have the other error code.
            ErrorCode.mismatched_endpoint_type if request.version else ErrorCode.invalid_request,
            f"This is an endpoint of {served_kind}, and the request is for one of {requested_kind}",
        )
    if of_controllers:
        authorization.check_at_controllers(broker, request)
    fenced_too = getattr(body, "include_fenced_brokers", False)
    results: list[responses.DescribeClusterBroker] = []
    for broker_id, registration in sorted(image.brokers.items()):
        endpoint = registration.find_endpoint(request.peer.listener)
        if endpoint is not None and (fenced_too or not registration.fenced):
            results.append(
                {
                    "broker_id": broker_id,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "rack": registration.rack,
                    "is_fenced": registration.fenced,
                }
            )
    controller_id = broker.controller_id
    if of_controllers:
        results = _list_controllers(broker)
        leader_id = broker.quorum.leader_id
        controller_id = -1 if leader_id is None else leader_id
    return {
        "error_code": ErrorCode.none,
        "endpoint_type": endpoint_type,
        "cluster_id": broker.cluster_id,
        "controller_id": controller_id,
        "brokers": results,
        "cluster_authorized_operations": operations.get_cluster_operations(broker, request)
        if body.include_cluster_authorized_operations
        else operations.NOT_ASKED,
    }


def _list_controllers(broker: Broker) -> list[responses.DescribeClusterBroker]:
    """The voters and their endpoints for controllers (KIP-919)."""
    return [
        {"broker_id": voter.key.id, "host": e.host, "port": e.port, "rack": None}
        for voter in broker.quorum.raft.voters.latest
        for e in voter.endpoints[:1]
    ]
