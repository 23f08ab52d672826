"""A streams group (KIP-1071): its hard state, and what follows from it.

The group has the topology of its application, and a target assignment of tasks. Each member moves
to its target independently (`reconciliation`). A group is not ready while topics that its topology
needs are missing or have wrong numbers of partitions. Decisions are in `membership`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from shoal.coordinator.group.commits_by_epoch import CommitsByEpoch
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.modern_group import (
    FIRST_EPOCH,
    ModernGroup,
    ModernMember,
    RecordTypes,
    Value,
)
from shoal.coordinator.group.records import RecordType, record
from shoal.coordinator.group.streams.internal_topics import configure
from shoal.coordinator.group.streams.reconciliation import CurrentAssignment, MemberState, Owners
from shoal.coordinator.group.streams.tasks import (
    NO_TASKS,
    TaskSets,
    owned_from_wire,
    owned_on_wire,
    sets_from_wire,
    sets_on_wire,
)
from shoal.coordinator.group.streams.topology import Topology
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.contract import Record
    from shoal.coordinator.group.topics import Catalog

#: The validated topology epoch of a group that is not ready.
NOT_VALIDATED = -1


class State(StrEnum):
    """Kafka's names, as StreamsGroupDescribe and ListGroups give them. A deleted group is Dead."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Endpoint(NamedTuple):
    """Where the instance of a member answers interactive queries."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Member(ModernMember):
    """What a member reports of itself, and what it owns (`current`)."""

    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    current: CurrentAssignment = field(default_factory=CurrentAssignment)


@dataclass(slots=True, eq=False)
class StreamsGroup(CommitsByEpoch[Member], ModernGroup[Member, TaskSets]):
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
    owners: Owners = field(default_factory=Owners)

    # The interface of every group.

    @property
    def state(self) -> State:
        if not self.members:
            return State.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return State.NOT_READY
        if self.epoch > self.assignment_epoch:
            return State.ASSIGNING
        behind = any(
            not m.current.reconciled_to(self.assignment_epoch) for m in self.members.values()
        )
        return State.RECONCILING if behind else State.STABLE

    @property
    def state_name(self) -> str:
        return self.state.value

    def _owned_since(self, member: Member) -> Callable[[str, UUID | None, int], int | None]:
        subtopology_of = {} if self.topology is None else self.topology.subtopology_of

        def since(topic: str, _topic_id: UUID | None, partition: int) -> int | None:
            subtopology_id = subtopology_of.get(topic)
            if subtopology_id is None:
                return None
            return member.current.assignment_epoch((subtopology_id, partition))

        return since

    def subscribes_to(self, topic: str) -> bool:
        if not self.members or self.topology is None:
            return False
        return topic in self.topology.subtopology_of

    def tombstones(self) -> Sequence[Record]:
        topology = self.tombstone(RecordType.STREAMS_GROUP_TOPOLOGY)
        return [*ModernGroup.tombstones(self), topology]

    def _own_hard_state(self) -> tuple[Any, ...]:
        return (
            self.topology,
            self.validated_topology_epoch,
            self.assignment_configs,
            self.owners,
        )

    # Records.

    def metadata_record(
        self,
        epoch: int,
        metadata_hash: int,
        validated_topology_epoch: int,
        assignment_configs: Mapping[str, str],
    ) -> Record:
        """The record of the group's epoch and of what it was bumped for."""
        value = {
            "epoch": epoch,
            "metadata_hash": metadata_hash,
            "validated_topology_epoch": validated_topology_epoch,
            "last_assignment_configs": _pairs(assignment_configs),
        }
        return record(self.record_types.group, {"group_id": self.group_id}, value)

    def topology_record(self, topology: Topology) -> Record:
        key = {"group_id": self.group_id}
        return record(RecordType.STREAMS_GROUP_TOPOLOGY, key, topology.on_wire())

    def _member_value(self, member: Member) -> dict[str, Any]:
        endpoint = member.user_endpoint
        return {
            "instance_id": None,  # Kafka 4.3.1 refuses static members.
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "topology_epoch": member.topology_epoch,
            "process_id": member.process_id,
            "user_endpoint": None if endpoint is None else endpoint._asdict(),
            "client_tags": _pairs(member.client_tags),
        }

    def _current_value(self, member: Member) -> dict[str, Any]:
        current = member.current
        return {
            "member_epoch": current.member_epoch,
            "previous_member_epoch": current.previous_member_epoch,
            "state": current.state,
            **owned_on_wire(current.assigned),
            **owned_on_wire(current.pending_revocation, PENDING),
        }

    def _target_value(self, target: TaskSets) -> dict[str, Any]:
        return sets_on_wire(target)

    def _read_target(self, value: dict[str, Any]) -> TaskSets:
        return sets_from_wire(value)

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
            self._own(old, None)
            return
        endpoint = value["user_endpoint"]
        member = Member(
            member_id=member_id,
            rack_id=value["rack_id"],
            client_id=value["client_id"],
            client_host=value["client_host"],
            rebalance_timeout_ms=value["rebalance_timeout_ms"],
            topology_epoch=value["topology_epoch"],
            process_id=value["process_id"],
            user_endpoint=None if endpoint is None else Endpoint(**endpoint),
            client_tags={tag["key"]: tag["value"] for tag in value["client_tags"]},
            current=CurrentAssignment() if old is None else old.current,
        )
        self._own(old, member)
        self.members[member_id] = member

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
                owned_from_wire(value, epoch),
                owned_from_wire(value, epoch, PENDING),
            )
        member = replace(old, current=current)
        self._own(old, member)
        self.members[member_id] = member

    def _own(self, old: Member | None, new: Member | None) -> None:
        for member, change in ((old, self.owners.remove), (new, self.owners.add)):
            if member is not None:
                change(member.process_id, member.current.assigned)
                change(member.process_id, member.current.pending_revocation)

    # Describing.

    def describe(self, catalog: Catalog, _default_assignor: str) -> Mapping[str, Any]:
        """A group of the StreamsGroupDescribe response."""
        return {
            "error_code": ErrorCode.none,
            "group_id": self.group_id,
            "group_state": self.state_name,
            "group_epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
            "topology": None if self.topology is None else _described(self.topology, catalog),
            "members": [self._describe_member(m, catalog) for m in self.members.values()],
        }

    def _describe_member(self, member: Member, _catalog: Catalog) -> Mapping[str, Any]:
        value = self._member_value(member)
        del value["rebalance_timeout_ms"]
        return {
            **value,
            "member_id": member.member_id,
            "member_epoch": member.current.member_epoch,
            "assignment": sets_on_wire(member.current.assigned),
            "target_assignment": sets_on_wire(self.target.get(member.member_id, NO_TASKS)),
            "is_classic": False,
        }


#: Ends the names of the fields of tasks that a member has to revoke.
PENDING = "_pending_revocation"


def _described(topology: Topology, catalog: Catalog) -> dict[str, Any]:
    """The topology; of a group that is ready, with the numbers of partitions of internal topics."""
    found: Mapping[str, Any] = topology.subtopologies
    configured = configure(topology, catalog)
    if configured.is_ready:
        found = {s: one.subtopology for s, one in configured.subtopologies.items()}
    return {"epoch": topology.epoch, "subtopologies": [found[s].described() for s in sorted(found)]}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": values[key]} for key in sorted(values)]
