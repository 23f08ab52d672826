"""Another number of replicas of a QueueTopic: the moves, and three real brokers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube.api_server import ApiServer, CrashPoint, resource
from shoal.client.client import Client
from shoal_operator.brokers.calls import Brokers
from shoal_operator.brokers.placement import resize
from shoal_operator.brokers.roller import PartitionState
from shoal_operator.queues import topic_replicas
from shoal_operator.queues.topics import QueueTopicReconciler
from support.brokers.clusters import CALM, ShoalCluster, running

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long the metadata of a broker may be behind that of the controller.
METADATA_S = 3.0
RACKS = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}


def partition(
    name: str, replicas: tuple[int, ...], isr: tuple[int, ...] | None = None, isr_min: int = 1
) -> PartitionState:
    return PartitionState(name, replicas, replicas if isr is None else isr, isr_min)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[PartitionState], int]:
    rows = []
    for number in range(draw(st.integers(1, 12))):
        ids = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True))
        rows.append(partition(f"t-{number}", tuple(ids)))
    return rows, draw(st.integers(1, 6))


@given(layouts())
def test_every_partition_gets_the_number_and_keeps_its_leader(layout: Any) -> None:
    rows, count = layout
    found = resize(rows, {row.name: count for row in rows}, range(6), RACKS)
    assert found.unplaceable == ()
    for row in rows:
        after = found.moves.get(row.name, row.replicas)
        assert len(set(after)) == len(after) == count
        assert after[0] == row.replicas[0]
        kept = set(after) & set(row.replicas)
        assert len(kept) == min(count, len(row.replicas)), "nothing moves without need"
        if row.name in found.moves:
            assert len(row.replicas) != count


@given(layouts())
def test_new_replicas_are_in_new_racks_while_there_are_any(layout: Any) -> None:
    rows, _ = layout
    found = resize(rows, {row.name: 3 for row in rows}, range(6), RACKS)
    for row in rows:
        if len(row.replicas) == 1:
            after = found.moves[row.name]
            assert len({RACKS[broker] for broker in after}) == 3


def test_new_replicas_go_to_the_brokers_with_the_fewest() -> None:
    rows = [partition(f"t-{n}", (n % 2,)) for n in range(12)]
    found = resize(rows, {row.name: 2 for row in rows}, range(4))
    counts = Counter(broker for replicas in found.moves.values() for broker in replicas)
    assert set(counts.values()) == {6}


def test_a_replica_that_is_not_in_sync_goes_first() -> None:
    rows = [partition("t-0", (0, 2, 4), isr=(0, 4))]
    assert resize(rows, {"t-0": 2}, range(6), RACKS).moves == {"t-0": (0, 4)}
    crowded = [partition("t-0", (0, 2, 3, 4))]
    assert resize(crowded, {"t-0": 3}, range(6), RACKS).moves["t-0"] in [(0, 2, 4), (0, 3, 4)]


def plan(
    wanted: int,
    rows: list[PartitionState],
    *,
    under_way: set[str] | None = None,
    running: int = 4,
) -> topic_replicas.TopicResize:
    racks = dict.fromkeys(range(running), "")
    return topic_replicas.plan_resizes({"t": wanted}, rows, under_way or set(), range(4), racks)[
        "t"
    ]


def test_few_partitions_change_at_a_time() -> None:
    rows = [partition(f"t-{n}", (0,)) for n in range(120)]
    first = plan(2, rows)
    assert len(first.moves) == topic_replicas.MOVES_MAX
    assert first.progress == {"partitions": 120, "done": 0}
    assert (first.verdict.reason, first.verdict.ready, first.verdict.progressing) == (
        "Reassigning",
        True,
        True,
    )
    grown = [partition(r.name, first.moves.get(r.name, r.replicas)) for r in rows]
    some = set(list(first.moves)[:20])
    second = plan(2, grown, under_way=some)
    assert len(second.moves) == topic_replicas.MOVES_MAX - 20
    assert second.moves.keys().isdisjoint(first.moves)
    assert second.progress == {"partitions": 120, "done": 30}


@pytest.mark.parametrize(
    ("wanted", "isr_min", "reason", "words"),
    [
        (5, 1, "ReplicasNotPlaceable", "the cluster has 4 broker pods"),
        (1, 2, "ReplicasBelowMinIsr", "min.insync.replicas of the topic is 2"),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    wanted: int, isr_min: int, reason: str, words: str
) -> None:
    found = plan(wanted, [partition("t-0", (0, 1, 2), isr_min=isr_min)])
    assert (found.verdict.reason, found.verdict.is_stalled, found.moves) == (reason, True, {})
    assert words in found.verdict.message


def test_brokers_that_do_not_run_are_waited_for() -> None:
    found = plan(4, [partition("t-0", (0, 1, 2))], running=3)
    assert (found.verdict.reason, found.verdict.progressing) == ("BrokersMissing", True)
    assert found.moves == {}


# -- real brokers


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("three"), configs=CALM)) as cluster:
        yield cluster


class World:
    """A QueueTopic of a cluster of four, three of which run, and the operator's passes."""

    def __init__(self, cluster: ShoalCluster) -> None:
        self.cluster = cluster
        self.kube = ApiServer(CrashPoint())
        self.kube.add(resource("QueueCluster", "main", replicas=4))

    async def apply(self, **spec: Any) -> dict[str, Any]:
        """Apply a spec, run passes until nothing is in progress, and return the condition Ready."""
        common = {"cluster": "main", "partitions": 4, "config": {}}
        self.kube.add(resource("QueueTopic", "jobs", **common, **spec))
        brokers = Brokers(self.cluster.bootstrap)
        try:
            topics = QueueTopicReconciler(self.kube, self.kube.store(), brokers, "n", "main")
            async with asyncio.timeout(60):
                while await topics.reconcile(["jobs"]) is not None:
                    if self.ready()["reason"] == "BrokersMissing":
                        break
        finally:
            await brokers.close()
        return self.ready()

    def ready(self) -> dict[str, Any]:
        conditions = self.status()["conditions"]
        return next(c for c in conditions if c["type"] == "Ready")

    def status(self) -> dict[str, Any]:
        return self.kube.find("QueueTopic", "jobs")["status"]


