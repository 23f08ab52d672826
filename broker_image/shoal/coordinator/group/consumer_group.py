"""A group of the consumer protocol (KIP-848): its hard state, and what follows from it.

Each member moves to the target assignment independently (`reconciliation`), and has an epoch of its
own. The state of the group follows from the group epoch, the assignment epoch and the member
epochs. Decisions are in `consumer_membership`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from shoal.coordinator.group.assignment import (
    EMPTY,
    Assignment,
    TopicIdPartition,
)
from shoal.coordinator.group.commits_by_epoch import CommitsByEpoch
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.modern_group import (
    PartitionGroup,
    RecordTypes,
    SubscribedMember,
    Value,
)
from shoal.coordinator.group.reconciliation import (
    NONE,
    CurrentAssignment,
    MemberState,
    Owned,
    owned_from_wire,
    owned_on_wire,
)
from shoal.coordinator.group.records import RecordType, record, tombstone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.contract import Record
    from shoal.coordinator.group.topics import Catalog

#: The epoch of a static member that has left and may rejoin (KIP-848).
LEFT_STATIC_MEMBER_EPOCH = -2


class State(StrEnum):
    """Kafka's names, as ConsumerGroupDescribe and ListGroups give them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ClassicProtocols(NamedTuple):
    """The session timeout and the protocols of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Regex(NamedTuple):
    """The topics that a regular expression of the group matches."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Member(SubscribedMember):
    """What a member reports of itself, and what it owns (`current`)."""

    instance_id: str | None = None
    #: Empty for none, as on the wire.
    subscribed_topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    #: None for a member of the consumer protocol.
    classic: ClassicProtocols | None = None
    current: CurrentAssignment = field(default_factory=CurrentAssignment)

    @property
    def has_left(self) -> bool:
        return self.current.member_epoch == LEFT_STATIC_MEMBER_EPOCH


