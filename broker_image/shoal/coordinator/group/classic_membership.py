"""Decisions of classic groups: join, sync, heartbeat, leave, and deadlines.

A member that joins or leaves starts a rebalance or advances the current one (`rebalance`). Each
member has a session. Each id that MEMBER_ID_REQUIRED assigned has one too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import Record, Replayed, Reply, Result, Token
from shoal.coordinator.group.classic import (
    ClassicGroup,
    GroupMetadata,
    Member,
    State,
    refused_join,
)
from shoal.coordinator.group.groups import (
    ClassicBridge,
    Context,
    Draft,
    Group,
    GroupType,
    code,
)
from shoal.coordinator.group.rebalance import Rebalances, joined, synced
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.group.settings import NEW_MEMBER_JOIN_TIMEOUT_MS, PENDING_JOINS_MAX
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.classic_requests import (
        HeartbeatRequest,
        JoinRequest,
        Leaver,
        LeaveRequest,
        SyncRequest,
    )


class ClassicGroups:
    """The classic groups of one shard."""

    name = "classic"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._deadlines = context.deadlines
        self._active = False
        self.replays = {RecordType.GROUP_METADATA: self._replay}
        self._rebalances = Rebalances(context)

    @property
    def completed_rebalances(self) -> int:
        """Rebalances that have become stable since the shard was loaded, for metrics."""
        return self._rebalances.completed

    # Hard state.

    def _replay(self, key: dict[str, Any], value: dict[str, Any] | None, _at: Replayed) -> None:
        group = self._context.groups.get(key["group"])
        if value is None:
            if isinstance(group, ClassicGroup):
                self._context.groups.remove(group.group_id)
            return
        data = GroupMetadata.read(value)
        if isinstance(group, ClassicGroup) and self._active:
            group.adopt(data)
            return
        if not isinstance(group, ClassicGroup):
            group = ClassicGroup(key["group"])
            self._context.groups.add(group)
        group.restore(data)

    def loaded(self, now_ms: int) -> None:
        self._active = True
        for group in self._context.groups:
            if isinstance(group, ClassicGroup):
                self._arm_sessions(group, now_ms)
                if len(group.members) > self._settings.group_max_size:
                    # The limit was lowered: members commit and rejoin, and the last ones are
                    # refused.
                    self._rebalances.prepare(group, now_ms, Draft())

    def _arm_sessions(self, group: ClassicGroup, now_ms: int) -> None:
        for member in group.members.values():
            group.extend_session(member, now_ms, self._deadlines)

    def metadata_changed(self, _deleted: Sequence[tuple[str, UUID]], _now_ms: int) -> Result:
        return Result()  # Clients of the classic protocol watch the metadata.

    def _bridge_to(self, group: Group | None) -> ClassicBridge | None:
        """The bridge that serves classic members of that group, if it is a consumer group."""
        is_consumer = group is not None and group.type is GroupType.CONSUMER
        return self._context.bridge if is_consumer else None

    # JoinGroup.

    def join(self, request: JoinRequest, now_ms: int, token: Token) -> Result:
        """JoinGroup. The reply is parked until the rebalance completes, unless none is needed."""
        longest_ms = self._settings.group_max_session_timeout_ms
        if not (
            self._settings.group_min_session_timeout_ms <= request.session_timeout_ms <= longest_ms
        ):
            return _refuse_join(token, request.member_id, ErrorCode.invalid_session_timeout)
        found = self._context.groups.get(request.group_id)
        bridge = self._bridge_to(found)
        if bridge is not None and found is not None and not found.is_empty:
            return bridge.join(request, now_ms, token)
        draft = Draft()
        if isinstance(found, ClassicGroup):
            self._join(found, request, now_ms, token, draft)
            return draft.result()
        if found is not None and not _may_become_classic(found):
            return _refuse_join(token, request.member_id, ErrorCode.inconsistent_group_protocol)
        if request.member_id:
            return _refuse_join(token, request.member_id, ErrorCode.unknown_member_id)
        group = ClassicGroup(request.group_id, state_timestamp_ms=now_ms)
        if not group.supports(request.protocol_type, request.protocols):
            return _refuse_join(token, "", ErrorCode.inconsistent_group_protocol)
        if found is not None:
            draft.records += found.tombstones()
        # The group id has this type from now on, also after a restart.
        draft.records.append(group.snapshot(now_ms).record(group.group_id))
        self._context.groups.add(group)
        self._join(group, request, now_ms, token, draft)
        return draft.result()

    def _join(
        self, group: ClassicGroup, request: JoinRequest, now_ms: int, token: Token, draft: Draft
    ) -> None:
        if not self._has_room(group, request.member_id):
            draft.reply(token, refused_join("", ErrorCode.group_max_size_reached))
            self._rebalances.remove_and_rebalance(group, (request.member_id,), now_ms, draft)
        elif not group.supports(request.protocol_type, request.protocols):
            error = ErrorCode.inconsistent_group_protocol
            draft.reply(token, refused_join(request.member_id, error))
        elif request.member_id:
            self._join_known(group, request, now_ms, token, draft)
        elif request.group_instance_id in group.static_members:
            self._join_again(group, request, now_ms, token, draft)
        elif request.member_id_required and len(group.pending_joins) >= PENDING_JOINS_MAX:
            draft.reply(token, refused_join("", ErrorCode.group_max_size_reached))
        elif request.member_id_required:
            group.pending_joins[request.new_member_id] = None
            key = group.session_key(request.new_member_id)
            self._deadlines.set(key, now_ms + request.session_timeout_ms)
            error = ErrorCode.member_id_required
            draft.reply(token, refused_join(request.new_member_id, error))
        else:
            self._add(group, request.new_member_id, request, now_ms, token, draft)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether the group has its maximum size. During a rebalance only members that have
        rejoined count, so that a group above a lowered limit loses its slowest members."""
        limit = self._settings.group_max_size
        member = group.members.get(member_id)
        if group.state is State.EMPTY:
            return True
        if group.state is State.PREPARING_REBALANCE:
            waits = member is not None and member.join_token is not None
            return waits or group.awaiting_join_count < limit
        return member is not None or len(group.members) < limit

    def _join_known(
        self, group: ClassicGroup, request: JoinRequest, now_ms: int, token: Token, draft: Draft
    ) -> None:
        """A join with a member id that the broker assigned."""
        member_id = request.member_id
        if member_id in group.pending_joins and request.group_instance_id is None:
            self._add(group, member_id, request, now_ms, token, draft)
            return
        try:
            group.check_member(member_id, request.group_instance_id)
        except ApiError as refused:
            draft.reply(token, refused_join(member_id, refused.code))
            return
        member = group.members[member_id]
        same = member.matches(request.protocols)
        if group.state is State.COMPLETING_REBALANCE and same:
            # The response may have been lost.
            draft.reply(token, joined(group, member))
        elif group.state is State.STABLE and same and group.leader != member_id:
            draft.reply(token, joined(group, member, with_members=False))
        else:
            # A leader that rejoins requests a new assignment: there may be new partitions.
            self._update(group, member, request, token, draft)
            self._rebalances.join_came(group, now_ms, draft)

    def _add(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinRequest,
        now_ms: int,
        token: Token,
        draft: Draft,
    ) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            is_new=True,
        )
        if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
            group.member_added = True
        group.add(member, request.protocol_type)
        group.park_join(member, token)
        self._deadlines.set(group.session_key(member_id), now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalances.join_came(group, now_ms, draft)

    def _update(
        self, group: ClassicGroup, member: Member, request: JoinRequest, token: Token, draft: Draft
    ) -> None:
        group.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )
        earlier = group.park_join(member, token)
        if earlier is not None:
            # The client has sent its join again, mostly over a new connection.
            error = ErrorCode.rebalance_in_progress
            draft.reply(earlier, refused_join(member.member_id, error))

    def _join_again(
        self, group: ClassicGroup, request: JoinRequest, now_ms: int, token: Token, draft: Draft
    ) -> None:
        """Replace a static member that has restarted, without a rebalance if possible."""
        assert request.group_instance_id is not None
        old_id = group.static_members[request.group_instance_id]
        old_leader = group.leader
        self._deadlines.cancel(group.session_key(old_id))
        draft.replies += group.replace_static(old_id, request.new_member_id)
        member = group.members[request.new_member_id]
        group.extend_session(member, now_ms, self._deadlines)
        self._update(group, member, request, token, draft)
        if group.state is State.STABLE and group.select_protocol() == group.protocol_name:
            group.take_join(member)
            skips = request.api_version >= 9
            response = dict(joined(group, member, with_members=skips))
            if skips:
                response["skip_assignment"] = group.leader == member.member_id
            else:
                # A client without KIP-814 must not become the leader: it would assign partitions.
                response["leader"] = old_leader
            draft.records.append(group.snapshot(now_ms).record(group.group_id))
            draft.reply(token, response)
        elif group.state is State.PREPARING_REBALANCE:
            self._rebalances.complete_if_all_joined(group, now_ms, draft)
        else:
            self._rebalances.prepare(group, now_ms, draft)

    # SyncGroup.

    def sync(self, request: SyncRequest, now_ms: int, token: Token) -> Result:
        """SyncGroup. The leader's has the assignment. All are answered once it is written."""
        group = self._context.groups.get(request.group_id)
        bridge = self._bridge_to(group)
        if bridge is not None:
            return bridge.sync(request, now_ms, token)
        draft = Draft()
        if not isinstance(group, ClassicGroup) or group.is_empty:
            draft.reply(token, code(ErrorCode.unknown_member_id))
            return draft.result()
        error = _check_sync(group, request)
        if error is ErrorCode.none and group.state is State.PREPARING_REBALANCE:
            error = ErrorCode.rebalance_in_progress
        if error is not ErrorCode.none:
            draft.reply(token, code(error))
            return draft.result()
        member = group.members[request.member_id]
        self._rebalances.sync_came(group, member)
        if group.state is State.STABLE:
            draft.reply(token, synced(group, member.assignment))
            return draft.result()
        if member.sync_token is not None:
            draft.reply(member.sync_token, code(ErrorCode.rebalance_in_progress))
        member.sync_token = token
        if group.leader == member.member_id:
            self._rebalances.assign(group, request.assignments, now_ms, draft)
        return draft.result()

    # Heartbeat and LeaveGroup.

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        """Heartbeat. Raises `ApiError` for a member that is not of this generation."""
        group = self._context.groups.get(request.group_id)
        bridge = self._bridge_to(group)
        if bridge is not None:
            return bridge.heartbeat(request, now_ms, token)
        if not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.unknown_member_id, f"Group {request.group_id} not found.")
        group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise ApiError(ErrorCode.illegal_generation)
        group.extend_session(group.members[request.member_id], now_ms, self._deadlines)
        rebalancing = group.state is State.PREPARING_REBALANCE
        error = ErrorCode.rebalance_in_progress if rebalancing else ErrorCode.none
        return Result((), (Reply(token, code(error)),))

    def leave(self, request: LeaveRequest, now_ms: int, token: Token) -> Result:
        """LeaveGroup, sent by a member, or by an admin client for static members."""
        group = self._context.groups.get(request.group_id)
        bridge = self._bridge_to(group)
        if bridge is not None:
            return bridge.leave(request, now_ms, token)
        draft = Draft()
        gone: list[str] = []
        answers = []
        for leaver in request.members:
            error = ErrorCode.unknown_member_id
            if isinstance(group, ClassicGroup):
                member_id, error = _leaving(group, leaver)
                if member_id in gone:
                    error = ErrorCode.unknown_member_id
                elif error is ErrorCode.none:
                    gone.append(member_id)
            answers.append(
                {
                    "member_id": leaver.member_id,
                    "group_instance_id": leaver.group_instance_id,
                    "error_code": error,
                }
            )
        if isinstance(group, ClassicGroup):
            self._rebalances.remove_and_rebalance(group, gone, now_ms, draft)
        draft.reply(token, {"error_code": ErrorCode.none, "members": answers})
        return draft.result()

    # Time.

    def due(self, key: Key, now_ms: int) -> Result:
        draft = Draft()
        group = self._context.groups.get(key[2])
        if isinstance(group, ClassicGroup):
            match key[1]:
                case "session":
                    self._session_due(group, key[3], now_ms, draft)
                case "join":
                    self._rebalances.joins_due(group, now_ms, draft)
                case "sync":
                    self._rebalances.syncs_due(group, now_ms, draft)
                case "taken" if group.state is State.STABLE:
                    self._rebalances.prepare(group, now_ms, draft)
        return draft.result()

    def _session_due(self, group: ClassicGroup, member_id: str, now_ms: int, draft: Draft) -> None:
        """Members with a parked join cannot heartbeat. Their sessions begin after the rebalance."""
        member = group.members.get(member_id)
        if member is None:
            group.pending_joins.pop(member_id, None)
            self._rebalances.remove_and_rebalance(group, (), now_ms, draft)
        elif member.is_new or (member.join_token is None and member.sync_token is None):
            self._rebalances.remove_and_rebalance(group, (member_id,), now_ms, draft)

    # Calls of other kinds and of admin requests.

    def describe(self, group: ClassicGroup) -> Mapping[str, Any]:
        """One group of a DescribeGroups response. Only a stable group has metadata."""
        stable = group.state is State.STABLE
        members = [
            {
                "member_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "client_id": m.client_id,
                "client_host": m.client_host,
                "member_metadata": m.metadata(group.protocol_name) if stable else b"",
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
        self, group_id: str, data: GroupMetadata, now_ms: int, *, rebalance: bool
    ) -> Sequence[Record]:
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
        return (data.record(group_id),)

    def give_up(self, group: ClassicGroup, draft: Draft) -> Sequence[Record]:
        """Remove a classic group that becomes one of another type. Parked members have to join
        again."""
        for member in group.members.values():
            self._deadlines.cancel(group.session_key(member.member_id))
            token = group.take_join(member)
            if token is not None:
                error = ErrorCode.rebalance_in_progress
                draft.reply(token, refused_join(member.member_id, error))
            if member.sync_token is not None:
                draft.reply(member.sync_token, code(ErrorCode.rebalance_in_progress))
                member.sync_token = None
        for member_id in group.pending_joins:
            self._deadlines.cancel(group.session_key(member_id))
        self._rebalances.cancel(group)
        return group.tombstones()


def _may_become_classic(group: Group) -> bool:
    return group.type in (GroupType.CONSUMER, GroupType.STREAMS) and group.is_empty


def _refuse_join(token: Token, member_id: str, error: ErrorCode) -> Result:
    return Result((), (Reply(token, refused_join(member_id, error)),))


def _check_sync(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
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


def _leaving(group: ClassicGroup, leaver: Leaver) -> tuple[str, ErrorCode]:
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
