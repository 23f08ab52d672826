"""Members of librdkafka whose records are cancelled: a release ends them, and an accept counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.share import CancelledRecords, CancelOutcome
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
CANCELLED, IN_FLIGHT, DONE, _ = CancelOutcome


def test_a_member_releases_and_accepts_cancelled_records(shared_broker: ShoalProcess) -> None:
    with SyncClient(shared_broker.bootstrap) as client:
        queue = Queue(client, shared_broker.bootstrap)
        queue.produce([0, 1, 2])
        consumer = ShareConsumer(
            {
                "bootstrap.servers": queue.bootstrap,
                "group.id": queue.group,
                "share.acknowledgement.mode": "explicit",
            }
        )
        consumer.subscribe([queue.topic])
        held: list[Message] = []

        def poll(count: int) -> bool:
            held.extend(consumer.poll(0.3))
            return len(held) >= count

        def cancel(first: int, last: int) -> list[CancelledRecords]:
            place = TopicPartition(queue.topic, 0)
            call = client.admin.share_groups.cancel(queue.group, {place: [(first, last)]})
            return list(expect(client.run(call))[place])

        eventually(lambda: poll(3), timeout_s=60, what="three records are held")
        queue.produce([3, 4, 5])
        assert cancel(0, 1) + cancel(3, 4) == [
            CancelledRecords(0, 1, IN_FLIGHT),
            CancelledRecords(3, 4, CANCELLED),
        ]
        for message, kind in zip(held, (ACCEPT, RELEASE, ACCEPT), strict=True):
            consumer.acknowledge(message, kind)
        assert not [e for e in consumer.commit_sync(60).values() if e is not None]
        assert cancel(0, 1) == [CancelledRecords(0, 1, DONE)]
        held.clear()
        eventually(lambda: poll(1), timeout_s=60, what="the next record")
        assert [(message.offset(), message.value()) for message in held] == [(5, b"5")]
        consumer.acknowledge(held[0], ACCEPT)
        consumer.close()
