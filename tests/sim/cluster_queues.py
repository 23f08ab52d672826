"""Two share groups on one topic of a simulated cluster that use more than Kafka's defaults.

The sorters have key order, a low delivery limit and a dead-letter topic. The hoarders have a small
limit of records in flight, request many, and use long waits. Records are produced in bursts, most
with a key.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.coordinator.share.dead_letters import PREFIX
from shoal.protocol.errors import ErrorCode
from sim.cluster_clients import Workload, wait
from sim.cluster_kernel import Violation
from sim.cluster_share_clients import Ways, Worker
from sim.cluster_shares import Letter, Record, ShareHistory

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterable

    from shoal.client.client import Client
    from shoal.record.records import Record as StoredRecord

JOBS, LETTERS, SORTERS, HOARDERS = "jobs", "dlq.jobs", "sorters", "hoarders"
#: The delivery limits of the sorters and of the hoarders; the hoarders' limit of records in flight.
LIMIT, LIMIT_OF_HOARDERS, LOCKS = 4, 25, 100
_GROUPS = {
    SORTERS: {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": str(LIMIT),
        "share.ordering": "key",
        "errors.deadletterqueue.topic.name": LETTERS,
    },
    HOARDERS: {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": str(LIMIT_OF_HOARDERS),
        "share.partition.max.record.locks": str(LOCKS),
    },
}
_WAYS = {
    SORTERS: Ways(left=0.1, released=0.2, rejected=0.1, batches=(1, 5, 20)),
    HOARDERS: Ways(left=0.2, batches=(50, 300), max_wait_ms=2_000),
}


class Queues:
    """What the members of both groups saw, and what was produced for them."""

    def __init__(self, load: Workload) -> None:
        self.load = load
        self.sent: dict[bytes, bytes | None] = {}
        self.stored: dict[Record, bytes] = {}
        self.prepared = self.is_through = False
        #: What the topic and the dead-letter topic have at the end.
        self.final: dict[Record, StoredRecord] = {}
        self.letters: list[Letter] = []
        self.producing = False
        self.groups: dict[str, ShareHistory] = {}
        for group, limit in ((SORTERS, LIMIT), (HOARDERS, LIMIT_OF_HOARDERS)):
            self.groups[group] = load.share_group(group, limit, self.saw)

    def saw(self, record: Record, value: bytes | None, who: str) -> None:
        known = self.stored.setdefault(record, value or b"")
        if known != value or value not in self.sent:
            raise Violation("inconsistent-offsets", f"{record}: {known!r}, {value!r} to {who}")

    def finish(self) -> None:
        """Check all records of the topic and of the dead-letter topic at the end of the run."""
        final, letters = self.final, self.letters
        for record, value in self.stored.items():
            if record not in final:
                raise Violation("lost-write", f"{value!r} at {record}")
        for record, found in final.items():
            self.saw(record, found.value, "the last reader")
        sorters = self.groups[SORTERS]
        sorters.finish_letters(final, letters)
        self.load.shares.finish_letters(SORTERS, letters)
        keys = {record: found.key for record, found in final.items()}
        sorters.finish_keys(keys, letters)
        self.groups[HOARDERS].finish(final)


async def prepare(load: Workload, client: Client, _name: str) -> None:
    """Create the topics, and set the groups' configs."""
    topics = [NewTopic(JOBS, 1), NewTopic(LETTERS, 1)]
    for made in (await client.admin.topics.create(topics)).values():
        if isinstance(made, KafkaError) and made.code != ErrorCode.topic_already_exists:
            raise made
    changes = {
        ConfigResource(ConfigResourceType.GROUP, group): [
            ConfigChange(*item) for item in configs.items()
        ]
        for group, configs in _GROUPS.items()
    }
    enable = ConfigChange("errors.deadletterqueue.group.enable", "true")
    changes[ConfigResource(ConfigResourceType.TOPIC, LETTERS)] = [enable]
    for refused in (await client.admin.configs.alter(changes)).values():
        if refused is not None:
            raise refused
    load.queues.prepared = True


async def produce(load: Workload, client: Client, name: str) -> None:
    """Produce bursts of records; the first exceeds the hoarders' limit of records in flight."""
    queues = load.queues
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")

    def settled(value: bytes, future: asyncio.Future[Any]) -> None:
        load.under_way[name] -= 1
        if not future.cancelled() and future.exception() is None:
            found = future.result()
            queues.saw((found.topic, found.partition, found.offset), value, "its producer")

    load.under_way[name] = 0
    burst = LOCKS + 30
    async with client.producer(delivery_timeout_ms=6_000) as producer:
        while load.producing:
            for _ in range(burst):
                value = b"%d" % len(queues.sent)
                key = None if rng.random() < 0.2 else b"%d" % rng.randrange(12)
                queues.sent[value] = key
                load.under_way[name] += 1
                future = await producer.send(JOBS, value, key=key)
                future.add_done_callback(partial(settled, value))
            burst = rng.choice((1, 5, 20, 40))
            await wait(rng.uniform(0.2, 0.8))


async def sort(load: Workload, client: Client, name: str) -> None:
    """A member of the sorters."""
    await _work(load, client, name, SORTERS)


async def hoard(load: Workload, client: Client, name: str) -> None:
    """A member of the hoarders."""
    await _work(load, client, name, HOARDERS)


async def _work(load: Workload, client: Client, name: str, group: str) -> None:
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    await Worker(load, load.queues.groups[group], JOBS, rng, _WAYS[group]).work(client)


async def read_to_the_end(load: Workload, client: Client, name: str) -> None:
    """Wait until both groups have finished, then read the topic and the dead letters."""
    where = TopicPartition(JOBS, 0)
    while True:
        found = expect(await client.admin.share_groups.offsets([*_GROUPS]))
        lags = {group: getattr(expect(of).get(where), "lag", -1) for group, of in found.items()}
        if not any(lags.values()):
            break
        load.kernel.trace(f"{name} waits for the lags {lags}")
        await wait(0.3)
    queues = load.queues
    queues.final = {(JOBS, 0, record.offset): record async for record in _all(client, JOBS)}
    queues.letters = [_letter(record) async for record in _all(client, LETTERS)]
    queues.is_through = True


async def _all(client: Client, topic: str) -> AsyncIterator[StoredRecord]:
    where = TopicPartition(topic, 0)
    end = expect(await client.admin.topics.offsets({where: -1}))[where].offset
    if end > 0:
        async for fetched in client.fetcher.fetch_range(topic, 0, 0, end - 1):
            for record in fetched.records():
                if record.offset < end:
                    yield record


def _letter(record: StoredRecord) -> Letter:
    def header(name: str, headers: Iterable[tuple[str, bytes | None]] = record.headers) -> bytes:
        return next(value or b"" for of, value in headers if of == PREFIX + name)

    if header("group") != SORTERS.encode():
        raise Violation("share-dead-letters", f"a letter of {header('group')!r}")
    place = (header("topic").decode(), int(header("partition")), int(header("offset")))
    return Letter(place, int(header("delivery.count")))
