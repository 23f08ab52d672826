"""What our client must do against any Kafka-compatible cluster: run against Shoal and Apache Kafka.

Each scenario takes an open `Client` and creates its own topics and groups.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
)
from shoal.client.admin.groups import CONSUMER, SHARE
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.consume.consumer import GroupConsumer, Record
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import InvalidBatch, KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.member import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRecords,
    AcquireMode,
    SharedRecord,
    ShareSession,
)
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.client import Client

_numbers = itertools.count()
DEADLINE_S = 90.0


def name(prefix: str) -> str:
    return f"{prefix}-{next(_numbers)}-{time.monotonic_ns()}"


async def new_topic(
    client: Client, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> str:
    topic = name("topic")
    expect(await client.admin.topics.create([NewTopic(topic, partitions, configs=configs or {})]))
    return topic


async def fill(client: Client, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    async with client.producer() as producer:
        sent = [await producer.send(topic, v, partition=partition) for v in values]
    for future in sent:
        future.result()


async def new_group(client: Client, **configs: str) -> str:
    group = name("group")
    wanted = {"share.auto.offset.reset": "earliest"} | {
        key.replace("_", "."): value for key, value in configs.items()
    }
    changes = [ConfigChange(key, value) for key, value in wanted.items()]
    expect(
        await client.admin.configs.alter({ConfigResource(ConfigResourceType.GROUP, group): changes})
    )
    return group


async def acquire(session: ShareSession, **options: object) -> tuple[AcquiredRecords, ...]:
    """Acquire until a fetch returns records."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = await session.acquire(max_wait_ms=500, **options)  # type: ignore[arg-type]
        assert not found.refusals
        if found.count:
            return found.acquired
    raise AssertionError("nothing to acquire")


def decoded(acquired: Iterable[AcquiredRecords]) -> list[SharedRecord]:
    return [record for one in acquired for record in one.records()]


async def topics_come_grow_and_go(client: Client) -> None:
    admin, topic = client.admin, name("topic")
    created = expect(await admin.topics.create([NewTopic(topic, 2, configs={"retention.ms": "9"})]))
    assert created[topic].partitions == 2
    described = expect(await admin.topics.describe([topic]))[topic]
    assert described.topic_id == created[topic].topic_id
    assert [p.leader_id >= 0 for p in described.partitions] == [True, True]
    again = await admin.topics.create([NewTopic(topic, 1), NewTopic("no good name", 1)])
    assert {error.code for error in again.values() if isinstance(error, KafkaError)} == {
        ErrorCode.topic_already_exists,
        ErrorCode.invalid_topic_exception,
    }
    expect(await admin.topics.create_partitions({topic: 5}))
    assert len((await client.cluster.get_topic(topic)).partitions) == 5
    assert topic in await admin.topics.list()
    results = await admin.topics.delete([topic, "never-was"])
    assert results[topic] is None
    missing = results["never-was"]
    assert isinstance(missing, KafkaError)
    assert missing.code == ErrorCode.unknown_topic_or_partition
    with pytest.raises(KafkaError, match=f"there is no topic '{topic}'"):
        await client.cluster.get_topic(topic)


async def configs_of_topics_and_groups(client: Client) -> None:
    topic, group = await new_topic(client), await new_group(client)
    of_topic, of_group = (
        ConfigResource(ConfigResourceType.TOPIC, topic),
        ConfigResource(ConfigResourceType.GROUP, group),
    )
    changes = {
        of_topic: [ConfigChange("retention.ms", "1234")],
        of_group: [ConfigChange("share.delivery.count.limit", "3")],
    }
    expect(await client.admin.configs.alter(changes))
    await value_is(client, of_topic, "retention.ms", "1234")
    await value_is(client, of_group, "share.delivery.count.limit", "3")
    found = expect(await client.admin.configs.describe([of_topic, of_group], synonyms=True))
    assert not found[of_topic]["retention.ms"].is_default
    assert found[of_topic]["segment.bytes"].is_default
    unset = ConfigChange("retention.ms", None, AlterOperation.DELETE)
    expect(await client.admin.configs.alter({of_topic: [unset]}))
    await value_is(client, of_topic, "retention.ms", "604800000")
    refused = await client.admin.configs.alter(
        {
            of_topic: [ConfigChange("no.such.config", "1")],
            of_group: [ConfigChange("share.session.timeout.ms", "50000")],
        }
    )
    assert refused[of_group] is None
    error = refused[of_topic]
    assert isinstance(error, KafkaError)
    assert error.code == ErrorCode.invalid_config
    assert of_group in await client.admin.configs.resources([ConfigResourceType.GROUP])


