"""DescribeGroups: classic groups with their members. A group that does not exist is Dead. Since
version 6 it has an error as well (KIP-1043)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization, authorized_operations
from shoal.server.network.responses import Outcome, combine_replies, make_refusal

if TYPE_CHECKING:
    from shoal.coordinator.group.shard import GroupShard
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

NOT_FOUND_SINCE = 6


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.DescribeGroupsResponse]:
    body = request.body
    permits = authorization.make_checker(broker, request, ResourceType.GROUP)
    replies = [
        broker.groups.submit(group_id, _describe(group_id))
        if permits(group_id)
        else make_refusal(ErrorCode.group_authorization_failed)
        for group_id in body.groups
    ]
    wants_operations = getattr(body, "include_authorized_operations", False)

    def answer(outcomes: list[Outcome]) -> responses.DescribeGroupsResponse:
        results = [
            _build_result(group_id, outcome, request.version)
            for group_id, outcome in zip(body.groups, outcomes, strict=True)
        ]
        for result in results:
            if wants_operations and result["error_code"] is ErrorCode.none:
                result["authorized_operations"] = authorized_operations.get_group_operations(
                    broker, request, result["group_id"]
                )
        return {"groups": results}

    return combine_replies(replies, answer)


def _describe(group_id: str) -> Any:
    def decide(shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
        return CoordinatorResult((), (Reply(token, shard.describe_classic(group_id)),))

    return decide


def _build_result(
    group_id: str, outcome: Outcome, version: int
) -> responses.DescribeGroupsDescribedGroup:
    if isinstance(outcome, ApiError):
        return {"error_code": outcome.code, "group_id": group_id}
    result = cast("responses.DescribeGroupsDescribedGroup", dict(outcome))
    if result["error_code"] is ErrorCode.group_id_not_found and version < NOT_FOUND_SINCE:
        result["error_code"] = ErrorCode.none
    return result
