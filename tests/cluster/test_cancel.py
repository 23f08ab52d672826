"""Cancelled records through a change of leader: the one that was in flight does not come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.share import CancelOutcome
from support.brokers.clusters import CALM, ShoalCluster, running
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path, configs=CALM)) as started:
        yield started


class Member:
    """A member of librdkafka, and the values that it has got."""

    def __init__(self, queue: Queue) -> None:
        self.values: list[bytes] = []
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": queue.bootstrap,
                "group.id": queue.group,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": 1,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._consumer.subscribe([queue.topic])

    def poll(self, *, accepts: bool) -> list[bytes]:
        for message in self._consumer.poll(0.3):
            if message.error() is None:
                self.values.append(message.value() or b"")
                if accepts:
                    self._consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        return self.values

    def close(self) -> None:
        self._consumer.close()


def test_a_new_leader_delivers_no_cancelled_record(cluster: ShoalCluster) -> None:
    """The leader dies by kill -9 while a member holds one cancelled record. Three brokers start,
    and one is missed: some seconds."""
    with SyncClient(cluster.bootstrap) as client:
        queue = Queue(client, cluster.bootstrap, replicas=3)
        place = TopicPartition(queue.topic, 0)
        queue.produce([0, 1, 2], batch=1)
        holder = Member(queue)
        eventually(lambda: holder.poll(accepts=False), timeout_s=60, what="a record is held")
        call = client.admin.share_groups.cancel(queue.group, {place: [(0, 1)]})
        outcomes = [one.outcome for one in expect(client.run(call))[place]]
        assert outcomes == [CancelOutcome.IN_FLIGHT, CancelOutcome.CANCELLED]
        leader = client.run(client.client.cluster.find_leader(queue.topic, 0))
        cluster.nodes[leader].kill9()
        other = Member(queue)
        eventually(lambda: other.poll(accepts=True), timeout_s=60, what="the rest comes")
        queue.produce([3])
        eventually(lambda: b"3" in other.poll(accepts=True), timeout_s=60, what="a later record")
        assert other.values == [b"2", b"3"]
        holder.close()
        other.close()
