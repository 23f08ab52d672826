"""A streaming query on three brokers while the leader of its partitions is killed and restarted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CALM_CONFIGS
from shoal.client.client import SyncClient
from support.brokers.clusters import ShoalCluster, running
from support.brokers.queues import Queue
from support.runs.conditions import eventually
from support.spark import spark_query

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

RECORDS, BATCH, PARTITIONS = 1_000, 100, 2
#: Locks of a lost leader end with it; those of a member that lost its broker expire.
CLUSTER = CALM_CONFIGS | {"group.share.min.record.lock.duration.ms": "1000"}
LOCK_MS = 5_000
#: These end a hang. They are not limits on speed: the first batch waits for Python workers.
BATCHES_TIMEOUT_S, RUN_TIMEOUT_S = 180, 180


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path / "cluster", configs=CLUSTER)) as found:
        yield found


def test_every_record_reaches_the_sink_once(
    cluster: ShoalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """The sink overwrites by batch id; a batch that runs again has the same rows."""
    out = tmp_path / "out"
    out.mkdir()

    def batches() -> dict[int, list[list[Any]]]:
        found: dict[int, list[list[Any]]] = {}
        for batch, rows in spark_query.written(out):
            assert found.setdefault(batch, rows) == rows, f"batch {batch} has other rows now"
        return found

    with SyncClient(cluster.bootstrap) as client:
        queue = Queue(
            client,
            cluster.bootstrap,
            partitions=PARTITIONS,
            replicas=3,
            share_record_lock_duration_ms=str(LOCK_MS),
        )
        queue.produce(range(RECORDS), batch=20)
        query = spark_query.start(
            spark,
            {
                "options": queue.options(maxRecordsPerTrigger=BATCH, minPartitions=2),
                "checkpoint": str(tmp_path / "checkpoint"),
                "out": str(out),
            },
        )
        try:
            eventually(lambda: len(batches()) >= 2, timeout_s=BATCHES_TIMEOUT_S, what="two batches")
            victim = cluster.topic(1, queue.topic)[0].leader_id
            cluster.nodes[victim].kill9()
            before = len(batches())
            eventually(
                lambda: len(batches()) >= before + 2,
                timeout_s=BATCHES_TIMEOUT_S,
                what="batches after the kill",
            )
            assert query.isActive, "the query drained the queue before the kill had an effect"
            cluster.nodes[victim].start()
            assert query.awaitTermination(RUN_TIMEOUT_S)
        finally:
            query.stop()
        delivered = [int(row[3]) for rows in batches().values() for row in rows]
        assert sorted(delivered) == list(range(RECORDS))
        queue.drained()
