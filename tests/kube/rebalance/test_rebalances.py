"""QueueRebalances against three real brokers, with an API server in memory."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import yaml
from kube.api_server import STAMP, ApiServer, Crash, CrashPoint, resource
from shoal.client.admin.configs import ConfigResource, ConfigResourceType, ConfigSource
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal_operator.brokers import rebalance_calls
from shoal_operator.brokers.calls import Brokers
from shoal_operator.brokers.rebalance_calls import RebalanceCalls
from shoal_operator.kube.reconcile_loop import ReconcileLoop
from shoal_operator.kube.store import Store
from shoal_operator.model import pod_layout
from shoal_operator.rebalance import reconciler
from shoal_operator.rebalance.reconciler import QueueRebalanceReconciler
from shoal_operator.runtime import Operator
from shoal_operator.settings import ChartSettings
from support.brokers.clusters import CALM, ShoalCluster, running
from support.runs.conditions import eventually, eventually_async

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

Manifest = dict[str, Any]
T = TypeVar("T")
NAME = "spread"
RECORD_BYTES = 1000
EXAMPLE = Path(__file__).parents[3] / "examples" / "07-rebalance.yaml"
CHANGES_MAX = 40
#: Calls that change something in the brokers.
CHANGING = ("AlterPartitionReassignments", "IncrementalAlterConfigs", "ElectLeaders")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("three"), configs=CALM)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass often. The brokers of the tests have the ids from 1 on."""
    for name in ("RETRY_SECONDS", "PROGRESS_SECONDS", "PROPOSED_SECONDS"):
        monkeypatch.setattr(reconciler, name, 0.05)
    monkeypatch.setattr(reconciler, "UNSETTLED_SECONDS", 30.0)
    monkeypatch.setattr(
        pod_layout, "list_brokers", lambda cluster: list(range(1, cluster["spec"]["replicas"] + 1))
    )


class CrashingCalls(RebalanceCalls):
    """Calls after each of which that changes something the operator may die."""

    def __init__(self, admin: Any, count: Any, crash_point: CrashPoint) -> None:
        super().__init__(admin, count)
        self._crash_point = crash_point

    async def reassign(self, replicas: Mapping[str, tuple[int, ...] | None]) -> None:
        await super().reassign(replicas)
        self._crash_point.count()

    async def throttle(self, *arguments: Any) -> None:
        await super().throttle(*arguments)
        self._crash_point.count()

    async def unthrottle(self, *arguments: Any) -> None:
        await super().unthrottle(*arguments)
        self._crash_point.count()


class CountingBrokers(Brokers):
    """Notes the calls, and lets the operator die before and after those that change something."""

    def __init__(self, bootstrap: str, crash_point: CrashPoint, calls: Counter[str]) -> None:
        super().__init__(bootstrap)
        self._crash_point, self._calls = crash_point, calls

    @property
    def rebalances(self) -> RebalanceCalls:
        return CrashingCalls(self._client.admin, self._count, self._crash_point)

    def _count(self, api: str) -> None:
        self._calls[api] += 1
        if api in CHANGING:
            self._crash_point.count()


