"""Cleans the remote segments of compacted topics again, and replaces them.

The store gets clean segments only, but later records replace keys in them. When the dirty ratio of
the remote segments is above min.cleanable.dirty.ratio, the leader maps the keys of the dirty ones
and filters all, as a round of `log.compaction` does. So the bytes that are read and written again
are bounded by those that were copied and the ratio.

A group of segments becomes one: it is copied like a new segment, and then the old ones are deleted.
Readers use the old ones or the new one. Groups are replaced from the oldest on, and the old objects
are gone before the next group is written. So a tombstone outlives all records that it deletes, also
if the process ends at any step. Local cleanings keep all tombstones of a tiered log.

The manifest has the offset up to which keys were cleaned. A pass that ends early is repeated from
the start. If the manifest is lost, all segments count as dirty.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.log.cleaner import ENTRY_BYTES, Aside, CleanedTransactionMetadata, Cleaner, drop_records
from shoal.log.segment import CLEANED, Segment
from shoal.record.batch import iter_headers
from shoal.server.tiered.manifests import LostLeadership
from shoal.server.tiered.reader import PAUSE_MS_MAX
from shoal.tiered import cleaning
from shoal.tiered.segment_object import Section

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from shoal.log.indexes import AbortedTransaction
    from shoal.log.log import Log
    from shoal.record.batch import BatchHeader
    from shoal.replication.partition import Partition
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node
    from shoal.server.tiered.copier import Copier
    from shoal.server.tiered.quota import TransferQuota
    from shoal.server.tiered.reader import PartitionReader
    from shoal.tiered.remote_log import RemoteLog, RemoteSegment

_END = object()
#: Sections that a group takes over from its last segment.
_KEPT = (Section.LEADER_EPOCHS, Section.PRODUCER_SNAPSHOT)


class RemoteCleaning:
    """Owns the directory in which cleaned segments are written before they are copied."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        copier: Copier,
        quotas: tuple[TransferQuota, TransferQuota],
        directory: str,
    ) -> None:
        """`quotas` are those of copies and of reads."""
        self._node = node
        self._cache = cache
        self._copier = copier
        self._quotas = quotas
        self._directory = directory
        self._storage = node.system.storage
        self.cleanings_total = 0

    def open(self) -> None:
        """Empty the directory. Raises `OSError`."""
        self._storage.remove_directory(self._directory)
        self._storage.make_directory(self._directory)

    async def run(self, partition: Partition, reader: PartitionReader, remote: RemoteLog) -> None:
        """Clean the remote segments of a partition that this broker leads, if they are due. Raises
        what `Copier.run` raises."""
        log = partition.log
        if not log.config.compact or log.config.remote_log_copy_disable:
            return
        epoch = partition.leader_epoch
        manifests = self._copier.manifests
        if not partition.is_leader or not manifests.is_claimed(partition, epoch):
            return
        prefix = self._copier.get_prefix(partition)
        served = cleaning.find_served_segments(remote, log.log_start_offset, log.epochs.find_epoch)
        if served.unused:
            # They may have records that a tombstone has deleted elsewhere.
            await self._copier.delete(partition, prefix, served.unused)
        cleaned_to = manifests.get_cleaned_to(partition.key)
        if served.compute_dirty_ratio(cleaned_to) <= log.config.min_cleanable_dirty_ratio:
            return
        memory_bytes = self._cache.image.broker_config["log.cleaner.dedupe.buffer.size"]
        work = _Cleaning(self, partition, reader, served.chain, cleaned_to, memory_bytes)
        await work.map()
        for group in cleaning.group_segments(
            served.chain, work.cleaner.mapped_to + 1, log.config.segment_bytes
        ):
            await self._clean(work, prefix, epoch, group)
        manifests.set_cleaned_to(partition.key, work.cleaner.mapped_to + 1)
        await manifests.write(partition, prefix, remote)
        self.cleanings_total += 1

    async def _clean(
        self, work: _Cleaning, prefix: str, epoch: int, group: list[RemoteSegment]
    ) -> None:
        """Replace a group of segments by one, unless it would be the same."""
        partition = work.partition
        directory = f"{self._directory}/{partition.topic_id}-{partition.index}"
        self._storage.make_directory(directory)
        cleaned = Segment(
            self._storage,
            directory,
            group[0].base_offset,
            now_ms=self._node.clock.now_ms(),
            suffix=CLEANED,
            fresh=True,
        )
        try:
            if not await work.write(group, cleaned):
                return
            more = await work.read_sections(group[-1])
            end = group[-1].end_offset + 1
            described = self._copier.describe(partition, group[0].base_offset, end, cleaned.size)
            ready = await self._copier.prepare(cleaned, described, more)
            await self.wait()
            if partition.has_lost_leadership_since(epoch):
                raise LostLeadership("another broker leads the partition")
            await self._copier.put(partition, prefix, ready)
            await self._copier.delete(partition, prefix, group)
        finally:
            cleaned.remove()

    async def wait(self) -> None:
        """Wait until the quotas allow the next transfer."""
        for quota in self._quotas:
            while wait_ms := quota.compute_throttle_ms():
                # The limit may change meanwhile.
                await asyncio.sleep(min(wait_ms, PAUSE_MS_MAX) / 1000)


