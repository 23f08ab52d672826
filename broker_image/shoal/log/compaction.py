"""Log compaction: the last record of each key is retained (KIP-58, KIP-354, KIP-534).

A round has two passes. The first reads the dirty part, from `cleaned_to` on, and maps the digest of
each key to its last offset, up to a memory limit. The second rewrites all segments below the end of
the map. It drops records that a later one of the same key replaces, expired tombstones, and records
of aborted transactions. Small segments are merged. Offsets, sequences and epochs do not change.

A round leaves out the active segment, and records that are not durable, not stable, or younger than
min.compaction.lag.ms. The last batch of each producer and the last batch of the round stay, even if
they are empty, because they hold sequences and offsets.

`log.cleaner` decides which records stay.

A new segment is written as `.cleaned`, synced, renamed to `.swap`, and then replaces its originals.
`shoal.log.recovery` completes or undoes an interrupted swap. A round is a generator that yields
after each bounded step, so that the event loop can do other work. A `Sync` or an `Aside` that it
yields may run in another thread before the next step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.log.cleaner import ENTRY_BYTES, Aside, CleanedTransactionMetadata, Cleaner
from shoal.log.indexes import RELATIVE_OFFSET_MAX
from shoal.log.segment import CLEANED, DELETED, SWAP, DeletedSegment, Segment
from shoal.log.syncs import Sync
from shoal.record.batch import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.log.state import LogState

Step = Sync | Aside[Any] | None


@dataclass(slots=True)
class LogToClean:
    """The part of a log that can be compacted now."""

    dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    #: Whether the oldest dirty batch is older than max.compaction.lag.ms.
    overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty ratio, for min.cleanable.dirty.ratio."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def measure_log_to_clean(log: LogState, now_ms: int, high_watermark: int) -> LogToClean:
    """Return the part of `log` that can be compacted now, whether or not that is due."""
    config = log.config
    # Remote segments are cleaned by the leader (`server.tiered.cleaning`).
    start = max(log.log_start_offset, log.bases[0])
    dirty = min(max(log.cleaned_to, start), log.log_end_offset)
    # Stay below the recovery point, so that recovery cannot mistake a cleaned gap for a loss.
    bound = min(
        log.find_last_stable_offset(high_watermark), log.active.base_offset, log.recovery_point
    )
    first = max(0, bisect_right(log.bases, dirty) - 1)
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        for segment in log.segments[first:-1]:
            if segment.find_age_timestamp() > youngest:
                bound = min(bound, segment.base_offset)
                break
    # Only whole segments, up to the one with the bound.
    end = log.bases[max(0, bisect_right(log.bases, bound) - 1)]
    last = bisect_left(log.bases, end)
    dirty_bytes = sum(s.size for s in log.segments[first:last]) if dirty < end else 0
    overdue = False
    for segment in log.segments[first:last]:
        first_timestamp = segment.find_first_timestamp()
        if first_timestamp >= 0 and now_ms - first_timestamp > config.max_compaction_lag_ms:
            overdue = True
    clean_bytes = sum(s.size for s in log.segments[: min(first, last)])
    return LogToClean(dirty, max(dirty, end), clean_bytes, dirty_bytes, overdue)


class Compaction:
    """The steps of one round, with the bytes read and written so far."""

    def __init__(self, round_: _CompactionRound) -> None:
        self._round = round_
        self._steps = round_.run()

    @property
    def io_bytes(self) -> int:
        return self._round.io_bytes

    def __iter__(self) -> Compaction:
        return self

    def __next__(self) -> Step:
        return next(self._steps)


def begin(log: LogState, now_ms: int, high_watermark: int, memory_bytes: int) -> Compaction | None:
    """Start a round of compaction. Return None if none is due, if one is running, or if the log
    is not compacted or is corrupt."""
    if not log.config.compact or log.compacting or log.offline or log.uncleanable:
        return None
    part = measure_log_to_clean(log, now_ms, high_watermark)
    due = part.dirty_bytes and (part.ratio > log.config.min_cleanable_dirty_ratio or part.overdue)
    if not due and not (log.next_horizon_ms is not None and now_ms >= log.next_horizon_ms):
        return None
    return Compaction(_CompactionRound(log, part, now_ms, max(1, memory_bytes // ENTRY_BYTES)))


class _RoundAborted(Exception):
    """The log was truncated or closed during the round."""


class _CompactionRound(Cleaner):
    """One round over one log."""

    def __init__(self, log: LogState, part: LogToClean, now_ms: int, entries_max: int) -> None:
        super().__init__(
            log.config,
            now_ms=now_ms,
            start=part.dirty_offset,
            end=part.end_offset,
            entries_max=entries_max,
            # The records that they delete may be in the object store.
            keeps_tombstones=log.config.remote_storage_enable,
        )
        self.log = log
        self.generation = log.generation
        #: Whether a swap has started, which only a restart can complete after an error.
        self.swapping = False
        self.last_of_producers = {p.producer_id: (p.last_offset, p.epoch) for p in log.producers}

    def run(self) -> Iterator[Step]:
        log = self.log
        log.compacting = True
        try:
            transactions = CleanedTransactionMetadata()
            transactions.add(log.find_aborted_transactions(self.start, self.end))
            yield from self.build_offset_map(log.read_batches(self.start, self.end), transactions)
            if not self.is_full:
                self.mapped_to = self.end - 1
            end = self.mapped_to + 1
            groups = self._group_segments(end)
            transactions = CleanedTransactionMetadata()
            if groups:
                # A marker may be in a later segment than its records, also in one that stays.
                next_base = log.bases[log.segments.index(groups[-1][-1]) + 1]
                transactions.add(log.find_aborted_transactions(groups[0][0].base_offset, next_base))
            for group in groups:
                yield from self._clean(group, transactions)
            log.cleaned_to = max(log.cleaned_to, end)
            log.next_horizon_ms = self.next_horizon_ms
        except _RoundAborted:
            pass
        except CorruptBatch as error:
            log.uncleanable = str(error)
        finally:
            log.compacting = False

    def check(self) -> None:
        if self.log.generation != self.generation or self.log.offline:
            raise _RoundAborted

    # The cleaning

    def _group_segments(self, end: int) -> list[list[Segment]]:
        """Return the segments below `end`, in groups that each fit into one segment. Those that the
        object store has are left out: local retention removes them."""
        log, config = self.log, self.log.config
        limit = min(bisect_left(log.bases, end), len(log.segments) - 1)
        copied = 0 if log.remote is None else log.remote.end_offset + 1
        first = max(0, bisect_right(log.bases, copied) - 1)
        groups: list[list[Segment]] = []
        size = entries = times = 0
        for index, segment in enumerate(log.segments[first:limit], first):
            fits = (
                groups
                and size + segment.size <= config.segment_bytes
                and entries + len(segment.offset_index) <= config.segment_index_bytes // 8
                and times + len(segment.time_index) <= config.segment_index_bytes // 12
                and log.bases[index + 1] - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
            )
            if not fits:
                groups.append([])
                size = entries = times = 0
            groups[-1].append(segment)
            size += segment.size
            entries += len(segment.offset_index)
            times += len(segment.time_index)
        return groups

    def _clean(
        self, group: list[Segment], transactions: CleanedTransactionMetadata
    ) -> Iterator[Step]:
        log, interval = self.log, self.log.config.index_interval_bytes
        cleaned = Segment(
            log.storage,
            log.directory,
            group[0].base_offset,
            now_ms=self.now_ms,
            suffix=CLEANED,
            fresh=True,
        )
        try:
            for segment in group:
                for _, header, data in segment.read_batches():
                    self.io_bytes += header.size
                    filtered = yield from self.filter_batch(
                        header, data, transactions, cleaned.txn_index
                    )
                    if filtered is not None:
                        out, max_timestamp = filtered
                        self.io_bytes += len(out)
                        cleaned.append([out], header.last_offset, max_timestamp, interval)
                    if self._should_pause(1, header.size):
                        yield None
                        self.check()
            cleaned.seal_times()
            sync = Sync(
                log.storage, 0, self.generation, cleaned.take_unsynced(), [], [log.directory]
            )
            yield sync
            sync.run_once()
            self.check()
            self._swap(cleaned, group)
        finally:
            if not self.swapping:
                cleaned.remove()
        self.swapping = False
        yield None
        self.check()

    def _swap(self, cleaned: Segment, group: list[Segment]) -> None:
        """Replace the old segments with the new one. Raises `OSError`. An error after the first
        rename takes the log offline, and a restart completes the swap."""
        log = self.log
        cleaned.rename(SWAP, log_last=True)
        self.swapping = True
        try:
            log.storage.sync_directory(log.directory)
            self._take_names(cleaned, group)
        except OSError as error:
            log.fault, log.offline = error, True
            raise

    def _take_names(self, cleaned: Segment, group: list[Segment]) -> None:
        log = self.log
        index = log.segments.index(group[0])
        for segment in group:
            segment.rename(DELETED)
            if segment is not group[0]:
                log.snapshots.drop(segment.base_offset)
            log.garbage.append(DeletedSegment(segment, "compaction"))
        cleaned.rename("")
        cleaned.created_ms = group[-1].created_ms
        log.segments[index : index + len(group)] = [cleaned]
        log.bases[index : index + len(group)] = [cleaned.base_offset]
        log.forget_positions()
