"""A group whose members heartbeat towards a target assignment: Kafka's `ModernGroup`.

Consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071) have different
record types for the same five records:

* the group's epoch,
* a member,
* the epoch of the target assignment,
* the target of a member,
* its current assignment.

The group epoch rises with every change of members, subscriptions or subscribed topics. The
assignment epoch is the group epoch for which the target assignment was computed. Only the
`replay_*` methods change a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from shoal.coordinator.group.assignment import EMPTY, Assignment, from_wire, to_wire
from shoal.coordinator.group.records import RecordType, encode_record, encode_tombstone
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.contract import CoordinatorRecord
    from shoal.coordinator.deadlines import Deadlines
    from shoal.coordinator.group.groups import CommitCheck, GroupType
    from shoal.coordinator.group.topics import TopicCatalog

#: The epoch of a new group, as in Kafka.
FIRST_EPOCH = 1

#: The value of a record; None for a tombstone.
Value = dict[str, Any] | None


class RecordTypes(NamedTuple):
    """The types of the five records of one kind of group."""

    group: RecordType
    member: RecordType
    target_metadata: RecordType
    target: RecordType
    current: RecordType


@dataclass(frozen=True, slots=True)
class ModernMember:
    """What a member of any kind of group reports of itself."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class SubscribedMember(ModernMember):
    """A member that subscribes to topics."""

    subscribed_topic_names: frozenset[str] = frozenset()


M = TypeVar("M", bound=ModernMember)
S = TypeVar("S", bound=SubscribedMember)
#: The target of a member.
A = TypeVar("A")