class World:
    """A topic of a cluster, and operators that rebalance it one after the other."""

    def __init__(self, cluster: ShoalCluster, topic: str, replicas: int = 3) -> None:
        self.cluster, self.topic = cluster, topic
        self.crash_point, self.calls = CrashPoint(), Counter[str]()
        self.kube, self.store = ApiServer(self.crash_point), Store()
        self.kube.add(resource("QueueCluster", "main", replicas=replicas))

    async def write(self, placed: Sequence[Sequence[int]], records: Sequence[int]) -> None:
        """Create the topic with these replicas of each partition, and write records to them."""
        assigned = dict(enumerate(placed))
        made = NewTopic(self.topic, assignments=assigned, configs={"min.insync.replicas": "1"})
        async with Client(self.cluster.bootstrap) as client, client.producer() as producer:
            expect(await client.admin.topics.create([made]))
            for index, count in enumerate(records):
                for number in range(count):
                    value = b"%d " % number + b"v" * RECORD_BYTES
                    await producer.send(self.topic, value, partition=index)
        await self.listed(present=True)

    async def drop(self) -> None:
        async with Client(self.cluster.bootstrap) as client:
            await client.admin.topics.delete([self.topic])
        await self.listed(present=False)

    async def listed(self, *, present: bool) -> None:
        """Wait until all brokers list the topic, or none does."""

        def is_so() -> bool:
            every = [self.cluster.metadata(id).topics for id in self.cluster.brokers]
            return all(present == (self.topic in [t.name for t in topics]) for topics in every)

        await asyncio.to_thread(eventually, is_so)

    async def partitions(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the replicas and the leader of each partition."""
        async with Client(self.cluster.bootstrap) as client:
            (found,) = expect(await client.admin.topics.describe([self.topic])).values()
            return [(p.replicas, p.leader_id) for p in found.partitions]

    async def replicas(self) -> list[tuple[int, ...]]:
        return [replicas for replicas, _ in await self.partitions()]

    async def ends(self) -> list[int]:
        async with Client(self.cluster.bootstrap) as client:
            count = len(await self.partitions())
            where = [TopicPartition(self.topic, index) for index in range(count)]
            asked = dict.fromkeys(where, int(OffsetSpec.LATEST))
            return [
                found.offset for found in expect(await client.admin.topics.offsets(asked)).values()
            ]

    async def throttles(self) -> set[str]:
        """Return the names of the throttles that are set anywhere."""
        topics = [ConfigResource(ConfigResourceType.TOPIC, self.topic)]
        brokers = [
            ConfigResource(ConfigResourceType.BROKER, str(id)) for id in self.cluster.brokers
        ]
        keys = [*rebalance_calls.THROTTLED, *rebalance_calls.RATES]
        async with Client(self.cluster.bootstrap) as client:
            found = expect(await client.admin.configs.describe([*topics, *brokers], keys=keys))
        own = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)
        return {e.name for row in found.values() for e in row.values() if e.source in own}

    async def sees(self, read: Callable[[], Awaitable[T]], is_right: Callable[[T], bool]) -> None:
        """Read until the result is right: the metadata of a broker may be a moment old."""
        found = await read()
        try:
            async with asyncio.timeout(30):
                while not is_right(found):
                    found = await read()
        except TimeoutError:
            raise AssertionError(f"the brokers have {found}") from None

    async def rests(self, replicas: Callable[[list[tuple[int, ...]]], bool]) -> None:
        """Check the replicas, and that nothing moves and nothing is throttled."""
        await self.sees(self.replicas, replicas)
        await self.sees(self.throttles, lambda found: not found)
        await self.sees(self.moving, lambda count: count == 0)

    async def may_use_all(self) -> bool:
        """Return whether a new topic may have a replica on each broker."""
        new = NewTopic("probe", 1, len(self.cluster.brokers))
        async with Client(self.cluster.bootstrap) as client:
            (error,) = (await client.admin.topics.create([new], validate_only=True)).values()
        return not isinstance(error, KafkaError)

    async def moving(self) -> int:
        async with Client(self.cluster.bootstrap) as client:
            return len(await client.admin.reassignments())

    def add(self, name: str = NAME, **spec: Any) -> None:
        given = {"cluster": "main", "mode": "Full", **spec}
        self.kube.add(resource("QueueRebalance", name, **given))

    def change(self, name: str = NAME, **spec: Any) -> None:
        self.add(name, **self.kube.find("QueueRebalance", name)["spec"] | spec)

    def approve(self, id: str = "", name: str = NAME) -> None:
        """Annotate the resource with this id, by default that of its proposal."""
        found = self.kube.find("QueueRebalance", name)
        notes = {"shoal.dev/approve": id or found["status"]["proposal"]["id"]}
        found["metadata"]["annotations"] = notes

    def status(self, name: str = NAME) -> Manifest:
        return self.kube.find("QueueRebalance", name)["status"]

    def condition(self, kind: str = "Ready", name: str = NAME) -> Manifest:
        return next((c for c in self.status(name)["conditions"] if c["type"] == kind), {})

    @property
    def proposal(self) -> Manifest:
        return self.status()["proposal"]

    def changing_calls(self) -> int:
        return sum(self.calls[name] for name in CHANGING)

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[QueueRebalanceReconciler]:
        """A new operator, which ends without a word at the end of the block."""
        brokers = CountingBrokers(self.cluster.bootstrap, self.crash_point, self.calls)
        self.store = Store()
        try:
            yield QueueRebalanceReconciler(self.kube, self.store, brokers, "n", "main")
        finally:
            await brokers.close()

    async def one_pass(self, operator: QueueRebalanceReconciler) -> float | None:
        """Pass all objects to the operator, as its watches do, and reconcile."""
        for known in list(self.store.iterate("QueueRebalance")):
            if ("QueueRebalance", known["metadata"]["name"]) not in self.kube.objects:
                self.store.drop(known)
        for found in self.kube.objects.values():
            self.store.put(copy.deepcopy(found))
        return await operator.reconcile([])

    async def until(self, operator: QueueRebalanceReconciler, probe: Callable[[], Any]) -> None:
        """Reconcile until the probe is true after at least one pass."""
        passes = 0

        async def one_pass(_: list[str]) -> float | None:
            nonlocal passes
            again = await self.one_pass(operator)
            passes += 1
            return again

        loop = ReconcileLoop("QueueRebalance", one_pass, lambda: [NAME], 0.05)
        task = asyncio.create_task(loop.run())
        try:
            await eventually_async(lambda: passes and probe())
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until_reason(
        self, operator: QueueRebalanceReconciler, reason: str, name: str = NAME
    ) -> None:
        def is_there() -> bool:
            ready, meta = self.condition(name=name), self.kube.find("QueueRebalance", name)
            seen = ready.get("observedGeneration") == meta["metadata"]["generation"]
            return seen and bool(ready["reason"] == reason)

        await self.until(operator, is_there)


def counts(placed: Iterable[Sequence[int]]) -> Counter[int]:
    """Return the number of replicas by broker."""
    return Counter(broker for replicas in placed for broker in replicas)


def leads(placed: Iterable[tuple[Sequence[int], int]]) -> Counter[int]:
    """Return the number of partitions that each broker leads."""
    return Counter(leader for _, leader in placed)


def scenario(world: World, steps: Callable[[], Awaitable[None]]) -> None:
    """Run the steps, and delete the topic at the end."""

    async def run() -> None:
        try:
            await steps()
        finally:
            await world.drop()

    asyncio.run(run())


# Proposals and approval.


def test_a_proposal_waits_and_its_approval_moves_the_bytes(three: ShoalCluster) -> None:
    world = World(three, "full")
    records = [200, 10, 150, 20, 30, 100]

    async def steps() -> None:
        await world.write([[1]] * 6, records)
        world.add(**yaml.safe_load(EXAMPLE.read_text())["spec"])
        async with world.operator() as operator:
            await world.until_reason(operator, "ProposalReady")
            for _ in range(3):
                await world.one_pass(operator)
            found = world.proposal
            assert (found["partitions"], found["replicas"], found["remaining"]) == (4, 4, 0)
            assert sum(move["bytes"] for move in found["moves"]) == found["bytes"] > 0
            assert found["brokers"][0]["replicas"] == found["brokers"][0]["leaders"] == 6
            after = [row["bytesAfter"] for row in found["brokers"]]
            assert max(after) - min(after) < 0.2 * sum(after)
            assert [row["replicasAfter"] for row in found["brokers"]] == [2, 2, 2]
            assert (world.condition()["status"], world.condition("Paused")["status"]) == (
                "False",
                "True",
            )
            assert world.condition("ProposalReady")["status"] == "True"
            # The message has the command.
            assert world.condition()["message"].endswith(f"shoal.dev/approve={found['id']}")
            world.approve("some-other")
            await world.until(operator, lambda: world.condition("Degraded")["status"] == "True")
            assert world.condition("Degraded")["reason"] == "ApprovalOutdated"
            assert world.changing_calls() == 0
            assert await world.replicas() == [(1,)] * 6
            world.approve()
            await world.until_reason(operator, "Reconciled")
        wanted = {move["partition"]: tuple(move["to"]) for move in found["moves"]}
        placed = [wanted.get(f"full-{n}", (1,)) for n in range(6)]
        await world.rests(lambda found: found == placed)
        leading = [(replicas, replicas[0]) for replicas in placed]
        await world.sees(world.partitions, lambda found: found == leading)
        assert await world.ends() == records
        assert world.status()["progress"] == {
            "partitions": 4,
            "done": 4,
            "moving": 0,
            "leftOut": 0,
            "bytesCopied": found["bytes"],
        }
        assert world.condition("Degraded")["status"] == "False"
        assert not world.kube.find("QueueRebalance", NAME)["metadata"].get("finalizers")
        events = [event["reason"] for event in world.kube.all("Event")]
        assert sorted(events) == ["ApprovalOutdated", "Rebalanced"]
        # The same manifest is not carried out again; another id asks for a new proposal.
        calls = world.changing_calls()
        async with world.operator() as operator:
            await world.one_pass(operator)
            assert world.changing_calls() == calls
            world.change(id="2")
            await world.until_reason(operator, "Reconciled")
            assert world.condition()["message"].endswith("Nothing moves.")
            assert world.changing_calls() == calls

    scenario(world, steps)


def test_new_brokers_get_replicas_and_leaving_ones_lose_them(three: ShoalCluster) -> None:
    world = World(three, "grow")
    before = [(1, 2), (2, 1)] * 3

    async def steps() -> None:
        await world.write(before, [5] * 6)
        world.add(mode="AddBrokers", brokers=[3], approval="Automatic")
        async with world.operator() as operator:
            await world.until_reason(operator, "Reconciled")
            await world.rests(lambda grown: counts(grown) == {1: 4, 2: 4, 3: 4})
            await world.sees(world.partitions, lambda grown: leads(grown)[3] == 2)
            world.change(mode="RemoveBrokers")
            await world.until_reason(operator, "Reconciled")
        await world.rests(lambda found: sorted(map(sorted, found)) == [[1, 2]] * 6)
        assert await world.ends() == [5] * 6
        # Nothing is left for the scale-down to move.
        assert [row["replicasAfter"] for row in world.proposal["brokers"]] == [6, 6, 0]
        assert world.status()["cordonedBrokers"] == [3]
        # Another operator, and a request that moves nothing, keep the broker empty.
        async with world.operator() as operator:
            await world.one_pass(operator)
            assert world.kube.find("QueueRebalance", NAME)["metadata"]["finalizers"]
            world.change(id="2")
            await world.until_reason(operator, "Reconciled")
            # A broker reports its cordon with its next heartbeat.
            await world.sees(world.may_use_all, lambda may: not may)
            assert world.status()["cordonedBrokers"] == [3]
            world.kube.find("QueueRebalance", NAME)["metadata"]["deletionTimestamp"] = STAMP
            gone = ("QueueRebalance", NAME)
            await world.until(operator, lambda: gone not in world.kube.objects)
        await world.sees(world.may_use_all, bool)

    scenario(world, steps)


def test_leadership_alone_copies_nothing(three: ShoalCluster) -> None:
    world = World(three, "leaders")

    async def steps() -> None:
        await world.write([[1, 2, 3]] * 3, [5] * 3)
        world.add(mode="Leadership", approval="Automatic")
        async with world.operator() as operator:
            await world.until_reason(operator, "Reconciled")
        await world.sees(world.partitions, lambda found: leads(found) == {1: 1, 2: 1, 3: 1})
        assert world.proposal["bytes"] == world.proposal["replicas"] == 0

    scenario(world, steps)


def test_a_proposal_of_other_replicas_is_replaced(three: ShoalCluster) -> None:
    world = World(three, "stale")

    async def steps() -> None:
        await world.write([[1], [1]], [1, 1])
        world.add()
        async with world.operator() as operator:
            await world.until_reason(operator, "ProposalReady")
            old = world.proposal["id"]
            (move,) = world.proposal["moves"]
            index = int(move["partition"].rpartition("-")[2])
            async with Client(three.bootstrap) as client:
                await client.admin.reassign({TopicPartition(world.topic, index): [3]})
            world.approve(old)
            # Now the replicas are balanced, and the approval belongs to nothing.
            await world.until_reason(operator, "Reconciled")
            assert world.condition()["message"].endswith("Nothing moves.")
        await world.rests(lambda found: sorted(found) == [(1,), (3,)])

    scenario(world, steps)


# Throttle, progress, stop.


def test_a_pause_takes_back_what_is_under_way(three: ShoalCluster) -> None:
    """The throttle is far below the bytes, so that nothing is done before the pause."""
    world = World(three, "slow")
    before = [(2, 1), (2, 1), (2, 1), (2, 1)]

    async def steps() -> None:
        await world.write(before, [300] * 4)
        world.add(mode="AddBrokers", brokers=[3], throttle="20k", concurrentPartitionMovements=1)
        async with world.operator() as operator:
            await world.until_reason(operator, "ProposalReady")
            world.approve()
            await world.until(
                operator, lambda: (world.status().get("progress") or {}).get("bytesCopied", 0) > 0
            )
            assert world.status()["throttle"] == "20k"
            throttles = {*rebalance_calls.THROTTLED, *rebalance_calls.RATES}
            await world.sees(world.throttles, lambda found: found == throttles)
            assert await world.moving() == 1
            assert world.status()["progress"]["done"] == 0
            assert world.kube.find("QueueRebalance", NAME)["metadata"]["finalizers"]
            world.change(paused=True)
            await world.until_reason(operator, "Paused")
            # In the same order, too.
            await world.rests(lambda found: found == before)
            assert not world.status().get("throttle")
        # Another operator continues what was approved.
        world.change(paused=False, throttle="1G", concurrentPartitionMovements=10)
        async with world.operator() as operator:
            await world.until_reason(operator, "Reconciled")
        await world.rests(lambda found: counts(found)[3] > 1)
        assert await world.ends() == [300] * 4

    scenario(world, steps)


def test_a_pause_gives_a_broker_its_replicas_back(three: ShoalCluster) -> None:
    """It is cordoned while they move away, and a cordoned broker is refused as a target."""
    world = World(three, "back")

    async def steps() -> None:
        await world.write([(3, 1)] * 2, [300] * 2)
        world.add(mode="RemoveBrokers", brokers=[3], throttle="20k", approval="Automatic")
        async with world.operator() as operator:
            await world.until(
                operator, lambda: (world.status().get("progress") or {}).get("bytesCopied", 0) > 0
            )
            await world.sees(world.may_use_all, lambda may: not may)
            world.change(paused=True)
            await world.until_reason(operator, "Paused")
        await world.rests(lambda found: found == [(3, 1)] * 2)
        await world.sees(world.may_use_all, bool)
        assert not world.status().get("cordonedBrokers")
        assert [event["reason"] for event in world.kube.all("Event")] == []

    scenario(world, steps)


def test_a_throttle_changes_while_replicas_move(three: ShoalCluster) -> None:
    world = World(three, "faster")

    async def steps() -> None:
        await world.write([[1], [1], [1]], [300] * 3)
        world.add(throttle="20k", approval="Automatic")
        async with world.operator() as operator:
            await world.until(operator, lambda: world.status().get("throttle") == "20k")
            await world.until_reason(operator, "Rebalancing")
            world.change(throttle="1G")
            await world.until_reason(operator, "Reconciled")
        await world.rests(lambda found: sorted(found) == [(1,), (2,), (3,)])

    scenario(world, steps)


def test_a_deleted_resource_leaves_no_move_and_no_throttle(three: ShoalCluster) -> None:
    world = World(three, "gone")

    async def steps() -> None:
        await world.write([[1], [1], [1]], [300] * 3)
        world.add(throttle="20k", approval="Automatic")
        async with world.operator() as operator:
            await world.until(
                operator, lambda: (world.status().get("progress") or {}).get("moving")
            )
        world.kube.find("QueueRebalance", NAME)["metadata"]["deletionTimestamp"] = STAMP
        async with world.operator() as operator:
            await world.until(operator, lambda: ("QueueRebalance", NAME) not in world.kube.objects)
        await world.rests(lambda found: found == [(1,)] * 3)

    scenario(world, steps)


def test_one_rebalance_moves_replicas_at_a_time(three: ShoalCluster) -> None:
    world = World(three, "two")

    async def steps() -> None:
        await world.write([[1], [1], [1]], [300] * 3)
        world.add(throttle="20k", approval="Automatic")
        world.add("then", approval="Automatic")
        async with world.operator() as operator:
            await world.until_reason(operator, "Queued", name="then")
            assert world.condition(name="then")["message"].startswith("QueueRebalance 'spread'")
            world.change(throttle="1G")
            await world.until_reason(operator, "Reconciled")
            await world.until_reason(operator, "Reconciled", name="then")
        assert world.condition(name="then")["message"].endswith("Nothing moves.")

    scenario(world, steps)


def test_a_partition_that_is_deleted_meanwhile_is_left_out(
    three: ShoalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "UNSETTLED_SECONDS", 1.0)
    world, other = World(three, "here"), World(three, "elsewhere")

    async def steps() -> None:
        await world.write([[1], [1], [1]], [1] * 3)
        await other.write([[1], [1], [1]], [1] * 3)
        world.add()
        async with world.operator() as operator:
            await world.until_reason(operator, "ProposalReady")
            of_other = sum("elsewhere" in m["partition"] for m in world.proposal["moves"])
            assert 0 < of_other < world.proposal["partitions"]
            world.approve()
            while not world.status().get("approved"):
                await world.one_pass(operator)
            await other.drop()
            await world.until_reason(operator, "Reconciled")
        assert world.status()["progress"]["leftOut"] == of_other
        assert world.condition("Degraded")["reason"] == "MovesLeftOut"

    scenario(world, steps)


# An operator that dies.


def test_an_operator_may_die_after_each_change(three: ShoalCluster) -> None:
    """The next one reaches the same end: the replicas of the proposal, no throttle, one event."""

    async def once(crash_after: int | None) -> tuple[bool, Any]:
        world = World(three, f"crash-{crash_after}")
        try:
            await world.write([[1], [1]], [3, 3])
            world.add(throttle="1G", approval="Automatic")
            world.crash_point.last = crash_after
            crashed = not await survives(world)
            world.crash_point.last = None
            assert not crashed or await survives(world)
            events = [e["reason"] for e in world.kube.all("Event")]
            meta = world.kube.find("QueueRebalance", NAME)["metadata"]
            moves = [(m["from"], m["to"]) for m in world.proposal["moves"]]
            await world.rests(lambda found: sorted(found) == [(1,), (2,)])
            return crashed, (
                events,
                meta.get("finalizers", []),
                world.status().get("throttle"),
                moves,
            )
        finally:
            await world.drop()

    _, whole = asyncio.run(once(None))
    assert whole[:3] == (["Rebalanced"], [], None)
    for crash_after in range(1, CHANGES_MAX):
        crashed, found = asyncio.run(once(crash_after))
        assert found == whole, f"crashed after {crash_after} changes"
        if not crashed:
            assert crash_after > 6
            return
    raise AssertionError("the scenario takes more changes than expected")


async def survives(world: World) -> bool:
    """Run a new operator until it has rebalanced; return false if it dies before."""
    try:
        async with world.operator() as operator, asyncio.timeout(60):
            while world.condition().get("reason") != "Reconciled":
                await world.one_pass(operator)
            await world.one_pass(operator)
    except Crash:
        return False
    return True


# The whole operator.


def test_events_of_a_resource_reach_its_reconciler(three: ShoalCluster) -> None:
    """A QueueRebalance without a QueueCluster, which is then created for brokers of others."""
    world = World(three, "unused")
    world.add(cluster="absent")
    del world.kube.objects["QueueCluster", "main"]

    async def run() -> None:
        operator = Operator(world.kube, ChartSettings("b:1", "s:1", "role", "u"), ("n",))
        try:
            operator.set_leading(True)
            await eventually_async(lambda: world.condition()["reason"] == "ClusterNotFound")
            away = {"type": "external", "external": {"bootstrapServers": three.bootstrap}}
            world.kube.add(resource("QueueCluster", "absent", **away))
            operator.on_update(copy.deepcopy(world.kube.find("QueueCluster", "absent")))
            await eventually_async(lambda: world.condition()["reason"] == "NotForExternalCluster")
        finally:
            await operator.close()

    asyncio.run(run())


# What cannot be done.


@pytest.mark.parametrize(
    ("spec", "pods", "reason", "words"),
    [
        ({"cluster": "other"}, 3, "ClusterNotFound", "other"),
        ({"mode": "AddBrokers", "brokers": [7]}, 3, "BrokersNotOfCluster", "1, 2, 3"),
        ({"mode": "RemoveBrokers", "brokers": [7]}, 3, "BrokersNotOfCluster", "has 7"),
        ({"mode": "RemoveBrokers", "brokers": [1, 2]}, 3, "ReplicasNotPlaceable", "never-0"),
        ({}, 5, "BrokersMissing", "4, 5"),
    ],
)
def test_a_mistake_is_named(
    three: ShoalCluster, spec: Mapping[str, Any], pods: int, reason: str, words: str
) -> None:
    world = World(three, "never", pods)

    async def steps() -> None:
        await world.write([[1, 2]], [0])
        world.add(**spec)
        async with world.operator() as operator:
            if "cluster" in spec:
                operator = QueueRebalanceReconciler(
                    world.kube, world.store, Brokers(""), "n", "other"
                )
            await world.until_reason(operator, reason)
        assert words in world.condition()["message"]
        assert world.changing_calls() == 0

    scenario(world, steps)
