"""A member that closes deliberately with unprocessed records: their delivery does not count.

Only our client can ask for this. A plain close counts, and on Kafka's brokers every close counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from support.brokers.queues import Queue

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


def delivered(queue: Queue, *, undelivered: bool) -> list[int]:
    """Return the delivery counts that a new member gets; it closes its session with this option."""
    session = queue.client.run(queue.client.client.share(queue.group, [queue.topic]))
    found = queue.client.run(session.acquire(max_wait_ms=20_000))
    counts = [r.delivery_count for one in found for r in one.ranges]
    queue.client.run(session.close(undelivered=undelivered))
    return counts


def test_returned_records_do_not_count_as_delivered(queue: Queue) -> None:
    queue.configure(share_redelivery_backoff_ms="60000", share_redelivery_backoff_max_ms="60000")
    queue.produce([b"a", b"b"], batch=2)
    # More often than the group's limit of five, and at once in spite of its back-off.
    for _ in range(7):
        assert delivered(queue, undelivered=True) == [1]


def test_a_plain_close_counts(queue: Queue) -> None:
    queue.produce([b"a", b"b"], batch=2)
    assert delivered(queue, undelivered=False) == [1]
    assert delivered(queue, undelivered=True) == [2]
    assert delivered(queue, undelivered=False) == [2]


@pytest.mark.usefixtures("start_broker")
def test_a_killed_broker_keeps_delivery_counts(broker: ShoalProcess, queue: Queue) -> None:
    queue.produce([b"a", b"b"], batch=2)
    assert delivered(queue, undelivered=False) == [1]
    assert delivered(queue, undelivered=True) == [2]
    broker.kill9()
    broker.restart()
    assert delivered(queue, undelivered=True) == [2]


@pytest.mark.java
def test_kafka_passes_it_over(kafka: SharedKafka) -> None:
    with SyncClient(kafka.bootstrap) as client:
        queue = Queue(client, kafka.bootstrap)
        queue.produce([b"a"])
        assert delivered(queue, undelivered=True) == [1]
        assert delivered(queue, undelivered=True) == [2]
