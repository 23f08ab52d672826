"""Replica moves when brokers are removed: the pure plans."""

from hypothesis import given
from hypothesis import strategies as st
from shoal_operator.brokers.placement import drain
from shoal_operator.brokers.roller import PartitionState


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


@given(layouts())
def test_drained_partitions_keep_their_number_of_distinct_replicas(layout) -> None:
    brokers, rows = layout
    plan = drain(rows, range(brokers - 1))
    for row in rows:
        after = plan.moves.get(row.name, row.replicas)
        assert len(set(after)) == len(row.replicas)
        assert row.name in plan.unplaceable or brokers - 1 not in after
        assert [b for b in row.replicas if b in after or b == brokers - 1] == list(row.replicas)
