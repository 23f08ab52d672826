"""Members of the classic protocol in consumer groups, and the migration between the protocols.

When a member of the consumer protocol joins a classic group of consumers, the group becomes a
consumer group with all its members. Members of the classic protocol are then served from it: their
SyncGroup response has the broker's assignment, and a heartbeat returns REBALANCE_IN_PROGRESS when
that has changed. When the last member of the consumer protocol leaves, the group becomes a classic
group again. `group.consumer.migration.policy` allows either, both or none. Source: KIP-848,
"Upgrade and downgrade".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.group.assignment import EMPTY, group_by_topic
from shoal.coordinator.group.classic.classic_group import (
    CONSUMER_PROTOCOL,
    ClassicGroup,
    ClassicGroupMember,
    build_join_error,
)
from shoal.coordinator.group.consumer import consumer_protocol
from shoal.coordinator.group.consumer.consumer_group import (
    ClassicMemberMetadata,
    ConsumerGroup,
    ConsumerGroupMember,
)
from shoal.coordinator.group.consumer.reconciliation import CurrentAssignment, MemberState
from shoal.coordinator.group.groups import Group, ResultDraft, make_error_response
from shoal.protocol.errors import ApiError, ErrorCode, WireError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.group.classic.membership import ClassicGroupManager
    from shoal.coordinator.group.classic.requests import (
        HeartbeatRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        LeavingMember,
        SyncGroupRequest,
    )
    from shoal.coordinator.group.consumer.membership import ConsumerGroupManager
    from shoal.protocol.responses import groups as responses


class ClassicMembers:
    """The `ClassicBridge` and the `Migration` of one shard."""

    def __init__(self, consumers: ConsumerGroupManager, classics: ClassicGroupManager) -> None:
        self._consumers = consumers
        self._classics = classics
        self._context = consumers.context
        self._deadlines = consumers.context.deadlines

    # Moving groups.

    @property
    def _policy(self) -> str:
        return self._context.settings.group_consumer_migration_policy.lower()

    def upgrade(self, group: Group, draft: ResultDraft, now_ms: int) -> ConsumerGroup:
        """Return the consumer group that replaces a classic group. Its records are in the draft.

        Raises GROUP_ID_NOT_FOUND for a group that cannot become one.
        """
        if not isinstance(group, ClassicGroup):
            return self._context.groups.find_as(group.group_id, ConsumerGroup)
        if group.is_empty:
            draft.records += self._classics.give_up(group, draft)
            return ConsumerGroup(group.group_id)
        refusal = self._find_upgrade_obstacle(group)
        if refusal is not None:
            raise ApiError(
                ErrorCode.group_id_not_found,
                f"Cannot upgrade classic group {group.group_id} to consumer group because "
                f"{refusal}.",
            )
        try:
            upgraded = self._to_consumer_group(group)
        except consumer_protocol.CustomAssignorError:
            raise ApiError(
                ErrorCode.group_id_not_found,
                f"Cannot upgrade classic group {group.group_id} to consumer group because an "
                "unsupported custom assignor is in use. Switch to a default assignor before the "
                "upgrade.",
            ) from None
        except WireError as error:
            raise ApiError(
                ErrorCode.group_id_not_found,
                f"Cannot upgrade classic group {group.group_id} to consumer group because the "
                f"embedded consumer protocol is malformed: {error}.",
            ) from None
        draft.records += self._classics.give_up(group, draft)
        draft.records += upgraded.build_records()
        for member in upgraded.members.values():
            self._consumers.set_session_deadline(upgraded, member, now_ms)
        return upgraded

    def _find_upgrade_obstacle(self, group: ClassicGroup) -> str | None:
        if self._policy not in ("upgrade", "bidirectional"):
            return "online upgrade is disabled"
        if group.protocol_type != CONSUMER_PROTOCOL:
            return "the group does not use the consumer embedded protocol"
        if len(group.members) > self._context.settings.group_consumer_max_size:
            return "the group size exceeds the consumer group maximum size"
        return None

    def _to_consumer_group(self, group: ClassicGroup) -> ConsumerGroup:
        catalog = self._consumers.catalog
        epoch = group.generation_id
        upgraded = ConsumerGroup(group.group_id, epoch=epoch, assignment_epoch=epoch)
        protocol = group.protocol_name or group.select_protocol()
        for old in group.members.values():
            subscription = consumer_protocol.read_subscription(old.get_metadata(protocol))
            assigned = consumer_protocol.read_assignment(old.assignment, catalog)
            owned = {t: dict.fromkeys(sorted(p), epoch) for t, p in assigned.items()}
            member = ConsumerGroupMember(
                member_id=old.member_id,
                instance_id=old.group_instance_id,
                rack_id=subscription.rack_id,
                client_id=old.client_id,
                client_host=old.client_host,
                subscribed_topic_names=subscription.topics,
                rebalance_timeout_ms=old.rebalance_timeout_ms,
                classic=ClassicMemberMetadata(old.session_timeout_ms, tuple(old.protocols.items())),
                current=CurrentAssignment(epoch, epoch, MemberState.STABLE, owned),
            )
            upgraded.add(member, assigned)
        upgraded.metadata_hash = catalog.compute_hash(upgraded.get_subscribed_topics())
        return upgraded

    def downgrade(
        self, group: ConsumerGroup, leaving: Sequence[str], draft: ResultDraft, now_ms: int
    ) -> bool:
        """Replace the group by a classic group of the remaining members, if all of them use the
        classic protocol and the policy allows it. Its records are in the draft then."""
        staying = [m for m in group.members.values() if m.member_id not in leaving]
        if (
            not staying
            or any(m.classic is None for m in staying)
            or self._policy not in ("downgrade", "bidirectional")
            or len(staying) > self._context.settings.group_max_size
        ):
            return False
        classic_group = ClassicGroup(group.group_id, generation_id=group.epoch)
        for member in staying:
            assert member.classic is not None
            classic_group.add(
                ClassicGroupMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.classic.session_timeout_ms,
                    dict(member.classic.protocols),
                ),
                CONSUMER_PROTOCOL,
            )
        classic_group.protocol_name = classic_group.select_protocol()
        catalog = self._consumers.catalog
        assignments = {
            m.member_id: consumer_protocol.write_assignment(
                group.target.get(m.member_id, EMPTY),
                m.get_metadata(classic_group.protocol_name),
                catalog,
            )
            for m in classic_group.members.values()
        }
        for member in group.members.values():
            self._consumers.cancel_deadlines(group, member)
        draft.records += group.build_tombstones()
        data = classic_group.snapshot(now_ms, assignments)
        draft.records += self._classics.take_over(group.group_id, data, now_ms, rebalance=True)
        return True

    # Requests of classic members.

    def join(self, request: JoinGroupRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """JoinGroup to a consumer group. It is answered at once: members do not wait for others."""
        group = self._find_group(request.group_id)
        self._check_join(group, request)
        if not request.member_id and request.member_id_required:
            error = ErrorCode.member_id_required
            return CoordinatorResult(
                (), (Reply(token, build_join_error(request.new_member_id, error)),)
            )
        draft = ResultDraft()
        member_id = request.member_id or request.new_member_id
        owner = group.find_static_member(request.group_instance_id)
        if owner is not None and owner.classic is None and not request.member_id:
            if self.downgrade(group, [owner.member_id], draft, now_ms):
                # The last member of the consumer protocol has rejoined with the classic one.
                error = ErrorCode.rebalance_in_progress
                draft.reply(token, build_join_error("", error))
                return draft.to_result()
        if request.group_instance_id is None:
            previous = group.members.get(member_id) or ConsumerGroupMember(member_id)
        elif request.member_id:
            previous = group.get_instance_owner(request.group_instance_id, member_id)
        elif owner is not None:
            previous = self._consumers.take_over(group, owner, member_id, draft)
        else:
            previous = ConsumerGroupMember(member_id)
        member, owned = self._apply_join(previous, request)
        # A classic member evaluates no regular expressions.
        member = self._consumers.advance(
            group, previous, member, owned, draft, now_ms, describes=lambda _: False
        )
        self._deadlines.cancel(self._consumers.make_key("join", group, member.member_id))
        self._consumers.set_session_deadline(group, member, now_ms)
        sync_ms = now_ms + request.rebalance_timeout_ms
        self._deadlines.set(self._consumers.make_key("sync", group, member.member_id), sync_ms)
        response: responses.JoinGroupResponse = {
            "error_code": ErrorCode.none,
            "generation_id": member.current.member_epoch,
            "protocol_type": CONSUMER_PROTOCOL,
            "protocol_name": _get_protocol_name(member),
            "leader": "",
            "skip_assignment": False,
            "member_id": member.member_id,
            "members": [],
        }
        draft.reply(token, response)
        return draft.to_result()

    def sync(self, request: SyncGroupRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """SyncGroup. The assignment is what the member owns."""
        group = self._find_group(request.group_id)
        member = self._find_classic_member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or (
            request.protocol_name not in (None, _get_protocol_name(member))
        ):
            raise ApiError(
                ErrorCode.inconsistent_group_protocol,
                f"Member {member.member_id} syncs with another protocol than it joined with.",
            )
        is_behind = group.assignment_epoch > member.current.member_epoch
        if is_behind and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._await_join(group, member, now_ms)
            return CoordinatorResult(
                (), (Reply(token, make_error_response(ErrorCode.rebalance_in_progress)),)
            )
        self._deadlines.cancel(self._consumers.make_key("sync", group, member.member_id))
        self._consumers.set_session_deadline(group, member, now_ms)
        assert member.classic is not None
        assigned = {t: frozenset(p) for t, p in member.current.assigned.items()}
        data = consumer_protocol.write_assignment(
            assigned, member.classic.protocols[0][1], self._consumers.catalog
        )
        response: responses.SyncGroupResponse = {
            "error_code": ErrorCode.none,
            "protocol_type": request.protocol_type,
            "protocol_name": request.protocol_name,
            "assignment": data,
        }
        return CoordinatorResult((), (Reply(token, response),))

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """Heartbeat. It returns REBALANCE_IN_PROGRESS when the member has a step to take."""
        group = self._find_group(request.group_id)
        member = self._find_classic_member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        self._consumers.set_session_deadline(group, member, now_ms)
        current = member.current
        error = ErrorCode.none
        if (
            current.member_epoch < group.assignment_epoch
            or current.state is MemberState.UNREVOKED_PARTITIONS
            or (
                current.state is MemberState.UNRELEASED_PARTITIONS
                and not self._is_waiting_for_others(group, member)
            )
        ):
            error = ErrorCode.rebalance_in_progress
            self._await_join(group, member, now_ms)
        return CoordinatorResult((), (Reply(token, make_error_response(error)),))

    def leave(self, request: LeaveGroupRequest, now_ms: int, token: Token) -> CoordinatorResult:
        """LeaveGroup. An admin client may name members of either protocol."""
        group = self._find_group(request.group_id)
        left_ids: list[str] = []
        answers: list[responses.LeaveGroupMemberResponse] = []
        for leaver in request.members:
            error = ErrorCode.none
            try:
                member_id = self._find_leaver(group, leaver).member_id
                if member_id not in left_ids:
                    left_ids.append(member_id)
            except ApiError as refused:
                error = refused.code
            answers.append(
                {
                    "member_id": leaver.member_id,
                    "group_instance_id": leaver.group_instance_id,
                    "error_code": error,
                }
            )
        draft = ResultDraft()
        response: responses.LeaveGroupResponse = {
            "error_code": ErrorCode.none,
            "members": answers,
        }
        draft.reply(token, response)
        if left_ids:
            self._consumers.fence(group, left_ids, draft, now_ms)
        return draft.to_result()

    # Common steps.

    def _find_group(self, group_id: str) -> ConsumerGroup:
        return self._context.groups.find_as(group_id, ConsumerGroup)

    def _find_classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> ConsumerGroupMember:
        """A classic member of the group. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        member = group.get_named_member(member_id, instance_id)
        if member.classic is None:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Member {member.member_id} does not use the classic protocol.",
            )
        return member

    def _find_leaver(self, group: ConsumerGroup, leaver: LeavingMember) -> ConsumerGroupMember:
        if leaver.group_instance_id is None or leaver.member_id:
            return group.get_named_member(leaver.member_id, leaver.group_instance_id)
        member = group.find_static_member(leaver.group_instance_id)
        if member is None:
            raise ApiError(ErrorCode.unknown_member_id)
        return member

    def _check_join(self, group: ConsumerGroup, request: JoinGroupRequest) -> None:
        reason = None
        if self._policy == "disabled":
            reason = "because the group migration is disabled"
        elif not _has_common_protocol(group, request.protocol_type, request.protocols):
            reason = "since its protocols are not those of the other members"
        if reason is not None:
            raise ApiError(
                ErrorCode.inconsistent_group_protocol,
                f"A member cannot join the consumer group {group.group_id} with the classic "
                f"protocol {reason}.",
            )
        is_member = request.member_id in group.members
        if not is_member and group.find_static_member(request.group_instance_id) is None:
            self._consumers.check_size(group)

    def _apply_join(
        self, previous: ConsumerGroupMember, request: JoinGroupRequest
    ) -> tuple[ConsumerGroupMember, Any]:
        """The member updated by its JoinGroup, and the partitions that the request lists as
        owned."""
        try:
            metadata = next(iter(request.protocols.values()))
            subscription = consumer_protocol.read_subscription(metadata)
        except WireError as error:
            raise ApiError(
                ErrorCode.inconsistent_group_protocol,
                f"The embedded consumer protocol is malformed: {error}.",
            ) from None
        protocols = tuple(request.protocols.items())
        member = replace(
            previous,
            instance_id=request.group_instance_id or previous.instance_id,
            rack_id=subscription.rack_id or previous.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            subscribed_topic_names=subscription.topics,
            subscribed_topic_regex="",
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            classic=ClassicMemberMetadata(request.session_timeout_ms, protocols),
            key_hash_version=0,
        )
        owned = consumer_protocol.resolve_topic_ids(subscription.owned, self._consumers.catalog)
        return member, group_by_topic(owned)

    def _await_join(self, group: ConsumerGroup, member: ConsumerGroupMember, now_ms: int) -> None:
        """Set the deadline for a member that has to rejoin: its rebalance timeout."""
        key = self._consumers.make_key("join", group, member.member_id)
        if key not in self._deadlines:
            self._deadlines.set(key, now_ms + member.rebalance_timeout_ms)

    @staticmethod
    def _is_waiting_for_others(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
        """Whether another member still owns a partition of the member's target."""
        return any(
            not group.is_free((topic, partition), member)
            for topic, partitions in group.target.get(member.member_id, EMPTY).items()
            for partition in partitions
            if not member.current.has_partition(topic, partition)
        )


def _get_protocol_name(member: ConsumerGroupMember) -> str:
    assert member.classic is not None
    return member.classic.protocols[0][0]


def _has_common_protocol(
    group: ConsumerGroup, protocol_type: str, protocols: Mapping[str, bytes]
) -> bool:
    """Whether all classic members of the group support one of the protocols."""
    if protocol_type != CONSUMER_PROTOCOL or not protocols:
        return False
    theirs = [dict(m.classic.protocols) for m in group.members.values() if m.classic is not None]
    return any(all(name in names for names in theirs) for name in protocols)


def _check_generation(member: ConsumerGroupMember, generation_id: int) -> None:
    if generation_id != member.current.member_epoch:
        raise ApiError(
            ErrorCode.illegal_generation,
            f"Member {member.member_id} is at epoch {member.current.member_epoch}, "
            f"not {generation_id}.",
        )