async def value_is(client: Client, resource: ConfigResource, key: str, value: str) -> None:
    """Wait for a config's value: Kafka's brokers apply a change a moment after the response."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = expect(await client.admin.configs.describe([resource], keys=[key]))[resource]
        assert list(found) == [key]
        if found[key].value == value or time.monotonic() > deadline:
            assert found[key].value == value
            return


async def produced_records_come_back(client: Client) -> None:
    topic = await new_topic(client)
    headers = (("a", b"1"), ("b", None), ("a", b"2"))
    expected: list[tuple[object, ...]] = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        async with client.producer(compression=codec) as producer:
            sent = [
                await producer.send(
                    topic,
                    None if i == 3 else b"v%d" % i,
                    key=None if i % 2 else b"k",
                    headers=headers if i else (),
                    timestamp_ms=1_000_000 + i,
                )
                for i in range(5)
            ]
        results = [future.result() for future in sent]
        assert [r.offset for r in results] == list(range(len(expected), len(expected) + 5))
        expected += [
            (
                r.offset,
                1_000_000 + i,
                None if i % 2 else b"k",
                None if i == 3 else b"v%d" % i,
                headers if i else (),
            )
            for i, r in enumerate(results)
        ]
    fetched = await client.fetch_range(topic, 0, 0, len(expected) - 1)
    assert [tuple(record) for one in fetched for record in one.records()] == expected


async def a_record_that_is_too_large(client: Client) -> None:
    topic = await new_topic(client, configs={"max.message.bytes": "2000"})
    async with client.producer() as producer:
        large = await producer.send(topic, b"x" * 5000)
        await producer.flush()
        small = await producer.send(topic, b"x")
    with pytest.raises(KafkaError) as caught:
        large.result()
    assert caught.value.code == ErrorCode.message_too_large
    assert small.result().offset == 0


async def records_without_a_key_are_blamed(client: Client) -> None:
    """KIP-467: the other records of the batch get another error."""
    topic = await new_topic(client, configs={"cleanup.policy": "compact"})
    async with client.producer(linger_ms=1000) as producer:
        sent = [await producer.send(topic, b"v", key=None if i == 3 else b"k") for i in range(5)]
        await producer.flush()
        again = await producer.send(topic, b"v", key=b"k")
    errors = [future.exception() for future in sent]
    blamed = errors.pop(3)
    assert isinstance(blamed, KafkaError)
    assert blamed.code is ErrorCode.invalid_record
    assert "key" in str(blamed)
    assert all(isinstance(error, InvalidBatch) for error in errors), errors
    assert again.result().offset == 0


async def ranges_are_exact(client: Client) -> None:
    topic = await new_topic(client, 2)
    for at in range(0, 60, 20):  # Three batches of 20.
        await fill(client, topic, [b"%d" % i for i in range(at, at + 20)], partition=1)
    for first, last in ((0, 59), (5, 25), (59, 59), (20, 39)):
        values = []
        async for fetched in client.fetcher.fetch_range(topic, 1, first, last, chunk_bytes=100):
            values += [int(r.value or b"") for r in fetched.records()]
        assert values == list(range(first, last + 1))
    with pytest.raises(KafkaError, match="from 0 up to its end 60; 50 to 60") as caught:
        await client.fetch_range(topic, 1, 50, 60)
    assert caught.value.code == ErrorCode.offset_out_of_range
    where = TopicPartition(topic, 1)
    assert expect(await client.admin.topics.delete_records({where: 30})) == {where: 30}
    with pytest.raises(KafkaError, match="from 30 up to its end 60; 20 to 40") as caught:
        await client.fetch_range(topic, 1, 20, 40)
    assert caught.value.code == ErrorCode.offset_out_of_range


async def offsets_by_name_and_time(client: Client) -> None:
    topic = await new_topic(client, 2)
    async with client.producer() as producer:
        for when in (1_000, 2_000, 3_000):
            await producer.send(topic, b"x", partition=0, timestamp_ms=when)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def at(spec: int) -> list[int]:
        found = expect(await client.admin.topics.offsets({zero: spec, one: spec}))
        return [found[zero].offset, found[one].offset]

    assert await at(OffsetSpec.EARLIEST) == [0, 0]
    assert await at(OffsetSpec.LATEST) == [3, 0]
    assert await at(1_500) == [1, -1]
    assert await at(9_000) == [-1, -1]
    missing = TopicPartition(topic, 7)
    error = (await client.admin.topics.offsets({missing: -1}))[missing]
    assert isinstance(error, KafkaError)
    assert "2 partitions, no partition 7" in str(error)


async def share_records_are_settled_each_in_its_way(client: Client) -> None:
    topic, group = await new_topic(client), await new_group(client)
    await fill(client, topic, [b"%d" % i for i in range(10)])
    async with await client.share(group, [topic]) as session:
        (first,) = await acquire(session)
        assert [(r.offset, r.value, r.delivery_count) for r in first.records()] == [
            (i, b"%d" % i, 1) for i in range(10)
        ]
        assert session.lock_timeout_ms == 30_000
        kinds = AcknowledgeType
        settled = [
            Acknowledgement(topic, 0, 0, 3, kinds.ACCEPT),
            Acknowledgement(topic, 0, 4, 5, kinds.RELEASE),
            Acknowledgement(topic, 0, 6, 6, kinds.REJECT),
            Acknowledgement(topic, 0, 7, 9, kinds.RENEW),
        ]
        assert await session.acknowledge(settled) == ()
        again = await acquire(session)
        assert [(r.offset, r.delivery_count) for r in decoded(again)] == [(4, 2), (5, 2)]
        assert await session.acknowledge([Acknowledgement(topic, 0, 4, 5)]) == ()
        assert await session.acknowledge([Acknowledgement(topic, 0, 8, 9)]) == ()
        ((ack, error),) = await session.acknowledge([Acknowledgement(topic, 0, 9, 9)])
        assert ack.first_offset == 9
        assert isinstance(error, KafkaError)
        assert error.code == ErrorCode.invalid_record_state
        assert await session.acknowledge([Acknowledgement(topic, 0, 7, 7)]) == ()
        await lag_is(client, group, {TopicPartition(topic, 0): 0})


async def lag_is(client: Client, group: str, expected: dict[TopicPartition, int]) -> None:
    """Wait for a share group's lag, which follows its acknowledgements."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        offsets = expect(await client.admin.share_groups.offsets([group]))[group]
        found = {where: expect(offsets)[where].lag for where in expected}
        if found == expected or time.monotonic() > deadline:
            assert found == expected
            return
        await client.cluster.refresh(())


