"""A worker of a cluster of which one broker is killed: nothing is lost, and no outcome strays."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from shoal.client.client import SyncClient
from shoal.worker import Job, Worker
from support.brokers.clusters import ShoalCluster, running
from support.brokers.queues import Queue
from support.runs.conditions import eventually_async
from support.workers.worker_runs import count, serving

if TYPE_CHECKING:
    from pathlib import Path

JOBS = 600


def test_a_worker_survives_the_loss_of_a_broker(tmp_path: Path) -> None:
    """Three brokers start and one is lost, which takes seconds until its partitions are led again.

    The killed one leads partitions of the topic, and perhaps the share coordinator's.
    """
    with running(ShoalCluster(tmp_path)) as cluster, SyncClient(cluster.bootstrap) as client:
        queue = Queue(client, cluster.bootstrap, partitions=6, replicas=3)
        queue.produce(range(JOBS), batch=10)
        worker, done = Worker(queue.group, settings=cluster.bootstrap), Counter[int]()
        may_go_on = asyncio.Event()

        @worker.handler(queue.topic, concurrency=20, backoff="10ms", retries=9)
        async def handle(number: int, job: Job) -> None:
            if sum(done.values()) > JOBS // 3 and not may_go_on.is_set():
                await may_go_on.wait()
            done[number] += 1
            if number % 50 == 0 and job.delivery_count == 1:
                raise ValueError(number)

        async def scenario() -> None:
            async with serving(worker):
                await eventually_async(lambda: sum(done.values()) > JOBS // 3)
                victim = client.run(client.cluster.find_leader(queue.topic, 0))
                await asyncio.to_thread(cluster.nodes[victim].kill9)
                may_go_on.set()
                # Records whose outcome was lost with the broker are handled once more.
                await asyncio.to_thread(queue.drained, 120)

        asyncio.run(scenario())
        assert done.keys() == set(range(JOBS))
        # What ran twice either failed once on purpose, or lost its lock with the broker.
        again = sum(done.values()) - JOBS
        assert again <= count(worker, "released") + count(worker, "lost")
