"""The sparse indexes of a segment, in Kafka's format.

* `.index`: (offset - base u32, position u32), about one entry per index.interval.bytes of log. The
  offset is the last one of the batch that starts at the position.
* `.timeindex`: (timestamp i64, offset - base u32): no record up to the offset has a larger
  timestamp.
* `.txnindex`: (version i16, producer id i64, first offset i64, last offset i64, last stable offset
  i64), one entry per aborted transaction, in the order of their markers.

A file is loaded into memory at its first use, and new entries are written at `flush`. It is open
only while it is read, and from a write to the sync of it, so that a segment needs one descriptor:
that of its records. Recovery rebuilds the entries above the recovery point, so a crash loses none.
Zeros at the end of a file, which Kafka leaves in an active segment, are ignored.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.log.storage import File, Storage

_TIME_ENTRY = struct.Struct(">qI")
_ABORTED = struct.Struct(">hqqqq")
OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = _TIME_ENTRY.size
#: Largest relative offset: index entries have 32 bits, which Kafka reads as signed.
RELATIVE_OFFSET_MAX = 2**31 - 1


class _Index:
    """A file of fixed-size entries, loaded at its first use."""

    __slots__ = ("_loaded", "_missing", "_storage", "_unsynced", "_written", "base_offset", "path")

    def __init__(self, storage: Storage, path: str, base_offset: int, *, fresh: bool) -> None:
        self._storage = storage
        self._loaded = fresh
        #: The file must still be created, even if it stays empty.
        self._missing = fresh
        #: The file, if it was written to since the last sync.
        self._unsynced: File | None = None
        self._written = 0
        self.path = path
        self.base_offset = base_offset

    def _open(self) -> File:
        file = self._unsynced or self._storage.open(self.path, create=True)
        self._missing = False
        return file

    def _read(self) -> bytes:
        try:
            return self._storage.read_file(self.path)
        except FileNotFoundError:
            return b""

    def _trim(self, data: bytes, size: int) -> None:
        """Truncate the file, which has `data`, after its entries: Kafka preallocates an active
        segment's index."""
        if len(data) > size:
            self._open().truncate(size)

    def _cut(self, size: int) -> None:
        file = self._open()
        file.truncate(size)
        self._unsynced = file

    def _write(self, position: int, data: bytes) -> None:
        file = self._open()
        file.write(position, [data])
        # After a power loss, recovery rebuilds an empty file from the batches.
        if data:
            self._unsynced = file

    def take_unsynced(self) -> File | None:
        """Return the file if it must be synced, and leave that to the caller."""
        file, self._unsynced = self._unsynced, None
        return file


