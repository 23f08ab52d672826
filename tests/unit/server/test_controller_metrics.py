"""Gauges of a controller: partitions without a leader, brokers that are down, the quorum."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from shoal.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from shoal.server.metrics import controller
from shoal.server.metrics.registry import MetricRegistry


def topic(name: str, *leaders: int) -> TopicImage:
    """A topic whose partitions have the preferred replica 1 and these leaders."""
    return TopicImage(
        name, uuid4(), tuple(PartitionImage((1, 2), (1,), leader, 0, 0) for leader in leaders)
    )


def image(*topics: TopicImage) -> MetadataImage:
    return MetadataImage(topics={t.name: t for t in topics})


def test_partitions_without_a_leader_and_away_from_their_preferred_one_are_counted() -> None:
    counts = controller.PartitionCounter()
    before = image(topic("a", 1, 2, -1), topic("b", 1))
    assert counts.count(before) == (4, 1, 1)
    assert counts.count(before) == (4, 1, 1)
    changed = replace(before, topics={**before.topics, "b": topic("b", -1, -1)})
    assert counts.count(changed) == (5, 3, 1)
    assert counts.count(image()) == (0, 0, 0)


class Quorum:
    leader_id: int | None = None
    epoch, high_watermark, end_offset = 4, 90, 95


def test_the_text_has_the_cluster_and_the_quorum() -> None:
    metrics, quorum = MetricRegistry(), Quorum()
    brokers = {n: BrokerImage(n, None, 0, (), {}, fenced=n == 3) for n in (1, 2, 3)}
    current = replace(image(topic("a", 1, -1)), brokers=brokers)
    controller.register(metrics, lambda: current, lambda: True)
    controller.register_quorum(metrics, quorum)
    lines = metrics.render().splitlines()
    prefix = "kafka_controller_KafkaController_"
    for line in (
        f"{prefix}ActiveControllerCount 1",
        f"{prefix}GlobalTopicCount 1",
        f"{prefix}GlobalPartitionCount 2",
        f"{prefix}OfflinePartitionsCount 1",
        f"{prefix}PreferredReplicaImbalanceCount 0",
        f"{prefix}ActiveBrokerCount 2",
        f"{prefix}FencedBrokerCount 1",
        "kafka_server_raft_metrics_current_leader -1",
        "kafka_server_raft_metrics_current_epoch 4",
        "kafka_server_raft_metrics_high_watermark 90",
        "kafka_server_raft_metrics_log_end_offset 95",
    ):
        assert line in lines
    quorum.leader_id = 2
    assert "kafka_server_raft_metrics_current_leader 2" in metrics.render().splitlines()
