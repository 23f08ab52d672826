"""The compiled loops of key order return what the Python loops return, for any input."""

from __future__ import annotations

import copy
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.coordinator.share import batches as batches_of
from shoal.coordinator.share import bulk, compiled
from shoal.coordinator.share.locks import Lock, Locks
from shoal.coordinator.share.read_cache import ReadCache
from shoal.coordinator.share.record_facts import compute_key_hashes
from shoal.coordinator.share.record_scanner import RecordScanner
from shoal.coordinator.share.records import ShareUpdate, encode_update
from shoal.coordinator.share.runs import COUNT_MAX, OffsetRuns
from shoal.coordinator.share.selection import build_acquired_ranges, encode_ranges
from shoal.coordinator.share.share_partition import SharePartition
from shoal.coordinator.share.state_batches import StateBatches, combine
from shoal.coordinator.share.states import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    AcknowledgeType,
)
from shoal.protocol.share import ShareFetchPartition, write_fetch
from shoal.record.batch import check_crc, iter_headers
from shoal.record.records import build_batch, read_records
from support.runs.example_counts import scale_examples
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True, scope="module")
def there() -> None:
    if compiled.native is None:
        lacking("the loops are not compiled: python -m shoal.compile, with a C compiler")


MANY = settings(max_examples=scale_examples(100), deadline=None)


def both(work: Callable[..., Any]) -> Any:
    """Return the result of some work in the compiled loops, after checking it against Python."""
    found = work()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "native", None)
        assert work() == found
    return found


def test_the_numbers_of_states_are_those_that_are_compiled_in() -> None:
    assert (AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED, COUNT_MAX) == (0, 1, 2, 4, 255)
    assert ACCEPT == AcknowledgeType.ACCEPT == 1


keys = st.lists(st.none() | st.binary(max_size=3) | st.just(b"k" * 200), min_size=1, max_size=40)


@MANY
@given(keys, st.integers(0, 200), st.binary(max_size=9))
def test_keys_of_a_batch(found: list[bytes | None], size: int, before: bytes) -> None:
    records = [(0, key, b"v" * size, ()) for key in found]
    data = before + bytes(build_batch(records, base_offset=7))
    hashes, _ = both(lambda: compute_key_hashes(data, len(before), len(data)))
    assert hashes == [0 if key is None else hash(key) or 1 for key in found]


@MANY
@given(keys, st.data())
def test_keys_of_a_batch_that_is_damaged(found: list[bytes | None], data: st.DataObject) -> None:
    """The compiled loop may leave more to `BatchFacts` than Python does, and finds nothing else."""
    batch = bytearray(build_batch([(0, key, b"v", ()) for key in found], base_offset=0))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(57, len(batch) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(61, len(batch)))
    hashes, _ = compute_key_hashes(bytes(batch), 0, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "native", None)
        assert hashes is None or hashes == compute_key_hashes(bytes(batch), 0, end)[0]


@MANY
@given(st.data())
def test_places_of_batches_in_a_read(data: st.DataObject) -> None:
    log, at = b"", 0
    for count in data.draw(st.lists(st.integers(1, 3), max_size=6)):
        at += data.draw(st.sampled_from([0, 0, 0, 2]))
        log += bytes(build_batch([(0, None, b"v", ())] * count, base_offset=at))
        at += count
    cut = bytearray(log[: data.draw(st.integers(0, len(log)))])
    if cut and data.draw(st.booleans()):
        cut[data.draw(st.integers(0, len(cut) - 1))] = data.draw(st.integers(0, 255))
    wanted = data.draw(st.integers(0, 2))

    def scanned() -> Any:
        found = batches_of.scan(bytes(cut), wanted)
        return found.bases, found.lasts, found.ends, found.skipped

    both(scanned)


@MANY
@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.data())
def test_spans_of_what_was_acquired(sizes: list[int], data: st.DataObject) -> None:
    found, at = batches_of.Batches(memoryview(b"")), 3
    for size in sizes:
        found.bases.append(at)
        found.lasts.append(at + size - 1)
        found.ends.append(10 * len(found.bases))
        at += size
    offsets = sorted(data.draw(st.sets(st.integers(3, at - 1), min_size=1)))
    acquired = both(lambda: build_acquired_ranges(offsets))
    assert [o for first, last, _ in acquired for o in range(first, last + 1)] == offsets
    both(lambda: found.find_spans(acquired))


