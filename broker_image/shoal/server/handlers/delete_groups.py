"""DeleteGroups: delete empty groups of any type, with all their state (KIP-229)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.network.responses import Outcome, combined

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request


def handle(broker: Broker, request: Request) -> Answer:
    names = list(dict.fromkeys(request.body.groups_names))
    replies = [broker.groups.delete(group_id) for group_id in names]

    def answer(outcomes: list[Outcome]) -> Body:
        rows = [
            {"group_id": group_id, "error_code": _code(outcome)}
            for group_id, outcome in zip(names, outcomes, strict=True)
        ]
        return {"results": rows}

    return combined(replies, answer)


def _code(outcome: Outcome) -> ErrorCode:
    return outcome.code if isinstance(outcome, ApiError) else ErrorCode.none
