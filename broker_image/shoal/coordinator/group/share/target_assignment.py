"""The target assignment of share groups: full, or only the missing parts of it (KIP-932).

With the `leader` assignor, members' partitions have few preferred leaders (`leader_pool`). A leader
that is away for a while, as in a roll, moves no partitions; a reassigned one does.

A full assignment is made at most once in each assignment interval (KIP-1263). Within the interval,
`SimpleAssignment.fill` gives a partition to each member without one, and a member to each partition
without one. It moves nothing. A full assignment that has to wait sets a deadline.

The `SimpleAssignment` of each group is cached as soft state, and each decision updates it. A cached
assignment expects a revision of its group. It is rebuilt from hard state when the group has another
revision, because the records of the decision were not replayed, or others were. A large group is
assigned in steps of `MOVES_MAX`, so that the records of one step fit in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.group.assignment import (
    EMPTY,
    Assignment,
    MemberSpec,
    TopicIdPartition,
)
from shoal.coordinator.group.groups import GroupType, ResultDraft, ShardContext
from shoal.coordinator.group.modern.target_assignment import ModernTargetAssignments
from shoal.coordinator.group.share.simple_assignor import BY_LEADER, SimpleAssignment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from shoal.coordinator.group.share.share_group import Initialization, MemberChange, ShareGroup
    from shoal.metadata.image import MetadataImage

#: The most changes of one step: about 10 ms of CPU time, and 200 kB of records.
MOVES_MAX = 500
#: The pause between two steps, and the most changes of a heartbeat within the pause.
STEP_PAUSE_MS, PAUSE_MOVES_MAX = 10, 20


class AssignmentPlan(NamedTuple):
    """The group's epoch, the epoch of the target assignment, and the targets that change."""

    epoch: int
    assignment_epoch: int
    changed: Mapping[str, Assignment]
    #: The number of members of the assigned partition with the fewest; 0 if none is assigned.
    readers: int

    def get_target(self, group: ShareGroup, member_id: str) -> Assignment:
        assignment = self.changed.get(member_id)
        return group.target.get(member_id, EMPTY) if assignment is None else assignment


@dataclass(slots=True)
class _CachedAssignment:
    """The assignment of a group, and the state from which it was computed."""

    assignment: SimpleAssignment
    #: The group's revision after the replay of the last decision's records.
    revision: int
    image: MetadataImage
    #: The topics by name; None for one that does not exist.
    topics: dict[str, UUID | None]
    initialization: Initialization
    #: A full assignment needs more steps.
    unsettled: bool = False
    #: When the next step may be taken.
    next_step_ms: int = 0


