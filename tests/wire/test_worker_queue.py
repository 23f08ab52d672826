"""`shoal.worker.Queue` with a real broker: jobs, their keys and headers, delays and priorities."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import Client, SyncClient
from shoal.client.consume.fetcher import Isolation
from shoal.client.errors import KafkaError
from shoal.worker import CancelOutcome, Job, Queue, SyncQueue, Worker
from support.brokers.queues import Queue as Topic
from support.workers.worker_runs import serve_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.record.records import Record
    from support.brokers.servers import ShoalProcess


@dataclass
class Order:
    total: int


@pytest.fixture
def topic(shared_broker: ShoalProcess) -> Iterator[Topic]:
    with SyncClient(shared_broker.bootstrap) as client:
        yield Topic(client, shared_broker.bootstrap)


def read(topic: Topic, last: int) -> list[Record]:
    """Return the records up to an offset."""
    found = topic.client.fetch_range(topic.topic, 0, 0, last)
    return [record for fetched in found for record in fetched.records()]


def test_a_job_has_its_payload_key_and_headers(topic: Topic) -> None:
    async def put() -> None:
        async with Queue(topic.topic, settings=topic.bootstrap) as queue:
            stored = await queue.put(
                Order(7), key="ann", delay="10m", priority=7, headers={"traceparent": "00-1-2-03"}
            )
            assert (stored.topic, stored.offset) == (topic.topic, 0)
            many = await queue.put_many([Order(1), Order(2)], key=lambda order: str(order.total))
            assert [one.offset for one in many] == [1, 2]

    asyncio.run(put())
    first, *others = read(topic, 2)
    assert (first.key, first.value) == (b"ann", b'{"total":7}')
    assert dict(first.headers) == {
        "traceparent": b"00-1-2-03",
        "shoal.deliver.after": b"600000",
        "priority": b"7",
    }
    assert [(r.key, r.value) for r in others] == [(b"1", b'{"total":1}'), (b"2", b'{"total":2}')]


def test_a_program_without_an_event_loop_enqueues(topic: Topic) -> None:
    with SyncQueue(topic.topic, settings=topic.bootstrap) as queue:
        assert queue.put("a").offset == 0
        assert [one.offset for one in queue.put_many(["b", "c"])] == [1, 2]
    assert [r.value for r in read(topic, 2)] == [b"a", b"b", b"c"]


def test_a_queue_serves_one_event_loop_after_the_other(topic: Topic) -> None:
    queue = Queue(topic.topic, settings=topic.bootstrap)

    async def put() -> None:
        async with queue:
            await queue.put("a")

    asyncio.run(put())
    asyncio.run(put())
    assert len(read(topic, 1)) == 2


def test_a_queue_is_open_in_one_event_loop(topic: Topic) -> None:
    queue = Queue(topic.topic, settings=topic.bootstrap)
    with asyncio.Runner() as first:
        first.run(queue.put("a"))
        with asyncio.Runner() as second, pytest.raises(RuntimeError, match="another event loop"):
            second.run(queue.put("refused"))
        first.run(queue.close())
    assert [record.value for record in read(topic, 0)] == [b"a"]


def test_threads_share_one_client_of_a_queue(topic: Topic) -> None:
    before = set(threading.enumerate())
    queue = SyncQueue(topic.topic, settings=topic.bootstrap)
    begin = threading.Barrier(4)

    def put(number: int) -> int:
        begin.wait(20)
        return queue.put(str(number)).offset

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(put, range(4))) == [0, 1, 2, 3]
    queue.close()
    assert {t for t in threading.enumerate() if t.name == "shoal-client"} <= before


def test_the_jobs_of_a_transaction_come_together_or_not_at_all(topic: Topic) -> None:
    topic.configure(share_isolation_level="read_committed")
    seen: list[str] = []

    async def scenario() -> None:
        name = f"x-{uuid.uuid4().hex[:8]}"
        async with Queue(topic.topic, settings=topic.bootstrap) as queue:
            with contextlib.suppress(KeyError):
                async with queue.transaction(name) as transaction:
                    await transaction.put("dropped")
                    raise KeyError
            async with queue.transaction(name) as transaction:
                await transaction.put("a")
                await transaction.put("b")
        worker = Worker(topic.group, settings=topic.bootstrap)

        @worker.handler(topic.topic)
        async def handle(text: str) -> None:
            seen.append(text)

        await serve_until(worker, lambda: len(seen) == 2)

    asyncio.run(scenario())
    assert seen == ["a", "b"]
    topic.drained()


def test_a_program_without_an_event_loop_enqueues_in_a_transaction(topic: Topic) -> None:
    name = f"x-{uuid.uuid4().hex[:8]}"
    with SyncQueue(topic.topic, settings=topic.bootstrap) as queue:
        with contextlib.suppress(KeyError), queue.transaction(name) as transaction:
            transaction.put_many(["dropped", "too"])
            raise KeyError
        with queue.transaction(name) as transaction:
            transaction.put("a", priority=3)
            transaction.put_many(["b", "c"], key=str.upper, dedup_id=lambda text: f"id-{text}")
        last = queue.put("last").offset
    fetched = topic.client.fetch_range(topic.topic, 0, 0, last, isolation=Isolation.READ_COMMITTED)
    found = [record for batches in fetched for record in batches.records()]
    assert [(r.key, r.value, r.headers) for r in found] == [
        (None, b"a", (("priority", b"3"),)),
        (b"B", b"b", (("shoal.dedup.id", b"id-b"),)),
        (b"C", b"c", (("shoal.dedup.id", b"id-c"),)),
        (None, b"last", ()),
    ]


def test_urgent_jobs_come_first_and_delayed_ones_wait(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.configure(share_priority_header="priority", share_delay_max_ms="60000")
    seen: list[tuple[str, str, int]] = []

    async def scenario() -> None:
        async with Queue(topic.topic, settings=topic.bootstrap) as queue:
            await queue.put("delayed", delay="10m", priority=9)
            await queue.put("normal")
            await queue.put("urgent", priority=9)
        worker = Worker(topic.group, settings=topic.bootstrap)

        @worker.handler(topic.topic, concurrency=1)
        async def handle(text: str, job: Job) -> None:
            seen.append((text, job.group, job.delivery_count))

        await serve_until(worker, lambda: len(seen) == 2)

    asyncio.run(scenario())
    assert seen == [("urgent", topic.group, 1), ("normal", topic.group, 1)]
    assert "share.delay.max.ms" not in caplog.text
    assert "share.priority.header" not in caplog.text


def test_what_cannot_be_enqueued_is_refused(topic: Topic) -> None:
    async def scenario() -> None:
        async with Queue(topic.topic, settings=topic.bootstrap) as queue:
            with pytest.raises(ValueError, match="priority is 10; it is 0 to 9"):
                await queue.put("a", priority=10)
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await queue.put_many(["small", b"x" * 3_000_000])
        async with Queue(f"none-{topic.topic}", settings=topic.bootstrap) as queue:
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await queue.put("a")

    asyncio.run(scenario())


def test_brokers_come_from_the_environment(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_BOOTSTRAP_SERVERS", topic.bootstrap)

    async def put() -> int:
        async with Queue(topic.topic) as queue, Client(topic.bootstrap):
            return (await queue.put("a")).offset

    assert asyncio.run(put()) == 0


def test_a_job_is_cancelled_by_its_id(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with and without an event loop. Workers get what is left."""
    seen: list[str] = []

    async def work() -> None:
        async with Queue(topic.topic, settings=topic.bootstrap) as queue:
            worker = Worker(topic.group, settings=topic.bootstrap)

            @worker.handler(topic.topic)
            async def handle(text: str) -> None:
                seen.append(text)

            await queue.put("first")
            await serve_until(worker, lambda: seen == ["first"])
            for name in ("one", "two", "three"):
                await queue.put(name, headers={"shoal.dedup.id": name})
            report = await queue.cancel("two", group=topic.group)
            assert report.counts[CancelOutcome.CANCELLED] == report.total == 1
            assert [row.offset for row in report.rows] == [2]

    async def work_again() -> None:
        worker = Worker(topic.group, settings=topic.bootstrap)

        @worker.handler(topic.topic)
        async def handle(text: str) -> None:
            seen.append(text)

        await serve_until(worker, lambda: len(seen) == 2)

    asyncio.run(work())
    with SyncQueue(topic.topic, settings=topic.bootstrap) as queue:
        with pytest.raises(ValueError, match="name the share group"):
            queue.cancel("one")
        monkeypatch.setenv("SHOAL_GROUP_ID", topic.group)
        assert queue.cancel("one").counts[CancelOutcome.CANCELLED] == 1
        assert queue.cancel("four").total == 0
    asyncio.run(work_again())
    assert seen == ["first", "three"]


def test_a_group_that_ignores_delays_and_priorities_gets_a_warning(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each topic, by the first job that has one."""
    seen: list[str] = []

    async def scenario() -> None:
        async with Queue(topic.topic, settings=topic.bootstrap) as queue:
            await queue.put("plain", priority=0, headers={"shoal.deliver.after": "soon"})
            for name in ("first", "second"):
                await queue.put(name, delay="10m", priority=7)
        worker = Worker(topic.group, settings=topic.bootstrap)

        @worker.handler(topic.topic)
        async def handle(text: str) -> None:
            seen.append(text)

        await serve_until(worker, lambda: len(seen) == 3)

    asyncio.run(scenario())
    told = [r.getMessage() for r in caplog.records if f"{topic.topic}-0@" in r.getMessage()]
    assert len(told) == 2
    delay, priority = told
    set_of_group = f"`shoal configs set group {topic.group} "
    assert f"job {topic.topic}-0@1 runs" in delay
    assert set_of_group + "share.delay.max.ms=604800000`" in delay
    assert f"the priority of job {topic.topic}-0@1 has no effect" in priority
    assert set_of_group + "share.priority.header=priority`" in priority
