"""A join that was delayed in a connection which its client has given up (ADR 133).

The client has joined again over another connection. The late join may bring partitions that other
members have released since, in a response that nobody reads. The member's next heartbeat must bring
them again. Without that, a partition has an owner that does not read it. Share and streams groups
have the same test in `test_share_membership` and `test_streams_membership`.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from shoal.coordinator.group.consumer.heartbeat import ConsumerGroupHeartbeatRequest
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.metadata.image import MetadataImage, PartitionImage, TopicImage
from support.brokers.coordinator_sim import Simulation

GROUP, TOPIC, TOPIC_ID = "g", "jobs", UUID(int=7)
NEW, GIVEN_UP = "new connection", "given up"
#: Longer than `assignment.interval.ms` of a group.
INTERVAL_MS = 1_000


class Consumers:
    """A consumer group that reads a topic with two partitions."""

    def __init__(self) -> None:
        topic = TopicImage(TOPIC, TOPIC_ID, (PartitionImage((0,), (0,), 0, 0, 0),) * 2)
        image = MetadataImage(topics={TOPIC: topic}, topics_by_id={TOPIC_ID: topic})
        self.sim = Simulation(lambda: GroupShard(GroupSettings(), image))
        self.count = 0

    def heartbeat(
        self, member: str, epoch: int, owned: set[int] | None = None, connection: str = NEW
    ) -> Any:
        joins = epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            GROUP,
            member,
            epoch,
            rebalance_timeout_ms=60_000 if joins else -1,
            subscribed_topic_names=frozenset([TOPIC]) if joins else None,
            owned={} if joins else None if owned is None else {TOPIC_ID: frozenset(owned)},
            connection_id=connection,
        )
        self.count += 1
        self.sim.submit(self.count, lambda s, now_ms, t: s.consumer.heartbeat(request, now_ms, t))
        return self.sim.failed.get(self.count, self.sim.delivered.get(self.count))


def partitions(response: Any) -> list[int] | None:
    """The partitions that a response assigns; None if it has no assignment."""
    assignment = response.get("assignment")
    if assignment is None:
        return None
    return [p for topic in assignment["topic_partitions"] for p in topic["partitions"]]


def test_a_member_gets_what_a_late_join_brought() -> None:
    group = Consumers()
    a = group.heartbeat("a", 0)["member_epoch"]
    assert partitions(group.heartbeat("b", 0)) == []
    group.sim.advance(INTERVAL_MS)
    group.heartbeat("a", a, {0, 1})
    epoch = group.heartbeat("b", 0)["member_epoch"]
    group.heartbeat("a", a, {0})
    assert partitions(group.heartbeat("b", 0, connection=GIVEN_UP)) == [1]
    assert partitions(group.heartbeat("b", epoch)) == [1]
    assert partitions(group.heartbeat("b", epoch)) is None
