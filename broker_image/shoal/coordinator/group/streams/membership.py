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

from shoal.coordinator.group.classic import ClassicGroup
from shoal.coordinator.group.groups import Context, Draft
from shoal.coordinator.group.modern_membership import (
    WAITING_HEARTBEAT_INTERVAL_MS,
    ModernGroups,
)
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.group.streams import endpoints, sticky_assignor
from shoal.coordinator.group.streams.heartbeat import HeartbeatRequest as HeartbeatRequest
from shoal.coordinator.group.streams.heartbeat import check, check_tasks, updated
from shoal.coordinator.group.streams.internal_topics import (
    ConfiguredTopology,
    Status,
    StatusCode,
)
from shoal.coordinator.group.streams.reconciliation import MemberState, is_subset, reconcile
from shoal.coordinator.group.streams.streams_group import NOT_VALIDATED, Member, StreamsGroup
from shoal.coordinator.group.streams.target_assignment import INITIAL, Target, TargetAssignments
from shoal.coordinator.group.streams.tasks import sets_on_wire
from shoal.coordinator.group.streams.topology import Topology
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.coordinator.contract import Record, Result, Token
    from shoal.coordinator.deadlines import Key

#: The arrays of a response that do not change anything.
UNCHANGED: Mapping[str, None] = dict.fromkeys(
    ("active_tasks", "standby_tasks", "warmup_tasks", "partitions_by_user_endpoint")
)
#: The key of a response with the missing internal topics, which the server removes.
MISSING_TOPICS = "missing_internal_topics"


@dataclass(slots=True)
class SoftState:
    """The soft state of a group."""

    #: The member that has requested the shutdown of the application.
    shutdown_by: str | None = None
    #: Increments when the tasks of a member with an endpoint change.
    endpoint_epoch: int = 0
    #: The connection of each member's last heartbeat.
    connections: dict[str, str] = field(default_factory=dict)


