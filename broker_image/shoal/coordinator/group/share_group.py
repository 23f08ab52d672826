"""A share group's membership (KIP-932): its hard state, and what follows from it.

Members come and go without a barrier: a target assignment becomes a member's own with its next
heartbeat, whatever the others hold, since the locks of the share partitions keep records apart.
A partition can be assigned once its share-group state is initialized; which partitions are on the
way there, have arrived, or are being deleted is the group's bookkeeping (`Initialization`).
Decisions are in `share_membership`; `replay_*` alone change a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from shoal.coordinator.contract import Record
from shoal.coordinator.deadlines import Deadlines
from shoal.coordinator.group.assignment import EMPTY, Assignment, from_wire, on_wire
from shoal.coordinator.group.groups import CommitCheck, GroupType
from shoal.coordinator.group.records import RecordType, record, tombstone
from shoal.coordinator.group.topics import Catalog
from shoal.protocol.errors import ApiError, ErrorCode

#: The epoch of a group that has just come to be, as in Kafka.
FIRST_EPOCH = 1


class State(StrEnum):
    """Kafka's names, as ShareGroupDescribe and ListGroups give them. A group that has been
    deleted is Dead: it is not there any more."""

    EMPTY = "Empty"
    STABLE = "Stable"


class NamedPartitions(NamedTuple):
    """Partitions of a topic that may have been deleted since: it keeps its name."""

    name: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Initialization:
    """Where the share-group state of the group's partitions stands, by topic id.

    A partition goes from nowhere to initializing to initialized; a topic then to deleting, and
    from there to nowhere.
    """

    initializing: Mapping[UUID, NamedPartitions] = field(default_factory=dict)
    initialized: Mapping[UUID, NamedPartitions] = field(default_factory=dict)
    deleting: Mapping[UUID, str] = field(default_factory=dict)

    def of(self, topic: UUID) -> frozenset[int]:
        """The partitions of a topic that are initialized."""
        return self.initialized[topic].partitions if topic in self.initialized else frozenset()

    def started(self, partitions: Mapping[UUID, NamedPartitions]) -> Initialization:
        return Initialization(
            _plus(self.initializing, partitions),
            self.initialized,
            {t: name for t, name in self.deleting.items() if t not in partitions},
        )

    def completed(self, partitions: Assignment, catalog: Catalog) -> Initialization:
        """Those partitions are initialized, whether or not that was known to be under way."""
        named = {}
        for topic in sorted(partitions):
            known = self.initializing.get(topic)
            name = catalog.name_of(topic) if known is None else known.name
            if name is not None:
                named[topic] = NamedPartitions(name, partitions[topic])
        return Initialization(
            _minus(self.initializing, partitions), _plus(self.initialized, named), self.deleting
        )

    def failed(self, partitions: Assignment) -> Initialization:
        return replace(self, initializing=_minus(self.initializing, partitions))

    def deleted(self, topics: Iterable[UUID]) -> Initialization:
        """Mark topics whose state is to be deleted."""
        gone = set(topics)
        names = {
            t: known.name
            for side in (self.initializing, self.initialized)
            for t, known in side.items()
            if t in gone
        }
        without = self.forgotten(gone)
        return replace(without, deleting={**self.deleting, **names})

    def forgotten(self, topics: Iterable[UUID]) -> Initialization:
        """Without any trace of these topics."""
        gone = set(topics)
        return Initialization(
            {t: known for t, known in self.initializing.items() if t not in gone},
            {t: known for t, known in self.initialized.items() if t not in gone},
            {t: name for t, name in self.deleting.items() if t not in gone},
        )


@dataclass(frozen=True, slots=True)
class Member:
    """What a member told of itself, its epochs, and its assignment."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    member_epoch: int = 0
    previous_member_epoch: int = 0
    assigned: Assignment = field(default_factory=dict)


