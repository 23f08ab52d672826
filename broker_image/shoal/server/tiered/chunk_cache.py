"""Downloaded chunks on the broker's disk, up to a size. The one that was read longest ago leaves.

A chunk is a file, so that large reads go from the page cache to the socket. A file that is dropped
stays readable until its last reader is done. The directory is emptied at the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.log.slices import SLICE_SIZE_MIN, FileSlice, LogSlice
from shoal.tiered.chunk import ChunkIndex

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.log.search import TimestampOffset
    from shoal.log.storage import File, Storage
    from shoal.record.batch import Buffer

DIRECTORY = "remote-chunks"


class ChunkKey(NamedTuple):
    """A chunk by its segment and its number in it."""

    segment_id: UUID
    number: int


class CachedChunk:
    """A chunk in a file."""

    __slots__ = ("file", "index")

    def __init__(self, file: File, index: ChunkIndex) -> None:
        self.file = file
        self.index = index

    def read(self, offset: int, max_bytes: int, bound: int, min_one: bool) -> LogSlice | None:
        """Read whole batches, as `Log.read_slice`. Return None if the chunk ends below `offset`."""
        position = self.index.find(self.file.read, offset)
        if position is None:
            return None
        segment_range = self.index.find_range(
            self.file.read, position, max_bytes=max_bytes, bound=bound, min_one=min_one
        )
        if not segment_range.size:
            return LogSlice(b"", offset)
        if segment_range.size < SLICE_SIZE_MIN or self.file.fileno() < 0:
            return LogSlice(
                self.file.read(segment_range.position, segment_range.size),
                segment_range.next_offset,
            )
        return LogSlice(
            FileSlice(self.file, segment_range.position, segment_range.size),
            segment_range.next_offset,
        )

    def find_since(self, timestamp_ms: int, start: int) -> TimestampOffset | None:
        """Return the first record from offset `start` on with at least that timestamp. Runs in a
        thread. Raises `OSError`, `CorruptBatch`."""
        return self.index.find_first_record_since(self.file.read, timestamp_ms, start)


class ChunkCache:
    """Owns the directory of chunks."""

    def __init__(self, storage: Storage, data_dir: str, size_max: int) -> None:
        """`size_max` is in bytes. One chunk is kept whatever its size."""
        self._storage = storage
        self._directory = f"{data_dir}/{DIRECTORY}"
        self._size_max = size_max
        #: In the order of their last reads.
        self._chunks: dict[ChunkKey, CachedChunk] = {}
        self.size_bytes = 0
        self.hits_total = self.misses_total = 0

    def open(self) -> None:
        """Empty the directory. Raises `OSError`."""
        self._storage.remove_directory(self._directory)
        self._storage.make_directory(self._directory)

    def get(self, key: ChunkKey) -> CachedChunk | None:
        """Return a chunk, which is now the last to leave."""
        chunk = self._chunks.pop(key, None)
        if chunk is None:
            self.misses_total += 1
            return None
        self.hits_total += 1
        self._chunks[key] = chunk
        return chunk

    def has(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def write(self, key: ChunkKey, data: Buffer) -> CachedChunk:
        """Write a chunk's file, before `add`. May run in another thread. Raises `OSError`,
        `CorruptBatch`."""
        file = self._storage.open(self._get_path(key), create=True)
        file.write(0, [data])
        return CachedChunk(file, ChunkIndex(data))

    def add(self, key: ChunkKey, chunk: CachedChunk) -> None:
        """Keep a chunk, and drop others if all are too large together."""
        self._chunks[key] = chunk
        self.size_bytes += chunk.index.size
        while self.size_bytes > self._size_max and len(self._chunks) > 1:
            self._drop(next(iter(self._chunks)))

    def drop_segment(self, segment_id: UUID) -> None:
        """Drop the chunks of a segment that was deleted."""
        for key in [key for key in self._chunks if key.segment_id == segment_id]:
            self._drop(key)

    def _drop(self, key: ChunkKey) -> None:
        self.size_bytes -= self._chunks.pop(key).index.size
        self._storage.remove(self._get_path(key))

    def _get_path(self, key: ChunkKey) -> str:
        return f"{self._directory}/{key.segment_id}-{key.number}"
