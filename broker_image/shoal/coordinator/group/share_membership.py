"""Decisions about the members of share groups (KIP-932).

A heartbeat updates what the member told, bumps the group's epoch when subscriptions or topics
changed, has the share-group state of new partitions initialized, assigns, and gives the member its
assignment. Two promises shape it beyond Kafka's:

* *The first answer has the assignment.* Partitions of a topic that the group has never read must
  first be initialized, which takes a round through the share coordinator. The heartbeat's answer
  is held for that round, `PARK_MS` at the most.
* *A dead member leaves nothing behind.* When the connection of a member's last heartbeat is lost
  and it is not heard of over another one within `shoal.group.share.connection.lost.grace.ms`, it is
  taken out like one whose session ended. For the others to learn of it within a second, they are
  asked to heartbeat every `shoal.group.share.takeover.heartbeat.interval.ms` while a partition has
  but one reader, and half as often with two, and so on down to the configured interval. A member
  that lives after all is told UNKNOWN_MEMBER_ID and joins again, at the price of one heartbeat.
  A large group is asked for `HEARTBEATS_PER_S` at most in this way.

No step of a heartbeat, a join or a leave looks at all members.

Assigning is `share_target_assignment`; what is to be initialized, `share_initialization`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.deadlines import Key
from shoal.coordinator.group import simple_assignor
from shoal.coordinator.group.assignment import Assignment, on_wire
from shoal.coordinator.group.groups import Context, Draft
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.group.replays import Replays
from shoal.coordinator.group.share_group import NO_CHANGE, Change, Member, ShareGroup
from shoal.coordinator.group.share_heartbeat import LEAVE_EPOCH as LEAVE_EPOCH
from shoal.coordinator.group.share_heartbeat import HeartbeatRequest as HeartbeatRequest
from shoal.coordinator.group.share_heartbeat import check, updated
from shoal.coordinator.group.share_initialization import Initializations
from shoal.coordinator.group.share_initialization import (
    InitializeShareState as InitializeShareState,
)
from shoal.coordinator.group.share_target_assignment import Plan, TargetAssignments
from shoal.coordinator.group.topics import Catalog
from shoal.protocol.errors import ApiError, ErrorCode

#: How long an answer waits for partitions to be initialized: some milliseconds, but for the first
#: group of a broker, which has the state topic made.
PARK_MS = 1_000
#: How soon a member is asked again whose partitions are not initialized after that.
WAITING_HEARTBEAT_INTERVAL_MS = 500
#: Heartbeats that a large group is asked for in a second, unless its configured interval is longer.
HEARTBEATS_PER_S = 1_000


class ParkedHeartbeat(NamedTuple):
    """A heartbeat whose answer waits for share partitions to be initialized."""

    request: HeartbeatRequest
    token: Token


class MemberReassigned(NamedTuple):
    """Effect: the member has taken up another assignment; a fetch of its old one may wait yet."""

    group_id: str
    member_id: str


@dataclass(slots=True)
class SoftState:
    """What a group's coordinator knows and may forget. It may be there before the group is."""

    #: The metadata hash was compared since the metadata changed last.
    is_fresh: bool = False
    #: The connection over which a member was heard of last.
    connections: dict[str, str] = field(default_factory=dict)
    #: Answers that wait for an initialization, by member.
    parked: dict[str, ParkedHeartbeat] = field(default_factory=dict)
    #: The epoch in which a member took up the assignment that it had in its last heartbeat.
    epochs: dict[str, int] = field(default_factory=dict)


