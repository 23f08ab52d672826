"""A cluster whose brokers are killed or restarted: writes and a share group continue.

The sessions of brokers are longer than these tests wait, so what continues has seen the end of a
connection. `-s` shows the times without acknowledged writes, and until a share group delivers
again; `make bench-cluster` measures them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CALM_CONFIGS, PARTITIONS, Writer, check
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import ClientError, expect
from shoal.client.net.membership import LEAVE_MS
from shoal.client.share.member import AcknowledgeType
from shoal.server.cluster.unreachable_leaders import PATIENCE_S
from support.brokers.clusters import ShoalCluster, running
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Ends a hang. It is not a limit on speed, and shorter than the session of a broker.
HANG_S = 90.0
#: Pause between two records.
PACE_S = 0.01


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("cluster"), configs=CALM_CONFIGS)) as found:
        yield found


class Load:
    """One producer and one member of a share group that continue through faults."""

    def __init__(self, client: Client, topic: str, group: str) -> None:
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.delivered: dict[bytes, int] = {}
        self.written_at: list[float] = []
        self.delivered_at: list[tuple[float, int]] = []
        self._client, self._topic, self._group = client, topic, group
        self._written, self._reading = asyncio.Event(), True
        self._tasks = [asyncio.ensure_future(self._write()), asyncio.ensure_future(self._read())]

    async def _write(self) -> None:
        n = 0
        async with self._client.producer() as producer:
            while not self._written.is_set():
                value, partition = b"%d" % n, n % PARTITIONS
                sent = await producer.send(self._topic, value, partition=partition)
                with contextlib.suppress(ClientError):
                    done = await sent
                    self.acknowledged[value] = (partition, done.offset)
                    self.written_at.append(time.monotonic())
                n += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._written.wait(), PACE_S)

    async def _read(self) -> None:
        while self._reading:
            with contextlib.suppress(ClientError):
                async with await self._client.share(self._group, [self._topic]) as session:
                    while self._reading:
                        await self._accept(session)

    async def _accept(self, session: object) -> None:
        found = await session.acquire(max_wait_ms=300)  # type: ignore[attr-defined]
        for one in found.acquired:
            now = time.monotonic()
            for record in one.records():
                value = bytes(record.value or b"")
                self.delivered[value] = self.delivered.get(value, 0) + 1
                self.delivered_at.append((now, int(value) % PARTITIONS))
            await session.acknowledge(  # type: ignore[attr-defined]
                one.acknowledge(AcknowledgeType.ACCEPT)
            )

    async def until(self, holds: Callable[..., object], what: str) -> None:
        await eventually_async(holds, timeout_s=HANG_S, what=what)

    async def settle(self) -> None:
        """Stop writing, and wait until every acknowledged record is delivered."""
        self._written.set()
        await self._tasks[0]
        await self.until(lambda: self.acknowledged.keys() <= self.delivered.keys(), "undelivered")
        self._reading = False
        await self._tasks[1]


async def prepared(client: Client) -> tuple[str, str]:
    topic, group = f"topic-{time.monotonic_ns()}", f"group-{time.monotonic_ns()}"
    expect(await client.admin.topics.create([NewTopic(topic, PARTITIONS)]))
    earliest = [ConfigChange("share.auto.offset.reset", "earliest")]
    expect(
        await client.admin.configs.alter(
            {ConfigResource(ConfigResourceType.GROUP, group): earliest}
        )
    )
    return topic, group


def test_clients_learn_the_new_leader_at_once(cluster: ShoalCluster) -> None:
    """Clients see a broker end when its followers do, and ask others for the new leader."""

    async def prepare() -> str:
        async with Client(cluster.bootstrap) as client:
            return (await prepared(client))[0]

    topic = asyncio.run(prepare())
    controller = cluster.controller()
    victim = next(p.leader_id for p in cluster.topic(1, topic) if p.leader_id != controller)
    cluster.nodes[victim].kill9()
    try:
        began = time.monotonic()
        leaders = [p.leader_id for p in cluster.topic(controller, topic)]
        took_s = time.monotonic() - began
        assert victim not in leaders or took_s >= PATIENCE_S, took_s
    finally:
        cluster.nodes[victim].start()


@pytest.mark.parametrize("role", ["leader", pytest.param("controller", marks=pytest.mark.nightly)])
def test_writes_and_a_share_group_go_on(cluster: ShoalCluster, role: str) -> None:
    async def main() -> tuple[float, float]:
        async with Client(cluster.bootstrap) as client:
            topic, group = await prepared(client)
            load = Load(client, topic, group)
            await load.until(lambda: len(load.delivered) >= 60, "nothing is delivered")
            loop = asyncio.get_running_loop()
            if role == "leader":
                found = await loop.run_in_executor(None, cluster.topic, 1, topic)
                victim = found[0].leader_id
            else:
                victim = await loop.run_in_executor(None, cluster.controller)
            killed = time.monotonic()
            await loop.run_in_executor(None, cluster.nodes[victim].kill9)
            await load.until(lambda: load.written_at[-1] > killed + 1, "no writes")
            since = dict.fromkeys(range(PARTITIONS), 0.0)

            def every_partition() -> bool:
                for at, partition in load.delivered_at:
                    if at > killed and not since[partition]:
                        since[partition] = at
                return all(since.values())

            await load.until(every_partition, "a partition is not delivered any more")
            await load.until(lambda: len(load.acknowledged) > 200, "no writes")
            await load.settle()
            stood = sorted({*load.acknowledged.values()})
            assert len(stood) == len(load.acknowledged), "two records at one offset"
            times = [killed, *(t for t in load.written_at if t > killed)]
            pause = max(b - a for a, b in itertools.pairwise(times))
            await loop.run_in_executor(None, cluster.nodes[victim].start)
            return pause, max(since.values()) - killed

    pause_s, delivered_s = asyncio.run(main())
    print(f"\n{role}: {pause_s:.2f} s without writes; delivered after {delivered_s:.2f} s")


def test_a_range_is_read_from_the_next_leader(cluster: ShoalCluster) -> None:
    """Spark's executors read ranges with clients that live for many batches."""

    async def read(client: Client, topic: str) -> list[bytes]:
        found = []
        async for piece in client.fetcher.fetch_range(topic, 0, 0, 0):
            found += [bytes(record.value or b"") for record in piece.records()]
        return found

    async def main() -> float:
        async with Client(cluster.bootstrap) as client:
            topic, _ = await prepared(client)
            async with client.producer() as producer:
                await (await producer.send(topic, b"v", partition=0))
            assert await read(client, topic) == [b"v"]
            victim = await client.cluster.find_leader(topic, 0)
            loop = asyncio.get_running_loop()
            began = time.monotonic()
            await loop.run_in_executor(None, cluster.nodes[victim].kill9)
            try:
                async with asyncio.timeout(HANG_S):
                    assert await read(client, topic) == [b"v"]
                return time.monotonic() - began
            finally:
                await loop.run_in_executor(None, cluster.nodes[victim].start)

    print(f"\nread again after {asyncio.run(main()):.2f} s")


