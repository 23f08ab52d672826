"""Looks at the records of groups with a delay while no member fetches them.

Otherwise only a fetch reads the header that delays a record: of a group without members the broker
could not count what is due, and an autoscaler would start consumers for records that are due
tomorrow. The scanner loads share partitions with a lag, and looks at their records up to
the group's bounds (`share.delay.max.records`, `share.ordering.key.lookahead`), some milliseconds at
a time. It acquires nothing. Without a group with `share.delay.max.ms` it does not run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError
from shoal.record.batch import CorruptBatch
from shoal.server.share.leader import Phase, ShareLeader

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.share.service import ShareService

#: How often new records are looked for. An autoscaler asks every few seconds.
INTERVAL_MS = 1000


class DelayScanner:
    """Owned by the share service."""

    def __init__(self, broker: Broker, service: ShareService) -> None:
        self._broker, self._service = broker, service
        self._loop = asyncio.get_running_loop()
        #: Groups that had a delay when their configs were read last, in that order.
        self._groups: dict[str, None] = {}
        self._queue: deque[ShareLeader] = deque()
        self._armed = False

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def note(self, group_id: str) -> None:
        """Watch a group, which has a delay by its configs."""
        self._groups[group_id] = None
        self._arm()

    def _arm(self) -> None:
        if not self._armed and self._groups:
            self._armed = True
            self._service.at(self._service.now_ms() + INTERVAL_MS, self._tick)

    def _tick(self) -> None:
        self._armed = False
        service = self._service
        for group_id in list(self._groups):
            policy = service.settings(group_id).selection
            if policy is None or not policy.delay_max_ms:
                del self._groups[group_id]
        if not service.draining and not self._queue:
            for group_id, partition, lag in list(service.unloaded()):
                if lag and group_id in self._groups:
                    service.lead(group_id, *partition.key)
            for group_id in self._groups:
                self._queue += service.leaders.get(group_id, {}).values()
            self._step()
        self._arm()

    def _step(self) -> None:
        """Look at the records of one share partition, and let other work go first."""
        if not self._queue:
            return
        leader = self._queue.popleft()
        if leader.phase is Phase.ACTIVE and not self._service.draining:
            policy = leader.settings.selection
            try:
                if policy is not None and policy.delay_max_ms and leader.needs_scan():
                    if leader.scan_ahead():
                        self._queue.append(leader)
            except (ApiError, CorruptBatch):
                pass  # A fetch reports it to its member.
        if self._queue:
            self._loop.call_soon(self._step)
