"""ConsumerGroupDescribe: consumer groups with their members and assignments (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.handlers.describe_groups import GROUP_OPERATIONS, NOT_ASKED
from shoal.server.network.responses import Outcome, combined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.coordinator.contract import Result, Token
    from shoal.coordinator.group.shard import GroupShard
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request


def handle(broker: Broker, request: Request) -> Answer:
    return described(broker, request, "consumer")


def refuse(request: Request, code: ErrorCode, message: str | None) -> Body:
    """The error for every group; also for ShareGroupDescribe."""
    error = ApiError(code, message)
    return {"groups": [_row(group_id, error, NOT_ASKED) for group_id in request.body.group_ids]}


def described(broker: Broker, request: Request, kind: str) -> Answer:
    """Describe the requested groups, by the kind of that name in their shards; also for
    ShareGroupDescribe."""
    body = request.body
    replies = [
        broker.groups.submit(group_id, _describe(kind, group_id)) for group_id in body.group_ids
    ]
    operations = GROUP_OPERATIONS if body.include_authorized_operations else NOT_ASKED

    def answer(outcomes: list[Outcome]) -> Body:
        rows = [
            _row(group_id, outcome, operations)
            for group_id, outcome in zip(body.group_ids, outcomes, strict=True)
        ]
        return {"groups": rows}

    return combined(replies, answer)


def _describe(kind: str, group_id: str) -> Any:
    def decide(shard: GroupShard, _now_ms: int, token: Token) -> Result:
        return getattr(shard, kind).describe(group_id, token)

    return decide


def _row(group_id: str, outcome: Outcome, operations: int) -> Mapping[str, Any]:
    if not group_id:
        return {"error_code": ErrorCode.invalid_group_id, "group_id": group_id}
    if isinstance(outcome, ApiError):
        return {
            "error_code": outcome.code,
            "error_message": outcome.message,
            "group_id": group_id,
        }
    return {**outcome, "authorized_operations": operations}
