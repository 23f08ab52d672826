"""Heartbeat: extend the session of a classic member. The response has the state of a rebalance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.classic_requests import HeartbeatRequest
from shoal.coordinator.group.groups import code
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    if not body.group_id:
        return code(ErrorCode.invalid_group_id)
    heartbeat = HeartbeatRequest(
        body.group_id,
        body.generation_id,
        body.member_id,
        getattr(body, "group_instance_id", None),
    )
    return broker.groups.submit(
        body.group_id,
        lambda shard, now_ms, token: shard.classic.heartbeat(heartbeat, now_ms, token),
    )


def refuse(_request: Request, error: ErrorCode, _message: str | None) -> Body:
    """While the group is loading, heartbeats succeed: no session can expire."""
    loading = error is ErrorCode.coordinator_load_in_progress
    return code(ErrorCode.none if loading else error)