async def closing_gives_records_back(client: Client) -> None:
    topic, group = await new_topic(client), await new_group(client)
    await fill(client, topic, [b"x"] * 4)
    async with await client.share(group, [topic]) as session:
        assert len(decoded(await acquire(session))) == 4
    async with await client.share(group, [topic]) as session:
        assert [r.offset for r in decoded(await acquire(session))] == [0, 1, 2, 3]


async def a_session_that_the_broker_has_ended(client: Client) -> None:
    """The member's session is closed from another connection. Its locks end, and it opens a new
    one."""
    topic, group = await new_topic(client), await new_group(client)
    await fill(client, topic, [b"x"] * 2)
    async with await client.share(group, [topic]) as session:
        (first,) = await acquire(session)
        leader = await client.cluster.find_leader(topic, 0)
        closing = {
            "group_id": group,
            "member_id": session.member_id,
            "share_session_epoch": -1,
        }
        answer = await client.cluster.request(leader, ApiKey.SHARE_ACKNOWLEDGE, closing)
        assert not answer.error_code
        ((_, error),) = await session.acknowledge(first.acknowledge(AcknowledgeType.ACCEPT))
        assert isinstance(error, KafkaError)
        assert error.code == ErrorCode.share_session_not_found
        (again,) = await acquire(session)
        assert [r.offset for r in again.records()] == [0, 1]
        assert await session.acknowledge(again.acknowledge(AcknowledgeType.ACCEPT)) == ()


async def acknowledgements_ride_on_the_next_fetch(client: Client) -> None:
    topic, group = await new_topic(client), await new_group(client)
    await fill(client, topic, [b"x"] * 30)
    strict = AcquireMode.RECORD_LIMIT
    async with await client.share(group, [topic]) as session:
        carried: list[Acknowledgement] = []
        seen: list[int] = []
        while len(seen) < 30:
            found = await session.acquire(
                max_records=7, max_wait_ms=500, mode=strict, acknowledgements=carried
            )
            assert not found.refusals
            assert found.count <= 7
            seen += [r.offset for r in decoded(found)]
            carried = [a for one in found for a in one.acknowledge(AcknowledgeType.ACCEPT)]
        assert await session.acknowledge(carried) == ()
        assert sorted(seen) == list(range(30))
        await lag_is(client, group, {TopicPartition(topic, 0): 0})


