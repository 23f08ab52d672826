"""Periodic work on logs: retention, compaction, checkpoints, due syncs, expiry of producers, and
their size.

Each task runs on the event loop in short steps, so that requests are served in between. Blocking
disk work runs in the disk's worker thread.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from shoal.log.cleaner import Aside
from shoal.log.errors import LogOffline

if TYPE_CHECKING:
    import asyncio

    from shoal.log.compaction import Compaction
    from shoal.log.directory import LogDirectory
    from shoal.log.segment import DeletedSegment
    from shoal.replication.partition import Partition
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions

#: Interval of the check for syncs that flush.ms or a closed segment require.
SYNC_CHECK_MS = 1_000
#: Interval at which the logs are measured. A producer at 100 MB/s exceeds the limit by 100 MB.
SIZE_CHECK_MS = 1_000
#: Size of the file that shows whether a disk that was full has room again: more than most batches.
_PROBE_BYTES = 1 << 20
_PROBE = "room-check.tmp"
_NO_LIMIT = (1 << 63) - 1


class LogMaintenance:
    """Owns the periodic tasks and the running compaction."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: Partitions,
        directory: LogDirectory,
    ) -> None:
        self._node = node
        self._cache = cache
        self._partitions = partitions
        self._directory = directory
        self._compaction: tuple[Partition, Compaction] | None = None
        #: The bytes of the running compaction that the rate limit has counted.
        self._io_bytes_counted = 0
        #: When compaction may continue, on the loop's clock.
        self._compact_at = 0.0
        self.compactions_total = self.segments_deleted_total = 0
        self.size_max_bytes: int = node.config["shoal.log.dir.max.bytes"]
        #: Whether the logs have reached `size_max_bytes`, so that clients may not append.
        self.is_full = False
        #: Why the disk refuses writes, as on a full disk; None while it accepts them.
        self.write_failure: str | None = None
        self._probing = False
        #: The number of logs that the metadata does not know.
        self.stray_logs = 0

    def start(self) -> None:
        """Start the tasks. The node's timers stop them."""
        call_every, config = self._node.timers.call_every, self._node.config
        self._remove_strays(self._node.clock.now_ms())
        call_every(SYNC_CHECK_MS, self._sync_due)
        if self.size_max_bytes < _NO_LIMIT:
            call_every(SIZE_CHECK_MS, self._measure)
        call_every(config["log.retention.check.interval.ms"], self._apply_retention)
        call_every(config["log.flush.offset.checkpoint.interval.ms"], self.checkpoint)
        call_every(config["producer.id.expiration.check.interval.ms"], self._expire_producers)
        if config["log.cleaner.enable"]:
            call_every(
                lambda: self._cache.image.broker_config["log.cleaner.backoff.ms"], self._compact
            )

    def stop(self) -> None:
        """Abandon the running compaction, and write the checkpoints."""
        self._compaction = None
        self.checkpoint()

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets and high watermarks."""
        self._directory.high_watermarks = {
            (p.topic, p.index): p.high_watermark for p in self._partitions
        }
        try:
            self._directory.checkpoint()
        except OSError as error:
            self._node.log.error("the offset checkpoints were not written", error=str(error))
            self._note_refusal(error)

    def compute_size_bytes(self) -> int:
        """Return the size of all logs of this broker."""
        return sum(partition.log.size_bytes for partition in self._partitions)

    def _measure(self) -> None:
        """Refuse produce requests while the logs are too large, and log when that changes."""
        size = self.compute_size_bytes()
        if (size >= self.size_max_bytes) == self.is_full:
            return
        self.is_full = not self.is_full
        if self.is_full:
            self._node.log.error(
                "produce requests are refused: the logs have reached shoal.log.dir.max.bytes. Lower"
                " retention, or check why segments are not copied to the object store",
                log_bytes=size,
                max_bytes=self.size_max_bytes,
            )
        else:
            self._node.log.warning("produce requests are accepted again", log_bytes=size)

    def _sync_due(self) -> None:
        now_ms = self._node.clock.now_ms()
        for partition in self._partitions:
            log = partition.log
            if log.offline:
                continue
            if log.is_sync_due(now_ms):
                self._node.disk.sync_soon(partition)
        for log in self._directory.logs.values():  # that of the metadata, too
            if log.fault is not None and not log.offline:
                self._note_refusal(log.fault)
        if self.write_failure is not None and not self._probing:
            self._probing = True
            self._node.disk.run(self._probe).add_done_callback(self._on_probed)

    def _note_refusal(self, error: OSError) -> None:
        """Note and log that the disk refuses writes, until it accepts them again."""
        if self.write_failure is None:
            reason = error.strerror or str(error)
            self._node.log.error(
                "the disk refuses writes: free or add space, or check the volume",
                directory=self._directory.path,
                error=reason,
            )
            self.write_failure = f"the disk of {self._directory.path} refuses writes: {reason}"

    def _probe(self) -> None:
        """Write a file and remove it, in the disk's worker. Raises `OSError`."""
        storage, path = self._directory.storage, f"{self._directory.path}/{_PROBE}"
        file = storage.open(path, create=True)
        try:
            file.write(0, [bytes(_PROBE_BYTES)])
            file.sync()
        finally:
            file.close()
            storage.remove(path)

    def _on_probed(self, work: asyncio.Future[None]) -> None:
        self._probing = False
        if work.cancelled() or work.exception() is not None:
            return
        for log in self._directory.logs.values():
            # No client may append before it sees that the broker is ready again.
            if log.fault is not None and not log.offline:
                with contextlib.suppress(OSError):
                    log.repair()
        self.write_failure = None
        self._node.log.warning("the disk accepts writes again", directory=self._directory.path)

    def _apply_retention(self) -> None:
        now_ms = self._node.clock.now_ms()
        self._remove_strays(now_ms)
        for partition in list(self._partitions):
            log = partition.log
            if log.offline:
                continue
            start = log.log_start_offset
            try:
                log.roll_if_due(now_ms)
                deleted = log.tick_retention(now_ms, high_watermark=partition.high_watermark)
            except (OSError, LogOffline) as error:
                self._log_failure(partition, "retention", error)
                continue
            self._remove_later(deleted, now_ms + log.config.file_delete_delay_ms)
            if log.log_start_offset != start:
                partition.notify_changed()

    def _remove_later(self, segments: list[DeletedSegment], at_ms: int) -> None:
        """Remove files after file.delete.delay.ms. A restart removes those that remain."""
        self.segments_deleted_total += len(segments)
        for segment in segments:
            remove = partial(self._node.disk.remove, segment.remove)
            self._node.timers.call_at(at_ms, remove)

    def _remove_strays(self, now_ms: int) -> None:
        """Count the logs that the metadata does not know, and remove those that it did not know
        shoal.log.stray.retention.ms ago."""
        self.stray_logs = len(self._directory.find_strays())
        kept_ms = self._node.config["shoal.log.stray.retention.ms"]
        if kept_ms < 0 or not self.stray_logs:
            return
        for path in self._directory.find_strays(now_ms - kept_ms):
            self._node.log.warning("a log that the metadata does not know is removed", path=path)
            self._node.disk.remove(partial(self._directory.purge, path))

    def _expire_producers(self) -> None:
        now_ms = self._node.clock.now_ms()
        limit_ms = self._cache.image.broker_config["producer.id.expiration.ms"]
        for partition in self._partitions:
            partition.log.expire_producers(now_ms, limit_ms)

    def _compact(self) -> None:
        """Start to compact a log that has enough to clean, unless a compaction is running."""
        if self._compaction is not None:
            return
        now_ms = self._node.clock.now_ms()
        memory_bytes = self._cache.image.broker_config["log.cleaner.dedupe.buffer.size"]
        for partition in list(self._partitions):
            log = partition.log
            if not log.config.compact or log.offline:
                continue
            try:
                steps = log.begin_compaction(
                    now_ms, high_watermark=partition.high_watermark, memory_bytes=memory_bytes
                )
            except (OSError, LogOffline) as error:
                self._log_failure(partition, "compaction", error)
                continue
            if steps is not None:
                self._compaction, self._io_bytes_counted = (partition, steps), 0
                self._node.loop.call_soon(self._compact_step)
                return

    def _compact_step(self) -> None:
        """Run one bounded step. The disk's worker runs the syncs that it needs, and the one for
        large batches what takes too long for the event loop."""
        if self._compaction is None:
            return
        partition, steps = self._compaction
        try:
            step = next(steps)
        except StopIteration:
            self._compaction = None
            self.compactions_total += 1
            self._compact()
        except (OSError, LogOffline) as error:
            self._compaction = None
            self._log_failure(partition, "compaction", error)
        else:
            if step is None:
                loop, at_s = self._node.loop, self._schedule_step_s(steps)
                if at_s <= loop.time():
                    loop.call_soon(self._compact_step)
                else:
                    loop.call_at(at_s, self._compact_step)
                return
            is_aside = isinstance(step, Aside)
            run = self._node.record_worker.submit if is_aside else self._node.disk.run
            # If a sync fails, the round runs it again and gets the error.
            run(step.run_once).add_done_callback(self._on_step_done)

    def _schedule_step_s(self, steps: Compaction) -> float:
        """Return the start time of the next step under log.cleaner.io.max.bytes.per.second."""
        size = steps.io_bytes - self._io_bytes_counted
        self._io_bytes_counted = steps.io_bytes
        rate = self._cache.image.broker_config["log.cleaner.io.max.bytes.per.second"]
        self._compact_at = max(self._compact_at, self._node.loop.time()) + size / rate
        return self._compact_at

    def _on_step_done(self, work: asyncio.Future[None]) -> None:
        if not work.cancelled():  # As it is when the broker stops.
            work.exception()
            self._compact_step()

    def _log_failure(self, partition: Partition, task: str, error: Exception) -> None:
        self._node.log.error(
            f"{task} failed", topic=partition.topic, partition=partition.index, error=str(error)
        )
