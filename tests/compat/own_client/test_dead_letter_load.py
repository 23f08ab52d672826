"""Dead letters under load: thousands a second with a broker kill, and none is missing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.member import AcknowledgeType, AcquireMode
from shoal.dead_letters.records import parse_dead_letter
from support.brokers.queues import Queue
from support.runs.conditions import eventually, slowness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess

RECORDS = 20_000
PARTITIONS = 2
#: The minimum on the machine of the tests; `bench` checks the goal of 5,000.
LETTERS_PER_S_MIN = 1_000
DLQ = "errors.deadletterqueue"

#: A member whose broker was killed cannot leave, and keeps its partition until its session ends.
CONFIGS = {
    "group.share.session.timeout.ms": "1000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
}


@pytest.fixture
def broker(start_broker: Callable[..., ShoalProcess]) -> ShoalProcess:
    return start_broker(configs=CONFIGS)


@pytest.fixture
def queue(broker: ShoalProcess) -> Iterator[Queue]:
    with SyncClient(broker.bootstrap) as client:
        queue = Queue(client, broker.bootstrap, partitions=PARTITIONS)
        letters = NewTopic(
            f"dlq.{queue.topic}", PARTITIONS, 1, configs={f"{DLQ}.group.enable": "true"}
        )
        expect(client.run(client.admin.topics.create([letters])))
        queue.configure(
            **{
                f"{DLQ}.topic.name": f"dlq.{queue.topic}",
                f"{DLQ}.copy.record.enable": "true",
                "share.partition.max.record.locks": "4000",
            }
        )
        yield queue


class Rejecter(threading.Thread):
    """A member that rejects every record individually until `end`."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(daemon=True)
        self._queue = queue
        self._ending = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                with SyncClient(self._queue.bootstrap) as client:
                    client.run(self._reject(client))
            except ClientError:
                self._ending.wait(0.1)  # The broker is being killed.

    async def _reject(self, client: SyncClient) -> None:
        session = await client.client.share(self._queue.group, [self._queue.topic])
        async with session:
            acks: list = []
            while not self._ending.is_set():
                found = await session.acquire(
                    max_records=1000,
                    max_wait_ms=200,
                    acknowledgements=acks,
                    payload=False,
                    mode=AcquireMode.RECORD_LIMIT,
                )
                acks = [a for one in found for a in one.acknowledge(AcknowledgeType.REJECT)]

    def end(self) -> None:
        self._ending.set()
        self.join()


def letters(queue: Queue) -> Counter[tuple[int, int]]:
    """Count the dead letters of each record, by partition and offset, and check their payload."""

    async def read() -> Counter[tuple[int, int]]:
        client, found = queue.client.client, Counter[tuple[int, int]]()
        for index in range(PARTITIONS):
            where = TopicPartition(f"dlq.{queue.topic}", index)
            end = expect(await client.admin.topics.offsets({where: int(OffsetSpec.LATEST)}))[where]
            async for fetched in client.fetcher.fetch_range(*where, 0, end.offset - 1):
                for record in fetched.records():
                    letter = parse_dead_letter(*where, record)
                    assert letter is not None
                    assert letter.reason == "rejected"
                    assert record.value == b"%d" % (letter.source_offset * PARTITIONS + index)
                    found[letter.source_partition, letter.source_offset] += 1
        return found

    return queue.client.run(read())


def fill(queue: Queue, first: int = 0, end: int = RECORDS) -> None:
    """Record n is value n, at offset n // PARTITIONS of partition n % PARTITIONS."""
    for index in range(PARTITIONS):
        queue.produce(range(first + index, end, PARTITIONS), partition=index)


def test_no_letter_is_lost_over_a_killed_broker(broker: ShoalProcess, queue: Queue) -> None:
    rejecters = [Rejecter(queue) for _ in range(2)]
    name = f'shoal_share_group_dead_letters_total{{group="{queue.group}"}}'
    # Each broker gets records that its predecessor cannot have finished.
    third = RECORDS // 3 // PARTITIONS * PARTITIONS
    for first in (0, third):
        fill(queue, first, first + third)
        eventually(lambda: name in broker.scrape(), timeout_s=60, what="letters are written")
        broker.kill9()
        broker.start()
    fill(queue, 2 * third)
    queue.drained(timeout_s=120)
    for rejecter in rejecters:
        rejecter.end()
    counts = letters(queue)
    assert len(counts) == RECORDS, f"{RECORDS - len(counts)} letters are missing"
    print(f"{counts.total() - RECORDS} of {RECORDS} letters came twice")


@pytest.mark.nightly
def test_dead_letters_are_written_as_fast_as_records_are_rejected(
    broker: ShoalProcess, queue: Queue
) -> None:
    fill(queue)
    name = f'shoal_share_group_dead_letters_total{{group="{queue.group}"}}'
    begun, cpu = time.monotonic(), broker.metric("process_cpu_seconds_total")
    rejecters = [Rejecter(queue) for _ in range(2)]
    queue.drained(timeout_s=120)
    took_s, cpu_s = time.monotonic() - begun, broker.metric("process_cpu_seconds_total") - cpu
    for one in rejecters:
        one.end()
    assert broker.metric(name) == RECORDS == letters(queue).total()
    print(f"{RECORDS / took_s:,.0f} letters/s, broker CPU {cpu_s / RECORDS * 1e6:.0f} us a letter")
    assert RECORDS / took_s > LETTERS_PER_S_MIN / slowness()
