"""Brokers that leave get no new replicas: three real brokers, and an API server in memory.

Starting the brokers takes some seconds, and every crash of the operator needs a run of its own.
"""

from __future__ import annotations

import asyncio
import operator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from kube.api_server import ApiServer, Crash, CrashPoint, resource
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal_operator.brokers import cordon_calls
from shoal_operator.brokers.calls import Brokers
from shoal_operator.brokers.cordon_calls import CordonCalls
from shoal_operator.brokers.cordons import BrokerCordons
from shoal_operator.cluster.broker_scale_down import ReplicaMover
from shoal_operator.model import pod_layout
from support.brokers.clusters import CALM, ShoalCluster, running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator

    from shoal_operator.cluster.broker_scale_down import ScaleDown

T = TypeVar("T")
LEAVING = 3
LEAVING_BROKER = ConfigResource(ConfigResourceType.BROKER, str(LEAVING))
CHANGES_MAX = 20
#: Calls that change something in the brokers.
CHANGING = ("AlterPartitionReassignments", "IncrementalAlterConfigs")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("three"), configs=CALM)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers of the tests have the ids from 1 on."""
    monkeypatch.setattr(
        pod_layout, "list_brokers", lambda cluster: list(range(1, cluster["spec"]["replicas"] + 1))
    )


class CrashingCalls(CordonCalls):
    """Calls after each of which that changes something the operator may die."""

    def __init__(self, cluster: Any, count: Any, crash_point: CrashPoint) -> None:
        super().__init__(cluster, count)
        self._crash_point = crash_point

    async def cordon(self, ids: Iterable[int]) -> bool:
        accepted = await super().cordon(ids)
        self._crash_point.count()
        return accepted

    async def uncordon(self, ids: Iterable[int]) -> None:
        await super().uncordon(ids)
        self._crash_point.count()


class CrashingBrokers(Brokers):
    """Lets the operator die before and after each call that changes something."""

    def __init__(self, bootstrap: str, crash_point: CrashPoint) -> None:
        super().__init__(bootstrap)
        self._crash_point = crash_point

    @property
    def cordons(self) -> CordonCalls:
        return CrashingCalls(self._client.cluster, self._count, self._crash_point)

    def _count(self, api: str) -> None:
        self._crash_point.check()
        if api in CHANGING:
            self._crash_point.count()


class World:
    """A QueueCluster of the three brokers, and operators that scale it one after the other."""

    def __init__(self, cluster: ShoalCluster) -> None:
        self.cluster = cluster
        self.crash_point = CrashPoint()
        self.kube = ApiServer(self.crash_point)
        self.scale(3)

    def scale(self, replicas: int) -> None:
        spec = {"listeners": [{"name": "plain", "port": 9092}], "storage": {"size": "1Gi"}}
        self.kube.add(resource("QueueCluster", "main", replicas=replicas, **spec))

    async def one_pass(self) -> ScaleDown:
        """Let a new operator do one pass."""
        brokers = CrashingBrokers(self.cluster.bootstrap, self.crash_point)
        try:
            cordons = BrokerCordons(self.kube, self.kube.store(), brokers)
            state = await brokers.describe_cluster([], advertised=False)
            found = self.kube.find("QueueCluster", "main")
            return await ReplicaMover(self.kube, brokers, cordons).scale_down(
                found, state, self.cluster.brokers
            )
        finally:
            await brokers.close()

    async def survives(self) -> bool:
        """Run passes until one says nothing; return false if the operator dies before."""
        try:
            async with asyncio.timeout(60):
                while (await self.one_pass()).diagnosis:
                    pass
        except Crash:
            return False
        return True

    @property
    def noted_brokers(self) -> list[int]:
        """The brokers that the operator cordoned, by the status."""
        return list(self.kube.find("QueueCluster", "main")["status"].get("cordonedBrokers") or ())

    def list_events(self) -> list[str]:
        return [event["reason"] for event in self.kube.all("Event")]


class Topics:
    """The topics of a scenario, and the config of the broker that leaves."""

    def __init__(self, client: Client, cluster: ShoalCluster) -> None:
        self.client, self.brokers = client, cluster.brokers
        self.created: list[str] = []

    async def create(self, topic: str, *assigned: list[int]) -> None:
        """Create a topic with these replicas, by default six partitions where the brokers like."""
        new = NewTopic(topic, assignments=dict(enumerate(assigned)))
        expect(await self.client.admin.topics.create([new if assigned else NewTopic(topic, 6, 1)]))
        self.created.append(topic)

    async def list_places(self, topic: str) -> set[int]:
        """Return the brokers that have replicas of a topic."""
        described = await self.client.admin.topics.describe([topic])
        return {b for p in expect(described)[topic].partitions for b in p.replicas}

    async def read_cordon(self) -> str | None:
        keys = [cordon_calls.CORDONED]
        described = await self.client.admin.configs.describe([LEAVING_BROKER], keys=keys)
        return expect(described)[LEAVING_BROKER][cordon_calls.CORDONED].value

    async def cordon(self) -> None:
        """Cordon the broker that leaves, as a user."""
        changes = {LEAVING_BROKER: [ConfigChange(cordon_calls.CORDONED, "*")]}
        expect(await self.client.admin.configs.alter(changes))
        await sees(self.read_cordon, lambda found: found == "*")

    async def is_placed_everywhere(self) -> bool:
        """Return whether a new topic may have a replica on each broker."""
        new = NewTopic("probe", 1, len(self.brokers))
        (error,) = (await self.client.admin.topics.create([new], validate_only=True)).values()
        return not isinstance(error, KafkaError)

    async def clean(self) -> None:
        await self.client.admin.topics.delete(self.created)
        calls = CordonCalls(self.client.cluster, lambda _: None)
        await calls.uncordon(self.brokers)
        await sees(self.is_placed_everywhere, bool)


async def sees(read: Callable[[], Awaitable[T]], is_right: Callable[[T], bool]) -> None:
    """Read until the result is right: the metadata of a broker may be a moment old."""
    async with asyncio.timeout(60):
        while not is_right(await read()):
            pass


def run_scenario(
    cluster: ShoalCluster, steps: Callable[[World, Topics], Coroutine[Any, Any, T]]
) -> T:
    """Run the steps, and leave no topic and no cordon behind."""

    async def run() -> T:
        async with Client(cluster.bootstrap) as client:
            topics = Topics(client, cluster)
            try:
                return await steps(World(cluster), topics)
            finally:
                await topics.clean()

    return asyncio.run(run())


def test_a_broker_that_drains_gets_no_new_replicas_until_it_stays(three: ShoalCluster) -> None:
    async def steps(world: World, topics: Topics) -> None:
        await topics.create("old", [3], [3], [1])
        world.scale(2)
        said = (await world.one_pass()).diagnosis
        assert said
        assert said.reason == "ScalingDown"
        # The broker tells the controller with its next heartbeat.
        await sees(topics.is_placed_everywhere, operator.not_)
        await topics.create("new")
        await sees(lambda: topics.list_places("new"), lambda found: found == {1, 2})
        assert await world.survives()
        await sees(lambda: topics.list_places("old"), lambda found: found <= {1, 2})
        assert (world.noted_brokers, await topics.read_cordon()) == ([LEAVING], "*")
        world.scale(3)
        assert await world.survives()
        await sees(topics.is_placed_everywhere, bool)
        assert (world.noted_brokers, await topics.read_cordon()) == ([], "")

    run_scenario(three, steps)


def test_a_users_cordon_stays(three: ShoalCluster) -> None:
    async def steps(world: World, topics: Topics) -> None:
        await topics.cordon()
        for replicas in (2, 3):
            world.scale(replicas)
            assert await world.survives()
            assert (world.noted_brokers, await topics.read_cordon()) == ([], "*")

    run_scenario(three, steps)


def test_a_broker_that_cannot_leave_is_not_cordoned(three: ShoalCluster) -> None:
    async def steps(world: World, topics: Topics) -> None:
        world.scale(2)
        assert await world.survives()
        assert world.noted_brokers == [LEAVING]
        world.scale(3)
        await world.one_pass()
        await sees(topics.is_placed_everywhere, bool)
        await topics.create("wide", [1, 2, 3])
        world.scale(2)
        said = (await world.one_pass()).diagnosis
        assert said
        assert said.reason == "ScaleDownRefused"
        assert (world.noted_brokers, await topics.read_cordon()) == ([], "")

    run_scenario(three, steps)


def test_brokers_of_an_older_version_leave_without_a_cordon(
    three: ShoalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(world: World, topics: Topics) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(cordon_calls, "CORDONED", "a.config.of.newer.versions")
            await topics.create("old", [3])
            world.scale(2)
            assert await world.survives()
            await sees(lambda: topics.list_places("old"), lambda found: found <= {1, 2})
            assert (world.noted_brokers, world.list_events()) == ([], ["BrokersDrain"])
            calls = CordonCalls(topics.client.cluster, lambda _: None)
            assert not await calls.cordon([LEAVING])
            await calls.uncordon([LEAVING])

    run_scenario(three, steps)


def test_an_operator_may_die_after_each_change(three: ShoalCluster) -> None:
    """The next one cordons the same broker, and leaves no cordon behind when it stays."""

    async def settle(world: World, replicas: int, crash_after: int | None) -> bool:
        world.scale(replicas)
        if crash_after is not None:
            world.crash_point.last = world.crash_point.changes + crash_after
        crashed = not await world.survives()
        world.crash_point.last = None
        assert not crashed or await world.survives()
        return crashed

    def crash(crash_after: int | None) -> bool:
        async def steps(world: World, topics: Topics) -> bool:
            await topics.create("old", [3])
            crashed = await settle(world, 2, crash_after)
            await sees(lambda: topics.list_places("old"), lambda found: found <= {1, 2})
            assert (world.noted_brokers, world.list_events()) == ([LEAVING], ["BrokersDrain"])
            await sees(topics.read_cordon, lambda found: found == "*")
            crashed |= await settle(world, 3, crash_after)
            await sees(topics.read_cordon, lambda found: found == "")
            assert world.noted_brokers == []
            return crashed

        return run_scenario(three, steps)

    for crash_after in range(1, CHANGES_MAX):
        if not crash(crash_after):
            assert crash_after > 3
            return
    raise AssertionError("the scenario takes more changes than expected")
