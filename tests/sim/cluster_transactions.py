"""The transactional clients of a simulated cluster: processors, and auditors of their output.

A processor takes over one input partition through its transactional id, and so fences the former
processor. It reads from the group's offset, writes to the topic `ledger`, and commits the offset in
the transaction. Then it ends the transaction, or leaves it open and moves on: the coordinator, or
the next processor, aborts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.consume.fetcher import FetchedBatches, Isolation
from shoal.client.errors import ClientError, KafkaError, check, expect
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.client.share.member import Acknowledgement, AcknowledgeType
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from sim.cluster_clients import PARTITIONS, TOPIC, Workload, wait
from sim.cluster_producer import TransactionalProducer
from sim.cluster_requests import ask_coordinator
from sim.transaction_rules import Transaction, value_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.client.client import Client

LEDGER, PROCESSORS, EXAMINERS = "ledger", "processors", "examiners"
_LEDGER = [TopicPartition(LEDGER, index) for index in range(PARTITIONS)]


async def prepare(load: Workload, client: Client, _name: str) -> None:
    """Create the output topic."""
    error = (await client.admin.topics.create([NewTopic(LEDGER, PARTITIONS)]))[LEDGER]
    if isinstance(error, KafkaError) and error.code != ErrorCode.topic_already_exists:
        raise error
    load.topics.append(LEDGER)


async def process(load: Workload, client: Client, name: str) -> None:
    """Take over one partition after the other."""
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    while True:
        await _take_over(load, client, rng, TopicPartition(TOPIC, rng.randrange(PARTITIONS)))
        await wait(rng.uniform(0.0, 0.5))


async def _take_over(
    load: Workload, client: Client, rng: random.Random, source: TopicPartition
) -> None:
    producer = TransactionalProducer(
        client.cluster,
        f"processor-{source.partition}",
        version=rng.choice((1, 2, 2)),
        timeout_ms=rng.choice((1_500, 4_000)),
    )
    await producer.init()
    # A processor that is fenced while it waits for the response may get an older offset.
    committed = load.transactions.committed(source)
    position = await _committed(client.cluster, source)
    load.transactions.starts_at(source, position, committed)
    until = load.now + rng.uniform(0.5, 4.0)
    while load.now < until:
        found = await client.fetcher.poll({source: position}, max_wait_ms=200)
        if source not in found:
            if load.draining:
                return
            continue
        fetched = expect(found)[source]
        next_ = min(fetched.next_offset, position + rng.choice((1, 3, 20)))
        transaction = load.transactions.begun(source, position, next_)
        if not load.draining and rng.random() < 0.1:
            asyncio.get_running_loop().create_task(_late(load, rng, producer, transaction))
            await wait(rng.choice((0.0, 0.3, 1.0)))
            return  # From here on another processor may take over.
        await _write(rng, producer, transaction)
        committed = load.draining or rng.random() > 0.2
        await _end(load, producer, transaction, committed=committed)
        if committed:
            position = next_


async def _end(
    load: Workload, producer: TransactionalProducer, transaction: Transaction, *, committed: bool
) -> None:
    transaction.asked = committed
    await producer.end(committed=committed)
    load.transactions.acknowledged(transaction)


async def _late(
    load: Workload, rng: random.Random, producer: TransactionalProducer, transaction: Transaction
) -> None:
    """Write and end a transaction late: possibly after the timeout aborted it, or after another
    processor has taken over."""
    with contextlib.suppress(ClientError):
        await wait(rng.choice((0.0, 0.2, 1.0, 2.0)))
        await _write(rng, producer, transaction)
        await wait(rng.choice((0.0, 0.2, 1.0, 2.0)))
        if rng.random() < 0.7:
            await _end(load, producer, transaction, committed=True)


async def _write(
    rng: random.Random, producer: TransactionalProducer, transaction: Transaction
) -> None:
    """Write all records of a transaction and its offset, concurrently or in sequence."""
    into: dict[TopicPartition, list[bytes]] = {}
    for offset in range(transaction.first, transaction.next):
        into.setdefault(rng.choice(_LEDGER), []).append(value_of(transaction, offset))
    source = TopicPartition(*transaction.source)
    writes: list[Callable[[], Awaitable[Any]]]
    writes = [partial(producer.send, where, values) for where, values in into.items()]
    writes.append(partial(producer.commit_offset, PROCESSORS, source, transaction.next))
    if rng.random() < 0.6:
        await asyncio.gather(*(write() for write in writes))
    else:
        for write in writes:
            await write()


async def _committed(cluster: Cluster, source: TopicPartition) -> int:
    """Return the offset to resume from; wait while an open transaction may change it."""
    topic = {"name": source.topic, "partition_indexes": [source.partition]}
    body = {"groups": [{"group_id": PROCESSORS, "topics": [topic]}], "require_stable": True}

    async def attempt() -> int:
        answer = await ask_coordinator(
            cluster,
            PROCESSORS,
            ApiKey.OFFSET_FETCH,
            body,
            8,
            code=lambda answer: answer.groups[0].error_code,
        )
        (found,) = answer.groups[0].topics[0].partitions
        check(found.error_code, f"offset of {source}")
        return max(0, found.committed_offset)

    return await cluster.retry(attempt)


async def audit(load: Workload, client: Client, name: str) -> None:
    """Read the output from its beginning, repeatedly."""
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    while True:
        positions = dict.fromkeys(_LEDGER, 0)
        until = load.now + rng.uniform(1.0, 5.0)
        while load.now < until:
            found = await client.fetcher.poll(
                positions, max_wait_ms=200, isolation=Isolation.READ_COMMITTED
            )
            for where, fetched in expect(found).items():
                _audited(load, name, fetched)
                positions[where] = fetched.next_offset


def _audited(load: Workload, name: str, fetched: FetchedBatches) -> None:
    entries = [(record.offset, record.value or b"") for record in fetched.records()]
    where = fetched.topic, fetched.partition
    load.transactions.audited(
        name, where, fetched.first, fetched.next_offset, fetched.last_stable_offset, entries
    )


async def examine(load: Workload, client: Client, name: str) -> None:
    """Run a member of a read-committed share group on the output that accepts every record."""
    group = ConfigResource(ConfigResourceType.GROUP, EXAMINERS)
    changes = [
        ConfigChange("share.auto.offset.reset", "earliest"),
        ConfigChange("share.isolation.level", "read_committed"),
    ]
    for refused in (await client.admin.configs.alter({group: changes})).values():
        if refused is not None:
            raise refused
    async with await client.share(EXAMINERS, [LEDGER]) as session:
        while True:
            due = []
            for acquired in await session.acquire(max_records=50, max_wait_ms=300):
                for record in acquired.records():
                    topic, partition, offset = record.topic, record.partition, record.offset
                    value = record.value or b""
                    load.transactions.examined(name, (topic, partition), offset, value)
                    kind = AcknowledgeType.ACCEPT
                    due.append(Acknowledgement(topic, partition, offset, offset, kind))
            if due:
                await session.acknowledge(due)


async def audit_all(load: Workload, client: Client, name: str) -> None:
    """Wait until all input is processed and no transaction is open, then read the output."""
    sources = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    while True:
        inputs = expect(await client.admin.topics.offsets(dict.fromkeys(sources, -1)))
        group = expect(await client.admin.groups.offsets([PROCESSORS]))[PROCESSORS]
        behind = [p for p in sources if inputs[p].offset > (group[p].offset if p in group else 0)]
        ends = expect(await client.admin.topics.offsets(dict.fromkeys(_LEDGER, -1)))
        stable = expect(
            await client.admin.topics.offsets(
                dict.fromkeys(_LEDGER, -1), isolation=Isolation.READ_COMMITTED
            )
        )
        open_ = [p for p in _LEDGER if stable[p].offset < ends[p].offset]
        if not behind and not open_:
            break
        load.kernel.trace(f"{name} waits for {behind}, open {open_}")
        await wait(0.3)
    final: list[bytes] = []
    for where in _LEDGER:
        last = stable[where].offset - 1
        if last < 0:
            continue
        async for fetched in client.fetcher.fetch_range(
            where.topic, where.partition, 0, last, isolation=Isolation.READ_COMMITTED
        ):
            _audited(load, name, fetched)
            final += [record.value or b"" for record in fetched.records()]
    while not load.transactions.shared.issuperset(final):
        load.kernel.trace(f"{name} waits for the examiners")
        await wait(0.3)
    load.transactions.finish(final, {(p.topic, p.partition): e.offset for p, e in inputs.items()})
    load.audited = True
