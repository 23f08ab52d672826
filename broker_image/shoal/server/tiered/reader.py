"""Reads of remote segments, through the cache of chunks (`log.remote.RemoteLogReader`).

A read finds its segment, the segment's footer and the chunk with its offset. What is missing is
downloaded once for all readers, and the read is empty until then. The end of a download calls
`changed`, which wakes the requests that wait for the partition. After a failure, reads raise
`RemoteUnavailable` for `RETRY_MS`, and the next read downloads again.

A reader that has come to a chunk reads the next one soon, so that one is downloaded, too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.log.indexes import AbortedTransaction, parse_aborted_transactions
from shoal.log.remote import RemoteUnavailable
from shoal.log.slices import LogSlice
from shoal.record.batch import CorruptBatch
from shoal.server.tiered import segments
from shoal.server.tiered.chunk_cache import CachedChunk, ChunkCache, ChunkKey
from shoal.tiered import keys
from shoal.tiered.sealing import KeyUnavailable
from shoal.tiered.segment_object import DamagedObject, Footer, Section
from shoal.tiered.store import StoreError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from uuid import UUID

    from shoal.log.log import Log
    from shoal.log.remote import RebuiltState
    from shoal.log.search import TimestampOffset
    from shoal.record.batch import Buffer
    from shoal.server.metrics.tiered import RemoteTopicMeter
    from shoal.server.node import Node
    from shoal.server.tiered.key_ring import Sealing
    from shoal.server.tiered.quota import TransferQuota
    from shoal.tiered.remote_log import RemoteLog, RemoteSegment
    from shoal.tiered.store import ObjectStore

#: How long reads of a part that could not be downloaded fail before the next attempt.
RETRY_MS = 1_000
#: Footers in memory, each about 4 KB for 1 GB of log.
FOOTERS_MAX = 1_000
#: Chunks that are downloaded before a sequential reader asks for them. With one of 8 MB, and 30 ms
#: for a request, it would read 250 MB/s at most.
AHEAD = 2
#: Ends of reads that a sequential reader may continue at.
_ENDS_MAX = 64
#: The `transactions_end` of a segment whose transactions have all ended.
_ALL_KNOWN = 1 << 63
#: Errors of a download that are not bugs.
_EXPECTED = (StoreError, DamagedObject, CorruptBatch, KeyUnavailable, OSError)
#: Longest pause of a download before the quota is asked again.
PAUSE_MS_MAX = 1_000


class OpenSegment(NamedTuple):
    """A remote segment that was read: its footer, and its aborted transactions with those in later
    segments that overlap it."""

    footer: Footer
    aborted: tuple[AbortedTransaction, ...]
    #: The `transactions_end` of the remote log at that time. Segments that are copied later may
    #: have the markers of transactions in this one, unless all of them are known.
    transactions_end: int


class Downloads:
    """Owns what was downloaded, and the downloads under way, of all partitions."""

    def __init__(
        self,
        node: Node,
        store: ObjectStore,
        cache: ChunkCache,
        quota: TransferQuota,
        sealing: Sealing,
    ) -> None:
        self.node = node
        self.sealing = sealing
        self.quota = quota
        self.store = store
        self.cache = cache
        self.segments: dict[UUID, OpenSegment] = {}
        self._running: dict[ChunkKey | UUID, asyncio.Task[None]] = {}
        self._waiting: dict[ChunkKey | UUID, dict[Callable[[], None], None]] = {}
        #: Parts whose download waits for the quota.
        self._paused: dict[ChunkKey | UUID, asyncio.TimerHandle] = {}
        #: Parts whose last download failed, with the error and the end of the pause.
        self._failed: dict[ChunkKey | UUID, tuple[BaseException, int]] = {}

    def get_segment(self, segment_id: UUID) -> OpenSegment | None:
        segment = self.segments.pop(segment_id, None)
        if segment is not None:
            self.segments[segment_id] = segment
        return segment

    def keep(self, segment_id: UUID, segment: OpenSegment) -> None:
        self.segments[segment_id] = segment
        if len(self.segments) > FOOTERS_MAX:
            del self.segments[next(iter(self.segments))]

    def start(
        self,
        part: ChunkKey | UUID,
        download: Callable[[], Coroutine[Any, Any, None]],
        changed: Callable[[], None],
    ) -> None:
        """Start a download unless it runs. Call `changed` at its end. Raises `RemoteUnavailable`
        if it failed a short time ago."""
        failed = self._failed.get(part)
        if failed is not None:
            error, until_ms = failed
            if self.node.clock.now_ms() < until_ms:
                raise RemoteUnavailable(str(error))
            del self._failed[part]
        self._waiting.setdefault(part, {})[changed] = None
        if part in self._running or part in self._paused:
            return
        # Footers are small, and do not count, as Kafka's indexes.
        wait_ms = self.quota.compute_throttle_ms() if isinstance(part, ChunkKey) else 0
        if wait_ms:
            # The limit may change meanwhile.
            pause_s = min(wait_ms, PAUSE_MS_MAX) / 1000
            self._paused[part] = self.node.loop.call_later(pause_s, self._resume, part)
        else:
            task = self.node.loop.create_task(download())
            self._running[part] = task
            task.add_done_callback(partial(self._on_ended, part))

    @property
    def is_paused(self) -> bool:
        """Whether a download waits for the quota."""
        return bool(self._paused)

    def _resume(self, part: ChunkKey | UUID) -> None:
        """Wake the readers of a part after a pause of the quota. They start its download."""
        del self._paused[part]
        for call in self._waiting.pop(part, {}):
            call()

    async def await_part(
        self, part: ChunkKey | UUID, download: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Download a part, and wait for the end. Raises `RemoteUnavailable` if it failed a short
        time ago."""
        future: asyncio.Future[None] = self.node.loop.create_future()
        self.start(part, download, lambda: None if future.done() else future.set_result(None))
        await future

    def _on_ended(self, part: ChunkKey | UUID, task: asyncio.Task[None]) -> None:
        del self._running[part]
        waiting = self._waiting.pop(part, {})
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failed[part] = (error, self.node.clock.now_ms() + RETRY_MS)
            expected = isinstance(error, _EXPECTED)
            self.node.log.warning(
                "a remote segment was not read",
                part=str(part),
                error=str(error),
                exc_info=None if expected else error,
            )
        for call in waiting:
            call()

    def stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        for pause in self._paused.values():
            pause.cancel()


