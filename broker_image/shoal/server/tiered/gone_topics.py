"""Deletes what is left in the store of topics that no longer exist.

The metadata of a deleted topic has its objects, which are deleted by it. If the metadata was lost,
nothing names them any more. The leader of the first partition of `__remote_log_metadata` finds them
by their prefix. It deletes an object that is older than the grace period if its topic is unknown in
two comparisons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.tiered import keys

if TYPE_CHECKING:
    from collections.abc import Container
    from uuid import UUID

    from shoal.tiered.store import ObjectStore


class GoneTopics:
    """Owns the topics that were unknown in the last comparison."""

    def __init__(self, store: ObjectStore, cluster_id: str, *, grace_ms: int) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._grace_ms = grace_ms
        self._unknown: set[UUID] = set()
        self.objects_deleted_total = 0

    async def sweep(self, known: Container[UUID], now_ms: int) -> None:
        """Compare once. `known` has the ids of all topics. Raises `StoreError`."""
        before, self._unknown = self._unknown, set()
        for prefix in await self._store.children(self._cluster_id):
            topic = keys.topic_of(prefix)
            if topic is None or topic[1] in known:
                continue
            _, topic_id = topic
            self._unknown.add(topic_id)
            if topic_id not in before:
                continue
            due = [
                info.key
                async for info in self._store.list(prefix)
                if now_ms - info.modified_ms >= self._grace_ms
            ]
            if due:
                await self._store.delete(due)
                self.objects_deleted_total += len(due)
