"""Two members that share a partition by key ranges. One of them does not finish a record."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shoal.client.consume.consumer import GroupConsumer, IndividualCommit
from shoal.client.consume.start_offsets import Reset
from shoal.record.records import build_batch
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shoal.client.client import Client

RECORDS = 40
#: The offset of the record that is not finished.
KEPT = 3


@asynccontextmanager
async def gap(client: Client, bootstrap: str, group: str, topic: str) -> AsyncIterator[str]:
    """Have the members finish all records of the new topic but one. Yield the id of the member that
    has it, with everything else committed."""
    members = [
        await GroupConsumer.join(
            client.cluster,
            group,
            [topic],
            reset=Reset.EARLIEST,
            individual_commit=IndividualCommit(interval_ms=1),
            key_ranges=True,
        )
        for _ in range(2)
    ]
    async with asyncio.timeout(60):
        while not all(member.key_ranges for member in members):
            for member in members:
                await member.poll(50)
        records = [(1, b"k%d" % n, b"%d" % n, ()) for n in range(RECORDS)]
        with WireClient(bootstrap) as wire:
            row = wire.produce(topic, records=bytes(build_batch(records)))
            assert row.error_code == 0
        slow = await _finished(members)
        yield slow
        for member in members:
            await member.close()


async def _finished(members: Sequence[GroupConsumer]) -> str:
    """Finish and commit all records but `KEPT`; return the id of its member."""
    slow, count = "", 0
    while count < RECORDS or any(set(m.positions.values()) != {RECORDS} for m in members):
        for member in members:
            for one in await member.poll(50):
                count += 1
                if one.offset == KEPT:
                    slow = member.membership.member_id
                else:
                    member.finish(one)
    for member in members:
        await member.commit()
    return slow
