"""ConsumerGroupDescribe: consumer groups with their members and assignments (KIP-848)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization, authorized_operations
from shoal.server.network.responses import Outcome, combine_replies, make_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.coordinator.contract import CoordinatorResult, Token
    from shoal.coordinator.group.shard import GroupShard
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.handlers.authorization import Permits
    from shoal.server.network.api import BodyOrFuture, Request


#: The message for a group with topics that the client may not describe.
HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


def handle(
    broker: Broker, request: Request
) -> BodyOrFuture[responses.ConsumerGroupDescribeResponse]:
    return describe_groups(broker, request, "consumer")


def refuse(request: Request, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """The error for every group; also for ShareGroupDescribe and StreamsGroupDescribe."""
    error = ApiError(code, message)
    return {"groups": [_build_result(group_id, error) for group_id in request.body.group_ids]}


def _find_assigned_topics(result: Mapping[str, Any]) -> set[str]:
    """The names of the topics in the assignments of a described group."""
    assignments = [
        member[field]
        for member in result.get("members", ())
        for field in ("assignment", "target_assignment")
        if member.get(field) is not None
    ]
    return {t["topic_name"] for assignment in assignments for t in assignment["topic_partitions"]}


def describe_groups(
    broker: Broker,
    request: Request,
    kind: str,
    *,
    topics: Callable[[Mapping[str, Any]], set[str]] = _find_assigned_topics,
    hidden: str = HIDDEN,
    also: Mapping[str, Any] = MappingProxyType({}),
) -> BodyOrFuture[Any]:
    """Describe the requested groups, by the kind of that name in their shards; also for
    ShareGroupDescribe and StreamsGroupDescribe.

    A group is refused with the message `hidden` unless the client may describe all its `topics`.
    `also` has fields of each group that is described.
    """
    body = request.body
    permits = authorization.make_checker(broker, request, ResourceType.GROUP)
    describes = authorization.make_checker(broker, request, ResourceType.TOPIC)
    replies = [
        broker.groups.submit(group_id, _describe(kind, group_id))
        if permits(group_id)
        else make_refusal(ErrorCode.group_authorization_failed)
        for group_id in body.group_ids
    ]

    def answer(outcomes: list[Outcome]) -> dict[str, Any]:
        results = [
            _mask_unauthorized(_build_result(group_id, outcome), topics, describes, hidden)
            for group_id, outcome in zip(body.group_ids, outcomes, strict=True)
        ]
        for result in results:
            if result["error_code"] is not ErrorCode.none:
                continue
            result |= also
            if body.include_authorized_operations:
                result["authorized_operations"] = authorized_operations.get_group_operations(
                    broker, request, result["group_id"]
                )
        if not getattr(body, "key_ranges_wanted", False):
            for result in results:
                for member in result.get("members", ()):
                    member.pop("key_ranges", None)
        return {"groups": results}

    return combine_replies(replies, answer)


def _describe(kind: str, group_id: str) -> Any:
    def decide(shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
        return getattr(shard, kind).describe(group_id, token)

    return decide


def _mask_unauthorized(
    result: dict[str, Any],
    topics: Callable[[Mapping[str, Any]], set[str]],
    describes: Permits,
    hidden: str,
) -> dict[str, Any]:
    """Refuse a group with topics that the client may not describe."""
    if all(map(describes, sorted(topics(result)))):
        return result
    return _build_result(result["group_id"], ApiError(ErrorCode.topic_authorization_failed, hidden))


def _build_result(group_id: str, outcome: Outcome) -> dict[str, Any]:
    code = outcome.code if isinstance(outcome, ApiError) else ErrorCode.none
    if not group_id and code is not ErrorCode.group_authorization_failed:
        return {"error_code": ErrorCode.invalid_group_id, "group_id": group_id}
    if isinstance(outcome, ApiError):
        return {
            "error_code": outcome.code,
            "error_message": outcome.message,
            "group_id": group_id,
        }
    return dict(outcome)
