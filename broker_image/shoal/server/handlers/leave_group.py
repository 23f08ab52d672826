"""LeaveGroup: a member leaves, or an admin client removes members in a batch (KIP-345)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.classic_requests import Leaver, LeaveRequest
from shoal.coordinator.group.groups import code
from shoal.protocol.errors import ErrorCode
from shoal.server.network.responses import mapped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request

BATCHES_SINCE = 3


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    if not body.group_id:
        return code(ErrorCode.invalid_group_id)
    batch = request.version >= BATCHES_SINCE
    members = (
        [Leaver(m.member_id, m.group_instance_id, getattr(m, "reason", None)) for m in body.members]
        if batch
        else [Leaver(body.member_id)]
    )
    leave = LeaveRequest(body.group_id, members)
    reply = broker.groups.submit(
        body.group_id, lambda shard, now_ms, token: shard.classic.leave(leave, now_ms, token)
    )
    return reply if batch else mapped(reply, _one)


def _one(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """The response to a version of the request that has only one member."""
    return code(response["error_code"] or response["members"][0]["error_code"])
