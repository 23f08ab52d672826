"""The ShareGroupHeartbeat request v1, and its validation (KIP-932)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.group.modern.membership import LEAVE_EPOCH
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.coordinator.group.share.share_group import ShareGroupMember


class ShareGroupHeartbeatRequest(NamedTuple):
    """ShareGroupHeartbeat. None means no change since the last heartbeat."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""
    #: The connection of the request; empty if its loss has no meaning.
    connection_id: str = ""
    principal: str = ""


def apply_request(
    member: ShareGroupMember, request: ShareGroupHeartbeatRequest
) -> ShareGroupMember:
    """The member with the fields that the request sets."""
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else names,
    )


def check(request: ShareGroupHeartbeatRequest) -> None:
    """Raises INVALID_REQUEST for an invalid request."""
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
