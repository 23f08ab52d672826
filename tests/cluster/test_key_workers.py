"""Key workers of real members, through kill -9 of members and of the broker."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster.test_individual_commit import SESSION
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, IndividualCommit
from shoal.client.consume.key_workers import HandlerError, KeyWorkers
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.record.records import build_batch
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.workers.key_worker import Begun, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.client.consume.consumer import Record

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cooperative.md"
PARTITIONS, RECORDS, KEYS = 2, 200, 10
#: What is committed once all records are finished.
COMPLETE = {partition: (RECORDS, set[int]()) for partition in range(PARTITIONS)}
Where = tuple[int, int]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    configs = SESSION | {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.heartbeat.interval.ms": "300",
        "group.consumer.min.heartbeat.interval.ms": "300",
    }
    process = ShoalProcess(tmp_path_factory.mktemp("workers") / "data", configs=configs).start()
    yield process
    process.kill9()


def filled(broker: ShoalProcess, topic: str, count: int = RECORDS) -> None:
    """Create a topic with `count` records in each partition."""
    with WireClient(broker.bootstrap) as client:
        client.create_topic(topic, PARTITIONS)
    fill(broker, topic, count)


def fill(broker: ShoalProcess, topic: str, count: int = RECORDS) -> None:
    """Produce `count` records to each partition, of `KEYS` keys; key k9 is none."""
    with WireClient(broker.bootstrap) as client:
        for partition in range(PARTITIONS):
            keys = [b"k%d" % (n % KEYS) if n % KEYS < KEYS - 1 else None for n in range(count)]
            records = [(1, key, b"%d" % n, ()) for n, key in enumerate(keys)]
            client.produce(topic, records=bytes(build_batch(records)), partition=partition)


def committed(broker: ShoalProcess, group: str) -> dict[int, tuple[int, set[int]]]:
    """Return the stable offset and the finished offsets above it, by partition."""

    async def main() -> dict[int, tuple[int, set[int]]]:
        async with Client(broker.bootstrap) as client:
            found = expect(await client.admin.groups.offsets([group], finished=True))[group]
            return {
                where.partition: (
                    offset.offset,
                    {o for a, b in offset.finished.iter_ranges() for o in range(a, b + 1)},
                )
                for where, offset in found.items()
            }

    return asyncio.run(main())


def check_order(events: list[tuple[str, Begun]]) -> None:
    """In one process, the records of a key begin in order, and each after the one before it."""
    open_keys: dict[tuple[int, str], int] = {}
    last: dict[tuple[int, str], int] = defaultdict(lambda: -1)
    for name, (partition, offset, key) in events:
        if not key:
            continue
        lane = (partition, key)
        if name == "begun":
            assert lane not in open_keys, f"{lane}: {offset} beside {open_keys[lane]}"
            assert offset > last[lane]
            open_keys[lane] = last[lane] = offset
        else:
            assert open_keys.pop(lane) == offset


def wait_for(goal: int, done: set[Where], worker: Worker) -> None:
    """Wait until this number of records is done, by the worker or before it."""
    eventually(
        lambda: len(done | {where[:2] for where in worker.ended}) >= goal, what=f"{goal} records"
    )


def test_members_and_the_broker_are_killed(broker: ShoalProcess) -> None:
    """No record is lost, and only what was not committed is done again."""
    filled(broker, "orders")
    group = "kills"
    done: set[Where] = set()
    for goal in (100, 250):
        worker = Worker(broker.bootstrap, group, "orders")
        try:
            wait_for(goal, done, worker)
            if goal == 100:
                broker.kill9()
                broker.start()
        finally:
            worker.kill9()
        check_order(worker.events)
        found = committed(broker, group)
        ended = {where[:2] for where in worker.ended}
        done |= ended
        for partition, (stable_offset, above) in found.items():
            finished = {(partition, o) for o in range(stable_offset)}
            finished |= {(partition, o) for o in above}
            assert finished <= done
    before = {
        (partition, o)
        for partition, (stable_offset, above) in committed(broker, group).items()
        for o in (*range(stable_offset), *above)
    }
    last = Worker(broker.bootstrap, group, "orders")
    try:
        eventually(lambda: committed(broker, group) == COMPLETE, what="the rest")
    finally:
        last.stop()
    check_order(last.events)
    assert not before & {where[:2] for where in last.ended}
    everything = {(p, o) for p in range(PARTITIONS) for o in range(RECORDS)}
    assert done | {where[:2] for where in last.ended} == everything


def test_a_partition_moves_while_its_records_are_handled(broker: ShoalProcess) -> None:
    """A second member joins: the first one drains and commits, so that nothing is done twice."""
    filled(broker, "moved")
    first = Worker(broker.bootstrap, "moves", "moved", work_ms=100)
    workers = [first]
    try:
        eventually(lambda: len(first.ended) > 50, what="the first records")
        second = Worker(broker.bootstrap, "moves", "moved", work_ms=100)
        workers.append(second)
        rounds = 1

        def is_second_at_work() -> bool:
            """Tell whether it has handled a record; the first member never runs out before."""
            nonlocal rounds
            if len(first.ended) > (rounds - 0.5) * PARTITIONS * RECORDS:
                fill(broker, "moved")
                rounds += 1
            return bool(second.ended)

        eventually(is_second_at_work, what="a record of the second member")
        everything = rounds * PARTITIONS * RECORDS
        eventually(lambda: len(first.ended) + len(second.ended) >= everything, what="all records")
    finally:
        for worker in workers:
            worker.stop()
    assert len({where[0] for where in second.ended}) == 1
    ended = [where[:2] for worker in workers for where in worker.ended]
    assert len(ended) == len(set(ended)) == everything
    for worker in workers:
        check_order(worker.events)
    complete = {partition: (rounds * RECORDS, set[int]()) for partition in range(PARTITIONS)}
    assert committed(broker, "moves") == complete


class Shared:
    """A topic with one partition, whose keys several workers share."""

    def __init__(self, broker: ShoalProcess, name: str) -> None:
        self.broker, self.name = broker, name
        self.workers: list[Worker] = []
        self.produced = 0
        with WireClient(broker.bootstrap) as client:
            client.create_topic(name, 1, shoal_key_ranges_enable="true")

    def join(self) -> Worker:
        worker = Worker(self.broker.bootstrap, "shares", self.name, work_ms=10, key_ranges=True)
        self.workers.append(worker)
        return worker

    @property
    def done(self) -> set[int]:
        return {offset for worker in self.workers for _, offset, _ in worker.ended}

    def work(self, *workers: Worker) -> None:
        """Produce as records are handled, until each of these workers has handled 20 more."""
        goals = [(worker, len(worker.ended) + 20) for worker in workers]

        def reached() -> bool:
            if self.produced - len(self.done) < 100:
                first, self.produced = self.produced, self.produced + 100
                keys = [b"k%d" % (n % 40) if n % 40 else None for n in range(first, first + 100)]
                records = [(1, key, b"v", ()) for key in keys]
                with WireClient(self.broker.bootstrap) as client:
                    client.produce(self.name, records=bytes(build_batch(records)))
            return all(len(worker.ended) >= goal for worker, goal in goals)

        eventually(reached, what="work for each member")

    def check(self, killed: Worker) -> None:
        """Every record was handled, each key in order and by one member at a time. Only what the
        killed member had not committed was handled again."""
        assert self.done == set(range(self.produced))
        events = sorted(
            (at_s, number, name, where)
            for number, worker in enumerate(self.workers)
            for at_s, (name, where) in zip(worker.times_s, worker.events, strict=True)
        )
        victim = self.workers.index(killed)
        ended: dict[int, int] = {}
        last: dict[str, tuple[int, int]] = {}
        running: dict[str, int] = {}
        for _, number, name, (_, offset, key) in events:
            if name == "ended":
                assert ended.setdefault(offset, number) in (number, victim)
                running.pop(key, None)
                continue
            owner, before = last.get(key, (number, -1))
            assert offset > before or not key or owner == victim != number
            assert running.get(key, victim) == victim or not key
            assert ended.get(offset, victim) == victim
            last[key], running[key] = (number, offset), number


def test_members_share_a_partition(broker: ShoalProcess) -> None:
    """Three members handle the keys of one partition. Members leave, join and are killed."""
    topic = Shared(broker, "divided")
    try:
        first = topic.join()
        topic.work(first)
        second, third = topic.join(), topic.join()
        topic.work(first, second, third)
        first.stop()
        topic.work(second, third)
        fourth = topic.join()
        topic.work(second, third, fourth)
        third.kill9()
        topic.work(second, fourth)
        eventually(lambda: len(topic.done) == topic.produced, what="all records")
        for worker in (second, fourth):
            worker.stop()
        topic.check(killed=third)
        assert committed(broker, "shares") == {0: (topic.produced, set())}
    finally:
        for worker in topic.workers:
            worker.kill9()


def test_a_failure_commits_what_is_finished(broker: ShoalProcess) -> None:
    filled(broker, "failing", 40)
    handled: set[Where] = set()

    async def handle(record: Record) -> None:
        if (record.partition, record.offset) == (0, 13):
            raise RuntimeError("no luck")
        handled.add((record.partition, record.offset))

    async def main() -> None:
        async with (
            Client(broker.bootstrap) as client,
            await GroupConsumer.join(
                client.cluster,
                "fails",
                ["failing"],
                reset=Reset.EARLIEST,
                individual_commit=IndividualCommit(interval_ms=60_000),
            ) as consumer,
        ):
            with pytest.raises(HandlerError, match="offset 13 of failing-0 with key b'k3'"):
                await KeyWorkers(consumer, handle).run()
            found = expect(await client.admin.groups.offsets(["fails"], finished=True))["fails"]
            stored = {
                (where.partition, o)
                for where, offset in found.items()
                for o in (*range(offset.offset), *_offsets(offset.finished.iter_ranges()))
            }
            assert stored == handled
            assert found[TopicPartition("failing", 0)].offset <= 13
            assert not handled & {(0, 13), (0, 23), (0, 33)}

    asyncio.run(main())


def test_a_plain_member_is_refused(broker: ShoalProcess) -> None:
    filled(broker, "plain", 1)

    async def handle(_: Record) -> None: ...

    async def main() -> None:
        async with (
            Client(broker.bootstrap) as client,
            await GroupConsumer.join(client.cluster, "plain", ["plain"]) as consumer,
        ):
            with pytest.raises(ValueError, match="join with individual_commit"):
                KeyWorkers(consumer, handle)

    asyncio.run(main())


def _offsets(ranges: Iterator[Where]) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def test_the_example_of_the_page(broker: ShoalProcess, tmp_path: Path) -> None:
    """The program in docs/cooperative.md prints each key in order, and stops at the end."""
    (program,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "KeyWorkers" in block
    )
    filled(broker, "example", 30)
    script = tmp_path / "example.py"
    script.write_text(
        program.replace("127.0.0.1:9092", broker.bootstrap).replace('"orders"', '"example"')
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().split() for _ in range(PARTITIONS * 30)]
    finally:
        process.kill()
        process.wait()
    by_key = defaultdict(list)
    for partition, key, offset in lines:
        by_key[partition, key].append(int(offset))
    for (_, key), offsets in by_key.items():
        assert key == "None" or offsets == sorted(offsets)
    assert sum(map(len, by_key.values())) == PARTITIONS * 30
