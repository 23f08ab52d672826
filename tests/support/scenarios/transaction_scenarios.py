"""What our transactional producer must do against any cluster; see `client_scenarios`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.groups import CommittedOffset
from shoal.client.consume.consumer import Reader
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset, find_start_offsets
from shoal.client.errors import (
    InvalidConfiguration,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    expect,
)
from shoal.client.net.cluster import TopicPartition
from shoal.client.produce.transactional import GroupMetadata, ProducerTransactionState
from shoal.protocol.errors import ErrorCode
from shoal.record.finished_offsets import FinishedOffsets
from support.scenarios.client_scenarios import name, new_topic

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.client.produce.transactional import TransactionalProducer


async def committed(
    client: Client, topic: str, partitions: int = 1, isolation: Isolation = Isolation.READ_COMMITTED
) -> list[list[tuple[int, bytes | None]]]:
    """Return offset and value of the records in each partition, once no transaction is open."""
    where = [TopicPartition(topic, p) for p in range(partitions)]
    ends = await find_start_offsets(client.cluster, where, Reset.LATEST)
    found: list[list[tuple[int, bytes | None]]] = [[] for _ in where]
    reader = Reader(client.cluster, dict.fromkeys(where, 0), isolation=isolation)
    async with asyncio.timeout(60):
        while any(reader.positions[p] < ends[p] for p in where):
            for record in await reader.poll(100):
                found[record.partition].append((record.offset, record.value))
    return found


async def started(client: Client) -> TransactionalProducer:
    return await client.transactional_producer(name("producer"))


async def transactions_commit_and_abort(client: Client) -> None:
    """Both brokers store the same records at the same offsets."""
    topic = await new_topic(client, 2)
    producer = await started(client)
    for values, commits in ((b"ab", True), (b"cd", False), (b"e", True)):
        producer.begin()
        for value in values:
            for partition in range(2):
                await producer.send(topic, bytes([value]), partition=partition)
        await producer.flush()
        await (producer.commit() if commits else producer.abort())
    # Each transaction ends with a marker.
    expected = [(0, b"a"), (1, b"b"), (6, b"e")]
    assert await committed(client, topic, 2) == [expected, expected]
    await producer.close()


async def an_abort_drops_what_waits(client: Client) -> None:
    topic = await new_topic(client)
    producer = await client.transactional_producer(name("producer"), linger_ms=60_000)
    producer.begin()
    future = await producer.send(topic, b"a")
    await producer.abort()
    assert isinstance(future.exception(), TransactionAbortable)
    async with producer.transaction():
        await producer.send(topic, b"b")
    assert await committed(client, topic) == [[(0, b"b")]]


async def a_block_is_a_transaction(client: Client) -> None:
    topic = await new_topic(client)
    producer = await started(client)
    async with producer.transaction():
        first = await producer.send(topic, b"a")
    assert first.result().offset == 0

    async def failing() -> None:
        async with producer.transaction():
            await (await producer.send(topic, b"b"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    async with producer.transaction():
        pass
    async with producer.transaction():
        await producer.send(topic, b"c")
    assert producer.state is ProducerTransactionState.READY
    # The abort wrote a marker after `b`.
    assert await committed(client, topic) == [[(0, b"a"), (4, b"c")]]
    everything = await committed(client, topic, isolation=Isolation.READ_UNCOMMITTED)
    assert everything == [[(0, b"a"), (2, b"b"), (4, b"c")]]


async def offsets_commit_with_the_transaction(client: Client) -> None:
    topic, group = await new_topic(client), name("group")
    where = TopicPartition(topic, 0)
    producer = await started(client)

    async def become(offset: int) -> None:
        """Wait for the marker, which may be on its way."""
        async with asyncio.timeout(60):
            while await _offsets(client, group) != {where: CommittedOffset(offset)}:
                await client.cluster.refresh(())

    async def failing() -> None:
        async with producer.transaction():
            await producer.send_offsets(GroupMetadata(group), {where: 4})
            unstable = await client.admin.groups.offsets([group], require_stable=True)
            with pytest.raises(KafkaError) as caught:
                expect(unstable)
            assert caught.value.code is ErrorCode.unstable_offset_commit
            assert await _offsets(client, group) == {where: CommittedOffset(3)}
            raise ZeroDivisionError

    async with producer.transaction():
        await producer.send(topic, b"a")
        await producer.send_offsets(GroupMetadata(group), {where: CommittedOffset(2, metadata="m")})
        await producer.send_offsets(GroupMetadata(group), {where: 3})
    await become(3)
    with pytest.raises(ZeroDivisionError):
        await failing()
    async with producer.transaction():
        await producer.send_offsets(GroupMetadata(group), {where: 5})
    await become(5)


async def _offsets(client: Client, group: str) -> dict[TopicPartition, CommittedOffset]:
    """Return a group's offsets without those of open transactions."""
    found = (await client.admin.groups.offsets([group]))[group]
    return {} if isinstance(found, KafkaError) else dict(found)