class _Cleaning:
    """One cleaning of one partition."""

    def __init__(
        self,
        owner: RemoteCleaning,
        partition: Partition,
        reader: PartitionReader,
        chain: list[RemoteSegment],
        cleaned_to: int,
        memory_bytes: int,
    ) -> None:
        self._owner = owner
        self._node = owner._node  # noqa: SLF001
        self.partition = partition
        self._reader = reader
        self._chain = chain
        self._aborted: list[AbortedTransaction] = []
        self._transactions = CleanedTransactionMetadata()
        self.cleaner = Cleaner(
            partition.log.config,
            now_ms=self._node.clock.now_ms(),
            start=max(cleaned_to, chain[0].base_offset),
            end=chain[-1].end_offset + 1,
            entries_max=max(1, memory_bytes // ENTRY_BYTES),
        )

    async def map(self) -> None:
        """Map the keys of the dirty segments, as far as memory reaches."""
        cleaner = self.cleaner
        for segment in self._chain:
            if not segment.txn_index_empty:
                self._aborted += await self._reader.read_transactions(segment)
        self._aborted += _list_local_aborted(self.partition.log, cleaner.end)
        transactions = CleanedTransactionMetadata()
        transactions.add(self._aborted)
        self._transactions.add(self._aborted)
        for segment in self._chain:
            if segment.end_offset < cleaner.start:
                continue
            async for data in self._iterate_chunks(segment):
                await self._take_steps(
                    cleaner.build_offset_map(_iterate_batches(data), transactions)
                )
                if cleaner.is_full:
                    return
        cleaner.mapped_to = cleaner.end - 1

    async def write(self, group: list[RemoteSegment], cleaned: Segment) -> bool:
        """Write the records of a group that stay. Return whether the result is another one."""
        writer = _CleanedWriter(self.cleaner, self._transactions, cleaned, merges=len(group) > 1)
        for segment in group:
            async for data in self._iterate_chunks(segment):
                await self._take_steps(writer.write(data))
        await self._node.disk.run(writer.close)
        return writer.is_changed

    async def _take_steps(self, steps: Iterator[Aside[Any] | None]) -> None:
        """Run each step in the disk's worker, so that syncs wait for one step at most, and what
        takes long in the one for large batches."""
        while (step := await self._node.disk.run(partial(next, steps, _END))) is not _END:
            if isinstance(step, Aside):
                await self._node.record_worker.submit(step.run_once)

    async def read_sections(self, segment: RemoteSegment) -> dict[Section, bytes]:
        """Return the sections of a segment that do not depend on its records."""
        footer = await self._reader.read_footer(segment)
        present = [kind for kind in _KEPT if kind in footer.sections]
        return {kind: await self._reader.read_section(segment, footer, kind) for kind in present}

    async def _iterate_chunks(self, segment: RemoteSegment) -> AsyncIterator[bytes]:
        footer = await self._reader.read_footer(segment)
        for number in range(len(footer.chunks)):
            await self._owner.wait()
            yield await self._reader.read_chunk(segment, footer, number)


class _CleanedWriter:
    """Filters chunks into a new segment."""

    def __init__(
        self,
        cleaner: Cleaner,
        transactions: CleanedTransactionMetadata,
        cleaned: Segment,
        *,
        merges: bool,
    ) -> None:
        """`merges` is whether the new segment takes the place of several."""
        self._cleaner = cleaner
        self._transactions = transactions
        self._cleaned = cleaned
        self._next_offset = cleaned.base_offset
        self._last: tuple[BatchHeader, bytes] | None = None
        self._count = 0
        self._merges = merges
        #: Whether the new segment has other batches than the old ones.
        self.is_changed = merges

    def write(self, data: bytes) -> Iterator[Aside[Any] | None]:
        """Raises `CorruptBatch`, `OSError`."""
        for _, header, batch in _iterate_batches(data):
            if header.base_offset < self._next_offset:
                # The segment before this one has it, too.
                self.is_changed = True
                continue
            self._next_offset, self._last = header.next_offset, (header, batch)
            self._count += 1
            filtered = yield from self._cleaner.filter_batch(
                header, batch, self._transactions, self._cleaned.txn_index
            )
            if filtered is None or filtered[0] != batch:
                self.is_changed = True
            if filtered is not None:
                self._append(filtered[0], header.last_offset, filtered[1])

    def close(self) -> None:
        """Complete the segment. A segment is never empty: its last batch stays without records."""
        if not self._cleaned.size:
            assert self._last is not None
            header, batch = self._last
            data, max_timestamp = drop_records(header)
            self._append(data, header.last_offset, max_timestamp)
            if self._count == 1 and data == batch:
                self.is_changed = self._merges
        self._cleaned.seal_times()
        self._cleaned.flush()

    def _append(self, data: bytes, last_offset: int, max_timestamp: int) -> None:
        interval = self._cleaner.config.index_interval_bytes
        self._cleaned.append([data], last_offset, max_timestamp, interval)


def _list_local_aborted(log: Log, end: int) -> list[AbortedTransaction]:
    """Return the aborted transactions with records below `end` and their markers on the disk."""
    start = log.bases[0]
    return [
        transaction
        for transaction in log.find_aborted_transactions(start, log.log_end_offset)
        if transaction.first_offset < end and transaction.last_offset >= start
    ]


def _iterate_batches(data: bytes) -> Iterator[tuple[int, BatchHeader, bytes]]:
    for at, header in iter_headers(data):
        yield at, header, data[at : at + header.size]
