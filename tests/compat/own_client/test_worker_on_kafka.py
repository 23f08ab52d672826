"""`shoal.worker` on Apache Kafka, which has no releases with a wait and no undelivered ones."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from shoal.client.client import SyncClient
from shoal.worker import Job, Reject, Worker
from shoal.worker import Queue as JobQueue
from support.brokers.queues import Queue
from support.workers.worker_runs import count, serve_until

if TYPE_CHECKING:
    import pytest
    from support.brokers.shared_servers import SharedKafka


def test_outcomes_decide_over_records_of_kafka(
    kafka: SharedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    with SyncClient(kafka.bootstrap) as client:
        queue = Queue(client, kafka.bootstrap)
        queue.produce(["good", "twice", "bad", "fine"])
        worker, seen = (
            Worker(queue.group, settings=kafka.bootstrap),
            defaultdict[str, list[int]](list),
        )

        @worker.handler(queue.topic, backoff="1h")
        async def handle(text: str, job: Job) -> None:
            seen[text].append(job.delivery_count)
            if text == "bad":
                raise Reject("no")
            if text == "twice" and job.delivery_count == 1:
                raise ValueError(text)

        asyncio.run(serve_until(worker, lambda: count(worker, "accepted") == 3))
        assert seen == {"good": [1], "twice": [1, 2], "bad": [1], "fine": [1]}
        queue.drained()
    assert "the brokers do not support releases with a wait" in caplog.text


def test_offsets_without_a_record_are_finished(kafka: SharedKafka) -> None:
    """Kafka lets members acquire the markers of transactions, which they acknowledge as gaps."""
    with SyncClient(kafka.bootstrap) as client:
        topic = Queue(client, kafka.bootstrap)
        worker, seen = Worker(topic.group, settings=kafka.bootstrap), list[str]()

        @worker.handler(topic.topic)
        async def handle(text: str) -> None:
            seen.append(text)

        async def scenario() -> None:
            async with JobQueue(topic.topic, settings=kafka.bootstrap) as queue:
                async with queue.transaction(topic.group) as transaction:
                    await transaction.put("a")
                await queue.put("b")
            await serve_until(worker, lambda: len(seen) == 2)

        asyncio.run(scenario())
        topic.drained(timeout_s=10)
