"""How long a share group of librdkafka members is silent when a broker is killed with -9.

Four members, each in its own process, acknowledge explicitly and commit each poll. The victims are
the leader of a partition, the group coordinator, and the share coordinator of the partition. `-s`
shows the times. In the rounds, the state of that partition grows. As it measures time, it is for
the night; `test_failover.py` and `test_faults.py` show that groups continue.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CONFIGS, PARTITIONS
from shoal.client.client import SyncClient
from shoal.log.uuids import format_uuid
from shoal.protocol.api import ApiKey
from support.brokers.clusters import ShoalCluster, running
from support.brokers.queues import Queue
from support.runs.conditions import ceiling, eventually, standstills
from support.scenarios.fault_clients import Writer
from support.scenarios.histories import History
from support.workers.share_worker import Member

if TYPE_CHECKING:
    from pathlib import Path

MEMBERS = 4
#: The longest time without a delivery from some partition. Kafka with the same clients: 10 to 15 s.
SILENCE_S = 2.0
#: Deliveries are watched for this long after a kill.
WATCHED_S = 3.0
VICTIMS = ("leader", "group coordinator", "state coordinator")
ROUNDS = 15
GROUP_KEY, SHARE_KEY = 0, 2


class Group:
    """A topic with three replicas, its writers, and the members of a share group."""

    def __init__(self, cluster: ShoalCluster, client: SyncClient) -> None:
        self.cluster = cluster
        self.queue = Queue(client, cluster.bootstrap, partitions=PARTITIONS, replicas=3)
        parts = (cluster.bootstrap, self.queue.topic, History())
        self.writers = [Writer(*parts, name, PARTITIONS) for name in ("w1", "w2")]
        words = (cluster.bootstrap, self.queue.group, self.queue.topic)
        self.members = [Member(*words, str(seed), "0", "0") for seed in range(MEMBERS)]

    def deliveries(self, partition: int, since: float) -> list[float]:
        events = [e for member in self.members for e in list(member.events)]
        return sorted(
            e["t"]
            for e in events
            if e["e"] == "got" and e["where"][0] == partition and e["t"] > since
        )

    def delivers(self, since: float) -> bool:
        """Return whether every partition has had a delivery after that moment."""
        return all(self.deliveries(p, since) for p in range(PARTITIONS))

    def silence_s(self, since: float) -> float:
        """Return the longest time without a delivery from one of the partitions."""
        runs = [[since, *self.deliveries(p, since)] for p in range(PARTITIONS)]
        return max(b - a for run in runs for a, b in itertools.pairwise(run))

    def victim(self, role: str) -> int:
        asked = self.cluster.controller()
        if role == "leader":
            return int(self.cluster.topic(asked, self.queue.topic)[0].leader_id)
        kind, key = GROUP_KEY, self.queue.group
        if role == "state coordinator":
            topics = self.cluster.metadata(asked).topics
            (id,) = [t.topic_id for t in topics if t.name == self.queue.topic]
            kind, key = SHARE_KEY, f"{self.queue.group}:{format_uuid(id)}:0"
        body = {"key_type": kind, "coordinator_keys": [key]}
        (row,) = self.cluster.ask(asked, ApiKey.FIND_COORDINATOR, body).coordinators
        assert row.error_code == 0, row
        return int(row.node_id)

    def in_sync(self) -> bool:
        """Return whether all partitions of all topics have three in-sync replicas on every
        broker."""
        return all(
            len(p.isr_nodes) == 3
            for asked in self.cluster.brokers
            for topic in self.cluster.metadata(asked).topics
            for p in topic.partitions
        )

    def suffer(self, role: str) -> None:
        """Kill the broker, check the silence, and restart it."""
        victim = self.victim(role)
        with standstills() as stood_still_s:
            killed = time.monotonic()
            self.cluster.nodes[victim].kill9()
            eventually(lambda: self.delivers(killed + WATCHED_S), what="deliveries continue")
            silent_s = self.silence_s(killed)
            print(f"{role} (broker {victim}): {silent_s:.2f} s", flush=True)
            assert silent_s < ceiling(SILENCE_S, stood_still_s())
        self.cluster.nodes[victim].start()
        eventually(self.in_sync, timeout_s=90, what="all replicas are in sync")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_share_group_is_silent_for_two_seconds_at_most(tmp_path: Path) -> None:
    with (
        running(ShoalCluster(tmp_path, configs=CONFIGS)) as cluster,
        SyncClient(cluster.bootstrap) as client,
    ):
        group = Group(cluster, client)
        try:
            for writer in group.writers:
                writer.start()
            began = time.monotonic()
            eventually(lambda: group.delivers(began), what="every partition is delivered")
            for role in VICTIMS * ROUNDS:
                group.suffer(role)
            for writer in group.writers:
                writer.finish()
        finally:
            for member in group.members:
                member.stop()
