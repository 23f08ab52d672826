"""DeleteGroups: delete empty groups of any type, with all their state (KIP-229)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import Outcome, combine_replies

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.DeleteGroupsResponse]:
    names = list(dict.fromkeys(request.body.groups_names))
    permits = authorization.make_checker(broker, request, ResourceType.GROUP)
    permitted = [group_id for group_id in names if permits(group_id)]
    replies = [broker.groups.delete(group_id) for group_id in permitted]

    def answer(outcomes: list[Outcome]) -> responses.DeleteGroupsResponse:
        codes = dict(zip(permitted, map(_get_code, outcomes), strict=True))
        refused = ErrorCode.group_authorization_failed
        results: list[responses.DeleteGroupsDeletableGroupResult] = [
            {"group_id": group_id, "error_code": codes.get(group_id, refused)} for group_id in names
        ]
        return {"results": results}

    return combine_replies(replies, answer)


def _get_code(outcome: Outcome) -> ErrorCode:
    return outcome.code if isinstance(outcome, ApiError) else ErrorCode.none
