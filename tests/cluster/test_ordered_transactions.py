"""Members that share partitions, whose transactions commit in the order of the partitions."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_range_transactions import CONFIGS, SESSION, copies, fill, run, values
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import KafkaError, ProducerFenced, TransactionAbortable
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import COMMIT_ORDER_FEATURE
from shoal.record.key_hash import hash_key
from shoal.record.records import build_batch
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.workers.exactly_once_worker import Copier

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.client.consume.consumer import Record
    from shoal.client.produce.transactional import TransactionalProducer

WAITING = "shoal_group_coordinator_key_range_waiting_commits"
REFUSED = "shoal_group_coordinator_key_range_refused_order_count_total"
#: Records that each source gets at once.
ROUND = 40
_names = (f"ordered-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("ordered") / "data", configs=CONFIGS).start()
    yield process
    process.kill9()


def topics(broker: ShoalProcess, count: int) -> tuple[list[str], str]:
    """Create sources and a target of one partition each."""
    name = next(_names)
    sources = [f"{name}-{n}" for n in range(count)]
    with WireClient(broker.bootstrap) as client:
        for source in sources:
            client.create_topic(source, 1, shoal_key_ranges_enable="true")
        client.create_topic(f"{name}-out", 1)
    return sources, f"{name}-out"


class Side:
    """A member and its producer."""

    def __init__(self, consumer: GroupConsumer, producer: TransactionalProducer) -> None:
        self.consumer, self.producer = consumer, producer
        self.records: list[Record] = []

    @classmethod
    async def join(cls, client: Client, sources: Sequence[str], name: str, **options: Any) -> Side:
        producer = await client.transactional_producer(f"{sources[0]}-{name}", **options)
        consumer = await GroupConsumer.join(
            client.cluster,
            sources[0],
            sources,
            reset=Reset.EARLIEST,
            isolation=Isolation.READ_COMMITTED,
            key_ranges=True,
            producer=producer,
            in_order=True,
        )
        return cls(consumer, producer)

    async def poll(self) -> None:
        self.records += await self.consumer.poll(50)

    async def begin(self, target: str) -> None:
        self.producer.begin()
        for record in self.records:
            await self.producer.send(target, b"%d" % record.offset, key=record.topic.encode())

    async def copy(self, target: str) -> None:
        """Copy what was read; after an abort, read it again."""
        try:
            await self.begin(target)
            await self.producer.commit()
        except TransactionAbortable:
            await self.producer.abort()
        self.records = []

    def key(self, source: str) -> bytes:
        """A key of the member."""
        owned = self.consumer.key_ranges[TopicPartition(source, 0)]
        return next(k for k in (b"%d" % n for n in range(10_000)) if owned.has_hash(hash_key(k)))


async def pair(client: Client, sources: Sequence[str], **options: Any) -> tuple[Side, Side]:
    """Two members with a half of each source."""
    one = await Side.join(client, sources, "1", **options)
    other = await Side.join(client, sources, "2", **options)
    half = 1 << 62
    while any(
        len(side.consumer.key_ranges) < len(sources)
        or any(sum(r.last - r.first + 1 for r in some) != half for some in ranges.values())
        for side in (one, other)
        for ranges in [side.consumer.key_ranges]
    ):
        await one.poll()
        await other.poll()
    return one, other


def produce(broker: ShoalProcess, source: str, *keys: bytes) -> None:
    records = [(1, key, b"v", ()) for key in keys]
    with WireClient(broker.bootstrap) as client:
        assert client.produce(source, records=bytes(build_batch(records))).error_code == 0


async def waits(broker: ShoalProcess, count: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, lambda: eventually(lambda: broker.metric(WAITING) == count))


def test_outputs_follow_the_order_of_the_partition(broker: ShoalProcess) -> None:
    """The keys of two members are interleaved. What comes first is copied first, although its
    transaction begins later. Nothing of the other one is sent before."""
    sources, target = topics(broker, 1)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            one, other = await pair(client, sources)
            mine, theirs = one.key(sources[0]), other.key(sources[0])
            produce(broker, sources[0], theirs, mine, theirs, mine)
            while len(one.records) + len(other.records) < 4:
                await one.poll()
                await other.poll()
            assert [r.offset for r in one.records] == [1, 3]
            await one.begin(target)
            with pytest.raises(ValueError, match="commit sends the records"):
                await one.producer.flush()
            committing = asyncio.ensure_future(one.producer.commit())
            await waits(broker, 1)
            assert await copies(client, target) == []
            await other.begin(target)
            await other.producer.commit()
            await committing
            assert [offset for _, offset in await copies(client, target)] == [0, 2, 1, 3]
            for side in (one, other):
                await side.consumer.close()

    run(main())


def test_a_member_without_records_holds_nobody_up(broker: ShoalProcess) -> None:
    """It commits what it passes. The time of the wait would be 10 s."""
    sources, target = topics(broker, 1)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            one, other = await pair(client, sources, timeout_ms=20_000)
            produce(broker, sources[0], *[one.key(sources[0])] * 5)
            while len(one.records) < 5:
                await one.poll()
                await other.poll()
            produce(broker, sources[0], *[one.key(sources[0])] * 5)
            await one.copy(target)
            while len(one.records) < 5:
                await one.poll()
            await one.begin(target)
            committing = asyncio.ensure_future(one.producer.commit())
            while not committing.done():
                await other.poll()
            await committing
            assert [offset for _, offset in await copies(client, target)] == list(range(10))
            for side in (one, other):
                await side.consumer.close()

    run(main())


def test_members_that_wait_for_each_other(broker: ShoalProcess) -> None:
    """Each is first in one partition. The younger transaction is refused at once, and both get on:
    its member repeats it with the records of one partition."""
    sources, target = topics(broker, 2)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            one, other = await pair(client, sources)
            produce(broker, sources[0], one.key(sources[0]), other.key(sources[0]))
            produce(broker, sources[1], other.key(sources[1]), one.key(sources[1]))
            while len(one.records) + len(other.records) < 4:
                await one.poll()
                await other.poll()
            before = broker.metric(REFUSED)
            await one.begin(target)
            committing = asyncio.ensure_future(one.producer.commit())
            await waits(broker, 1)
            await other.begin(target)
            with pytest.raises(TransactionAbortable, match="whose commits wait for this one"):
                await other.producer.commit()
            await other.producer.abort()
            assert broker.metric(REFUSED) == before + 1
            other.records = []
            while len(await copies(client, target)) < 4:
                await other.poll()
                if other.records:
                    assert len({r.topic for r in other.records}) == 1
                    await other.copy(target)
            await committing
            found = await copies(client, target)
            for source in sources:
                assert [o for key, o in found if key == source.encode()] == [0, 1]
            for side in (one, other):
                await side.consumer.close()

    run(main())


def test_a_program_that_waits_for_more_records(broker: ShoalProcess) -> None:
    """After an abort it gets the records of one partition first, and then those of the others."""
    sources, target = topics(broker, 2)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            side = await Side.join(client, sources, "1")
            for source in sources:
                produce(broker, source, b"k")
            while len(side.records) < 2:
                await side.poll()
            await side.begin(target)
            await side.producer.abort()
            side.records = []
            while not side.records:
                await side.poll()
            assert len(side.records) == 1
            while len(side.records) < 2:
                await side.poll()
            await side.copy(target)
            assert len(await copies(client, target)) == 2
            await side.consumer.close()

    run(main())


def test_a_producer_that_is_fenced_while_it_waits(broker: ShoalProcess) -> None:
    """It is closed without its records, and the next one of its id reads them again."""
    sources, target = topics(broker, 1)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            one, other = await pair(client, sources)
            produce(broker, sources[0], other.key(sources[0]), one.key(sources[0]))
            while len(one.records) + len(other.records) < 2:
                await one.poll()
                await other.poll()
            one.producer.begin()
            sent = await one.producer.send(target, b"1", key=b"k")
            committing = asyncio.ensure_future(one.producer.commit())
            await waits(broker, 1)
            again = await client.transactional_producer(f"{sources[0]}-1")
            with pytest.raises(ProducerFenced):
                await committing
            await one.producer.close()
            with pytest.raises(ProducerFenced):
                await sent
            assert await values(client, target) == []
            await again.close()
            for side in (one, other):
                await side.consumer.close()

    run(main())


def test_bad_input(broker: ShoalProcess) -> None:
    sources, target = topics(broker, 1)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            with pytest.raises(ValueError, match="pass a producer"):
                await GroupConsumer.join(
                    client.cluster, "g", sources, key_ranges=True, in_order=True
                )
            node = await client.cluster.find_coordinator("g")
            link = await client.cluster.get_connection(node, "coordinator")
            offered = link.features.pop(COMMIT_ORDER_FEATURE)
            with pytest.raises(KafkaError, match="does not offer commits in the order") as refused:
                await Side.join(client, sources, "0")
            assert refused.value.code == ErrorCode.unsupported_version
            link.features[COMMIT_ORDER_FEATURE] = offered
            side = await Side.join(client, sources, "1", buffer_bytes=100)
            with pytest.raises(ValueError, match="have one member"):
                await GroupConsumer.join(
                    client.cluster, "g", sources, key_ranges=True, producer=side.producer
                )
            side.producer.begin()
            await side.producer.send(target, b"v" * 60)
            with pytest.raises(TransactionAbortable, match="buffer_bytes=100 is full"):
                await side.producer.send(target, b"v" * 60)
            await side.producer.abort()
            assert await values(client, target) == []
            await side.consumer.close()

    run(main())


def check_order(found: Sequence[tuple[bytes | None, bytes]], sources: Sequence[str]) -> None:
    """Before the first copy of a transaction are those of all records below its first record."""
    copied: dict[str, set[tuple[str, int]]] = {}
    log = []
    for _, value in found:
        _, offset, source, name = value.decode().split(":")
        log.append(((source, int(offset)), name))
        copied.setdefault(name, set()).add(log[-1][0])
    done: set[tuple[str, int]] = set()
    begun: set[str] = set()
    for record, name in log:
        for source in sources if name not in begun else ():
            first = min((o for s, o in copied[name] if s == source), default=0)
            missing = {(source, o) for o in range(first)} - done - copied[name]
            assert not missing, (name, first, sorted(missing))
        begun.add(name)
        done.add(record)


def copied_in_order(broker: ShoalProcess, rounds: int, members: int, kills: int) -> int:
    """Members copy two partitions, which get records, while they are killed in turn, and the broker
    once. Return the number of transactions."""
    sources, target = topics(broker, 2)
    count = rounds * ROUND
    words = (broker.bootstrap, sources[0], ",".join(sources), target, "seed")
    copiers = [Copier(*words, f"ordered-{n}", restarts_max=3 * kills + 10) for n in range(members)]

    def found() -> list[tuple[bytes | None, bytes]]:
        async def main() -> list[tuple[bytes | None, bytes]]:
            async with Client(broker.bootstrap) as client:
                return await values(client, target)

        for copier in copiers:
            copier.check()
        return asyncio.run(main())

    try:
        for number in range(rounds):
            for source in sources:
                fill(broker, source, ROUND, first=number * ROUND)
            goal = 2 * ROUND * (number - 1)
            eventually(lambda g=goal: len(found()) >= g, timeout_s=120, what=f"{goal} copies")
            if kills and number % (rounds // kills) == rounds // kills // 2:
                copiers[number // (rounds // kills) % members].kill9()
            if number == rounds // 2:
                broker.kill9()
                broker.start()
        eventually(lambda: len(found()) >= 2 * count, timeout_s=300, what="the copies")
    finally:
        for copier in copiers:
            copier.stop()
    copied = found()
    check_order(copied, sources)
    assert len({value.decode().rsplit(":", 1)[0] for _, value in copied}) == len(copied)
    assert len(copied) == 2 * count
    return len({value.decode().rsplit(":", 1)[1] for _, value in copied})


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_outputs_are_in_order_under_kills(tmp_path: Any) -> None:
    process = ShoalProcess(tmp_path / "data", configs=CONFIGS | SESSION).start()
    try:
        transactions = copied_in_order(process, 60, members=3, kills=3)
        assert transactions > 60
    finally:
        process.kill9()
