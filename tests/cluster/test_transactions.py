"""Members that finish records in transactions of our transactional producer, on a real broker."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster.test_individual_commit import SESSION, poll_records
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, IndividualCommit, Reader
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import (
    ApplicationRecoverable,
    InvalidConfiguration,
    ProducerFenced,
    TransactionAbortable,
    TransactionError,
    expect,
)
from shoal.client.net.cluster import TopicPartition
from shoal.client.produce.transactional import GroupMetadata, ProducerTransactionState
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.lossy_proxy import LossyProxy
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


PAGE = Path(__file__).resolve().parents[2] / "docs" / "cooperative.md"
RECORDS = 10
#: Stable offset and finished offsets before the first record is finished.
NOTHING = (0, "")
REPEATED = "shoal_group_coordinator_individual_commit_repeated_count_total"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    configs = SESSION | {"group.initial.rebalance.delay.ms": "0"}
    process = ShoalProcess(tmp_path_factory.mktemp("txn") / "data", configs=configs).start()
    yield process
    process.kill9()


def filled(broker: ShoalProcess, topic: str, partitions: int = 1) -> None:
    with WireClient(broker.bootstrap) as client:
        client.create_topic(topic, partitions)
        for partition in range(partitions):
            client.produce(topic, *(b"%d" % n for n in range(RECORDS)), partition=partition)


async def joined(client: Client, topic: str) -> GroupConsumer:
    return await GroupConsumer.join(
        client.cluster,
        topic,
        [topic],
        reset=Reset.EARLIEST,
        individual_commit=IndividualCommit(interval_ms=1),
    )


async def committed(client: Client, group: str, partition: int = 0) -> tuple[int, str]:
    """Return the stable offset and the finished offsets above it, without open transactions."""
    found = expect(await client.admin.groups.offsets([group], finished=True))[group]
    offset = found.get(TopicPartition(group, partition))
    return NOTHING if offset is None else (offset.offset, str(offset.finished))


async def becomes(
    client: Client, group: str, expected: tuple[int, str], partition: int = 0
) -> None:
    """Wait for the marker of a transaction, which follows its end."""
    async with asyncio.timeout(60):
        while await committed(client, group, partition) != expected:
            await client.cluster.refresh(())


def test_records_are_finished_by_the_commit(broker: ShoalProcess) -> None:
    """An abort leaves them unfinished, and what a transaction has committed is not sent again."""
    filled(broker, "orders")

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            producer = await client.transactional_producer("orders")
            consumer = await joined(client, "orders")
            records = await poll_records(consumer, RECORDS)
            producer.begin()
            await producer.send_finished(consumer, records[:3])
            await producer.abort()
            assert await committed(client, "orders") == NOTHING
            repeated = await asyncio.to_thread(broker.metric, REPEATED)
            async with producer.transaction():
                await producer.send_finished(consumer, [records[7], records[0]])
                await producer.send_finished(consumer, [records[5], records[1]])
            await becomes(client, "orders", (2, "5,7"))
            await consumer.poll(10)
            await consumer.commit()
            assert await asyncio.to_thread(broker.metric, REPEATED) == repeated

            with pytest.raises(TransactionAbortable, match="offset 7 is finished already"):
                async with producer.transaction():
                    await producer.send_finished(consumer, records[6:8])
            assert producer.state is ProducerTransactionState.READY
            async with producer.transaction():
                await producer.send_finished(consumer, [records[6]])
            consumer.finish(records[2])
            await becomes(client, "orders", (2, "5-7"))
            await consumer.close()
            assert await committed(client, "orders") == (3, "5-7")

    asyncio.run(main())


def test_records_of_a_revoked_partition(broker: ShoalProcess) -> None:
    """Their transaction cannot commit: another member has them."""
    filled(broker, "moved", 2)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            producer = await client.transactional_producer("moved")
            first = await joined(client, "moved")
            records = await poll_records(first, 2 * RECORDS)
            second = await joined(client, "moved")
            async with asyncio.timeout(60):
                while len(first.positions) > 1 or not second.positions:
                    await first.poll(50)
                    await second.poll(50)
            (kept,) = first.positions
            with pytest.raises(TransactionAbortable, match="the partition was revoked"):
                async with producer.transaction():
                    await producer.send_finished(first, records)
            mine = [r for r in records if r.partition == kept.partition]
            async with producer.transaction():
                await producer.send_finished(first, mine)
            await becomes(client, "moved", (RECORDS, ""), kept.partition)
            await second.close()
            await first.close()
            assert await committed(client, "moved", 1 - kept.partition) == NOTHING

    asyncio.run(main())


def test_a_plain_member_cannot_finish_records(broker: ShoalProcess) -> None:
    filled(broker, "plain")

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            producer = await client.transactional_producer("plain")
            consumer = await GroupConsumer.join(client.cluster, "plain", ["plain"])
            producer.begin()
            with pytest.raises(ValueError, match="join the group with individual_commit"):
                await producer.send_finished(consumer, [])
            await producer.close()
            await consumer.close()

    asyncio.run(main())


def test_a_transaction_that_takes_too_long(broker: ShoalProcess) -> None:
    """The coordinator aborts it, so that it cannot commit; a new producer continues."""
    filled(broker, "slow")

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            producer = await client.transactional_producer("slow", timeout_ms=100)
            producer.begin()
            await (await producer.send("slow", b"late"))
            async with asyncio.timeout(60):
                while True:
                    found = expect(await client.admin.transactions.describe(["slow"]))["slow"]
                    if found.state == "CompleteAbort":
                        break
            with pytest.raises(ApplicationRecoverable, match="Close this producer"):
                await producer.commit()
            with pytest.raises(ApplicationRecoverable):
                producer.begin()
            await producer.close()
            producer = await client.transactional_producer("slow")
            async with producer.transaction():
                await producer.send("slow", b"again")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("api", "count"),
    [
        (ApiKey.INIT_PRODUCER_ID, 1),
        (ApiKey.PRODUCE, 3),
        (ApiKey.TXN_OFFSET_COMMIT, 2),
        (ApiKey.END_TXN, 3),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, ApiKey) else "",
)
def test_lost_answers(behind: tuple[ShoalProcess, int], api: ApiKey, count: int) -> None:
    """The client repeats what the broker has done already. Nothing is stored twice."""
    process, port = behind
    topic = api.name.lower()
    where = TopicPartition(topic, 0)
    values = [b"a", b"b", b"c"]

    async def main() -> None:
        async with (
            LossyProxy(port, process.bootstrap).serving() as proxy,
            Client(f"127.0.0.1:{port}") as client,
        ):
            expect(await client.admin.topics.create([NewTopic(topic, 1)]))
            proxy.lose[api] = count
            producer = await client.transactional_producer(topic)
            for n, value in enumerate(values):
                async with producer.transaction():
                    await producer.send(topic, value)
                    await producer.send_offsets(GroupMetadata(topic), {where: n + 1})
            assert proxy.lost[api] == count
            await becomes(client, topic, (len(values), ""))
            reader = Reader(client.cluster, {where: 0}, isolation=Isolation.READ_COMMITTED)
            found: list[tuple[int, bytes | None]] = []
            async with asyncio.timeout(60):
                # A marker follows each record.
                while reader.positions[where] < 2 * len(values):
                    found += [(r.offset, r.value) for r in await reader.poll(100)]
            assert found == [(0, b"a"), (2, b"b"), (4, b"c")]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("codes", "error"),
    [
        ([ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress], None),
        ([ErrorCode.not_coordinator], None),
        ([ErrorCode.transaction_abortable], TransactionAbortable),
        ([ErrorCode.producer_fenced], ProducerFenced),
        ([ErrorCode.invalid_producer_epoch], ProducerFenced),
        ([ErrorCode.invalid_txn_state], ApplicationRecoverable),
        ([ErrorCode.invalid_producer_id_mapping], ApplicationRecoverable),
        ([ErrorCode.unknown_server_error], ApplicationRecoverable),
        ([ErrorCode.transactional_id_authorization_failed], InvalidConfiguration),
    ],
    ids=lambda value: "-".join(c.name for c in value) if isinstance(value, list) else "",
)
def test_errors_of_the_coordinator(
    behind: tuple[ShoalProcess, int], codes: list[ErrorCode], error: type[TransactionError] | None
) -> None:
    """Each has its category of KIP-1050, or the request is repeated."""
    process, port = behind
    topic = f"refused-{codes[0].name}"

    async def main() -> None:
        async with (
            LossyProxy(port, process.bootstrap).serving() as proxy,
            Client(f"127.0.0.1:{port}") as client,
        ):
            expect(await client.admin.topics.create([NewTopic(topic, 1)]))
            producer = await client.transactional_producer(topic)
            producer.begin()
            await producer.send(topic, b"a")
            proxy.refuse[ApiKey.END_TXN] = list(codes)
            if error is None:
                await producer.commit()
                assert producer.state is ProducerTransactionState.READY
            else:
                with pytest.raises(error) as caught:
                    await producer.commit()
                assert type(caught.value) is error
                assert caught.value.code is codes[0]
                final = error is not TransactionAbortable
                assert producer.state is (
                    ProducerTransactionState.ENDED if final else ProducerTransactionState.FAILED
                )
            assert not proxy.refuse[ApiKey.END_TXN]

    asyncio.run(main())


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ShoalProcess, int]]:
    """A broker that advertises the address of a proxy, and the proxy's port."""
    (port,) = free_ports(1)
    configs = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    process = ShoalProcess(tmp_path_factory.mktemp("lossy") / "data", configs=configs).start()
    yield process, port
    process.kill9()


def test_the_example_of_the_page(broker: ShoalProcess, tmp_path: Path) -> None:
    """The program in docs/cooperative.md copies a topic."""
    (program,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "send_finished" in block
    )
    filled(broker, "source")
    with WireClient(broker.bootstrap) as client:
        client.create_topic("copies", 1)
    script = tmp_path / "example.py"
    script.write_text(
        program.replace("127.0.0.1:9092", broker.bootstrap).replace('"orders"', '"source"')
    )

    async def copied() -> list[bytes | None]:
        async with Client(broker.bootstrap) as client:
            fetched = await client.fetcher.poll({TopicPartition("copies", 0): 0})
            return [r.value for one in expect(fetched).values() for r in one.records()]

    process = subprocess.Popen([sys.executable, str(script)])
    try:
        eventually(lambda: len(asyncio.run(copied())) >= RECORDS, what="the copies")
    finally:
        process.kill()
        process.wait()
    assert asyncio.run(copied()) == [b"%d" % n for n in range(RECORDS)]
