"""Scans the records of a share partition for `selection`: once, in log order, in bounded steps.

A scan resumes where the last one stopped, also within a batch. Offsets that the log has lost, or
never delivers, are skipped: the window archives them, and those in HOLDS_KEY are freed. If only
keys are needed, of new batches without holes, one call reads the keys of a whole read.

A step is bounded in records and in bytes, since a few bytes of a compressed batch may expand to
many megabytes. A batch that takes more than a whole step is read in a thread (`LargeRead`), as many
records at a time as a step takes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Protocol

from shoal.coordinator.share import compiled
from shoal.coordinator.share.delivery_failure import FailureCause
from shoal.coordinator.share.record_facts import (
    BatchFacts,
    Fact,
    HeaderReader,
    LargeBatchError,
    compute_key_hashes,
    open_dense_batch,
)
from shoal.coordinator.share.states import AVAILABLE, is_terminal
from shoal.record.batch import CorruptBatch

if TYPE_CHECKING:
    from shoal.coordinator.share.batches import Batches
    from shoal.coordinator.share.settings import ShareSettings
    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.coordinator.share.states import StateBatch
    from shoal.record.batch import Buffer


#: The work of one step in bytes, after decompression: some milliseconds.
STEP_BYTES_MAX = 4 << 20
#: Records of a `LargeRead`.
LARGE_READ_RECORDS = 2000
#: A corrupt batch of more offsets gets no dead letters, since a header may claim two billion.
#: librdkafka's default of batch.num.messages.
DEAD_LETTERS_OF_BATCH_MAX = 10_000


class RecordSink(Protocol):
    """Takes the scanned records."""

    def take_in(self, fact: Fact, now_ms: int) -> None:
        """Take one record."""

    def take_in_new(self, first: int, keys: array[int]) -> None:
        """Take new records from `first` on, of which only the keys matter."""

    def take_in_tenants(self, batches: Batches, first: int, budget: int) -> int:
        """Take new records from `first` on, of which only the tenants matter, of the first whole
        batches within the budget. Return the number of batches."""

    def take_in_body(
        self, body: Buffer, begin: int, end: int, base: int, count: int, first: int
    ) -> bool:
        """Take the records of a batch as `take_in_tenants` does. Return whether that is
        possible."""


class LargeRead:
    """Reads further records of a batch that takes longer than a step. `run` runs in a thread; until
    it has ended, nobody else uses the batch."""

    __slots__ = ("_batch", "_headers", "_outcome", "is_started")

    def __init__(self, batch: BatchFacts, headers: HeaderReader | None) -> None:
        self._batch = batch
        self._headers = None if headers is None else headers.copy()
        self._outcome: list[Fact] | CorruptBatch | None = None
        self.is_started = False

    @property
    def is_done(self) -> bool:
        """Whether `run` has ended."""
        return self._outcome is not None

    def run(self) -> None:
        """Read the records."""
        try:
            self._outcome = self._batch.take(LARGE_READ_RECORDS, self._headers)
        except CorruptBatch as error:
            self._outcome = error

    def take_facts(self, headers: HeaderReader | None) -> list[Fact]:
        """Return the facts, and add the counts of headers to `headers`. Raises `CorruptBatch`."""
        assert self._outcome is not None
        if headers is not None and self._headers is not None:
            headers.add_counts(self._headers)
        if isinstance(self._outcome, CorruptBatch):
            raise self._outcome
        return self._outcome


class RecordScanner:
    """The progress of scanning one share partition. `keys` selects whether to read keys, `tenants`
    whether they name tenants; `headers` reads headers if they are needed."""

    __slots__ = (
        "_bytes_left",
        "_is_fresh",
        "_keys",
        "_open",
        "_open_last",
        "_share",
        "_tenants",
        "cursor",
        "headers",
        "is_fair_alone",
        "large_read",
    )

    def __init__(
        self,
        share: SharePartition,
        *,
        keys: bool,
        headers: HeaderReader | None,
        tenants: bool = False,
    ) -> None:
        self._share = share
        self._keys = keys
        self._tenants = tenants
        self.headers = headers
        #: Whether the sink takes the tenants of whole batches.
        self.is_fair_alone = False
        #: All offsets below have been scanned.
        self.cursor = share.start_offset
        #: The rest of a partly scanned batch, and its last offset.
        self._open: BatchFacts | None = None
        self._open_last = -1
        #: The read of the open batch, if that takes longer than a step.
        self.large_read: LargeRead | None = None
        self.begin_step()

    def begin_step(self) -> None:
        """Begin a step, in another turn of the event loop."""
        self._bytes_left = STEP_BYTES_MAX
        #: Whether the step has not read a record yet. Its first batch may use up all of it.
        self._is_fresh = True

    @property
    def must_pause(self) -> bool:
        """Whether this step must end: it has done its work, or waits for a `LargeRead`."""
        waits = self.large_read is not None and not self.large_read.is_done
        return waits or (self._bytes_left <= 0 and not self._is_fresh)

    def _get_room(self) -> int:
        """Return the bytes that the next batch may expand to in this step."""
        return STEP_BYTES_MAX if self._is_fresh else max(self._bytes_left, 0)

    def _spend(self, size: int) -> None:
        self._bytes_left -= size
        self._is_fresh = False

    @property
    def is_open(self) -> bool:
        """Whether a batch is partly scanned: `resume` continues it without a read."""
        return self._open is not None

    def find_next_offset(self) -> int:
        """Return the offset to read from: at the cursor, or behind complete records."""
        share, runs = self._share, self._share.runs
        self.cursor = max(self.cursor, share.start_offset)
        if self._open is None and self.cursor < runs.end:
            run = runs.find_run(self.cursor)
            while run < len(runs) and is_terminal(runs.states[run]):
                run += 1
            if run == len(runs):
                self.cursor = runs.end
            else:
                self.cursor = max(self.cursor, runs.firsts[run])
        return self.cursor

    def skip_below(self, start: int) -> None:
        """Skip offsets below `start`, which the log has lost."""
        if self._open is not None and self._open_last < start:
            self._open = self.large_read = None
        self.cursor = max(self.cursor, start)

    def scan(
        self,
        batches: Batches,
        sink: RecordSink,
        now_ms: int,
        budget: int,
        settings: ShareSettings,
        changes: list[StateBatch],
    ) -> int:
        """Scan about `budget` records of a read from `find_next_offset` on. Return their number,
        and add the skipped offsets to `changes`."""
        share = self._share
        self._bytes_left -= len(batches.data)
        batch_count, scanned = self._scan_new(batches, sink, budget)
        skipped = iter(batches.skipped)
        gap = next(skipped, None)
        for index in range(batch_count, len(batches) if scanned < budget else batch_count):
            base, last = batches.bases[index], batches.lasts[index]
            while gap is not None and gap[0] <= max(base, self.cursor):
                # A hole before this batch, or control batches, perhaps this one.
                self._skip(max(gap[0], self.cursor), gap[1], changes)
                self.cursor = max(self.cursor, gap[1] + 1)
                gap = next(skipped, None)
            if last < self.cursor:
                continue
            if self.must_pause:
                break
            if last >= share.end_offset:
                share.extend(last)
            begin = batches.ends[index - 1] if index else 0
            self._open = BatchFacts(batches.data, begin, keys=self._keys, tenants=self._tenants)
            self._open_last = last
            scanned += self.resume(sink, now_ms, budget - scanned, settings, changes)
            if scanned >= budget or self._open is not None:
                break
        return scanned

    def _scan_new(self, batches: Batches, sink: RecordSink, budget: int) -> tuple[int, int]:
        """Scan the first batches if only keys or only tenants are needed, and the window has them
        as new and without holes. Return the numbers of batches and records."""
        share, runs, cursor = self._share, self._share.runs, self.cursor
        if batches.skipped:
            return 0, 0
        if cursor < runs.end and (cursor < runs.firsts[-1] or runs.states[-1] != AVAILABLE):
            return 0, 0
        if self.is_fair_alone:
            batch_count = self._scan_tenants(batches, sink, budget)
            keys = None
        elif self._keys and not self._tenants and self.headers is None:
            batch_count, keys = self._read_keys(batches, budget)
        else:
            return 0, 0
        if not batch_count:
            return 0, 0
        self._is_fresh = False
        last = batches.lasts[batch_count - 1]
        if last >= share.end_offset:
            share.extend(last)
        if keys is not None:
            sink.take_in_new(cursor, keys)
        self.cursor = last + 1
        return batch_count, self.cursor - cursor

    def _scan_tenants(self, batches: Batches, sink: RecordSink, budget: int) -> int:
        """Give the tenants of the first batches that end within the budget to the sink. Return the
        number of these batches."""
        bases, lasts, ends, cursor = batches.bases, batches.lasts, batches.ends, self.cursor
        batch_count = sink.take_in_tenants(batches, cursor, budget)
        data = b""
        while batch_count < len(batches) and lasts[batch_count] - cursor < budget:
            data = data or bytes(batches.data)
            begin = ends[batch_count - 1] if batch_count else 0
            opened, expanded = open_dense_batch(data, begin, ends[batch_count], self._get_room())
            if expanded:
                self._spend(expanded)
            if opened is None:
                break
            body, start, end, count = opened
            if not sink.take_in_body(body, start, end, bases[batch_count], count, cursor):
                break
            batch_count += 1
        return batch_count

    def _read_keys(self, batches: Batches, budget: int) -> tuple[int, array[int]]:
        """Return the number of first batches that end within the budget, and their key hashes from
        the cursor on."""
        bases, lasts, ends, cursor = batches.bases, batches.lasts, batches.ends, self.cursor
        batch_count, keys = 0, array("q")
        if compiled.native is not None:
            batch_count, key_bytes = compiled.native.keys(
                batches.data, bases, lasts, ends, cursor, budget
            )
            keys.frombytes(key_bytes)
        data = b""
        while batch_count < len(batches) and lasts[batch_count] - cursor < budget:
            data = data or bytes(batches.data)
            begin = ends[batch_count - 1] if batch_count else 0
            hashes, expanded = compute_key_hashes(data, begin, ends[batch_count], self._get_room())
            if expanded:
                self._spend(expanded)
            if hashes is None:
                break
            keys.extend(hashes[max(cursor - bases[batch_count], 0) :])
            batch_count += 1
        return batch_count, keys

    def resume(
        self,
        sink: RecordSink,
        now_ms: int,
        budget: int,
        settings: ShareSettings,
        changes: list[StateBatch],
    ) -> int:
        """Continue the open batch. Return the number of scanned records."""
        batch, cause = self._open, None
        assert batch is not None
        if self.must_pause:
            return 0
        facts: list[Fact] = []
        try:
            facts = self._take(batch, now_ms, budget)
        except LargeBatchError:
            if self._is_fresh:
                self.large_read = LargeRead(batch, self.headers)
            self._bytes_left, self._is_fresh = 0, False
            return 0
        except CorruptBatch:
            if settings.dead_letters and self._open_last - self.cursor < DEAD_LETTERS_OF_BATCH_MAX:
                cause = FailureCause.CORRUPT
        self._put(facts, sink, now_ms, changes)
        if facts and not batch.is_read:
            return len(facts)
        self._open = None
        if self.cursor <= self._open_last:
            self._skip(self.cursor, self._open_last, changes, cause)
            self.cursor = self._open_last + 1
        return max(len(facts), 1)

    def _put(
        self, facts: list[Fact], sink: RecordSink, now_ms: int, changes: list[StateBatch]
    ) -> None:
        for fact in facts:
            offset = fact[0]
            if self.cursor <= offset <= self._open_last:
                if offset > self.cursor:  # Compaction took what was between.
                    self._skip(self.cursor, offset - 1, changes)
                self.cursor = offset + 1
                sink.take_in(fact, now_ms)

    def _take(self, batch: BatchFacts, now_ms: int, count: int) -> list[Fact]:
        """Return further facts of a batch. Raises `CorruptBatch` and `LargeBatchError`."""
        if self.headers is not None:
            self.headers.now_ms = now_ms
        read, self.large_read = self.large_read, None
        if read is not None:
            self._spend(STEP_BYTES_MAX)
            return read.take_facts(self.headers)
        before = batch.cost_bytes
        facts = batch.take(count, self.headers, self._get_room())
        self._spend(batch.cost_bytes - before)
        return facts

    def _skip(
        self, first: int, last: int, changes: list[StateBatch], cause: FailureCause | None = None
    ) -> None:
        self._share.archive(first, last, changes, cause)
        changes += self._share.free(first, last)
