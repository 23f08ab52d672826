"""DeleteGroups: delete empty groups of any type, with all their state (KIP-229)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import Outcome, combined

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request


def handle(broker: Broker, request: Request) -> Answer:
    names = list(dict.fromkeys(request.body.groups_names))
    permits = authorization.each(broker, request, ResourceType.GROUP)
    permitted = [group_id for group_id in names if permits(group_id)]
    replies = [broker.groups.delete(group_id) for group_id in permitted]

    def answer(outcomes: list[Outcome]) -> Body:
        codes = dict(zip(permitted, map(_code, outcomes), strict=True))
        refused = ErrorCode.group_authorization_failed
        results = [
            {"group_id": group_id, "error_code": codes.get(group_id, refused)} for group_id in names
        ]
        return {"results": results}

    return combined(replies, answer)


def _code(outcome: Outcome) -> ErrorCode:
    return outcome.code if isinstance(outcome, ApiError) else ErrorCode.none
