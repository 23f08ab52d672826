"""Decisions about the members of streams groups (KIP-1071).

A heartbeat has five steps, and each may write records. It updates the member. It sets the topology
of a new group, and compares it with the topics of the cluster. It bumps the group epoch if members,
topics or assignment configs have changed. It computes a target assignment if that is behind the
group epoch (`target_assignment`). It moves the member one step towards its target
(`reconciliation`). A member is fenced when its session expires, when it does not revoke tasks
within its rebalance timeout, or when its connection was lost and no heartbeat comes over another
one within the heartbeat interval and `shoal.group.streams.connection.lost.grace.ms`.

The response names the internal topics that are missing; the server creates them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.classic.classic_group import ClassicGroup
from shoal.coordinator.group.groups import ResultDraft, ShardContext
from shoal.coordinator.group.modern.membership import (
    WAITING_HEARTBEAT_INTERVAL_MS,
    ModernGroupManager,
)
from shoal.coordinator.group.modern.static_members import (
    LEFT_STATIC_MEMBER_EPOCH,
    make_unreleased_error,
)
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.group.streams import endpoints, sticky_assignor
from shoal.coordinator.group.streams.heartbeat import (
    StreamsGroupHeartbeatRequest as StreamsGroupHeartbeatRequest,
)
from shoal.coordinator.group.streams.heartbeat import apply_request, check, check_tasks
from shoal.coordinator.group.streams.internal_topics import (
    ConfiguredTopology,
    StatusCode,
    StreamsGroupStatus,
)
from shoal.coordinator.group.streams.reconciliation import StreamsMemberState, is_subset, reconcile
from shoal.coordinator.group.streams.streams_group import (
    NOT_VALIDATED,
    StreamsGroup,
    StreamsGroupMember,
)
from shoal.coordinator.group.streams.target_assignment import (
    INITIAL,
    StreamsTargetAssignments,
    TaskTarget,
)
from shoal.coordinator.group.streams.tasks import encode_task_sets
from shoal.coordinator.group.streams.topology import Topology
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.coordinator.contract import CoordinatorRecord, CoordinatorResult, Token
    from shoal.coordinator.deadlines import Key
    from shoal.protocol.responses import groups as responses

#: The arrays of a response that do not change anything.
UNCHANGED: responses.StreamsGroupHeartbeatResponse = {
    "active_tasks": None,
    "standby_tasks": None,
    "warmup_tasks": None,
    "partitions_by_user_endpoint": None,
}
#: The key of a response with the missing internal topics, which the server removes.
MISSING_TOPICS = "missing_internal_topics"


@dataclass(slots=True)
class StreamsGroupSoftState:
    """The soft state of a group."""

    #: The member that has requested the shutdown of the application.
    shutdown_by: str | None = None
    #: Increments when the tasks of a member with an endpoint change.
    endpoint_epoch: int = 0
    #: The connection of each member's last heartbeat.
    connections: dict[str, str] = field(default_factory=dict)


class StreamsGroupManager(ModernGroupManager[StreamsGroup, StreamsTargetAssignments]):
    """The streams groups of one shard."""

    def __init__(self, context: ShardContext) -> None:
        super().__init__(context, StreamsGroup, StreamsTargetAssignments(context))
        self._soft: defaultdict[str, StreamsGroupSoftState] = defaultdict(StreamsGroupSoftState)
        self.replays[RecordType.STREAMS_GROUP_TOPOLOGY] = self._replay_topology
        #: Removes an empty classic group that becomes a streams group. Set by the shard.
        self.give_up_classic: (
            Callable[[ClassicGroup, ResultDraft], Sequence[CoordinatorRecord]] | None
        ) = None

    # Requests.

    def heartbeat(
        self, request: StreamsGroupHeartbeatRequest, now_ms: int, token: Token
    ) -> CoordinatorResult:
        """StreamsGroupHeartbeat v0-1. Raises `ApiError` to refuse it."""
        check(request)
        if request.leaves:
            return self._leave(request, now_ms, token)
        draft = ResultDraft()
        group = self._find_or_create_group(request, draft)
        previous = self._find_or_create_member(group, request, draft)
        member = apply_request(previous, request)
        changed = _note_member(group, previous, member, request, draft)
        topology = self._resolve_topology(group, request, draft)
        statuses = _build_stale_status(group, member)
        metadata_hash, configured = self._targets.compare(group, topology)
        if configured.is_ready:
            check_tasks(request, configured)
        epoch = self._update_epoch(group, metadata_hash, configured, draft, bump=changed)
        if not group.members:
            self._targets.await_members(group, now_ms)
        target = self._targets.get_member_target(group, member, epoch, configured, draft, now_ms)
        member = self._reconcile(group, member, target, request, draft, now_ms)
        self._targets.save_comparison(group, configured)
        timeout_ms = self._get_config(group, "streams.session.timeout.ms")
        self.extend_session(group, member.member_id, timeout_ms, now_ms)
        self.context.deadlines.cancel(self.make_key("lost", group, member.member_id))
        self._soft[group.group_id].connections[member.member_id] = request.connection_id
        soft = self._get_soft_state(group)
        if request.shutdown_application:
            soft.shutdown_by = soft.shutdown_by or member.member_id
        statuses += [target.delay, configured.problem, _build_shutdown_status(soft)]
        response = self._build_response(group, request, previous, member)
        response |= self._build_endpoints(group, request, previous, member, configured)
        response["status"] = [status.to_wire() for status in statuses if status is not None]
        missing = {MISSING_TOPICS: configured.missing} if configured.missing else {}
        draft.reply(token, {**response, **missing})
        return draft.to_result()

    def _leave(
        self, request: StreamsGroupHeartbeatRequest, now_ms: int, token: Token
    ) -> CoordinatorResult:
        group = self._find(request.group_id)
        member = group.get_named_member(request.member_id, request.instance_id)
        draft = ResultDraft()
        if request.shutdown_application:
            soft = self._soft[group.group_id]
            soft.shutdown_by = soft.shutdown_by or member.member_id
        if request.member_epoch == LEFT_STATIC_MEMBER_EPOCH:
            # It keeps its tasks until it rejoins or its session expires.
            member = replace(member, current=member.current.without_epochs())
            draft.records.append(group.build_current_record(member))
            self.context.deadlines.cancel(self.make_key("rebalance", group, member.member_id))
        else:
            self.expire(group, member.member_id, draft, now_ms)
        response: responses.StreamsGroupHeartbeatResponse = {
            **UNCHANGED,
            "member_id": member.member_id,
            "member_epoch": request.member_epoch,
            "status": (),
        }
        draft.reply(token, response)
        return draft.to_result()

    def on_connection_lost(
        self, group_id: str, member_id: str, connection_id: str, now_ms: int
    ) -> None:
        """The connection of a member's last heartbeat was lost: fence the member unless its next
        heartbeat comes over another one in time. A client connects again for its next heartbeat."""
        grace_ms = self.context.settings.shoal_group_streams_connection_lost_grace_ms
        group = self.context.groups.get(group_id)
        if not grace_ms or not isinstance(group, StreamsGroup) or member_id not in group.members:
            return
        if group.members[member_id].instance_id is not None:
            return  # It may be restarting: it keeps its tasks until its session expires.
        if self._soft[group_id].connections.get(member_id) == connection_id:
            interval_ms = self._get_config(group, "streams.heartbeat.interval.ms")
            key = self.make_key("lost", group, member_id)
            self.context.deadlines.set(key, now_ms + interval_ms + grace_ms)

    # The steps of a heartbeat.

    def _find_or_create_group(
        self, request: StreamsGroupHeartbeatRequest, draft: ResultDraft
    ) -> StreamsGroup:
        """The group, a new one if the member joins. Raises `ApiError`."""
        existing = self.context.groups.get(request.group_id)
        if existing is None and request.member_epoch != 0:
            raise ApiError(
                ErrorCode.group_id_not_found, f"Streams group {request.group_id} not found."
            )
        if isinstance(existing, StreamsGroup) or request.member_epoch != 0:
            group = self._find(request.group_id)
            static = group.find_static_member(request.instance_id)
            if request.joins and static is None and request.member_id not in group.members:
                self.check_size(group)
            return group
        if isinstance(existing, ClassicGroup) and existing.is_empty:
            assert self.give_up_classic is not None
            draft.records += self.give_up_classic(existing, draft)
        elif existing is not None:
            return self._find(request.group_id)
        # A decision that was refused may have left soft state of this id.
        self.forget(request.group_id)
        return StreamsGroup(request.group_id)

    def _find_or_create_member(
        self, group: StreamsGroup, request: StreamsGroupHeartbeatRequest, draft: ResultDraft
    ) -> StreamsGroupMember:
        """The member before the request; a new one if it joins. Raises `ApiError`."""
        if request.joins:
            owner = group.find_static_member(request.instance_id)
            if owner is not None:
                return self._take_over(group, owner, request.member_id, draft)
            return group.members.get(request.member_id) or StreamsGroupMember(request.member_id)
        member = group.get_named_member(request.member_id, request.instance_id)
        epoch, current = request.member_epoch, member.current
        # If the response that bumped the epoch was lost, the member owns no new task yet.
        lost = epoch == current.previous_member_epoch and epoch < current.member_epoch
        if epoch == current.member_epoch or (lost and is_subset(request.owned, current.assigned)):
            return member
        raise self.make_fenced_error(
            epoch, stored=current.member_epoch, current=current.member_epoch
        )

    def _take_over(
        self, group: StreamsGroup, owner: StreamsGroupMember, member_id: str, draft: ResultDraft
    ) -> StreamsGroupMember:
        """Replace the member id of a static member that rejoins. It keeps its tasks. Raises
        UNRELEASED_INSTANCE_ID if it has not left."""
        if not owner.has_left:
            raise make_unreleased_error(owner, member_id)
        current = replace(owner.current, member_epoch=0, previous_member_epoch=0)
        member = replace(owner, member_id=member_id, current=current)
        draft.records += group.build_member_tombstones(owner.member_id)
        draft.records.append(group.build_member_record(member))
        draft.records.append(group.build_target_record(member_id, group.get_target(owner)))
        draft.records.append(group.build_current_record(member))
        self._forget_member(group, owner.member_id)
        self._targets.restart(group)
        return member

    def _resolve_topology(
        self, group: StreamsGroup, request: StreamsGroupHeartbeatRequest, draft: ResultDraft
    ) -> Topology:
        """The topology of the group, which its first member sets. Raises INVALID_REQUEST."""
        if request.topology is None:
            if group.topology is None:
                raise ApiError(
                    ErrorCode.unknown_member_id, f"Group {group.group_id} has no topology yet."
                )
            return group.topology
        sent = Topology.from_wire(request.topology)
        if group.topology is None:
            draft.records.append(group.build_topology_record(sent))
            return sent
        if sent.epoch >= group.topology.epoch and sent != group.topology:
            raise ApiError(ErrorCode.invalid_request, "Topology updates are not supported yet.")
        return group.topology

    def _update_epoch(
        self,
        group: StreamsGroup,
        metadata_hash: int,
        configured: ConfiguredTopology,
        draft: ResultDraft,
        *,
        bump: bool,
    ) -> int:
        """The group's epoch, bumped if anything that an assignment depends on has changed."""
        validated = configured.epoch if configured.is_ready else NOT_VALIDATED
        configs = self._targets.get_configs(group)
        if not (
            bump
            or metadata_hash != group.metadata_hash
            or validated != group.validated_topology_epoch
            or configs != group.assignment_configs
        ):
            return group.epoch
        epoch = group.epoch + 1
        draft.records.append(group.build_metadata_record(epoch, metadata_hash, validated, configs))
        return epoch

    def _reconcile(
        self,
        group: StreamsGroup,
        member: StreamsGroupMember,
        target: TaskTarget,
        request: StreamsGroupHeartbeatRequest,
        draft: ResultDraft,
        now_ms: int,
    ) -> StreamsGroupMember:
        current = reconcile(
            member.current,
            member.process_id,
            target.epoch,
            target.tasks,
            group.owners,
            request.owned,
        )
        if current == member.current:
            return member
        member = replace(member, current=current)
        draft.records.append(group.build_current_record(member))
        self._set_rebalance_deadline(group, member, now_ms)
        return member

    def _build_response(
        self,
        group: StreamsGroup,
        request: StreamsGroupHeartbeatRequest,
        previous: StreamsGroupMember,
        member: StreamsGroupMember,
    ) -> responses.StreamsGroupHeartbeatResponse:
        interval_ms = self._get_config(group, "streams.heartbeat.interval.ms")
        unreleased = member.current.state is StreamsMemberState.UNRELEASED_TASKS
        if unreleased or self._targets.is_postponed(group):
            interval_ms = min(interval_ms, WAITING_HEARTBEAT_INTERVAL_MS)
        response: responses.StreamsGroupHeartbeatResponse = {
            **UNCHANGED,
            "member_id": member.member_id,
            "member_epoch": member.current.member_epoch,
            "heartbeat_interval_ms": interval_ms,
            "task_offset_interval_ms": self._get_config(group, "streams.task.offset.interval.ms"),
            "acceptable_recovery_lag": self._get_config(group, "streams.acceptable.recovery.lag"),
        }
        due = _has_new_tasks(request, previous, member)
        if self.should_send_assignment(group, member.member_id, request.connection_id, due=due):
            response = {**response, **encode_task_sets(member.current.assigned)}
        return response

    def _build_endpoints(
        self,
        group: StreamsGroup,
        request: StreamsGroupHeartbeatRequest,
        previous: StreamsGroupMember,
        member: StreamsGroupMember,
        configured: ConfiguredTopology,
    ) -> responses.StreamsGroupHeartbeatResponse:
        """The fields for interactive queries."""
        soft = self._get_soft_state(group)
        endpoint, tasks = member.user_endpoint, member.current.assigned
        moved = endpoint is not None and previous.current.assigned != tasks
        if moved or previous.user_endpoint != endpoint:
            soft.endpoint_epoch += 1
        fields: responses.StreamsGroupHeartbeatResponse = {}
        if group.group_id in self.context.groups:
            fields["endpoint_information_epoch"] = soft.endpoint_epoch
        if soft.endpoint_epoch != request.endpoint_information_epoch:
            members = group.with_member(member)
            fields["partitions_by_user_endpoint"] = endpoints.to_wire(
                members.values(), configured, self.catalog
            )
        return fields

    def _get_soft_state(self, group: StreamsGroup) -> StreamsGroupSoftState:
        """The soft state of the group. As in Kafka, it starts after the heartbeat that creates the
        group."""
        if group.group_id not in self.context.groups:
            return StreamsGroupSoftState()
        return self._soft[group.group_id]

    # Time.

    def expire(self, group: StreamsGroup, member_id: str, draft: ResultDraft, now_ms: int) -> None:
        """Remove a member. The next heartbeat computes a new target assignment."""
        self._forget_member(group, member_id)
        draft.records += group.build_member_tombstones(member_id)
        draft.records.append(
            group.build_metadata_record(
                group.epoch + 1,
                group.metadata_hash,
                group.validated_topology_epoch,
                group.assignment_configs,
            )
        )
        if len(group.members) == 1:
            # An empty group has its assignment, of nothing.
            draft.records.append(group.build_target_metadata_record(group.epoch + 1, now_ms))
            self._soft[group.group_id].shutdown_by = None

    def _forget_member(self, group: StreamsGroup, member_id: str) -> None:
        """Drop the deadlines and the soft state of a member that is removed."""
        for kind in ("session", "rebalance", "lost"):
            self.context.deadlines.cancel(self.make_key(kind, group, member_id))
        self._soft[group.group_id].connections.pop(member_id, None)
        self.forget_member(group, member_id)

    def on_member_loaded(self, group: StreamsGroup, member_id: str, now_ms: int) -> None:
        timeout_ms = self._get_config(group, "streams.session.timeout.ms")
        self.extend_session(group, member_id, timeout_ms, now_ms)
        self._set_rebalance_deadline(group, group.members[member_id], now_ms)

    def _set_rebalance_deadline(
        self, group: StreamsGroup, member: StreamsGroupMember, now_ms: int
    ) -> None:
        key = self.make_key("rebalance", group, member.member_id)
        if member.current.state is StreamsMemberState.UNREVOKED_TASKS:
            self.context.deadlines.set(key, now_ms + member.rebalance_timeout_ms)
        else:
            self.context.deadlines.cancel(key)

    def assign_due(self, group: StreamsGroup, draft: ResultDraft, now_ms: int) -> None:
        self._targets.assign_due(group, draft, now_ms)

    def on_deadline(self, key: Key, now_ms: int) -> CoordinatorResult:
        if key[1] == INITIAL:
            key = (key[0], "assignment", *key[2:])
        return super().on_deadline(key, now_ms)

    def forget(self, group_id: str) -> None:
        super().forget(group_id)
        self._soft.pop(group_id, None)

    # Configs.

    @property
    def default_assignor(self) -> str:
        return sticky_assignor.NAME

    @property
    def max_size(self) -> int:
        return self.context.settings.group_streams_max_size

    # Replay.

    def _replay_topology(self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any) -> None:
        group = self._get_replayed_group(key, value)
        if group is not None:
            group.replay_topology(value)


