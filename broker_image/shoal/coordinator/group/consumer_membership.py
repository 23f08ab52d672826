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

from shoal.coordinator.group import key_slots
from shoal.coordinator.group.assignment import EMPTY, Assignment, on_wire
from shoal.coordinator.group.consumer_group import (
    LEFT_STATIC_MEMBER_EPOCH,
    ConsumerGroup,
    Member,
    Regex,
    regex_tombstone,
)
from shoal.coordinator.group.consumer_heartbeat import HeartbeatRequest as HeartbeatRequest
from shoal.coordinator.group.consumer_heartbeat import check, updated
from shoal.coordinator.group.consumer_target_assignment import TargetAssignments
from shoal.coordinator.group.groups import Context, Draft, Group
from shoal.coordinator.group.key_slots import NO_SLICES, Slices
from shoal.coordinator.group.modern_membership import (
    HEARTBEATS_PER_S,
    WAITING_HEARTBEAT_INTERVAL_MS,
    ModernGroups,
)
from shoal.coordinator.group.reconciliation import (
    NONE,
    CurrentAssignment,
    MemberState,
    is_subset,
    reconcile,
)
from shoal.coordinator.group.records import RecordType
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.coordinator.contract import Result, Token
    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.consumer_heartbeat import Describes


class Migration(Protocol):
    """Moves a group between the classic and the consumer protocol (`consumer_classic`)."""

    def upgrade(self, classic: Group, draft: Draft, now_ms: int) -> ConsumerGroup:
        """Return the consumer group that replaces `classic`. Its records are in the draft."""

    def downgrade(
        self, group: ConsumerGroup, leaving: Sequence[str], draft: Draft, now_ms: int
    ) -> bool:
        """Replace the group by a classic group if only classic members remain. Returns whether it
        was replaced."""


