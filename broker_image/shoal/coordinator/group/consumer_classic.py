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

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.group import classic, consumer_protocol
from shoal.coordinator.group.assignment import EMPTY, grouped
from shoal.coordinator.group.classic import CONSUMER_PROTOCOL, ClassicGroup, refused_join
from shoal.coordinator.group.consumer_group import ClassicProtocols, ConsumerGroup, Member
from shoal.coordinator.group.consumer_membership import ConsumerGroups, owner_of_instance
from shoal.coordinator.group.groups import Draft, Group, code
from shoal.coordinator.group.reconciliation import CurrentAssignment, MemberState
from shoal.protocol.errors import ApiError, ErrorCode, WireError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.group.classic_membership import ClassicGroups
    from shoal.coordinator.group.classic_requests import (
        HeartbeatRequest,
        JoinRequest,
        Leaver,
        LeaveRequest,
        SyncRequest,
    )


class ClassicMembers:
    """The `ClassicBridge` and the `Migration` of one shard."""

    def __init__(self, consumers: ConsumerGroups, classics: ClassicGroups) -> None:
        self._consumers = consumers
        self._classics = classics
        self._context = consumers.context
        self._deadlines = consumers.context.deadlines

    # Moving groups.

    @property
    def _policy(self) -> str:
        return self._context.settings.group_consumer_migration_policy.lower()

    def upgrade(self, group: Group, draft: Draft, now_ms: int) -> ConsumerGroup:
        """Return the consumer group that replaces a classic group. Its records are in the draft.

        Raises GROUP_ID_NOT_FOUND for a group that cannot become one.
        """
        if not isinstance(group, ClassicGroup):
            return self._context.groups.find_of(group.group_id, ConsumerGroup)
        if group.is_empty:
            draft.records += self._classics.give_up(group, draft)
            return ConsumerGroup(group.group_id)
        refusal = self._upgrade_refusal(group)
        if refusal is not None:
            raise ApiError(
                ErrorCode.group_id_not_found,
                f"Cannot upgrade classic group {group.group_id} to consumer group because "
                f"{refusal}.",
            )
        try:
            upgraded = self._as_consumer_group(group)
        except consumer_protocol.CustomAssignment:
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
        draft.records += upgraded.all_records()
        for member in upgraded.members.values():
            self._consumers.deadline_session(upgraded, member, now_ms)
        return upgraded

    def _upgrade_refusal(self, group: ClassicGroup) -> str | None:
        if self._policy not in ("upgrade", "bidirectional"):
            return "online upgrade is disabled"
        if group.protocol_type != CONSUMER_PROTOCOL:
            return "the group does not use the consumer embedded protocol"
        if len(group.members) > self._context.settings.group_consumer_max_size:
            return "the group size exceeds the consumer group maximum size"
        return None

    def _as_consumer_group(self, group: ClassicGroup) -> ConsumerGroup:
        catalog = self._consumers.catalog
        epoch = group.generation_id
        upgraded = ConsumerGroup(group.group_id, epoch=epoch, assignment_epoch=epoch)
        protocol = group.protocol_name or group.select_protocol()
        for old in group.members.values():
            subscription = consumer_protocol.read_subscription(old.metadata(protocol))
            assigned = consumer_protocol.read_assignment(old.assignment, catalog)
            owned = {t: dict.fromkeys(sorted(p), epoch) for t, p in assigned.items()}
            member = Member(
                member_id=old.member_id,
                instance_id=old.group_instance_id,
                rack_id=subscription.rack_id,
                client_id=old.client_id,
                client_host=old.client_host,
                subscribed_topic_names=subscription.topics,
                rebalance_timeout_ms=old.rebalance_timeout_ms,
                classic=ClassicProtocols(old.session_timeout_ms, tuple(old.protocols.items())),
                current=CurrentAssignment(epoch, epoch, MemberState.STABLE, owned),
            )
            upgraded.add(member, assigned)
        upgraded.metadata_hash = catalog.hash_of(upgraded.subscribed_topic_names())
        return upgraded

    def downgrade(
        self, group: ConsumerGroup, leaving: Sequence[str], draft: Draft, now_ms: int
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
        became = ClassicGroup(group.group_id, generation_id=group.epoch)
        for member in staying:
            assert member.classic is not None
            became.add(
                classic.Member(
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
        became.protocol_name = became.select_protocol()
        catalog = self._consumers.catalog
        assignments = {
            m.member_id: consumer_protocol.write_assignment(
                group.target.get(m.member_id, EMPTY), m.metadata(became.protocol_name), catalog
            )
            for m in became.members.values()
        }
        for member in group.members.values():
            self._consumers.cancel_deadlines(group, member)
        draft.records += group.tombstones()
        data = became.snapshot(now_ms, assignments)
        draft.records += self._classics.take_over(group.group_id, data, now_ms, rebalance=True)
        return True

    # Requests of classic members.

    def join(self, request: JoinRequest, now_ms: int, token: Token) -> Result:
        """JoinGroup to a consumer group. It is answered at once: members do not wait for others."""
        group = self._group(request.group_id)
        self._check_join(group, request)
        if not request.member_id and request.member_id_required:
            error = ErrorCode.member_id_required
            return Result((), (Reply(token, refused_join(request.new_member_id, error)),))
        draft = Draft()
        member_id = request.member_id or request.new_member_id
        owner = group.static_member(request.group_instance_id)
        if owner is not None and owner.classic is None and not request.member_id:
            if self.downgrade(group, [owner.member_id], draft, now_ms):
                # The last member of the consumer protocol has rejoined with the classic one.
                error = ErrorCode.rebalance_in_progress
                draft.reply(token, refused_join("", error))
                return draft.result()
        if request.group_instance_id is None:
            known = group.members.get(member_id) or Member(member_id)
        elif request.member_id:
            known = owner_of_instance(group, request.group_instance_id, member_id)
        elif owner is not None:
            known = self._consumers.take_over(group, owner, member_id, draft)
        else:
            known = Member(member_id)
        member, owned = self._updated(known, request)
        # A classic member evaluates no regular expressions.
        member = self._consumers.advance(
            group, known, member, owned, draft, now_ms, describes=lambda _: False
        )
        self._deadlines.cancel(self._consumers.key("join", group, member.member_id))
        self._consumers.deadline_session(group, member, now_ms)
        sync_ms = now_ms + request.rebalance_timeout_ms
        self._deadlines.set(self._consumers.key("sync", group, member.member_id), sync_ms)
        draft.reply(
            token,
            {
                "error_code": ErrorCode.none,
                "generation_id": member.current.member_epoch,
                "protocol_type": CONSUMER_PROTOCOL,
                "protocol_name": _protocol(member),
                "leader": "",
                "skip_assignment": False,
                "member_id": member.member_id,
                "members": [],
            },
        )
        return draft.result()

    def sync(self, request: SyncRequest, now_ms: int, token: Token) -> Result:
        """SyncGroup. The assignment is what the member owns."""
        group = self._group(request.group_id)
        member = self._member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or (
            request.protocol_name not in (None, _protocol(member))
        ):
            raise ApiError(
                ErrorCode.inconsistent_group_protocol,
                f"Member {member.member_id} syncs with another protocol than it joined with.",
            )
        behind = group.assignment_epoch > member.current.member_epoch
        if behind and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._await_join(group, member, now_ms)
            return Result((), (Reply(token, code(ErrorCode.rebalance_in_progress)),))
        self._deadlines.cancel(self._consumers.key("sync", group, member.member_id))
        self._consumers.deadline_session(group, member, now_ms)
        assert member.classic is not None
        assigned = {t: frozenset(p) for t, p in member.current.assigned.items()}
        data = consumer_protocol.write_assignment(
            assigned, member.classic.protocols[0][1], self._consumers.catalog
        )
        response = {
            "error_code": ErrorCode.none,
            "protocol_type": request.protocol_type,
            "protocol_name": request.protocol_name,
            "assignment": data,
        }
        return Result((), (Reply(token, response),))

    def heartbeat(self, request: HeartbeatRequest, now_ms: int, token: Token) -> Result:
        """Heartbeat. It returns REBALANCE_IN_PROGRESS when the member has a step to take."""
        group = self._group(request.group_id)
        member = self._member(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        self._consumers.deadline_session(group, member, now_ms)
        current = member.current
        error = ErrorCode.none
        if (
            current.member_epoch < group.assignment_epoch
            or current.state is MemberState.UNREVOKED_PARTITIONS
            or (
                current.state is MemberState.UNRELEASED_PARTITIONS
                and not self._waits_for_others(group, member)
            )
        ):
            error = ErrorCode.rebalance_in_progress
            self._await_join(group, member, now_ms)
        return Result((), (Reply(token, code(error)),))

    def leave(self, request: LeaveRequest, now_ms: int, token: Token) -> Result:
        """LeaveGroup. An admin client may name members of either protocol."""
        group = self._group(request.group_id)
        gone: list[str] = []
        answers = []
        for leaver in request.members:
            error = ErrorCode.none
            try:
                member_id = self._leaving(group, leaver).member_id
                if member_id not in gone:
                    gone.append(member_id)
            except ApiError as refused:
                error = refused.code
            answers.append(
                {
                    "member_id": leaver.member_id,
                    "group_instance_id": leaver.group_instance_id,
                    "error_code": error,
                }
            )
        draft = Draft()
        draft.reply(token, {"error_code": ErrorCode.none, "members": answers})
        if gone:
            self._consumers.fence(group, gone, draft, now_ms)
        return draft.result()

    # Common steps.

    def _group(self, group_id: str) -> ConsumerGroup:
        return self._context.groups.find_of(group_id, ConsumerGroup)

    def _member(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
        """A classic member of the group. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = owner_of_instance(group, instance_id, member_id)
        if member.classic is None:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Member {member.member_id} does not use the classic protocol.",
            )
        return member

    def _leaving(self, group: ConsumerGroup, leaver: Leaver) -> Member:
        if leaver.group_instance_id is None:
            return group.member(leaver.member_id)
        if leaver.member_id:
            return owner_of_instance(group, leaver.group_instance_id, leaver.member_id)
        member = group.static_member(leaver.group_instance_id)
        if member is None:
            raise ApiError(ErrorCode.unknown_member_id)
        return member

    def _check_join(self, group: ConsumerGroup, request: JoinRequest) -> None:
        reason = None
        if self._policy == "disabled":
            reason = "because the group migration is disabled"
        elif not _supports(group, request.protocol_type, request.protocols):
            reason = "since its protocols are not those of the other members"
        if reason is not None:
            raise ApiError(
                ErrorCode.inconsistent_group_protocol,
                f"A member cannot join the consumer group {group.group_id} with the classic "
                f"protocol {reason}.",
            )
        known = request.member_id in group.members
        if not known and group.static_member(request.group_instance_id) is None:
            self._consumers.check_size(group)

    def _updated(self, known: Member, request: JoinRequest) -> tuple[Member, Any]:
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
            known,
            instance_id=request.group_instance_id or known.instance_id,
            rack_id=subscription.rack_id or known.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            subscribed_topic_names=subscription.topics,
            subscribed_topic_regex="",
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            classic=ClassicProtocols(request.session_timeout_ms, protocols),
            key_hash_version=0,
        )
        owned = consumer_protocol.by_id(subscription.owned, self._consumers.catalog)
        return member, grouped(owned)

    def _await_join(self, group: ConsumerGroup, member: Member, now_ms: int) -> None:
        """Set the deadline for a member that has to rejoin: its rebalance timeout."""
        key = self._consumers.key("join", group, member.member_id)
        if key not in self._deadlines:
            self._deadlines.set(key, now_ms + member.rebalance_timeout_ms)

    @staticmethod
    def _waits_for_others(group: ConsumerGroup, member: Member) -> bool:
        """Whether another member still owns a partition of the member's target."""
        return any(
            not group.is_free((topic, partition), member)
            for topic, partitions in group.target.get(member.member_id, EMPTY).items()
            for partition in partitions
            if not member.current.owns(topic, partition)
        )


def _protocol(member: Member) -> str:
    assert member.classic is not None
    return member.classic.protocols[0][0]


def _supports(group: ConsumerGroup, protocol_type: str, protocols: Mapping[str, bytes]) -> bool:
    """Whether all classic members of the group support one of the protocols."""
    if protocol_type != CONSUMER_PROTOCOL or not protocols:
        return False
    theirs = [dict(m.classic.protocols) for m in group.members.values() if m.classic is not None]
    return any(all(name in names for names in theirs) for name in protocols)


def _check_generation(member: Member, generation_id: int) -> None:
    if generation_id != member.current.member_epoch:
        raise ApiError(
            ErrorCode.illegal_generation,
            f"Member {member.member_id} is at epoch {member.current.member_epoch}, "
            f"not {generation_id}.",
        )