class ShareGroups:
    """The share groups of one shard."""

    name = "share"

    def __init__(self, context: Context) -> None:
        self.context = context
        self._soft: defaultdict[str, SoftState] = defaultdict(SoftState)
        self._initializations = Initializations(context)
        self._targets = TargetAssignments(context)
        self._replays = Replays(context.groups, ShareGroup)
        self.replays = {
            RecordType.SHARE_GROUP_METADATA: self._replay_group,
            RecordType.SHARE_GROUP_MEMBER_METADATA: self._replays.member,
            RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA: self._replays.target_metadata,
            RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER: self._replays.target,
            RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT: self._replays.current,
            RecordType.SHARE_GROUP_STATE_PARTITION_METADATA: self._replay_initialization,
        }

    # Requests.

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        """ShareGroupHeartbeat v1. Raises `ApiError` for what is refused."""
        check(request)
        released = self._release(request)
        try:
            draft = self._heartbeat(request, now_ms, token, may_park=True)
        except ApiError as refused:
            if not released.replies:
                raise
            draft = Draft()
            draft.reply(token, _refusal(refused))
        draft.replies[:0] = released.replies
        return draft.result()

    def describe(self, group_id: str, token: Token) -> Result:
        """One group of ShareGroupDescribe v1. Raises GROUP_ID_NOT_FOUND."""
        group = self._find(group_id)
        return Result(replies=(Reply(token, group.describe(self.catalog, simple_assignor.NAME)),))

    def connection_lost(
        self, group_id: str, member_id: str, connection_id: str, now_ms: int
    ) -> Result:
        """The connection of a member's heartbeats is gone; the member perhaps, too."""
        group = self.context.groups.get(group_id)
        if isinstance(group, ShareGroup) and member_id in group.members:
            if self._soft[group.group_id].connections.get(member_id) == connection_id:
                grace_ms = self.context.settings.shoal_group_share_connection_lost_grace_ms
                self.context.deadlines.set(self._key("lost", group, member_id), now_ms + grace_ms)
        return Result()

    # Initialization of share-group state, told by the shell and by admin requests.

    def initialized(self, group_id: str, partitions: Assignment, now_ms: int) -> Result:
        """The state of these partitions is there: they can be assigned."""
        group = self.context.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            return Result()
        draft = Draft()
        initialization = group.initialization.completed(partitions, self.catalog)
        draft.records.append(group.initialization_record(initialization))
        if group.members:
            plan = self._targets.assign(
                group, NO_CHANGE, initialization, group.epoch + 1, draft, now_ms
            )
            draft.records.append(group.epoch_record(plan.epoch, group.metadata_hash))
        self._answer_parked(group, now_ms)
        return draft.result()

    def not_initialized(self, group_id: str, partitions: Assignment, now_ms: int) -> Result:
        """It went wrong: the next heartbeat of a member asks for it again."""
        group = self.context.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            return Result()
        self._soft[group_id].is_fresh = False
        self._answer_parked(group, now_ms)
        initialization = self._initializations.failed(group, partitions)
        if initialization == group.initialization:
            return Result()
        return Result((group.initialization_record(initialization),))

    def start_reset(self, group_id: str, partitions: Assignment, token: Token) -> Result:
        """See `Initializations.start_reset`."""
        return self._initializations.start_reset(group_id, partitions, token)

    def start_deletion(self, group_id: str, topics: Sequence[UUID] | None, token: Token) -> Result:
        """Before share-group state is deleted, of some topics or (None) of all: it is noted which.
        Replies with the `partitions` that have state, and ends with `deleted` or the group's end.

        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        return self._initializations.start_deletion(group_id, topics, token)

    def deleted(self, group_id: str, topics: Sequence[UUID]) -> Result:
        """The state of these topics is gone."""
        return self._initializations.deleted(group_id, topics)

    # The steps of a heartbeat.

    def _heartbeat(
        self, request: HeartbeatRequest, now_ms: int, token: Token, *, may_park: bool
    ) -> Draft:
        draft = Draft()
        joins = request.member_epoch == 0
        group = self.context.groups.get(request.group_id)
        if group is None and joins:
            group = ShareGroup(request.group_id)
        elif not isinstance(group, ShareGroup):
            group = self._find(request.group_id)
        if request.member_epoch == LEAVE_EPOCH:
            self.fence(group, group.member(request.member_id).member_id, draft, now_ms)
            draft.reply(token, {"member_id": request.member_id, "member_epoch": LEAVE_EPOCH})
            return draft
        known = self._known_member(group, request)
        member = updated(known, request)
        changed = member.subscribed_topic_names != known.subscribed_topic_names
        if member != known or known.member_id not in group.members:
            draft.records.append(group.member_record(member))
        change = Change(group.members.get(member.member_id), member)
        names = group.subscribed(change)
        look = changed or not self._soft[group.group_id].is_fresh
        epoch, metadata_hash = self._epoch(group, names, bump=changed)
        initialization = self._initializations.ask(group, names, epoch, draft, now_ms, look=look)
        if may_park:  # A parked heartbeat was heard of when it came.
            self._extend_session(group, request, now_ms, draft)
        coming = {named.name for named in initialization.initializing.values()}
        waits = bool(coming & member.subscribed_topic_names)
        if may_park and waits:
            self._targets.track(group, change, initialization)
            self._park(group, request, token, now_ms)
        else:
            if epoch > group.assignment_epoch:
                plan = self._targets.assign(group, change, initialization, epoch, draft, now_ms)
            else:
                plan = self._targets.unchanged(group, epoch)
            epoch = plan.epoch
            member = self._reconcile(group, member, request, plan, draft, changed=changed)
            draft.reply(token, self._response(group, request, known, member, plan, waits=waits))
        if epoch != group.epoch or metadata_hash != group.metadata_hash:
            draft.records.append(group.epoch_record(epoch, metadata_hash))
        return draft

    def _known_member(self, group: ShareGroup, request: HeartbeatRequest) -> Member:
        """The member as it is; a new one if it joins. Raises what the request is refused with."""
        member = group.members.get(request.member_id)
        limit = self.context.settings.group_share_max_size
        if member is None and len(group.members) >= limit:
            raise ApiError(
                ErrorCode.group_max_size_reached,
                f"The share group has reached its maximum capacity of {limit} members.",
            )
        if request.member_epoch == 0:
            return member or Member(request.member_id)
        member = group.member(request.member_id)
        epoch = request.member_epoch
        if epoch == member.previous_member_epoch:
            return member  # The answer that bumped the epoch was lost.
        # Since its last record, the member has received the epoch of the group.
        if member.member_epoch <= epoch <= max(member.member_epoch, group.assignment_epoch):
            return member
        relation = "greater" if epoch > member.member_epoch else "smaller"
        raise ApiError(
            ErrorCode.fenced_member_epoch,
            f"The share group member has a {relation} member epoch ({epoch}) than the one known "
            f"by the group coordinator ({group.epoch_of(member)}). The member must abandon all its "
            "partitions and rejoin.",
        )

    def _epoch(self, group: ShareGroup, names: frozenset[str], *, bump: bool) -> tuple[int, int]:
        """The group's epoch and hash, bumped if what an assignment depends on has changed."""
        soft = self._soft[group.group_id]
        if not bump and soft.is_fresh:
            return group.epoch, group.metadata_hash
        metadata_hash = self.catalog.hash_of(names)
        soft.is_fresh = True
        changed = bump or metadata_hash != group.metadata_hash
        return group.epoch + changed, metadata_hash

    def _reconcile(
        self,
        group: ShareGroup,
        member: Member,
        request: HeartbeatRequest,
        plan: Plan,
        draft: Draft,
        *,
        changed: bool,
    ) -> Member:
        """Give the member its target, but for topics that it subscribes to no more.

        A member whose assignment stays takes the new epoch without a record: in a large group
        each join would otherwise have every member write one.
        """
        target = plan.target(group, member.member_id)
        if member.member_epoch and not changed and member.assigned == target:
            epoch = max(member.member_epoch, plan.assignment_epoch)
            return replace(member, member_epoch=epoch)
        if member.member_epoch == plan.assignment_epoch and not changed:
            return member
        topics = self.catalog.ids_of(member.subscribed_topic_names)
        member = replace(
            member,
            member_epoch=plan.assignment_epoch,
            previous_member_epoch=request.member_epoch or member.member_epoch,
            assigned={t: p for t, p in target.items() if t in topics},
        )
        draft.records.append(group.current_record(member))
        return member

    def _response(
        self,
        group: ShareGroup,
        request: HeartbeatRequest,
        known: Member,
        member: Member,
        plan: Plan,
        *,
        waits: bool,
    ) -> Mapping[str, Any]:
        configured_ms = interval_ms = self._config(group, "share.heartbeat.interval.ms")
        if waits or self._targets.waits(group):
            interval_ms = WAITING_HEARTBEAT_INTERVAL_MS
        takeover_ms = self.context.settings.shoal_group_share_takeover_heartbeat_interval_ms
        if plan.readers and takeover_ms:
            interval_ms = min(interval_ms, plan.readers * takeover_ms)
        least_ms = len(group.members) * 1_000 // HEARTBEATS_PER_S
        interval_ms = min(configured_ms, max(interval_ms, least_ms))
        response: dict[str, Any] = {
            "member_id": member.member_id,
            "member_epoch": member.member_epoch,
            "heartbeat_interval_ms": interval_ms,
        }
        full = request.member_epoch == 0 or request.subscribed_topic_names is not None
        if full or member.assigned != known.assigned:
            response["assignment"] = {"topic_partitions": on_wire(member.assigned)}
        return response

    def fence(self, group: ShareGroup, member_id: str, draft: Draft, now_ms: int) -> None:
        """Take a member out, and see that what it read alone is read on."""
        draft.records += group.member_tombstones(member_id)
        change = Change(group.member(member_id), None)
        epoch = group.epoch + 1
        if len(group.members) > 1:
            epoch = self._targets.assign(
                group, change, group.initialization, epoch, draft, now_ms
            ).epoch
        else:
            self._targets.track(group, change, group.initialization)
        metadata_hash = self.catalog.hash_of(group.subscribed(change))
        draft.records.append(group.epoch_record(epoch, metadata_hash))
        for what in ("session", "lost"):
            self.context.deadlines.cancel(self._key(what, group, member_id))
        soft = self._soft[group.group_id]
        soft.connections.pop(member_id, None)
        soft.epochs.pop(member_id, None)

    # Answers that wait for an initialization.

    def _park(
        self, group: ShareGroup, request: HeartbeatRequest, token: Token, now_ms: int
    ) -> None:
        self._soft[group.group_id].parked[request.member_id] = ParkedHeartbeat(request, token)
        key = self._key("parked", group)
        if key not in self.context.deadlines:
            self.context.deadlines.set(key, now_ms + PARK_MS)

    def _answer_parked(self, group: ShareGroup, now_ms: int) -> None:
        if self._soft[group.group_id].parked:
            self.context.deadlines.set(self._key("parked", group), now_ms)

    def _release(self, request: HeartbeatRequest) -> Result:
        """Answer a member's held heartbeat since it has sent another one: it waits no more."""
        soft = self._soft.get(request.group_id)
        parked = None if soft is None else soft.parked.pop(request.member_id, None)
        if parked is None:
            return Result()
        response = {"error_code": ErrorCode.coordinator_load_in_progress}
        return Result(replies=(Reply(parked.token, response),))

    def _answer_one_parked(self, group_id: str, now_ms: int) -> Result:
        """Each is decided on what the one before has left, so one at a time."""
        waiting = self._soft[group_id].parked
        if not waiting:
            return Result()
        parked = waiting.pop(next(iter(waiting)))
        if waiting:
            self.context.deadlines.set((self.name, "parked", group_id), now_ms)
        try:
            return self._heartbeat(parked.request, now_ms, parked.token, may_park=False).result()
        except ApiError as refused:
            return Result(replies=(Reply(parked.token, _refusal(refused)),))

    # Time.

    def _extend_session(
        self, group: ShareGroup, request: HeartbeatRequest, now_ms: int, draft: Draft
    ) -> None:
        member_id = request.member_id
        timeout_ms = self._config(group, "share.session.timeout.ms")
        self.context.deadlines.set(self._key("session", group, member_id), now_ms + timeout_ms)
        self.context.deadlines.cancel(self._key("lost", group, member_id))
        soft = self._soft[group.group_id]
        soft.connections[member_id] = request.connection_id
        member = group.members.get(member_id)
        reached = 0 if member is None else member.member_epoch
        if request.member_epoch < reached:
            return
        known = soft.epochs.get(member_id)
        soft.epochs[member_id] = reached
        if known is not None and known != reached:
            draft.effects.append(MemberReassigned(group.group_id, member_id))

    def loaded(self, now_ms: int) -> None:
        for group in self._all():
            timeout_ms = self._config(group, "share.session.timeout.ms")
            for member_id in group.members:
                key = self._key("session", group, member_id)
                self.context.deadlines.set(key, now_ms + timeout_ms)

    def due(self, key: Key, now_ms: int) -> Result:
        _, what, group_id, *rest = key
        if what == "parked":
            return self._answer_one_parked(group_id, now_ms)
        group = self.context.groups.get(group_id)
        draft = Draft()
        if not isinstance(group, ShareGroup):
            return draft.result()
        if what != "assignment":
            if rest[0] in group.members:
                self.fence(group, rest[0], draft, now_ms)
        elif group.members and group.epoch > group.assignment_epoch:
            plan = self._targets.assign(
                group, NO_CHANGE, group.initialization, group.epoch, draft, now_ms
            )
            if plan.epoch != group.epoch:
                draft.records.append(group.epoch_record(plan.epoch, group.metadata_hash))
        return draft.result()

    def metadata_changed(self, deleted: Sequence[tuple[str, UUID]], now_ms: int) -> Result:
        gone = {topic_id for _, topic_id in deleted}
        draft = Draft()
        for group in self._all():
            self._soft[group.group_id].is_fresh = False
            without = group.initialization.forgotten(gone)
            if without != group.initialization:
                draft.records.append(group.initialization_record(without))
        return draft.result()

    def _key(self, what: str, group: ShareGroup, *member_id: str) -> Key:
        return (self.name, what, group.group_id, *member_id)

    # What is set, and what is there.

    @property
    def rebalances(self) -> int:
        """Assignments made since the shard was loaded, for metrics."""
        return self._targets.made

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.context.image)

    def _config(self, group: ShareGroup, name: str) -> int:
        return self.context.image.group_config(group.group_id)[name]

    def _find(self, group_id: str) -> ShareGroup:
        return self.context.groups.find_of(group_id, ShareGroup)

    def _all(self) -> list[ShareGroup]:
        return [g for g in self.context.groups if isinstance(g, ShareGroup)]

    # Replay of what is not as with consumer groups.

    def _replay_group(self, key: dict[str, Any], value: dict[str, Any] | None, at: Any) -> None:
        self._replays.metadata(key, value, at)
        if value is None:
            self._soft.pop(key["group_id"], None)
            self._initializations.forget(key["group_id"])
            self._targets.forget(key["group_id"])

    def _replay_initialization(
        self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any
    ) -> None:
        group = self._replays.group(key["group_id"], create=value is not None)
        if group is not None:
            group.replay_initialization(value)


def _refusal(refused: ApiError) -> Mapping[str, Any]:
    return {"error_code": refused.code, "error_message": refused.message}
