"""Heartbeat: extend the session of a classic member. The response has the state of a rebalance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.classic.requests import HeartbeatRequest
from shoal.coordinator.group.groups import make_error_response
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.HeartbeatResponse]:
    body = request.body
    if not body.group_id:
        return make_error_response(ErrorCode.invalid_group_id)
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


def refuse(
    _request: Request, error: ErrorCode, _message: str | None
) -> responses.HeartbeatResponse:
    """While the group is loading, heartbeats succeed: no session can expire."""
    loading = error is ErrorCode.coordinator_load_in_progress
    return make_error_response(ErrorCode.none if loading else error)
