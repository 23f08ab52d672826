"""The membership of a share group (KIP-932): its hard state, and what follows from it.

Members need no reconciliation: a member gets its target with its next heartbeat, since acquisition
locks keep members of one partition apart. A partition can be assigned once its share-group state is
initialized. `Initialization` has the partitions whose state is being initialized, is initialized or
is being deleted. Decisions are in `share_membership`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from uuid import UUID

from shoal.coordinator.group.assignment import EMPTY, Assignment, from_wire, to_wire
from shoal.coordinator.group.groups import CommitCheck, GroupType
from shoal.coordinator.group.modern.modern_group import (
    PartitionGroup,
    RecordTypes,
    SubscribedMember,
    Value,
)
from shoal.coordinator.group.records import RecordType, encode_record
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.coordinator.contract import CoordinatorRecord
    from shoal.coordinator.deadlines import Deadlines
    from shoal.coordinator.group.topics import TopicCatalog
    from shoal.protocol.responses import share as responses


class ShareGroupState(StrEnum):
    """Kafka's names, as ShareGroupDescribe and ListGroups give them. A deleted group is Dead."""

    EMPTY = "Empty"
    STABLE = "Stable"


class NamedPartitions(NamedTuple):
    """Partitions of a topic, with its name: the topic may have been deleted since."""

    name: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Initialization:
    """The progress of the share-group state of the group's partitions, by topic id.

    A partition is first initializing and then initialized. A topic is then deleting, until it is
    removed.
    """

    initializing: Mapping[UUID, NamedPartitions] = field(default_factory=dict)
    initialized: Mapping[UUID, NamedPartitions] = field(default_factory=dict)
    deleting: Mapping[UUID, str] = field(default_factory=dict)

    def get_initialized(self, topic: UUID) -> frozenset[int]:
        """The partitions of a topic that are initialized."""
        return self.initialized[topic].partitions if topic in self.initialized else frozenset()

    def with_initializing(self, partitions: Mapping[UUID, NamedPartitions]) -> Initialization:
        return Initialization(
            _add_partitions(self.initializing, partitions),
            self.initialized,
            {t: name for t, name in self.deleting.items() if t not in partitions},
        )

    def with_initialized(self, partitions: Assignment, catalog: TopicCatalog) -> Initialization:
        """Mark partitions as initialized, whether or not they were initializing."""
        named_partitions = {}
        for topic in sorted(partitions):
            initializing = self.initializing.get(topic)
            name = catalog.get_name(topic) if initializing is None else initializing.name
            if name is not None:
                named_partitions[topic] = NamedPartitions(name, partitions[topic])
        return Initialization(
            _remove_partitions(self.initializing, partitions),
            _add_partitions(self.initialized, named_partitions),
            self.deleting,
        )

    def without_initializing(self, partitions: Assignment) -> Initialization:
        return replace(self, initializing=_remove_partitions(self.initializing, partitions))

    def with_deleting(self, topics: Iterable[UUID]) -> Initialization:
        """Mark topics as deleting."""
        topic_ids = set(topics)
        names = {
            t: named_partitions.name
            for side in (self.initializing, self.initialized)
            for t, named_partitions in side.items()
            if t in topic_ids
        }
        without = self.without_topics(topic_ids)
        return replace(without, deleting={**self.deleting, **names})

    def without_topics(self, topics: Iterable[UUID]) -> Initialization:
        """Remove topics."""
        topic_ids = set(topics)
        return Initialization(
            {
                t: named_partitions
                for t, named_partitions in self.initializing.items()
                if t not in topic_ids
            },
            {
                t: named_partitions
                for t, named_partitions in self.initialized.items()
                if t not in topic_ids
            },
            {t: name for t, name in self.deleting.items() if t not in topic_ids},
        )


