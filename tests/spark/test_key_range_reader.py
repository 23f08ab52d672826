"""The reader of consumer groups, called as Spark calls it, without a JVM.

`test_consumer_group.py` has queries. These tests have many cases of one batch.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.record.key_ranges import KeyRanges
from shoal_spark.key_range_reader import KeyRangeReader
from shoal_spark.options import InvalidOption, KeyRangeOptions
from shoal_spark.range_reader import DataLoss

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.queues import Queue

    MakeQueue = Callable[..., Queue]

ALLOWED = {"shoal.key.ranges.enable": "true"}
KEYS = 20
Offsets = dict[str, Any]


def key_of(value: int) -> bytes | None:
    return b"k%d" % (value % KEYS) if value % KEYS else None


def fill(queue: Queue, first: int, end: int, partition: int = 0) -> None:
    """Produce records whose values are their offsets; one key is none."""

    async def send() -> None:
        producer = queue.client.client.producer(linger_ms=2)
        for n in range(first, end):
            await producer.send(queue.topic, b"%d" % n, key=key_of(n), partition=partition)
        await producer.flush()

    queue.client.run(send())


def reader(queue: Queue, **more: Any) -> KeyRangeReader:
    given = {
        "kafka.bootstrap.servers": queue.bootstrap,
        "groupId": queue.topic,  # The queue's own group is a share group.
        "subscribe": queue.topic,
        "startingOffsets": "earliest",
        "fetch.max.wait.ms": 0,
        **more,
    }
    return KeyRangeReader(
        KeyRangeOptions.from_options({name: str(value) for name, value in given.items()})
    )


def rows(made: KeyRangeReader, start: Offsets, end: Offsets) -> list[list[dict[str, Any]]]:
    """Return the rows of each task, which a pickled copy reads."""
    found = []
    for task in made.partitions(start, end):
        copy = pickle.loads(pickle.dumps(made))
        found.append([row for batch in copy.read(task) for row in batch.to_pylist()])
    return found


def offsets(tasks: list[list[dict[str, Any]]]) -> list[int]:
    return sorted(row["offset"] for task in tasks for row in task)


def position(queue: Queue, partition: int = 0) -> int:
    found = queue.client.run(queue.client.admin.groups.offsets([queue.topic]))[queue.topic]
    assert not isinstance(found, KafkaError), found
    offset: int = found[TopicPartition(queue.topic, partition)].offset
    return offset


def test_batches_and_their_replay(shoal_queue: MakeQueue) -> None:
    """Each row is in one task, by the range of its key. A batch that another driver runs again is
    the same, and the group has the position of each complete batch."""
    queue = shoal_queue(partitions=1, topic_configs=ALLOWED)
    fill(queue, 0, 100)
    one = reader(queue, keyRanges=4)
    start = one.initialOffset()
    middle = one.latestOffset(start, ReadMaxRows(60))
    found = rows(one, start, middle)
    assert [len(found), offsets(found)] == [4, list(range(60))]
    for number, task in enumerate(found, 1):
        assert [row["offset"] for row in task] == sorted(row["offset"] for row in task)
        for row in task:
            assert (row["key"], row["value"]) == (key_of(row["offset"]), b"%d" % row["offset"])
            assert KeyRanges.from_part(number, 4).has_record(row["key"], row["offset"])
    assert position(queue) == 0
    end = one.latestOffset(middle, ReadMaxRows(60))
    assert position(queue) == 60
    fill(queue, 100, 110)
    assert rows(one, start, middle) == found

    two = reader(queue, keyRanges=4)  # After a crash, Spark first runs the last batch again.
    again = rows(two, middle, end)
    assert offsets(again) == list(range(60, 100))
    assert again == rows(one, middle, end)
    last = two.latestOffset(end, ReadAllAvailable())
    assert position(queue) == 100
    assert offsets(rows(two, end, last)) == list(range(100, 110))
    assert two.latestOffset(last, ReadAllAvailable()) == last
    assert position(queue) == 110
    assert two.reportLatestOffset() == {"group": queue.topic, "lag": 0}


def test_a_new_query_starts_at_the_group(shoal_queue: MakeQueue) -> None:
    """Else at `startingOffsets`. The start is stored before there is a record."""
    queue = shoal_queue(partitions=1)
    fill(queue, 0, 10)
    one = reader(queue, startingOffsets="latest")
    start = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    assert rows(one, one.initialOffset(), start) == []
    fill(queue, 10, 20)
    end = one.latestOffset(start, ReadAllAvailable())
    assert offsets(rows(one, start, end)) == list(range(10, 20))
    assert position(queue) == 10
    other = reader(queue)
    first = other.latestOffset(other.initialOffset(), ReadAllAvailable())
    assert offsets(rows(other, other.initialOffset(), first)) == list(range(10, 20))


def test_a_drain_ends_at_the_log_ends_of_its_start(shoal_queue: MakeQueue) -> None:
    queue = shoal_queue(partitions=2, topic_configs=ALLOWED)
    fill(queue, 0, 10, partition=1)
    one = reader(queue, keyRanges=2)
    one.prepareForTriggerAvailableNow()
    fill(queue, 0, 10, partition=0)
    start = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    assert offsets(rows(one, one.initialOffset(), start)) == list(range(10))
    assert one.latestOffset(start, ReadAllAvailable()) == start
    assert [position(queue, 0), position(queue, 1)] == [0, 10]


def test_new_partitions_are_read_from_their_start(shoal_queue: MakeQueue) -> None:
    queue = shoal_queue(partitions=1)
    fill(queue, 0, 5)
    one = reader(queue, startingOffsets="latest")
    start = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    expect(queue.client.run(queue.client.admin.topics.create_partitions({queue.topic: 2})))
    fill(queue, 0, 5, partition=1)
    fresh = reader(queue, **{"kafka.client.id": queue.topic})  # Its metadata has the partition.
    end = fresh.latestOffset(start, ReadAllAvailable())
    assert offsets(rows(fresh, start, end)) == list(range(5))


def test_aborted_records_are_left_out(shoal_queue: MakeQueue) -> None:
    """With read_committed. A task ends at its last offset although its last records are none."""
    queue = shoal_queue(partitions=1, topic_configs=ALLOWED)

    async def transact() -> None:
        producer = await queue.client.client.transactional_producer(queue.topic)
        for end in (producer.commit, producer.abort):
            producer.begin()
            sent = [
                await producer.send(queue.topic, b"v", key=key_of(n), partition=0)
                for n in range(20)
            ]
            await asyncio.gather(*sent)  # An abort drops what is not sent.
            await end()
        await producer.close()

    queue.client.run(transact())
    for isolation, expected in (("read_committed", 20), ("read_uncommitted", 40)):
        more = {"kafka.isolation.level": isolation, "groupId": f"{queue.topic}-{isolation}"}
        one = reader(queue, keyRanges=3, **more)
        end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
        assert len(offsets(rows(one, one.initialOffset(), end))) == expected


def test_lost_rows(shoal_queue: MakeQueue) -> None:
    """A batch whose rows are deleted fails, or has the rest."""
    queue = shoal_queue(partitions=1, topic_configs=ALLOWED)
    fill(queue, 0, 40)
    one = reader(queue, keyRanges=2)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    where = TopicPartition(queue.topic, 0)
    expect(queue.client.run(queue.client.admin.topics.delete_records({where: 30})))
    with pytest.raises(DataLoss, match=r"offsets 0 to 39, are gone: .*failOnDataLoss"):
        rows(one, start, end)
    lenient = reader(queue, keyRanges=2, failOnDataLoss="false")
    assert offsets(rows(lenient, start, end)) == list(range(30, 40))


def test_refusals_name_the_option(shoal_queue: MakeQueue) -> None:
    queue = shoal_queue(partitions=1)
    fill(queue, 0, 5)
    for more, words in (
        ({"keyRanges": 2}, "'keyRanges' is 2: .*shoal.key.ranges.enable=true"),
        ({"subscribe": "no-such-topic"}, "'subscribe': 'no-such-topic'"),
    ):
        made = reader(queue, **more)
        with pytest.raises(InvalidOption, match=words):
            made.latestOffset(made.initialOffset(), ReadAllAvailable())
    wrong = KeyRangeReader(reader(queue).options, ["x"])
    with pytest.raises(
        InvalidOption, match="the schema has the columns x, and this source has key"
    ):
        wrong.latestOffset(wrong.initialOffset(), ReadAllAvailable())


def test_a_group_with_members_is_refused(shoal_queue: MakeQueue) -> None:
    queue = shoal_queue(partitions=1)

    async def ask() -> None:
        made = reader(queue)
        async with (
            Client(queue.bootstrap) as client,
            await GroupConsumer.join(client.cluster, queue.topic, [queue.topic]),
        ):
            with pytest.raises(InvalidOption, match=r"'groupId' is .*: consumers are members"):
                await asyncio.to_thread(made.latestOffset, made.initialOffset(), ReadAllAvailable())

    asyncio.run(ask())
