"""Every panel of the dashboards for brokers shows something: Prometheus scrapes a busy broker.

`test_monitoring_queries.py` checks names, labels and syntax of all queries, also of those of the
operator.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from e2e.cluster.commands import run
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError, expect
from shoal.client.share.member import AcknowledgeType, AcquireMode
from support.brokers.queues import Queue
from support.pages.prometheus_server import Prometheus, lines
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
OF_BROKERS = ("shoal-cluster", "shoal-queues", "shoal-key-ranges")
#: The labels that a PodMonitor of the chart gives to a broker.
LABELS = {"namespace": "shop", "pod": "main-broker-0", "shoal_dev_cluster": "main"}
#: Panels that stay empty while nothing is wrong, and what would fill them.
QUIET = {
    "Dead letters that cannot be written": "a dead-letter topic that refuses records",
    "Why delivery is held": "a paused group, or a flood of dead letters",
}
#: Of all panels; scrapes fail on a busy machine.
PANELS_S = 600
#: A larger batch is refused.
BATCH_BYTES_MAX = 10_000
ANSWERS = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)


@pytest.fixture
def busy(start_broker, tmp_path: Path) -> Iterator[tuple[ShoalProcess, Queue]]:  # type: ignore[no-untyped-def]
    """A broker with an object store, and a queue with dead letters."""
    store = tmp_path / "store"
    store.mkdir()
    configs = {
        "remote.log.storage.system.enable": "true",
        "shoal.remote.store.url": f"file://{store}",
        "shoal.remote.copy.interval.ms": "1000",
        "remote.log.manager.task.interval.ms": "200",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "group.share.min.record.lock.duration.ms": "1000",
    }
    broker = start_broker(configs=configs)
    with SyncClient(broker.bootstrap) as client:
        tiered = {"remote.storage.enable": "true", "max.message.bytes": str(BATCH_BYTES_MAX)}
        queue = Queue(client, broker.bootstrap, partitions=2, topic_configs=tiered)
        letters = NewTopic(
            f"dlq.{queue.topic}", 1, 1, configs={"errors.deadletterqueue.group.enable": "true"}
        )
        expect(client.run(client.admin.topics.create([letters])))
        queue.configure(
            errors_deadletterqueue_topic_name=f"dlq.{queue.topic}",
            share_record_lock_duration_ms="1000",
        )
        yield broker, queue


def work(queue: Queue) -> None:
    """Produce records, settle those that a member acquires in one of all ways, redrive letters,
    and let a produce request fail."""
    queue.produce(range(20))

    async def settle() -> None:
        async with await queue.client.client.share(queue.group, [queue.topic]) as session:
            for answer in ANSWERS:
                for acquired in await session.acquire(max_records=5, mode=AcquireMode.RECORD_LIMIT):
                    await session.acknowledge(acquired.acknowledge(answer))
            # Their locks run out.
            await session.acquire(max_records=5, mode=AcquireMode.RECORD_LIMIT)

    queue.client.run(settle())
    words = ("dlq", "redrive", f"dlq.{queue.topic}", f"--bootstrap-server={queue.bootstrap}")
    run(sys.executable, "-m", "shoal.cli", *words)
    with pytest.raises(ClientError):
        queue.produce([bytes(2 * BATCH_BYTES_MAX)])


def test_every_panel_of_a_busy_broker_has_a_line(
    busy: tuple[ShoalProcess, Queue], tmp_path: Path
) -> None:
    broker, queue = busy
    target = {
        "targets": [broker.metrics_url.removeprefix("http://")],
        "labels": LABELS,
    }
    scrape = {"job_name": "brokers", "static_configs": [target]}
    server = Prometheus(tmp_path / "prometheus", [scrape]).start()
    try:
        left = {one for one in lines() if one.dashboard in OF_BROKERS}
        assert len(left) > 30

        def shown() -> bool:
            work(queue)
            left.difference_update([one for one in left if server.has(one.query)])
            empty = {one.panel for one in left}
            assert empty <= QUIET.keys(), sorted(f"{one.panel}: {one.query}" for one in left)
            return True

        eventually(shown, timeout_s=PANELS_S)
        assert {one.panel for one in left} == QUIET.keys()
        metric = "kafka_server_ReplicaManager_PartitionCount"
        assert server.label_values("shoal_dev_cluster", metric) == ["main"]
        with pytest.raises(ValueError, match="parse error"):
            server.has("sum by (pod) (")
        assert not server.has("kafka_server_no_such_metric")
    finally:
        server.stop()
