"""Initializing and deleting the share-group state of a group's partitions (KIP-932).

A partition can be assigned once its state is initialized. `Initialization`, in the group's records,
has the progress. This module decides the next step, which the share coordinator performs. The
performer then reports success or failure.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.contract import Record, Reply, Result, Token
from shoal.coordinator.group.share_group import (
    Initialization,
    NamedPartitions,
    ShareGroup,
)
from shoal.coordinator.group.topics import Catalog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.coordinator.group.assignment import Assignment
    from shoal.coordinator.group.groups import Context, Draft


class InitializeShareState(NamedTuple):
    """Effect: initialize the share-group state of these partitions at that state epoch, by the
    start offset policy. Then call `initialized` or `not_initialized`."""

    group_id: str
    state_epoch: int
    partitions: Assignment


class Initializations:
    """The initializations of the share groups of one shard."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: When the initialization of a topic was last requested, by group.
        self._asked_ms: defaultdict[str, dict[UUID, int]] = defaultdict(dict)

    @property
    def catalog(self) -> Catalog:
        return Catalog(self._context.image)

    def forget(self, group_id: str) -> None:
        """Drop the soft state of a group that was deleted."""
        self._asked_ms.pop(group_id, None)

    def ask(
        self,
        group: ShareGroup,
        names: frozenset[str],
        epoch: int,
        draft: Draft,
        now_ms: int,
        *,
        look: bool,
    ) -> Initialization:
        """Request the initialization of partitions of topics `names` that have no state.

        Ignores partitions that were requested within the retry interval.
        """
        known = group.initialization
        if not look and not known.initializing:
            return known
        retry_ms = self._context.settings.group_share_initialize_retry_interval_ms
        asked = self._asked_ms[group.group_id]
        missing: dict[UUID, frozenset[int]] = {}
        for topic in sorted(self.catalog.ids_of(names)):
            if len(known.of(topic)) == len(self.catalog.partitions_of(topic)):
                continue
            partitions = frozenset(self.catalog.partitions_of(topic)) - known.of(topic)
            asked_ms = asked.get(topic)
            if asked_ms is not None and now_ms - asked_ms < retry_ms:
                under_way = known.initializing.get(topic)
                partitions -= under_way.partitions if under_way is not None else frozenset()
            if partitions:
                missing[topic] = partitions
                asked[topic] = now_ms
        if not missing:
            return known
        started = known.started(self._named(missing))
        if started != known:
            draft.records.append(group.initialization_record(started))
        draft.effects.append(InitializeShareState(group.group_id, epoch, missing))
        return started

    def failed(self, group: ShareGroup, partitions: Assignment) -> Initialization:
        """The initialization of these partitions has failed. It may be requested again at once."""
        for topic in partitions:
            self._asked_ms[group.group_id].pop(topic, None)
        return group.initialization.failed(partitions)

    def start_reset(self, group_id: str, partitions: Assignment, token: Token) -> Result:
        """Mark these partitions of an empty group as initializing, before the caller sets their
        start offsets (AlterShareGroupOffsets). Replies with the `state_epoch` to use.

        A group that does not exist is created if `partitions` has a topic, as in Kafka, even one
        without partitions. Raises GROUP_ID_NOT_FOUND for a group of another type, and
        NON_EMPTY_GROUP.
        """
        groups = self._context.groups
        exists = groups.get(group_id) is not None
        group = groups.find_of(group_id, ShareGroup) if exists else ShareGroup(group_id)
        group.check_delete()
        records: list[Record] = []
        if partitions and not exists:
            records.append(group.epoch_record(group.epoch, group.metadata_hash))
            records.append(group.target_metadata_record(group.epoch, 0))
        named = {t: n for t, n in self._named(partitions).items() if n.partitions}
        if named:
            records.append(group.initialization_record(group.initialization.started(named)))
        return Result(records, (Reply(token, {"state_epoch": group.epoch}),))

    def start_deletion(self, group_id: str, topics: Sequence[UUID] | None, token: Token) -> Result:
        """Mark some topics, or all (None), as deleting, before their share-group state is deleted.
        Replies with the `partitions` that have state. `deleted` or the group's deletion ends it.

        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        group = self._context.groups.find_of(group_id, ShareGroup)
        group.check_delete()
        known = group.initialization
        sides = (known.initializing, known.initialized)
        wanted = {t for side in sides for t in side} | set(known.deleting)
        if topics is not None:
            wanted &= set(topics)
        partitions: dict[UUID, frozenset[int]] = {}
        for topic in sorted(wanted):
            found = frozenset().union(*(s[topic].partitions for s in sides if topic in s))
            # A topic that is already deleting is deleted with all its partitions.
            partitions[topic] = found or frozenset(self.catalog.partitions_of(topic))
        record = group.initialization_record(known.deleted(wanted))
        replies = (Reply(token, {"partitions": partitions}),)
        return Result((record,) if wanted else (), replies)

    def deleted(self, group_id: str, topics: Sequence[UUID]) -> Result:
        """The state of these topics was deleted."""
        group = self._context.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            return Result()
        for topic in topics:
            self._asked_ms[group_id].pop(topic, None)
        return Result((group.initialization_record(group.initialization.forgotten(topics)),))

    def _named(self, partitions: Assignment) -> dict[UUID, NamedPartitions]:
        named = ((t, self.catalog.name_of(t), partitions[t]) for t in sorted(partitions))
        return {t: NamedPartitions(name, p) for t, name, p in named if name is not None}
