"""When the group epoch is bumped and the target assignment is computed, for every kind of group.

The epoch is bumped when a subscription or the metadata of a subscribed topic has changed. The
target assignment is computed when the group epoch is beyond it, and at most once in each assignment
interval (KIP-1263). One that has to wait sets a deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.topics import TopicCatalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.groups import GroupType, ShardContext
    from shoal.coordinator.group.modern.modern_group import ModernGroup


class ModernTargetAssignments:
    """The target assignments of one kind of group in one shard."""

    def __init__(self, context: ShardContext, kind: GroupType) -> None:
        self._context = context
        self._name = kind.value
        self._interval_config = f"{kind.value}.assignment.interval.ms"
        #: Assignments computed since the shard was loaded, for metrics.
        self.assignment_count = 0
        #: Groups whose metadata hash was compared since the metadata changed last. Soft state.
        self._fresh: set[str] = set()

    @property
    def catalog(self) -> TopicCatalog:
        return TopicCatalog(self._context.image)

    def is_postponed(self, group: ModernGroup[Any, Any]) -> bool:
        """Whether an assignment is put off until the interval is over."""
        return self._make_key(group) in self._context.deadlines

    def is_fresh(self, group: ModernGroup[Any, Any]) -> bool:
        """Whether the group's metadata hash was compared since the metadata changed last."""
        return group.group_id in self._fresh

    def mark_stale(self, group_id: str) -> None:
        """Compare the group's metadata hash at the next heartbeat."""
        self._fresh.discard(group_id)

    def mark_all_stale(self) -> None:
        self._fresh.clear()

    def forget(self, group_id: str) -> None:
        """Drop the soft state of a group that was deleted."""
        self._fresh.discard(group_id)

    def compute_epoch(
        self, group: ModernGroup[Any, Any], hash_of_metadata: Callable[[], int], *, bump: bool
    ) -> tuple[int, int]:
        """Return the group epoch and the hash of the metadata of the subscribed topics. The epoch
        is bumped if the hash has changed, or with `bump`."""
        if not bump and self.is_fresh(group):
            return group.epoch, group.metadata_hash
        metadata_hash = hash_of_metadata()
        self._fresh.add(group.group_id)
        changed = bump or metadata_hash != group.metadata_hash
        return group.epoch + changed, metadata_hash

    def _make_key(self, group: ModernGroup[Any, Any]) -> Key:
        return (self._name, "assignment", group.group_id)

    def _compute_due_ms(self, group: ModernGroup[Any, Any]) -> int:
        """When the next assignment may be computed; 0 for the first one."""
        if group.assignment_timestamp_ms == 0:
            return 0
        config = self._context.image.resolve_group_config(group.group_id)
        interval_ms: int = config[self._interval_config]
        return group.assignment_timestamp_ms + interval_ms