class Change(NamedTuple):
    """A member that a decision adds (no `before`), alters, or takes out (no `after`)."""

    before: Member | None = None
    after: Member | None = None

    @property
    def resubscribes(self) -> bool:
        """Whether a member comes, goes, or reads other topics than before."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        return self.before.subscribed_topic_names != self.after.subscribed_topic_names


NO_CHANGE = Change()


@dataclass(slots=True, eq=False)
class ShareGroup:
    """Hard state. What a coordinator may forget is in `share_membership.SoftState`."""

    group_id: str
    type: ClassVar[GroupType] = GroupType.SHARE
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assignment_timestamp_ms: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    target: dict[str, Assignment] = field(default_factory=dict)
    initialization: Initialization = field(default_factory=Initialization)
    #: How many members read a topic, by its name.
    readers: Counter[str] = field(default_factory=Counter)
    #: Rises when a member, its subscription or a target assignment changes.
    revision: int = 0

    # What the registry asks of every group.

    @property
    def state(self) -> State:
        return State.STABLE if self.members else State.EMPTY

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def protocol_type(self) -> str:
        return "share"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def expires(self) -> bool:
        return False

    def check_offset_commit(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id_or_member_epoch: int,
        transactional: bool,
        api_version: int,
    ) -> CommitCheck | None:
        raise self._no_consumer_group()

    def offsets_committed(self, member_id: str, now_ms: int, deadlines: Deadlines) -> None:
        raise self._no_consumer_group()

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        raise self._no_consumer_group()

    def check_offset_delete(self) -> None:
        raise self._no_consumer_group()

    def _no_consumer_group(self) -> ApiError:
        return ApiError(
            ErrorCode.group_id_not_found, f"Group {self.group_id} is not a consumer group."
        )

    def check_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.non_empty_group, f"Group {self.group_id} has members.")

    def subscribes_to(self, topic: str) -> bool:
        return topic in self.readers

    def offset_expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        return None

    def tombstones(self) -> Sequence[Record]:
        gone: list[Record] = []
        for kind in _OF_MEMBER[:2]:
            gone += (self.tombstone(kind, m) for m in sorted(self.members))
        gone.append(self.tombstone(RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA))
        gone += (self.tombstone(_OF_MEMBER[2], m) for m in sorted(self.members))
        gone.append(self.tombstone(RecordType.SHARE_GROUP_STATE_PARTITION_METADATA))
        gone.append(self.tombstone(RecordType.SHARE_GROUP_METADATA))
        return gone

    def hard_state(self) -> Any:
        return (
            self.epoch,
            self.metadata_hash,
            self.assignment_epoch,
            self.assignment_timestamp_ms,
            self.members,
            {m: a for m, a in self.target.items() if a},
            self.initialization,
        )

    # Members and subscriptions.

    def member(self, member_id: str) -> Member:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def subscribed(self, change: Change = NO_CHANGE) -> frozenset[str]:
        """The topics that members read once `change` has happened, whether or not they exist."""
        names = set(self.readers)
        if change.before is not None:
            old = change.before.subscribed_topic_names
            names -= {name for name in old if self.readers[name] == 1}
        if change.after is not None:
            names |= change.after.subscribed_topic_names
        return frozenset(names)

    def epoch_of(self, member: Member) -> int:
        """The epoch that a member has reached.

        No record is written for a member that a new target assignment leaves as it is: it goes
        along with the group.
        """
        if member.member_epoch and member.assigned == self.target.get(member.member_id, EMPTY):
            return max(member.member_epoch, self.assignment_epoch)
        return member.member_epoch

    # Records.

    def epoch_record(self, epoch: int, metadata_hash: int) -> Record:
        value = {"epoch": epoch, "metadata_hash": metadata_hash}
        return record(RecordType.SHARE_GROUP_METADATA, {"group_id": self.group_id}, value)

    def member_record(self, member: Member) -> Record:
        value = {
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": sorted(member.subscribed_topic_names),
        }
        kind = RecordType.SHARE_GROUP_MEMBER_METADATA
        return record(kind, self._member_key(member.member_id), value)

    def target_record(self, member_id: str, assignment: Assignment) -> Record:
        kind = RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER
        value = {"topic_partitions": on_wire(assignment)}
        return record(kind, self._member_key(member_id), value)

    def target_metadata_record(self, epoch: int, timestamp_ms: int) -> Record:
        kind = RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA
        value = {"assignment_epoch": epoch, "assignment_timestamp": timestamp_ms}
        return record(kind, {"group_id": self.group_id}, value)

    def current_record(self, member: Member) -> Record:
        value = {
            "member_epoch": member.member_epoch,
            "previous_member_epoch": member.previous_member_epoch,
            # A share member has but this one state (STABLE).
            "state": 0,
            "assigned_partitions": on_wire(member.assigned),
        }
        kind = RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT
        return record(kind, self._member_key(member.member_id), value)

    def initialization_record(self, initialization: Initialization) -> Record:
        value = {
            "initializing_topics": _named_on_wire(initialization.initializing),
            "initialized_topics": _named_on_wire(initialization.initialized),
            "deleting_topics": [
                {"topic_id": topic, "topic_name": initialization.deleting[topic]}
                for topic in sorted(initialization.deleting)
            ],
        }
        kind = RecordType.SHARE_GROUP_STATE_PARTITION_METADATA
        return record(kind, {"group_id": self.group_id}, value)

    def member_tombstones(self, member_id: str) -> list[Record]:
        return [self.tombstone(kind, member_id) for kind in _OF_MEMBER]

    def tombstone(self, kind: RecordType, member_id: str | None = None) -> Record:
        if member_id is None:
            return tombstone(kind, group_id=self.group_id)
        return tombstone(kind, group_id=self.group_id, member_id=member_id)

    def _member_key(self, member_id: str) -> Mapping[str, str]:
        return {"group_id": self.group_id, "member_id": member_id}

    # Replay.

    def replay_member(self, member_id: str, value: Mapping[str, Any] | None) -> None:
        before = self.members.get(member_id)
        if value is None:
            self.members.pop(member_id, None)
            self._resubscribed(before, None)
            return
        after = self.members[member_id] = replace(
            before or Member(member_id),
            rack_id=value["rack_id"],
            client_id=value["client_id"],
            client_host=value["client_host"],
            subscribed_topic_names=frozenset(value["subscribed_topic_names"]),
        )
        self._resubscribed(before, after)

    def _resubscribed(self, before: Member | None, after: Member | None) -> None:
        if not Change(before, after).resubscribes:
            return
        self.revision += 1
        if after is not None:
            self.readers.update(after.subscribed_topic_names)
        for name in before.subscribed_topic_names if before is not None else ():
            self.readers[name] -= 1
            if not self.readers[name]:
                del self.readers[name]

    def replay_current(self, member_id: str, value: Mapping[str, Any] | None) -> None:
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

    def replay_target(self, member_id: str, value: Mapping[str, Any] | None) -> None:
        before = self.target.pop(member_id, EMPTY)
        after = EMPTY if value is None else from_wire(value["topic_partitions"])
        if value is not None:
            self.target[member_id] = after
        self.revision += before != after

    def replay_initialization(self, value: Mapping[str, Any] | None) -> None:
        if value is None:
            self.initialization = Initialization()
            return
        self.initialization = Initialization(
            _named_from_wire(value["initializing_topics"]),
            _named_from_wire(value["initialized_topics"]),
            {t["topic_id"]: t["topic_name"] for t in value["deleting_topics"]},
        )

    # Describing.

    def describe(self, catalog: Catalog, assignor_name: str) -> Mapping[str, Any]:
        """A group of the ShareGroupDescribe response."""
        return {
            "error_code": ErrorCode.none,
            "group_id": self.group_id,
            "group_state": self.state_name,
            "group_epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "assignor_name": assignor_name,
            "members": [
                {
                    "member_id": member.member_id,
                    "rack_id": member.rack_id,
                    "member_epoch": self.epoch_of(member),
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "subscribed_topic_names": sorted(member.subscribed_topic_names),
                    "assignment": {"topic_partitions": catalog.described(member.assigned)},
                }
                for member in self.members.values()
            ],
        }


#: The records of one member, in the order in which Kafka takes them back.
_OF_MEMBER = (
    RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER,
    RecordType.SHARE_GROUP_MEMBER_METADATA,
)

_Named = Mapping[UUID, NamedPartitions]


def _plus(known: _Named, more: _Named) -> _Named:
    merged = dict(known)
    for topic, (name, partitions) in more.items():
        before = known[topic].partitions if topic in known else frozenset()
        merged[topic] = NamedPartitions(name, before | partitions)
    return merged


def _minus(known: _Named, less: Assignment) -> _Named:
    left = {t: NamedPartitions(n, p - less.get(t, frozenset())) for t, (n, p) in known.items()}
    return {topic: named for topic, named in left.items() if named.partitions}


def _named_on_wire(topics: _Named) -> list[dict[str, Any]]:
    return [
        {
            "topic_id": topic,
            "topic_name": topics[topic].name,
            "partitions": sorted(topics[topic].partitions),
        }
        for topic in sorted(topics)
    ]


def _named_from_wire(topics: Iterable[Mapping[str, Any]]) -> _Named:
    return {
        t["topic_id"]: NamedPartitions(t["topic_name"], frozenset(t["partitions"])) for t in topics
    }
