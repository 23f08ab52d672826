"""Copying, deleting and reading with a store that fails, and crashes after every step.

At all times every offset from the log start on is readable with the right bytes once the store
works, and at the end the store has exactly the finished segments.
"""

from __future__ import annotations

import asyncio

import pytest
from shoal.log.remote import RemoteUnavailable
from sim.seeds import draw_by_day
from support.runs.seeding import SEED
from support.storage import object_stores
from support.storage.tiered_world import KEY, Crash, World, crash_everywhere, scenario


def test_a_run_without_faults() -> None:
    async def run() -> int:
        world = World(1)
        await scenario(world)
        await world.check_the_end()
        assert len(world.segment_keys()) >= 2
        assert world.log.log_start_offset == 6
        assert world.log.local_start_offset > 6
        return world.steps.count

    assert asyncio.run(run()) > 20


@pytest.mark.parametrize("each", [4, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("lost", [False, True], ids=["metadata-kept", "metadata-lost"])
def test_a_crash_at_every_step(lost, each) -> None:
    """By day at each fourth one, others in each run."""
    assert crash_everywhere(lost=lost, first=1 + SEED % each, each=each) > 20


@pytest.mark.parametrize("number", draw_by_day(range(60), 20))
def test_faults_and_crashes(number) -> None:
    async def run() -> None:
        world = World(SEED + number, fault_rate=0.25)
        for _ in range(6):
            world.steps.crash_at = world.steps.count + world.random.randint(1, 60)
            try:
                world.produce(world.random.randint(0, 8))
                await world.run_pass()
            except Crash:
                world.start()
            world.steps.crash_at = -1
            world.check_manifest()
            if world.random.random() < 0.2:
                world.metadata.lose()
                world.start()
                world.steps.fault_rate, rate = 0.0, world.steps.fault_rate
                await world.run_pass()
                world.steps.fault_rate = rate
            await world.read(40)
            await world.read_all()
            if world.random.random() < 0.3:
                start = world.random.randint(0, world.partition.high_watermark)
                world.log.advance_log_start(start)
        await world.check_the_end()

    asyncio.run(run())


def test_readers_get_an_error_while_the_store_is_down_and_records_afterwards() -> None:
    async def run() -> None:
        world = World(3)
        world.produce(12)
        await world.run_pass()
        works = world.store.choose
        world.store.choose = lambda operation, key: object_stores.UNAVAILABLE
        assert world.log.read(0, 500).data == b""
        await world.arrived.wait()
        with pytest.raises(RemoteUnavailable):
            world.log.read(0, 500)
        world.store.choose = works
        await world.read_all()

    asyncio.run(run())


def test_a_sequential_reader_waits_for_the_first_chunk_only() -> None:
    """It waited for the footer and the first chunk of each segment, and for each chunk at 30 ms a
    request."""

    async def run() -> None:
        world = World(3)
        world.produce(60)
        await world.run_pass()
        end = world.log.bases[0]
        assert len({key for _, key in world.store.calls if key.endswith(".segment")}) > 3
        offset, waits = 0, 0
        while offset < end:
            found = world.log.read(offset, 200)
            if not found.data:
                waits += 1
                await world.arrived.wait()
            world.arrived.clear()
            offset = found.next_offset
            # A reader works on what it has read.
            for _ in range(10):
                await asyncio.sleep(0)
        assert waits <= 3

    asyncio.run(run())


def test_a_reader_of_single_records_downloads_no_further_segment() -> None:
    async def run() -> None:
        world = World(3)
        world.produce(60)
        await world.run_pass()
        world.store.calls.clear()
        segment = next(iter(world.metadata.get_remote(KEY)))
        while not world.log.read(segment.end_offset, 500).data:
            await world.arrived.wait()
            world.arrived.clear()
        assert len({key for _, key in world.store.calls}) == 1

    asyncio.run(run())


def test_readers_share_a_download_and_the_next_chunk_is_prefetched() -> None:
    async def run() -> None:
        world = World(3)
        world.produce(12)
        await world.run_pass()
        world.store.calls.clear()
        for offset in (0, 0, 1):
            assert world.log.read(offset, 500).data == b""
        await world.arrived.wait()
        world.arrived.clear()
        assert world.log.read(0, 500).data == b""
        await world.arrived.wait()
        assert world.log.read(0, 500).data
        assert len(world.store.calls) == 2, "one footer and one chunk"

    asyncio.run(run())
