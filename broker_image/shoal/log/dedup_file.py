"""A file with the ids of a range of a partition's log, sorted and immutable.

    buckets      entries as in `dedup_table`, in the order of the lowest bits of their digests
    starts       of each bucket and behind the last one: its first entry, 4 bytes
    checksums    CRC-32C of each bucket, 4 bytes
    filter       a bit for each possible value of other bits of a digest: 0 if no id has it
    state        what the index knew at the end of the range (`IndexState`)
    footer       sizes, the range, and the checksum of all but the buckets

Integers are little-endian. Starts, checksums and filter stay in memory, so to find an id takes one
read of a bucket, about 3 kB, and an unknown one mostly none. Each read compares the checksum of its
bucket.

A file is soft state: the log has all of it. It is written beside its name, synced and renamed, and
never changed. It depends on the secret of the digests (`record.dedup_ids`), of which the footer has
a trace.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.log.dedup_table import ENTRY_SIZE, HASH_SIZE, find_entry
from shoal.record.crc import crc32c
from shoal.record.dedup_ids import DIGEST_SIZE, digest_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.log.storage import File, Storage

#: The ending of the names.
SUFFIX = ".ids"
_MAGIC = b"SHOALID1"
#: Magic, trace of the secret, base, first, end, epoch, number of ids, bits of buckets, bits of the
#: filter, bytes of the state, checksum of starts to state. A checksum of these follows.
_FOOTER = struct.Struct("<8s10sqqqiqBBqI")
_CRC = struct.Struct("<I")
_FOOTER_SIZE = _FOOTER.size + _CRC.size
#: Entries of a bucket on average, at most.
_BUCKET_ENTRIES = 256
#: Bits of the filter for an id, at least, if memory allows. One in eight unknown ids is looked for.
_FILTER_BITS = 8
#: Entries of one step of a writer: about two milliseconds.
STEP_ENTRIES = 2_000
#: Each byte with its bits in the opposite order.
_REVERSED = bytes(int(f"{number:08b}"[::-1], 2) for number in range(256))


class CorruptIdFile(Exception):
    """A file of ids is damaged, cannot be read, or is not one of this broker."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path


class Source(Protocol):
    """What a file is written from: a table, or other files."""

    @property
    def bits(self) -> int: ...

    def __len__(self) -> int: ...

    def read_cell(self, bits: int, position: int) -> bytes: ...


class FileRange(NamedTuple):
    """What part of a log a file is about: the offsets from `first` up to `end`, of which the last
    one is of the leader epoch `epoch`. Offsets of entries count from `base`."""

    base: int
    first: int
    end: int
    epoch: int


