"""Decisions about the members of share groups (KIP-932).

A heartbeat updates the member, and raises the group epoch if subscriptions or topics have changed.
It requests the initialization of new partitions, computes the target assignment, and gives the
member its assignment. There are two guarantees beyond Kafka's:

* *The first response has the assignment.* Partitions of a topic that is new to the group must first
  be initialized by the share coordinator. The heartbeat is parked for that time, `PARK_MS` at most.
* *A dead member is replaced within a second.* A member is fenced when the connection of its last
  heartbeat is lost and no heartbeat comes over another one within
  `shoal.group.share.connection.lost.grace.ms`. The heartbeat interval of the other members is
  `shoal.group.share.takeover.heartbeat.interval.ms` while a partition has one member, twice that
  with two members, and so on, up to the configured interval. A large group sends at most
  `HEARTBEATS_PER_S`. A member that was fenced by mistake gets UNKNOWN_MEMBER_ID and joins again.

No step of a heartbeat, a join or a leave iterates over all members.

Target assignments are in `share_target_assignment`, initialization in `share_initialization`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.group.assignment import Assignment, to_wire
from shoal.coordinator.group.groups import ResultDraft, ShardContext
from shoal.coordinator.group.modern.membership import HEARTBEATS_PER_S, ModernGroupManager
from shoal.coordinator.group.modern.membership import LEAVE_EPOCH as LEAVE_EPOCH
from shoal.coordinator.group.modern.membership import (
    WAITING_HEARTBEAT_INTERVAL_MS as WAITING_HEARTBEAT_INTERVAL_MS,
)
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.group.share.heartbeat import (
    ShareGroupHeartbeatRequest as ShareGroupHeartbeatRequest,
)
from shoal.coordinator.group.share.heartbeat import apply_request, check
from shoal.coordinator.group.share.initialization import (
    ShareStateInitialization as ShareStateInitialization,
)
from shoal.coordinator.group.share.initialization import ShareStateInitializer
from shoal.coordinator.group.share.share_group import (
    NO_CHANGE,
    MemberChange,
    ShareGroup,
    ShareGroupMember,
)
from shoal.coordinator.group.share.target_assignment import AssignmentPlan, ShareTargetAssignments
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.deadlines import Key
    from shoal.protocol.responses import share as responses

#: How long a heartbeat waits for the initialization of partitions. It takes some milliseconds, or
#: longer when the state topic has to be created.
PARK_MS = 1_000


class ParkedHeartbeat(NamedTuple):
    """A heartbeat that waits for the initialization of share partitions."""

    request: ShareGroupHeartbeatRequest
    token: Token


class MemberReassignment(NamedTuple):
    """Effect: the member has another assignment. A fetch of the old one may be parked."""

    group_id: str
    member_id: str


@dataclass(slots=True)
class ShareGroupSoftState:
    """The soft state of a group. It may exist before the group."""

    #: The connection of each member's last heartbeat.
    connections: dict[str, str] = field(default_factory=dict)
    #: The principal of each member.
    principals: dict[str, str] = field(default_factory=dict)
    #: Heartbeats that wait for an initialization, by member.
    parked: dict[str, ParkedHeartbeat] = field(default_factory=dict)
    #: The epoch of the assignment that each member had in its last heartbeat.
    epochs: dict[str, int] = field(default_factory=dict)


class ShareGroupManager(ModernGroupManager[ShareGroup, ShareTargetAssignments]):
    """The share groups of one shard."""

    def __init__(self, context: ShardContext) -> None:
        super().__init__(context, ShareGroup, ShareTargetAssignments(context))
        self._soft: defaultdict[str, ShareGroupSoftState] = defaultdict(ShareGroupSoftState)
        self._initializations = ShareStateInitializer(context)
        self.replays[RecordType.SHARE_GROUP_STATE_PARTITION_METADATA] = self._replay_initialization

    # Requests.

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, now_ms: int, token: Token
    ) -> CoordinatorResult:
        """ShareGroupHeartbeat v1. Raises `ApiError` to refuse it."""
        check(request)
        self._check_principal(request)
        released = self._release(request)
        try:
            draft = self._heartbeat(request, now_ms, token, may_park=True)
        except ApiError as refused:
            if not released.replies:
                raise
            draft = ResultDraft()
            draft.reply(token, _build_refusal(refused))
        draft.replies[:0] = released.replies
        return draft.to_result()

    def _check_principal(self, request: ShareGroupHeartbeatRequest) -> None:
        """Raise UNKNOWN_MEMBER_ID for a member of another principal. Its id is no secret, so any
        reader of the group could remove it. After the shard has been loaded, a member belongs to
        the principal of its next heartbeat."""
        soft = self._soft.get(request.group_id)
        principal = None if soft is None else soft.principals.get(request.member_id)
        if principal is not None and principal != request.principal:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Member {request.member_id} is not a member of group {request.group_id}.",
            )

    def on_connection_lost(
        self, group_id: str, member_id: str, connection_id: str, now_ms: int
    ) -> CoordinatorResult:
        """The connection of a member's last heartbeat was lost: fence it after the grace period."""
        group = self.context.groups.get(group_id)
        if isinstance(group, ShareGroup) and member_id in group.members:
            if self._soft[group.group_id].connections.get(member_id) == connection_id:
                grace_ms = self.context.settings.shoal_group_share_connection_lost_grace_ms
                self.context.deadlines.set(
                    self.make_key("lost", group, member_id), now_ms + grace_ms
                )
        return CoordinatorResult()

    # Initialization of share-group state, for the performer and for admin requests.

    def on_initialized(
        self, group_id: str, partitions: Assignment, now_ms: int
    ) -> CoordinatorResult:
        """The state of these partitions is initialized: assign them."""
        group = self.context.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            return CoordinatorResult()
        draft = ResultDraft()
        initialization = group.initialization.with_initialized(partitions, self.catalog)
        draft.records.append(group.build_initialization_record(initialization))
        if group.members:
            plan = self._targets.assign(
                group, NO_CHANGE, initialization, group.epoch + 1, draft, now_ms
            )
            draft.records.append(group.build_epoch_record(plan.epoch, group.metadata_hash))
        self._answer_parked(group, now_ms)
        return draft.to_result()

    def on_initialization_failed(
        self, group_id: str, partitions: Assignment, now_ms: int
    ) -> CoordinatorResult:
        """The initialization has failed: the next heartbeat of a member requests it again."""
        group = self.context.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            return CoordinatorResult()
        self._targets.mark_stale(group_id)
        self._answer_parked(group, now_ms)
        initialization = self._initializations.on_initialization_failed(group, partitions)
        if initialization == group.initialization:
            return CoordinatorResult()
        return CoordinatorResult((group.build_initialization_record(initialization),))

    def get_initialized_partitions(self, group_id: str) -> Mapping[str, Sequence[int]]:
        """The partitions with share-group state, by topic name; none if there is no such group."""
        group = self.context.groups.get(group_id)
        by_topic = group.initialization.initialized if isinstance(group, ShareGroup) else {}
        return {
            named_partitions.name: sorted(named_partitions.partitions)
            for named_partitions in by_topic.values()
        }

    def start_reset(self, group_id: str, partitions: Assignment, token: Token) -> CoordinatorResult:
        """See `ShareStateInitializer.start_reset`."""
        return self._initializations.start_reset(group_id, partitions, token)

    def start_deletion(
        self, group_id: str, topics: Sequence[UUID] | None, token: Token
    ) -> CoordinatorResult:
        """Mark some topics, or all (None), as deleting, before their share-group state is deleted.
        Replies with the `partitions` that have state. `on_deleted` or the group's deletion ends it.

        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        return self._initializations.start_deletion(group_id, topics, token)

    def on_deleted(self, group_id: str, topics: Sequence[UUID]) -> CoordinatorResult:
        """The state of these topics was deleted."""
        return self._initializations.on_deleted(group_id, topics)

    # The steps of a heartbeat.

    def _heartbeat(
        self, request: ShareGroupHeartbeatRequest, now_ms: int, token: Token, *, may_park: bool
    ) -> ResultDraft:
        draft = ResultDraft()
        joins = request.member_epoch == 0
        group = self.context.groups.get(request.group_id)
        if group is None and joins:
            group = ShareGroup(request.group_id)
        elif not isinstance(group, ShareGroup):
            group = self._find(request.group_id)
        if request.member_epoch == LEAVE_EPOCH:
            self.expire(group, group.get_member(request.member_id).member_id, draft, now_ms)
            response: responses.ShareGroupHeartbeatResponse = {
                "member_id": request.member_id,
                "member_epoch": LEAVE_EPOCH,
            }
            draft.reply(token, response)
            return draft
        previous = self._find_or_create_member(group, request)
        member = apply_request(previous, request)
        changed = member.subscribed_topic_names != previous.subscribed_topic_names
        if member != previous or previous.member_id not in group.members:
            draft.records.append(group.build_member_record(member))
        change = MemberChange(group.members.get(member.member_id), member)
        names = group.get_subscribed_topics(change)
        look = changed or not self._targets.is_fresh(group)
        epoch, metadata_hash = self._targets.compute_epoch(
            group, lambda: self._targets.compute_hash(names), bump=changed
        )
        initialization = self._initializations.request_initialization(
            group, names, epoch, draft, now_ms, look=look
        )
        if may_park:  # A parked heartbeat has extended the session when it arrived.
            self._on_heartbeat(group, request, now_ms, draft)
        coming = {
            named_partitions.name for named_partitions in initialization.initializing.values()
        }
        waits = bool(coming & member.subscribed_topic_names)
        if may_park and waits:
            self._targets.track(group, change, initialization)
            self._park(group, request, token, now_ms)
        else:
            if epoch > group.assignment_epoch:
                plan = self._targets.assign(group, change, initialization, epoch, draft, now_ms)
            else:
                plan = self._targets.make_unchanged_plan(group, epoch)
            epoch = plan.epoch
            member = self._reconcile(group, member, request, plan, draft, changed=changed)
            draft.reply(
                token, self._build_response(group, request, previous, member, plan, waits=waits)
            )
        if epoch != group.epoch or metadata_hash != group.metadata_hash:
            draft.records.append(group.build_epoch_record(epoch, metadata_hash))
        return draft

    def _find_or_create_member(
        self, group: ShareGroup, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupMember:
        """The member before the request; a new one if it joins. Raises `ApiError`."""
        member = group.members.get(request.member_id)
        if member is None:
            self.check_size(group)
        if request.member_epoch == 0:
            return member or ShareGroupMember(request.member_id)
        member = group.get_member(request.member_id)
        epoch = request.member_epoch
        if epoch == member.previous_member_epoch:
            return member  # The response that bumped the epoch was lost.
        # The member has received the assignment epoch since its last record.
        if member.member_epoch <= epoch <= max(member.member_epoch, group.assignment_epoch):
            return member
        raise self.make_fenced_error(
            epoch, stored=member.member_epoch, current=group.get_epoch(member)
        )

    def _reconcile(
        self,
        group: ShareGroup,
        member: ShareGroupMember,
        request: ShareGroupHeartbeatRequest,
        plan: AssignmentPlan,
        draft: ResultDraft,
        *,
        changed: bool,
    ) -> ShareGroupMember:
        """Assign the member its target, without topics that it no longer subscribes to.

        A member whose assignment stays the same gets the new epoch without a record. Otherwise each
        join in a large group would cause a record for every member.
        """
        target = plan.get_target(group, member.member_id)
        if member.member_epoch and not changed and member.assigned == target:
            epoch = max(member.member_epoch, plan.assignment_epoch)
            return replace(member, member_epoch=epoch)
        if member.member_epoch == plan.assignment_epoch and not changed:
            return member
        topics = self.catalog.get_ids(member.subscribed_topic_names)
        member = replace(
            member,
            member_epoch=plan.assignment_epoch,
            previous_member_epoch=request.member_epoch or member.member_epoch,
            assigned={t: p for t, p in target.items() if t in topics},
        )
        draft.records.append(group.build_current_record(member))
        return member

    def _build_response(
        self,
        group: ShareGroup,
        request: ShareGroupHeartbeatRequest,
        previous: ShareGroupMember,
        member: ShareGroupMember,
        plan: AssignmentPlan,
        *,
        waits: bool,
    ) -> responses.ShareGroupHeartbeatResponse:
        configured_ms = interval_ms = self._get_config(group, "share.heartbeat.interval.ms")
        if waits or self._targets.is_postponed(group):
            interval_ms = WAITING_HEARTBEAT_INTERVAL_MS
        takeover_ms = self.context.settings.shoal_group_share_takeover_heartbeat_interval_ms
        if plan.readers and takeover_ms:
            interval_ms = min(interval_ms, plan.readers * takeover_ms)
        least_ms = len(group.members) * 1_000 // HEARTBEATS_PER_S
        interval_ms = min(configured_ms, max(interval_ms, least_ms))
        response: responses.ShareGroupHeartbeatResponse = {
            "member_id": member.member_id,
            "member_epoch": member.member_epoch,
            "heartbeat_interval_ms": interval_ms,
        }
        full = request.member_epoch == 0 or request.subscribed_topic_names is not None
        due = full or member.assigned != previous.assigned
        if self.should_send_assignment(group, member.member_id, request.connection_id, due=due):
            response["assignment"] = {"topic_partitions": to_wire(member.assigned)}
        return response

    def expire(self, group: ShareGroup, member_id: str, draft: ResultDraft, now_ms: int) -> None:
        """Remove a member, and assign the partitions that only this member had."""
        draft.records += group.build_member_tombstones(member_id)
        change = MemberChange(group.get_member(member_id), None)
        epoch = group.epoch + 1
        if len(group.members) > 1:
            epoch = self._targets.assign(
                group, change, group.initialization, epoch, draft, now_ms
            ).epoch
        else:
            self._targets.track(group, change, group.initialization)
        metadata_hash = self._targets.compute_hash(group.get_subscribed_topics(change))
        draft.records.append(group.build_epoch_record(epoch, metadata_hash))
        for kind in ("session", "lost"):
            self.context.deadlines.cancel(self.make_key(kind, group, member_id))
        soft = self._soft[group.group_id]
        soft.connections.pop(member_id, None)
        soft.principals.pop(member_id, None)
        soft.epochs.pop(member_id, None)
        self.forget_member(group, member_id)

    # Heartbeats that wait for an initialization.

    def _park(
        self, group: ShareGroup, request: ShareGroupHeartbeatRequest, token: Token, now_ms: int
    ) -> None:
        self._soft[group.group_id].parked[request.member_id] = ParkedHeartbeat(request, token)
        key = self.make_key("parked", group)
        if key not in self.context.deadlines:
            self.context.deadlines.set(key, now_ms + PARK_MS)

    def _answer_parked(self, group: ShareGroup, now_ms: int) -> None:
        if self._soft[group.group_id].parked:
            self.context.deadlines.set(self.make_key("parked", group), now_ms)

    def _release(self, request: ShareGroupHeartbeatRequest) -> CoordinatorResult:
        """Answer the parked heartbeat of a member that has sent another one."""
        soft = self._soft.get(request.group_id)
        parked = None if soft is None else soft.parked.pop(request.member_id, None)
        if parked is None:
            return CoordinatorResult()
        response = {"error_code": ErrorCode.coordinator_load_in_progress}
        return CoordinatorResult(replies=(Reply(parked.token, response),))

    def _answer_one_parked(self, group_id: str, now_ms: int) -> CoordinatorResult:
        """Decide one parked heartbeat. Its records must be replayed before the next decision."""
        waiting = self._soft[group_id].parked
        if not waiting:
            return CoordinatorResult()
        parked = waiting.pop(next(iter(waiting)))
        if waiting:
            self.context.deadlines.set((self.name, "parked", group_id), now_ms)
        try:
            return self._heartbeat(parked.request, now_ms, parked.token, may_park=False).to_result()
        except ApiError as refused:
            return CoordinatorResult(replies=(Reply(parked.token, _build_refusal(refused)),))

    # Time.

    def _on_heartbeat(
        self,
        group: ShareGroup,
        request: ShareGroupHeartbeatRequest,
        now_ms: int,
        draft: ResultDraft,
    ) -> None:
        member_id = request.member_id
        timeout_ms = self._get_config(group, "share.session.timeout.ms")
        self.extend_session(group, member_id, timeout_ms, now_ms)
        self.context.deadlines.cancel(self.make_key("lost", group, member_id))
        soft = self._soft[group.group_id]
        soft.connections[member_id] = request.connection_id
        soft.principals[member_id] = request.principal
        member = group.members.get(member_id)
        reached = 0 if member is None else member.member_epoch
        if request.member_epoch < reached:
            return
        previous_epoch = soft.epochs.get(member_id)
        soft.epochs[member_id] = reached
        if previous_epoch is not None and previous_epoch != reached:
            draft.effects.append(MemberReassignment(group.group_id, member_id))

    def on_member_loaded(self, group: ShareGroup, member_id: str, now_ms: int) -> None:
        timeout_ms = self._get_config(group, "share.session.timeout.ms")
        self.extend_session(group, member_id, timeout_ms, now_ms)

    def on_deadline(self, key: Key, now_ms: int) -> CoordinatorResult:
        if key[1] == "parked":
            return self._answer_one_parked(key[2], now_ms)
        return super().on_deadline(key, now_ms)

    def assign_due(self, group: ShareGroup, draft: ResultDraft, now_ms: int) -> None:
        plan = self._targets.assign(
            group, NO_CHANGE, group.initialization, group.epoch, draft, now_ms
        )
        if plan.epoch != group.epoch:
            draft.records.append(group.build_epoch_record(plan.epoch, group.metadata_hash))

    def on_metadata_changed(
        self, deleted: Sequence[tuple[str, UUID]], now_ms: int
    ) -> CoordinatorResult:
        super().on_metadata_changed(deleted, now_ms)
        deleted_ids = {topic_id for _, topic_id in deleted}
        draft = ResultDraft()
        for group in self._list_groups():
            without = group.initialization.without_topics(deleted_ids)
            if without != group.initialization:
                draft.records.append(group.build_initialization_record(without))
        return draft.to_result()

    def forget(self, group_id: str) -> None:
        super().forget(group_id)
        self._soft.pop(group_id, None)
        self._initializations.forget(group_id)

    # Configs.

    @property
    def default_assignor(self) -> str:
        return self.context.settings.group_share_assignors[0]

    @property
    def max_size(self) -> int:
        return self.context.settings.group_share_max_size

    # Replay.

    def _replay_initialization(
        self, key: dict[str, Any], value: dict[str, Any] | None, _at: Any
    ) -> None:
        group = self._get_replayed_group(key, value)
        if group is not None:
            group.replay_initialization(value)


def _build_refusal(refused: ApiError) -> responses.ShareGroupHeartbeatResponse:
    return {"error_code": refused.code, "error_message": refused.message}
