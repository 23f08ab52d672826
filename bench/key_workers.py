"""A member with 100 key workers, a plain member, and Confluent's Parallel Consumer.

One partition, 1,000 keys, 5 ms of work for each record. All three read from the same broker. The
rate counts from the first tenth of the records on. Each load checks that every record came, and
each key in order.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from load_checks import LoadFailed
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, IndividualCommit, Record
from shoal.client.consume.key_workers import KeyWorkers
from shoal.client.consume.start_offsets import Reset

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokers import Broker
    from load_checks import Sent
    from load_setup import Figures, Run

KEYS, WORKERS, WORK_S = 1_000, 100, 0.005
#: Records of the workers, and of the plain member, which is slower.
RECORDS, PLAIN_RECORDS = 100_000, 1_000
HERE = Path(__file__).parent
SOURCE = HERE / "ParallelLoad.java"
#: The jars of `mvn -f bench/parallel-consumer.xml dependency:copy-dependencies`.
LIBRARY = HERE / "lib"
TIMEOUT_S = 300


class Progress:
    """Counts records, and checks the order of each key."""

    def __init__(self, count: int) -> None:
        self.count, self.warm, self.done = count, count // 10, 0
        self._last: dict[bytes | None, int] = {}
        self._began = 0.0

    def add(self, record: Record) -> bool:
        """Note a record; return whether it was the last one."""
        if self._last.get(record.key, -1) >= record.offset:
            raise LoadFailed(f"key {record.key!r}: offset {record.offset} is out of order")
        self._last[record.key] = record.offset
        self.done += 1
        if self.done == self.warm:
            self._began = time.perf_counter()
        return self.done == self.count

    def rate(self) -> float:
        return (self.count - self.warm) / (time.perf_counter() - self._began)


def key_workers(_broker: Broker, run: Run, fill: Callable[..., Sent]) -> Figures:
    """Key workers and a plain member."""
    topic = _filled(run, fill)
    found = {
        "workers_per_s": asyncio.run(_workers(run.bootstrap, topic, run.count(RECORDS))),
        "plain_per_s": asyncio.run(plain_rate(run.bootstrap, topic, run.count(PLAIN_RECORDS))),
    }
    return {**found, "ratio_to_plain": found["workers_per_s"] / found["plain_per_s"]}


def parallel_consumer(_broker: Broker, run: Run, fill: Callable[..., Sent]) -> Figures:
    """Key workers, and Parallel Consumer with KEY order and the same number of workers."""
    if not any(LIBRARY.glob("parallel-consumer-core-*.jar")):
        raise LoadFailed(
            "Parallel Consumer is not in bench/lib: run `make bench-queues`, or mvn -f "
            "bench/parallel-consumer.xml dependency:copy-dependencies -DoutputDirectory=lib"
        )
    topic, count = _filled(run, fill), run.count(RECORDS)
    words = [str(SOURCE), run.bootstrap, _group(), topic, str(count), str(WORKERS)]
    ended = subprocess.run(
        ["java", "-Xmx1g", "-cp", f"{LIBRARY}/*", *words, str(int(WORK_S * 1000))],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if ended.returncode:
        raise LoadFailed(f"Parallel Consumer: {(ended.stdout + ended.stderr)[-2000:]}")
    found = {
        "workers_per_s": asyncio.run(_workers(run.bootstrap, topic, count)),
        "parallel_consumer_per_s": float(ended.stdout.strip().splitlines()[-1]),
    }
    ratio = found["workers_per_s"] / found["parallel_consumer_per_s"]
    return {**found, "ratio_to_parallel_consumer": ratio}


def _filled(run: Run, fill: Callable[..., Sent]) -> str:
    topic = run.topic()
    keys = [2 * key for key in random.Random(1).choices(range(KEYS), k=run.count(RECORDS))]
    fill(run, topic, keys, batch=100)
    return topic


def _group() -> str:
    return f"bench-{uuid.uuid4().hex[:10]}"


async def _workers(bootstrap: str, topic: str, count: int) -> float:
    progress = Progress(count)
    rate = 0.0

    async def handle(record: Record) -> None:
        nonlocal rate
        await asyncio.sleep(WORK_S)
        if progress.add(record):
            rate = progress.rate()
            workers.stop()

    async with (
        Client(bootstrap) as client,
        await GroupConsumer.join(
            client.cluster,
            _group(),
            [topic],
            reset=Reset.EARLIEST,
            individual_commit=IndividualCommit(),
        ) as consumer,
    ):
        workers = KeyWorkers(consumer, handle, keys_max=WORKERS)
        async with asyncio.timeout(TIMEOUT_S):
            await workers.run()
    return rate


async def plain_rate(bootstrap: str, topic: str, count: int) -> float:
    """Return the rate of a plain member, which works on one record after the other."""
    progress = Progress(count)
    async with (
        Client(bootstrap) as client,
        await GroupConsumer.join(
            client.cluster, _group(), [topic], reset=Reset.EARLIEST
        ) as consumer,
        asyncio.timeout(TIMEOUT_S),
    ):
        while True:
            for record in await consumer.poll():
                await asyncio.sleep(WORK_S)
                if progress.add(record):
                    return progress.rate()