@dataclass(slots=True, eq=False)
class ConsumerGroup(CommitsByEpoch[Member], PartitionGroup[Member]):
    """Hard state and its indexes; the last two fields are soft."""

    type: ClassVar[GroupType] = GroupType.CONSUMER
    record_types: ClassVar[RecordTypes] = RecordTypes(
        RecordType.CONSUMER_GROUP_METADATA,
        RecordType.CONSUMER_GROUP_MEMBER_METADATA,
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
        RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    )

    regexes: dict[str, Regex] = field(default_factory=dict)
    #: Instance id -> member id.
    static_members: dict[str, str] = field(default_factory=dict)
    #: The member that owns a partition, assigned or pending revocation.
    owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    #: When the regular expressions were due last, and those that are still due.
    regexes_checked_ms: int = 0
    regexes_due: set[str] = field(default_factory=set)

    # The interface of every group.

    @property
    def state(self) -> State:
        if not self.members:
            return State.EMPTY
        if self.epoch > self.assignment_epoch:
            return State.ASSIGNING
        behind = any(
            not m.current.reconciled_to(self.assignment_epoch) for m in self.members.values()
        )
        return State.RECONCILING if behind else State.STABLE

    @property
    def state_name(self) -> str:
        return self.state.value

    def _is_classic(self, member: Member) -> bool:
        return member.classic is not None

    def _owned_since(self, member: Member) -> Callable[[str, UUID | None, int], int | None]:
        def since(_topic: str, topic_id: UUID | None, partition: int) -> int | None:
            if topic_id is None:
                return None
            return member.current.assignment_epoch(topic_id, partition)

        return since

    def subscribes_to(self, topic: str) -> bool:
        return topic in self.subscribed_topic_names()

    def _own_tombstones(self) -> Sequence[Record]:
        return [regex_tombstone(self.group_id, regex) for regex in sorted(self.regexes)]

    def _own_hard_state(self) -> tuple[Any, ...]:
        return self.regexes, self.static_members, self.owners

    # Members and subscriptions.

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def with_member(self, member: Member) -> dict[str, Member]:
        """The members with `member`, without the one whose instance id it takes over."""
        members = {**self.members, member.member_id: member}
        if member.instance_id is not None:
            replaced = self.static_members.get(member.instance_id)
            if replaced is not None and replaced != member.member_id:
                del members[replaced]
        return members

    def subscribed_topic_names(
        self,
        members: Mapping[str, Member] | None = None,
        regexes: Mapping[str, Regex] | None = None,
    ) -> frozenset[str]:
        """The topics that the members subscribe to, whether or not they exist."""
        found: set[str] = set()
        for member in (self.members if members is None else members).values():
            found |= subscription(member, self.regexes if regexes is None else regexes)
        return frozenset(found)

    def target_of(self, member: Member) -> Assignment:
        """The target of a member. A static member inherits that of the member that it replaces."""
        owner = member.member_id
        if member.instance_id is not None:
            owner = self.static_members.get(member.instance_id, owner)
        return self.target.get(owner, EMPTY)

    def is_free(self, partition: TopicIdPartition, member: Member) -> bool:
        """Whether no member but `member`, or the one that it replaces, owns a partition."""
        owner = self.owners.get(partition)
        if owner is None or owner == member.member_id:
            return True
        instance_id = member.instance_id
        return instance_id is not None and self.static_members.get(instance_id) == owner

    def assignor_name(self, members: Iterable[Member], default: str) -> str:
        """The assignor that most members name; of several, the first in alphabetical order."""
        votes = Counter(m.server_assignor for m in members if m.server_assignor is not None)
        return min(votes, key=lambda name: (-votes[name], name), default=default)

    def add(self, member: Member, target: Assignment) -> None:
        """Add a member to a new group whose records are not replayed yet."""
        self.members[member.member_id] = member
        self.target[member.member_id] = target
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._own(None, member)

    # Records.

    def all_records(self) -> list[Record]:
        """All records of the group, in the order in which Kafka writes those of a new one."""
        members = self.members.values()
        return [
            *(self.member_record(m) for m in members),
            self.epoch_record(self.epoch, self.metadata_hash),
            *(self.target_record(m, self.target.get(m, EMPTY)) for m in self.members),
            self.target_metadata_record(self.assignment_epoch, self.assignment_timestamp_ms),
            *(self.current_record(m) for m in members),
        ]

    def _member_value(self, member: Member) -> dict[str, Any]:
        classic = member.classic
        return {
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": sorted(member.subscribed_topic_names),
            "subscribed_topic_regex": member.subscribed_topic_regex,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "server_assignor": member.server_assignor,
            "classic_member_metadata": None
            if classic is None
            else {
                "session_timeout_ms": classic.session_timeout_ms,
                "supported_protocols": [
                    {"name": name, "metadata": metadata} for name, metadata in classic.protocols
                ],
            },
        }

    def _current_value(self, member: Member) -> dict[str, Any]:
        current = member.current
        return {
            "member_epoch": current.member_epoch,
            "previous_member_epoch": current.previous_member_epoch,
            "state": current.state,
            "assigned_partitions": owned_on_wire(current.assigned),
            "partitions_pending_revocation": owned_on_wire(current.pending_revocation),
        }

    def regex_record(self, regex: str, found: Regex) -> Record:
        return record(
            RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION,
            {"group_id": self.group_id, "regular_expression": regex},
            {
                "topics": sorted(found.topics),
                "version": found.version,
                "timestamp": found.timestamp_ms,
            },
        )

    # Replay.

    def replay_member(self, member_id: str, value: Value) -> None:
        old = self.members.get(member_id)
        if value is None:
            self._own(old, None)
            self.members.pop(member_id, None)
            if old is not None and self.static_members.get(old.instance_id or "") == member_id:
                del self.static_members[old.instance_id or ""]
            return
        member = Member(
            member_id=member_id,
            instance_id=value["instance_id"],
            rack_id=value["rack_id"],
            client_id=value["client_id"],
            client_host=value["client_host"],
            subscribed_topic_names=frozenset(value["subscribed_topic_names"]),
            subscribed_topic_regex=value["subscribed_topic_regex"] or "",
            rebalance_timeout_ms=value["rebalance_timeout_ms"],
            server_assignor=value["server_assignor"],
            classic=_classic(value["classic_member_metadata"]),
            current=CurrentAssignment() if old is None else old.current,
        )
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def replay_current(self, member_id: str, value: Value) -> None:
        old = self.members.get(member_id)
        if old is None:
            return  # Its member record follows, or the member was removed.
        current = CurrentAssignment()
        if value is not None:
            epoch = value["member_epoch"]
            current = CurrentAssignment(
                epoch,
                value["previous_member_epoch"],
                MemberState(value["state"]),
                owned_from_wire(value["assigned_partitions"], epoch),
                owned_from_wire(value["partitions_pending_revocation"], epoch),
            )
        member = replace(old, current=current)
        self._own(old, member)
        self.members[member_id] = member

    def _own(self, old: Member | None, new: Member | None) -> None:
        for member_id, owned in _owned(old):
            for topic, partitions in owned.items():
                for partition in partitions:
                    if self.owners.get((topic, partition)) == member_id:
                        del self.owners[topic, partition]
        for member_id, owned in _owned(new):
            for topic, partitions in owned.items():
                for partition in partitions:
                    self.owners[topic, partition] = member_id

    # Describing.

    def _described_assignor(self, default: str) -> str:
        return self.assignor_name(self.members.values(), default)

    def _describe_member(self, member: Member, catalog: Catalog) -> Mapping[str, Any]:
        current = member.current
        owned: dict[UUID, set[int]] = {}
        for side in (current.assigned, current.pending_revocation):
            for topic, partitions in side.items():
                owned.setdefault(topic, set()).update(partitions)
        target = self.target.get(member.member_id, EMPTY)
        return {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "member_epoch": current.member_epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": sorted(member.subscribed_topic_names),
            "subscribed_topic_regex": member.subscribed_topic_regex,
            "assignment": {"topic_partitions": catalog.described(owned)},
            "target_assignment": {"topic_partitions": catalog.described(target)},
            "member_type": 1 if member.classic is None else 0,
        }


def subscription(member: Member, regexes: Mapping[str, Regex]) -> frozenset[str]:
    """The topics that a member names, or that its regular expression matches."""
    found = regexes.get(member.subscribed_topic_regex)
    if found is None:
        return member.subscribed_topic_names
    return member.subscribed_topic_names | found.topics


def regex_tombstone(group_id: str, regex: str) -> Record:
    kind = RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION
    return tombstone(kind, group_id=group_id, regular_expression=regex)


def _owned(member: Member | None) -> tuple[tuple[str, Owned], ...]:
    if member is None:
        return ()
    current = member.current
    return (
        (member.member_id, current.assigned or NONE),
        (member.member_id, current.pending_revocation or NONE),
    )


def _classic(value: Mapping[str, Any] | None) -> ClassicProtocols | None:
    if value is None:
        return None
    protocols = tuple((p["name"], p["metadata"]) for p in value["supported_protocols"])
    return ClassicProtocols(value["session_timeout_ms"], protocols)
