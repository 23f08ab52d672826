"""Key ranges against a list of records: readers of ranges that tile the hashes get the whole log.

Each record goes to exactly one reader, those of a key in offset order to the same one, whatever
the batches, codecs, limits, cache and truncations are. The compiled loops and Python agree.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from shoal.client.net.batches import decode
from shoal.log.config import LogConfig
from shoal.log.memory import MemoryStorage
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import batch_validation, hashed_batches
from shoal.record.batch import check_crc, iter_headers, seal
from shoal.record.hashed_batches import HashedBatches
from shoal.record.key_ranges import InvalidKeyRanges, KeyRanges
from shoal.record.records import Record, build_batch, decompress_records, iter_spans, read_records
from shoal.server.replication import range_reads
from shoal.server.replication.range_reads import RangeRead, RangeReads, ReadBudget
from support.runs.example_counts import scale_examples
from support.runs.machine import lacking
from support.storage.log_material import NOW_MS, compact, open_log, records

if TYPE_CHECKING:
    from shoal.replication.partition import Partition

MANY = settings(max_examples=scale_examples(80), deadline=None)
CODECS = st.sampled_from(["none", "none", "gzip", "snappy", "lz4", "zstd"])
KEYS = st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"k" * 40]) | st.binary(max_size=9)


class Batch(NamedTuple):
    keys: list[bytes | None]
    codec: str
    size: int
    #: Records that compaction has removed, by their position.
    removed: set[int]
    control: bool
    #: Offsets without a batch before this one.
    hole: int


BATCHES = st.lists(
    st.builds(
        Batch,
        st.lists(KEYS, min_size=1, max_size=12),
        CODECS,
        st.sampled_from([0, 3, 200]),
        st.sets(st.integers(0, 11), max_size=3),
        st.sampled_from([False, False, False, False, True]),
        st.sampled_from([0, 0, 0, 5]),
    ),
    min_size=1,
    max_size=8,
)


#: Bounds of ranges, most of them far apart, since hashes are.
CUTS = st.integers(1, 15).map(lambda n: n << 59) | st.integers(1, KEY_HASH_MAX)


@st.composite
def tilings(draw: st.DrawFn) -> list[KeyRanges]:
    """Ranges of two to four readers, each possibly of several pieces, that cover all hashes."""
    readers = draw(st.integers(2, 4))
    cuts = sorted(draw(st.sets(CUTS, min_size=readers - 1, max_size=6)))
    pieces = [(a, b - 1) for a, b in pairwise([0, *cuts, KEY_HASH_MAX + 1])]
    owners: list[list[tuple[int, int]]] = [[piece] for piece in pieces[:readers]]
    for piece in pieces[readers:]:
        draw(st.sampled_from(owners)).append(piece)
    return [KeyRanges(ranges) for ranges in owners]


def log_of(batches: list[Batch]) -> bytes:
    log, at = b"", 3
    for n, one in enumerate(batches):
        at += one.hole
        rows = [
            (NOW_MS, key, b"%d-%d" % (n, i) + b"v" * one.size, (("h", b"x"),) * (i % 2))
            for i, key in enumerate(one.keys)
        ]
        if one.control:
            log += build_batch([(NOW_MS, b"\0\0\0\1", b"\0" * 6, ())], base_offset=at, control=True)
            at += 1
            continue
        whole = build_batch(
            rows, base_offset=at, compression=one.codec, producer_id=7, producer_epoch=1
        )
        log += without(whole, one.removed) if one.codec == "none" else whole
        at += len(one.keys)
    return bytes(log)


def without(batch: bytearray, removed: set[int]) -> bytes:
    """Return an uncompressed batch after compaction, which removed some records."""
    ((_, header),) = iter_headers(batch)
    body = decompress_records(batch, 0, header)
    kept = [s for s in iter_spans(body, header.record_count) if s.offset_delta not in removed]
    data = b"".join(body[s.start : s.end] for s in kept)
    return bytes(seal(header._replace(record_count=len(kept)), data))


def both(data: bytes, first: int, *args: Any, **options: Any) -> Any:
    """Return what `select` finds in a read, which both kinds must share."""
    found = HashedBatches(data, first).select(*args, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_validation, "native", None)
        assert HashedBatches(data, first).select(*args, **options) == found
    return found


@MANY
@given(BATCHES, tilings())
def test_readers_of_a_tiling_get_everything(batches: list[Batch], tiling: list[KeyRanges]) -> None:
    log = log_of(batches)
    everything = list(decode(log))
    got: list[Record] = []
    for ranges in tiling:
        data, past = both(log, 3, 0, len(batches), ranges, 1 << 20, min_one=True)
        assert past == len(batches)
        assert len(data) <= len(log)
        sent = list(decode(data))
        mine = [r for r in sent if ranges.has_record(r.key, r.offset)]
        assert mine == [r for r in everything if ranges.has_record(r.key, r.offset)]
        got += mine
        stored = {h.base_offset: (log[at : at + h.size], h) for at, h in iter_headers(log)}
        for at, header in iter_headers(data):
            raw, before = stored[header.base_offset]
            assert check_crc(data, at, header)
            assert header.last_offset == before.last_offset
            assert header.producer_id == before.producer_id
            if bytes(data[at : at + header.size]) != raw:
                # A batch that is not sent as it is stored has nothing of other ranges.
                assert all(ranges.has_record(r.key, r.offset) for r in read_records(data, at))
                assert header.compression == 0
                assert header.size < before.size
        controls = [h.base_offset for _, h in iter_headers(log) if h.is_control]
        assert [h.base_offset for _, h in iter_headers(data) if h.is_control] == controls
    assert sorted(got) == everything


@MANY
@given(BATCHES, tilings(), st.data())
def test_limits(batches: list[Batch], tiling: list[KeyRanges], data: st.DataObject) -> None:
    """A sequence of small selections is one large one; only a first batch exceeds the limit."""
    log, ranges = log_of(batches), tiling[0]
    size_max = data.draw(st.integers(0, 600))
    whole, _ = both(log, 3, 0, len(batches), ranges, 1 << 20, min_one=True)
    at, parts = 0, []
    while at < len(batches):
        found, past = both(log, 3, at, len(batches), ranges, size_max, min_one=True)
        assert past > at
        assert len(found) <= size_max or len(list(iter_headers(found))) == 1
        nothing, unmoved = both(log, 3, at, len(batches), ranges, 0, min_one=False)
        assert nothing == b""
        assert found == b"" or unmoved < past
        parts.append(found)
        at = past
    assert b"".join(parts) == whole


@MANY
@given(BATCHES, st.data())
def test_damaged_batches_are_sent_whole(batches: list[Batch], data: st.DataObject) -> None:
    log = bytearray(log_of(batches))
    places = list(iter_headers(log))
    at, header = data.draw(st.sampled_from(places))
    place = data.draw(st.integers(at + 61, at + header.size - 1)) if header.size > 61 else at + 22
    log[place] ^= 1 << data.draw(st.integers(0, 7))
    ranges = KeyRanges([(0, 0)])
    found = HashedBatches(bytes(log), 3).select(0, len(batches), ranges, 1 << 20, min_one=True)
    assert bytes(log[at : at + header.size]) in found.data


@MANY
@given(BATCHES, st.data())
def test_hashes_of_damaged_records(batches: list[Batch], data: st.DataObject) -> None:
    """Neither kind fails on any bytes, and where both accept them they find the same."""
    if batch_validation.native is None:
        lacking("the loops are not compiled: python -m shoal.compile, with a C compiler")
    log = bytearray(log_of([batches[0]._replace(codec="none", control=False)]))
    for _ in range(data.draw(st.integers(1, 3))):
        log[data.draw(st.integers(61, len(log) - 1)) if len(log) > 61 else 60] = data.draw(
            st.integers(0, 255)
        )
    count = data.draw(st.integers(0, 14))
    args = (bytes(log), 61, data.draw(st.integers(61, len(log))), 3, count)
    compiled = hashed_batches.hash_records(*args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_validation, "native", None)
        python = hashed_batches.hash_records(*args)
    assert compiled is None or python is None or compiled == python


def test_a_batch_that_expands_far_is_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashed_batches, "EXPANDED_BYTES_MAX", 10_000)
    bomb = build_batch([(NOW_MS, b"k", bytes(20_000), ())], base_offset=3, compression="zstd")
    small = build_batch([(NOW_MS, b"k", b"v", ())], base_offset=4)
    read = HashedBatches(bytes(bomb + small), 3)
    # The read ends there, so that one fetch does not expand many of them.
    assert (len(read), read.next_offset) == (1, 4)
    assert read.cost_bytes >= 10_000
    assert read.select(0, 1, KeyRanges([(0, 0)]), 1 << 20, min_one=True).data == bytes(bomb)


def test_a_batch_that_would_grow_is_sent_as_it_is_stored() -> None:
    rows = [(NOW_MS, b"%d" % n, b"v" * 500, ()) for n in range(50)]
    batch = bytes(build_batch(rows, base_offset=3, compression="zstd"))
    read = HashedBatches(batch, 3)
    assert read.select(0, 1, KeyRanges.from_part(1, 2), 1 << 20, min_one=True).data == batch
    assert read.select(0, 1, KeyRanges([(0, 0)]), 1 << 20, min_one=True).data == b""


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([], "no key ranges"),
        ([(5, 4)], "5-4 ends before it begins: write the lower hash first"),
        ([(-1, 4)], "key range -1-4: hashes are 0 to 9223372036854775807"),
        ([(0, 2**63)], "hashes are 0 to"),
        ([(0, 9), (9, 12)], "key ranges 0-9 and 9-12 overlap: name each hash once"),
        ([(20, 30), (0, 25)], "0-25 and 20-30 overlap"),
        ([(2 * n, 2 * n) for n in range(1_001)], "1001 key ranges, at most 1000 are allowed"),
    ],
)
def test_invalid_ranges(ranges: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(InvalidKeyRanges, match=message):
        KeyRanges(ranges)


def test_ranges_as_text() -> None:
    assert KeyRanges.parse("200-299,0-99") == KeyRanges([(0, 99), (200, 299)])
    assert str(KeyRanges.parse("200-299,0-99")) == "0-99,200-299"
    quarters = [KeyRanges.parse(f"{n}/4") for n in range(1, 5)]
    assert [one for part in quarters for one in part] == [
        (2**61 * n, 2**61 * (n + 1) - 1) for n in range(4)
    ]
    thirds = [next(iter(KeyRanges.from_part(n, 3))) for n in range(1, 4)]
    assert thirds[0].first == 0
    assert thirds[-1].last == KEY_HASH_MAX
    assert all(a.last + 1 == b.first for a, b in pairwise(thirds))
    for text in ("", "a", "1", "1/x", "1-2-3", "3-1", "5/4", "0/4", "1/0", "0-9,9-10"):
        with pytest.raises(InvalidKeyRanges):
            KeyRanges.parse(text)


MANY_BATCHES = st.lists(BATCHES, min_size=2, max_size=3).map(lambda some: sum(some, []))  # noqa: RUF017
SHARES = st.sampled_from([0.0, 0.3, 0.6, 1.0, 1.0])
#: A reader, the part of the log up to which it reads, and the most bytes.
READS = st.tuples(st.integers(0, 3), SHARES, st.sampled_from([0, 300, 1 << 20, 1 << 20]))


class ReadersOfALog(RuleBasedStateMachine):
    """Readers of a tiling read a log that grows and is truncated, through one cache."""

    @initialize(
        tiling=tilings(),
        cache=st.sampled_from([1 << 20, 1 << 20, 8_000, 2_000, 0]),
        batches=MANY_BATCHES,
        data=st.data(),
    )
    def begin(
        self, tiling: list[KeyRanges], cache: int, batches: list[Batch], data: st.DataObject
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        for name, value in (
            ("READ_BYTES", data.draw(st.sampled_from([200, 2_000, 1 << 17]))),
            ("SHORT_BYTES", data.draw(st.sampled_from([0, 1_500, 1 << 13]))),
            ("LOOKED_RECORDS_MAX", data.draw(st.sampled_from([1, 20, 20_000]))),
        ):
            self.patch.setattr(range_reads, name, value)
        self.log = open_log(MemoryStorage(), LogConfig(segment_bytes=3_000))
        self.tiling = tiling
        self.reads = RangeReads(cache)
        self.cache = cache
        self.positions = [0] * len(tiling)
        self.got: list[list[Record]] = [[] for _ in tiling]
        self.append(batches)

    def partition(self) -> Partition:
        found: Any = SimpleNamespace(key=("t", 0), log=self.log)
        return found

    @rule(batches=MANY_BATCHES)
    def append(self, batches: list[Batch]) -> None:
        for one in batches:
            rows = [(NOW_MS, key, b"v" * one.size, ()) for key in one.keys]
            batch = build_batch(rows, compression=one.codec)
            self.log.append(batch, now_ms=NOW_MS, leader_epoch=0)

    @rule(reads=st.lists(READS, min_size=3, max_size=8))
    def read(self, reads: list[tuple[int, float, int]]) -> None:
        for reader, share, size in reads:
            self.read_one(reader, share, size)
        assert self.got == self.expected()

    def read_one(self, reader: int, share: float, size: int) -> None:
        """Read up to a limit at the end of a batch, such as a high watermark."""
        reader %= len(self.tiling)
        ends = [0, *(h.next_offset for _, h in iter_headers(self.whole()))]
        limit = ends[int(share * (len(ends) - 1))]
        ranges, at = self.tiling[reader], self.positions[reader]
        read = RangeRead(at, self.log.generation)
        partition = self.partition()
        self.reads.advance(read, partition, ranges, limit, size, ReadBudget(), min_one=True)
        assert at <= read.next_offset <= max(at, limit)
        assert read.is_cut or read.next_offset >= limit
        assert read.next_offset > at or limit <= at
        got = [r for r in decode(read.data, first=at) if ranges.has_record(r.key, r.offset)]
        assert all(r.offset < read.next_offset for r in got)
        self.got[reader] += got
        self.positions[reader] = read.next_offset
        assert self.reads.cache_bytes <= self.cache

    @rule(share=SHARES, batches=MANY_BATCHES)
    def replace(self, share: float, batches: list[Batch]) -> None:
        """An unclean election: other records follow, and readers that were ahead read again."""
        ends = [0, *(h.next_offset for _, h in iter_headers(self.whole()))]
        end = ends[int(share * (len(ends) - 1))]
        self.log.truncate(end)
        for reader, position in enumerate(self.positions):
            self.positions[reader] = min(position, end)
            self.got[reader] = [r for r in self.got[reader] if r.offset < end]
        self.append(batches)

    def whole(self) -> bytes:
        out, at = b"", 0
        while at < self.log.log_end_offset:
            found = self.log.read(at, 1 << 20)
            out, at = out + bytes(found.data), found.next_offset
        return out

    def expected(self) -> list[list[Record]]:
        written = list(decode(self.whole()))
        return [
            [r for r in written if r.offset < position and ranges.has_record(r.key, r.offset)]
            for ranges, position in zip(self.tiling, self.positions, strict=True)
        ]

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()


TestReadersOfALog = ReadersOfALog.TestCase
TestReadersOfALog.settings = settings(
    max_examples=scale_examples(40), stateful_step_count=12, deadline=None
)


@settings(max_examples=scale_examples(40), deadline=None)
@given(st.lists(st.tuples(st.lists(KEYS.filter(bool), min_size=1, max_size=6), CODECS)), tilings())
def test_holes_of_compaction(batches: list[Any], tiling: list[KeyRanges]) -> None:
    """Readers from any offset, also one that compaction has removed."""
    # The largest drawn batch, six keys of 40 bytes, fits into a segment.
    config = LogConfig(
        segment_bytes=500, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0
    )
    log = open_log(MemoryStorage(), config)
    for keys, codec in batches:
        rows = [(NOW_MS, key, b"v" * 20, ()) for key in keys]
        log.append(build_batch(rows, compression=codec), now_ms=NOW_MS, leader_epoch=0)
    compact(log)
    everything = records(log, 0)
    partition: Any = SimpleNamespace(key=("t", 0), log=log)
    reads, end = RangeReads(1 << 20), log.log_end_offset
    for first in range(0, end, 3):
        found = []
        for ranges in tiling:
            read = RangeRead(first, log.generation)
            reads.advance(read, partition, ranges, end, 1 << 20, ReadBudget(), min_one=True)
            sent = decode(read.data, first=first)
            found += [r for r in sent if ranges.has_record(r.key, r.offset)]
        assert sorted(found) == [r for r in everything if r.offset >= first]


def test_a_record_is_hashed_once_for_all_readers() -> None:
    log = open_log(MemoryStorage())
    for n in range(100):
        rows = [(NOW_MS, b"%d-%d" % (n, i), b"v" * 100, ()) for i in range(10)]
        log.append(build_batch(rows), now_ms=NOW_MS, leader_epoch=0)
    partition: Any = SimpleNamespace(key=("t", 0), log=log)
    for cache_bytes, hits in ((1 << 20, 7), (0, 0)):
        reads = RangeReads(cache_bytes)
        for n in range(1, 9):
            read = RangeRead(0, log.generation)
            reads.advance(
                read,
                partition,
                KeyRanges.from_part(n, 8),
                1000,
                1 << 20,
                ReadBudget(),
                min_one=True,
            )
            assert read.next_offset == 1000
            assert 0 < read.size < log.size_bytes / 4
        assert (reads.hits_total, reads.misses_total) == (hits, 8 - hits)
        assert bool(reads.cache_bytes) == bool(cache_bytes)
        reads.forget(partition)
        assert reads.cache_bytes == 0
