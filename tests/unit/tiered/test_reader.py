"""Reads of remote segments while others are copied."""

from __future__ import annotations

import asyncio

from shoal.log.appends import AppendOrigin
from shoal.record.control import build_marker
from support.storage.log_material import NOW_MS, batch
from support.storage.tiered_world import World


def test_a_transaction_is_aborted_also_when_its_marker_is_copied_later() -> None:
    """The first segment was opened while the segment with the marker was on the disk only."""

    async def main() -> None:
        world = World(1)
        world.values.append(b"")
        world.partition.append(
            batch(b"open", producer=(7, 2, 0), transactional=True), now_ms=NOW_MS
        )
        world.produce(10)
        marker = build_marker(
            committed=False,
            producer_id=7,
            producer_epoch=2,
            coordinator_epoch=0,
            timestamp_ms=NOW_MS,
        )
        world.partition.append(marker, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
        marked = world.log.log_end_offset - 1
        await world.run_pass()

        async def aborted() -> list[int]:
            world.arrived.clear()
            while not world.log.read(0, 100).data:
                await world.arrived.wait()
                world.arrived.clear()
            return [entry.producer_id for entry in world.log.find_aborted_transactions(0, 1)]

        assert 0 < world.log.local_start_offset <= marked
        assert await aborted() == [7]
        world.values.append(b"")
        world.produce(20)
        await world.run_pass()
        assert world.log.local_start_offset > marked
        assert await aborted() == [7]

    asyncio.run(main())