async def another_producer_fences(client: Client) -> None:
    topic, transactional_id = await new_topic(client), name("producer")
    first = await client.transactional_producer(transactional_id)
    first.begin()
    await (await first.send(topic, b"a"))
    second = await client.transactional_producer(transactional_id)
    with pytest.raises(ProducerFenced, match="Another producer has started") as caught:
        await first.commit()
    assert caught.value.code in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)
    assert first.state is ProducerTransactionState.ENDED
    with pytest.raises(ProducerFenced):
        first.begin()
    await first.close()

    second.begin()
    third = await client.transactional_producer(transactional_id)
    # The log, not the coordinator, refuses a record of an old epoch (KIP-588).
    await second.send(topic, b"b")
    with pytest.raises(TransactionAbortable) as abortable:
        await second.commit()
    assert abortable.value.code is ErrorCode.invalid_producer_epoch
    with pytest.raises(ProducerFenced):
        await second.abort()
    async with third.transaction():
        await third.send(topic, b"c")
    (found,) = await committed(client, topic)
    assert [value for _, value in found] == [b"c"]


async def a_failed_record_fails_its_transaction(client: Client) -> None:
    topic = await new_topic(client, 1, {"max.message.bytes": "1000"})
    producer = await started(client)
    producer.begin()
    await (await producer.send(topic, b"a"))
    await producer.send(topic, b"x" * 2000)
    with pytest.raises(TransactionAbortable, match="Abort the transaction; then repeat it") as one:
        await producer.commit()
    assert one.value.code is ErrorCode.message_too_large
    assert producer.state is ProducerTransactionState.FAILED
    with pytest.raises(TransactionAbortable):
        await producer.send(topic, b"b")
    with pytest.raises(TransactionAbortable):
        await producer.commit()
    await producer.abort()
    async with producer.transaction():
        await producer.send(topic, b"c")
    (found,) = await committed(client, topic)
    assert [value for _, value in found] == [b"c"]


async def calls_in_another_order(client: Client) -> None:
    topic = await new_topic(client)
    with pytest.raises(ValueError, match="the transactional id is empty"):
        await client.transactional_producer("")
    with pytest.raises(InvalidConfiguration) as caught:
        await client.transactional_producer(name("producer"), timeout_ms=1 << 30)
    assert caught.value.code is ErrorCode.invalid_transaction_timeout
    producer = await started(client)
    for call in (producer.send(topic, b"a"), producer.commit(), producer.abort()):
        with pytest.raises(ValueError, match="begin a transaction first"):
            await call
    producer.begin()
    with pytest.raises(ValueError, match="commit or abort the open transaction first"):
        producer.begin()
    await producer.send(topic, b"a")
    await producer.close()
    assert await committed(client, topic) == [[]]


async def offsets_of_a_member_that_left(client: Client) -> None:
    topic, group = await new_topic(client), name("group")
    producer = await started(client)
    producer.begin()
    nobody = GroupMetadata(group, "nobody", 3)
    with pytest.raises(TransactionAbortable) as caught:
        await producer.send_offsets(nobody, {TopicPartition(topic, 0): 1})
    assert caught.value.code in (ErrorCode.illegal_generation, ErrorCode.unknown_member_id)
    await producer.abort()
    assert not await _offsets(client, group)


async def finished_offsets_need_their_feature(client: Client) -> None:
    """Kafka does not offer individual commits, so that nothing is committed there."""
    topic, group = await new_topic(client), name("group")
    producer = await started(client)
    finished = FinishedOffsets.from_ranges([(1, 1)])
    producer.begin()
    with pytest.raises(TransactionAbortable):
        await producer.send_offsets(
            GroupMetadata(group, "nobody", 1),
            {TopicPartition(topic, 0): CommittedOffset(0, finished=finished)},
        )
    await producer.abort()
    assert not await _offsets(client, group)


ALL = [
    transactions_commit_and_abort,
    an_abort_drops_what_waits,
    a_block_is_a_transaction,
    offsets_commit_with_the_transaction,
    another_producer_fences,
    a_failed_record_fails_its_transaction,
    calls_in_another_order,
    offsets_of_a_member_that_left,
    finished_offsets_need_their_feature,
]