async def ranges_without_their_payload(client: Client) -> None:
    topic, group = await new_topic(client), await new_group(client)
    await fill(client, topic, [b"x" * 1000] * 10)
    async with await client.share(group, [topic]) as session:
        (one,) = await acquire(session, payload=False)
        assert one.count == 10
        assert len(one.data) == 61
        (header,) = one.batches()
        assert header.last_offset == 9
        assert header.size > 10_000
        with pytest.raises(ValueError, match="without their payload"):
            list(one.records())
        fetched = await client.fetch_range(topic, 0, 0, 9)
        assert sum(len(r.value or b"") for f in fetched for r in f.records()) == 10_000


async def members_share_one_partition(client: Client) -> None:
    topic, group = await new_topic(client), await new_group(client)
    sessions = [await client.share(group, [topic]) for _ in range(3)]
    try:
        await asyncio.gather(*(_assigned(session) for session in sessions))
        await fill(client, topic, [b"x"] * 60)
        taken = [
            {
                r.offset
                for r in decoded(
                    await acquire(session, max_records=20, mode=AcquireMode.RECORD_LIMIT)
                )
            }
            for session in sessions
        ]
        assert [len(some) for some in taken] == [20, 20, 20]
        assert len(set.union(*taken)) == 60
        described = expect(await client.admin.groups.describe([group]))[group]
        assert described.type == SHARE
        assert {m.member_id for m in described.members} == {s.member_id for s in sessions}
    finally:
        for session in sessions:
            await session.close()
    assert expect(await client.admin.groups.describe([group]))[group].members == ()


async def _assigned(session: ShareSession) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not session.assignment and time.monotonic() < deadline:
        await session.membership.wait_for_change(1)
    assert session.assignment


async def a_lock_that_runs_out(client: Client) -> None:
    topic = await new_topic(client)
    group = await new_group(client, share_record_lock_duration_ms="1000")
    await fill(client, topic, [b"x"])
    async with await client.share(group, [topic]) as first:
        assert [r.delivery_count for r in decoded(await acquire(first))] == [1]
        assert first.lock_timeout_ms == 1000
        async with await client.share(group, [topic]) as second:
            assert [r.delivery_count for r in decoded(await acquire(second))] == [2]
            late = [Acknowledgement(topic, 0, 0, 0)]
            ((_, error),) = await first.acknowledge(late)
            assert isinstance(error, KafkaError)
            assert error.code == ErrorCode.invalid_record_state
            assert await second.acknowledge(late) == ()


async def positions_of_share_groups(client: Client) -> None:
    topic, group = await new_topic(client, 2), await new_group(client)
    await fill(client, topic, [b"x"] * 10)
    zero = TopicPartition(topic, 0)
    async with await client.share(group, [topic]) as session:
        carried = [a for x in await acquire(session) for a in x.acknowledge(AcknowledgeType.ACCEPT)]
        assert await session.acknowledge(carried) == ()
        with pytest.raises(KafkaError, match="has members") as caught:
            await client.admin.share_groups.alter_offsets(group, {zero: 0})
        assert caught.value.code == ErrorCode.non_empty_group
        refused = (await client.admin.groups.delete([group]))[group]
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.non_empty_group
        await lag_is(client, group, {zero: 0})
    assert await client.admin.share_groups.alter_offsets(group, {zero: 4}) == {zero: None}
    await lag_is(client, group, {zero: 6})
    offsets = expect(expect(await client.admin.share_groups.offsets({group: [zero]}))[group])
    assert offsets[zero].start_offset == 4
    listed = await client.admin.groups.list(types=["share"])
    assert listed[group].type == SHARE
    assert listed[group].state == "Empty"
    assert await client.admin.share_groups.delete_offsets(group, [topic]) == {topic: None}
    assert await client.admin.groups.delete([group]) == {group: None}
    gone = (await client.admin.groups.describe([group]))[group]
    assert isinstance(gone, KafkaError)
    assert gone.code == ErrorCode.group_id_not_found