class IdFile:
    """A file that is open. Raises `CorruptIdFile` and `OSError`."""

    def __init__(self, file: File) -> None:
        self._file = file
        #: Where the file is. A rename does not change that of `file`.
        self.path = file.path
        size = file.size()
        footer = file.read(max(size - _FOOTER_SIZE, 0), _FOOTER_SIZE)
        base, first, end, epoch, count, bits, filter_bits, state_size, crc = self._parse(footer)
        self.range = FileRange(base, first, end, epoch)
        self._count = count
        self.bits = bits
        self._shift = 8 * HASH_SIZE - bits
        self._filter_mask = (1 << filter_bits) - 1
        buckets_size, places = count * ENTRY_SIZE, 1 << bits
        tail = file.read(buckets_size, size - buckets_size - _FOOTER_SIZE)
        if crc32c(tail) != crc:
            raise CorruptIdFile(self.path, "has a wrong checksum")
        self._starts, self._crcs = array("I"), array("I")
        at = 4 * (places + 1)
        self._starts.frombytes(tail[:at])
        self._crcs.frombytes(tail[at : at + 4 * places])
        at += 4 * places
        self._filter = tail[at : len(tail) - state_size]
        self.state = tail[len(tail) - state_size :]

    def _parse(self, footer: bytes) -> list[int]:
        """Return the numbers of a valid footer."""
        content = footer[: _FOOTER.size]
        if len(footer) < _FOOTER_SIZE or _CRC.pack(crc32c(content)) != footer[_FOOTER.size :]:
            raise CorruptIdFile(self.path, "has no valid end")
        magic, trace, *numbers = _FOOTER.unpack(content)
        if magic != _MAGIC or trace != _trace_secret():
            raise CorruptIdFile(self.path, "has the ids of another broker, or another format")
        return numbers

    def __len__(self) -> int:
        """The number of entries, with those that have expired."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes on the disk."""
        return self._file.size()

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory."""
        return len(self._filter) + 8 * len(self._starts)

    def find(self, digest: bytes) -> int | None:
        """Return the relative offset of the latest record with that id, or None. Raises
        `CorruptIdFile`."""
        number = int.from_bytes(digest[HASH_SIZE : 2 * HASH_SIZE], "little") & self._filter_mask
        if not self._filter[number >> 3] >> (number & 7) & 1:
            return None
        place = _find_position(digest) >> self._shift
        return find_entry(self._read(place, place + 1), digest)

    def read_cell(self, bits: int, position: int) -> bytes:
        """Return what `IdTable.read_cell` does. Raises `CorruptIdFile`."""
        more = self.bits - bits
        return self._read(position << more, (position + 1) << more)

    def _read(self, place: int, end_place: int) -> bytes:
        """Return the entries of some buckets, whose checksums are right."""
        starts = self._starts
        at = starts[place]
        try:
            data = self._file.read(at * ENTRY_SIZE, (starts[end_place] - at) * ENTRY_SIZE)
        except OSError as error:
            raise CorruptIdFile(self.path, f"cannot be read: {error}") from None
        for number in range(place, end_place):
            begin, end = starts[number] - at, starts[number + 1] - at
            bucket = data[begin * ENTRY_SIZE : end * ENTRY_SIZE]
            if crc32c(bucket) != self._crcs[number]:
                raise CorruptIdFile(self.path, f"has a wrong checksum in bucket {number}")
        return data


def write_file(
    storage: Storage,
    path: str,
    sources: Sequence[Source],
    about: FileRange,
    state: bytes,
    *,
    floor: int,
    filter_bits_max: int,
) -> Iterator[None]:
    """Write a file from others or a table, the oldest first, without the entries below the relative
    offset `floor`, and sync it. The caller may run each step in a thread. Raises `CorruptIdFile`
    and `OSError`; the file is then removed."""
    file = storage.open(path, create=True)
    try:
        yield from _Writer(file, sources, filter_bits_max).write(about, state, floor)
    except BaseException:
        storage.remove(path)
        raise
    finally:
        file.close()


class _Writer:
    def __init__(self, file: File, sources: Sequence[Source], filter_bits_max: int) -> None:
        self._file = file
        self._sources = sources
        ids = sum(map(len, sources))
        self._cell_bits = min(source.bits for source in sources)
        self._bits = max(self._cell_bits, (ids // _BUCKET_ENTRIES).bit_length())
        self._filter_bits = max(3, min((_FILTER_BITS * ids).bit_length(), filter_bits_max))
        self._filter = bytearray(1 << self._filter_bits - 3)
        self._starts, self._crcs = array("I", [0]), array("I")
        self._at = 0

    def write(self, about: FileRange, state: bytes, floor: int) -> Iterator[None]:
        """Write all of it, in steps."""
        waiting: list[bytes] = []
        step_bytes = 0
        for position in range(1 << self._cell_bits):
            parts = [source.read_cell(self._cell_bits, position) for source in self._sources]
            cell = b"".join(parts)
            waiting += self._add_cell(cell, floor)
            step_bytes += len(cell)
            if step_bytes >= STEP_ENTRIES * ENTRY_SIZE:
                step_bytes = 0
                self._flush(waiting)
                yield
        self._flush(waiting)
        tail = b"".join((self._starts.tobytes(), self._crcs.tobytes(), self._filter, state))
        footer = _FOOTER.pack(
            _MAGIC,
            _trace_secret(),
            *about,
            self._starts[-1],
            self._bits,
            self._filter_bits,
            len(state),
            crc32c(tail),
        )
        self._file.write(self._at, (tail, footer, _CRC.pack(crc32c(footer))))
        yield
        self._file.sync()

    def _flush(self, waiting: list[bytes]) -> None:
        self._at += self._file.write(self._at, (b"".join(waiting),))
        waiting.clear()

    def _add_cell(self, cell: bytes, floor: int) -> list[bytes]:
        """Return the buckets of a cell, and note where they begin."""
        shift, mask = 8 * HASH_SIZE - self._bits, (1 << self._bits - self._cell_bits) - 1
        buckets: list[list[bytes]] = [[] for _ in range(mask + 1)]
        bits, filter_mask = self._filter, (1 << self._filter_bits) - 1
        for at in range(0, len(cell), ENTRY_SIZE):
            entry = cell[at : at + ENTRY_SIZE]
            if floor and int.from_bytes(entry[DIGEST_SIZE:], "little") < floor:
                continue
            number = int.from_bytes(entry[HASH_SIZE : 2 * HASH_SIZE], "little") & filter_mask
            bits[number >> 3] |= 1 << (number & 7)
            buckets[_find_position(entry) >> shift & mask].append(entry)
        joined = [b"".join(entries) for entries in buckets]
        for bucket in joined:
            self._starts.append(self._starts[-1] + len(bucket) // ENTRY_SIZE)
            self._crcs.append(crc32c(bucket))
        return joined


def _find_position(digest: bytes) -> int:
    """Return the place of a digest among all: its lowest bits, the lowest one first."""
    return int.from_bytes(digest[:HASH_SIZE].translate(_REVERSED), "big")


def _trace_secret() -> bytes:
    """Return what tells the secret of the digests from others: no id is empty."""
    return digest_id(b"")
