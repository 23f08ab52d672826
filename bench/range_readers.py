"""Readers that share one partition by key ranges: the broker's CPU a record."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from load_checks import LoadFailed
from shoal.client.client import Client
from shoal.client.consume.consumer import Reader
from shoal.client.consume.start_offsets import Reset
from shoal.client.net.cluster import TopicPartition
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokers import Broker
    from load_checks import Sent
    from load_setup import Figures, Run

KEYS = 10_000
RECORDS = 1_000_000
READERS = (1, 2, 8)
#: Configs of a topic that allows key ranges.
DIVIDED = {"shoal.key.ranges.enable": "true"}


def key_ranges(broker: Broker, run: Run, fill: Callable[..., Sent]) -> Figures:
    """One partition, 10,000 keys, 100 B, batches of 100: read by one, two and eight readers, each
    time from a new topic, of which the broker has cached nothing."""
    count, found = run.count(RECORDS), {}
    for readers in READERS:
        topic = run.topic(configs=DIVIDED)
        keys = [2 * key for key in random.Random(1).choices(range(KEYS), k=count)]
        fill(run, topic, keys, batch=100)
        before = broker.cpu_s()
        read = asyncio.run(_read(run.bootstrap, topic, readers, count))
        if read != count:
            raise LoadFailed(f"{readers} readers got {read} of {count} records")
        found[f"cpu_us_{readers}"] = (broker.cpu_s() - before) / count * 1e6
    return {**found, "ratio_by_readers": found["cpu_us_8"] / found["cpu_us_2"]}


async def _read(bootstrap: str, topic: str, readers: int, end: int) -> int:
    """Read the whole partition with readers side by side; return the number of records."""
    where = TopicPartition(topic, 0)

    async def one(number: int) -> int:
        async with Client(bootstrap) as client:
            reader = Reader(client.cluster, {}, reset=Reset.EARLIEST)
            await reader.assign({where: KeyRanges.from_part(number, readers)})
            found = 0
            while reader.positions[where] < end:
                found += sum(1 for _ in await reader.poll())
            return found

    return sum(await asyncio.gather(*(one(n) for n in range(1, readers + 1))))