@MANY
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6), st.data())
def test_what_a_member_gets_of_batches(found: list[tuple[int, bool]], data: st.DataObject) -> None:
    """A valid uncompressed batch contains only the acquired records, unchanged; any other batch is
    sent whole."""
    log, at = b"", 3
    kept: dict[int, bool] = {}
    damaged = data.draw(st.booleans())
    for size, compressed in found:
        records = [(7 + n, b"k%d" % n, b"v" * n, (("h", b"x"),) * (n % 2)) for n in range(size)]
        compression = "gzip" if compressed else "none"
        batch = build_batch(records, base_offset=at, compression=compression)
        if damaged and not compressed:
            batch[-1] ^= 1
        kept |= dict.fromkeys(range(at, at + size), not compressed and not damaged)
        log += bytes(batch)
        at += size
    offsets = sorted(data.draw(st.sets(st.integers(3, at - 1), min_size=1)))
    read = batches_of.scan(log, 3)
    sent = b"".join(read.build_thinned(build_acquired_ranges(offsets)))
    if damaged:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "native", None)
            assert sent == b"".join(read.build_thinned(build_acquired_ranges(offsets)))
        return
    before = {r.offset: r for place, _ in iter_headers(log) for r in read_records(log, place)}
    got: dict[int, Any] = {}
    for place, header in iter_headers(sent):
        assert check_crc(sent, place, header)
        got |= {r.offset: r for r in read_records(sent, place)}
        assert header.record_count <= header.last_offset_delta + 1
    assert {o for o in got if kept[o]} == {o for o in offsets if kept[o]}
    assert got.keys() >= set(offsets)
    assert all(before[o] == r for o, r in got.items())


@MANY
@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), max_size=4), st.data())
def test_what_a_member_gets_of_several_reads(found: list[list[int]], data: st.DataObject) -> None:
    """The same result as from consecutive reads."""
    cache, at = ReadCache(), 3
    for sizes in found:
        begin, log = at, b""
        for size in sizes:
            log += bytes(build_batch([(0, b"k", b"v", ())] * size, base_offset=at))
            at += size
        if data.draw(st.integers(0, 3)):  # Or the log was not read there.
            cache.add(batches_of.scan(log, begin))
    offsets = sorted(data.draw(st.sets(st.integers(2, at + 2))))
    room = data.draw(st.integers(-1, 300))
    least = data.draw(st.integers(0, 300))
    taken, got = cache.gather(offsets, room, least)
    left, sent, one_by_one = offsets, b"", 0
    while left and (room > 0 or not one_by_one):
        read, _ = cache.find(left[0])
        if read is None or len(read.data) > max(room, least):
            break
        here = [offset for offset in left if offset <= read.lasts[-1]]
        views = b"".join(read.build_thinned(build_acquired_ranges(here)))
        left, sent, room = left[len(here) :], sent + views, room - len(views)
        one_by_one += len(here)
    assert (taken, bytes(got)) == (one_by_one, sent)
    assert [o for part, _ in cache.split_by_read(offsets[:taken]) for o in part] == offsets[:taken]
    for part, read in cache.split_by_read(offsets[:taken]):
        assert read.bases[0] <= part[0] <= part[-1] <= read.lasts[-1]


def test_what_a_member_gets_of_several_reads_has_bounds() -> None:
    cache = ReadCache()
    for base in (3, 7, 11):
        two = [build_batch([(0, b"k", b"v", ())] * 2, base_offset=at) for at in (base, base + 2)]
        cache.add(batches_of.scan(b"".join(map(bytes, two)), base))
    size = len(cache.find(3)[0].data)  # type: ignore[union-attr]
    offsets = [3, 7, 11]
    assert cache.gather(offsets, 3 * size, 0)[0] == 3
    assert cache.gather(offsets, 10, size)[0] == 1  # No room is left after the first.
    assert cache.gather(offsets, size + 10, 0)[0] == 1  # Less than the second read.
    assert cache.gather(offsets, 10, size - 1)[0] == 0
    assert cache.gather([2, 3], 3 * size, 0)[0] == 0
    assert cache.gather([15], 3 * size, 0)[0] == 0


