"""Limits of the rates of copies and of remote reads, and copying that is switched off."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from shoal.server.tiered.quota import COPY, FETCH, TransferQuota
from support.storage.tiered_world import CONFIG, KEY, UNLIMITED, Clock, Images, World


def limit(world: World, side: str, bytes_per_s: int) -> None:
    world.configs[f"remote.log.manager.{side}.max.bytes.per.second"] = bytes_per_s


def chunks_read(world: World) -> int:
    """Return how many chunks were downloaded; the other reads are of footers and manifests."""
    return world.meters.get_meter("t").fetches


def test_copies_wait_for_the_quota() -> None:
    async def run() -> None:
        world = World(1)
        limit(world, COPY, 100)
        world.produce(20)
        wait_ms = await world.copier.run(world.partition)
        assert wait_ms > 1000
        assert len(world.segment_keys()) == 1
        assert await world.copier.run(world.partition) > 1000, "it must still wait"
        assert len(world.segment_keys()) == 1
        world.node.clock.ms += wait_ms
        assert await world.copier.run(world.partition) > 1000
        assert len(world.segment_keys()) == 2
        limit(world, COPY, UNLIMITED)
        assert await world.copier.run(world.partition) == 0
        assert len(world.segment_keys()) > 2
        assert world.copy_quota.throttled_total == 3
        await world.check_the_end()

    asyncio.run(run())


def test_a_pass_that_waits_for_the_quota_still_deletes_and_writes_the_manifest() -> None:
    async def run() -> None:
        world = World(1)
        world.produce(12)
        await world.run_pass()
        before = len(world.segment_keys())
        limit(world, COPY, 1)
        world.produce(8)
        world.log.advance_log_start(world.log.local_start_offset)
        assert await world.copier.run(world.partition) > 0
        assert before > 1
        assert world.segment_keys() == []
        assert world.manifest().log_start_offset == world.log.log_start_offset

    asyncio.run(run())


def test_downloads_wait_for_the_quota_and_their_readers_are_woken() -> None:
    async def run() -> None:
        world = World(1)
        world.produce(20)
        await world.run_pass()
        first = await first_records(world)
        assert chunks_read(world) == 1
        limit(world, FETCH, 300)
        later = world.log.read(first, 500)
        while not later.data and not world.downloads.is_paused:
            await world.arrived.wait()
            world.arrived.clear()
            later = world.log.read(first, 500)
        assert (later.data, chunks_read(world)) == (b"", 1), "no download begins"
        world.arrived.clear()
        limit(world, FETCH, UNLIMITED)
        await asyncio.wait_for(world.arrived.wait(), 20)
        await world.read_all()
        assert chunks_read(world) > 1
        assert world.fetch_quota.throttled_total >= 1

    async def first_records(world: World) -> int:
        """Read the first chunk, and return the offset behind it."""
        while not world.log.read(0, 500).data:
            world.arrived.clear()
            await world.arrived.wait()
        return next(iter(world.metadata.get_remote(KEY))).end_offset + 1

    asyncio.run(run())


def test_copying_is_switched_off_and_on_again() -> None:
    async def run() -> None:
        world = World(1)
        world.produce(12)
        await world.run_pass()
        copied = world.segment_keys()
        world.log.config = replace(CONFIG, remote_log_copy_disable=True)
        world.produce(12)
        local = len(world.log.segments)
        await world.run_pass()
        assert world.segment_keys() == copied
        assert len(world.log.segments) == local, "what is not copied stays on the disk"
        # What was copied stays readable, and leaves by retention.
        await world.read_all()
        start = world.log.local_start_offset
        world.log.advance_log_start(start)
        await world.run_pass()
        assert world.segment_keys() == []
        world.log.config = CONFIG
        await world.check_the_end()
        assert world.segment_keys()

    asyncio.run(run())


class QuotaNode:
    """What a quota uses of a node."""

    def __init__(self, config: dict[str, int]) -> None:
        self.config = config
        self.clock = Clock()


@pytest.mark.parametrize("side", [COPY, FETCH])
def test_the_rate_is_measured_over_the_windows(side) -> None:
    """1,000 bytes in 5 windows of 2 s are more than 50 bytes/s, and 400 are not."""
    configs = {
        "remote.log.manager.copy.quota.window.num": 5,
        "remote.log.manager.copy.quota.window.size.seconds": 2,
        "remote.log.manager.fetch.quota.window.num": 5,
        "remote.log.manager.fetch.quota.window.size.seconds": 2,
    }
    node: Any = QuotaNode(configs)
    limits = {f"remote.log.manager.{side}.max.bytes.per.second": 50}
    cache: Any = Images(limits)
    quota = TransferQuota(node, cache, side)
    quota.record(400)
    assert quota.compute_throttle_ms() == 0, "400 bytes in 10 s"
    quota.record(600)
    node.clock.ms += 8_000
    assert quota.compute_throttle_ms() > 0
    node.clock.ms += 12_000
    assert quota.compute_throttle_ms() == 0