class StreamsGroups(ModernGroups[StreamsGroup, TargetAssignments]):
    """The streams groups of one shard."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, StreamsGroup, TargetAssignments(context))
        self._soft: defaultdict[str, SoftState] = defaultdict(SoftState)
        self.replays[RecordType.STREAMS_GROUP_TOPOLOGY] = self._replay_topology
        #: Removes an empty classic group that becomes a streams group. Set by the shard.
        self.give_up_classic: Callable[[ClassicGroup, Draft], Sequence[Record]] | None = None

    # Requests.

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        """StreamsGroupHeartbeat v0. Raises `ApiError` to refuse it."""
        check(request)
        if request.leaves:
            return self._leave(request, now_ms, token)
        draft = Draft()
        group = self._group(request, draft)
        known = self._known_member(group, request)
        member = updated(known, request)
        changed = member != known or known.member_id not in group.members
        if changed:
            draft.records.append(group.member_record(member))
        topology = self._topology(group, request, draft)
        statuses = _stale(group, member)
        metadata_hash, configured = self._targets.compare(group, topology)
        if configured.is_ready:
            check_tasks(request, configured)
        epoch = self._epoch(group, metadata_hash, configured, draft, bump=changed)
        if not group.members:
            self._targets.await_members(group, now_ms)
        target = self._targets.of_member(group, member, epoch, configured, draft, now_ms)
        member = self._reconcile(group, member, target, request, draft, now_ms)
        self._targets.compared(group, configured)
        timeout_ms = self._config(group, "streams.session.timeout.ms")
        self.extend_session(group, member.member_id, timeout_ms, now_ms)
        self.context.deadlines.cancel(self.key("lost", group, member.member_id))
        self._soft[group.group_id].connections[member.member_id] = request.connection_id
        soft = self._soft_of(group)
        if request.shutdown_application:
            soft.shutdown_by = soft.shutdown_by or member.member_id
        statuses += [target.delay, configured.problem, _shutdown(soft)]
        response = self._response(group, request, known, member)
        response |= self._endpoints(group, request, known, member, configured)
        response["status"] = [status.on_wire() for status in statuses if status is not None]
        if configured.missing:
            response[MISSING_TOPICS] = configured.missing
        draft.reply(token, response)
        return draft.result()

    def _leave(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        group = self._find(request.group_id)
        member = group.member(request.member_id)
        draft = Draft()
        if request.shutdown_application:
            soft = self._soft[group.group_id]
            soft.shutdown_by = soft.shutdown_by or member.member_id
        self.expire(group, member.member_id, draft, now_ms)
        response = {
            **UNCHANGED,
            "member_id": member.member_id,
            "member_epoch": request.member_epoch,
            "status": (),
        }
        draft.reply(token, response)
        return draft.result()

    def connection_lost(
        self, group_id: str, member_id: str, connection_id: str, now_ms: int
    ) -> None:
        """The connection of a member's last heartbeat was lost: fence the member unless its next
        heartbeat comes over another one in time. A client connects again for its next heartbeat."""
        grace_ms = self.context.settings.shoal_group_streams_connection_lost_grace_ms
        group = self.context.groups.get(group_id)
        if not grace_ms or not isinstance(group, StreamsGroup) or member_id not in group.members:
            return
        if self._soft[group_id].connections.get(member_id) == connection_id:
            interval_ms = self._config(group, "streams.heartbeat.interval.ms")
            key = self.key("lost", group, member_id)
            self.context.deadlines.set(key, now_ms + interval_ms + grace_ms)

    # The steps of a heartbeat.

    def _group(self, request: HeartbeatRequest, draft: Draft) -> StreamsGroup:
        """The group, a new one if the member joins. Raises `ApiError`."""
        found = self.context.groups.get(request.group_id)
        if found is None and request.member_epoch != 0:
            raise ApiError(
                ErrorCode.group_id_not_found, f"Streams group {request.group_id} not found."
            )
        if isinstance(found, StreamsGroup) or request.member_epoch != 0:
            group = self._find(request.group_id)
            if request.member_epoch == 0:
                self.check_size(group)
            return group
        if isinstance(found, ClassicGroup) and found.is_empty:
            assert self.give_up_classic is not None
            draft.records += self.give_up_classic(found, draft)
        elif found is not None:
            return self._find(request.group_id)
        # A decision that was refused may have left soft state of this id.
        self.forget(request.group_id)
        return StreamsGroup(request.group_id)

    def _known_member(self, group: StreamsGroup, request: HeartbeatRequest) -> Member:
        """The member before the request; a new one if it joins. Raises `ApiError`."""
        if request.member_epoch == 0:
            return group.members.get(request.member_id) or Member(request.member_id)
        member = group.member(request.member_id)
        epoch, known = request.member_epoch, member.current
        # If the response that bumped the epoch was lost, the member owns no new task yet.
        lost = epoch == known.previous_member_epoch and epoch < known.member_epoch
        if epoch == known.member_epoch or (lost and is_subset(request.owned, known.assigned)):
            return member
        raise self.fenced(epoch, stored=known.member_epoch, known=known.member_epoch)

    def _topology(self, group: StreamsGroup, request: HeartbeatRequest, draft: Draft) -> Topology:
        """The topology of the group, which its first member sets. Raises INVALID_REQUEST."""
        if request.topology is None:
            if group.topology is None:
                raise ApiError(
                    ErrorCode.unknown_member_id, f"Group {group.group_id} has no topology yet."
                )
            return group.topology
        sent = Topology.from_wire(request.topology)
        if group.topology is None:
            draft.records.append(group.topology_record(sent))
            return sent
        if sent.epoch >= group.topology.epoch and sent != group.topology:
            raise ApiError(ErrorCode.invalid_request, "Topology updates are not supported yet.")
        return group.topology

    def _epoch(
        self,
        group: StreamsGroup,
        metadata_hash: int,
        configured: ConfiguredTopology,
        draft: Draft,
        *,
        bump: bool,
    ) -> int:
        """The group's epoch, bumped if anything that an assignment depends on has changed."""
        validated = configured.epoch if configured.is_ready else NOT_VALIDATED
        configs = self._targets.configs(group)
        if not (
            bump
            or metadata_hash != group.metadata_hash
            or validated != group.validated_topology_epoch
            or configs != group.assignment_configs
        ):
            return group.epoch
        epoch = group.epoch + 1
        draft.records.append(group.metadata_record(epoch, metadata_hash, validated, configs))
        return epoch

    def _reconcile(
        self,
        group: StreamsGroup,
        member: Member,
        target: Target,
        request: HeartbeatRequest,
        draft: Draft,
        now_ms: int,
    ) -> Member:
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
        draft.records.append(group.current_record(member))
        self._deadline_rebalance(group, member, now_ms)
        return member

    def _response(
        self, group: StreamsGroup, request: HeartbeatRequest, known: Member, member: Member
    ) -> dict[str, Any]:
        interval_ms = self._config(group, "streams.heartbeat.interval.ms")
        unreleased = member.current.state is MemberState.UNRELEASED_TASKS
        if unreleased or self._targets.waits(group):
            interval_ms = min(interval_ms, WAITING_HEARTBEAT_INTERVAL_MS)
        response: dict[str, Any] = {
            **UNCHANGED,
            "member_id": member.member_id,
            "member_epoch": member.current.member_epoch,
            "heartbeat_interval_ms": interval_ms,
        }
        due = _has_new_tasks(request, known, member)
        if self.tells_assignment(group, member.member_id, request.connection_id, due=due):
            response |= sets_on_wire(member.current.assigned)
        return response

    def _endpoints(
        self,
        group: StreamsGroup,
        request: HeartbeatRequest,
        known: Member,
        member: Member,
        configured: ConfiguredTopology,
    ) -> dict[str, Any]:
        """The fields for interactive queries."""
        soft = self._soft_of(group)
        changed = request.member_epoch == 0 or known.current.assigned != member.current.assigned
        if changed and member.user_endpoint is not None:
            soft.endpoint_epoch += 1
        fields: dict[str, Any] = {}
        if group.group_id in self.context.groups:
            fields["endpoint_information_epoch"] = soft.endpoint_epoch
        if soft.endpoint_epoch != request.endpoint_information_epoch:
            members = {**group.members, member.member_id: member}
            fields["partitions_by_user_endpoint"] = endpoints.on_wire(
                members.values(), configured, self.catalog
            )
        return fields

    def _soft_of(self, group: StreamsGroup) -> SoftState:
        """The soft state of the group. As in Kafka, it starts after the heartbeat that creates the
        group."""
        if group.group_id not in self.context.groups:
            return SoftState()
        return self._soft[group.group_id]

    # Time.

    def expire(self, group: StreamsGroup, member_id: str, draft: Draft, _now_ms: int) -> None:
        """Remove a member. The next heartbeat computes a new target assignment."""
        for what in ("session", "rebalance", "lost"):
            self.context.deadlines.cancel(self.key(what, group, member_id))
        self._soft[group.group_id].connections.pop(member_id, None)
        self.forget_member(group, member_id)
        draft.records += group.member_tombstones(member_id)
        draft.records.append(
            group.metadata_record(
                group.epoch + 1,
                group.metadata_hash,
                group.validated_topology_epoch,
                group.assignment_configs,
            )
        )
        if len(group.members) == 1:
            self._soft[group.group_id].shutdown_by = None

    def member_loaded(self, group: StreamsGroup, member_id: str, now_ms: int) -> None:
        timeout_ms = self._config(group, "streams.session.timeout.ms")
        self.extend_session(group, member_id, timeout_ms, now_ms)
        self._deadline_rebalance(group, group.members[member_id], now_ms)

    def _deadline_rebalance(self, group: StreamsGroup, member: Member, now_ms: int) -> None:
        key = self.key("rebalance", group, member.member_id)
        if member.current.state is MemberState.UNREVOKED_TASKS:
            self.context.deadlines.set(key, now_ms + member.rebalance_timeout_ms)
        else:
            self.context.deadlines.cancel(key)

    def assign_due(self, group: StreamsGroup, draft: Draft, now_ms: int) -> None:
        self._targets.assign_due(group, draft, now_ms)

    def due(self, key: Key, now_ms: int) -> Result:
        if key[1] == INITIAL:
            key = (key[0], "assignment", *key[2:])
        return super().due(key, now_ms)

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
        group = self._replayed(key, value)
        if group is not None:
            group.replay_topology(value)


def _stale(group: StreamsGroup, member: Member) -> list[Status | None]:
    if group.topology is None or member.topology_epoch >= group.topology.epoch:
        return []
    return [
        Status(
            StatusCode.STALE_TOPOLOGY,
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology "
            f"epoch {group.topology.epoch}.",
        )
    ]


def _shutdown(soft: SoftState) -> Status | None:
    if soft.shutdown_by is None:
        return None
    return Status(
        StatusCode.SHUTDOWN_APPLICATION,
        f"Streams group member {soft.shutdown_by} encountered a fatal error and requested a "
        "shutdown for the entire application.",
    )


def _has_new_tasks(request: HeartbeatRequest, known: Member, member: Member) -> bool:
    """Whether the response has the member's tasks. A member sends all fields after an error: it may
    have missed a response with tasks (docs/adr/0081)."""
    return request.is_full or known.current.assigned != member.current.assigned