class OffsetIndex(_Index):
    """Maps offsets to positions in a segment."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self, storage: Storage, path: str, base_offset: int, *, fresh: bool) -> None:
        super().__init__(storage, path, base_offset, fresh=fresh)
        self._offsets = array("I")
        self._positions = array("I")

    def _load(self) -> None:
        data = self._read()
        words = array("I")
        words.frombytes(data[: len(data) // OFFSET_ENTRY_SIZE * OFFSET_ENTRY_SIZE])
        words.byteswap()
        offsets, positions = words[::2], words[1::2]
        count = len(offsets)
        while count and not positions[count - 1]:
            count -= 1
        self._offsets, self._positions = offsets[:count], positions[:count]
        self._written = count
        self._loaded = True
        self._trim(data, count * OFFSET_ENTRY_SIZE)

    def __len__(self) -> int:
        if not self._loaded:
            self._load()
        return len(self._offsets)

    def append(self, offset: int, position: int) -> None:
        """Add a batch that starts at `position` and ends with `offset`. Both must ascend."""
        if not self._loaded:
            self._load()
        self._offsets.append(offset - self.base_offset)
        self._positions.append(position)

    def find_position(self, offset: int) -> int:
        """Return a position at or before the batch with `offset`; 0 if the index has none."""
        if not self._loaded:
            self._load()
        index = bisect_right(self._offsets, max(0, offset - self.base_offset)) - 1
        return self._positions[index] if index >= 0 else 0

    def find_batch_before(self, position: int) -> int:
        """Return the start of a batch that ends at or before `position` and close to it; 0 if the
        index has none."""
        if not self._loaded:
            self._load()
        index = bisect_right(self._positions, position) - 2
        return self._positions[index] if index >= 0 else 0

    def get_last_position(self) -> int:
        if not self._loaded:
            self._load()
        return self._positions[-1] if self._positions else 0

    def is_sound(self, size: int) -> bool:
        """Whether the entries ascend and lie within a segment of `size` bytes."""
        if not self._loaded:
            self._load()
        if not self._positions:
            return True
        pairs = zip(self._positions, self._positions[1:], strict=False)
        return self._positions[-1] < size and all(a < b for a, b in pairs)

    def truncate(self, offset: int) -> None:
        """Remove the entries of batches that end at or above `offset`."""
        if not self._loaded:
            self._load()
        count = bisect_left(self._offsets, max(0, offset - self.base_offset))
        del self._offsets[count:], self._positions[count:]
        if self._written > count:
            self._written = count
            self._cut(count * OFFSET_ENTRY_SIZE)

    def flush(self) -> None:
        """Write the new entries to the file."""
        if not self._loaded or self._written == len(self._offsets):
            if self._missing:
                self._write(0, b"")
            return
        words = array("I", bytes(OFFSET_ENTRY_SIZE * (len(self._offsets) - self._written)))
        words[::2] = self._offsets[self._written :]
        words[1::2] = self._positions[self._written :]
        words.byteswap()
        self._write(self._written * OFFSET_ENTRY_SIZE, words.tobytes())
        self._written = len(self._offsets)

    def unload(self) -> None:
        """Free the memory. The next use loads the entries again."""
        if self._loaded and self._written == len(self._offsets):
            self._offsets, self._positions = array("I"), array("I")
            self._loaded = False


class TimeIndex(_Index):
    """Maps timestamps to the first offset that reaches them."""

    __slots__ = ("_offsets", "_timestamps")

    def __init__(self, storage: Storage, path: str, base_offset: int, *, fresh: bool) -> None:
        super().__init__(storage, path, base_offset, fresh=fresh)
        self._timestamps = array("q")
        self._offsets = array("I")

    def _load(self) -> None:
        data = self._read()
        entry_bytes = data[: len(data) // TIME_ENTRY_SIZE * TIME_ENTRY_SIZE]
        timestamps, offsets = array("q"), array("I")
        for timestamp, offset in _TIME_ENTRY.iter_unpack(entry_bytes):
            if timestamps and timestamp <= timestamps[-1]:
                break
            timestamps.append(timestamp)
            offsets.append(offset)
        if len(timestamps) == 1 and not timestamps[0] and not offsets[0]:
            timestamps, offsets = array("q"), array("I")
        self._timestamps, self._offsets = timestamps, offsets
        self._written = len(timestamps)
        self._loaded = True
        self._trim(data, self._written * TIME_ENTRY_SIZE)

    def __len__(self) -> int:
        if not self._loaded:
            self._load()
        return len(self._timestamps)

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if its timestamp is greater than the last one."""
        if not self._loaded:
            self._load()
        if timestamp >= 0 and (not self._timestamps or timestamp > self._timestamps[-1]):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self.base_offset)

    def get_last_entry(self) -> tuple[int, int]:
        """Return (timestamp, offset) of the last entry, (-1, base offset) without one."""
        if not self._loaded:
            self._load()
        if not self._timestamps:
            return -1, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def find_offset(self, timestamp: int) -> int:
        """Return an offset at or before the first record that has reached `timestamp`."""
        if not self._loaded:
            self._load()
        index = bisect_left(self._timestamps, timestamp) - 1
        return self.base_offset + (self._offsets[index] if index >= 0 else 0)

    def truncate(self, offset: int) -> None:
        """Remove the entries at or above `offset`."""
        if not self._loaded:
            self._load()
        count = bisect_left(self._offsets, max(0, offset - self.base_offset))
        del self._offsets[count:], self._timestamps[count:]
        if self._written > count:
            self._written = count
            self._cut(count * TIME_ENTRY_SIZE)

    def flush(self) -> None:
        """Write the new entries to the file."""
        if not self._loaded or self._written == len(self._offsets):
            if self._missing:
                self._write(0, b"")
            return
        new = zip(self._timestamps[self._written :], self._offsets[self._written :], strict=True)
        self._write(self._written * TIME_ENTRY_SIZE, b"".join(_TIME_ENTRY.pack(*e) for e in new))
        self._written = len(self._offsets)

    def unload(self) -> None:
        """Free the memory. The next use loads the entries again."""
        if self._loaded and self._written == len(self._offsets):
            self._timestamps, self._offsets = array("q"), array("I")
            self._loaded = False


class AbortedTransaction(NamedTuple):
    """A transaction that ended with an abort marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_aborted_transactions(data: bytes) -> list[AbortedTransaction]:
    """Return the entries in the bytes of a transaction index, without a partial last one."""
    entry_bytes = data[: len(data) // _ABORTED.size * _ABORTED.size]
    return [AbortedTransaction(*fields) for _, *fields in _ABORTED.iter_unpack(entry_bytes)]


class TransactionIndex(_Index):
    """The aborted transactions whose markers are in a segment. The first one creates the
    file."""

    __slots__ = ("_entries",)

    def __init__(self, storage: Storage, path: str, base_offset: int, *, fresh: bool) -> None:
        super().__init__(storage, path, base_offset, fresh=fresh)
        self._entries: list[AbortedTransaction] = []

    def get_entries(self) -> list[AbortedTransaction]:
        """Return all of them, ordered by the offset of their marker."""
        if not self._loaded:
            data = self._read()
            self._entries = parse_aborted_transactions(data)
            self._written = len(self._entries)
            self._loaded = True
            self._trim(data, self._written * _ABORTED.size)
        return self._entries

    def extend(self, aborted: Iterable[AbortedTransaction]) -> None:
        self.get_entries().extend(aborted)

    def truncate(self, offset: int) -> None:
        """Remove the transactions that ended at or above `offset`."""
        entries = self.get_entries()
        entries[:] = [e for e in entries if e.last_offset < offset]
        if self._written > len(entries):
            self._written = len(entries)
            self._cut(self._written * _ABORTED.size)

    def flush(self) -> None:
        """Write the new entries to the file."""
        if not self._loaded or self._written == len(self._entries):
            return
        new = b"".join(_ABORTED.pack(0, *e) for e in self._entries[self._written :])
        self._write(self._written * _ABORTED.size, new)
        self._written = len(self._entries)
