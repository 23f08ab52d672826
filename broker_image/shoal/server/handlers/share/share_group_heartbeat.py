"""ShareGroupHeartbeat: join a share group, remain in it and leave it (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.share.membership import ShareGroupHeartbeatRequest
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    import asyncio

    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(
    broker: Broker, request: Request
) -> asyncio.Future[responses.ShareGroupHeartbeatResponse]:
    body = request.body
    names = body.subscribed_topic_names
    authorization.check_subscription(broker, request, names)
    heartbeat = ShareGroupHeartbeatRequest(
        body.group_id,
        body.member_id,
        body.member_epoch,
        body.rack_id,
        None if names is None else frozenset(names),
        request.header.client_id or "",
        f"/{request.peer.host}",
        request.peer.connection_id,
        request.peer.principal,
    )
    reply = broker.groups.submit(
        body.group_id,
        lambda shard, now_ms, token: shard.share.heartbeat(heartbeat, now_ms, token),
    )
    broker.share.members.watch(request.peer, heartbeat, reply)
    return reply