def _note_member(
    group: StreamsGroup,
    previous: StreamsGroupMember,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeatRequest,
    draft: ResultDraft,
) -> bool:
    """Write the member's record if it has changed. Return whether the group needs another
    assignment: a static member may change its address, for example, without one."""
    is_new = group.resolve_member_id(previous) not in group.members
    if member == previous and not is_new:
        return False
    draft.records.append(group.build_member_record(member))
    return request.instance_id is None or is_new or not member.is_assigned_like(previous)


def _build_stale_status(
    group: StreamsGroup, member: StreamsGroupMember
) -> list[StreamsGroupStatus | None]:
    if group.topology is None or member.topology_epoch >= group.topology.epoch:
        return []
    return [
        StreamsGroupStatus(
            StatusCode.STALE_TOPOLOGY,
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology "
            f"epoch {group.topology.epoch}.",
        )
    ]


def _build_shutdown_status(soft: StreamsGroupSoftState) -> StreamsGroupStatus | None:
    if soft.shutdown_by is None:
        return None
    return StreamsGroupStatus(
        StatusCode.SHUTDOWN_APPLICATION,
        f"Streams group member {soft.shutdown_by} encountered a fatal error and requested a "
        "shutdown for the entire application.",
    )


def _has_new_tasks(
    request: StreamsGroupHeartbeatRequest, previous: StreamsGroupMember, member: StreamsGroupMember
) -> bool:
    """Whether the response has the member's tasks. A member sends all fields after an error: it may
    have missed a response with tasks (docs/adr/0081)."""
    return request.is_full or previous.current.assigned != member.current.assigned
