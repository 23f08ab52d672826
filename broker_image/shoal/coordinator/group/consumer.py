"""Decisions for groups of the consumer protocol (KIP-848).

A heartbeat does four things in turn, each perhaps with records: it updates what the member told of
itself; it bumps the group's epoch when subscriptions or their topics changed; it computes a target
assignment when that is behind the group's epoch (not more often than the assignment interval
allows, KIP-1263); and it moves the member one step towards its target. A member is fenced when its
session ends, or when it has not given up partitions within its rebalance timeout.

Members of the classic protocol in such a group are served by `consumer_classic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.deadlines import Key
from shoal.coordinator.group import patterns, uniform
from shoal.coordinator.group import range as range_assignor
from shoal.coordinator.group.assignment import (
    EMPTY,
    Assignment,
    GroupSpec,
    MemberSpec,
    on_wire,
)
from shoal.coordinator.group.consumer_group import (
    LEFT_STATIC_MEMBER_EPOCH,
    ConsumerGroup,
    Member,
    Regex,
    regex_tombstone,
    subscription,
)
from shoal.coordinator.group.groups import Context, Draft, Group
from shoal.coordinator.group.reconciliation import (
    NONE,
    MemberState,
    Target,
    is_subset,
    reconcile,
)
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.group.topics import Catalog
from shoal.protocol.errors import ApiError, ErrorCode

LEAVE_EPOCH = -1
ASSIGNORS: Mapping[str, Callable[[GroupSpec], dict[str, Assignment]]] = {
    uniform.NAME: uniform.assign,
    range_assignor.NAME: range_assignor.assign,
}
#: How soon a member is asked again while it waits for a target, or for what others still hold:
#: a rebalance then takes as long as its slowest owner, and not an interval longer.
WAITING_HEARTBEAT_INTERVAL_MS = 500


class HeartbeatRequest(NamedTuple):
    """ConsumerGroupHeartbeat. None means: as in the last heartbeat."""

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

    @property
    def is_full(self) -> bool:
        """It tells everything, as after an error: the answer then always has the assignment."""
        return (
            self.rebalance_timeout_ms != -1
            and (self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None)
            and self.owned is not None
        )


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
        #: Assignments made since the shard was loaded, for metrics.
        self.rebalances = 0
        self.replays = {
            RecordType.CONSUMER_GROUP_METADATA: self._replay_group,
            RecordType.CONSUMER_GROUP_MEMBER_METADATA: self._replay_member,
            RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: self._replay_target_metadata,
            RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: self._replay_target,
            RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: self._replay_current,
            RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION: self._replay_regex,
            # Written by brokers before Kafka 4.1; the group's metadata hash stands for it now.
            RecordType.CONSUMER_GROUP_PARTITION_METADATA: lambda _key, _value, _at: None,
        }

    # Requests.

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        """ConsumerGroupHeartbeat v0-1. Raises `ApiError` for what is refused."""
        _check(request, self.assignor_names)
        if request.member_epoch in (LEAVE_EPOCH, LEFT_STATIC_MEMBER_EPOCH):
            return self._leave(request, now_ms, token)
        draft = Draft()
        joins = request.member_epoch == 0
        group = self._group(request.group_id, draft, now_ms, create=joins)
        known = self._known_member(group, request, draft)
        before = known.current.assigned
        member = self.advance(group, known, _told(known, request), request.owned, draft, now_ms)
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
        regexes = self._regexes(group, members, draft, now_ms)
        epoch = self._epoch(group, members, regexes, draft, bump=changed)
        target = self._target(group, members, regexes, member, epoch, draft, now_ms)
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

    def _regexes(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        draft: Draft,
        now_ms: int,
    ) -> Mapping[str, Regex]:
        """The group's expressions and what they match, looked up anew where that is due."""
        wanted = sorted({m.subscribed_topic_regex for m in members.values()} - {""})
        found: dict[str, Regex] = {}
        if not wanted and not group.regexes:
            return found
        interval_ms = self.context.settings.group_consumer_regex_refresh_interval_ms
        if now_ms - group.regexes_checked_ms >= interval_ms:
            group.is_fresh = False
        if not group.is_fresh:
            group.regexes_checked_ms = now_ms
        names = None
        for regex in wanted:
            old = group.regexes.get(regex)
            if old is None or not group.is_fresh:
                names = self.catalog.names() if names is None else names
                topics = patterns.matching(regex, names)
                if old is None or topics != old.topics:
                    old = Regex(topics, self.catalog.version, now_ms)
                    draft.records.append(group.regex_record(regex, old))
            found[regex] = old
        for regex in sorted(set(group.regexes) - set(wanted)):
            draft.records.append(regex_tombstone(group.group_id, regex))
        return found

    def _epoch(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        regexes: Mapping[str, Regex],
        draft: Draft,
        *,
        bump: bool,
    ) -> int:
        """The group's epoch, bumped if anything that an assignment depends on has changed."""
        if not bump and group.is_fresh and regexes == group.regexes:
            return group.epoch
        names = group.subscribed_topic_names(members, regexes)
        metadata_hash = self.catalog.hash_of(names)
        group.is_fresh = True
        if not bump and metadata_hash == group.metadata_hash and regexes == group.regexes:
            return group.epoch
        draft.records.append(group.epoch_record(group.epoch + 1, metadata_hash))
        return group.epoch + 1

    def _target(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        regexes: Mapping[str, Regex],
        member: Member,
        epoch: int,
        draft: Draft,
        now_ms: int,
    ) -> Target:
        subscribed = self.catalog.ids_of(subscription(member, regexes))
        if epoch > group.assignment_epoch:
            due_ms = self._assignment_due_ms(group)
            if now_ms >= due_ms:
                assigned = self._assign(group, members, regexes, epoch, draft, now_ms)
                return Target(epoch, assigned.get(member.member_id, EMPTY), subscribed)
            self.context.deadlines.set((self.name, "assignment", group.group_id), due_ms)
        return Target(group.assignment_epoch, group.target_of(member), subscribed)

    def _assignment_due_ms(self, group: ConsumerGroup) -> int:
        if group.assignment_timestamp_ms == 0:
            return 0
        interval_ms = self._config(group, "consumer.assignment.interval.ms")
        return group.assignment_timestamp_ms + interval_ms

    def _assign(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        regexes: Mapping[str, Regex],
        epoch: int,
        draft: Draft,
        now_ms: int,
    ) -> Mapping[str, Assignment]:
        """Compute a target assignment and record what of it is new."""
        name = group.assignor_name(members.values(), self.assignor_names[0])
        specs = {
            m.member_id: MemberSpec(
                self.catalog.ids_of(subscription(m, regexes)), group.target_of(m), m.instance_id
            )
            for m in members.values()
        }
        topics = sorted({t for spec in specs.values() for t in spec.topics})
        partitions = {t: self.catalog.partitions_of(t) for t in topics}
        assigned = ASSIGNORS.get(name, uniform.assign)(GroupSpec(specs, partitions))
        for member_id in sorted(assigned):
            if assigned[member_id] != group.target.get(member_id):
                draft.records.append(group.target_record(member_id, assigned[member_id]))
        draft.records.append(group.target_metadata_record(epoch, now_ms))
        self.rebalances += 1
        self.context.deadlines.cancel((self.name, "assignment", group.group_id))
        return assigned

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
                self._assign(group, group.members, group.regexes, group.epoch, draft, now_ms)
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
        waits = member.current.state is MemberState.UNRELEASED_PARTITIONS or (
            (self.name, "assignment", group.group_id) in self.context.deadlines
        )
        return min(interval_ms, WAITING_HEARTBEAT_INTERVAL_MS) if waits else interval_ms

    # What is set, and what is there.

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

    # Replay.

    def _replayed(self, group_id: str, *, create: bool) -> ConsumerGroup | None:
        found = self.context.groups.get(group_id)
        if isinstance(found, ConsumerGroup):
            return found
        if not create:
            return None
        group = ConsumerGroup(group_id)
        self.context.groups.add(group)
        return group

    def _replay_group(self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any) -> None:
        group = self._replayed(key["group_id"], create=value is not None)
        if group is None:
            return
        if value is None:
            self.context.groups.remove(group.group_id)
        else:
            group.epoch, group.metadata_hash = value["epoch"], value["metadata_hash"]

    def _replay_member(self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any) -> None:
        group = self._replayed(key["group_id"], create=value is not None)
        if group is not None:
            group.replay_member(key["member_id"], value)

    def _replay_target_metadata(
        self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any
    ) -> None:
        group = self._replayed(key["group_id"], create=value is not None)
        if group is None:
            return
        value = value or {"assignment_epoch": 0, "assignment_timestamp": 0}
        group.assignment_epoch = value["assignment_epoch"]
        group.assignment_timestamp_ms = value["assignment_timestamp"]

    def _replay_target(self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any) -> None:
        group = self._replayed(key["group_id"], create=value is not None)
        if group is not None:
            group.replay_target(key["member_id"], value)

    def _replay_current(self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any) -> None:
        group = self._replayed(key["group_id"], create=value is not None)
        if group is not None:
            group.replay_current(key["member_id"], value)

    def _replay_regex(self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any) -> None:
        group = self._replayed(key["group_id"], create=value is not None)
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


def _told(member: Member, request: HeartbeatRequest) -> Member:
    """The member with what the request tells of it."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=_or(request.instance_id, member.instance_id),
        rack_id=_or(request.rack_id, member.rack_id),
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else names,
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        server_assignor=_or(request.server_assignor, member.server_assignor),
        classic=None,
    )


def _or(told: str | None, known: str | None) -> str | None:
    return known if told is None else told


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


def _check(request: HeartbeatRequest, assignors: Sequence[str]) -> None:
    """Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for a request that makes no sense."""
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
    if request.subscribed_topic_regex:
        patterns.check(request.subscribed_topic_regex)


def _check_join(request: HeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        reason = "RebalanceTimeoutMs must be provided in first request."
    elif request.owned is None or request.owned:
        reason = "TopicPartitions must be empty when (re-)joining."
    elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        reason = (
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )
    else:
        return
    raise ApiError(ErrorCode.invalid_request, reason)