@dataclass(frozen=True, slots=True)
class ShareGroupMember(SubscribedMember):
    """What a member reports of itself, its epochs, and its assignment."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    assigned: Assignment = field(default_factory=dict)


class MemberChange(NamedTuple):
    """A member that a decision adds (no `before`), changes, or removes (no `after`)."""

    before: ShareGroupMember | None = None
    after: ShareGroupMember | None = None

    @property
    def resubscribes(self) -> bool:
        """Whether a member is added or removed, or its subscription changes."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        return self.before.subscribed_topic_names != self.after.subscribed_topic_names


NO_CHANGE = MemberChange()


@dataclass(slots=True, eq=False)
class ShareGroup(PartitionGroup[ShareGroupMember]):
    """Hard state. The soft state is `share_membership.ShareGroupSoftState`."""

    type: ClassVar[GroupType] = GroupType.SHARE
    record_types: ClassVar[RecordTypes] = RecordTypes(
        RecordType.SHARE_GROUP_METADATA,
        RecordType.SHARE_GROUP_MEMBER_METADATA,
        RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA,
        RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER,
        RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    )

    initialization: Initialization = field(default_factory=Initialization)
    #: The number of subscribed members, by topic name.
    readers: Counter[str] = field(default_factory=Counter)
    #: Incremented when a member, its subscription or a target assignment changes.
    revision: int = 0

    # The interface of every group.

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def expires(self) -> bool:
        return False

    def check_offset_commit(self, **_request: object) -> CommitCheck | None:
        raise self._make_wrong_type_error()

    def on_offsets_committed(self, _member_id: str, _now_ms: int, _deadlines: Deadlines) -> None:
        raise self._make_wrong_type_error()

    def check_offset_fetch(self, _member_id: str | None, _member_epoch: int) -> None:
        raise self._make_wrong_type_error()

    def check_offset_delete(self) -> None:
        raise self._make_wrong_type_error()

    def _make_wrong_type_error(self) -> ApiError:
        return ApiError(
            ErrorCode.group_id_not_found, f"Group {self.group_id} is not a consumer group."
        )

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.readers

    def compute_expiry_base_ms(self, _commit_timestamp_ms: int) -> int | None:
        return None

    def _build_own_tombstones(self) -> Sequence[CoordinatorRecord]:
        return [self.build_tombstone(RecordType.SHARE_GROUP_STATE_PARTITION_METADATA)]

    def _get_own_hard_state(self) -> tuple[Any, ...]:
        return (self.initialization,)

    # Members and subscriptions.

    def get_subscribed_topics(self, change: MemberChange = NO_CHANGE) -> frozenset[str]:
        """The topics that members subscribe to after `change`, whether or not they exist."""
        names = set(self.readers)
        if change.before is not None:
            old = change.before.subscribed_topic_names
            names -= {name for name in old if self.readers[name] == 1}
        if change.after is not None:
            names |= change.after.subscribed_topic_names
        return frozenset(names)

    def get_epoch(self, member: ShareGroupMember) -> int:
        """The epoch that a member has reached.

        A member whose target stays the same has the new assignment epoch without a record.
        """
        if member.member_epoch and member.assigned == self.target.get(member.member_id, EMPTY):
            return max(member.member_epoch, self.assignment_epoch)
        return member.member_epoch

    # Records.

    def _build_member_value(self, member: ShareGroupMember) -> dict[str, Any]:
        return {
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": sorted(member.subscribed_topic_names),
        }

    def _build_current_value(self, member: ShareGroupMember) -> dict[str, Any]:
        return {
            "member_epoch": member.member_epoch,
            "previous_member_epoch": member.previous_member_epoch,
            # Share members have only one state, STABLE.
            "state": 0,
            "assigned_partitions": to_wire(member.assigned),
        }

    def build_initialization_record(self, initialization: Initialization) -> CoordinatorRecord:
        value = {
            "initializing_topics": _encode_named(initialization.initializing),
            "initialized_topics": _encode_named(initialization.initialized),
            "deleting_topics": [
                {"topic_id": topic, "topic_name": initialization.deleting[topic]}
                for topic in sorted(initialization.deleting)
            ],
        }
        kind = RecordType.SHARE_GROUP_STATE_PARTITION_METADATA
        return encode_record(kind, {"group_id": self.group_id}, value)

    # Replay.

    def replay_member(self, member_id: str, value: Value) -> None:
        before = self.members.get(member_id)
        if value is None:
            self.members.pop(member_id, None)
            self._update_readers(before, None)
            return
        after = self.members[member_id] = replace(
            before or ShareGroupMember(member_id),
            rack_id=value["rack_id"],
            client_id=value["client_id"],
            client_host=value["client_host"],
            subscribed_topic_names=frozenset(value["subscribed_topic_names"]),
        )
        self._update_readers(before, after)

    def _update_readers(
        self, before: ShareGroupMember | None, after: ShareGroupMember | None
    ) -> None:
        if not MemberChange(before, after).resubscribes:
            return
        self.revision += 1
        if after is not None:
            self.readers.update(after.subscribed_topic_names)
        for name in before.subscribed_topic_names if before is not None else ():
            self.readers[name] -= 1
            if not self.readers[name]:
                del self.readers[name]

    def replay_current(self, member_id: str, value: Value) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        if value is None:
            current: tuple[int, int, Assignment] = (0, 0, EMPTY)
        else:
            assigned = from_wire(value["assigned_partitions"])
            target = self.target.get(member_id)
            if assigned == target:
                assigned = target  # One object takes less memory and compares at once.
            current = (value["member_epoch"], value["previous_member_epoch"], assigned)
        self.members[member_id] = replace(
            member,
            member_epoch=current[0],
            previous_member_epoch=current[1],
            assigned=current[2],
        )

    def replay_target(self, member_id: str, value: Value) -> None:
        before = self.target.get(member_id, EMPTY)
        PartitionGroup.replay_target(self, member_id, value)
        self.revision += before != self.target.get(member_id, EMPTY)

    def replay_initialization(self, value: Mapping[str, Any] | None) -> None:
        if value is None:
            self.initialization = Initialization()
            return
        self.initialization = Initialization(
            _decode_named(value["initializing_topics"]),
            _decode_named(value["initialized_topics"]),
            {t["topic_id"]: t["topic_name"] for t in value["deleting_topics"]},
        )

    # Describing.

    def _describe_member(
        self, member: ShareGroupMember, catalog: TopicCatalog
    ) -> responses.ShareGroupDescribeMember:
        return {
            "member_id": member.member_id,
            "rack_id": member.rack_id,
            "member_epoch": self.get_epoch(member),
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": sorted(member.subscribed_topic_names),
            "assignment": {"topic_partitions": catalog.describe_assignment(member.assigned)},
        }


_Named = Mapping[UUID, NamedPartitions]


def _add_partitions(current: _Named, more: _Named) -> _Named:
    merged = dict(current)
    for topic, (name, partitions) in more.items():
        before = current[topic].partitions if topic in current else frozenset()
        merged[topic] = NamedPartitions(name, before | partitions)
    return merged


def _remove_partitions(current: _Named, less: Assignment) -> _Named:
    remaining = {
        t: NamedPartitions(n, p - less.get(t, frozenset())) for t, (n, p) in current.items()
    }
    return {
        topic: named_partitions
        for topic, named_partitions in remaining.items()
        if named_partitions.partitions
    }


def _encode_named(topics: _Named) -> list[dict[str, Any]]:
    return [
        {
            "topic_id": topic,
            "topic_name": topics[topic].name,
            "partitions": sorted(topics[topic].partitions),
        }
        for topic in sorted(topics)
    ]


def _decode_named(topics: Iterable[Mapping[str, Any]]) -> _Named:
    return {
        t["topic_id"]: NamedPartitions(t["topic_name"], frozenset(t["partitions"])) for t in topics
    }