@dataclass(slots=True, eq=False)
class ModernGroup(ABC, Generic[M, A]):
    """The hard state of every kind, by member id where it is of members.

    A subclass adds the state of its kind, and overrides the methods below "The kind's own part".
    """

    type: ClassVar[GroupType]
    record_types: ClassVar[RecordTypes]

    group_id: str
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assignment_timestamp_ms: int = 0
    members: dict[str, M] = field(default_factory=dict)
    target: dict[str, A] = field(default_factory=dict)

    # What the registry asks of every group.

    @property
    @abstractmethod
    def state_name(self) -> str:
        """Kafka's name of the state."""

    @property
    def protocol_type(self) -> str:
        return self.type.value

    @property
    def is_empty(self) -> bool:
        return not self.members

    def check_delete(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.non_empty_group, f"Group {self.group_id} has members.")

    def build_tombstones(self) -> Sequence[CoordinatorRecord]:
        types, members = self.record_types, sorted(self.members)
        return [
            *(self.build_tombstone(types.current, m) for m in members),
            *(self.build_tombstone(types.target, m) for m in members),
            self.build_tombstone(types.target_metadata),
            *(self.build_tombstone(types.member, m) for m in members),
            *self._build_own_tombstones(),
            self.build_tombstone(types.group),
        ]

    def get_hard_state(self) -> Any:
        return (
            self.epoch,
            self.metadata_hash,
            self.assignment_epoch,
            self.assignment_timestamp_ms,
            self.members,
            {m: a for m, a in self.target.items() if a},
            *self._get_own_hard_state(),
        )

    def get_member(self, member_id: str) -> M:
        """Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def describe(self, catalog: TopicCatalog, default_assignor: str) -> Mapping[str, Any]:
        """A group of the ConsumerGroupDescribe or ShareGroupDescribe response."""
        return {
            "error_code": ErrorCode.none,
            "group_id": self.group_id,
            "group_state": self.state_name,
            "group_epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "assignor_name": self._describe_assignor(default_assignor),
            "members": [self._describe_member(m, catalog) for m in self.members.values()],
        }

    # Records.

    def build_epoch_record(self, epoch: int, metadata_hash: int) -> CoordinatorRecord:
        value = {"epoch": epoch, "metadata_hash": metadata_hash}
        return encode_record(self.record_types.group, {"group_id": self.group_id}, value)

    def build_member_record(self, member: M) -> CoordinatorRecord:
        key = self._make_member_key(member.member_id)
        return encode_record(self.record_types.member, key, self._build_member_value(member))

    def build_target_record(self, member_id: str, target: A) -> CoordinatorRecord:
        value = self._build_target_value(target)
        return encode_record(self.record_types.target, self._make_member_key(member_id), value)

    def build_target_metadata_record(self, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
        value = {"assignment_epoch": epoch, "assignment_timestamp": timestamp_ms}
        return encode_record(self.record_types.target_metadata, {"group_id": self.group_id}, value)

    def build_current_record(self, member: M) -> CoordinatorRecord:
        key = self._make_member_key(member.member_id)
        return encode_record(self.record_types.current, key, self._build_current_value(member))

    def build_member_tombstones(self, member_id: str) -> list[CoordinatorRecord]:
        """The tombstones of one member, in the order in which Kafka writes them."""
        types = self.record_types
        kinds = (types.current, types.target, types.member)
        return [self.build_tombstone(kind, member_id) for kind in kinds]

    def build_tombstone(self, kind: RecordType, member_id: str | None = None) -> CoordinatorRecord:
        if member_id is None:
            return encode_tombstone(kind, group_id=self.group_id)
        return encode_tombstone(kind, group_id=self.group_id, member_id=member_id)

    def _make_member_key(self, member_id: str) -> Mapping[str, str]:
        return {"group_id": self.group_id, "member_id": member_id}

    # Replay.

    def replay_epoch(self, value: dict[str, Any]) -> None:
        self.epoch, self.metadata_hash = value["epoch"], value["metadata_hash"]

    def replay_target_metadata(self, value: Value) -> None:
        value = value or {"assignment_epoch": 0, "assignment_timestamp": 0}
        self.assignment_epoch = value["assignment_epoch"]
        self.assignment_timestamp_ms = value["assignment_timestamp"]

    def replay_target(self, member_id: str, value: Value) -> None:
        if value is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = self._read_target(value)

    # The kind's own part.

    @property
    @abstractmethod
    def expires(self) -> bool: ...

    @abstractmethod
    def check_offset_commit(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id_or_member_epoch: int,
        transactional: bool,
        api_version: int,
    ) -> CommitCheck | None: ...

    @abstractmethod
    def on_offsets_committed(self, member_id: str, now_ms: int, deadlines: Deadlines) -> None: ...

    @abstractmethod
    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    @abstractmethod
    def check_offset_delete(self) -> None: ...

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool: ...

    @abstractmethod
    def compute_expiry_base_ms(self, commit_timestamp_ms: int) -> int | None: ...

    @abstractmethod
    def replay_member(self, member_id: str, value: Value) -> None: ...

    @abstractmethod
    def replay_current(self, member_id: str, value: Value) -> None: ...

    @abstractmethod
    def _build_target_value(self, target: A) -> dict[str, Any]:
        """The value of the record of a member's target."""

    @abstractmethod
    def _read_target(self, value: dict[str, Any]) -> A:
        """Read what `_build_target_value` wrote."""

    @abstractmethod
    def _build_member_value(self, member: M) -> dict[str, Any]:
        """The value of the member record."""

    @abstractmethod
    def _build_current_value(self, member: M) -> dict[str, Any]:
        """The value of the record of the member's current assignment."""

    @abstractmethod
    def _describe_member(self, member: M, catalog: TopicCatalog) -> Mapping[str, Any]:
        """A member of the describe response."""

    def _describe_assignor(self, default: str) -> str:
        return default

    def _build_own_tombstones(self) -> Sequence[CoordinatorRecord]:
        """Tombstones of the records that only this kind writes."""
        return ()

    def _get_own_hard_state(self) -> tuple[Any, ...]:
        """The hard state that only this kind has."""
        return ()


@dataclass(slots=True, eq=False)
class PartitionGroup(ModernGroup[S, Assignment]):
    """A group whose members are assigned partitions: a consumer group or a share group."""

    def get_target(self, member: S) -> Assignment:
        """The target of a member; empty for a new one."""
        return self.target.get(member.member_id, EMPTY)

    def _build_target_value(self, target: Assignment) -> dict[str, Any]:
        return {"topic_partitions": to_wire(target)}

    def _read_target(self, value: dict[str, Any]) -> Assignment:
        return from_wire(value["topic_partitions"])
