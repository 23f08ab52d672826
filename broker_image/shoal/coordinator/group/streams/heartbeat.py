"""The StreamsGroupHeartbeat request, and its validation (KIP-1071)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.group.modern.membership import LEAVE_EPOCH
from shoal.coordinator.group.modern.static_members import LEFT_STATIC_MEMBER_EPOCH
from shoal.coordinator.group.streams import topology
from shoal.coordinator.group.streams.tasks import TaskSets
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.coordinator.group.streams.internal_topics import ConfiguredTopology
    from shoal.coordinator.group.streams.streams_group import StreamsGroupMember, UserEndpoint
    from shoal.coordinator.group.streams.tasks import Tasks


class StreamsGroupHeartbeatRequest(NamedTuple):
    """StreamsGroupHeartbeat. None means no change since the last heartbeat.

    `topology` is the struct of the request.
    """

    group_id: str
    member_id: str
    member_epoch: int
    endpoint_information_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Mapping[str, Any] | None = None
    active_tasks: Tasks | None = None
    standby_tasks: Tasks | None = None
    warmup_tasks: Tasks | None = None
    process_id: str | None = None
    user_endpoint: UserEndpoint | None = None
    client_tags: Mapping[str, str] | None = None
    shutdown_application: bool = False
    client_id: str = ""
    client_host: str = ""
    #: The connection of the request; empty if its loss has no meaning.
    connection_id: str = ""

    @property
    def owned(self) -> TaskSets | None:
        """The tasks that the member owns, if it lists them."""
        active, standby, warmup = self.active_tasks, self.standby_tasks, self.warmup_tasks
        if active is None or standby is None or warmup is None:
            return None
        return TaskSets(active, standby, warmup)

    @property
    def joins(self) -> bool:
        return self.member_epoch == 0

    @property
    def is_full(self) -> bool:
        """Whether the member sends all fields, as it does when it joins and after an error."""
        return self.rebalance_timeout_ms != -1

    @property
    def leaves(self) -> bool:
        return self.member_epoch in (LEAVE_EPOCH, LEFT_STATIC_MEMBER_EPOCH)


def apply_request(
    member: StreamsGroupMember, request: StreamsGroupHeartbeatRequest
) -> StreamsGroupMember:
    """The member with the fields that the request sets."""

    def coalesce(value: Any, old: Any) -> Any:
        return old if value is None else value

    timeout_ms = request.rebalance_timeout_ms
    sent, endpoint = request.topology, request.user_endpoint
    return replace(
        member,
        instance_id=coalesce(request.instance_id, member.instance_id),
        rack_id=coalesce(request.rack_id, member.rack_id),
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=member.topology_epoch if sent is None else sent["epoch"],
        process_id=coalesce(request.process_id, member.process_id),
        user_endpoint=endpoint if request.joins else coalesce(endpoint, member.user_endpoint),
        client_tags=coalesce(request.client_tags, member.client_tags),
    )


def check(request: StreamsGroupHeartbeatRequest) -> None:
    """Raises INVALID_REQUEST or STREAMS_INVALID_TOPOLOGY for an invalid request."""
    _check_supported(request)
    for name, value in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise _make_invalid_error(f"{name} can't be empty.")
    if request.joins:
        _check_join(request)
    elif request.member_epoch == LEFT_STATIC_MEMBER_EPOCH and request.instance_id is None:
        raise _make_invalid_error("InstanceId can't be null.")
    elif request.member_epoch < LEFT_STATIC_MEMBER_EPOCH:
        raise _make_invalid_error(
            f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2."
        )
    sides = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if any(side is not None for side in sides) and any(side is None for side in sides):
        raise _make_invalid_error("If one task-type is non-null, all must be non-null.")
    if not request.joins and request.topology is not None:
        raise _make_invalid_error("Topology can only be provided when (re-)joining.")


def _check_supported(request: StreamsGroupHeartbeatRequest) -> None:
    for subtopology in () if request.topology is None else request.topology["subtopologies"]:
        if subtopology["source_topic_regex"]:
            raise _make_invalid_error(
                "Regular expressions for source topics are not supported yet."
            )


def _check_join(request: StreamsGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _make_invalid_error("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            raise _make_invalid_error(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise _make_invalid_error("Topology must be non-null when (re-)joining.")
    topology.check(request.topology)


def check_tasks(request: StreamsGroupHeartbeatRequest, configured: ConfiguredTopology) -> None:
    """Raises INVALID_REQUEST if the member lists a task that does not exist."""
    for tasks in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        for subtopology_id, partitions in (tasks or {}).items():
            subtopology = configured.subtopologies.get(subtopology_id)
            if subtopology is None:
                raise _make_invalid_error(
                    f"Subtopology {subtopology_id} does not exist in the topology."
                )
            for partition in sorted(partitions):
                if not 0 <= partition < subtopology.tasks:
                    raise _make_invalid_error(
                        f"Task {partition} for subtopology {subtopology_id} is invalid. Number of "
                        f"tasks for this subtopology: {subtopology.tasks}"
                    )


def _make_invalid_error(message: str) -> ApiError:
    return ApiError(ErrorCode.invalid_request, message)
