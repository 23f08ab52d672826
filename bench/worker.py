"""Measure `shoal.worker` against a bare share session: a no-op async handler, records of 100 bytes.

`python bench/worker.py [RECORDS [PAIRS]]` starts a broker, fills a topic, and drains it by one
group after the other, in turn. Both sides acquire, decode and accept each record, and send their
outcomes with the next fetch. It prints medians of records per second and of CPU time, and the
medians of the ratios of pairs. Garbage is collected as in `shoal worker`. A machine that does other
things, too, disturbs the rates, but hardly the CPU time.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from brokers import process_cpu_s
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.client.share.acquired import Acknowledgement, AcknowledgeType
from shoal.worker import Worker
from shoal.worker.process import freeze_imports
from support.brokers.servers import ShoalProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOPIC, VALUE, PAIRS = "jobs", b"x" * 100, 5
#: Records that a fetch of the bare session asks for, as many as a group may lock by default.
BARE_MAX_RECORDS = 2_000


async def drain_bare(client: Client, group: str, records: int) -> float:
    """Accept all records of the topic by a bare session; return when the last one was there."""
    acks: list[Acknowledgement] = []
    count = 0
    async with await client.share(group, [TOPIC]) as session:
        while count < records:
            found = await session.acquire(
                max_records=BARE_MAX_RECORDS, max_wait_ms=500, acknowledgements=acks
            )
            acks = []
            for acquired in found:
                for _record in acquired.records():
                    count += 1
                acks += acquired.acknowledge(AcknowledgeType.ACCEPT)
        ended_s = time.perf_counter()
        await session.acknowledge(acks)
    return ended_s


async def drain_by_worker(client: Client, group: str, records: int) -> float:
    """Accept all records of the topic by a worker; return when the last one was handled. A worker
    that stops may first wait for a fetch without records."""
    worker, count, ended_s = Worker(group), 0, 0.0

    @worker.handler(TOPIC)
    async def handle(payload: bytes) -> None:
        del payload
        nonlocal count, ended_s
        count += 1
        if count == records:
            ended_s = time.perf_counter()
            worker.stop()

    await worker.serve(client)
    return ended_s


async def measure(
    client: Client, group: str, drain: Callable[[Client, str, int], Awaitable[float]], records: int
) -> tuple[float, float]:
    """Return records per second, and the CPU microseconds of this process for a record."""
    resource = ConfigResource(ConfigResourceType.GROUP, group)
    change = ConfigChange("share.auto.offset.reset", "earliest")
    expect(await client.admin.configs.alter({resource: [change]}))
    began, cpu = time.perf_counter(), time.process_time()
    rate = records / (await drain(client, group, records) - began)
    return rate, (time.process_time() - cpu) / records * 1e6


class Run(NamedTuple):
    """A drained topic: records per second, and CPU microseconds for a record."""

    rate: float
    client_us: float
    broker_us: float


async def run(records: int, pairs: int) -> None:
    freeze_imports()
    runs: dict[str, list[Run]] = {drain_bare.__name__: [], drain_by_worker.__name__: []}
    with tempfile.TemporaryDirectory() as directory:
        broker = ShoalProcess(Path(directory) / "data").start()
        try:
            async with Client(broker.bootstrap) as client:
                expect(await client.admin.topics.create([NewTopic(TOPIC, 4)]))
                async with client.producer() as producer:
                    for _ in range(records):
                        await producer.send(TOPIC, VALUE)
                for n in range(pairs):
                    for drain in (drain_bare, drain_by_worker):
                        cpu_s = process_cpu_s(broker.pid)
                        found = await measure(client, f"{drain.__name__}-{n}", drain, records)
                        broker_us = (process_cpu_s(broker.pid) - cpu_s) / records * 1e6
                        runs[drain.__name__].append(Run(*found, broker_us))
        finally:
            broker.stop()
    for name, found_runs in runs.items():
        rate, client_us, broker_us = map(statistics.median, zip(*found_runs, strict=True))
        cpu = f"{client_us:.2f} us of CPU here and {broker_us:.2f} us in the broker for a record"
        print(f"{name}: {rate:,.0f} records/s, {cpu}")
    both = list(zip(runs[drain_bare.__name__], runs[drain_by_worker.__name__], strict=True))
    by_rate = statistics.median(worker.rate / bare.rate for bare, worker in both)
    by_cpu = statistics.median(bare.client_us / worker.client_us for bare, worker in both)
    print(f"worker to bare session: {by_rate:.2f} by rate, {by_cpu:.2f} by CPU of the client")


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    asyncio.run(run(*(arguments + [200_000, PAIRS][len(arguments) :])))
