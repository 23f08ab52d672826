"""Decisions of classic groups: join, sync, heartbeat, leave, and deadlines.

A member that joins or leaves starts a rebalance or advances the current one (`rebalance`). Each
member has a session. Each id that MEMBER_ID_REQUIRED assigned has one too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    RecordOrigin,
    Reply,
    Token,
)
from shoal.coordinator.group.classic.classic_group import (
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
    GroupMetadataValue,
    build_join_error,
)
from shoal.coordinator.group.classic.rebalance import (
    ClassicRebalances,
    build_join_response,
    build_sync_response,
)
from shoal.coordinator.group.groups import (
    ClassicBridge,
    Group,
    GroupType,
    ResultDraft,
    ShardContext,
    make_error_response,
)
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.group.settings import NEW_MEMBER_JOIN_TIMEOUT_MS, PENDING_JOINS_MAX
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.classic.requests import (
        HeartbeatRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        LeavingMember,
        SyncGroupRequest,
    )
    from shoal.protocol.responses import groups as responses


class ClassicGroupManager:
    """The classic groups of one shard."""

    name = "classic"

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._settings = context.settings
        self._deadlines = context.deadlines
        self._active = False
        self.replays = {RecordType.GROUP_METADATA: self._replay}
        self._rebalances = ClassicRebalances(context)

    @property
    def completed_rebalances(self) -> int:
        """Rebalances that have become stable since the shard was loaded, for metrics."""
        return self._rebalances.completed

    # Hard state.

    def _replay(self, key: dict[str, Any], value: dict[str, Any] | None, _at: RecordOrigin) -> None:
        group = self._context.groups.get(key["group"])
        if value is None:
            if isinstance(group, ClassicGroup):
                self._context.groups.remove(group.group_id)
            return
        data = GroupMetadataValue.from_value(value)
        if isinstance(group, ClassicGroup) and self._active:
            group.adopt(data)
            return
        if not isinstance(group, ClassicGroup):
            group = ClassicGroup(key["group"])
            self._context.groups.add(group)
        group.restore(data)

    def on_loaded(self, now_ms: int) -> None:
        self._active = True
        for group in self._context.groups:
            if isinstance(group, ClassicGroup):
                self._arm_sessions(group, now_ms)
                if len(group.members) > self._settings.group_max_size:
                    # The limit was lowered: members commit and rejoin, and the last ones are
                    # refused.
                    self._rebalances.prepare(group, now_ms, ResultDraft())

    def _arm_sessions(self, group: ClassicGroup, now_ms: int) -> None:
        for member in group.members.values():
            group.extend_session(member, now_ms, self._deadlines)

    def on_metadata_changed(
        self, _deleted: Sequence[tuple[str, UUID]], _now_ms: int
    ) -> CoordinatorResult:
        return CoordinatorResult()  # Clients of the classic protocol watch the metadata.

    def _find_bridge(self, group: Group | None) -> ClassicBridge | None:
        """The bridge that serves classic members of that group, if it is a consumer group."""
        is_consumer = group is not None and group.type is GroupType.CONSUMER
        return self._context.bridge if is_consumer else None

    # JoinGroup.

    def join(self, request: JoinGroupRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """JoinGroup. The reply is parked until the rebalance completes, unless none is needed."""
        longest_ms = self._settings.group_max_session_timeout_ms
        if not (
            self._settings.group_min_session_timeout_ms <= request.session_timeout_ms <= longest_ms
        ):
            return _refuse_join(token, request.member_id, ErrorCode.invalid_session_timeout)
        existing = self._context.groups.get(request.group_id)
        bridge = self._find_bridge(existing)
        if bridge is not None and existing is not None and not existing.is_empty:
            return bridge.join(request, now_ms, token)
        draft = ResultDraft()
        if isinstance(existing, ClassicGroup):
            self._join(existing, request, now_ms, token, draft)
            return draft.to_result()
        if existing is not None and not _may_become_classic(existing):
            return _refuse_join(token, request.member_id, ErrorCode.inconsistent_group_protocol)
        if request.member_id:
            return _refuse_join(token, request.member_id, ErrorCode.unknown_member_id)
        group = ClassicGroup(request.group_id, state_timestamp_ms=now_ms)
        if not group.has_common_protocol(request.protocol_type, request.protocols):
            return _refuse_join(token, "", ErrorCode.inconsistent_group_protocol)
        if existing is not None:
            draft.records += existing.build_tombstones()
        # The group id has this type from now on, also after a restart.
        draft.records.append(group.snapshot(now_ms).to_record(group.group_id))
        self._context.groups.add(group)
        self._join(group, request, now_ms, token, draft)
        return draft.to_result()

    def _join(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        now_ms: int,
        token: Token,
        draft: ResultDraft,
    ) -> None:
        if not self._has_room(group, request.member_id):
            draft.reply(token, build_join_error("", ErrorCode.group_max_size_reached))
            self._rebalances.remove_and_rebalance(group, (request.member_id,), now_ms, draft)
        elif not group.has_common_protocol(request.protocol_type, request.protocols):
            error = ErrorCode.inconsistent_group_protocol
            draft.reply(token, build_join_error(request.member_id, error))
        elif request.member_id:
            self._join_with_member_id(group, request, now_ms, token, draft)
        elif request.group_instance_id in group.static_members:
            self._rejoin_static(group, request, now_ms, token, draft)
        elif request.member_id_required and len(group.pending_joins) >= PENDING_JOINS_MAX:
            draft.reply(token, build_join_error("", ErrorCode.group_max_size_reached))
        elif request.member_id_required:
            group.pending_joins[request.new_member_id] = None
            key = group.make_session_key(request.new_member_id)
            self._deadlines.set(key, now_ms + request.session_timeout_ms)
            error = ErrorCode.member_id_required
            draft.reply(token, build_join_error(request.new_member_id, error))
        else:
            self._add(group, request.new_member_id, request, now_ms, token, draft)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether the group has its maximum size. During a rebalance only members that have
        rejoined count, so that a group above a lowered limit loses its slowest members."""
        limit = self._settings.group_max_size
        member = group.members.get(member_id)
        if group.state is ClassicGroupState.EMPTY:
            return True
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            waits = member is not None and member.join_token is not None
            return waits or group.awaiting_join_count < limit
        return member is not None or len(group.members) < limit

    def _join_with_member_id(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        now_ms: int,
        token: Token,
        draft: ResultDraft,
    ) -> None:
        """A join with a member id that the broker assigned."""
        member_id = request.member_id
        if member_id in group.pending_joins and request.group_instance_id is None:
            self._add(group, member_id, request, now_ms, token, draft)
            return
        try:
            group.check_member(member_id, request.group_instance_id)
        except ApiError as refused:
            draft.reply(token, build_join_error(member_id, refused.code))
            return
        member = group.members[member_id]
        same = member.has_same_protocols(request.protocols)
        if group.state is ClassicGroupState.COMPLETING_REBALANCE and same:
            # The response may have been lost.
            draft.reply(token, build_join_response(group, member))
        elif group.state is ClassicGroupState.STABLE and same and group.leader != member_id:
            draft.reply(token, build_join_response(group, member, with_members=False))
        else:
            # A leader that rejoins requests a new assignment: there may be new partitions.
            self._update(group, member, request, token, draft)
            self._rebalances.on_join(group, now_ms, draft)

    def _add(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinGroupRequest,
        now_ms: int,
        token: Token,
        draft: ResultDraft,
    ) -> None:
        member = ClassicGroupMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
        )
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is ClassicGroupState.EMPTY
        ):
            group.member_added = True
        group.add(member, request.protocol_type)
        group.park_join(member, token)
        self._deadlines.set(group.make_session_key(member_id), now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalances.on_join(group, now_ms, draft)

    def _update(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        request: JoinGroupRequest,
        token: Token,
        draft: ResultDraft,
    ) -> None:
        group.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )
        earlier = group.park_join(member, token)
        if earlier is not None:
            # The client has sent its join again, mostly over a new connection.
            error = ErrorCode.rebalance_in_progress
            draft.reply(earlier, build_join_error(member.member_id, error))

    def _rejoin_static(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        now_ms: int,
        token: Token,
        draft: ResultDraft,
    ) -> None:
        """Replace a static member that has restarted, without a rebalance if possible."""
        assert request.group_instance_id is not None
        old_id = group.static_members[request.group_instance_id]
        old_leader = group.leader
        self._deadlines.cancel(group.make_session_key(old_id))
        draft.replies += group.replace_static(old_id, request.new_member_id)
        member = group.members[request.new_member_id]
        group.extend_session(member, now_ms, self._deadlines)
        self._update(group, member, request, token, draft)
        if (
            group.state is ClassicGroupState.STABLE
            and group.select_protocol() == group.protocol_name
        ):
            group.take_join(member)
            skips = request.api_version >= 9
            response = dict(build_join_response(group, member, with_members=skips))
            if skips:
                response["skip_assignment"] = group.leader == member.member_id
            else:
                # A client without KIP-814 must not become the leader: it would assign partitions.
                response["leader"] = old_leader
            draft.records.append(group.snapshot(now_ms).to_record(group.group_id))
            draft.reply(token, response)
        elif group.state is ClassicGroupState.PREPARING_REBALANCE:
            self._rebalances.complete_if_all_joined(group, now_ms, draft)
        else:
            self._rebalances.prepare(group, now_ms, draft)

    # SyncGroup.

    def sync(self, request: SyncGroupRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """SyncGroup. The leader's has the assignment. All are answered once it is written."""
        group = self._context.groups.get(request.group_id)
        bridge = self._find_bridge(group)
        if bridge is not None:
            return bridge.sync(request, now_ms, token)
        draft = ResultDraft()
        if not isinstance(group, ClassicGroup) or group.is_empty:
            draft.reply(token, make_error_response(ErrorCode.unknown_member_id))
            return draft.to_result()
        error = _check_sync(group, request)
        if error is ErrorCode.none and group.state is ClassicGroupState.PREPARING_REBALANCE:
            error = ErrorCode.rebalance_in_progress
        if error is not ErrorCode.none:
            draft.reply(token, make_error_response(error))
            return draft.to_result()
        member = group.members[request.member_id]
        self._rebalances.on_sync(group, member)
        if group.state is ClassicGroupState.STABLE:
            draft.reply(token, build_sync_response(group, member.assignment))
            return draft.to_result()
        if member.sync_token is not None:
            draft.reply(member.sync_token, make_error_response(ErrorCode.rebalance_in_progress))
        member.sync_token = token
        if group.leader == member.member_id:
            self._rebalances.assign(group, request.assignments, now_ms, draft)
        return draft.to_result()

    # Heartbeat and LeaveGroup.

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """Heartbeat. Raises `ApiError` for a member that is not of this generation."""
        group = self._context.groups.get(request.group_id)
        bridge = self._find_bridge(group)
        if bridge is not None:
            return bridge.heartbeat(request, now_ms, token)
        if not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.unknown_member_id, f"Group {request.group_id} not found.")
        group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise ApiError(ErrorCode.illegal_generation)
        group.extend_session(group.members[request.member_id], now_ms, self._deadlines)
        rebalancing = group.state is ClassicGroupState.PREPARING_REBALANCE
        error = ErrorCode.rebalance_in_progress if rebalancing else ErrorCode.none
        return CoordinatorResult((), (Reply(token, make_error_response(error)),))

    def leave(self, request: LeaveGroupRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """LeaveGroup, sent by a member, or by an admin client for static members."""
        group = self._context.groups.get(request.group_id)
        bridge = self._find_bridge(group)
        if bridge is not None:
            return bridge.leave(request, now_ms, token)
        draft = ResultDraft()
        left_ids: list[str] = []
        answers: list[responses.LeaveGroupMemberResponse] = []
        for leaver in request.members:
            error = ErrorCode.unknown_member_id
            if isinstance(group, ClassicGroup):
                member_id, error = _resolve_leaver(group, leaver)
                if member_id in left_ids:
                    error = ErrorCode.unknown_member_id
                elif error is ErrorCode.none:
                    left_ids.append(member_id)
            answers.append(
                {
                    "member_id": leaver.member_id,
                    "group_instance_id": leaver.group_instance_id,
                    "error_code": error,
                }
            )
        if isinstance(group, ClassicGroup):
            self._rebalances.remove_and_rebalance(group, left_ids, now_ms, draft)
        response: responses.LeaveGroupResponse = {
            "error_code": ErrorCode.none,
            "members": answers,
        }
        draft.reply(token, response)
        return draft.to_result()

    # Time.

    def on_deadline(self, key: Key, now_ms: int) -> CoordinatorResult:
        draft = ResultDraft()
        group = self._context.groups.get(key[2])
        if isinstance(group, ClassicGroup):
            match key[1]:
                case "session":
                    self._on_session_deadline(group, key[3], now_ms, draft)
                case "join":
                    self._rebalances.on_join_deadline(group, now_ms, draft)
                case "sync":
                    self._rebalances.on_sync_deadline(group, now_ms, draft)
                case "taken" if group.state is ClassicGroupState.STABLE:
                    self._rebalances.prepare(group, now_ms, draft)
        return draft.to_result()

    def _on_session_deadline(
        self, group: ClassicGroup, member_id: str, now_ms: int, draft: ResultDraft
    ) -> None:
        """Members with a parked join cannot heartbeat. Their sessions begin after the rebalance."""
        member = group.members.get(member_id)
        if member is None:
            group.pending_joins.pop(member_id, None)
            self._rebalances.remove_and_rebalance(group, (), now_ms, draft)
        elif member.is_new or (member.join_token is None and member.sync_token is None):
            self._rebalances.remove_and_rebalance(group, (member_id,), now_ms, draft)

    # Calls of other kinds and of admin requests.

    def describe(self, group: ClassicGroup) -> responses.DescribeGroupsDescribedGroup:
        """One group of a DescribeGroups response. Only a stable group has metadata."""
        stable = group.state is ClassicGroupState.STABLE
        members: list[responses.DescribeGroupsDescribedGroupMember] = [
            {
                "member_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "client_id": m.client_id,
                "client_host": m.client_host,
                "member_metadata": m.get_metadata(group.protocol_name) if stable else b"",
                "member_assignment": m.assignment if stable else b"",
            }
            for m in group.members.values()
        ]
        return {
            "error_code": ErrorCode.none,
            "group_id": group.group_id,
            "group_state": group.state_name,
            "protocol_type": group.protocol_type or "",
            "protocol_data": group.protocol_name or "" if stable else "",
            "members": members,
        }

    def take_over(
        self, group_id: str, data: GroupMetadataValue, now_ms: int, *, rebalance: bool
    ) -> Sequence[CoordinatorRecord]:
        """Create the classic group that replaces a consumer group, after the tombstones of that
        group.

        With `rebalance` the members have to rejoin at their next heartbeat, because the membership
        has changed.
        """
        for m in data.members:
            key: Key = ("classic", "session", group_id, m.member_id)
            self._deadlines.set(key, now_ms + m.session_timeout_ms)
        if rebalance:
            self._deadlines.set(("classic", "taken", group_id), now_ms)
        return (data.to_record(group_id),)

    def give_up(self, group: ClassicGroup, draft: ResultDraft) -> Sequence[CoordinatorRecord]:
        """Remove a classic group that becomes one of another type. Parked members have to join
        again."""
        for member in group.members.values():
            self._deadlines.cancel(group.make_session_key(member.member_id))
            token = group.take_join(member)
            if token is not None:
                error = ErrorCode.rebalance_in_progress
                draft.reply(token, build_join_error(member.member_id, error))
            if member.sync_token is not None:
                draft.reply(member.sync_token, make_error_response(ErrorCode.rebalance_in_progress))
                member.sync_token = None
        for member_id in group.pending_joins:
            self._deadlines.cancel(group.make_session_key(member_id))
        self._rebalances.cancel(group)
        return group.build_tombstones()


def _may_become_classic(group: Group) -> bool:
    return group.type in (GroupType.CONSUMER, GroupType.STREAMS) and group.is_empty


def _refuse_join(token: Token, member_id: str, error: ErrorCode) -> CoordinatorResult:
    return CoordinatorResult((), (Reply(token, build_join_error(member_id, error)),))


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    try:
        group.check_member(request.member_id, request.group_instance_id)
    except ApiError as refused:
        return refused.code
    if request.generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    pairs = (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    )
    if any(theirs is not None and ours is not None and theirs != ours for theirs, ours in pairs):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.none


def _resolve_leaver(group: ClassicGroup, leaver: LeavingMember) -> tuple[str, ErrorCode]:
    """The member that is to leave, and the error if it cannot."""
    if not leaver.member_id:
        owner = group.static_members.get(leaver.group_instance_id or "", "")
        return owner, ErrorCode.none if owner else ErrorCode.unknown_member_id
    if leaver.member_id not in group.pending_joins:
        try:
            group.check_member(leaver.member_id, leaver.group_instance_id)
        except ApiError as refused:
            return leaver.member_id, refused.code
    return leaver.member_id, ErrorCode.none
