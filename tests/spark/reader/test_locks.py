"""Queries beside other members of their group: locks that are renewed, run out or are shared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from shoal.client.share.member import Acknowledgement, AcknowledgeType, ShareSession
from support.brokers.queues import Queue
from support.runs.conditions import eventually
from support.spark.micro_batches import Query

MakeQueue = Callable[..., Queue]
#: Renewed locks last longer than standstills of the machine.
LOCK_S = 5.0


def join_group(queue: Queue) -> ShareSession:
    """Return another member of the queue's group."""
    return queue.client.run(queue.client.share(queue.group, [queue.topic]))


def accept_some(queue: Queue, session: ShareSession) -> dict[int, int]:
    """Poll once and accept records of the one partition. Return delivery counts by offset."""
    run = queue.client.run
    taken: dict[int, int] = {}
    for acquired in run(session.acquire(max_records=20, max_wait_ms=100)):
        taken.update((record.offset, record.delivery_count) for record in acquired.records())
        assert not run(session.acknowledge(acquired.acknowledge(AcknowledgeType.ACCEPT)))
    return taken


def hold_some(queue: Queue, count: int) -> ShareSession:
    """Return a member that has locked this number of records and stays idle."""
    session = join_group(queue)
    acquired = queue.client.run(session.acquire(max_records=count, max_wait_ms=20_000))
    assert acquired.count == count
    return session


def test_a_batch_longer_than_its_locks(shoal_queue: MakeQueue, kafka_queue: MakeQueue) -> None:
    """With renewal no other member gets its rows. Without it one does, and we do not lose them."""
    lock_ms = str(int(LOCK_S * 1000))
    renewed = [make(share_record_lock_duration_ms=lock_ms) for make in (shoal_queue, kafka_queue)]
    expiring = shoal_queue(share_record_lock_duration_ms="1500")
    queries = [Query(queue) for queue in (*renewed, expiring)]
    for query in queries:
        query.queue.produce(range(20))
        query.start(share_renew="false" if query.queue is expiring else "true")
        eventually(query.has_batch)
    began = time.monotonic()
    sessions = [join_group(query.queue) for query in queries]
    elsewhere: list[dict[int, int]] = [{}, {}, {}]

    def is_over() -> bool:
        for query, session, taken in zip(queries, sessions, elsewhere, strict=True):
            taken.update(accept_some(query.queue, session))
        return len(elsewhere[2]) == 20 and time.monotonic() - began > 1.4 * LOCK_S

    eventually(is_over, what="another member gets the records without locks")
    for query, session in zip(queries, sessions, strict=True):
        assert session.assignment, "the other member was never in the group"
        query.queue.client.run(session.close())
        query.run_batch()
        assert not query.has_batch()
        query.stop()
        query.queue.drained()
        assert query.values == list(range(20))
    assert elsewhere == [{}, {}, dict.fromkeys(range(20), 2)]


def test_two_queries_and_a_consumer_share_the_work(shoal_queue: MakeQueue) -> None:
    queue = shoal_queue(partitions=1)
    queries = [Query(queue), Query(queue)]
    for query in queries:
        query.start(maxRecordsPerTrigger=60, fetch_max_wait_ms=50)
    consumer = join_group(queue)
    elsewhere: list[int] = []
    count = 0

    def has_all() -> bool:
        elsewhere.extend(accept_some(queue, consumer))
        for query in queries:
            if query.has_batch():
                query.run_batch()
        return sum(len(query.rows) for query in queries) + len(elsewhere) >= count

    # They become members one after the other, so continue until each of them has had a record.
    while not (elsewhere and all(query.rows for query in queries)):
        assert count < 100 * 100, "a member gets no records"
        queue.produce(range(count, count + 100), batch=5)
        count += 100
        eventually(has_all, what="all rows somewhere")
    assert not any(query.has_batch() for query in queries)
    queue.drained()
    seen = [*queries[0].values, *queries[1].values, *elsewhere]
    assert sorted(seen) == list(range(count)), "a row was lost, or came twice"
    queue.client.run(consumer.close())
    for query in queries:
        query.stop()


def test_available_now_waits_for_locks_that_run_out(make_queue: MakeQueue) -> None:
    """Records that an idle member had locked at the start are drained too."""
    queue = make_queue(partitions=1, share_record_lock_duration_ms="2000")
    queue.produce(range(40), batch=10)
    session = hold_some(queue, 20)
    query = Query(queue)
    query.drain()
    queue.client.run(session.close())
    assert query.values == list(range(40))
    assert {row["deliveryCount"] for row in query.rows} == {1, 2}


@pytest.mark.nightly
def test_available_now_leaves_to_others_what_they_renew(shoal_queue: MakeQueue) -> None:
    """A live member may hold records for ever; the drain ends without them."""
    queue = shoal_queue(partitions=1, share_record_lock_duration_ms="6000")
    queue.produce(range(40), batch=10)
    session = hold_some(queue, 20)
    held, over = [Acknowledgement(queue.topic, 0, 0, 19, AcknowledgeType.RENEW)], threading.Event()

    def renew() -> None:
        while not over.wait(0.3):
            assert not queue.client.run(session.acknowledge(held))

    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(renew)
        query = Query(queue)
        try:
            query.drain()
        finally:
            over.set()
        renewing.result()
    assert query.values == list(range(20, 40))
    queue.client.run(session.close())
