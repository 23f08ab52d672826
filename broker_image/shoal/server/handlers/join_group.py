"""JoinGroup: join a classic group. It is answered when the rebalance completes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.classic import refused_join
from shoal.coordinator.group.classic_requests import JoinRequest
from shoal.protocol import codec
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    if not body.group_id:
        return refused_join(body.member_id, ErrorCode.invalid_group_id)
    client_id = request.header.client_id or ""
    instance_id = getattr(body, "group_instance_id", None)
    session_ms = codec.ms(body.session_timeout)
    join = JoinRequest(
        body.group_id,
        body.member_id,
        instance_id,
        client_id,
        f"/{request.peer.host}",
        body.protocol_type,
        {p.name: p.metadata for p in body.protocols},
        session_ms,
        # Version 0 has no rebalance timeout: the session timeout takes its place.
        codec.ms(body.rebalance_timeout) if request.version >= 1 else session_ms,
        f"{client_id if instance_id is None else instance_id}-{broker.node.system.uuid()}",
        request.version,
        getattr(body, "reason", None),
    )
    return broker.groups.submit(
        body.group_id, lambda shard, now_ms, token: shard.classic.join(join, now_ms, token)
    )


def refuse(request: Request, code: ErrorCode, _message: str | None) -> Body:
    return refused_join(request.body.member_id, code)
