"""What programs use of `shoal.client`, with a real broker: blocking calls, the share consumer, the
rebalance listener, and what a user reads about a missing topic or broker."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import shoal
from shoal import worker
from shoal.client import (
    Client,
    ConnectionLost,
    KafkaError,
    RebalanceListener,
    Reset,
    SharedRecord,
    SyncClient,
    TransactionAbortable,
    Unreachable,
)
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import expect
from support.brokers.ports import free_ports
from support.brokers.queues import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.client.consume.rebalance_listener import Ranges
    from shoal.client.synchronous import SyncShareConsumer
    from support.brokers.servers import ShoalProcess


@pytest.fixture
def queue(shared_broker: ShoalProcess) -> Iterator[Queue]:
    with SyncClient(shared_broker.bootstrap) as client:
        yield Queue(client, shared_broker.bootstrap)


def poll(consumer: SyncShareConsumer, count: int) -> list[SharedRecord]:
    """Return this number of records."""
    records: list[SharedRecord] = []
    while len(records) < count:
        records += consumer.poll(count - len(records), max_wait_ms=5_000)
    return records


def read(queue: Queue, last: int) -> list[bytes | None]:
    found = queue.client.fetch_range(queue.topic, 0, 0, last)
    return [record.value for fetched in found for record in fetched.records()]


# Blocking calls.


def test_blocking_calls_return_where_a_record_is_stored(queue: Queue) -> None:
    client = queue.client
    stored = client.put(queue.topic, "a", key="k", headers={"h": "x"}, timeout_s=30)
    assert (stored.topic, stored.partition, stored.offset) == (queue.topic, 0, 0)
    with client.producer(linger_ms=0, compression="gzip") as producer:
        assert producer.send(queue.topic, b"b").offset == 1
        assert [one.offset for one in producer.send_many(queue.topic, [b"c", b"d"])] == [2, 3]
    with pytest.raises(KafkaError, match="there is no topic 'missing'"):
        client.put("missing", b"")
    assert read(queue, 3) == [b"a", b"b", b"c", b"d"]
    (first, *_) = [r for f in client.fetch_range(queue.topic, 0, 0, 0) for r in f.records()]
    assert (first.key, first.headers) == (b"k", (("h", b"x"),))


def test_callbacks_of_stored_records_have_run_after_a_flush(
    shared_broker: ShoalProcess,
) -> None:
    """Also if the last record is stored in the turn of the loop in which the flush begins."""

    async def main() -> None:
        async with Client(shared_broker.bootstrap) as client:
            topic, told = f"flushed-{uuid.uuid4().hex[:8]}", Counter[bool]()
            await client.admin.topics.create([NewTopic(topic)])
            producer = client.producer(linger_ms=0)
            stored = await producer.send(topic, b"one")
            stored.add_done_callback(lambda future: told.update([future.done()]))
            while not stored.done():
                await asyncio.sleep(0)
            await producer.flush()
            assert told == {True: 1}

    asyncio.run(main())


def test_a_share_consumer_settles_each_record(queue: Queue) -> None:
    queue.configure(share_redelivery_backoff_max_ms="60000", share_delivery_count_limit="5")
    queue.produce(["done", "again", "never", "later"])
    with queue.client.share_consumer(queue.group, [queue.topic]) as consumer:
        done, again, never, later = poll(consumer, 4)
        assert consumer.lock_timeout_ms > 0
        assert consumer.renew(later) == ()
        consumer.accept(done)
        consumer.release(again)
        consumer.release(later, delay_ms=60_000)
        consumer.reject(never)
        (second,) = poll(consumer, 1)  # Sends the outcomes.
        assert (second.value, second.delivery_count) == (b"again", 2)
        consumer.accept(second)
        assert consumer.commit() == ()
        consumer.accept(second)
        ((refused, error),) = consumer.commit()
        assert (refused.first_offset, refused.last_offset) == (1, 1)
        assert "INVALID_RECORD_STATE" in str(error)
    offsets = queue.client.run(queue.client.admin.share_groups.offsets([queue.group]))
    (left,) = expect(expect(offsets)[queue.group]).values()
    assert left.start_offset == 3, "only the record that waits for its delay is left"


def test_a_share_consumer_that_closes_gives_records_back(queue: Queue) -> None:
    queue.produce(["a"])
    with queue.client.share_consumer(queue.group, [queue.topic]) as consumer:
        poll(consumer, 1)
    consumer = queue.client.share_consumer(queue.group, [queue.topic])
    (record,) = poll(consumer, 1)
    assert record.delivery_count == 2
    consumer.close(undelivered=True)
    with queue.client.share_consumer(queue.group, [queue.topic]) as last:
        (record,) = poll(last, 1)
        assert record.delivery_count == 2
        last.accept(record)


def test_threads_share_a_client(queue: Queue) -> None:
    offsets: list[int] = []

    def put(name: int) -> None:
        offsets.extend(queue.client.put(queue.topic, f"{name}-{n}").offset for n in range(20))

    threads = [threading.Thread(target=put, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(80))


def test_a_blocking_transaction_commits_or_aborts(queue: Queue) -> None:
    with queue.client.transactional_producer(f"id-{queue.topic}") as producer:
        with producer.transaction() as transaction:
            transaction.send(queue.topic, b"kept")

        def fail() -> None:
            with producer.transaction():
                producer.send(queue.topic, b"dropped")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as failure:
            fail()
        assert traceback.extract_tb(failure.tb)[-1].name == "fail"
        with pytest.raises(TransactionAbortable), producer.transaction():
            producer.send(queue.topic, b"x" * (2 << 20))
        with producer.transaction():
            producer.send(queue.topic, b"last")
    queue.configure(share_isolation_level="read_committed")
    with queue.client.share_consumer(queue.group, [queue.topic]) as consumer:
        got = poll(consumer, 2)
        consumer.accept(*got)
    assert [record.value for record in got] == [b"kept", b"last"]


def test_a_call_ends_at_its_timeout(queue: Queue) -> None:
    with queue.client.share_consumer(queue.group, [queue.topic]) as consumer:
        with pytest.raises(TimeoutError, match=r"no result within 0\.01 s"):
            consumer.poll(max_wait_ms=60_000, timeout_s=0.01)
        queue.produce(["a"])
        (record,) = poll(consumer, 1)
        consumer.accept(record)


def test_a_closed_client_says_so(shared_broker: ShoalProcess) -> None:
    client = SyncClient(shared_broker.bootstrap)
    client.close()
    with pytest.raises(ConnectionLost, match="this client is closed"):
        client.put("topic", b"")


def test_a_blocking_call_on_the_loop_of_its_client_is_refused(shared_broker: ShoalProcess) -> None:
    """It would wait for itself."""
    with SyncClient(shared_broker.bootstrap) as client:

        async def call() -> None:
            client.put("topic", b"")

        with pytest.raises(RuntimeError, match="the event loop's own"):
            client.run(call(), timeout_s=30)


# Members of groups.


class Listener(RebalanceListener):
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    async def on_assigned(self, ranges: Ranges) -> None:
        self.calls.append(("assigned", sorted(map(str, ranges))))

    async def on_revoked(self, ranges: Ranges) -> None:
        self.calls.append(("revoked", sorted(map(str, ranges))))


def test_the_listener_of_a_plain_member_is_called(shared_broker: ShoalProcess) -> None:
    """It takes a heartbeat of the group, 5 s, until a member hears of the next one."""
    with SyncClient(shared_broker.bootstrap) as sync:
        topic = Queue(sync, shared_broker.bootstrap, partitions=2).topic

    async def main() -> list[tuple[str, list[str]]]:
        group, listener = f"g-{uuid.uuid4().hex[:8]}", Listener()
        async with Client(shared_broker.bootstrap) as client:
            first = await client.group_consumer(
                group, [topic], reset=Reset.EARLIEST, listener=listener
            )
            while not listener.calls:
                await first.poll(100)
            second = await client.group_consumer(group, [topic], reset=Reset.EARLIEST)
            while not second.positions:
                await first.poll(50)
                await second.poll(50)
            await second.close()
            await first.close()
        return listener.calls

    assigned, revoked, *_ = asyncio.run(main())
    assert assigned == ("assigned", [f"{topic}-0", f"{topic}-1"])
    assert revoked[0] == "revoked"
    assert len(revoked[1]) == 1


@pytest.mark.parametrize("kind", ["share", "consumer"])
def test_a_missing_topic_warns_once(
    kind: str, shared_broker: ShoalProcess, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"

    async def main() -> None:
        async with Client(shared_broker.bootstrap) as client:
            join = client.share_consumer if kind == "share" else client.group_consumer
            for _ in range(2):
                member = await join(group, [topic])
                await member.close()

    with caplog.at_level(logging.WARNING, "shoal.client"):
        asyncio.run(main())
    (warning,) = caplog.messages
    assert warning == (
        f"topic {topic} does not exist. This member of group {group} gets its records once it does:"
        f" create it with `shoal topics create {topic}`."
    )


# A broker that is not there.


async def put_by_client(address: str) -> None:
    async with Client(address) as client:
        await client.put("topic", b"")


async def put_by_queue(address: str) -> None:
    async with worker.Queue("topic", settings=address) as jobs:
        await jobs.put("job")


def join_by_sync_client(address: str) -> None:
    with SyncClient(address) as client:
        client.share_consumer("group", ["topic"])


def put_by_sync_queue(address: str) -> None:
    with worker.SyncQueue("topic", settings=address) as jobs:
        jobs.put("job")


def run_worker(address: str) -> None:
    application = worker.Worker("group", settings=address)
    application.handler("topic")(lambda job: job)
    application.run()


@pytest.mark.parametrize(
    ("call", "frames"),
    [
        (lambda address: asyncio.run(put_by_client(address)), 5),
        (lambda address: asyncio.run(put_by_queue(address)), 6),
        (join_by_sync_client, 2),
        (put_by_sync_queue, 2),
        (run_worker, 1),
    ],
    ids=["client", "queue", "sync-client", "sync-queue", "worker"],
)
def test_an_unreachable_broker_is_one_short_error(
    caplog: pytest.LogCaptureFixture, call: Callable[[str], None], frames: int
) -> None:
    """Nothing is logged beside it."""
    (port,) = free_ports(1)
    with caplog.at_level(logging.INFO, "shoal"), pytest.raises(Unreachable) as failure:
        call(f"127.0.0.1:{port}")
    assert_is_short(failure.value, port, frames)
    assert caplog.messages == []


def assert_is_short(error: BaseException, port: int, frames: int) -> None:
    """Check what a user reads: the address, what failed, what to do, and `frames` of Shoal."""
    printed = "".join(traceback.format_exception(error))
    assert f"Unreachable: no broker at 127.0.0.1:{port}: connection refused\n" in printed
    assert "Start a broker there, for example with `shoal server`, or correct" in printed
    assert printed.count("Traceback") == 1
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    package = str(Path(shoal.__file__).parent)
    assert len([name for name in files if name.startswith(package)]) <= frames
