"""The ConsumerGroupHeartbeat request v0-1, and its validation (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.group.key_ranges.key_range_loads import NO_REPORT, Report
from shoal.coordinator.group.key_ranges.key_range_loads import check as check_loads
from shoal.coordinator.group.key_ranges.key_slots import NO_SLICES, Slices
from shoal.coordinator.group.modern.membership import LEAVE_EPOCH
from shoal.coordinator.group.modern.static_members import LEFT_STATIC_MEMBER_EPOCH
from shoal.metadata import patterns
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.features import KEY_HASH_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.coordinator.group.assignment import Assignment
    from shoal.coordinator.group.consumer.consumer_group import ConsumerGroupMember


#: Whether a topic may be described, by its name.
Describes = Callable[[str], bool]


class ConsumerGroupHeartbeatRequest(NamedTuple):
    """ConsumerGroupHeartbeat. None means no change since the last heartbeat.

    `describes` decides which topics the member may describe; None for all.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: frozenset[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    api_version: int = 1
    describes: Describes | None = None
    #: The version of the hash of keys, of a member that may share partitions; else 0.
    key_hash_version: int = 0
    #: The partitions that it owns in part, if `owned` is not None.
    owned_slices: Slices = NO_SLICES
    connection_id: str = ""
    #: How many records it got of partitions that it owns in part, since its last report.
    loads: Report = NO_REPORT

    @property
    def leaves(self) -> bool:
        return self.member_epoch in (LEAVE_EPOCH, LEFT_STATIC_MEMBER_EPOCH)

    @property
    def is_full(self) -> bool:
        """Whether all fields are set, as after an error. The response then has the assignment."""
        return (
            self.rebalance_timeout_ms != -1
            and (self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None)
            and self.owned is not None
        )


def apply_request(
    member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupMember:
    """The member with the fields that the request sets."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=_coalesce(request.instance_id, member.instance_id),
        rack_id=_coalesce(request.rack_id, member.rack_id),
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else names,
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        server_assignor=_coalesce(request.server_assignor, member.server_assignor),
        classic=None,
        key_hash_version=request.key_hash_version,
    )


def _coalesce(value: str | None, default: str | None) -> str | None:
    return default if value is None else value


def check(request: ConsumerGroupHeartbeatRequest, assignors: Sequence[str]) -> None:
    """Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for an invalid request."""
    epoch = request.member_epoch
    needs_id = request.api_version >= 1 or epoch > 0 or epoch == LEAVE_EPOCH
    for name, value in (
        ("MemberId", request.member_id if needs_id else None),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise ApiError(ErrorCode.invalid_request, f"{name} can't be empty.")
    if epoch == 0:
        _check_join(request)
    elif epoch == LEFT_STATIC_MEMBER_EPOCH and request.instance_id is None:
        raise ApiError(ErrorCode.invalid_request, "InstanceId can't be null.")
    elif epoch < LEFT_STATIC_MEMBER_EPOCH:
        raise ApiError(ErrorCode.invalid_request, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )
    if request.key_hash_version not in (0, KEY_HASH_VERSION):
        raise ApiError(
            ErrorCode.unsupported_version,
            f"The member hashes keys by version {request.key_hash_version}, this broker by version "
            f"{KEY_HASH_VERSION}. Upgrade the older one.",
        )
    check_loads(request.loads)
    if request.subscribed_topic_regex:
        patterns.check_pattern(request.subscribed_topic_regex)


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        reason = "RebalanceTimeoutMs must be provided in first request."
    elif request.owned is None or request.owned or request.owned_slices:
        reason = "TopicPartitions must be empty when (re-)joining."
    elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        reason = (
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )
    else:
        return
    raise ApiError(ErrorCode.invalid_request, reason)
