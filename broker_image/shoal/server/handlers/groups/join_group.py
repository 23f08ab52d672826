"""JoinGroup: join a classic group. It is answered when the rebalance completes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.classic.classic_group import build_join_error
from shoal.coordinator.group.classic.requests import JoinGroupRequest
from shoal.protocol import codec
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.JoinGroupResponse]:
    body = request.body
    if not body.group_id:
        return build_join_error(body.member_id, ErrorCode.invalid_group_id)
    client_id = request.header.client_id or ""
    instance_id = getattr(body, "group_instance_id", None)
    session_ms = codec.to_ms(body.session_timeout)
    join = JoinGroupRequest(
        body.group_id,
        body.member_id,
        instance_id,
        client_id,
        f"/{request.peer.host}",
        body.protocol_type,
        {p.name: p.metadata for p in body.protocols},
        session_ms,
        # Version 0 has no rebalance timeout: the session timeout takes its place.
        codec.to_ms(body.rebalance_timeout) if request.version >= 1 else session_ms,
        f"{client_id if instance_id is None else instance_id}-{broker.node.system.make_uuid()}",
        request.version,
        getattr(body, "reason", None),
    )
    return broker.groups.submit(
        body.group_id, lambda shard, now_ms, token: shard.classic.join(join, now_ms, token)
    )


def refuse(request: Request, code: ErrorCode, _message: str | None) -> responses.JoinGroupResponse:
    return build_join_error(request.body.member_id, code)
