"""Kafka's tool moves a partition under a throttle, and removes the throttle afterwards."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CONFIGS
from cluster.test_throttles import OVERHEAD, VALUE, moved, write
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.clusters import ShoalCluster, running
from support.kafka.kafka_tools import KafkaTools
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.java

RATE_BYTES = 300_000
RECORDS = 1_000


def throttles(tools: KafkaTools) -> set[str]:
    """Return the throttle configs of the topic and the brokers."""
    said = tools.run("configs", "--describe", "--entity-type", "topics", "--entity-name", "t")
    said += tools.run("configs", "--describe", "--entity-type", "brokers", "--entity-name", "1")
    names = {word.partition("=")[0] for word in said.split()}
    return {name for name in names if name.startswith(("leader.", "follower."))}


@pytest.mark.nightly
def test_a_move_under_a_throttle(tmp_path: Path) -> None:
    with running(ShoalCluster(tmp_path, configs=CONFIGS)) as cluster:
        eventually(lambda: len(cluster.metadata(1).brokers) == 3)
        tools = KafkaTools(cluster.bootstrap)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        made = NewTopic("t", 1, replica_assignment=[[1]], config={"min.insync.replicas": "1"})
        admin.create_topics([made])["t"].result(60)
        eventually(lambda: moved(cluster, "t", [1]))
        write(cluster, "t", RECORDS)
        plan = tmp_path / "plan.json"
        rows = [{"topic": "t", "partition": 0, "replicas": [2, 3]}]
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        words = ("reassign-partitions", "--reassignment-json-file", str(plan))
        begun = time.monotonic()
        said = tools.run(*words, "--execute", "--throttle", str(RATE_BYTES))
        assert f"The inter-broker throttle limit was set to {RATE_BYTES} B/s" in said
        said = tools.run(*words, "--verify")
        assert "Reassignment of partition t-0 is still in progress." in said, said
        assert len(throttles(tools)) == 4
        eventually(lambda: moved(cluster, "t", [2, 3]), timeout_s=120)
        took_s = time.monotonic() - begun
        # Both new replicas fetch from the same leader, in bursts of one second's worth.
        size_bytes = 2 * RECORDS * len(VALUE) * OVERHEAD
        assert took_s > 0.9 * (size_bytes - RATE_BYTES) / RATE_BYTES, size_bytes / took_s
        assert "is completed" in tools.run(*words, "--verify")
        assert throttles(tools) == set()
