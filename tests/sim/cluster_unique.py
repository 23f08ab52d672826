"""Producers that enqueue the same jobs in a topic that stores each id once, in a simulation.

Each producer lives shortly, so no sequence tells the brokers that a job is known. The rules:

* `unique-twice`: an id has two committed records.
* `unique-lost`: an id was acknowledged, and has no record at the end.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.client.admin.topics import NewTopic
from shoal.client.errors import ClientError, KafkaError
from shoal.protocol.errors import ErrorCode
from shoal.record.dedup_ids import DEDUP_ID
from shoal.record.records import read_records
from sim.cluster_clients import Workload, wait
from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    import asyncio

    from shoal.client.client import Client
    from shoal.record.batch import BatchHeader

TOPIC = "unique"
#: A table has 24 ids, and the others are in files.
CONFIGS = {"shoal.deduplication.window.ms": "3600000", "shoal.deduplication.memory.bytes": "1024"}
#: Ids that are sent at a time.
RECENT = 20


class UniqueHistory:
    """The ids that were acknowledged, and those in the log."""

    def __init__(self) -> None:
        self.prepared = False
        self.acknowledged: set[bytes] = set()
        self.offsets: dict[bytes, int] = {}
        #: How many acknowledgements were for ids that the log already had.
        self.repeated = 0

    def on_batch(self, where: tuple[str, int], header: BatchHeader, data: bytes) -> None:
        """Check the ids of a committed batch."""
        if where[0] != TOPIC or header.is_control:
            return
        for record in read_records(data):
            name = dict(record.headers)[DEDUP_ID]
            assert name is not None
            first = self.offsets.setdefault(name, record.offset)
            if first != record.offset:
                raise Violation("unique-twice", f"{name!r} at {first} and {record.offset}")

    def on_acknowledged(self, name: bytes) -> None:
        self.repeated += name in self.offsets
        self.acknowledged.add(name)

    def finish(self) -> None:
        """Check what is known at the end of a run."""
        lost = sorted(self.acknowledged - self.offsets.keys())
        if lost:
            raise Violation("unique-lost", f"{lost}")


async def prepare(load: Workload, client: Client, _name: str) -> None:
    """Create the topic."""
    error = (await client.admin.topics.create([NewTopic(TOPIC, 1, configs=CONFIGS)]))[TOPIC]
    if isinstance(error, KafkaError) and error.code != ErrorCode.topic_already_exists:
        raise error
    load.topics.append(TOPIC)
    load.unique.prepared = True


async def produce(load: Workload, client: Client, name: str) -> None:
    """Send recent ids in small batches, by one producer after the other."""
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    load.under_way[name] = 0

    def on_settled(dedup_id: bytes, future: asyncio.Future[Any]) -> None:
        load.under_way[name] -= 1
        if not future.cancelled() and future.exception() is None:
            load.unique.on_acknowledged(dedup_id)

    while load.producing:
        try:
            async with client.producer(delivery_timeout_ms=6_000) as producer:
                for _ in range(rng.randint(1, 8)):
                    number = max(0, int(load.now * 10) - rng.randrange(RECENT))
                    dedup_id = b"%d" % number
                    future = await producer.send(
                        TOPIC, name.encode(), headers=((DEDUP_ID, dedup_id),)
                    )
                    load.under_way[name] += 1
                    future.add_done_callback(partial(on_settled, dedup_id))
        except ClientError:
            pass
        await wait(rng.uniform(0.01, 0.2))
