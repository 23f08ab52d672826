"""An executor, the driver and the leader broker are killed during work: no record is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e.cluster import images, spark_operator
from e2e.resources import Resources, share_consumer
from e2e.spark_consumers import (
    SCALING,
    executors,
    list_values,
    prepare,
    results,
    spark,
    stored,
)
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.cluster.backend import Cluster

RECORDS = 10_000
#: Several batches between two kills.
RECORDS_PER_TRIGGER = 1_200


def kill(queue: Resources, pod: str) -> None:
    """Kill a pod as a crash would, and wait until it is gone."""
    before = queue.uid(f"pod/{pod}")
    queue.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

    def gone() -> bool:
        found = queue.find(f"pod/{pod}")
        return found is None or found["metadata"]["uid"] != before

    eventually(gone, timeout_s=60)


@pytest.mark.timeout(900)
def test_nothing_is_lost(queue: Resources, cluster: Cluster) -> None:
    cluster.load(images.archive("spark"))
    spark_operator.install(cluster, [queue.namespace])
    prepare(queue)
    queue.produce("jobs", RECORDS)
    queue.apply(
        share_consumer(spark=spark(maxRecordsPerTrigger=RECORDS_PER_TRIGGER), scaling=SCALING)
    )

    def progress(part: float, executors_min: int = 1) -> None:
        """Wait until this part of the records is done, with this number of executors running."""

        def reached() -> bool:
            done, there = stored(queue, "done"), len(executors(queue))
            assert done >= part * RECORDS, f"{done} done, {there} run"
            assert there >= executors_min, f"{done} done, {there} run"
            return True

        eventually(reached, timeout_s=240)

    progress(0.1, executors_min=3)
    kill(queue, executors(queue)[0])
    progress(0.3, executors_min=3)
    kill(queue, "eaters-driver")
    progress(0.5, executors_min=3)
    kill(queue, "main-broker-0")
    progress(1.0, executors_min=0)
    queue.wait_status("sharegroup/workers", lag=0, timeout_s=240)
    values = list_values(results(queue))
    assert set(values) == set(range(RECORDS)), "records are lost"
    # The job's sink is a topic: a batch that runs again writes its rows again. The documentation
    # says exactly that: an executor or driver that dies repeats at most one batch.
    assert len(values) - RECORDS <= 3 * RECORDS_PER_TRIGGER
