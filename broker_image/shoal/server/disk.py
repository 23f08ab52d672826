"""Syncs logs in a worker thread; one fsync covers many appends (group commit).

A partition that requests a sync joins the next round. One worker thread syncs all partitions of a
round, of which there are few enough that a turn of the event loop can begin their syncs. Later
appends go to the round after it, so the number of rounds depends on the disk's speed and not on the
number of producers. At the end of a round its partitions get their synced offset on the event loop,
where all other state changes.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.log.errors import LogOffline

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.log.syncs import Sync
    from shoal.replication.partition import Partition

T = TypeVar("T")
#: Delay after a sync that could not start, as on a full disk. Nothing is lost by that.
_RETRY_S = 1.0
#: The partitions of a round. Beginning a sync rolls the segment if need be, which takes 0.2 ms.
_ROUND_PARTITIONS_MAX = 50


class DiskExecutor:
    """Owns the worker threads and the set of partitions to sync."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Any) -> None:
        self._loop = loop
        self._log = log
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="disk")
        # Unlinking a large file is slow, and so is writing one. No sync should wait for it.
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="disk-aside")
        self._due: dict[Partition, None] = {}
        self._round: asyncio.Future[Any] | None = None
        self.rounds_total = self.synced_total = 0

    def sync_soon(self, partition: Partition) -> None:
        """Sync the partition's log in the next round, which starts when the current one ends."""
        self._due[partition] = None
        if self._round is None:
            # Start after this turn of the loop, so that all its appends share the round.
            self._round = self._loop.create_future()
            self._loop.call_soon(self._start)

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run blocking disk work in the worker, between two rounds."""
        return self._loop.run_in_executor(self._executor, call)

    def run_aside(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run slow disk work in a separate worker. What has not begun at `close` is cancelled."""
        return self._loop.run_in_executor(self._aside, call)

    def remove(self, call: Callable[[], None]) -> None:
        """Remove files in the separate worker. After an error the next start removes them."""
        work = self.run_aside(call)
        work.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def drain(self) -> None:
        """Wait until nothing is left to sync."""
        while self._round is not None:
            await asyncio.wait([self._round])

    def close(self) -> None:
        self._executor.shutdown()
        self._aside.shutdown(cancel_futures=True)

    def _start(self) -> None:
        marked = list(islice(self._due, _ROUND_PARTITIONS_MAX))
        for partition in marked:
            del self._due[partition]
        due = [(p, sync) for p in marked if (sync := self._begin(p)) is not None]
        syncs = [sync for _, sync in due]
        work = self._loop.run_in_executor(self._executor, _sync_all, syncs)
        work.add_done_callback(lambda done: self._complete(due, done))

    def _begin(self, partition: Partition) -> Sync | None:
        if partition.is_removed:
            return None
        try:
            sync = partition.log.begin_sync()
        except (OSError, LogOffline) as error:
            self._log_failure(partition, error)
            if not partition.log.offline:
                self._loop.call_later(_RETRY_S, self.sync_soon, partition)
            return None
        if sync is None:
            partition.mark_synced(partition.log.recovery_point)
        return sync

    def _log_failure(self, partition: Partition, error: Exception) -> None:
        consequence = "is offline until the broker starts again"
        if not partition.log.offline:
            consequence = "is synced a little later"
        self._log.error(
            f"the disk refused a sync; the log {consequence}",
            topic=partition.topic,
            partition=partition.index,
            error=str(error),
        )
        partition.notify_changed()

    def _complete(
        self, due: list[tuple[Partition, Sync]], future: asyncio.Future[list[OSError | None]]
    ) -> None:
        self.rounds_total += 1
        waiting, self._round = self._round, None
        for (partition, sync), error in zip(due, future.result(), strict=True):
            if partition.is_removed:
                continue  # Its files may have gone during the sync.
            self.synced_total += 1
            partition.log.finish_sync(sync, error)
            if error is None:
                partition.mark_synced(partition.log.recovery_point)
            else:
                self._log_failure(partition, error)
        if self._due:
            self._round = self._loop.create_future()
            self._loop.call_soon(self._start)
        if waiting is not None:
            waiting.set_result(None)


def _sync_all(syncs: list[Sync]) -> list[OSError | None]:
    """Run in the worker. An error of one partition does not affect the others."""
    errors: list[OSError | None] = []
    for sync in syncs:
        try:
            sync.run()
            errors.append(None)
        except OSError as error:
            errors.append(error)
    return errors
