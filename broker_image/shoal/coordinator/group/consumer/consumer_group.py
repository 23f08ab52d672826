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
    flatten,
    group_by_topic,
)
from shoal.coordinator.group.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    add_slices,
    decode_owned,
    encode_owned,
    encode_slices,
)
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.key_ranges import key_slots
from shoal.coordinator.group.key_ranges.key_slots import ALL, NO_SLICES, Slices
from shoal.coordinator.group.modern.commits_by_epoch import CommitsByEpoch
from shoal.coordinator.group.modern.modern_group import (
    PartitionGroup,
    RecordTypes,
    SubscribedMember,
    Value,
)
from shoal.coordinator.group.modern.static_members import (
    LEFT_STATIC_MEMBER_EPOCH,
    StaticMembers,
)
from shoal.coordinator.group.records import RecordType, encode_record, encode_tombstone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.contract import CoordinatorRecord
    from shoal.coordinator.group.topics import TopicCatalog
    from shoal.protocol.responses import groups as responses

NO_SHARERS: Mapping[str, int] = {}


class ConsumerGroupState(StrEnum):
    """Kafka's names, as ConsumerGroupDescribe and ListGroups give them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ClassicMemberMetadata(NamedTuple):
    """The session timeout and the protocols of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ResolvedRegularExpression(NamedTuple):
    """The topics that a regular expression of the group matches."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember(SubscribedMember):
    """What a member reports of itself, and what it owns (`current`)."""

    instance_id: str | None = None
    #: Empty for none, as on the wire.
    subscribed_topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    #: None for a member of the consumer protocol.
    classic: ClassicMemberMetadata | None = None
    current: CurrentAssignment = field(default_factory=CurrentAssignment)
    #: The version of the hash of keys, if it may get key ranges of partitions; else 0.
    key_hash_version: int = 0

    @property
    def shares(self) -> bool:
        """Whether it may share partitions by key ranges."""
        return self.key_hash_version != 0

    @property
    def has_left(self) -> bool:
        return self.current.member_epoch == LEFT_STATIC_MEMBER_EPOCH


@dataclass(slots=True, eq=False)
class ConsumerGroup(
    CommitsByEpoch[ConsumerGroupMember],
    StaticMembers[ConsumerGroupMember],
    PartitionGroup[ConsumerGroupMember],
):
    """Hard state and its indexes; the last two fields are soft.

    `target` has the partitions that members are to own as a whole, and `target_slices` the slots of
    those that they are to share.
    """

    type: ClassVar[GroupType] = GroupType.CONSUMER
    record_types: ClassVar[RecordTypes] = RecordTypes(
        RecordType.CONSUMER_GROUP_METADATA,
        RecordType.CONSUMER_GROUP_MEMBER_METADATA,
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
        RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    )

    regexes: dict[str, ResolvedRegularExpression] = field(default_factory=dict)
    #: Instance id -> member id.
    static_members: dict[str, str] = field(default_factory=dict)
    target_slices: dict[str, Slices] = field(default_factory=dict)
    #: The member that owns a whole partition, assigned or pending revocation.
    owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    #: The members that own slots of other partitions, and those slots.
    sharers: dict[TopicIdPartition, dict[str, int]] = field(default_factory=dict)
    #: When the regular expressions were due last, and those that are still due.
    regexes_checked_ms: int = 0
    regexes_due: set[str] = field(default_factory=set)

    # The interface of every group.

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        is_reconciling = any(
            not m.current.is_reconciled_to(self.assignment_epoch) for m in self.members.values()
        )
        return ConsumerGroupState.RECONCILING if is_reconciling else ConsumerGroupState.STABLE

    @property
    def state_name(self) -> str:
        return self.state.value

    def _is_classic(self, member: ConsumerGroupMember) -> bool:
        return member.classic is not None

    def _make_ownership_lookup(
        self, member: ConsumerGroupMember
    ) -> Callable[[str, UUID | None, int], int | None]:
        def find_epoch(_topic: str, topic_id: UUID | None, partition: int) -> int | None:
            if topic_id is None:
                return None
            return member.current.get_assignment_epoch(topic_id, partition)

        return find_epoch

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.get_subscribed_topics()

    def _build_own_tombstones(self) -> Sequence[CoordinatorRecord]:
        return [build_regex_tombstone(self.group_id, regex) for regex in sorted(self.regexes)]

    def _get_own_hard_state(self) -> tuple[Any, ...]:
        slices = {m: s for m, s in self.target_slices.items() if s}
        return self.regexes, self.static_members, self.owners, self.sharers, slices

    # Members and subscriptions.

    def get_subscribed_topics(
        self,
        members: Mapping[str, ConsumerGroupMember] | None = None,
        regexes: Mapping[str, ResolvedRegularExpression] | None = None,
    ) -> frozenset[str]:
        """The topics that the members subscribe to, whether or not they exist."""
        topics: set[str] = set()
        for member in (self.members if members is None else members).values():
            topics |= find_subscribed_topics(member, self.regexes if regexes is None else regexes)
        return frozenset(topics)

    def get_target(self, member: ConsumerGroupMember) -> Assignment:
        """The target of a member. A static member inherits that of the member that it replaces."""
        return self.target.get(self.resolve_member_id(member), EMPTY)

    def get_slices(self, member: ConsumerGroupMember) -> Slices:
        """The slices in the target of a member."""
        return self.target_slices.get(self.resolve_member_id(member), NO_SLICES)

    def is_free(self, partition: TopicIdPartition, member: ConsumerGroupMember) -> bool:
        """Whether no member but `member`, or the one that it replaces, owns some of a partition."""
        return self.find_free_slots(partition, member) == ALL

    def is_shared_by_others(self, partition: TopicIdPartition, member: ConsumerGroupMember) -> bool:
        """Whether other members own key ranges of a partition."""
        return any(m != member.member_id for m in self.sharers.get(partition, NO_SHARERS))

    def find_free_slots(self, partition: TopicIdPartition, member: ConsumerGroupMember) -> int:
        """The slots that no member but `member`, or the one that it replaces, owns."""
        own = (None, member.member_id, self.resolve_member_id(member))
        if self.owners.get(partition) not in own:
            return 0
        taken_slots = 0
        for member_id, slots in self.sharers.get(partition, NO_SHARERS).items():
            if member_id not in own:
                taken_slots |= slots
        return ALL & ~taken_slots

    def choose_assignor(self, members: Iterable[ConsumerGroupMember], default: str) -> str:
        """The assignor that most members name; of several, the first in alphabetical order."""
        votes = Counter(m.server_assignor for m in members if m.server_assignor is not None)
        return min(votes, key=lambda name: (-votes[name], name), default=default)

    def add(self, member: ConsumerGroupMember, target: Assignment) -> None:
        """Add a member to a new group whose records are not replayed yet."""
        self.members[member.member_id] = member
        self.target[member.member_id] = target
        self._replay_instance(None, member)
        self._update_owners(None, member)

    # Records.

    def build_records(self) -> list[CoordinatorRecord]:
        """All records of the group, in the order in which Kafka writes those of a new one."""
        members = self.members.values()
        return [
            *(self.build_member_record(m) for m in members),
            self.build_epoch_record(self.epoch, self.metadata_hash),
            *(
                self.build_target_record(m, self.target.get(m, EMPTY), self.target_slices.get(m))
                for m in self.members
            ),
            self.build_target_metadata_record(self.assignment_epoch, self.assignment_timestamp_ms),
            *(self.build_current_record(m) for m in members),
        ]

    def build_target_record(
        self, member_id: str, target: Assignment, slices: Slices | None = None
    ) -> CoordinatorRecord:
        value = {
            **self._build_target_value(target),
            "key_ranges": tuple(key_slots.to_wire(slices or {})),
        }
        return encode_record(self.record_types.target, self._make_member_key(member_id), value)

    def _build_member_value(self, member: ConsumerGroupMember) -> dict[str, Any]:
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
            "key_hash_version": member.key_hash_version,
            "classic_member_metadata": None
            if classic is None
            else {
                "session_timeout_ms": classic.session_timeout_ms,
                "supported_protocols": [
                    {"name": name, "metadata": metadata} for name, metadata in classic.protocols
                ],
            },
        }

    def _build_current_value(self, member: ConsumerGroupMember) -> dict[str, Any]:
        current = member.current
        return {
            "member_epoch": current.member_epoch,
            "previous_member_epoch": current.previous_member_epoch,
            "state": current.state,
            "assigned_partitions": encode_owned(current.assigned, current.slices),
            "partitions_pending_revocation": encode_owned(
                current.pending_revocation, current.pending_slices
            ),
            "assigned_key_ranges": tuple(encode_slices(current.assigned, current.slices)),
            "key_ranges_pending_revocation": tuple(
                encode_slices(current.pending_revocation, current.pending_slices)
            ),
        }

    def build_regex_record(
        self, regex: str, resolved: ResolvedRegularExpression
    ) -> CoordinatorRecord:
        return encode_record(
            RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION,
            {"group_id": self.group_id, "regular_expression": regex},
            {
                "topics": sorted(resolved.topics),
                "version": resolved.version,
                "timestamp": resolved.timestamp_ms,
            },
        )

    # Replay.

    def replay_target(self, member_id: str, value: Value) -> None:
        super(ConsumerGroup, self).replay_target(member_id, value)
        slices = {} if value is None else _read_slices(value.get("key_ranges") or ())
        if slices:
            self.target_slices[member_id] = slices
        else:
            self.target_slices.pop(member_id, None)

    def replay_member(self, member_id: str, value: Value) -> None:
        old = self.members.get(member_id)
        if value is None:
            self._update_owners(old, None)
            self.members.pop(member_id, None)
            self._replay_instance(old, None)
            return
        member = ConsumerGroupMember(
            member_id=member_id,
            instance_id=value["instance_id"],
            rack_id=value["rack_id"],
            client_id=value["client_id"],
            client_host=value["client_host"],
            subscribed_topic_names=frozenset(value["subscribed_topic_names"]),
            subscribed_topic_regex=value["subscribed_topic_regex"] or "",
            rebalance_timeout_ms=value["rebalance_timeout_ms"],
            server_assignor=value["server_assignor"],
            classic=_read_classic_metadata(value["classic_member_metadata"]),
            current=CurrentAssignment() if old is None else old.current,
            key_hash_version=value.get("key_hash_version", 0),
        )
        self.members[member_id] = member
        self._replay_instance(old, member)

    def replay_current(self, member_id: str, value: Value) -> None:
        old = self.members.get(member_id)
        if old is None:
            return  # Its member record follows, or the member was removed.
        current = CurrentAssignment()
        if value is not None:
            epoch = value["member_epoch"]
            assigned, slices = add_slices(
                decode_owned(value["assigned_partitions"], epoch),
                value.get("assigned_key_ranges") or [],
            )
            pending, pending_slices = add_slices(
                decode_owned(value["partitions_pending_revocation"], epoch),
                value.get("key_ranges_pending_revocation") or [],
            )
            current = CurrentAssignment(
                epoch,
                value["previous_member_epoch"],
                MemberState(value["state"]),
                assigned,
                pending,
                slices,
                pending_slices,
            )
        member = replace(old, current=current)
        self._update_owners(old, member)
        self.members[member_id] = member

    def _update_owners(
        self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None
    ) -> None:
        for topic_partition, slots in _find_owned_slots(old):
            member_id = old.member_id if old is not None else ""
            if slots == ALL and self.owners.get(topic_partition) == member_id:
                del self.owners[topic_partition]
            sharers = self.sharers.get(topic_partition)
            if sharers is not None:
                sharers.pop(member_id, None)
                if not sharers:
                    del self.sharers[topic_partition]
        for topic_partition, slots in _find_owned_slots(new):
            member_id = new.member_id if new is not None else ""
            if slots == ALL:
                self.owners[topic_partition] = member_id
            else:
                sharers = self.sharers.setdefault(topic_partition, {})
                sharers[member_id] = sharers.get(member_id, 0) | slots

    # Describing.

    def _describe_assignor(self, default: str) -> str:
        return self.choose_assignor(self.members.values(), default)

    def _describe_member(
        self, member: ConsumerGroupMember, catalog: TopicCatalog
    ) -> responses.ConsumerGroupDescribeMember:
        current = member.current
        owned: dict[UUID, set[int]] = {}
        for side in (current.assigned, current.pending_revocation):
            for topic, partitions in side.items():
                owned.setdefault(topic, set()).update(partitions)
        target = self.target.get(member.member_id, EMPTY)
        shared = self.target_slices.get(member.member_id, NO_SLICES)
        if shared:
            target = group_by_topic([*flatten(target), *shared])
        return {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "member_epoch": current.member_epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": sorted(member.subscribed_topic_names),
            "subscribed_topic_regex": member.subscribed_topic_regex,
            "assignment": {"topic_partitions": catalog.describe_assignment(owned)},
            "target_assignment": {"topic_partitions": catalog.describe_assignment(target)},
            "member_type": 1 if member.classic is None else 0,
            **self._describe_slices(member),
        }

    @staticmethod
    def _describe_slices(member: ConsumerGroupMember) -> responses.ConsumerGroupDescribeMember:
        """The partitions that a member shares, with its key ranges, for Shoal's own client."""
        current = member.current
        shared = (*current.slices, *current.pending_slices)
        if not shared:
            return {}
        return {"key_ranges": key_slots.to_wire({t: current.get_slots(*t) for t in shared})}


