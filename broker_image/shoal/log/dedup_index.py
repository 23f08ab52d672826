"""The ids of the records that a partition's leader has appended within the deduplication window.

The index maps the digest of an id to the offset of its record. The latest ids are in a table
(`dedup_table`). When it has as many as memory allows, it is frozen and written to a file
(`dedup_store`, `dedup_file`), and another table begins. So the table, the frozen one and the files
have the ids of ranges of the log, one after the other, and are searched from the latest to the
oldest.

Times are kept apart from the ids. A slot is a range of offsets with the time of its last append, so
an id expires when its offset is below the first slot that is young enough. Its entry is removed
later, when the sweep comes by, or with its file. The offsets of aborted transactions
are ranges: one for each batch, not for each id.

The index knows neither clock nor log. `deduplication` fills it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from shoal.log.dedup_table import IdTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.log.dedup_file import IdFile

#: Slots in a window. An id may stay known for this fraction longer.
_SLOTS = 1_000
#: Buckets that an added id sweeps: the table is swept once in half as many ids as it has buckets.
_SWEPT = 2
#: The default of shoal.deduplication.memory.bytes.
MEMORY_BYTES = 16 << 20
#: Bytes of an entry in memory, with all that is beside it.
_ENTRY_MEMORY = 16


#: Aborted batches that are kept together: to join them takes milliseconds. A transaction may have
#: a million batches, and those of others lie between them.
_JOINED_MAX = 20_000


class _BatchOffsets:
    """The offsets of some batches, ascending."""

    __slots__ = ("_firsts", "lasts")

    def __init__(self) -> None:
        self._firsts, self.lasts = array("q"), array("q")

    def append(self, first: int, last: int) -> None:
        """Add the batch behind the others."""
        self._firsts.append(first)
        self.lasts.append(last)

    def join(self, other: _BatchOffsets) -> None:
        """Add other batches, which may lie between these."""
        for own, more in ((self._firsts, other._firsts), (self.lasts, other.lasts)):
            at = bisect_right(own, more[0])
            own[at:] = array("q", sorted((*own[at:], *more)))

    def drop_below(self, offset: int) -> None:
        """Remove the batches that end below an offset."""
        count = bisect_left(self.lasts, offset)
        del self._firsts[:count], self.lasts[:count]

    def has(self, offset: int) -> bool:
        """Whether an offset is in one of the batches."""
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset <= self.lasts[at]

    def write(self, out: array[int]) -> None:
        """Add the number of batches and their offsets to the numbers of a state."""
        out.append(len(self.lasts))
        out += self._firsts
        out += self.lasts

    @classmethod
    def read(cls, state: array[int], at: int) -> tuple[_BatchOffsets, int]:
        """Return the batches at a place of a state, and the place behind them."""
        batches, count = cls(), state[at]
        batches._firsts = state[at + 1 : at + 1 + count]
        batches.lasts = state[at + 1 + count : at + 1 + 2 * count]
        return batches, at + 1 + 2 * count


class FrozenIds(NamedTuple):
    """A full table, and what the index knew when it became full.

    It has the ids of the log from `first` up to `end`. `state` is what `restore` takes.
    """

    table: IdTable
    first: int
    end: int
    state: bytes


class DedupIndex:
    """Owns the ids of one partition since `base_offset`, for a window of `window_ms`.

    `memory_bytes` limits the memory of its ids: three quarters of it are for the two tables.
    """

    def __init__(self, window_ms: int, base_offset: int, memory_bytes: int = MEMORY_BYTES) -> None:
        self.window_ms = window_ms
        self.base = base_offset
        self._table_max = max(1, memory_bytes * 3 // 8 // _ENTRY_MEMORY)
        self._table = IdTable(base_offset)
        #: The first offset of the table's range of the log.
        self._first = base_offset
        #: The table that is being written.
        self.frozen: FrozenIds | None = None
        #: The files, the oldest first.
        self.files: list[IdFile] = []
        #: Paths of files that are not needed any more, until their owner removes them.
        self.garbage: list[str] = []
        #: The bits of a file's filter, of which a file has 2 to the power of this at most. So the
        #: filters take a quarter of the memory, because each file is half as large as the next.
        self.filter_bits_max = max(3, memory_bytes.bit_length() - 1)
        #: [first offset, first time, last time, number of ids] of each slot, in milliseconds.
        self._slots: deque[list[int]] = deque()
        #: Offsets below it are expired.
        self.floor = base_offset
        self._count = 0
        #: The offsets of aborted batches.
        self._freed: list[_BatchOffsets] = []
        #: The offsets of the batches with ids of each open transaction, by producer id.
        self._open: dict[int, _BatchOffsets] = {}

    def __len__(self) -> int:
        """The number of ids that have not expired, with those of aborted records."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """The memory of the ids in bytes."""
        tables = [self._table] if self.frozen is None else [self._table, self.frozen.table]
        return sum(table.size_bytes for table in tables) + sum(f.memory_bytes for f in self.files)

    @property
    def file_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def is_full(self) -> bool:
        """Whether another id has to wait until the frozen table is written."""
        return self.frozen is not None and len(self._table) >= self._table_max

    def expire(self, now_ms: int) -> None:
        """Forget the ids that were appended `window_ms` ago."""
        slots, limit = self._slots, now_ms - self.window_ms
        if not slots or slots[0][2] > limit:
            return
        while slots and slots[0][2] <= limit:
            self._count -= slots.popleft()[3]
        self.floor = slots[0][0] if slots else self.floor
        if not slots:
            self._table = IdTable(self.base)
            self.frozen = None
            self.garbage += [file.path for file in self.files]
            self.files.clear()
            self._freed.clear()
            return
        while self.files and self.files[0].range.end <= self.floor:
            self.garbage.append(self.files.pop(0).path)
        for freed in self._freed:
            freed.drop_below(self.floor)
        self._freed = [freed for freed in self._freed if freed.lasts]

    def find(self, digest: bytes) -> int | None:
        """Return the offset of the record with that id, or None. Call `expire` before. Raises
        `CorruptIdFile` if a file cannot be read."""
        # The latest entry counts. If it does not, neither do those before it.
        relative = self._table.find(digest)
        if relative is None and (self.files or self.frozen is not None):
            relative = self._find_older(digest)
        if relative is None:
            return None
        offset = relative + self.base
        return offset if offset >= self.floor and not self._is_freed(offset) else None

    def _find_older(self, digest: bytes) -> int | None:
        """Return the relative offset of an id that is not in the table."""
        if self.frozen is not None:
            relative = self.frozen.table.find(digest)
            if relative is not None:
                return relative
        for file in reversed(self.files):
            relative = file.find(digest)
            if relative is not None:
                return relative
        return None

    def note_batch(
        self,
        ids: Iterable[tuple[int, bytes]],
        *,
        base_offset: int,
        last_offset: int,
        now_ms: int,
        transaction: int | None,
    ) -> None:
        """Note the (offset delta, digest) of appended records, whose ids are not known.

        `now_ms` is not before that of the last batch. `transaction` is the producer id of a
        transactional batch.
        """
        slots = self._slots
        if not slots or now_ms - slots[-1][1] > self.window_ms // _SLOTS:
            slots.append([base_offset, now_ms, now_ms, 0])
        slot = slots[-1]
        slot[2] = now_ms
        self.floor = max(self.floor, slots[0][0])
        count, base, add = 0, base_offset - self.base, self._table.add
        for delta, digest in ids:
            add(digest, base + delta)
            count += 1
        slot[3] += count
        self._count += count
        if len(self._table) > self._count:
            self._table.sweep(self.floor - self.base, _SWEPT * count)
        if transaction is not None and count:
            self._open.setdefault(transaction, _BatchOffsets()).append(base_offset, last_offset)
        if len(self._table) >= self._table_max and self.frozen is None:
            self._freeze(last_offset + 1)

    def _freeze(self, end: int) -> None:
        """Begin another table behind the records below `end`."""
        self.frozen = FrozenIds(self._table, self._first, end, self._write_state())
        self._table, self._first = IdTable(self.base), end

    def note_marker(self, producer_id: int, *, aborted: bool) -> None:
        """End the transaction of a producer. An abort frees its ids."""
        batches = self._open.pop(producer_id, None)
        if not aborted or batches is None:
            return
        if self._freed and len(self._freed[-1].lasts) + len(batches.lasts) <= _JOINED_MAX:
            self._freed[-1].join(batches)
        else:
            self._freed.append(batches)

    def _is_freed(self, offset: int) -> bool:
        return any(freed.has(offset) for freed in self._freed)

    # The state in files

    def _write_state(self) -> bytes:
        """Return all but the ids, as 64-bit integers: window, floor, slots, aborted batches, and
        those of open transactions."""
        out = array("q", [self.window_ms, self.floor, len(self._slots)])
        for slot in self._slots:
            out.extend(slot)
        out.append(len(self._freed))
        for freed in self._freed:
            freed.write(out)
        out.append(len(self._open))
        for producer_id, batches in self._open.items():
            out.append(producer_id)
            batches.write(out)
        return out.tobytes()

    def restore(self, files: list[IdFile]) -> None:
        """Continue behind files of an earlier index, the oldest first, of which the last one has
        the state. Nothing was noted yet."""
        state = array("q")
        state.frombytes(files[-1].state)
        self.files = files
        self.base = files[-1].range.base
        self._first = files[-1].range.end
        self._table = IdTable(self.base)
        self.floor, slots = state[1], state[2]
        at = 3 + 4 * slots
        self._slots = deque(list(state[n : n + 4]) for n in range(3, at, 4))
        self._count = sum(slot[3] for slot in self._slots)
        groups, at = state[at], at + 1
        for _ in range(groups):
            freed, at = _BatchOffsets.read(state, at)
            self._freed.append(freed)
        producers, at = state[at], at + 1
        for _ in range(producers):
            self._open[state[at]], at = _BatchOffsets.read(state, at + 1)

    @property
    def last_time_ms(self) -> int:
        """The time of the last append, 0 without one."""
        return self._slots[-1][2] if self._slots else 0


def read_window_and_floor(state: bytes) -> tuple[int, int]:
    """Return the window in milliseconds of a state, and its floor."""
    numbers = array("q")
    numbers.frombytes(state[:16])
    return numbers[0], numbers[1]