def test_a_member_that_leaves_while_its_coordinator_dies_is_removed(cluster: ShoalCluster) -> None:
    """It would stay a member for its session, 45 s, with a share of the partitions. It gives up
    after `LEAVE_MS`."""

    async def main() -> None:
        async with Client(cluster.bootstrap) as client:
            topic, group = await prepared(client)
            member = await client.share(group, [topic])
            await member.acquire(max_wait_ms=100)
            victim = await client.cluster.find_coordinator(group)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, cluster.nodes[victim].kill9)
            began = time.monotonic()
            async with asyncio.timeout(HANG_S):
                await member.close()
            closed_s = time.monotonic() - began
            try:
                found = expect(await client.admin.groups.describe_share([group]))[group]
                assert not found.members or closed_s >= LEAVE_MS / 1000, closed_s
            finally:
                await loop.run_in_executor(None, cluster.nodes[victim].start)

    asyncio.run(main())


@pytest.mark.parametrize("restarts", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_rolling_restart_delivers_nothing_twice_and_costs_no_error(
    cluster: ShoalCluster, restarts: int
) -> None:
    """A broker that stops lets members settle their records before others lead. Beside them, a
    producer of librdkafka sees no error. By day it is one broker, which leads a partition."""
    name = f"topic-{time.monotonic_ns()}"

    async def create() -> None:
        async with Client(cluster.bootstrap) as client:
            expect(await client.admin.topics.create([NewTopic(name, PARTITIONS)]))

    asyncio.run(create())

    async def main() -> dict[bytes, int]:
        async with Client(cluster.bootstrap) as client:
            topic, group = await prepared(client)
            load = Load(client, topic, group)
            loop = asyncio.get_running_loop()
            await load.until(lambda: len(load.delivered) >= 60, "nothing is delivered")
            leader = (await loop.run_in_executor(None, cluster.topic, 1, topic))[0].leader_id
            for id in sorted(cluster.nodes, key=lambda id: bool(id != leader))[:restarts]:
                await loop.run_in_executor(None, cluster.nodes[id].restart)
                before = len(load.delivered)
                await load.until(lambda n=before: len(load.delivered) > n + 60, "no deliveries")
            await load.settle()
            return {v: n for v, n in load.delivered.items() if n > 1}

    with Writer(cluster, name) as writer:
        writer.more(50)
        assert asyncio.run(main()) == {}
        writer.more(50)
    check(cluster, name, writer)
