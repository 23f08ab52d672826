"""Scans the records of groups with a delay or limits of tenants while no member fetches them.

Only a fetch reads the header that delays a record, or what names its tenant. Without members, the
broker could not count the due records, and an autoscaler would start consumers for records that are
due tomorrow, or of a paused tenant. The scanner loads share partitions with a lag. It scans their
records within the group's bounds (`share.delay.max.records`, `share.ordering.key.lookahead`,
`share.fairness.lookahead.records`), a few milliseconds at a time. It acquires nothing, and runs
only for groups with `share.delay.max.ms` or `share.tenant.*`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from shoal.protocol.errors import ApiError
from shoal.record.batch import CorruptBatch
from shoal.server.share.leader import LeaderPhase, ShareLeader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from shoal.coordinator.share.settings import ShareSettings
    from shoal.replication.partition import Partition
    from shoal.server.node import Node
    from shoal.server.share.group_settings import ShareGroupSettings

#: How often new records are scanned. An autoscaler polls every few seconds.
INTERVAL_MS = 1000


class ScannerPartitionsPort(Protocol):
    """The share partitions of one broker, as far as the scanner uses them."""

    @property
    def draining(self) -> bool:
        """Whether the broker hands over its partitions."""

    def iterate_unloaded(self) -> Iterator[tuple[str, Partition, int]]:
        """Group, partition and persisted lag of those that are not loaded."""

    def lead(self, group_id: str, topic_id: UUID, index: int) -> object:
        """Load one."""

    def list_loaded(self, group_id: str) -> Iterable[ShareLeader]:
        """The loaded share partitions of a group."""


class IdleScanner:
    """Owns the queue of share partitions to scan."""

    def __init__(
        self, node: Node, settings: ShareGroupSettings, partitions: ScannerPartitionsPort
    ) -> None:
        self._node, self._settings, self._partitions = node, settings, partitions
        #: Groups to scan, when their configs were read last, in that order.
        self._groups: dict[str, None] = {}
        self._queue: deque[ShareLeader] = deque()
        self._armed = False
        settings.subscribe(self._note)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def _note(self, group_id: str, settings: ShareSettings) -> None:
        """Watch a group if its configs have a delay or limits."""
        if settings.has_later_records:
            self._groups[group_id] = None
            self._arm()

    def _arm(self) -> None:
        if not self._armed and self._groups:
            self._armed = True
            self._node.timers.call_at(self._node.clock.now_ms() + INTERVAL_MS, self._tick)

    def _tick(self) -> None:
        self._armed = False
        partitions = self._partitions
        for group_id in list(self._groups):
            if not self._settings.get(group_id).has_later_records:
                del self._groups[group_id]
        if not partitions.draining and not self._queue:
            for group_id, partition, lag in list(partitions.iterate_unloaded()):
                if lag and group_id in self._groups:
                    partitions.lead(group_id, *partition.key)
            for group_id in self._groups:
                self._queue += partitions.list_loaded(group_id)
            self._step()
        self._arm()

    def _step(self) -> None:
        """Scan records of one share partition, then let other work go first."""
        if not self._queue:
            return
        leader = self._queue.popleft()
        if leader.phase is LeaderPhase.ACTIVE and not self._partitions.draining:
            try:
                if leader.settings.has_later_records and leader.needs_scan():
                    if leader.scan_ahead():
                        self._queue.append(leader)
            except (ApiError, CorruptBatch):
                pass  # A fetch reports it to its member.
        if self._queue:
            self._node.loop.call_soon(self._step)
