"""Replica moves when brokers are added and removed: the pure plans."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from shoal_operator.placement import balance, drain
from shoal_operator.roller import PartitionState


def partition(name: str, *replicas: int) -> PartitionState:
    return PartitionState(name, replicas, replicas, 1)


@st.composite
def layouts(draw):
    """Draw partitions of at most three replicas over brokers 0 to n-1."""
    brokers = draw(st.integers(3, 6))
    replicas = st.lists(st.integers(0, brokers - 1), min_size=1, max_size=3, unique=True)
    rows = draw(st.lists(replicas, max_size=30))
    return brokers, [partition(f"t-{n}", *r) for n, r in enumerate(rows)]


def test_a_broker_is_drained_replica_for_replica() -> None:
    plan = drain([partition("a-0", 3, 1), partition("a-1", 0, 1)], range(3))
    assert plan.moves == {"a-0": (2, 1)}
    assert plan.unplaceable == ()


def test_replicas_without_a_target_are_named() -> None:
    plan = drain([partition("a-0", 0, 1, 2, 3), partition("b-0", 3)], range(3))
    assert plan.unplaceable == ("a-0",)
    assert list(plan.moves) == ["b-0"]


def test_a_replica_goes_to_a_rack_of_its_own() -> None:
    racks = {0: "x", 1: "x", 2: "y", 3: "y"}
    full = [partition(f"f-{n}", 2) for n in range(9)]
    plan = drain([partition("a-0", 0, 3), *full], range(3), racks)
    assert plan.moves == {"a-0": (0, 2)}


def test_new_brokers_get_their_share() -> None:
    rows = [partition(f"t-{n}", 0, 1, 2) for n in range(12)]
    plan = balance(rows, range(4))
    after = [plan.moves.get(r.name, r.replicas) for r in rows]
    assert Counter(b for r in after for b in r) == {0: 9, 1: 9, 2: 9, 3: 9}
    assert Counter(r[0] for r in after) == {0: 3, 1: 3, 2: 3, 3: 3}


@given(layouts())
def test_drained_partitions_keep_their_number_of_distinct_replicas(layout) -> None:
    brokers, rows = layout
    plan = drain(rows, range(brokers - 1))
    for row in rows:
        after = plan.moves.get(row.name, row.replicas)
        assert len(set(after)) == len(row.replicas)
        assert row.name in plan.unplaceable or brokers - 1 not in after
        assert [b for b in row.replicas if b in after or b == brokers - 1] == list(row.replicas)


def test_each_topic_gets_onto_new_brokers() -> None:
    """Not only the first topics, although that would also even out the numbers."""
    rows = [partition(f"{t}-{n}", 0, 1, 2) for t in "abcdef" for n in range(6)]
    plan = balance(rows, range(4))
    for topic in "abcdef":
        after = [plan.moves.get(r.name, r.replicas) for r in rows if r.name[0] == topic]
        counts = Counter(b for r in after for b in r)
        assert set(counts.values()) <= {4, 5}, (topic, counts)
    total = Counter(b for r in rows for b in plan.moves.get(r.name, r.replicas))
    assert max(total.values()) - min(total.values()) <= 1, total


@given(layouts())
def test_spread_keeps_replicas_apart_and_gives_no_broker_more_than_before(layout) -> None:
    brokers, rows = layout
    plan = balance(rows, range(brokers))
    after = [partition(r.name, *plan.moves.get(r.name, r.replicas)) for r in rows]
    assert all(len(set(r.replicas)) == len(r.replicas) for r in after)
    most = [
        max(Counter(b for r in x for b in r.replicas).values(), default=0) for x in (rows, after)
    ]
    assert most[1] <= most[0]
