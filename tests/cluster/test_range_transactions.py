"""Members that share a partition, each with a transactional producer that commits its positions."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, IndividualCommit, Reader
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset, find_start_offsets
from shoal.client.errors import TransactionAbortable
from shoal.client.net.cluster import TopicPartition
from shoal.record.records import build_batch
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.workers.exactly_once_worker import Copier

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.client.consume.consumer import Record
    from shoal.client.produce.transactional import TransactionalProducer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cooperative.md"
KEYS = 20
CONFIGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
}
#: A killed member leaves its group after its session.
SESSION = {
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "2000",
}
_names = (f"shared-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("ranges") / "data", configs=CONFIGS).start()
    yield process
    process.kill9()


def filled(broker: ShoalProcess, count: int) -> tuple[str, str]:
    """Create a source with `count` records of all keys in turn, and a target."""
    source = next(_names)
    target = f"{source}-out"
    with WireClient(broker.bootstrap) as client:
        client.create_topic(source, 1, shoal_key_ranges_enable="true")
        client.create_topic(target, 1)
    if count:
        fill(broker, source, count)
    return source, target


def fill(broker: ShoalProcess, source: str, count: int, first: int = 0) -> None:
    records = [(1, b"k%d" % (n % KEYS), b"%d" % n, ()) for n in range(first, first + count)]
    with WireClient(broker.bootstrap) as client:
        assert client.produce(source, records=bytes(build_batch(records))).error_code == 0


class Side:
    """A member and its producer."""

    def __init__(self, consumer: GroupConsumer, producer: TransactionalProducer) -> None:
        self.consumer, self.producer = consumer, producer
        self.records: list[Record] = []

    @classmethod
    async def join(cls, client: Client, source: str, name: str) -> Side:
        producer = await client.transactional_producer(f"{source}-{name}")
        consumer = await GroupConsumer.join(
            client.cluster,
            source,
            [source],
            reset=Reset.EARLIEST,
            isolation=Isolation.READ_COMMITTED,
            key_ranges=True,
            producer=producer,
        )
        return cls(consumer, producer)

    async def poll(self) -> None:
        self.records += await self.consumer.poll(50)

    @property
    def offsets(self) -> list[int]:
        return [r.offset for r in self.records]

    async def send(self, target: str) -> None:
        for record in self.records:
            await self.producer.send(target, b"%d" % record.offset, key=record.key)


async def shared(sides: Sequence[Side]) -> None:
    """Poll until each member has a part of the partition. Nothing is read meanwhile."""
    while not all(len(s.consumer.key_ranges) == 1 for s in sides) or any(
        sum(r.last - r.first + 1 for ranges in s.consumer.key_ranges.values() for r in ranges)
        > (1 << 63) // len(sides) + (1 << 55)
        for s in sides
    ):
        for side in sides:
            await side.poll()


async def read(sides: Sequence[Side], count: int) -> None:
    while sum(len(s.records) for s in sides) < count:
        for side in sides:
            await side.poll()


async def copies(client: Client, target: str) -> list[tuple[bytes | None, int]]:
    """Key and source offset of the committed records."""
    return [(key, int(value)) for key, value in await values(client, target)]


async def values(client: Client, target: str) -> list[tuple[bytes | None, bytes]]:
    """Key and value of the committed records, up to an open transaction."""
    where = TopicPartition(target, 0)
    (end,) = (await find_start_offsets(client.cluster, [where], Reset.LATEST)).values()
    reader = Reader(client.cluster, {where: 0}, isolation=Isolation.READ_COMMITTED)
    found: list[tuple[bytes | None, bytes]] = []
    while reader.positions[where] < end and (some := list(await reader.poll(500))):
        found += [(r.key, r.value or b"") for r in some]
    return found


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def test_transactions_of_two_members_are_independent(broker: ShoalProcess) -> None:
    """Both are open at the same time. An abort repeats the records of its own member alone."""
    source, target = filled(broker, 0)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            one, other = sides = [await Side.join(client, source, n) for n in ("1", "2")]
            await shared(sides)
            fill(broker, source, 100)
            await read(sides, 100)
            mine, theirs = one.offsets, other.offsets
            assert sorted(mine + theirs) == list(range(100))
            assert mine
            assert theirs
            one.producer.begin()
            other.producer.begin()
            await one.send(target)
            await other.send(target)
            await other.producer.commit()
            # The first transaction stays open over the whole next one of the other member.
            other.records = []
            fill(broker, source, 100, first=100)
            async with other.producer.transaction():
                await read([other], len(theirs))
                await other.send(target)
            assert set(other.offsets) == {o + 100 for o in theirs}
            await one.producer.abort()
            one.records = []
            await read([one], 2 * len(mine))
            assert one.offsets == [*mine, *(o + 100 for o in mine)]
            async with one.producer.transaction():
                await one.send(target)
            found = await copies(client, target)
            assert sorted(offset for _, offset in found) == list(range(200))
            for side in sides:
                await side.consumer.close()

    run(main())


def test_records_of_revoked_key_ranges(broker: ShoalProcess) -> None:
    """Their transaction cannot commit. Afterwards each member has the records of its own ranges."""
    source, target = filled(broker, 100)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            one = await Side.join(client, source, "1")
            await read([one], 100)
            one.producer.begin()
            await one.send(target)
            other = await Side.join(client, source, "2")
            await shared([one, other])
            with pytest.raises(TransactionAbortable, match=f"all records of {source}-0"):
                await one.producer.commit()
            await one.producer.abort()
            one.records = []
            await read([one, other], 100)
            assert sorted(one.offsets + other.offsets) == list(range(100))
            for side in (one, other):
                async with side.producer.transaction():
                    await side.send(target)
            found = await copies(client, target)
            assert sorted(offset for _, offset in found) == list(range(100))
            await other.consumer.close()
            await one.consumer.close()

    run(main())


def test_a_member_that_is_closed_in_a_transaction(broker: ShoalProcess) -> None:
    source, target = filled(broker, 10)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            one = await Side.join(client, source, "1")
            await read([one], 10)
            with pytest.raises(ValueError, match="call the producer's commit"):
                await one.consumer.commit()
            one.producer.begin()
            await one.send(target)
            await one.consumer.close()
            with pytest.raises(TransactionAbortable, match="was closed"):
                await one.producer.commit()
            await one.producer.abort()
            other = await Side.join(client, source, "2")
            await read([other], 10)
            await other.consumer.close()
            own: list[dict[str, Any]] = [
                {},
                {"key_ranges": True, "individual_commit": IndividualCommit()},
            ]
            for more in own:
                with pytest.raises(ValueError, match="key_ranges, and without individual_commit"):
                    await GroupConsumer.join(
                        client.cluster, "g", [source], producer=one.producer, **more
                    )

    run(main())


def copied_by_key(broker: ShoalProcess, count: int, members: int, kills: int) -> None:
    """Members copy a partition while they are killed in turn. Each record is copied once, and the
    copies of a key are in order."""
    source, target = filled(broker, count)
    copiers = [
        Copier(
            broker.bootstrap,
            source,
            source,
            target,
            "seed",
            f"shared-{n}",
            restarts_max=3 * kills + 10,
        )
        for n in range(members)
    ]

    def found() -> list[tuple[bytes | None, int]]:
        async def main() -> list[tuple[bytes | None, bytes]]:
            async with Client(broker.bootstrap) as client:
                return await values(client, target)

        for copier in copiers:
            copier.check()
        return [(key, int(value.split(b":")[1])) for key, value in asyncio.run(main())]

    try:
        for kill in range(kills):
            goal = count * (kill + 1) // (kills + 2)
            eventually(lambda g=goal: len(found()) >= g, timeout_s=120, what=f"{goal} copies")
            copiers[kill % members].kill9()
            if kill == kills // 2:
                broker.kill9()
                broker.start()
        eventually(lambda: len(found()) >= count, timeout_s=300, what="the copies")
    finally:
        for copier in copiers:
            copier.stop()
    copies = found()
    assert sorted(offset for _, offset in copies) == list(range(count))
    for key in {key for key, _ in copies}:
        offsets = [offset for k, offset in copies if k == key]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("options", ["", "in_order=True,"])
def test_the_example_of_the_page(broker: ShoalProcess, tmp_path: Path, options: str) -> None:
    """Two processes with the program in docs/cooperative.md copy a partition, also with the option
    of the section below it."""
    (program,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "producer=producer" in block
    )
    source, target = filled(broker, 100)
    script = tmp_path / "example.py"
    program = program.replace("producer=producer,", f"producer=producer, {options}")
    for old, new in (("127.0.0.1:9092", broker.bootstrap), ("orders", source), ("copies", target)):
        program = program.replace(old, new)
    script.write_text(program)

    async def copied() -> int:
        async with Client(broker.bootstrap) as client:
            return len(await values(client, target))

    processes = [subprocess.Popen([sys.executable, str(script), f"{source}-{n}"]) for n in (1, 2)]
    try:
        eventually(lambda: asyncio.run(copied()) >= 100, what="the copies")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert asyncio.run(copied()) == 100


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_each_record_is_copied_once_under_kills(tmp_path: Path) -> None:
    process = ShoalProcess(tmp_path / "data", configs=CONFIGS | SESSION).start()
    try:
        copied_by_key(process, 5_000, members=3, kills=9)
    finally:
        process.kill9()