@MANY
@given(st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=5), st.data())
def test_keys_of_a_read(found: list[tuple[list[bytes | None], bool]], data: st.DataObject) -> None:
    """For any limit and any start, with compressed or damaged batches among the others."""
    log, at = bytearray(), 3
    for of_batch, plain in found:
        records = [(0, key, b"v", ()) for key in of_batch]
        log += build_batch(records, base_offset=at, compression="none" if plain else "gzip")
        at += len(of_batch)
    damaged = data.draw(st.integers(0, 3)) == 0
    if damaged:
        log[data.draw(st.integers(17, len(log) - 1))] = data.draw(st.integers(0, 255))
    read = batches_of.scan(bytes(log), 3)
    first, budget = data.draw(st.integers(3, at)), data.draw(st.integers(1, 60))

    def looked() -> Any:
        scanner = RecordScanner(SharePartition(first), keys=True, headers=None)
        return scanner._read_keys(read, budget)

    if damaged:  # As above, more may be left to `BatchFacts`.
        whole, found_keys = looked()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "native", None)
            in_python = looked()
        assert whole <= in_python[0]
        assert found_keys == in_python[1][: len(found_keys)]
    elif read.lasts[0] >= first:
        both(looked)


@MANY
@given(st.data())
def test_single_records_accepted(data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.integers(-1, 60), max_size=12))
    acks: list[Any] = [(first, last, b"\1") for first, last in pairwise(sorted(ends))][::2]
    wrong: bool = bool(acks) and data.draw(st.booleans())
    if wrong:
        other = st.sampled_from(
            [(0, 0, b"\1"), (9, 9, b"\2"), (70, 71, b"\1\1"), (80, 80, b"\1", 5)]
        )
        acks.append(data.draw(other))
    both(lambda: bulk.count_accepted(acks))


@MANY
@given(st.lists(st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 9)] * 4)))
def test_state_batches_of_any_numbers(found: list[tuple[int, int, int, int]]) -> None:
    assert compiled.native is not None
    rises = all(a[1] < b[0] for a, b in pairwise(found))
    assert compiled.native.rises(found) is rises
    joined = compiled.native.joined(found, 0)
    kept = [(max(first, 0), *rest) for first, *rest in found if rest[0] >= 0]
    assert joined is None or joined == kept or len(joined) < len(kept)
    for state, count in ((2, 1), (-128, 32767)):
        some = [(first, last, state, count) for first, last, *_ in found]
        update = ShareUpdate(0, 0, 0, -1, some, ())
        both(lambda update=update: encode_update(update))
    with pytest.raises(OverflowError):
        compiled.native.packed([(0, 0, 128, 0)])
    with pytest.raises(TypeError):
        compiled.native.packed([(0, 0, 0)])


@MANY
@given(st.lists(st.tuples(*[st.integers(0, (1 << 63) - 1)] * 2, st.integers(0, 32767))))
def test_acquired_ranges_as_they_go_out(found: list[tuple[int, int, int]]) -> None:
    topic = UUID(int=7)
    plain, made = (
        write_fetch({topic: [ShareFetchPartition(0, acquired=found, acquired_encoded=data)]})
        for data in (b"", encode_ranges(found))
    )
    assert plain == made
    for refused in ([(0, 0)], [(0, 0, "1")], [(0, 0, 1 << 15)], [3]):
        with pytest.raises((TypeError, OverflowError)):
            encode_ranges(refused)  # type: ignore[arg-type]


batches = st.lists(
    st.builds(
        lambda first, size, state, count: (first, first + size, state, count),
        st.integers(0, 30),
        st.integers(0, 4),
        st.sampled_from([0, 2, 4]),
        st.integers(0, 2),
    ),
    max_size=12,
)


@MANY
@given(batches, st.integers(0, 30))
def test_state_batches(found: list[tuple[int, int, int, int]], start: int) -> None:
    rising = both(lambda: combine(found, start))

    def overwritten() -> Any:
        kept = StateBatches(start)
        kept.overwrite(rising)
        kept.overwrite([(first, last, 4, 300) for first, last, *_ in rising[::2]])
        return list(kept)

    both(overwritten)


def window(data: st.DataObject) -> tuple[OffsetRuns, Locks]:
    """Return a window from offset 5 on, with locks 1 and 2 of members a and b."""
    runs, locks = OffsetRuns(5), Locks()
    held = {1: 0, 2: 0}
    drawn = st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 1, 1, 1, 2]), st.integers(0, 2))
    for size, state, count in data.draw(st.lists(drawn, min_size=1, max_size=12)):
        lock = data.draw(st.sampled_from([1, 1, 1, 2])) if state == ACQUIRED else 0
        runs.append(runs.end + size - 1, state, count, lock, size if state == ACQUIRED else 0)
        if lock:
            held[lock] += size
    for number, member in ((1, "a"), (2, "b")):
        locks.open(number, Lock(member, 100, first=5, last=runs.end - 1, records=held[number] + 1))
    return runs, locks


