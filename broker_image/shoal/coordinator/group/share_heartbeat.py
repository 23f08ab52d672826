"""ShareGroupHeartbeat v1: what it tells of a member, and when it makes no sense (KIP-932)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from shoal.coordinator.group.share_group import Member
from shoal.protocol.errors import ApiError, ErrorCode

LEAVE_EPOCH = -1


class HeartbeatRequest(NamedTuple):
    """ShareGroupHeartbeat. None means: as in the last heartbeat."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""
    #: The connection that the request came over; empty if its loss tells nothing.
    connection_id: str = ""


def updated(member: Member, request: HeartbeatRequest) -> Member:
    """The member with what the request tells of it."""
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else names,
    )


def check(request: HeartbeatRequest) -> None:
    """Raises INVALID_REQUEST for a request that makes no sense."""
    for name, value in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise ApiError(ErrorCode.invalid_request, f"{name} can't be empty.")
    if request.member_epoch == 0 and not request.subscribed_topic_names:
        raise ApiError(
            ErrorCode.invalid_request, "SubscribedTopicNames must be set in first request."
        )
    if request.member_epoch < LEAVE_EPOCH:
        raise ApiError(ErrorCode.invalid_request, "MemberEpoch is invalid.")
