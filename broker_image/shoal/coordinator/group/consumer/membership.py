"""Decisions for groups of the consumer protocol (KIP-848).

A heartbeat has four steps, and each may write records. It updates the member. It bumps the group
epoch if subscriptions or the metadata of their topics have changed. It computes a target assignment
if that is behind the group epoch (both in `consumer_target_assignment`). It moves the member one
step towards its target. A member is fenced when its session expires, or when it does not revoke
partitions within its rebalance timeout.

A member that may share partitions is replaced within a second (ADR 120). It is also fenced when its
connection was lost, after `shoal.group.consumer.connection.lost.grace.ms`. The heartbeat interval
of the others is at most `shoal.group.consumer.takeover.heartbeat.interval.ms`.

`consumer_classic` serves the members of the classic protocol in such a group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from shoal.coordinator.group.assignment import EMPTY, Assignment, to_wire
from shoal.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupMember,
    ResolvedRegularExpression,
    build_regex_tombstone,
)
from shoal.coordinator.group.consumer.heartbeat import (
    ConsumerGroupHeartbeatRequest as ConsumerGroupHeartbeatRequest,
)
from shoal.coordinator.group.consumer.heartbeat import apply_request, check
from shoal.coordinator.group.consumer.reconciliation import (
    NONE,
    CurrentAssignment,
    MemberState,
    is_subset,
    reconcile,
)
from shoal.coordinator.group.consumer.target_assignment import ConsumerTargetAssignments
from shoal.coordinator.group.groups import Group, ResultDraft, ShardContext
from shoal.coordinator.group.key_ranges import key_slots
from shoal.coordinator.group.key_ranges.key_slots import NO_SLICES, Slices
from shoal.coordinator.group.modern.membership import (
    HEARTBEATS_PER_S,
    WAITING_HEARTBEAT_INTERVAL_MS,
    ModernGroupManager,
)
from shoal.coordinator.group.modern.static_members import (
    LEFT_STATIC_MEMBER_EPOCH,
    make_unreleased_error,
)
from shoal.coordinator.group.records import RecordType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.coordinator.contract import CoordinatorResult, Token
    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.consumer.heartbeat import Describes
    from shoal.protocol.responses import groups as responses


class Migration(Protocol):
    """Moves a group between the classic and the consumer protocol (`consumer_classic`)."""

    def upgrade(self, classic: Group, draft: ResultDraft, now_ms: int) -> ConsumerGroup:
        """Return the consumer group that replaces `classic`. Its records are in the draft."""

    def downgrade(
        self, group: ConsumerGroup, leaving: Sequence[str], draft: ResultDraft, now_ms: int
    ) -> bool:
        """Replace the group by a classic group if only classic members remain. Returns whether it
        was replaced."""


class ConsumerGroupManager(ModernGroupManager[ConsumerGroup, ConsumerTargetAssignments]):
    """The consumer groups of one shard."""

    def __init__(self, context: ShardContext, migration: Migration | None = None) -> None:
        super().__init__(context, ConsumerGroup, ConsumerTargetAssignments(context))
        self.migration = migration
        #: The connection of the last heartbeat of each member that shares. Soft state.
        self._connections: dict[Key, str] = {}
        self.replays |= {
            RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION: self._replay_regex,
            # Brokers before Kafka 4.1 wrote it. The metadata hash of the group replaces it.
            RecordType.CONSUMER_GROUP_PARTITION_METADATA: lambda _key, _value, _at: None,
        }

    # Requests.

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, now_ms: int, token: Token
    ) -> CoordinatorResult:
        """ConsumerGroupHeartbeat v0-1. Raises `ApiError` to refuse it."""
        check(request, self.assignor_names)
        if request.leaves:
            return self._leave(request, now_ms, token)
        draft = ResultDraft()
        joins = request.member_epoch == 0
        group = self._find_or_create_group(request.group_id, draft, now_ms, create=joins)
        previous = self._find_or_create_member(group, request, draft)
        before = previous.current
        member = self.advance(
            group,
            previous,
            apply_request(previous, request),
            request.owned,
            draft,
            now_ms,
            owned_slices=request.owned_slices,
            describes=request.describes,
            balances=self._targets.measure(group, previous, request.loads, now_ms),
        )
        self.set_session_deadline(group, member, now_ms)
        self._note_connection(group, member, request.connection_id)
        response: responses.ConsumerGroupHeartbeatResponse = {
            "member_id": member.member_id,
            "member_epoch": member.current.member_epoch,
            "heartbeat_interval_ms": self._compute_interval_ms(group, member),
        }
        due = joins or request.is_full or _has_changed(member.current, before)
        if self.should_send_assignment(group, member.member_id, request.connection_id, due=due):
            response["assignment"] = _build_assignment(member)
        draft.reply(token, response)
        return draft.to_result()

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, now_ms: int, token: Token
    ) -> CoordinatorResult:
        group = self._find(request.group_id)
        draft = ResultDraft()
        response: responses.ConsumerGroupHeartbeatResponse = {
            "member_id": request.member_id,
            "member_epoch": request.member_epoch,
        }
        draft.reply(token, response)
        member = group.get_named_member(request.member_id, request.instance_id)
        if request.member_epoch == LEFT_STATIC_MEMBER_EPOCH:
            # It keeps its partitions until it rejoins or its session expires.
            assigned = {t: dict.fromkeys(p, 0) for t, p in member.current.assigned.items()}
            current = replace(
                member.current,
                member_epoch=LEFT_STATIC_MEMBER_EPOCH,
                assigned=assigned,
                pending_revocation=NONE,
                pending_slices={},
            )
            draft.records.append(group.build_current_record(replace(member, current=current)))
            self.context.deadlines.cancel(self.make_key("rebalance", group, member.member_id))
        else:
            self.fence(group, [member.member_id], draft, now_ms)
        return draft.to_result()

    # The steps of a heartbeat.

    def _find_or_create_group(
        self, group_id: str, draft: ResultDraft, now_ms: int, *, create: bool
    ) -> ConsumerGroup:
        existing = self.context.groups.get(group_id)
        if isinstance(existing, ConsumerGroup) or not create:
            return self._find(group_id)
        # A decision that was refused may have left soft state of this id.
        self.forget(group_id)
        if existing is None:
            return ConsumerGroup(group_id)
        if self.migration is not None:
            return self.migration.upgrade(existing, draft, now_ms)
        return self._find(group_id)

    def _find_or_create_member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, draft: ResultDraft
    ) -> ConsumerGroupMember:
        """The member before the request; a new one if it joins. Raises `ApiError`."""
        existing = group.find_static_member(request.instance_id)
        if request.member_id not in group.members and existing is None:
            self.check_size(group)
        if request.member_epoch != 0:
            member = group.get_named_member(request.member_id, request.instance_id)
            self._check_epoch(member, request)
            return member
        if existing is None:
            return group.members.get(request.member_id) or ConsumerGroupMember(request.member_id)
        if existing.classic is None and not existing.has_left:
            raise make_unreleased_error(existing, request.member_id)
        return self.take_over(group, existing, request.member_id, draft)

    def _check_epoch(
        self, member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest
    ) -> None:
        """Raises FENCED_MEMBER_EPOCH."""
        epoch, current = request.member_epoch, member.current
        if epoch == current.member_epoch:
            return
        # If the response that bumped the epoch was lost, the member owns no new partition yet.
        if epoch == current.previous_member_epoch and epoch < current.member_epoch:
            slices = request.owned_slices, current.slices
            if is_subset(request.owned, current.assigned, *slices):
                return
        raise self.make_fenced_error(
            epoch, stored=current.member_epoch, current=current.member_epoch
        )

    def take_over(
        self,
        group: ConsumerGroup,
        existing: ConsumerGroupMember,
        member_id: str,
        draft: ResultDraft,
    ) -> ConsumerGroupMember:
        """Replace the member id of a static member that rejoins. It keeps its partitions."""
        current = replace(existing.current, member_epoch=0, previous_member_epoch=0)
        member = replace(existing, member_id=member_id, current=current)
        draft.records += group.build_member_tombstones(existing.member_id)
        draft.records.append(group.build_member_record(member))
        target = group.target.get(existing.member_id, EMPTY)
        slices = group.target_slices.get(existing.member_id)
        draft.records.append(group.build_target_record(member_id, target, slices))
        draft.records.append(group.build_current_record(member))
        if existing.member_id != member_id:
            self.cancel_deadlines(group, existing)
        return member

    def advance(
        self,
        group: ConsumerGroup,
        previous: ConsumerGroupMember,
        member: ConsumerGroupMember,
        owned: Assignment | None,
        draft: ResultDraft,
        now_ms: int,
        *,
        owned_slices: Slices = NO_SLICES,
        describes: Describes | None = None,
        balances: bool = False,
    ) -> ConsumerGroupMember:
        """Update `previous` to `member`, and move it one step towards its target.

        `describes` decides which topics the member may describe; None for all. With `balances` the
        key ranges are divided again by their load. Returns the member after the replay of the
        draft's records.
        """
        changed = self._note_member(group, previous, member, draft)
        members = group.with_member(member)
        regexes = self._targets.evaluate_regexes(
            group, members, draft, now_ms, by=member, describes=describes
        )
        bump = changed or balances
        epoch = self._targets.update_epoch(group, members, regexes, draft, bump=bump)
        target = self._targets.get_member_target(
            group, members, regexes, member, epoch, draft, now_ms
        )
        current = reconcile(
            member.current,
            target,
            free=lambda topic, partition: group.find_free_slots((topic, partition), member),
            owned=owned,
            owned_slices=owned_slices,
            subscription_changed=changed,
        )
        if current is not member.current:
            member = replace(member, current=current)
            draft.records.append(group.build_current_record(member))
            self._set_rebalance_deadline(group, member, now_ms)
        return member

    def _note_member(
        self,
        group: ConsumerGroup,
        previous: ConsumerGroupMember,
        member: ConsumerGroupMember,
        draft: ResultDraft,
    ) -> bool:
        """Write the member's record if it has changed. Returns whether its subscription has."""
        if member == previous and previous.member_id in group.members:
            return False
        if member != previous or previous.instance_id is None:
            draft.records.append(group.build_member_record(member))
        return (
            member.subscribed_topic_names != previous.subscribed_topic_names
            or member.subscribed_topic_regex != previous.subscribed_topic_regex
            or member.shares != previous.shares
        )

    def fence(
        self, group: ConsumerGroup, member_ids: Sequence[str], draft: ResultDraft, now_ms: int
    ) -> None:
        """Remove members from the group. The next heartbeat computes a new target assignment."""
        for member_id in member_ids:
            self.cancel_deadlines(group, group.members[member_id])
        if self.migration is not None and self.migration.downgrade(
            group, member_ids, draft, now_ms
        ):
            return
        for member_id in member_ids:
            draft.records += group.build_member_tombstones(member_id)
        remaining = {m: member for m, member in group.members.items() if m not in member_ids}
        used_regexes = {m.subscribed_topic_regex for m in remaining.values()}
        for regex in sorted(set(group.regexes) - used_regexes):
            draft.records.append(build_regex_tombstone(group.group_id, regex))
        names = group.get_subscribed_topics(remaining)
        metadata_hash = self._targets.compute_metadata_hash(remaining.values(), names)
        record = group.build_epoch_record(group.epoch + 1, metadata_hash)
        draft.records.append(record)

    # Lost connections of members that share partitions.

    def _note_connection(
        self, group: ConsumerGroup, member: ConsumerGroupMember, connection_id: str
    ) -> None:
        key = self.make_key("lost", group, member.member_id)
        self.context.deadlines.cancel(key)
        if member.shares and connection_id:
            self._connections[key] = connection_id
        else:
            self._connections.pop(key, None)

    def on_connection_lost(
        self, group_id: str, member_id: str, connection_id: str, now_ms: int
    ) -> None:
        """The connection of a member's last heartbeat was lost: fence the member unless its next
        one comes over another connection in time. Shoal's client sends that at once."""
        grace_ms = self.context.settings.shoal_group_consumer_connection_lost_grace_ms
        group = self.context.groups.get(group_id)
        if not grace_ms or not isinstance(group, ConsumerGroup) or member_id not in group.members:
            return
        key = self.make_key("lost", group, member_id)
        if self._connections.get(key) == connection_id:
            self.context.deadlines.set(key, now_ms + grace_ms)

    # Time.

    def on_member_loaded(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        member = group.members[member_id]
        self.set_session_deadline(group, member, now_ms)
        self._set_rebalance_deadline(group, member, now_ms)

    def assign_due(self, group: ConsumerGroup, draft: ResultDraft, now_ms: int) -> None:
        self._targets.assign(group, group.members, group.regexes, group.epoch, draft, now_ms)

    def expire(self, group: ConsumerGroup, member_id: str, draft: ResultDraft, now_ms: int) -> None:
        self.fence(group, [member_id], draft, now_ms)

    def set_session_deadline(
        self, group: ConsumerGroup, member: ConsumerGroupMember, now_ms: int
    ) -> None:
        """Extend the session of a member."""
        timeout_ms = (
            self._get_config(group, "consumer.session.timeout.ms")
            if member.classic is None
            else member.classic.session_timeout_ms
        )
        self.extend_session(group, member.member_id, timeout_ms, now_ms)

    def _set_rebalance_deadline(
        self, group: ConsumerGroup, member: ConsumerGroupMember, now_ms: int
    ) -> None:
        if member.classic is not None:
            return  # The deadlines of its join and its sync replace this one.
        key = self.make_key("rebalance", group, member.member_id)
        if member.current.state is MemberState.UNREVOKED_PARTITIONS:
            self.context.deadlines.set(key, now_ms + member.rebalance_timeout_ms)
        else:
            self.context.deadlines.cancel(key)

    def cancel_deadlines(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        for kind in ("session", "rebalance", "join", "sync", "lost"):
            self.context.deadlines.cancel(self.make_key(kind, group, member.member_id))
        self._connections.pop(self.make_key("lost", group, member.member_id), None)
        self.forget_member(group, member.member_id)

    def _compute_interval_ms(self, group: ConsumerGroup, member: ConsumerGroupMember) -> int:
        interval_ms = self._get_config(group, "consumer.heartbeat.interval.ms")
        unreleased = member.current.state is MemberState.UNRELEASED_PARTITIONS
        if unreleased or self._targets.is_postponed(group):
            interval_ms = min(interval_ms, WAITING_HEARTBEAT_INTERVAL_MS)
        takeover_ms = self.context.settings.shoal_group_consumer_takeover_heartbeat_interval_ms
        if member.shares and takeover_ms:
            least_ms = len(group.members) * 1_000 // HEARTBEATS_PER_S
            interval_ms = min(interval_ms, max(takeover_ms, least_ms))
        return interval_ms

    # Configs.

    @property
    def assignor_names(self) -> Sequence[str]:
        return self.context.settings.group_consumer_assignors

    @property
    def default_assignor(self) -> str:
        return self.assignor_names[0]

    @property
    def max_size(self) -> int:
        return self.context.settings.group_consumer_max_size

    # Replay.

    def _replay_regex(self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any) -> None:
        group = self._get_replayed_group(key, value)
        if group is None:
            return
        if value is None:
            group.regexes.pop(key["regular_expression"], None)
        else:
            resolved = ResolvedRegularExpression(
                frozenset(value["topics"]), value["version"], value["timestamp"]
            )
            group.regexes[key["regular_expression"]] = resolved


def _has_changed(current: CurrentAssignment, before: CurrentAssignment) -> bool:
    """Whether the assignment has changed."""
    return (current.assigned, current.slices) != (before.assigned, before.slices)


def _build_assignment(
    member: ConsumerGroupMember,
) -> responses.ConsumerGroupHeartbeatAssignment:
    """The assignment of a response. A member that does not share gets whole partitions only."""
    current = member.current
    whole_partitions = {
        t: [p for p in partitions if (t, p) not in current.slices]
        for t, partitions in current.assigned.items()
    }
    assignment: responses.ConsumerGroupHeartbeatAssignment = {
        "topic_partitions": to_wire({t: p for t, p in whole_partitions.items() if p})
    }
    if member.shares and current.slices:
        assignment["key_ranges"] = key_slots.to_wire(current.slices)
    return assignment
