"""What members hold of a tenant with a limit by several brokers, in simulated time."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from sim.scenes import Asked, scene

if TYPE_CHECKING:
    from shoal.client.client import Client

TOPIC = "work"
#: The leaders of the partitions.
LEADERS = (1, 1, 1, 1, 1, 2, 2, 3)
#: By group: the limit, what each broker grants of it, and what one grants that gets another
#: partition.
LIMITS = {"wide": (10, {1: 6, 2: 2, 3: 1}, 1), "narrow": (2, {1: 1, 2: 1, 3: 1}, 0)}


def test_the_sum_over_brokers_exceeds_a_limit_by_no_more_than_is_documented() -> None:
    """Each broker grants its partitions' part of the limit, and at least one record. When a
    partition moves, its new leader has a larger part, and forgets what members hold of it.

    It takes more than a second because three brokers start.
    """
    held: dict[str, Counter[int]] = {group: Counter() for group in LIMITS}
    with scene() as cluster:

        async def hold(group: str) -> None:
            """Take all that comes, and keep it."""
            async with cluster.client() as client, await client.share(group, [TOPIC]) as session:
                while True:
                    found = await session.acquire()
                    held[group].update(one.partition for one in found for _ in one.records())

        Asked(cluster, lambda: _prepare(cluster.client())).result()
        for group in LIMITS:
            Asked(cluster, partial(hold, group))
        cluster.passes(2.0)
        for group, (_, parts, _) in LIMITS.items():
            granted = Counter(LEADERS[partition] for partition in held[group].elements())
            assert granted == parts, group
        last = len(LEADERS) - 1

        async def move() -> None:
            async with cluster.client() as client:
                expect(await client.admin.reassign({TopicPartition(TOPIC, last): (2,)}))

        Asked(cluster, move).result()
        cluster.until(lambda: cluster.leader(TOPIC, last) == 2, "another leader")
        cluster.passes(2.0)
        for group, (limit, parts, more) in LIMITS.items():
            total = held[group].total()
            assert total == sum(parts.values()) + more, group
            # A record for each broker but one, and that of the partition that moved.
            assert total <= limit + 2 + 1


async def _prepare(client: Client) -> None:
    """Create the topic with records of one tenant, and set the limits."""
    async with client:
        rows = {partition: (leader,) for partition, leader in enumerate(LEADERS)}
        expect(await client.admin.topics.create([NewTopic(TOPIC, assignments=rows)]))
        for group, (limit, _, _) in LIMITS.items():
            changes = [
                ConfigChange("share.auto.offset.reset", "earliest"),
                ConfigChange("share.record.lock.duration.ms", "30000"),
                ConfigChange("share.fairness.by", "key"),
                ConfigChange("share.tenant.max.in.flight", str(limit)),
            ]
            resource = ConfigResource(ConfigResourceType.GROUP, group)
            expect(await client.admin.configs.alter({resource: changes}))
        async with client.producer() as producer:
            for number in range(8 * len(LEADERS)):
                await producer.send(
                    TOPIC, b"%d" % number, key=b"noisy", partition=number % len(LEADERS)
                )
