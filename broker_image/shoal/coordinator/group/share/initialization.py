"""Initializing and deleting the share-group state of a group's partitions (KIP-932).

A partition can be assigned once its state is initialized. `Initialization`, in the group's records,
has the progress. This module decides the next step, which the share coordinator performs. The
performer then reports success or failure.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.contract import CoordinatorRecord, CoordinatorResult, Reply, Token
from shoal.coordinator.group.share.share_group import (
    Initialization,
    NamedPartitions,
    ShareGroup,
)
from shoal.coordinator.group.topics import TopicCatalog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.coordinator.group.assignment import Assignment
    from shoal.coordinator.group.groups import ResultDraft, ShardContext


class ShareStateInitialization(NamedTuple):
    """Effect: initialize the share-group state of these partitions at that state epoch, by the
    start offset policy. Then call `initialized` or `on_initialization_failed`."""

    group_id: str
    state_epoch: int
    partitions: Assignment


class ShareStateInitializer:
    """The initializations of the share groups of one shard."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        #: When the initialization of a topic was last requested, by group.
        self._requested_ms: defaultdict[str, dict[UUID, int]] = defaultdict(dict)

    @property
    def catalog(self) -> TopicCatalog:
        return TopicCatalog(self._context.image)

    def forget(self, group_id: str) -> None:
        """Drop the soft state of a group that was deleted."""
        self._requested_ms.pop(group_id, None)

    def request_initialization(
        self,
        group: ShareGroup,
        names: frozenset[str],
        epoch: int,
        draft: ResultDraft,
        now_ms: int,
        *,
        look: bool,
    ) -> Initialization:
        """Request the initialization of partitions of topics `names` that have no state.

        Ignores partitions that were requested within the retry interval.
        """
        initialization = group.initialization
        if not look and not initialization.initializing:
            return initialization
        retry_ms = self._context.settings.group_share_initialize_retry_interval_ms
        requests = self._requested_ms[group.group_id]
        missing: dict[UUID, frozenset[int]] = {}
        for topic in sorted(self.catalog.get_ids(names)):
            if len(initialization.get_initialized(topic)) == len(
                self.catalog.get_partitions(topic)
            ):
                continue
            partitions = frozenset(
                self.catalog.get_partitions(topic)
            ) - initialization.get_initialized(topic)
            requested_ms = requests.get(topic)
            if requested_ms is not None and now_ms - requested_ms < retry_ms:
                under_way = initialization.initializing.get(topic)
                partitions -= under_way.partitions if under_way is not None else frozenset()
            if partitions:
                missing[topic] = partitions
                requests[topic] = now_ms
        if not missing:
            return initialization
        started = initialization.with_initializing(self._to_named_partitions(missing))
        if started != initialization:
            draft.records.append(group.build_initialization_record(started))
        draft.effects.append(ShareStateInitialization(group.group_id, epoch, missing))
        return started

    def on_initialization_failed(self, group: ShareGroup, partitions: Assignment) -> Initialization:
        """The initialization of these partitions has failed. It may be requested again at once."""
        for topic in partitions:
            self._requested_ms[group.group_id].pop(topic, None)
        return group.initialization.without_initializing(partitions)

    def start_reset(self, group_id: str, partitions: Assignment, token: Token) -> CoordinatorResult:
        """Mark these partitions of an empty group as initializing, before the caller sets their
        start offsets (AlterShareGroupOffsets). Replies with the `state_epoch` to use.

        A group that does not exist is created if `partitions` has a topic, as in Kafka, even one
        without partitions. Raises GROUP_ID_NOT_FOUND for a group of another type, and
        NON_EMPTY_GROUP.
        """
        groups = self._context.groups
        exists = groups.get(group_id) is not None
        group = groups.find_as(group_id, ShareGroup) if exists else ShareGroup(group_id)
        group.check_delete()
        records: list[CoordinatorRecord] = []
        if partitions and not exists:
            records.append(group.build_epoch_record(group.epoch, group.metadata_hash))
            records.append(group.build_target_metadata_record(group.epoch, 0))
        named_partitions = {
            t: n for t, n in self._to_named_partitions(partitions).items() if n.partitions
        }
        if named_partitions:
            records.append(
                group.build_initialization_record(
                    group.initialization.with_initializing(named_partitions)
                )
            )
        return CoordinatorResult(records, (Reply(token, {"state_epoch": group.epoch}),))

    def start_deletion(
        self, group_id: str, topics: Sequence[UUID] | None, token: Token
    ) -> CoordinatorResult:
        """Mark some topics, or all (None), as deleting, before their share-group state is deleted.
        Replies with the `partitions` that have state. `on_deleted` or the group's deletion ends it.

        Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        group = self._context.groups.find_as(group_id, ShareGroup)
        group.check_delete()
        initialization = group.initialization
        sides = (initialization.initializing, initialization.initialized)
        topic_ids = {t for side in sides for t in side} | set(initialization.deleting)
        if topics is not None:
            topic_ids &= set(topics)
        partitions: dict[UUID, frozenset[int]] = {}
        for topic in sorted(topic_ids):
            topic_partitions = frozenset().union(
                *(s[topic].partitions for s in sides if topic in s)
            )
            # A topic that is already deleting is deleted with all its partitions.
            partitions[topic] = topic_partitions or frozenset(self.catalog.get_partitions(topic))
        record = group.build_initialization_record(initialization.with_deleting(topic_ids))
        replies = (Reply(token, {"partitions": partitions}),)
        return CoordinatorResult((record,) if topic_ids else (), replies)

    def on_deleted(self, group_id: str, topics: Sequence[UUID]) -> CoordinatorResult:
        """The state of these topics was deleted."""
        group = self._context.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            return CoordinatorResult()
        for topic in topics:
            self._requested_ms[group_id].pop(topic, None)
        return CoordinatorResult(
            (group.build_initialization_record(group.initialization.without_topics(topics)),)
        )

    def _to_named_partitions(self, partitions: Assignment) -> dict[UUID, NamedPartitions]:
        entries = ((t, self.catalog.get_name(t), partitions[t]) for t in sorted(partitions))
        return {t: NamedPartitions(name, p) for t, name, p in entries if name is not None}
