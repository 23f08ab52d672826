"""One rebalance of a classic group: joins are collected, then syncs, and the group is stable.

PreparingRebalance collects the JoinGroup requests, which are parked. CompletingRebalance collects
the SyncGroup requests; the leader's has the assignment. A group that was empty waits for
`group.initial.rebalance.delay.ms` first, and longer while members join.

A rebalance has one deadline for the joins and one for the syncs, both soft state. The requests that
start and advance it are decided in `classic_membership`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.classic.classic_group import (
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
    build_join_error,
)
from shoal.coordinator.group.groups import ResultDraft, ShardContext, make_error_response
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.deadlines import Key
    from shoal.protocol.responses import groups as responses


class ClassicRebalances:
    """The rebalances of the classic groups of one shard."""

    def __init__(self, context: ShardContext) -> None:
        self._settings = context.settings
        self._deadlines = context.deadlines
        #: Rebalances completed since the shard was loaded, for metrics.
        self.completed = 0

    def on_join(self, group: ClassicGroup, now_ms: int, draft: ResultDraft) -> None:
        """Start a rebalance after a join, or end the joins if it was the last one."""
        if group.can_rebalance:
            self.prepare(group, now_ms, draft)
        else:
            self.complete_if_all_joined(group, now_ms, draft)

    def prepare(self, group: ClassicGroup, now_ms: int, draft: ResultDraft) -> None:
        """Start a rebalance."""
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            self._answer_syncs(group, now_ms, draft, ErrorCode.rebalance_in_progress)
        group.pending_syncs.clear()
        self._deadlines.cancel(_make_sync_key(group))
        first = group.state is ClassicGroupState.EMPTY
        group.move(ClassicGroupState.PREPARING_REBALANCE, now_ms)
        if first:
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.member_added = False
            self._deadlines.set(_make_join_key(group), now_ms + delay_ms)
        elif group.all_joined:
            self._complete_join(group, now_ms, draft)
        else:
            self._deadlines.set(_make_join_key(group), now_ms + group.rebalance_timeout_ms)

    def complete_if_all_joined(self, group: ClassicGroup, now_ms: int, draft: ResultDraft) -> None:
        """End the joins if all members have joined."""
        waits_for_more = group.previous_state is ClassicGroupState.EMPTY
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.all_joined
            and not waits_for_more
        ):
            self._complete_join(group, now_ms, draft)

    def on_join_deadline(self, group: ClassicGroup, now_ms: int, draft: ResultDraft) -> None:
        """The deadline of the joins. A first rebalance is extended while members join."""
        if group.state is not ClassicGroupState.PREPARING_REBALANCE:
            return
        first = group.previous_state is ClassicGroupState.EMPTY
        if first and group.member_added and group.initial_delay_left_ms > 0:
            group.member_added = False
            step_ms = self._settings.group_initial_rebalance_delay_ms
            delay_ms = min(step_ms, group.initial_delay_left_ms)
            group.initial_delay_left_ms -= delay_ms
            self._deadlines.set(_make_join_key(group), now_ms + delay_ms)
        else:
            self._complete_join(group, now_ms, draft)

    def _complete_join(self, group: ClassicGroup, now_ms: int, draft: ResultDraft) -> None:
        """Start a generation with the members that have joined, and answer them."""
        self._deadlines.cancel(_make_join_key(group))
        for member in list(group.members.values()):
            if member.join_token is None and member.group_instance_id is None:
                self._remove(group, member.member_id)
        if not group.members:
            group.generation_id += 1
            group.protocol_name = group.leader = None
            draft.records.append(group.snapshot(now_ms).to_record(group.group_id))
            return
        if not _elect_joined_leader(group):
            # Only static members remain, and none has joined. They keep their places for one
            # more rebalance timeout, or until their sessions expire.
            self._deadlines.set(_make_join_key(group), now_ms + group.rebalance_timeout_ms)
            return
        group.generation_id += 1
        group.protocol_name = group.select_protocol()
        group.subscribed_topics = group.compute_subscribed_topics()
        group.move(ClassicGroupState.COMPLETING_REBALANCE, now_ms)
        for member in group.members.values():
            token = group.take_join(member)
            if token is not None:
                draft.reply(token, build_join_response(group, member))
            group.extend_session(member, now_ms, self._deadlines)
            member.is_new = False
            member.assignment = b""
        group.pending_syncs = dict.fromkeys(group.members)
        self._deadlines.set(_make_sync_key(group), now_ms + group.rebalance_timeout_ms)

    def _remove(self, group: ClassicGroup, member_id: str) -> ClassicGroupMember | None:
        self._deadlines.cancel(group.make_session_key(member_id))
        return group.remove(member_id)

    def remove_and_rebalance(
        self, group: ClassicGroup, member_ids: Sequence[str], now_ms: int, draft: ResultDraft
    ) -> None:
        """Advance the rebalance after members have been removed."""
        removed = [self._remove(group, member_id) for member_id in member_ids]
        for member in removed:
            if member is not None and member.join_token is not None:
                draft.reply(member.join_token, build_join_error("", ErrorCode.unknown_member_id))
            if member is not None and member.sync_token is not None:
                draft.reply(member.sync_token, make_error_response(ErrorCode.unknown_member_id))
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            # A first rebalance without members needs not wait for others.
            if group.all_joined and not (
                group.members and group.previous_state is ClassicGroupState.EMPTY
            ):
                self._complete_join(group, now_ms, draft)
        elif any(removed) and group.can_rebalance:
            self.prepare(group, now_ms, draft)

    def assign(
        self, group: ClassicGroup, assignments: Mapping[str, bytes], now_ms: int, draft: ResultDraft
    ) -> None:
        """Write the leader's assignment. The replay of its record makes the group stable."""
        draft.records.append(group.snapshot(now_ms, assignments).to_record(group.group_id))
        self.completed += 1
        for member in group.members.values():
            if member.sync_token is not None:
                assignment = assignments.get(member.member_id, b"")
                draft.reply(member.sync_token, build_sync_response(group, assignment))
                member.sync_token = None
                # Sessions do not expire while a member waits for the leader.
                group.extend_session(member, now_ms, self._deadlines)

    def _answer_syncs(
        self, group: ClassicGroup, now_ms: int, draft: ResultDraft, error: ErrorCode
    ) -> None:
        for member in group.members.values():
            if member.sync_token is not None:
                draft.reply(member.sync_token, make_error_response(error))
                member.sync_token = None
                group.extend_session(member, now_ms, self._deadlines)

    def on_sync_deadline(self, group: ClassicGroup, now_ms: int, draft: ResultDraft) -> None:
        """The deadline of the syncs. Members that have sent none are removed."""
        if group.state in (ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE):
            self.remove_and_rebalance(group, list(group.pending_syncs), now_ms, draft)

    def on_sync(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """Stop waiting for the sync of a member."""
        group.pending_syncs.pop(member.member_id, None)
        if not group.pending_syncs:
            self._deadlines.cancel(_make_sync_key(group))

    def cancel(self, group: ClassicGroup) -> None:
        """Cancel the deadlines of a group that is removed."""
        self._deadlines.cancel(_make_join_key(group))
        self._deadlines.cancel(_make_sync_key(group))


def _make_join_key(group: ClassicGroup) -> Key:
    return ("classic", "join", group.group_id)


def _make_sync_key(group: ClassicGroup) -> Key:
    return ("classic", "sync", group.group_id)


def _elect_joined_leader(group: ClassicGroup) -> bool:
    """Keep the leader if it has joined, else elect the first member that has. Returns False if no
    member has joined."""
    leader = group.members.get(group.leader or "")
    if leader is not None and leader.join_token is not None:
        return True
    joined_ids = (m.member_id for m in group.members.values() if m.join_token is not None)
    first = next(joined_ids, None)
    if first is not None:
        group.leader = first
    return first is not None


def build_join_response(
    group: ClassicGroup, member: ClassicGroupMember, with_members: bool = True
) -> responses.JoinGroupResponse:
    """A successful JoinGroup response. The leader's has the metadata of all members."""
    members: list[responses.JoinGroupResponseMember] = []
    if with_members and group.leader == member.member_id:
        members = [
            {
                "member_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "metadata": m.get_metadata(group.protocol_name),
            }
            for m in group.members.values()
        ]
    return {
        "error_code": ErrorCode.none,
        "generation_id": group.generation_id,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "leader": group.leader or "",
        "skip_assignment": False,
        "member_id": member.member_id,
        "members": members,
    }


def build_sync_response(group: ClassicGroup, assignment: bytes) -> responses.SyncGroupResponse:
    """A successful SyncGroup response."""
    return {
        "error_code": ErrorCode.none,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "assignment": assignment,
    }
