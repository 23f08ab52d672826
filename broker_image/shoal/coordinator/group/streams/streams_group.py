"""A streams group (KIP-1071): its hard state, and what follows from it.

The group has the topology of its application, and a target assignment of tasks. Each member moves
to its target independently (`reconciliation`). A group is not ready while topics that its topology
needs are missing or have wrong numbers of partitions. Decisions are in `membership`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.modern.commits_by_epoch import CommitsByEpoch
from shoal.coordinator.group.modern.modern_group import (
    FIRST_EPOCH,
    ModernGroup,
    ModernMember,
    RecordTypes,
    Value,
)
from shoal.coordinator.group.modern.static_members import (
    LEFT_STATIC_MEMBER_EPOCH,
    StaticMembers,
)
from shoal.coordinator.group.records import RecordType, encode_record
from shoal.coordinator.group.streams.internal_topics import configure
from shoal.coordinator.group.streams.reconciliation import (
    CurrentTaskAssignment,
    StreamsMemberState,
    TaskOwners,
)
from shoal.coordinator.group.streams.tasks import (
    NO_TASKS,
    TaskSets,
    decode_owned_tasks,
    decode_task_sets,
    encode_owned_tasks,
    encode_task_sets,
)
from shoal.coordinator.group.streams.topology import Topology
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.contract import CoordinatorRecord
    from shoal.coordinator.group.topics import TopicCatalog
    from shoal.protocol.responses import groups as responses

#: The validated topology epoch of a group that is not ready.
NOT_VALIDATED = -1


class StreamsGroupState(StrEnum):
    """Kafka's names, as StreamsGroupDescribe and ListGroups give them. A deleted group is Dead."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class UserEndpoint(NamedTuple):
    """Where the instance of a member answers interactive queries."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class StreamsGroupMember(ModernMember):
    """What a member reports of itself, and what it owns (`current`)."""

    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: UserEndpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    current: CurrentTaskAssignment = field(default_factory=CurrentTaskAssignment)

    @property
    def has_left(self) -> bool:
        """Whether the static member may rejoin."""
        return self.current.member_epoch == LEFT_STATIC_MEMBER_EPOCH

    def is_assigned_like(self, other: StreamsGroupMember) -> bool:
        """Whether an assignment sees no difference between two members but their ids."""
        return (self.topology_epoch, self.rack_id, self.client_tags, self.process_id) == (
            other.topology_epoch,
            other.rack_id,
            other.client_tags,
            other.process_id,
        )


@dataclass(slots=True, eq=False)
class StreamsGroup(
    CommitsByEpoch[StreamsGroupMember],
    StaticMembers[StreamsGroupMember],
    ModernGroup[StreamsGroupMember, TaskSets],
):
    """Hard state, and the owners of tasks, which follow from the members."""

    type: ClassVar[GroupType] = GroupType.STREAMS
    record_types: ClassVar[RecordTypes] = RecordTypes(
        RecordType.STREAMS_GROUP_METADATA,
        RecordType.STREAMS_GROUP_MEMBER_METADATA,
        RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA,
        RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER,
        RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    )

    #: As in Kafka, so that a member that waits for its first target is at this epoch.
    assignment_epoch: int = FIRST_EPOCH
    topology: Topology | None = None
    validated_topology_epoch: int = 0
    #: The configs of the last assignment. A change of their values bumps the group epoch.
    assignment_configs: Mapping[str, str] = field(default_factory=dict)
    #: Instance id -> member id.
    static_members: dict[str, str] = field(default_factory=dict)
    owners: TaskOwners = field(default_factory=TaskOwners)

    # The interface of every group.

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        is_reconciling = any(
            not m.current.is_reconciled_to(self.assignment_epoch) for m in self.members.values()
        )
        return StreamsGroupState.RECONCILING if is_reconciling else StreamsGroupState.STABLE

    @property
    def state_name(self) -> str:
        return self.state.value

    def _make_ownership_lookup(
        self, member: StreamsGroupMember
    ) -> Callable[[str, UUID | None, int], int | None]:
        subtopology_of = {} if self.topology is None else self.topology.subtopology_of

        def find_epoch(topic: str, _topic_id: UUID | None, partition: int) -> int | None:
            subtopology_id = subtopology_of.get(topic)
            if subtopology_id is None:
                return None
            return member.current.get_assignment_epoch((subtopology_id, partition))

        return find_epoch

    def is_subscribed_to(self, topic: str) -> bool:
        if not self.members or self.topology is None:
            return False
        return topic in self.topology.subtopology_of

    def get_target(self, member: StreamsGroupMember) -> TaskSets:
        """The target of a member. A static member inherits that of the member that it replaces."""
        return self.target.get(self.resolve_member_id(member), NO_TASKS)

    def build_tombstones(self) -> Sequence[CoordinatorRecord]:
        topology = self.build_tombstone(RecordType.STREAMS_GROUP_TOPOLOGY)
        return [*ModernGroup.build_tombstones(self), topology]

    def _get_own_hard_state(self) -> tuple[Any, ...]:
        return (
            self.topology,
            self.validated_topology_epoch,
            self.assignment_configs,
            self.static_members,
            self.owners,
        )

    # Records.

    def build_metadata_record(
        self,
        epoch: int,
        metadata_hash: int,
        validated_topology_epoch: int,
        assignment_configs: Mapping[str, str],
    ) -> CoordinatorRecord:
        """The record of the group's epoch and of what it was bumped for."""
        value = {
            "epoch": epoch,
            "metadata_hash": metadata_hash,
            "validated_topology_epoch": validated_topology_epoch,
            "last_assignment_configs": _to_pairs(assignment_configs),
        }
        return encode_record(self.record_types.group, {"group_id": self.group_id}, value)

    def build_topology_record(self, topology: Topology) -> CoordinatorRecord:
        key = {"group_id": self.group_id}
        return encode_record(RecordType.STREAMS_GROUP_TOPOLOGY, key, topology.to_wire())

    def _build_member_value(self, member: StreamsGroupMember) -> dict[str, Any]:
        endpoint = member.user_endpoint
        return {
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "topology_epoch": member.topology_epoch,
            "process_id": member.process_id,
            "user_endpoint": None if endpoint is None else endpoint._asdict(),
            "client_tags": _to_pairs(member.client_tags),
        }

    def _build_current_value(self, member: StreamsGroupMember) -> dict[str, Any]:
        current = member.current
        return {
            "member_epoch": current.member_epoch,
            "previous_member_epoch": current.previous_member_epoch,
            "state": current.state,
            **encode_owned_tasks(current.assigned),
            **encode_owned_tasks(current.pending_revocation, PENDING),
        }

    def _build_target_value(self, target: TaskSets) -> dict[str, Any]:
        return {**encode_task_sets(target)}

    def _read_target(self, value: dict[str, Any]) -> TaskSets:
        return decode_task_sets(value)

    # Replay.

    def replay_epoch(self, value: dict[str, Any]) -> None:
        ModernGroup.replay_epoch(self, value)
        self.validated_topology_epoch = value.get("validated_topology_epoch", NOT_VALIDATED)
        configs = value.get("last_assignment_configs") or ()
        self.assignment_configs = {c["key"]: c["value"] for c in configs}

    def replay_topology(self, value: Value) -> None:
        self.topology = None if value is None else Topology.from_wire(value)

    def replay_member(self, member_id: str, value: Value) -> None:
        old = self.members.get(member_id)
        if value is None:
            self.members.pop(member_id, None)
            self._update_owners(old, None)
            self._replay_instance(old, None)
            return
        endpoint = value["user_endpoint"]
        member = StreamsGroupMember(
            member_id=member_id,
            instance_id=value["instance_id"],
            rack_id=value["rack_id"],
            client_id=value["client_id"],
            client_host=value["client_host"],
            rebalance_timeout_ms=value["rebalance_timeout_ms"],
            topology_epoch=value["topology_epoch"],
            process_id=value["process_id"],
            user_endpoint=None if endpoint is None else UserEndpoint(**endpoint),
            client_tags={tag["key"]: tag["value"] for tag in value["client_tags"]},
            current=CurrentTaskAssignment() if old is None else old.current,
        )
        self._update_owners(old, member)
        self._replay_instance(old, member)
        self.members[member_id] = member

    def replay_current(self, member_id: str, value: Value) -> None:
        old = self.members.get(member_id)
        if old is None:
            return  # Its member record follows, or the member was removed.
        current = CurrentTaskAssignment()
        if value is not None:
            epoch = value["member_epoch"]
            current = CurrentTaskAssignment(
                epoch,
                value["previous_member_epoch"],
                StreamsMemberState(value["state"]),
                decode_owned_tasks(value, epoch),
                decode_owned_tasks(value, epoch, PENDING),
            )
        member = replace(old, current=current)
        self._update_owners(old, member)
        self.members[member_id] = member

    def _update_owners(
        self, old: StreamsGroupMember | None, new: StreamsGroupMember | None
    ) -> None:
        for member, change in ((old, self.owners.remove), (new, self.owners.add)):
            if member is not None:
                change(member.process_id, member.current.assigned)
                change(member.process_id, member.current.pending_revocation)

    # Describing.

    def describe(
        self, catalog: TopicCatalog, default_assignor: str
    ) -> responses.StreamsGroupDescribeDescribedGroup:
        """A group of the StreamsGroupDescribe response."""
        return {
            "error_code": ErrorCode.none,
            "group_id": self.group_id,
            "group_state": self.state_name,
            "group_epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "topology": None
            if self.topology is None
            else _describe_topology(self.topology, catalog),
            "members": [self._describe_member(m, catalog) for m in self.members.values()],
            "assignor_name": default_assignor,
        }

    def _describe_member(
        self, member: StreamsGroupMember, _catalog: TopicCatalog
    ) -> responses.StreamsGroupDescribeMember:
        value = self._build_member_value(member)
        del value["rebalance_timeout_ms"]
        # The record has the fields of a described member.
        described = cast("responses.StreamsGroupDescribeMember", value)
        return {
            **described,
            "member_id": member.member_id,
            "member_epoch": member.current.member_epoch,
            "assignment": encode_task_sets(member.current.assigned),
            "target_assignment": encode_task_sets(self.target.get(member.member_id, NO_TASKS)),
            "is_classic": False,
        }


#: Ends the names of the fields of tasks that a member has to revoke.
PENDING = "_pending_revocation"


def _describe_topology(
    topology: Topology, catalog: TopicCatalog
) -> responses.StreamsGroupDescribeTopology:
    """The topology; of a group that is ready, with the numbers of partitions of internal topics."""
    subtopologies: Mapping[str, Any] = topology.subtopologies
    configured = configure(topology, catalog)
    if configured.is_ready:
        subtopologies = {
            s: subtopology.subtopology for s, subtopology in configured.subtopologies.items()
        }
    return {
        "epoch": topology.epoch,
        "subtopologies": [subtopologies[s].describe() for s in sorted(subtopologies)],
    }


def _to_pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": values[key]} for key in sorted(values)]