class ConsumerGroups(ModernGroups[ConsumerGroup, TargetAssignments]):
    """The consumer groups of one shard."""

    def __init__(self, context: Context, migration: Migration | None = None) -> None:
        super().__init__(context, ConsumerGroup, TargetAssignments(context))
        self.migration = migration
        #: The connection of the last heartbeat of each member that shares. Soft state.
        self._connections: dict[Key, str] = {}
        self.replays |= {
            RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION: self._replay_regex,
            # Brokers before Kafka 4.1 wrote it. The metadata hash of the group replaces it.
            RecordType.CONSUMER_GROUP_PARTITION_METADATA: lambda _key, _value, _at: None,
        }

    # Requests.

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        """ConsumerGroupHeartbeat v0-1. Raises `ApiError` to refuse it."""
        check(request, self.assignor_names)
        if request.leaves:
            return self._leave(request, now_ms, token)
        draft = Draft()
        joins = request.member_epoch == 0
        group = self._group(request.group_id, draft, now_ms, create=joins)
        known = self._known_member(group, request, draft)
        before = known.current
        member = self.advance(
            group,
            known,
            updated(known, request),
            request.owned,
            draft,
            now_ms,
            owned_slices=request.owned_slices,
            describes=request.describes,
            balances=self._targets.measure(group, known, request.loads, now_ms),
        )
        self.deadline_session(group, member, now_ms)
        self._note_connection(group, member, request.connection_id)
        response: dict[str, Any] = {
            "member_id": member.member_id,
            "member_epoch": member.current.member_epoch,
            "heartbeat_interval_ms": self._heartbeat_interval_ms(group, member),
        }
        due = joins or request.is_full or _differs(member.current, before)
        if self.tells_assignment(group, member.member_id, request.connection_id, due=due):
            response["assignment"] = _assignment(member)
        draft.reply(token, response)
        return draft.result()

    def _leave(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        group = self._find(request.group_id)
        draft = Draft()
        draft.reply(token, {"member_id": request.member_id, "member_epoch": request.member_epoch})
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = owner_of_instance(group, request.instance_id, request.member_id)
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
            draft.records.append(group.current_record(replace(member, current=current)))
            self.context.deadlines.cancel(self.key("rebalance", group, member.member_id))
        else:
            self.fence(group, [member.member_id], draft, now_ms)
        return draft.result()

    # The steps of a heartbeat.

    def _group(self, group_id: str, draft: Draft, now_ms: int, *, create: bool) -> ConsumerGroup:
        found = self.context.groups.get(group_id)
        if isinstance(found, ConsumerGroup) or not create:
            return self._find(group_id)
        # A decision that was refused may have left soft state of this id.
        self.forget(group_id)
        if found is None:
            return ConsumerGroup(group_id)
        if self.migration is not None:
            return self.migration.upgrade(found, draft, now_ms)
        return self._find(group_id)

    def _known_member(
        self, group: ConsumerGroup, request: HeartbeatRequest, draft: Draft
    ) -> Member:
        """The member before the request; a new one if it joins. Raises `ApiError`."""
        existing = group.static_member(request.instance_id)
        if request.member_id not in group.members and existing is None:
            self.check_size(group)
        if request.member_epoch != 0:
            if request.instance_id is not None:
                member = owner_of_instance(group, request.instance_id, request.member_id)
            else:
                member = group.member(request.member_id)
            self._check_epoch(member, request)
            return member
        if existing is None:
            return group.members.get(request.member_id) or Member(request.member_id)
        if existing.classic is None and not existing.has_left:
            raise ApiError(
                ErrorCode.unreleased_instance_id,
                f"Static member {request.member_id} with instance id {request.instance_id} cannot "
                f"join the group because the instance id is owned by member {existing.member_id}.",
            )
        return self.take_over(group, existing, request.member_id, draft)

    def _check_epoch(self, member: Member, request: HeartbeatRequest) -> None:
        """Raises FENCED_MEMBER_EPOCH."""
        epoch, known = request.member_epoch, member.current
        if epoch == known.member_epoch:
            return
        # If the response that bumped the epoch was lost, the member owns no new partition yet.
        if epoch == known.previous_member_epoch and epoch < known.member_epoch:
            slices = request.owned_slices, known.slices
            if is_subset(request.owned, known.assigned, *slices):
                return
        raise self.fenced(epoch, stored=known.member_epoch, known=known.member_epoch)

    def take_over(
        self, group: ConsumerGroup, existing: Member, member_id: str, draft: Draft
    ) -> Member:
        """Replace the member id of a static member that rejoins. It keeps its partitions."""
        current = replace(existing.current, member_epoch=0, previous_member_epoch=0)
        member = replace(existing, member_id=member_id, current=current)
        draft.records += group.member_tombstones(existing.member_id)
        draft.records.append(group.member_record(member))
        target = group.target.get(existing.member_id, EMPTY)
        slices = group.target_slices.get(existing.member_id)
        draft.records.append(group.target_record(member_id, target, slices))
        draft.records.append(group.current_record(member))
        if existing.member_id != member_id:
            self.cancel_deadlines(group, existing)
        return member

    def advance(
        self,
        group: ConsumerGroup,
        known: Member,
        member: Member,
        owned: Assignment | None,
        draft: Draft,
        now_ms: int,
        *,
        owned_slices: Slices = NO_SLICES,
        describes: Describes | None = None,
        balances: bool = False,
    ) -> Member:
        """Update `known` to `member`, and move it one step towards its target.

        `describes` decides which topics the member may describe; None for all. With `balances` the
        key ranges are divided again by their load. Returns the member after the replay of the
        draft's records.
        """
        changed = self._note_member(group, known, member, draft)
        members = group.with_member(member)
        regexes = self._targets.regexes(
            group, members, draft, now_ms, by=member, describes=describes
        )
        bump = changed or balances
        epoch = self._targets.epoch(group, members, regexes, draft, bump=bump)
        target = self._targets.of_member(group, members, regexes, member, epoch, draft, now_ms)
        current = reconcile(
            member.current,
            target,
            free=lambda topic, partition: group.free_slots((topic, partition), member),
            owned=owned,
            owned_slices=owned_slices,
            subscription_changed=changed,
        )
        if current is not member.current:
            member = replace(member, current=current)
            draft.records.append(group.current_record(member))
            self._deadline_rebalance(group, member, now_ms)
        return member

    def _note_member(
        self, group: ConsumerGroup, known: Member, member: Member, draft: Draft
    ) -> bool:
        """Write the member's record if it has changed. Returns whether its subscription has."""
        if member == known and known.member_id in group.members:
            return False
        if member != known or known.instance_id is None:
            draft.records.append(group.member_record(member))
        return (
            member.subscribed_topic_names != known.subscribed_topic_names
            or member.subscribed_topic_regex != known.subscribed_topic_regex
            or member.shares != known.shares
        )

    def fence(
        self, group: ConsumerGroup, member_ids: Sequence[str], draft: Draft, now_ms: int
    ) -> None:
        """Remove members from the group. The next heartbeat computes a new target assignment."""
        for member_id in member_ids:
            self.cancel_deadlines(group, group.members[member_id])
        if self.migration is not None and self.migration.downgrade(
            group, member_ids, draft, now_ms
        ):
            return
        for member_id in member_ids:
            draft.records += group.member_tombstones(member_id)
        left = {m: member for m, member in group.members.items() if m not in member_ids}
        wanted = {m.subscribed_topic_regex for m in left.values()}
        for regex in sorted(set(group.regexes) - wanted):
            draft.records.append(regex_tombstone(group.group_id, regex))
        names = group.subscribed_topic_names(left)
        metadata_hash = self._targets.metadata_hash(left.values(), names)
        record = group.epoch_record(group.epoch + 1, metadata_hash)
        draft.records.append(record)

    # Lost connections of members that share partitions.

    def _note_connection(self, group: ConsumerGroup, member: Member, connection_id: str) -> None:
        key = self.key("lost", group, member.member_id)
        self.context.deadlines.cancel(key)
        if member.shares and connection_id:
            self._connections[key] = connection_id
        else:
            self._connections.pop(key, None)

    def connection_lost(
        self, group_id: str, member_id: str, connection_id: str, now_ms: int
    ) -> None:
        """The connection of a member's last heartbeat was lost: fence the member unless its next
        one comes over another connection in time. Shoal's client sends that at once."""
        grace_ms = self.context.settings.shoal_group_consumer_connection_lost_grace_ms
        group = self.context.groups.get(group_id)
        if not grace_ms or not isinstance(group, ConsumerGroup) or member_id not in group.members:
            return
        key = self.key("lost", group, member_id)
        if self._connections.get(key) == connection_id:
            self.context.deadlines.set(key, now_ms + grace_ms)

    # Time.

    def member_loaded(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        member = group.members[member_id]
        self.deadline_session(group, member, now_ms)
        self._deadline_rebalance(group, member, now_ms)

    def assign_due(self, group: ConsumerGroup, draft: Draft, now_ms: int) -> None:
        self._targets.assign(group, group.members, group.regexes, group.epoch, draft, now_ms)

    def expire(self, group: ConsumerGroup, member_id: str, draft: Draft, now_ms: int) -> None:
        self.fence(group, [member_id], draft, now_ms)

    def deadline_session(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        """Extend the session of a member."""
        timeout_ms = (
            self._config(group, "consumer.session.timeout.ms")
            if member.classic is None
            else member.classic.session_timeout_ms
        )
        self.extend_session(group, member.member_id, timeout_ms, now_ms)

    def _deadline_rebalance(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        if member.classic is not None:
            return  # The deadlines of its join and its sync replace this one.
        key = self.key("rebalance", group, member.member_id)
        if member.current.state is MemberState.UNREVOKED_PARTITIONS:
            self.context.deadlines.set(key, now_ms + member.rebalance_timeout_ms)
        else:
            self.context.deadlines.cancel(key)

    def cancel_deadlines(self, group: ConsumerGroup, member: Member) -> None:
        for what in ("session", "rebalance", "join", "sync", "lost"):
            self.context.deadlines.cancel(self.key(what, group, member.member_id))
        self._connections.pop(self.key("lost", group, member.member_id), None)
        self.forget_member(group, member.member_id)

    def _heartbeat_interval_ms(self, group: ConsumerGroup, member: Member) -> int:
        interval_ms = self._config(group, "consumer.heartbeat.interval.ms")
        unreleased = member.current.state is MemberState.UNRELEASED_PARTITIONS
        if unreleased or self._targets.waits(group):
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
        group = self._replayed(key, value)
        if group is None:
            return
        if value is None:
            group.regexes.pop(key["regular_expression"], None)
        else:
            found = Regex(frozenset(value["topics"]), value["version"], value["timestamp"])
            group.regexes[key["regular_expression"]] = found


def owner_of_instance(group: ConsumerGroup, instance_id: str, member_id: str) -> Member:
    """The static member of that instance id. Raises unless it is `member_id`."""
    member = group.static_member(instance_id)
    if member is None:
        raise ApiError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise ApiError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def _differs(current: CurrentAssignment, before: CurrentAssignment) -> bool:
    """Whether the assignment has changed."""
    return (current.assigned, current.slices) != (before.assigned, before.slices)


def _assignment(member: Member) -> dict[str, Any]:
    """The assignment of a response. A member that does not share gets whole partitions only."""
    current = member.current
    whole = {
        t: [p for p in partitions if (t, p) not in current.slices]
        for t, partitions in current.assigned.items()
    }
    found: dict[str, Any] = {"topic_partitions": on_wire({t: p for t, p in whole.items() if p})}
    if member.shares and current.slices:
        found["key_ranges"] = key_slots.on_wire(current.slices)
    return found