class PartitionReader:
    """The remote segments of one partition, for its log."""

    def __init__(
        self,
        downloads: Downloads,
        log: Log,
        remote: RemoteLog,
        prefix: str,
        *,
        is_loaded: Callable[[], bool],
        changed: Callable[[], None],
        meter: RemoteTopicMeter,
    ) -> None:
        """`prefix` is that of the partition's objects. `is_loaded` returns whether `remote` has all
        segments that existed when the partition was opened."""
        self._downloads = downloads
        self._log = log
        self._remote = remote
        self._prefix = prefix
        self._is_loaded = is_loaded
        self._changed = changed
        self._meter = meter
        #: Where the last reads have ended, oldest first.
        self._ends: dict[int, None] = {}

    @property
    def copied_end_offset(self) -> int:
        log = self._log
        start = log.local_start_offset
        offset = start
        while (segment := self._remote.find(offset, log.epochs.find_epoch(offset))) is not None:
            offset = segment.end_offset + 1
        return offset

    @property
    def end_offset(self) -> int:
        return self._remote.end_offset

    async def find_since(self, timestamp_ms: int, limit: int) -> TimestampOffset | None:
        """Return the first record below the local log and `limit` whose timestamp is at least
        `timestamp_ms`. Raises `RemoteUnavailable`."""
        log, worker = self._log, self._downloads.node.record_worker
        for segment in list(self._remote):
            start = log.log_start_offset
            if segment.base_offset >= min(log.bases[0], limit):
                break
            if segment.max_timestamp < timestamp_ms or segment.end_offset < start:
                continue
            while (opened := self._open(segment)) is None:
                await self._downloads.await_part(
                    segment.segment_id, partial(self.download_footer, segment)
                )
            for number, chunk in enumerate(opened.footer.chunks):
                if chunk.max_timestamp < timestamp_ms:
                    continue
                key = ChunkKey(segment.segment_id, number)
                while (cached := self._downloads.cache.get(key)) is None:
                    await self._downloads.await_part(
                        key, partial(self.download_chunk, segment, opened.footer, number)
                    )
                position = await worker.submit(partial(cached.find_since, timestamp_ms, start))
                if position is not None:
                    return position if position.offset < limit else None
        return None

    def read(self, offset: int, max_bytes: int, bound: int, min_one: bool) -> LogSlice:
        if offset >= bound:
            return LogSlice(b"", offset)
        segment = self.find_segment(offset)
        opened = None if segment is None else self._open(segment)
        if segment is None or opened is None:
            return LogSlice(b"", offset)
        number = opened.footer.find_chunk(offset)
        chunk = self._get_chunk(segment, opened.footer, number, offset)
        if chunk is None:
            return LogSlice(b"", offset)
        result = chunk.read(offset, max_bytes, bound, min_one)
        self._note_read_end(offset, offset if result is None else result.next_offset)
        if result is None:
            # The offset lies in a gap behind the last batch: continue behind it.
            next_offset = segment.end_offset + 1
            if number + 1 < len(opened.footer.chunks):
                next_offset = opened.footer.chunks[number + 1].base_offset
            if next_offset < self._log.bases[0]:
                return self.read(next_offset, max_bytes, bound, min_one)
            return self._log.read_slice(next_offset, max_bytes, max_offset=bound, min_one=min_one)
        return result

    def find_segment(self, offset: int) -> RemoteSegment | None:
        """Return the segment with an offset, None if the metadata is not read yet. Raises
        `RemoteUnavailable` if no segment has it."""
        segment = self._remote.find(offset, self._log.epochs.find_epoch(offset))
        if segment is None and self._is_loaded():
            raise RemoteUnavailable(f"no remote segment has offset {offset} of {self._prefix}")
        return segment

    def find_aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        segment = self._remote.find(start, self._log.epochs.find_epoch(start))
        opened = None if segment is None else self._downloads.get_segment(segment.segment_id)
        if opened is None:
            return []
        return [a for a in opened.aborted if a.last_offset >= start and a.first_offset < end]

    def _open(self, segment: RemoteSegment) -> OpenSegment | None:
        """Return the opened segment, or start to download its footer."""
        opened = self._downloads.get_segment(segment.segment_id)
        if opened is not None and opened.transactions_end >= self._remote.transactions_end:
            return opened
        self._downloads.start(
            segment.segment_id, lambda: self.download_footer(segment), self._changed
        )
        return None

    def _note_read_end(self, offset: int, next_offset: int) -> None:
        """Note where a read from an offset has ended."""
        if next_offset > offset:
            self._ends.pop(offset, None)
            self._ends[next_offset] = None
            if len(self._ends) > _ENDS_MAX:
                del self._ends[next(iter(self._ends))]

    def _get_chunk(
        self, segment: RemoteSegment, footer: Footer, number: int, offset: int
    ) -> CachedChunk | None:
        """Return the cached chunk with an offset, or start its download. Start those of the next
        ones, too."""
        key = ChunkKey(segment.segment_id, number)
        chunk = self._downloads.cache.get(key)
        if chunk is None:
            self._start(segment, footer, key)
        try:
            self._start_ahead(segment, footer, number, is_sequential=offset in self._ends)
        except RemoteUnavailable:
            pass  # The reader that needs it gets the error.
        return chunk

    def _start_ahead(
        self, segment: RemoteSegment, footer: Footer, number: int, *, is_sequential: bool
    ) -> None:
        """Start the downloads of the chunks behind one. Raises `RemoteUnavailable`."""
        for _ in range(AHEAD if is_sequential else 1):
            number += 1
            if number == len(footer.chunks):
                following = self._find_next(segment) if is_sequential else None
                opened = None if following is None else self._open(following)
                if following is None or opened is None:
                    return
                segment, footer, number = following, opened.footer, 0
            key = ChunkKey(segment.segment_id, number)
            if not self._downloads.cache.has(key):
                self._start(segment, footer, key)

    def _find_next(self, segment: RemoteSegment) -> RemoteSegment | None:
        """Return the next segment, unless the disk has it."""
        offset = segment.end_offset + 1
        if offset >= self._log.bases[0]:
            return None
        return self._remote.find(offset, self._log.epochs.find_epoch(offset))

    def _start(self, segment: RemoteSegment, footer: Footer, key: ChunkKey) -> None:
        self._downloads.start(
            key, lambda: self.download_chunk(segment, footer, key.number), self._changed
        )

    async def download_footer(self, segment: RemoteSegment) -> None:
        """Download the footer, and the aborted transactions."""
        seen_to = self._remote.transactions_end
        footer = await self.read_footer(segment)
        aborted: list[AbortedTransaction] = []
        for candidate in self._remote:
            if candidate.end_offset < segment.base_offset or candidate.txn_index_empty:
                continue
            segment_footer = (
                footer
                if candidate.segment_id == segment.segment_id
                else await self.read_footer(candidate)
            )
            entries = await self.read_transactions(candidate, segment_footer)
            aborted += [a for a in entries if a.first_offset <= segment.end_offset]
            if any(a.last_stable_offset > segment.end_offset for a in entries):
                seen_to = _ALL_KNOWN
                break
        self._downloads.keep(segment.segment_id, OpenSegment(footer, tuple(aborted), seen_to))

    async def read_footer(self, segment: RemoteSegment) -> Footer:
        downloads = self._downloads
        return await segments.download_footer(
            downloads.store, self._prefix, segment, accepts_clear=downloads.sealing.accepts_clear
        )

    async def read_transactions(
        self, segment: RemoteSegment, footer: Footer | None = None
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers are in a segment."""
        segment_footer = await self.read_footer(segment) if footer is None else footer
        if Section.TRANSACTION_INDEX not in segment_footer.sections:
            return []
        return parse_aborted_transactions(
            await self.read_section(segment, segment_footer, Section.TRANSACTION_INDEX)
        )

    async def read_section(self, segment: RemoteSegment, footer: Footer, kind: Section) -> bytes:
        """Return a file that is behind the log of a segment."""
        downloads = self._downloads
        key = keys.format_segment_key(self._prefix, segment.base_offset, segment.segment_id)
        (data,) = await downloads.store.get_ranges(key, [footer.get_section_range(kind)])

        def open_section() -> bytes:
            return bytes(
                footer.open_section(kind, data, footer.open_cipher(downloads.sealing.keys))
            )

        return await downloads.node.disk.run(open_section)

    async def fetch_state_behind(self, segment: RemoteSegment) -> RebuiltState:
        """Return what a segment knows of all records up to its end. Raises `DamagedObject`,
        `KeyUnavailable`, `StoreError`."""
        downloads, sealing = self._downloads, self._downloads.sealing
        return await segments.fetch_state_behind(
            downloads.store,
            self._prefix,
            segment,
            sealing.keys,
            accepts_clear=sealing.accepts_clear,
        )

    async def download_chunk(self, segment: RemoteSegment, footer: Footer, number: int) -> None:
        """Download a chunk into the cache."""
        cache = self._downloads.cache
        chunk_key = ChunkKey(segment.segment_id, number)
        data = await self._get(segment, footer, number)
        opened = partial(self._open_chunk, footer, number, data)
        chunk = await self._downloads.node.disk.run(lambda: cache.write(chunk_key, opened()))
        cache.add(chunk_key, chunk)

    async def read_chunk(self, segment: RemoteSegment, footer: Footer, number: int) -> bytes:
        """Return a chunk that is read once, and therefore not cached."""
        data = await self._get(segment, footer, number)
        opened = partial(self._open_chunk, footer, number, data)
        return await self._downloads.node.disk.run(lambda: bytes(opened()))

    def _open_chunk(self, footer: Footer, number: int, data: Buffer) -> Buffer:
        return footer.open_chunk(number, data, footer.open_cipher(self._downloads.sealing.keys))

    async def _get(self, segment: RemoteSegment, footer: Footer, number: int) -> Buffer:
        """Return the bytes of a chunk in the object."""
        key = keys.format_segment_key(self._prefix, segment.base_offset, segment.segment_id)
        chunk_range = footer.get_chunk_range(number)
        self._meter.fetches += 1
        self._downloads.quota.record(chunk_range.end - chunk_range.start)
        try:
            (data,) = await self._downloads.store.get_ranges(key, [chunk_range])
        except StoreError:
            self._meter.fetch_errors += 1
            raise
        self._meter.fetched_bytes += len(data)
        return data