class ShareTargetAssignments(ModernTargetAssignments):
    """The target assignments of the share groups of one shard."""

    def __init__(self, context: ShardContext) -> None:
        super().__init__(context, GroupType.SHARE)
        self._cached: dict[str, _CachedAssignment] = {}
        #: Cached assignments built from hard state since the shard was loaded.
        self.build_count = 0

    def forget(self, group_id: str) -> None:
        super().forget(group_id)
        self._cached.pop(group_id, None)

    @property
    def _by_leader(self) -> bool:
        return self._context.settings.group_share_assignors[0] == BY_LEADER

    def compute_hash(self, names: Collection[str]) -> int:
        """The hash of the metadata of topics. With the `leader` assignor, preferred leaders that
        are reassigned change it."""
        return self.catalog.compute_hash(names, by_leader=self._by_leader)

    def _find_leader(self, partition: TopicIdPartition) -> int:
        return self.catalog.get_preferred_leader(*partition)

    def make_unchanged_plan(self, group: ShareGroup, epoch: int) -> AssignmentPlan:
        """The plan of a decision that computes no assignment."""
        readers = self._get_cached_assignment(group).assignment.fewest_readers
        return AssignmentPlan(epoch, group.assignment_epoch, {}, readers)

    def track(
        self, group: ShareGroup, change: MemberChange, initialization: Initialization
    ) -> None:
        """Apply the change of a decision to the cache, and compute no assignment."""
        self._apply_change(group, change, initialization)

    def assign(
        self,
        group: ShareGroup,
        change: MemberChange,
        initialization: Initialization,
        epoch: int,
        draft: ResultDraft,
        now_ms: int,
    ) -> AssignmentPlan:
        """Compute the assignment for `epoch`: in full, or within the assignment interval only the
        missing parts.

        If the epoch of the plan is beyond its assignment epoch, a full assignment is still due.
        """
        cached = self._apply_change(group, change, initialization)
        due_ms = self._compute_due_ms(group)
        full = now_ms >= due_ms or cached.unsettled
        pauses = now_ms < cached.next_step_ms
        step = cached.assignment.settle if full else cached.assignment.fill
        is_complete = step(PAUSE_MOVES_MAX if pauses else MOVES_MAX)
        cached.unsettled = full and not is_complete
        if not is_complete and not pauses:
            cached.next_step_ms = now_ms + STEP_PAUSE_MS
        if full and is_complete:
            self._context.deadlines.cancel(self._make_key(group))
        else:
            self._context.deadlines.set(
                self._make_key(group), due_ms if is_complete else cached.next_step_ms
            )
        changed = {}
        for member_id in cached.assignment.take_changed():
            assignment = cached.assignment.get_assignment(member_id)
            if assignment != group.target.get(member_id, EMPTY):
                changed[member_id] = assignment
                draft.records.append(group.build_target_record(member_id, assignment))
        cached.revision += len(changed)
        readers = cached.assignment.fewest_readers
        if not (changed or full):
            return AssignmentPlan(epoch, group.assignment_epoch, changed, readers)
        timestamp_ms = now_ms if full else group.assignment_timestamp_ms
        draft.records.append(group.build_target_metadata_record(epoch, timestamp_ms))
        self.assignment_count += 1
        return AssignmentPlan(epoch if full and is_complete else epoch + 1, epoch, changed, readers)

    # The cache.

    def _apply_change(
        self, group: ShareGroup, change: MemberChange, initialization: Initialization
    ) -> _CachedAssignment:
        cached = self._get_cached_assignment(group)
        if initialization is not cached.initialization:
            cached.initialization = initialization
            self._set_partitions(cached)
        if not change.resubscribes:
            return cached
        names = group.get_subscribed_topics(change)
        new = names - cached.topics.keys()
        if new:
            cached.topics |= {name: self.catalog.get_id(name) for name in new}
            self._set_partitions(cached)
        if change.after is not None:
            topics = self.catalog.get_ids(change.after.subscribed_topic_names)
            cached.assignment.put(change.after.member_id, topics)
        elif change.before is not None:
            cached.assignment.remove(change.before.member_id)
            cached.revision += bool(group.target.get(change.before.member_id))
        cached.revision += 1
        if len(names) < len(cached.topics):
            cached.topics = {name: cached.topics[name] for name in names}
            self._set_partitions(cached)
        return cached

    def _get_cached_assignment(self, group: ShareGroup) -> _CachedAssignment:
        """The cached assignment of the group, rebuilt if the group has another revision."""
        cached = self._cached.get(group.group_id)
        image = self._context.image
        if cached is not None and cached.revision == group.revision:
            if cached.image is image:
                return cached
            if all(self.catalog.get_id(name) == id for name, id in cached.topics.items()):
                cached.image = image
                cached.assignment.follow_leaders()
                self._set_partitions(cached)
                return cached
        self.build_count += 1
        topics = {name: self.catalog.get_id(name) for name in group.get_subscribed_topics()}
        specs = {
            m.member_id: MemberSpec(
                self.catalog.get_ids(m.subscribed_topic_names),
                group.target.get(m.member_id, EMPTY),
            )
            for m in group.members.values()
        }
        initialization = group.initialization
        find_leader = self._find_leader if self._by_leader else None
        assignable = self._find_assignable(topics, initialization)
        assignment = SimpleAssignment(specs, assignable, find_leader)
        cached = self._cached[group.group_id] = _CachedAssignment(
            assignment, group.revision, image, topics, initialization
        )
        return cached

    def _set_partitions(self, cached: _CachedAssignment) -> None:
        cached.assignment.set_partitions(
            self._find_assignable(cached.topics, cached.initialization)
        )

    def _find_assignable(
        self, topics: Mapping[str, UUID | None], initialization: Initialization
    ) -> dict[UUID, frozenset[int]]:
        """The partitions that can be assigned."""
        return {
            topic: frozenset(self.catalog.get_partitions(topic))
            & initialization.get_initialized(topic)
            for topic in topics.values()
            if topic is not None
        }
