"""Individual commits of real members, through kill -9 of members, coordinators and leaders."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CALM_CONFIGS
from confluent_kafka import Producer
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, IndividualCommit, Record
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from support.brokers.clusters import ShoalCluster, running
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.workers.individual_worker import Member

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from shoal.client.admin.groups import CommittedOffset

PARTITIONS = 3
#: Records of a transaction; every third transaction is aborted.
TRANSACTION, TRANSACTIONS = 20, 45
#: The member keeps every fifth record.
KEEP = 5
#: A killed member leaves its group after its session.
SESSION = {
    f"group.consumer.{name}": value
    for name, value in {
        "session.timeout.ms": "3000",
        "min.session.timeout.ms": "3000",
        "heartbeat.interval.ms": "500",
        "min.heartbeat.interval.ms": "500",
    }.items()
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    folder = tmp_path_factory.mktemp("individual")
    with running(ShoalCluster(folder, configs=CALM_CONFIGS | SESSION)) as found:
        yield found


def produced(cluster: ShoalCluster, topic: str) -> int:
    """Create a topic with committed and aborted transactions; return the committed records."""

    async def create() -> None:
        async with Client(cluster.bootstrap) as client:
            expect(await client.admin.topics.create([NewTopic(topic, PARTITIONS, 3)]))

    asyncio.run(create())
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    count = 0
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for one in range(TRANSACTION):
            producer.produce(topic, b"v", partition=one % PARTITIONS)
        if number % 3 == 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            count += TRANSACTION
    return count


def progress(cluster: ShoalCluster, group: str) -> dict[TopicPartition, CommittedOffset]:
    """What OffsetFetch reports, with the finished offsets."""

    async def main() -> dict[TopicPartition, CommittedOffset]:
        async with Client(cluster.bootstrap) as client:
            return expect(await client.admin.groups.offsets([group], finished=True))[group]

    return asyncio.run(main())


def ends(cluster: ShoalCluster, topic: str) -> dict[TopicPartition, int]:
    async def main() -> dict[TopicPartition, int]:
        async with Client(cluster.bootstrap) as client:
            asked = {TopicPartition(topic, p): int(OffsetSpec.LATEST) for p in range(PARTITIONS)}
            return {
                p: o.offset for p, o in expect(await client.admin.topics.offsets(asked)).items()
            }

    return asyncio.run(main())


def coordinator(cluster: ShoalCluster, group: str) -> int:
    async def main() -> int:
        async with Client(cluster.bootstrap) as client:
            return await client.cluster.find_coordinator(group)

    return asyncio.run(main())


def stable_offsets(cluster: ShoalCluster, group: str) -> dict[TopicPartition, int]:
    return {where: offset.offset for where, offset in progress(cluster, group).items()}


def test_only_unfinished_records_come_again(cluster: ShoalCluster) -> None:
    count = produced(cluster, "orders")
    first = Member(cluster.bootstrap, "g", "orders", keep=KEEP)
    try:
        eventually(lambda: len(first.committed) > count // 3, what="commits")
        victim = coordinator(cluster, "g")
        cluster.nodes[victim].kill9()
        eventually(lambda: len(set(first.got)) == count, what="all records")
        kept = {where for where in first.got if where[1] % KEEP == 0}
        eventually(lambda: len(first.committed) == count - len(kept), what="all commits")
    finally:
        first.kill9()
    cluster.start([victim])
    assert all(offset.finished for offset in progress(cluster, "g").values())

    second = Member(cluster.bootstrap, "g", "orders")
    try:
        eventually(lambda: set(second.got) >= kept, what="the kept records")
        eventually(lambda: second.committed >= kept, what="their commits")
    finally:
        second.stop()
    assert set(second.got) == kept
    assert not first.committed & set(second.got)
    # Control records and aborted records are passed: other clients see no lag.
    assert stable_offsets(cluster, "g") == ends(cluster, "orders")
    assert not any(offset.finished for offset in progress(cluster, "g").values())


def test_members_are_killed_at_any_moment(cluster: ShoalCluster) -> None:
    """What was committed does not come again, and in the end everything was finished."""
    count = produced(cluster, "payments")
    committed: set[tuple[int, int]] = set()
    seen: set[tuple[int, int]] = set()

    def enough(member: Member, goal: int) -> bool:
        finished = len(committed) + len(member.committed)
        return finished > goal or len(seen | set(member.got)) == count

    for goal in range(count // 3, count, count // 3):
        member = Member(cluster.bootstrap, "h", "payments", keep=KEEP)
        try:
            eventually(lambda m=member, g=goal: enough(m, g), what=f"{goal} commits")
        finally:
            member.kill9()
        assert not committed & set(member.got)
        committed |= member.committed
        seen |= set(member.got)
    last = Member(cluster.bootstrap, "h", "payments")
    try:
        # A killed member may have committed what it did not report.
        eventually(lambda: len(seen | set(last.got)) == count, what="all records")
        end = ends(cluster, "payments")
        eventually(lambda: stable_offsets(cluster, "h") == end, what="everything finished")
    finally:
        last.stop()
    assert not committed & set(last.got)


ENABLE = "shoal.group.consumer.individual.commit.enable"
MAX_RANGES = 5


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ShoalProcess]:
    configs = SESSION | {
        "group.initial.rebalance.delay.ms": "0",
        "shoal.group.consumer.individual.commit.max.ranges": str(MAX_RANGES),
    }
    process = ShoalProcess(tmp_path / "data", configs=configs).start()
    with WireClient(process.bootstrap) as client:
        client.create_topic("t", 2)
        for value in range(40):
            client.produce("t", b"%d" % value, partition=0)
    yield process
    process.kill9()


def joined(client: Client) -> Coroutine[Any, Any, GroupConsumer]:
    return GroupConsumer.join(
        client.cluster,
        "g",
        ["t"],
        reset=Reset.EARLIEST,
        individual_commit=IndividualCommit(interval_ms=1),
    )


async def poll_records(consumer: GroupConsumer, count: int) -> list[Record]:
    """Poll until there are `count` records."""
    found: list[Record] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found.extend(await consumer.poll(100))
    return found


def committed(broker: ShoalProcess) -> tuple[int, str]:
    """Stable offset and finished offsets of partition 0."""

    async def main() -> tuple[int, str]:
        async with Client(broker.bootstrap) as client:
            found = expect(await client.admin.groups.offsets(["g"], finished=True))["g"]
            offset = found[TopicPartition("t", 0)]
            return offset.offset, str(offset.finished)

    return asyncio.run(main())


def test_a_member_at_the_limit_takes_nothing_new(broker: ShoalProcess) -> None:
    async def main() -> None:
        async with Client(broker.bootstrap) as client, await joined(client) as consumer:
            records = await poll_records(consumer, 40)
            for record in records[1:30:2]:
                consumer.finish(record)
            await consumer.commit()
            await asyncio.to_thread(limited)
            with WireClient(broker.bootstrap) as wire:
                wire.produce("t", b"new", partition=0)
                wire.produce("t", b"other", partition=1)
            # Another partition continues.
            (other,) = await poll_records(consumer, 1)
            assert other.partition == 1
            assert list(await consumer.poll(300)) == []
            for record in records[:24:2]:
                consumer.finish(record)
            (new,) = await poll_records(consumer, 1)
            assert (new.partition, new.offset) == (0, 40)
            for record in (*records, other, new):
                consumer.finish(record)

    def limited() -> None:
        assert committed(broker) == (0, "1,3,5,7,9")

    asyncio.run(main())
    assert committed(broker) == (41, "")


def test_a_coordinator_without_individual_commits(broker: ShoalProcess) -> None:
    """As in a rolling upgrade: the coordinator is a broker that has the position alone, and then
    again one that has individual commits."""

    def restarted(enabled: str) -> None:
        broker.kill9()
        broker.configs[ENABLE] = enabled
        broker.start()

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            consumer = await joined(client)
            records = await poll_records(consumer, 40)
            for record in (records[0], records[4]):
                consumer.finish(record)
            await consumer.commit()
            assert await asyncio.to_thread(committed, broker) == (1, "4")

            await asyncio.to_thread(restarted, "false")
            consumer.finish(records[6])
            consumer.finish(records[1])
            await consumer.commit()
            assert await asyncio.to_thread(committed, broker) == (2, "")
            with pytest.raises(KafkaError, match=f"set {ENABLE}=true"):
                await joined(client)

            await asyncio.to_thread(restarted, "true")
            consumer.finish(records[8])
            await consumer.commit()
            assert await asyncio.to_thread(committed, broker) == (2, "4,6,8")
            await consumer.close()

    asyncio.run(main())


def test_a_commit_ends_while_records_are_finished(broker: ShoalProcess) -> None:
    """It has what was finished when it began, and does not wait for what other tasks finish."""
    count = 5_000
    with WireClient(broker.bootstrap) as wire:
        wire.create_topic("many", 1)
        wire.produce("many", *[b"v"] * count)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            consumer = await GroupConsumer.join(
                client.cluster,
                "many",
                ["many"],
                reset=Reset.EARLIEST,
                individual_commit=IndividualCommit(interval_ms=60_000, records=count),
            )
            records = await poll_records(consumer, count)

            async def finish() -> None:
                for record in records:
                    consumer.finish(record)
                    await asyncio.sleep(0)

            finishing = asyncio.create_task(finish())
            await asyncio.sleep(0)
            await consumer.commit()
            assert not finishing.done()
            await finishing
            await consumer.close()
            found = expect(await client.admin.groups.offsets(["many"]))["many"]
            assert found[TopicPartition("many", 0)].offset == count

    asyncio.run(main())


def test_finished_checks_its_record(broker: ShoalProcess) -> None:
    async def main() -> None:
        async with Client(broker.bootstrap) as client, await joined(client) as consumer:
            (record, *_) = await poll_records(consumer, 40)
            with pytest.raises(ValueError, match="offset 99 of t-0 was not delivered"):
                consumer.finish(record._replace(offset=99))
            consumer.finish(record._replace(topic="revoked", offset=99))
            with pytest.raises(ValueError, match="cannot rewind"):
                consumer.rewind(TopicPartition("t", 0), 0)
            plain = await GroupConsumer.join(client.cluster, "other", ["t"])
            with pytest.raises(ValueError, match="join the group with individual_commit"):
                plain.finish(record)
            await plain.close()

    asyncio.run(main())
