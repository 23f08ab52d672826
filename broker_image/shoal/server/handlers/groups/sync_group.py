"""SyncGroup: the leader sends the assignment, and each member gets its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.classic.requests import SyncGroupRequest
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

NAMES_PROTOCOL_SINCE = 5


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.SyncGroupResponse]:
    body = request.body
    if not body.group_id:
        return {"error_code": ErrorCode.invalid_group_id}
    protocol_type = getattr(body, "protocol_type", None)
    protocol_name = getattr(body, "protocol_name", None)
    if request.version >= NAMES_PROTOCOL_SINCE and None in (protocol_type, protocol_name):
        # Version 5 requires them, so that a mismatch is detected (KIP-559).
        return {"error_code": ErrorCode.inconsistent_group_protocol}
    sync = SyncGroupRequest(
        body.group_id,
        body.generation_id,
        body.member_id,
        getattr(body, "group_instance_id", None),
        protocol_type,
        protocol_name,
        {a.member_id: a.assignment for a in body.assignments},
    )
    return broker.groups.submit(
        body.group_id, lambda shard, now_ms, token: shard.classic.sync(sync, now_ms, token)
    )
