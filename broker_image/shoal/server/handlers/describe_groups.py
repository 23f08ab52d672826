"""DescribeGroups: classic groups with their members. A group that does not exist is Dead. Since
version 6 it has an error as well (KIP-1043)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import Reply, Result, Token
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.network.responses import Outcome, combined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.coordinator.group.shard import GroupShard
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

NOT_FOUND_SINCE = 6
#: Read, delete, describe, describe configs, alter configs, as bits of AclOperation's numbers.
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
NOT_ASKED = -(1 << 31)


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    replies = [broker.groups.submit(group_id, _describe(group_id)) for group_id in body.groups]
    asked = getattr(body, "include_authorized_operations", False)
    operations = GROUP_OPERATIONS if asked else NOT_ASKED

    def answer(outcomes: list[Outcome]) -> Body:
        rows = [
            _row(group_id, outcome, request.version, operations)
            for group_id, outcome in zip(body.groups, outcomes, strict=True)
        ]
        return {"groups": rows}

    return combined(replies, answer)


def _describe(group_id: str) -> Any:
    def decide(shard: GroupShard, _now_ms: int, token: Token) -> Result:
        return Result((), (Reply(token, shard.describe_classic(group_id)),))

    return decide


def _row(group_id: str, outcome: Outcome, version: int, operations: int) -> Mapping[str, Any]:
    if isinstance(outcome, ApiError):
        return {"error_code": outcome.code, "group_id": group_id}
    row = dict(outcome)
    if row["error_code"] is ErrorCode.group_id_not_found:
        if version < NOT_FOUND_SINCE:
            row["error_code"] = ErrorCode.none
    else:
        row["authorized_operations"] = operations
    return row