def find_subscribed_topics(
    member: ConsumerGroupMember, regexes: Mapping[str, ResolvedRegularExpression]
) -> frozenset[str]:
    """The topics that a member names, or that its regular expression matches."""
    resolved = regexes.get(member.subscribed_topic_regex)
    if resolved is None:
        return member.subscribed_topic_names
    return member.subscribed_topic_names | resolved.topics


def build_regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    kind = RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION
    return encode_tombstone(kind, group_id=group_id, regular_expression=regex)


def _find_owned_slots(member: ConsumerGroupMember | None) -> Iterator[tuple[TopicIdPartition, int]]:
    """The partitions that a member owns, and the slots, assigned and pending revocation."""
    if member is None:
        return
    current = member.current
    for owned, slices in (
        (current.assigned, current.slices),
        (current.pending_revocation, current.pending_slices),
    ):
        for topic, partitions in owned.items():
            for partition in partitions:
                topic_partition = topic, partition
                yield topic_partition, slices.get(topic_partition, ALL)


def _read_slices(stored: Iterable[Mapping[str, Any]]) -> Slices:
    """Read the key ranges of the record of a target."""
    return {
        (entry["topic_id"], entry["partition"]): key_slots.from_ranges(
            (r["first_hash"], r["last_hash"]) for r in entry["ranges"]
        )
        for entry in stored
    }


def _read_classic_metadata(value: Mapping[str, Any] | None) -> ClassicMemberMetadata | None:
    if value is None:
        return None
    protocols = tuple((p["name"], p["metadata"]) for p in value["supported_protocols"])
    return ClassicMemberMetadata(value["session_timeout_ms"], protocols)
