"""Decisions for groups of the consumer protocol (KIP-848).

A heartbeat does four things in turn, each perhaps with records: it updates what the member told of
itself; it bumps the group's epoch when subscriptions or their topics changed; it computes a target
assignment when that is behind the group's epoch (both in `consumer_target_assignment`); and it
moves the member one step towards its target. A member is fenced when its session ends, or when it
has not given up partitions within its rebalance timeout.

Members of the classic protocol in such a group are served by `consumer_classic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.deadlines import Key
from shoal.coordinator.group.assignment import EMPTY, Assignment, on_wire
from shoal.coordinator.group.consumer_group import (
    LEFT_STATIC_MEMBER_EPOCH,
    ConsumerGroup,
    Member,
    Regex,
    regex_tombstone,
)
from shoal.coordinator.group.consumer_heartbeat import LEAVE_EPOCH, check, updated
from shoal.coordinator.group.consumer_heartbeat import HeartbeatRequest as HeartbeatRequest
from shoal.coordinator.group.consumer_target_assignment import TargetAssignments
from shoal.coordinator.group.groups import Context, Draft, Group
from shoal.coordinator.group.reconciliation import NONE, MemberState, is_subset, reconcile
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.group.replays import Replays
from shoal.coordinator.group.topics import Catalog
from shoal.protocol.errors import ApiError, ErrorCode

#: How soon a member is asked again while it waits for a target, or for what others still hold:
#: a rebalance then takes as long as its slowest owner, and not an interval longer.
WAITING_HEARTBEAT_INTERVAL_MS = 500


class Migration(Protocol):
    """Moves a group between the classic and the consumer protocol (`consumer_classic`)."""

    def upgrade(self, classic: Group, draft: Draft, now_ms: int) -> ConsumerGroup:
        """The group that `classic` becomes; its records are in the draft."""

    def downgrade(
        self, group: ConsumerGroup, leaving: Sequence[str], draft: Draft, now_ms: int
    ) -> bool:
        """Make a classic group of it, if none but classic members are left."""


class ConsumerGroups:
    """The consumer groups of one shard."""

    name = "consumer"

    def __init__(self, context: Context, migration: Migration | None = None) -> None:
        self.context = context
        self.migration = migration
        self._targets = TargetAssignments(context)
        self._replays = Replays(context.groups, ConsumerGroup)
        self.replays = {
            RecordType.CONSUMER_GROUP_METADATA: self._replays.metadata,
            RecordType.CONSUMER_GROUP_MEMBER_METADATA: self._replays.member,
            RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: self._replays.target_metadata,
            RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: self._replays.target,
            RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: self._replays.current,
            RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION: self._replay_regex,
            # Written by brokers before Kafka 4.1; the group's metadata hash stands for it now.
            RecordType.CONSUMER_GROUP_PARTITION_METADATA: lambda _key, _value, _at: None,
        }

    # Requests.

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        """ConsumerGroupHeartbeat v0-1. Raises `ApiError` for what is refused."""
        check(request, self.assignor_names)
        if request.member_epoch in (LEAVE_EPOCH, LEFT_STATIC_MEMBER_EPOCH):
            return self._leave(request, now_ms, token)
        draft = Draft()
        joins = request.member_epoch == 0
        group = self._group(request.group_id, draft, now_ms, create=joins)
        known = self._known_member(group, request, draft)
        before = known.current.assigned
        member = self.advance(group, known, updated(known, request), request.owned, draft, now_ms)
        self.deadline_session(group, member, now_ms)
        response: dict[str, Any] = {
            "member_id": member.member_id,
            "member_epoch": member.current.member_epoch,
            "heartbeat_interval_ms": self._heartbeat_interval_ms(group, member),
        }
        if joins or request.is_full or member.current.assigned != before:
            assigned = {t: tuple(p) for t, p in member.current.assigned.items()}
            response["assignment"] = {"topic_partitions": on_wire(assigned)}
        draft.reply(token, response)
        return draft.result()

    def describe(self, group_id: str, token: Token) -> Result:
        """One group of ConsumerGroupDescribe v0-1. Raises GROUP_ID_NOT_FOUND."""
        group = self.context.groups.find_of(group_id, ConsumerGroup)
        described = group.describe(self.catalog, self.assignor_names[0])
        return Result(replies=(Reply(token, described),))

    def _leave(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        group = self.context.groups.find_of(request.group_id, ConsumerGroup)
        draft = Draft()
        draft.reply(token, {"member_id": request.member_id, "member_epoch": request.member_epoch})
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = owner_of_instance(group, request.instance_id, request.member_id)
        if request.member_epoch == LEFT_STATIC_MEMBER_EPOCH:
            # It keeps its partitions until it comes back, or its session ends.
            assigned = {t: dict.fromkeys(p, 0) for t, p in member.current.assigned.items()}
            current = replace(
                member.current,
                member_epoch=LEFT_STATIC_MEMBER_EPOCH,
                assigned=assigned,
                pending_revocation=NONE,
            )
            draft.records.append(group.current_record(replace(member, current=current)))
            self.context.deadlines.cancel(self.key("rebalance", group, member))
        else:
            self.fence(group, [member.member_id], draft, now_ms)
        return draft.result()

    # The steps of a heartbeat.

    def _group(self, group_id: str, draft: Draft, now_ms: int, *, create: bool) -> ConsumerGroup:
        found = self.context.groups.get(group_id)
        if found is None and create:
            return ConsumerGroup(group_id)
        if create and self.migration is not None and found is not None:
            if not isinstance(found, ConsumerGroup):
                return self.migration.upgrade(found, draft, now_ms)
        return self.context.groups.find_of(group_id, ConsumerGroup)

    def _known_member(
        self, group: ConsumerGroup, request: HeartbeatRequest, draft: Draft
    ) -> Member:
        """The member as it is; a new one if it joins. Raises what the request is refused with."""
        existing = group.static_member(request.instance_id)
        if request.member_id not in group.members and existing is None:
            self.check_room(group)
        if request.member_epoch != 0:
            if request.instance_id is not None:
                member = owner_of_instance(group, request.instance_id, request.member_id)
            else:
                member = group.member(request.member_id)
            _check_epoch(member, request)
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

    def check_room(self, group: ConsumerGroup) -> None:
        """Raises GROUP_MAX_SIZE_REACHED when no further member may join."""
        limit = self.context.settings.group_consumer_max_size
        if len(group.members) >= limit:
            raise ApiError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def take_over(
        self, group: ConsumerGroup, existing: Member, member_id: str, draft: Draft
    ) -> Member:
        """A static member is back under a new id: it owns what it owned before."""
        current = replace(existing.current, member_epoch=0, previous_member_epoch=0)
        member = replace(existing, member_id=member_id, current=current)
        draft.records += group.member_tombstones(existing.member_id)
        draft.records.append(group.member_record(member))
        target = group.target.get(existing.member_id, EMPTY)
        draft.records.append(group.target_record(member_id, target))
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
    ) -> Member:
        """Take `known` to what it says it is now, and a step towards its target.

        Gives the member as it will be once the draft's records are replayed.
        """
        changed = self._note_member(group, known, member, draft)
        members = group.with_member(member)
        regexes = self._targets.regexes(group, members, draft, now_ms)
        epoch = self._targets.epoch(group, members, regexes, draft, bump=changed)
        target = self._targets.of_member(group, members, regexes, member, epoch, draft, now_ms)
        current = reconcile(
            member.current,
            target,
            free=lambda topic, partition: group.is_free((topic, partition), member),
            owned=owned,
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
        """Record what the member told; whether its subscription changed."""
        if member == known and known.member_id in group.members:
            return False
        if member != known or known.instance_id is None:
            draft.records.append(group.member_record(member))
        return (
            member.subscribed_topic_names != known.subscribed_topic_names
            or member.subscribed_topic_regex != known.subscribed_topic_regex
        )

    def fence(
        self, group: ConsumerGroup, member_ids: Sequence[str], draft: Draft, now_ms: int
    ) -> None:
        """Take members out of the group; the rest is assigned anew at the next heartbeat."""
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
        record = group.epoch_record(group.epoch + 1, self.catalog.hash_of(names))
        draft.records.append(record)

    # Time.

    def loaded(self, now_ms: int) -> None:
        for group in self._all():
            for member in group.members.values():
                self.deadline_session(group, member, now_ms)
                self._deadline_rebalance(group, member, now_ms)

    def due(self, key: Key, now_ms: int) -> Result:
        _, what, group_id, *rest = key
        group = self.context.groups.get(group_id)
        draft = Draft()
        if not isinstance(group, ConsumerGroup):
            return draft.result()
        if what == "assignment":
            if group.members and group.epoch > group.assignment_epoch:
                self._targets.assign(
                    group, group.members, group.regexes, group.epoch, draft, now_ms
                )
        elif rest and rest[0] in group.members:
            self.fence(group, [rest[0]], draft, now_ms)
        return draft.result()

    def metadata_changed(self, deleted: Sequence[tuple[str, UUID]], now_ms: int) -> Result:
        for group in self._all():
            group.is_fresh = False
        return Result()

    def deadline_session(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        """A member is alive: its session starts anew."""
        timeout_ms = (
            self._config(group, "consumer.session.timeout.ms")
            if member.classic is None
            else member.classic.session_timeout_ms
        )
        self.context.deadlines.set(self.key("session", group, member), now_ms + timeout_ms)

    def _deadline_rebalance(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        if member.classic is not None:
            return  # It has to join and sync in time instead.
        key = self.key("rebalance", group, member)
        if member.current.state is MemberState.UNREVOKED_PARTITIONS:
            self.context.deadlines.set(key, now_ms + member.rebalance_timeout_ms)
        else:
            self.context.deadlines.cancel(key)

    def cancel_deadlines(self, group: ConsumerGroup, member: Member) -> None:
        for what in ("session", "rebalance", "join", "sync"):
            self.context.deadlines.cancel(self.key(what, group, member))

    def key(self, what: str, group: ConsumerGroup, member: Member) -> Key:
        return (self.name, what, group.group_id, member.member_id)

    def _heartbeat_interval_ms(self, group: ConsumerGroup, member: Member) -> int:
        interval_ms = self._config(group, "consumer.heartbeat.interval.ms")
        held = member.current.state is MemberState.UNRELEASED_PARTITIONS
        waits = held or self._targets.waits(group)
        return min(interval_ms, WAITING_HEARTBEAT_INTERVAL_MS) if waits else interval_ms

    # What is set, and what is there.

    @property
    def rebalances(self) -> int:
        """Assignments made since the shard was loaded, for metrics."""
        return self._targets.made

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.context.image)

    @property
    def assignor_names(self) -> Sequence[str]:
        return self.context.settings.group_consumer_assignors

    def _config(self, group: ConsumerGroup, name: str) -> int:
        return self.context.image.group_config(group.group_id)[name]

    def _all(self) -> list[ConsumerGroup]:
        return [g for g in self.context.groups if isinstance(g, ConsumerGroup)]

    # Replay of what is not as with other groups.

    def _replay_regex(self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any) -> None:
        group = self._replays.group(key["group_id"], create=value is not None)
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


def _check_epoch(member: Member, request: HeartbeatRequest) -> None:
    epoch, known = request.member_epoch, member.current
    if epoch == known.member_epoch:
        return
    # The answer that bumped the epoch may have been lost: then the member owns nothing new yet.
    if epoch == known.previous_member_epoch and epoch < known.member_epoch:
        if is_subset(request.owned, known.assigned):
            return
    relation = "greater" if epoch > known.member_epoch else "smaller"
    raise ApiError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by "
        f"the group coordinator ({known.member_epoch}). The member must abandon all its "
        "partitions and rejoin.",
    )
