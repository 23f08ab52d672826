"""Proposals of a QueueRebalance, for random placements."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal_operator.brokers.replica_moves import RebalanceMove
from shoal_operator.model import pod_layout
from shoal_operator.rebalance.planner import (
    BYTES_TOLERANCE,
    PlacedPartition,
    RebalanceMode,
    RebalancePlan,
    compute_loads,
    make_plan,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal_operator.rebalance.planner import BrokerLoad

NO_RACKS: Mapping[int, str] = {}


class Case:
    """Partitions on brokers."""

    def __init__(
        self, partitions: list[PlacedPartition], brokers: list[int], racks: Mapping[int, str]
    ) -> None:
        self.partitions, self.brokers, self.racks = partitions, brokers, racks

    def __repr__(self) -> str:
        return f"Case({self.partitions}, {self.brokers}, {self.racks})"

    def plan(self, mode: RebalanceMode, *chosen: int) -> RebalancePlan:
        return make_plan(mode, self.partitions, self.brokers, self.racks, chosen)

    def after(self, moves: Iterable[RebalanceMove]) -> Case:
        """Return the case after these moves; check that each is one of a present partition."""
        new = {move.partition: move for move in moves}
        rows = []
        for row in self.partitions:
            move = new.pop(row.name, None)
            assert move is None or move.before == row.replicas != move.after
            rows.append(row._replace(replicas=move.after) if move else row)
        assert not new
        return Case(rows, self.brokers, self.racks)

    def loads(self) -> dict[int, BrokerLoad]:
        return compute_loads(self.partitions, (), self.brokers)

    def racks_of(self, replicas: Iterable[int]) -> int:
        return len({self.racks.get(broker) for broker in replicas})


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    racked: bool | None = None,
    per_pod: int = 1,
    sized: bool = True,
    partitions_max: int = 24,
) -> Case:
    pods = draw(st.integers(3, 6))
    brokers = [
        pod_layout.compute_broker_id(pod, slot) for slot in range(per_pod) for pod in range(pods)
    ]
    racked = draw(st.booleans()) if racked is None else racked
    # The brokers of a pod are on one node, so in one rack.
    by_pod = [f"rack {draw(st.integers(0, 2))}" for _ in range(pods)] if racked else []
    racks = {b: by_pod[pod_layout.get_pod(b)] for b in brokers} if racked else NO_RACKS
    rows = []
    for number in range(draw(st.integers(1, partitions_max))):
        ids = draw(st.lists(st.sampled_from(brokers), min_size=1, max_size=3, unique=True))
        size = draw(st.integers(0, 1000)) if sized else 0
        rows.append(PlacedPartition(f"topic{number % 3}-{number}", tuple(ids), size))
    return Case(rows, brokers, racks)


def modes(case: Case) -> list[tuple[RebalanceMode, tuple[int, ...]]]:
    some = tuple(case.brokers[-1:])
    alone = [
        (mode, ()) for mode in (RebalanceMode.FULL, RebalanceMode.LEADERSHIP, RebalanceMode.RACKS)
    ]
    return [*alone, (RebalanceMode.ADD_BROKERS, some), (RebalanceMode.REMOVE_BROKERS, some)]


@given(st.one_of(cases(), cases(per_pod=2)))
def test_a_partition_keeps_its_replicas_pods_and_racks(case: Case) -> None:
    for mode, chosen in modes(case):
        found = case.plan(mode, *chosen)
        assert found == case.plan(mode, *chosen), "the same input gives the same plan"
        gone = set(chosen) if mode is RebalanceMode.REMOVE_BROKERS else set()
        staying = [broker for broker in case.brokers if broker not in gone]
        case.after(found.moves)
        for move in found.moves:
            assert len(set(move.after)) == len(move.after) == len(move.before)
            assert set(move.added_brokers) <= set(staying)
            pods = [len(set(map(pod_layout.get_pod, ids))) for ids in (move.before, move.after)]
            racks = [case.racks_of(ids) for ids in (move.before, move.after)]
            if mode is RebalanceMode.REMOVE_BROKERS:
                racks[0] = min(racks[0], case.racks_of(staying))
            if not found.unplaceable and not (
                mode is RebalanceMode.REMOVE_BROKERS and len(case.brokers) > 6
            ):
                assert racks[1] >= racks[0], f"{mode} {move}"
            assert pods[1] >= pods[0], f"{mode} {move}"


@given(cases(racked=False))
def test_a_full_rebalance_evens_replicas_bytes_and_leaders(case: Case) -> None:
    found = case.plan(RebalanceMode.FULL)
    even = case.after(found.moves)
    rows = even.loads().values()
    assert spread(row.replicas for row in rows) <= 1
    largest = max(p.size_bytes for p in case.partitions)
    tolerance = BYTES_TOLERANCE * sum(row.size_bytes for row in rows) / len(rows)
    assert spread(row.size_bytes for row in rows) <= max(tolerance, 2 * largest)
    assert even.plan(RebalanceMode.FULL).moves == (), "nothing is left to do"
    assert even.plan(RebalanceMode.LEADERSHIP).moves == ()


@given(cases(racked=False, sized=False))
def test_no_replica_moves_without_need(case: Case) -> None:
    counts = sorted((row.replicas for row in case.loads().values()), reverse=True)
    low, more = divmod(sum(counts), len(counts))
    wanted = [low + 1] * more + [low] * (len(counts) - more)
    least = sum(max(0, have - want) for have, want in zip(counts, wanted, strict=True))
    assert sum(len(move.added_brokers) for move in case.plan(RebalanceMode.FULL).moves) == least


@given(cases())
def test_excluded_topics_stay(case: Case) -> None:
    excluded = {"topic0", "topic1"}
    for mode in (RebalanceMode.FULL, RebalanceMode.LEADERSHIP, RebalanceMode.RACKS):
        found = make_plan(mode, case.partitions, case.brokers, case.racks, (), excluded)
        assert all(move.partition.startswith("topic2-") for move in found.moves)
        case.after(found.moves)


def spread(numbers: Iterable[int]) -> int:
    every = list(numbers)
    return max(every) - min(every)


@given(cases(racked=True))
def test_replicas_go_to_different_racks_and_the_others_stay(case: Case) -> None:
    available = case.racks_of(case.brokers)
    found = case.plan(RebalanceMode.RACKS)
    for row in case.after(found.moves).partitions:
        assert case.racks_of(row.replicas) == min(available, len(row.replicas))
    for move in found.moves:
        lacking = min(available, len(move.before)) - case.racks_of(move.before)
        assert len(move.added_brokers) == lacking > 0
        assert move.after[0] == move.before[0], "the preferred leader stays"


@given(cases(), st.integers(1, 2))
def test_new_brokers_get_their_part_and_only_they(case: Case, count: int) -> None:
    new = case.brokers[-count:]
    found = case.plan(RebalanceMode.ADD_BROKERS, *new)
    for move in found.moves:
        assert set(move.added_brokers) <= set(new)
        assert set(new) & set(move.before) <= set(move.after), "new brokers lose nothing"
        assert move.added_brokers, "only partitions that move get another leader"
    if not case.racks:
        after = case.after(found.moves).loads()
        fullest = max(row.replicas for id, row in after.items() if id not in new)
        assert fullest - min(after[id].replicas for id in new) <= 1


@given(cases(), st.integers(1, 2))
def test_brokers_that_leave_have_nothing_afterwards(case: Case, count: int) -> None:
    gone = set(case.brokers[:count])
    found = case.plan(RebalanceMode.REMOVE_BROKERS, *gone)
    staying = len(case.brokers) - count
    assert set(found.unplaceable) == {
        p.name for p in case.partitions if gone & set(p.replicas) and len(p.replicas) > staying
    }
    if not found.unplaceable:
        after = case.after(found.moves).loads()
        assert all(after[id] == (0, 0, 0) for id in gone)
        for move in found.moves:
            assert set(move.before) - set(move.after) == gone & set(move.before) != set()


@settings(max_examples=50)
@given(cases(racked=False, partitions_max=5))
def test_no_order_of_the_replicas_spreads_leaders_better(case: Case) -> None:
    found = case.plan(RebalanceMode.LEADERSHIP)
    assert all(sorted(move.before) == sorted(move.after) for move in found.moves)
    assert all(move.bytes_copied == 0 for move in found.moves)
    ours = Counter(row.replicas[0] for row in case.after(found.moves).partitions)
    every = itertools.product(*(row.replicas for row in case.partitions))
    assert squares(ours) == min(squares(Counter(leaders)) for leaders in every)


def squares(counts: Counter[int]) -> int:
    return sum(count * count for count in counts.values())


def test_a_large_replica_leaves_a_full_broker() -> None:
    """The numbers are even from the start. Only an exchange of replicas evens the bytes."""
    rows = [
        PlacedPartition("big-0", (0,), 900),
        PlacedPartition("big-1", (0,), 800),
        PlacedPartition("small-0", (1,), 10),
        PlacedPartition("small-1", (1,), 20),
    ]
    found = make_plan(RebalanceMode.FULL, rows, [0, 1])
    assert {(move.partition, move.before, move.after) for move in found.moves} == {
        ("big-1", (0,), (1,)),
        ("small-0", (1,), (0,)),
    }
    assert sum(move.bytes_copied for move in found.moves) == 800 + 10


def test_leadership_passes_through_a_third_broker() -> None:
    """No partition is on 0 and on 2, and broker 1 leads as many as it should."""
    rows = [
        PlacedPartition("t-0", (0, 1)),
        PlacedPartition("t-1", (0, 1)),
        PlacedPartition("t-2", (1, 2)),
    ]
    after = {
        move.partition: move.after
        for move in make_plan(RebalanceMode.LEADERSHIP, rows, range(3)).moves
    }
    leaders = Counter(after.get(row.name, row.replicas)[0] for row in rows)
    assert leaders == {0: 1, 1: 1, 2: 1}


def test_replicas_on_other_brokers_stay() -> None:
    """Brokers that the QueueCluster is removing are not those of a rebalance."""
    rows = [PlacedPartition(f"t-{n}", (9,)) for n in range(6)] + [PlacedPartition("u-0", (0,))]
    assert make_plan(RebalanceMode.FULL, rows, [0, 1]).moves == ()


@pytest.mark.parametrize(
    ("mode", "chosen"),
    [
        (RebalanceMode.FULL, ()),
        (RebalanceMode.ADD_BROKERS, (3, 4, 5)),
        (RebalanceMode.REMOVE_BROKERS, (0,)),
    ],
)
def test_many_partitions_are_planned_in_seconds(
    mode: RebalanceMode, chosen: tuple[int, ...]
) -> None:
    """The steps are bounded: 1,500 replicas whose sizes differ by a factor of a million."""
    rows = [
        PlacedPartition(f"t{n % 40}-{n}", tuple((n * n + at) % 4 for at in range(3)), 1 << (n % 20))
        for n in range(500)
    ]
    found = make_plan(mode, rows, range(6), {b: "abc"[b % 3] for b in range(6)}, chosen)
    assert found.moves
    assert not found.unplaceable


def test_loads_count_replicas_leaders_and_bytes() -> None:
    rows = [PlacedPartition("t-0", (0, 1), 5), PlacedPartition("t-1", (1,), 7)]
    moves = [RebalanceMove("t-1", (1,), (2,), 7)]
    assert compute_loads(rows, (), [2]) == {0: (1, 1, 5), 1: (2, 1, 12), 2: (0, 0, 0)}
    assert compute_loads(rows, moves) == {0: (1, 1, 5), 1: (1, 0, 5), 2: (1, 1, 7)}
