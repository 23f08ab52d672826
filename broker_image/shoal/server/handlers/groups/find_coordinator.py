"""FindCoordinator: the coordinators of groups, transactional ids and share partitions.

KIP-699 has several keys in a request, KIP-932 the keys of share partitions. The internal topic is
created on the first request, which waits for it. So a new group starts without
COORDINATOR_NOT_AVAILABLE and a back-off.

A broker whose writes for a key are not committed in time does not return itself: it may be cut off,
and another broker may be the coordinator. A broker that is cut off also closes the connection,
because librdkafka repeats the request on the connection that it used last.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from shoal.log.uuids import parse_uuid
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import Operation, ResourceType
from shoal.server.authorization import REFUSED_WITH, build_cluster_permission
from shoal.server.handlers import authorization
from shoal.server.network.responses import combine_replies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.coordinators.service import CoordinatorService
    from shoal.server.network.api import BodyOrFuture, Request

#: The types of the resources that keys name. Keys of share partitions need the cluster's.
_RESOURCES = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
BATCHES_SINCE = 4
SHARE_SINCE = 6


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.FindCoordinatorResponse]:
    return broker.unreachable_leaders.answer(_answer_now, broker, request)


def _answer_now(
    broker: Broker, request: Request
) -> BodyOrFuture[responses.FindCoordinatorResponse]:
    body = request.body
    batch = request.version >= BATCHES_SINCE
    keys = body.coordinator_keys if batch else (body.key,)
    kind = getattr(body, "key_type", KeyType.GROUP)
    if kind == KeyType.SHARE and request.version >= SHARE_SINCE:
        broker.access.require(request, build_cluster_permission(Operation.CLUSTER_ACTION))

    if broker.replicas.some_cut_off:
        request.peer.close_after_responses()

    def answer(_: object) -> responses.FindCoordinatorResponse:
        results = [_build_result(broker, request, kind, key) for key in keys]
        return _build_response(results, batch=batch)

    service = _find_service(broker, kind)
    creation = service.ensure_topic() if service is not None and keys else None
    return answer(None) if creation is None else combine_replies((creation,), answer)


def _build_response(
    results: Sequence[responses.FindCoordinatorCoordinator], *, batch: bool
) -> responses.FindCoordinatorResponse:
    """Return a response. Before version 4, it has the fields of its only coordinator."""
    if batch:
        return {"coordinators": results}
    (only,) = results
    return {
        "error_code": only["error_code"],
        "error_message": only["error_message"],
        "node_id": only["node_id"],
        "host": only["host"],
        "port": only["port"],
    }


def _build_result(
    broker: Broker, request: Request, kind: int, key: str
) -> responses.FindCoordinatorCoordinator:
    try:
        resource = _RESOURCES.get(kind)
        if resource and not authorization.make_checker(broker, request, resource)(key):
            raise ApiError(REFUSED_WITH[resource])
        service = _get_service(broker, request, kind, key)
        node_id = service.find_coordinator(key)
        if node_id == broker.node_id and service.is_stuck(key):
            raise ApiError(ErrorCode.coordinator_not_available)
        coordinator = broker.image.brokers.get(node_id)
        endpoint = None if coordinator is None else coordinator.find_endpoint(request.peer.listener)
        if endpoint is None:
            raise ApiError(ErrorCode.coordinator_not_available)
    except ApiError as refused:
        return {
            "key": key,
            "error_code": refused.code,
            "error_message": refused.message,
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    return {
        "key": key,
        "error_code": ErrorCode.none,
        "error_message": "",
        "node_id": node_id,
        "host": endpoint.host,
        "port": endpoint.port,
    }


def _get_service(broker: Broker, request: Request, kind: int, key: str) -> CoordinatorService[Any]:
    """The coordinator of a type of keys. Raises `ApiError` for an invalid key."""
    if kind == KeyType.SHARE:
        if request.version < SHARE_SINCE:
            message = f"Share coordinators need FindCoordinator version {SHARE_SINCE} or newer."
            raise ApiError(ErrorCode.invalid_request, message)
        _check_share_key(key)
    service = _find_service(broker, kind)
    if service is None:
        name = KeyType(kind).name.lower() if kind in list(KeyType) else f"type {kind}"
        raise ApiError(ErrorCode.invalid_request, f"This broker coordinates no {name} keys.")
    return service


def _find_service(broker: Broker, kind: int) -> CoordinatorService[Any] | None:
    return next((c for c in broker.coordinators if c.key_type == kind), None)


def _check_share_key(key: str) -> None:
    """Check a share key, `group:topic id:partition`. Group ids may have colons."""
    group_id, _, topic_id = key.rpartition(":")[0].rpartition(":")
    partition = key.rpartition(":")[2]
    if not group_id or parse_uuid(topic_id) is None or not partition.isdecimal():
        message = f"'{key}' is not a share coordinator key (group:topicId:partition)."
        raise ApiError(ErrorCode.invalid_request, message)


def refuse(
    request: Request, code: ErrorCode, message: str | None
) -> responses.FindCoordinatorResponse:
    """The error of the whole request. From version 4 on, each key has it."""
    keys = request.body.coordinator_keys if request.version >= BATCHES_SINCE else ("",)
    results: list[responses.FindCoordinatorCoordinator] = [
        {
            "key": key,
            "error_code": code,
            "error_message": message,
            "node_id": -1,
            "host": "",
            "port": -1,
        }
        for key in keys
    ]
    return _build_response(results, batch=request.version >= BATCHES_SINCE)
