"""What members hold of a tenant with a limit by several brokers, in simulated time."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.coordinator.share.states import ACQUIRED
from sim.scenes import Asked, scene

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.client.share.acquired import SharedRecord
    from sim.scenes import Scene

TOPIC = "work"
#: The leaders of the partitions.
LEADERS = (1, 1, 1, 1, 1, 2, 2, 3)
#: By group: the limit, what each broker grants of it, and what one grants that gets another
#: partition.
LIMITS = {"wide": (10, {1: 6, 2: 2, 3: 1}, 1), "narrow": (2, {1: 1, 2: 1, 3: 1}, 0)}

#: The leaders of the partitions of a topic whose tenants' limit moves, the group, and the limit.
EVEN = (1, 1, 2, 2, 3, 3)
GROUP, LIMIT = "clerks", 12


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


def test_a_tenants_limit_moves_to_the_brokers_with_its_work() -> None:
    """A tenant's records lie on one broker, then on a second one too. Meanwhile a request for a
    loan is lost, and a partition moves away from a lender.

    It takes more than a second because three brokers start.
    """
    with scene() as cluster:
        machines = cluster.cluster.brokers
        held: list[SharedRecord] = []
        todo: list[bool] = []

        async def hold() -> None:
            """Take all that comes, and keep it until it is to do."""
            async with (
                cluster.client() as client,
                await client.share_consumer(GROUP, [TOPIC]) as consumer,
            ):
                while True:
                    held.extend(await consumer.poll())
                    if todo:
                        todo.clear()
                        consumer.accept(*held)
                        held.clear()

        def passes(seconds: float, limit: int = LIMIT) -> list[int]:
            """Let time pass, and return what members hold by broker at the end."""
            for _ in range(int(10 * seconds)):
                cluster.passes(0.1)
                assert sum(_count_held(cluster)) <= limit
            return _count_held(cluster)

        Asked(cluster, lambda: _create(cluster.client())).result()
        Asked(cluster, hold)
        passes(2.0)
        # The request to one of the two lenders is lost.
        cluster.cut(machines[1], machines[3])
        Asked(cluster, lambda: _produce(cluster.client(), 0)).result()
        assert passes(3.0) == [8, 0, 0]
        cluster.heal()
        assert passes(8.0) == [12, 0, 0]
        # The limit is in use: others wait for what is done.
        Asked(cluster, lambda: _produce(cluster.client(), 2)).result()
        assert passes(1.0) == [12, 0, 0]
        for _ in range(4):
            todo.append(True)
            counts = passes(2.0)
        assert counts == [6, 6, 0]

        async def move() -> None:
            async with cluster.client() as client:
                expect(await client.admin.reassign({TopicPartition(TOPIC, 4): (2,)}))

        Asked(cluster, move).result()
        cluster.until(lambda: cluster.leader(TOPIC, 4) == 2, "another leader")
        part = LIMIT // len(EVEN)
        passes(2.0, LIMIT + part)
        for _ in range(4):
            todo.append(True)
            counts = passes(2.0, LIMIT + part)
        assert sum(counts) == LIMIT
        # Nobody hears of anybody: each keeps what it has.
        for machine in machines.values():
            cluster.cut_off(machine)
        passes(1.0)


def _count_held(cluster: Scene) -> list[int]:
    """Return how many records of the group members hold by broker."""
    counts = []
    for _, broker in cluster.cluster.running():
        runs = [leader.share.runs for leader in broker.share.list_loaded(GROUP)]
        counts.append(
            sum(
                run.get_last(row) - run.firsts[row] + 1
                for run in runs
                for row, state in enumerate(run.states)
                if state == ACQUIRED
            )
        )
    return counts


async def _create(client: Client) -> None:
    async with client:
        rows = {index: (leader,) for index, leader in enumerate(EVEN)}
        expect(await client.admin.topics.create([NewTopic(TOPIC, assignments=rows)]))
        await _set_limit(client, GROUP, LIMIT)


async def _produce(client: Client, partition: int) -> None:
    """Produce records of one tenant to a partition."""
    async with client, client.producer() as producer:
        for number in range(200):
            await producer.send(TOPIC, b"%d" % number, key=b"noisy", partition=partition)


async def _set_limit(client: Client, group: str, limit: int) -> None:
    changes = [
        ConfigChange("share.auto.offset.reset", "earliest"),
        ConfigChange("share.record.lock.duration.ms", "30000"),
        ConfigChange("share.fairness.by", "key"),
        ConfigChange("share.tenant.max.in.flight", str(limit)),
    ]
    resource = ConfigResource(ConfigResourceType.GROUP, group)
    expect(await client.admin.configs.alter({resource: changes}))


async def _prepare(client: Client) -> None:
    """Create the topic with records of one tenant, and set the limits."""
    async with client:
        rows = {partition: (leader,) for partition, leader in enumerate(LEADERS)}
        expect(await client.admin.topics.create([NewTopic(TOPIC, assignments=rows)]))
        for group, (limit, _, _) in LIMITS.items():
            await _set_limit(client, group, limit)
        async with client.producer() as producer:
            for number in range(8 * len(LEADERS)):
                await producer.send(
                    TOPIC, b"%d" % number, key=b"noisy", partition=number % len(LEADERS)
                )