async def has_replicas(cluster: ShoalCluster, count: int) -> bool:
    """Whether each of four partitions has this number of replicas, all in sync. The operator asks
    the controller for moves, and a broker may have its metadata a moment later: wait for that."""
    rows: list[tuple[int, int]] = []
    try:
        async with Client(cluster.bootstrap) as client, asyncio.timeout(METADATA_S):
            while True:
                (topic,) = (await client.admin.topics.describe(["jobs"])).values()
                found: Any = topic
                rows = [(len(p.replicas), len(p.isr)) for p in found.partitions]
                if rows == [(count, count)] * 4:
                    return True
    except TimeoutError:
        raise AssertionError(f"not {count} replicas in sync: {rows}") from None


def test_three_brokers_follow_the_number(three: ShoalCluster) -> None:
    world = World(three)

    async def scenario() -> None:
        assert (await world.apply(replicas=1))["reason"] == "Reconciled"
        async with Client(three.bootstrap) as client, client.producer() as producer:
            for number in range(200):
                await producer.send("jobs", str(number).encode())
        for count in (3, 2, 3, 1):
            ready = await world.apply(replicas=count)
            assert (ready["status"], ready["reason"]) == ("True", "Reconciled"), ready
            assert await has_replicas(three, count)
            status = world.status()
            assert status["replicas"] == count
            assert status.get("reassignment") is None
        ready = await world.apply(replicas=4)
        assert (ready["status"], ready["reason"]) == ("False", "BrokersMissing")
        assert world.status()["reassignment"] == {"partitions": 4, "done": 0}
        ready = await world.apply(replicas=5)
        assert ready["reason"] == "ReplicasNotPlaceable"
        assert (await world.apply(replicas=1))["reason"] == "Reconciled"
        assert (await world.apply())["reason"] == "Reconciled"
        assert await has_replicas(three, 1)

    asyncio.run(scenario())
