"""The target assignment of share groups: in full, or what is missing of it (KIP-932).

Between two full assignments lies the assignment interval (KIP-1263). Within it a member without
work is given some and a partition without reader is given one (`Shares.fill`), and nothing moves.
A deadline, of the group's kind, says when a full one that had to wait is due.

The assignment of each group is kept as `simple_assignor.Shares`, which a decision changes by what
it is about. It is soft state: if the decision's records do not come to be replayed, or others do,
the group's revision is not the one that was expected, and it is built again from the hard state.
A large group is assigned in steps of `MOVES_MAX`, so that the records of a step fit one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from shoal.coordinator.deadlines import Key
from shoal.coordinator.group.assignment import EMPTY, Assignment, MemberSpec
from shoal.coordinator.group.groups import Context, Draft
from shoal.coordinator.group.share_group import Change, Initialization, ShareGroup
from shoal.coordinator.group.simple_assignor import Shares
from shoal.coordinator.group.topics import Catalog

#: Changes of one step: some 10 ms of work, and 200 kB of records.
MOVES_MAX = 500
#: The pause between two steps, for other work, and what a heartbeat may change in that time.
STEP_PAUSE_MS, PAUSE_MOVES_MAX = 10, 20


class Plan(NamedTuple):
    """The group's epoch, the epoch of the target assignment, and the targets that change."""

    epoch: int
    assignment_epoch: int
    changed: Mapping[str, Assignment]
    #: The members of the assigned partition that has the fewest; 0 if none is assigned.
    readers: int

    def target(self, group: ShareGroup, member_id: str) -> Assignment:
        found = self.changed.get(member_id)
        return group.target.get(member_id, EMPTY) if found is None else found


@dataclass(slots=True)
class _Kept:
    """A group's shares, and what they were computed from."""

    shares: Shares
    #: The group's revision once the records of the last decision are replayed.
    revision: int
    image: Any
    #: The topics by name; None for one that does not exist.
    topics: dict[str, UUID | None]
    initialization: Initialization
    #: A full assignment was begun and needs more steps.
    unsettled: bool = False
    #: When the next step may be taken.
    next_step_ms: int = 0


class TargetAssignments:
    """Those of one shard."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[str, _Kept] = {}
        #: Assignments made, and shares built from hard state, since the shard was loaded.
        self.made = self.built = 0

    @property
    def catalog(self) -> Catalog:
        return Catalog(self._context.image)

    def waits(self, group: ShareGroup) -> bool:
        """Whether a full assignment is put off until the interval is over."""
        return _key(group) in self._context.deadlines

    def forget(self, group_id: str) -> None:
        """The group is gone."""
        self._kept.pop(group_id, None)

    def unchanged(self, group: ShareGroup, epoch: int) -> Plan:
        """The plan of a decision that assigns nothing."""
        readers = self._fresh(group).shares.fewest_readers
        return Plan(epoch, group.assignment_epoch, {}, readers)

    def track(self, group: ShareGroup, change: Change, initialization: Initialization) -> None:
        """Take in what a decision changes, and assign nothing yet."""
        self._changed(group, change, initialization)

    def assign(
        self,
        group: ShareGroup,
        change: Change,
        initialization: Initialization,
        epoch: int,
        draft: Draft,
        now_ms: int,
    ) -> Plan:
        """Assign for `epoch`: in full, or within the assignment interval only what is missing.

        An epoch beyond that of the target tells that the full assignment is still due.
        """
        kept = self._changed(group, change, initialization)
        due_ms = self._assignment_due_ms(group)
        full = now_ms >= due_ms or kept.unsettled
        pauses = now_ms < kept.next_step_ms
        step = kept.shares.settle if full else kept.shares.fill
        done = step(PAUSE_MOVES_MAX if pauses else MOVES_MAX)
        kept.unsettled = full and not done
        if not done and not pauses:
            kept.next_step_ms = now_ms + STEP_PAUSE_MS
        if full and done:
            self._context.deadlines.cancel(_key(group))
        else:
            self._context.deadlines.set(_key(group), due_ms if done else kept.next_step_ms)
        changed = {}
        for member_id in kept.shares.take_changed():
            assignment = kept.shares.assignment(member_id)
            if assignment != group.target.get(member_id, EMPTY):
                changed[member_id] = assignment
                draft.records.append(group.target_record(member_id, assignment))
        kept.revision += len(changed)
        readers = kept.shares.fewest_readers
        if not (changed or full):
            return Plan(epoch, group.assignment_epoch, changed, readers)
        timestamp_ms = now_ms if full else group.assignment_timestamp_ms
        draft.records.append(group.target_metadata_record(epoch, timestamp_ms))
        self.made += 1
        return Plan(epoch if full and done else epoch + 1, epoch, changed, readers)

    # What is kept.

    def _changed(self, group: ShareGroup, change: Change, initialization: Initialization) -> _Kept:
        kept = self._fresh(group)
        if initialization is not kept.initialization:
            kept.initialization = initialization
            self._set_partitions(kept)
        if not change.resubscribes:
            return kept
        names = group.subscribed(change)
        new = names - kept.topics.keys()
        if new:
            kept.topics |= {name: self.catalog.id_of(name) for name in new}
            self._set_partitions(kept)
        if change.after is not None:
            topics = self.catalog.ids_of(change.after.subscribed_topic_names)
            kept.shares.put(change.after.member_id, topics)
        elif change.before is not None:
            kept.shares.remove(change.before.member_id)
            kept.revision += bool(group.target.get(change.before.member_id))
        kept.revision += 1
        if len(names) < len(kept.topics):
            kept.topics = {name: kept.topics[name] for name in names}
            self._set_partitions(kept)
        return kept

    def _fresh(self, group: ShareGroup) -> _Kept:
        """The group's shares, built if those kept are not of this group as it is."""
        kept = self._kept.get(group.group_id)
        image = self._context.image
        if kept is not None and kept.revision == group.revision:
            if kept.image is image:
                return kept
            if all(self.catalog.id_of(name) == id for name, id in kept.topics.items()):
                kept.image = image
                self._set_partitions(kept)
                return kept
        self.built += 1
        topics = {name: self.catalog.id_of(name) for name in group.subscribed()}
        specs = {
            m.member_id: MemberSpec(
                self.catalog.ids_of(m.subscribed_topic_names),
                group.target.get(m.member_id, EMPTY),
            )
            for m in group.members.values()
        }
        known = group.initialization
        shares = Shares(specs, self._partitions(topics, known))
        kept = self._kept[group.group_id] = _Kept(shares, group.revision, image, topics, known)
        return kept

    def _set_partitions(self, kept: _Kept) -> None:
        kept.shares.set_partitions(self._partitions(kept.topics, kept.initialization))

    def _partitions(
        self, topics: Mapping[str, UUID | None], initialization: Initialization
    ) -> dict[UUID, frozenset[int]]:
        """The partitions that may be assigned."""
        return {
            topic: frozenset(self.catalog.partitions_of(topic)) & initialization.of(topic)
            for topic in topics.values()
            if topic is not None
        }

    def _assignment_due_ms(self, group: ShareGroup) -> int:
        if group.assignment_timestamp_ms == 0:
            return 0
        config = self._context.image.group_config(group.group_id)
        interval_ms: int = config["share.assignment.interval.ms"]
        return group.assignment_timestamp_ms + interval_ms


def _key(group: ShareGroup) -> Key:
    return ("share", "assignment", group.group_id)
