"""A fair group with limits on several brokers.

It takes half a minute when leaders are killed under load: three brokers start, and one restarts
after each of the kills.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from support.brokers.clusters import ShoalCluster, running
from support.brokers.queues import Queue
from support.runs.conditions import eventually
from support.workers.share_worker import Member
from support.workers.tenant_holds import count_most, list_holds

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.client.share.acquired import SharedRecord

PARTITIONS, LIMIT, KILLS = 6, 12, 2
#: Records of the tenant with a backlog, at first and before each kill, and of the quiet tenants.
BACKLOG, MORE, QUIET = 900, 300, 60
#: The longest work on a record in ms, so that members reach the limit.
WORK_MS = "20"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_killed_leaders_lose_nothing_starve_nobody_and_keep_limits(tmp_path: Path) -> None:
    """The limit is a multiple of the partitions, so the parts that brokers enforce add up to it. A
    leader that dies forgets what members hold, and others grant its part of the limit anew."""
    configs = {
        "share.fairness.by": "key",
        "share.tenant.max.in.flight": str(LIMIT),
        "share.delivery.count.limit": "10",
    }
    members: list[Member] = []
    with running(ShoalCluster(tmp_path, 3)) as cluster, SyncClient(cluster.bootstrap) as client:
        queue = Queue(client, cluster.bootstrap, partitions=PARTITIONS, replicas=3)
        queue.configure(**configs)
        queue.produce(["noisy"] * BACKLOG, key=b"noisy")
        for number in range(QUIET):
            queue.produce([f"quiet-{number}"], key=b"quiet-%d" % number, partition=number % 6)
        words = (cluster.bootstrap, queue.group, queue.topic)
        try:
            members += [Member(*words, str(seed), WORK_MS, "0.0") for seed in range(3)]
            eventually(
                lambda: count_done(members, "quiet") == QUIET, timeout_s=120, what="no starvation"
            )
            before_kills = list_holds(members)
            for kill in range(KILLS):
                queue.produce(["noisy"] * MORE, key=b"noisy")
                leader = client.run(client.client.cluster.find_leader(queue.topic, kill))
                cluster.nodes[leader].kill9()
                done = count_done(members, "")
                eventually(
                    lambda n=done: count_done(members, "") > n + MORE / 10 or queue.lag == 0,
                    timeout_s=120,
                    what="work continues",
                )
                cluster.nodes[leader].start()
            queue.drained(120)
        finally:
            for member in members:
                member.stop()
    holds = list_holds(members)
    assert len({hold.place for hold in holds}) == BACKLOG + QUIET + KILLS * MORE
    noisy_before = sum(hold.tenant == "noisy" for hold in before_kills)
    assert noisy_before < BACKLOG, "quiet tenants passed the backlog"
    assert count_most(before_kills)["noisy"] <= LIMIT
    assert max(count_most(holds).values()) <= (1 + KILLS) * LIMIT


def test_a_limit_moves_to_the_brokers_with_work_within_seconds(tmp_path: Path) -> None:
    """All records of a tenant are in one partition, and then in a second one too. It takes some
    seconds because three brokers start, and ask each other once a second."""
    configs = {"share.fairness.by": "key", "share.tenant.max.in.flight": "9"}
    held: list[SharedRecord] = []
    with running(ShoalCluster(tmp_path, 3)) as cluster, SyncClient(cluster.bootstrap) as client:
        queue = Queue(client, cluster.bootstrap, partitions=3, replicas=3)
        queue.configure(**configs)
        queue.produce(range(100), key=b"noisy", partition=0)
        with client.share_consumer(queue.group, [queue.topic]) as consumer:

            def take() -> int:
                held.extend(consumer.poll(max_wait_ms=200))
                assert len(held) <= 9
                return len(held)

            eventually(lambda: take() == 9, timeout_s=30, what="the whole limit")
            leader = client.run(client.client.cluster.find_leader(queue.topic, 0))
            loans = f'shoal_share_group_limit_loans{{group="{queue.group}",state="borrowed"}}'
            assert cluster.nodes[leader].metric(loans) == 6
            queue.produce(range(100), key=b"noisy", partition=1)

            def take_of_both() -> bool:
                """Finish all, as the other broker's part returns with what ends."""
                consumer.accept(*held)
                consumer.commit()
                held.clear()
                take()
                return sum(record.partition == 1 for record in held) >= 3

            eventually(take_of_both, timeout_s=30, what="the part of another broker")


def count_done(members: list[Member], prefix: str) -> int:
    return sum(hold.tenant.startswith(prefix) for hold in list_holds(members))