async def poll_all(consumers: list[GroupConsumer], count: int) -> list[list[Record]]:
    found: list[list[Record]] = [[] for _ in consumers]
    deadline = time.monotonic() + DEADLINE_S
    while sum(map(len, found)) < count and time.monotonic() < deadline:
        polled = await asyncio.gather(*(consumer.poll(200) for consumer in consumers))
        for records, new in zip(found, polled, strict=True):
            records += new
    assert sum(map(len, found)) == count
    return found


async def consumers_split_partitions_and_resume(client: Client) -> None:
    topic, group = await new_topic(client, 4), name("group")
    join = GroupConsumer.join
    first = await join(client.cluster, group, [topic], reset=Reset.EARLIEST)
    second = await join(client.cluster, group, [topic], reset=Reset.EARLIEST)
    deadline = time.monotonic() + DEADLINE_S
    while [len(c.positions) for c in (first, second)] != [2, 2]:
        assert time.monotonic() < deadline
        await asyncio.gather(first.poll(200), second.poll(200))
    for partition in range(4):
        await fill(client, topic, [b"x"] * 5, partition)
    halves = await poll_all([first, second], 20)
    assert [len(half) for half in halves] == [10, 10]
    assert not {r.partition for r in halves[0]} & {r.partition for r in halves[1]}
    described = expect(await client.admin.groups.describe([group]))[group]
    assert described.type == CONSUMER
    assert len(described.members) == 2
    await first.close()
    await second.close()
    committed = expect(await client.admin.groups.offsets([group]))[group]
    assert {p: o.offset for p, o in committed.items()} == {
        TopicPartition(topic, p): 5 for p in range(4)
    }
    back = {TopicPartition(topic, 2): 3}
    assert set((await client.admin.groups.alter_offsets(group, back)).values()) == {None}
    third = await join(client.cluster, group, [topic], reset=Reset.EARLIEST)
    (records,) = await poll_all([third], 2)
    assert [(r.partition, r.offset) for r in records] == [(2, 3), (2, 4)]
    await third.close()
    where = TopicPartition(topic, 1)
    assert await client.admin.groups.delete_offsets(group, [where]) == {where: None}
    assert where not in expect(await client.admin.groups.offsets([group]))[group]
    assert await client.admin.groups.delete([group]) == {group: None}


async def hundreds_of_objects_in_a_few_calls(client: Client) -> None:
    topics = [name("many") for _ in range(100)]
    expect(await client.admin.topics.create([NewTopic(topic, 1) for topic in topics]))
    groups = [name("many") for _ in range(100)]
    change = [ConfigChange("share.auto.offset.reset", "earliest")]
    expect(
        await client.admin.configs.alter(
            {ConfigResource(ConfigResourceType.GROUP, group): change for group in groups}
        )
    )
    ends = expect(
        await client.admin.topics.offsets(
            {TopicPartition(topic, 0): int(OffsetSpec.LATEST) for topic in topics}
        )
    )
    assert {offset.offset for offset in ends.values()} == {0}
    assert len(ends) == 100
    described = await client.admin.groups.describe(groups)
    assert len(described) == 100
    assert set((await client.admin.topics.delete(topics)).values()) == {None}


async def a_cluster_describes_itself(client: Client) -> None:
    found = await client.admin.describe_cluster()
    assert found.cluster_id
    assert len(found.brokers) == 1
    assert (await client.admin.features())["share.version"] >= 1
    (node,) = (broker.node_id for broker in found.brokers)
    topic = await new_topic(client)
    await fill(client, topic, [b"x" * 1000])
    (log_dir,) = (await client.admin.log_dirs([node]))[node]
    assert log_dir.partitions[TopicPartition(topic, 0)] > 1000
    quorum = await client.admin.describe_quorum()
    assert quorum.leader_id == node
    assert quorum.high_watermark > 0


ALL = [
    topics_come_grow_and_go,
    configs_of_topics_and_groups,
    produced_records_come_back,
    a_record_that_is_too_large,
    records_without_a_key_are_blamed,
    ranges_are_exact,
    offsets_by_name_and_time,
    share_records_are_settled_each_in_its_way,
    closing_gives_records_back,
    a_session_that_the_broker_has_ended,
    acknowledgements_ride_on_the_next_fetch,
    ranges_without_their_payload,
    members_share_one_partition,
    a_lock_that_runs_out,
    positions_of_share_groups,
    consumers_split_partitions_and_resume,
    hundreds_of_objects_in_a_few_calls,
    a_cluster_describes_itself,
]