def ranges_of(data: st.DataObject, runs: OffsetRuns, state: int) -> list[tuple[int, int]]:
    """Return ranges, most of them of offsets in this state."""
    numbers = range(len(runs))
    here = [o for r in numbers if runs.states[r] == state for o in range(runs.firsts[r], runs.get_last(r) + 1)]  # fmt: skip  # noqa: E501
    offsets = set(data.draw(st.sets(st.sampled_from(here)))) if here else set()
    if data.draw(st.integers(0, 4)) == 0 or not offsets:
        offsets.add(data.draw(st.integers(4, runs.end + 1)))
    return [(first, last) for first, last, _ in build_acquired_ranges(sorted(offsets))]


@MANY
@given(st.data())
def test_many_ranges_of_a_window(data: st.DataObject) -> None:
    runs, locks = window(data)
    wanted = ranges_of(data, runs, AVAILABLE)
    within = all(runs.start <= first and last < runs.end for first, last in wanted)

    def locked() -> Any:
        known = copy.deepcopy(runs)
        return within and bulk.lock_new(known, wanted, 9), known.get_columns()

    both(locked)
    held = ranges_of(data, runs, ACQUIRED)
    types = data.draw(st.sampled_from([b"\1", b"\1", b"\1", b"\2"]))
    now_ms = data.draw(st.sampled_from([0, 0, 100]))

    def accepted() -> Any:
        known, given_back = copy.deepcopy(runs), copy.deepcopy(locks)
        acks = [(first, last, types) for first, last in held]
        found = bulk.accept_all(known, given_back, now_ms, "a", acks)
        left = {number: lock.records for number, lock in given_back.live.items()}
        return found, known.get_columns(), left

    both(accepted)


def long_window(random: Random) -> tuple[OffsetRuns, Locks]:
    """Return a window of hundreds of runs, most of which alternate between two states."""
    runs, locks = OffsetRuns(random.randrange(5)), Locks()
    locks.open(1, Lock("a", 100, first=0, last=0, records=1 << 20))
    for _ in range(random.choice([1, 40, 400])):
        state = random.choice([AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED])
        size, count = random.randint(1, 4), random.choice([0, 0, 0, 1])
        lock = 1 if state == ACQUIRED else 0
        runs.append(runs.end + size - 1, state, count, lock, lock and size)
    return runs, locks


def draw_scattered_ranges(
    random: Random, runs: OffsetRuns, kinds: set[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return some ranges of offsets whose state and delivery count is among `kinds`, most of them
    far from each other."""
    share = random.choice([0.01, 0.05, 0.5, 1])
    offsets = [
        offset
        for run in range(len(runs))
        if (runs.states[run], runs.counts[run]) in kinds
        for offset in range(runs.firsts[run], runs.get_last(run) + 1)
        if random.random() < share
    ]
    return [(first, last) for first, last, _ in build_acquired_ranges(offsets)]


@MANY
@given(st.integers(0, 1 << 32))
def test_scattered_ranges_of_a_long_window(seed: int) -> None:
    """Runs between them move as blocks, up or down or not at all."""

    def change_runs() -> Any:
        random = Random(seed)
        runs, locks = long_window(random)
        seen: list[Any] = []
        for number in range(2, 8):
            locks.open(number, Lock("a", 100, first=0, last=0, records=1 << 20))
            if ranges := draw_scattered_ranges(random, runs, {(AVAILABLE, 0)}):
                assert bulk.lock_new(runs, ranges, number)
            seen.append([list(column) for column in runs.get_columns()])
            if held := draw_scattered_ranges(random, runs, {(ACQUIRED, 0), (ACQUIRED, 1)}):
                acks = [(*one, b"\1") for one in held]
                seen.append(bulk.accept_all(runs, locks, 0, "a", acks))
            bulk.overwrite(runs, [(runs.start, runs.start, ARCHIVED, 3)])
            seen.append([list(column) for column in runs.get_columns()])
            values = list(zip(runs.states, runs.counts, runs.locks, runs.pieces, strict=True))
            assert all(one != other for one, other in pairwise(values))
            assert all(one < other for one, other in pairwise(runs.firsts))
        return seen

    both(change_runs)


def test_a_window_that_cannot_grow_stays_as_it_is() -> None:
    """Nobody else may look at its columns meanwhile."""
    runs = OffsetRuns(0)
    runs.append(99, AVAILABLE)
    ranges = [(n, n) for n in range(10, 20, 2)]
    with memoryview(runs.pieces), pytest.raises(BufferError):
        bulk.lock_new(runs, ranges, 1)
    assert [len(column) for column in runs.get_columns()] == [1] * 5
    assert bulk.lock_new(runs, ranges, 1)
    assert len(runs) == 11
