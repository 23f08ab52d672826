"""Compacted topics in the object store: the last value of every key stays readable, and the cost
of cleaning is bounded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from shoal.log.appends import AppendOrigin
from shoal.log.cleaner import CleanedTransactionMetadata, Cleaner
from shoal.log.remote import RemoteUnavailable
from shoal.record.batch import iter_headers
from shoal.record.control import build_marker
from shoal.record.records import build_batch, read_records
from shoal.tiered import cleaning
from support.runs.seeding import SEED
from support.storage.log_material import NOW_MS, keyed
from support.storage.tiered_world import COMPRESSION, CONFIG, KEY, KEY_ID, Crash, World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.log.config import LogConfig

DELAY_MS = 5_000
COMPACTED = replace(
    CONFIG,
    cleanup_policy=("compact",),
    delete_retention_ms=DELAY_MS,
    min_cleanable_dirty_ratio=0.3,
    segment_bytes=700,
)


class CompactedWorld(World):
    """A leader of a compacted topic, and a plain twin: the last value of each key."""

    def __init__(self, seed: int, fault_rate: float = 0.0, config: LogConfig = COMPACTED) -> None:
        super().__init__(seed, fault_rate, config)
        #: By offset, what was committed; and by offset, the producer of what was aborted.
        self.written: dict[int, tuple[bytes, bytes | None]] = {}
        self.aborted: dict[int, int] = {}
        self.latest: dict[bytes, int] = {}
        self.producer = 100

    def write(self, pairs: Sequence[tuple[bytes, bytes | None]]) -> None:
        for at in range(0, len(pairs), 4):
            base = self.log.log_end_offset
            self.partition.append(keyed(*pairs[at : at + 4]), now_ms=NOW_MS)
            self._note(base, pairs[at : at + 4])

    def write_randomly(self, count: int) -> None:
        for _ in range(count):
            draw = self.random
            pairs = [
                (
                    b"key-%d" % draw.randint(0, 9),
                    None if draw.random() < 0.3 else draw.randbytes(draw.randint(1, 60)),
                )
                for _ in range(draw.randint(1, 3))
            ]
            if draw.random() < 0.8:
                self.write(pairs)
            else:
                self.transaction(pairs, commit=draw.random() < 0.5)

    def transaction(
        self, pairs: list[tuple[bytes, bytes | None]], *, commit: bool, rolls: bool = False
    ) -> None:
        """Write a transaction. Its marker may be in a later segment, and is with `rolls`."""
        self.producer += 1
        data = build_batch(
            [(NOW_MS, key, value, ()) for key, value in pairs],
            producer_id=self.producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        base = self.log.log_end_offset
        self.partition.append(data, now_ms=NOW_MS)
        if rolls:
            self.log.roll(self.log.log_end_offset, NOW_MS)
        marker = build_marker(
            committed=commit,
            producer_id=self.producer,
            producer_epoch=0,
            coordinator_epoch=1,
            timestamp_ms=NOW_MS,
        )
        self.partition.append(marker, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
        if commit:
            self._note(base, pairs)
        else:
            for at in range(base, base + len(pairs)):
                self.aborted[at] = self.producer

    def _note(self, base: int, pairs: Sequence[tuple[bytes, bytes | None]]) -> None:
        for offset, (key, value) in enumerate(pairs, base):
            self.written[offset] = (key, value)
            self.latest[key] = offset

    def clean(self, keys: int = 1000) -> None:
        """Close the active segment, and run one round of local compaction."""
        log, now_ms = self.log, self.node.clock.ms
        if log.active.size:
            log.roll(log.log_end_offset, now_ms)
        log.sync()
        steps = log.begin_compaction(
            now_ms, high_watermark=log.log_end_offset, memory_bytes=keys * 160
        )
        for _ in steps or ():
            pass

    async def last_records(self) -> dict[bytes, int]:
        """Read everything while the store works. Return the offset of the last record by key."""
        self.steps.fault_rate, rate = 0.0, self.steps.fault_rate
        found: dict[bytes, int] = {}
        at = self.log.log_start_offset
        for _ in range(2_000):
            if at >= self.log.log_end_offset:
                break
            self.arrived.clear()
            try:
                data, next_offset = self.log.read(at, 300)
            except RemoteUnavailable:
                self.node.clock.ms += 2_000
                continue
            if not data and next_offset == at:
                await self.arrived.wait()
                continue
            for position, header in iter_headers(data):
                if not header.is_control and header.record_count:
                    self._take(found, data, position, at)
            assert next_offset > at
            at = next_offset
        assert at >= self.log.log_end_offset
        self.steps.fault_rate = rate
        return found

    def _take(self, found: dict[bytes, int], data: Any, position: int, start: int) -> None:
        for record in read_records(data, position):
            if record.offset in self.aborted:
                hidden = self.log.find_aborted_transactions(record.offset, record.offset + 1)
                assert self.aborted[record.offset] in [a.producer_id for a in hidden]
            elif record.offset >= start:
                assert self.written[record.offset] == (record.key, record.value)
                assert record.key is not None
                found[record.key] = record.offset

    async def check(self) -> None:
        """The last record of each key is there, or it was a tombstone and the key is gone."""
        found = await self.last_records()
        for key, offset in self.latest.items():
            if self.written[offset][1] is not None or key in found:
                assert found[key] == offset, key
        assert found.keys() <= self.latest.keys()

    def stored(self) -> int:
        return len(self.metadata.get_remote(KEY))


def test_only_clean_segments_are_copied_and_then_cleaned_again() -> None:
    async def run() -> None:
        world = CompactedWorld(1)
        for round_ in range(3):
            world.write([(b"key-%d" % n, b"%d" % round_ * 30) for n in range(20)])
            world.log.roll(world.log.log_end_offset, NOW_MS)
            await world.run_pass()
            assert (world.stored() == 0) == (round_ == 0), "dirty segments stay on the disk"
            world.clean()
            for _ in range(2):
                await world.run_pass()
            assert world.log.local_start_offset == world.log.log_end_offset
            await world.check()
        # The values of the last round have 1,155 bytes, and a segment without records has 61.
        assert world.metadata.get_remote(KEY).size_bytes < 1_500
        assert sorted((await world.last_records()).values()) == list(range(40, 60))
        world.check_manifest()

    asyncio.run(run())


def test_a_tombstone_stays_until_the_records_that_it_deletes_are_gone() -> None:
    async def run() -> None:
        world = CompactedWorld(1)
        world.write([(b"a", b"x" * 50), (b"b", b"y" * 50)])
        world.clean()
        await world.run_pass()
        assert world.stored() == 1
        world.write([(b"a", None), (b"c", b"z" * 200)])
        world.node.clock.ms += 10 * DELAY_MS
        world.clean()
        world.node.clock.ms += 10 * DELAY_MS
        world.clean()
        # The disk has no value of the key, and the store has: the tombstone is needed.
        assert (await world.last_records())[b"a"] == 2
        for _ in range(3):
            await world.run_pass()
        world.node.clock.ms += 10 * DELAY_MS
        world.write([(b"d", b"z" * 300)])
        world.clean()
        for _ in range(3):
            await world.run_pass()
        assert set(await world.last_records()) == {b"b", b"c", b"d"}

    asyncio.run(run())


def test_a_segment_that_the_cleaner_has_emptied_leaves_no_gap() -> None:
    """Otherwise local retention stops before it, and what follows stays on the disk."""

    async def run() -> None:
        world = CompactedWorld(1)
        for pairs in ([(b"a", b"1" * 400)], [(b"b", b"2" * 400)], [(b"b", b"3" * 400)]):
            world.write(pairs)
            world.log.roll(world.log.log_end_offset, NOW_MS)
        world.clean()
        assert [segment.size > 0 for segment in world.log.segments] == [True, False, True, False]
        for _ in range(2):
            await world.run_pass()
        remote = world.metadata.get_remote(KEY)
        assert remote.has_offsets(0, 3)
        assert world.log.local_start_offset == 3
        await world.check()

    asyncio.run(run())


def test_the_cost_is_bounded() -> None:
    """With a dirty ratio of a half, cleaning writes at most about as much as was copied."""

    async def run() -> None:
        world = CompactedWorld(1, config=replace(COMPACTED, min_cleanable_dirty_ratio=0.5))
        copied = 0
        for round_ in range(30):
            world.write([(b"key-%d" % n, b"%d" % round_ * 20) for n in range(10)])
            world.clean()
            copied += sum(segment.size for segment in world.log.segments[:-1])
            await world.run_pass()
            await world.run_pass()
        uploaded = world.meters.get_meter("t").copied_bytes
        fetched = world.meters.get_meter("t").fetched_bytes
        assert world.stored() < 12
        assert fetched < 3 * copied, "each byte is read for the map and for the filter"
        assert uploaded < 3 * copied, "with footers, which are large here"
        await world.check()

    asyncio.run(run())


def test_objects_are_sealed_and_keys_have_little_memory() -> None:
    async def run() -> None:
        world = CompactedWorld(5)
        world.add_key("k")
        world.configs |= {
            COMPRESSION: "zstd",
            KEY_ID: "k",
            "log.cleaner.dedupe.buffer.size": 3 * 160,
        }
        for _ in range(8):
            world.write_randomly(10)
            world.clean(keys=4)
            await world.run_pass()
            await world.check()
        assert world.stored()

    asyncio.run(run())


async def play(seed: int, rounds: int) -> None:
    """Write, clean, copy, crash, read, and let time pass, in random order."""
    world = CompactedWorld(seed, fault_rate=0.15)
    draw = world.random
    for _ in range(rounds):
        world.steps.crash_at = world.steps.count + draw.randint(1, 60)
        try:
            world.write_randomly(draw.randint(0, 8))
            if draw.random() < 0.7:
                world.clean(keys=draw.choice([3, 1000]))
            for _ in range(draw.randint(0, 3)):
                await world.run_pass()
        except Crash:
            world.start()
        world.steps.crash_at = -1
        world.check_manifest()
        if draw.random() < 0.3:
            world.node.clock.ms += draw.randint(1, 3 * DELAY_MS)
        if draw.random() < 0.1:
            world.metadata.lose()
            world.start()
            world.steps.fault_rate, rate = 0.0, world.steps.fault_rate
            await world.run_pass()
            world.steps.fault_rate = rate
        await world.check()


@pytest.mark.parametrize("number", range(12))
def test_model(number) -> None:
    asyncio.run(play(SEED + number, 12))


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(20))
def test_model_at_length(number) -> None:
    for seed in range(SEED + 100 * number, SEED + 100 * number + 100):
        asyncio.run(play(seed, 25))


def test_no_unused_copy_is_left() -> None:
    """A cleaning that a crash ended may leave an old segment beside its successor."""

    async def run(crash_at: int) -> bool:
        world = CompactedWorld(3)
        world.steps.crash_at = crash_at
        crashed = False
        try:
            for _ in range(4):
                world.write_randomly(6)
                world.clean()
                await world.run_pass()
        except Crash:
            crashed = True
            world.start()
        world.steps.crash_at = -1
        for _ in range(3):
            world.node.clock.ms += 2 * DELAY_MS
            world.write_randomly(4)
            world.clean()
            await world.run_pass()
            await world.run_pass()
        await world.check()
        remote = world.metadata.get_remote(KEY)
        assert not cleaning.find_served_segments(remote, 0, lambda _: 0).unused
        return crashed

    crash_at = 1 + SEED % 18
    while asyncio.run(run(crash_at)):
        crash_at += 18
    assert crash_at > 30


def test_a_topic_that_becomes_compacted_has_dirty_remote_segments() -> None:
    """An aborted record replaces nothing, also if its marker is not in the store yet."""

    async def run() -> None:
        world = CompactedWorld(1, config=replace(COMPACTED, cleanup_policy=("delete",)))
        world.write([(b"a", b"x" * 50), (b"b", b"1" * 50)])
        world.log.roll(world.log.log_end_offset, NOW_MS)
        world.write([(b"b", b"2" * 50)])
        world.transaction([(b"a", b"aborted")], commit=False, rolls=True)
        await world.run_pass()
        assert (world.stored(), world.log.bases) == (2, [4])
        world.log.config = COMPACTED
        for _ in range(2):
            await world.run_pass()
            assert world.cleaning.cleanings_total
            assert await world.last_records() == {b"a": 0, b"b": 2}
            world.clean()

    asyncio.run(run())


def drops_tombstones_of_the_local_log(patch: pytest.MonkeyPatch) -> None:
    init = Cleaner.__init__

    def forgets(self: Any, config: Any, **given: Any) -> None:
        init(self, config, **given | {"keeps_tombstones": False})

    patch.setattr(Cleaner, "__init__", forgets)


def takes_aborted_records_for_committed_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CleanedTransactionMetadata, "add", lambda self, found: None)


@pytest.mark.parametrize(
    "mutant",
    [
        drops_tombstones_of_the_local_log,
        takes_aborted_records_for_committed_ones,
    ],
)
def test_the_model_finds_mutants(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)

    def several() -> None:
        for seed in range(1_000, 1_010):
            asyncio.run(play(seed, 14))

    with pytest.raises(AssertionError):
        several()
