"""LeaveGroup: a member leaves, or an admin client removes members in a batch (KIP-345)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.classic.requests import LeaveGroupRequest, LeavingMember
from shoal.protocol.errors import ErrorCode
from shoal.server.network.responses import map_reply

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

BATCHES_SINCE = 3


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.LeaveGroupResponse]:
    body = request.body
    if not body.group_id:
        return {"error_code": ErrorCode.invalid_group_id}
    batch = request.version >= BATCHES_SINCE
    members = (
        [
            LeavingMember(m.member_id, m.group_instance_id, getattr(m, "reason", None))
            for m in body.members
        ]
        if batch
        else [LeavingMember(body.member_id)]
    )
    leave = LeaveGroupRequest(body.group_id, members)
    reply = broker.groups.submit(
        body.group_id, lambda shard, now_ms, token: shard.classic.leave(leave, now_ms, token)
    )
    return reply if batch else map_reply(reply, _unwrap_single)


def _unwrap_single(response: responses.LeaveGroupResponse) -> responses.LeaveGroupResponse:
    """The response to a version of the request that has only one member."""
    return {"error_code": response["error_code"] or response["members"][0]["error_code"]}
