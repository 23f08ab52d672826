"""The input and output of server-side assignors, for consumer groups and share groups.

An assignor is a pure function `assign(spec) -> {member id: Assignment}`. The spec has the members
with their subscriptions and last targets, and the assignable partitions. The result has every
member, and the same spec always gives the same result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses

#: The partitions of a member, by topic id; no topic maps to an empty set.
Assignment = Mapping[UUID, frozenset[int]]
#: One partition.
TopicIdPartition = tuple[UUID, int]

EMPTY: Assignment = {}


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member: the ids of its subscribed topics that exist, and its last target assignment.

    A member that `shares` may get slices of partitions. `slices` has those of its last target.
    """

    topics: frozenset[UUID]
    assigned: Assignment
    instance_id: str | None = None
    shares: bool = False
    slices: Mapping[TopicIdPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """The members by id, and the assignable partitions of every topic that a member names.

    `splittable` topics may be shared by key ranges (`key_range_assignor`). `loads` has the measured
    load of each slot of partitions, and those in `due` are divided again by it.
    """

    members: Mapping[str, MemberSpec]
    partitions: Mapping[UUID, Sequence[int]]
    splittable: frozenset[UUID] = frozenset()
    loads: Mapping[TopicIdPartition, Sequence[int]] = field(default_factory=dict)
    due: frozenset[TopicIdPartition] = frozenset()

    @property
    def homogeneous(self) -> bool:
        """Whether all members are subscribed to the same topics."""
        return len({m.topics for m in self.members.values()}) <= 1


def flatten(assignment: Assignment) -> list[TopicIdPartition]:
    """The partitions of an assignment, in order of topic id and index."""
    return [(t, p) for t in sorted(assignment) for p in sorted(assignment[t])]


def group_by_topic(partitions: Iterable[TopicIdPartition]) -> Assignment:
    """The assignment of these partitions."""
    topics: dict[UUID, set[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, set()).add(partition)
    return {t: frozenset(topics[t]) for t in sorted(topics)}


def to_wire(
    assignment: Mapping[UUID, Collection[int]],
) -> list[responses.ConsumerGroupHeartbeatTopicPartitions]:
    """The `TopicPartitions` array of responses and records."""
    return [{"topic_id": t, "partitions": sorted(assignment[t])} for t in sorted(assignment)]


def from_wire(topics: Iterable[Mapping[str, object]]) -> Assignment:
    """Read the `TopicPartitions` array of a record."""
    assignment: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        partitions = frozenset(topic["partitions"])  # type: ignore[call-overload]
        if partitions:
            assignment[topic["topic_id"]] = partitions  # type: ignore[index]
    return assignment


def find_subscribers(spec: GroupSpec, topic: UUID) -> Iterator[str]:
    """The ids of the members subscribed to a topic, in order."""
    return (m for m in sorted(spec.members) if topic in spec.members[m].topics)
