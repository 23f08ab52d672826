"""Plans for the replicas of partitions: they keep what they can, and spread the rest."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.cli.commands.replica_plan import plan
from shoal.client.net.cluster import TopicPartition


def topic(*replicas: list[int]) -> dict[TopicPartition, list[int]]:
    return {TopicPartition("t", index): ids for index, ids in enumerate(replicas)}


def test_a_spread_topic_stays() -> None:
    current = topic([1, 2], [2, 3], [3, 1])
    assert plan(current, [1, 2, 3]) == current


def test_a_new_broker_gets_its_part_and_no_more_moves() -> None:
    current = topic([1, 2], [2, 1], [1, 2])
    planned = plan(current, [1, 2, 3])
    assert Counter(id for ids in planned.values() for id in ids) == {1: 2, 2: 2, 3: 2}
    copied = sum(len({*planned[where]} - {*current[where]}) for where in current)
    assert copied == 2


def test_a_broker_that_leaves_gives_its_replicas_to_the_emptiest() -> None:
    planned = plan(topic([3, 1], [1, 2], [1, 3]), [1, 2])
    assert all({*ids} == {1, 2} for ids in planned.values())
    assert max(Counter(ids[0] for ids in planned.values()).values()) == 2


def test_replicas_spread_over_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    planned = plan(topic([1], [2], [3], [4]), [1, 2, 3, 4], racks, 2)
    assert all({racks[id] for id in ids} == {"a", "b"} for ids in planned.values())
    assert set(Counter(id for ids in planned.values() for id in ids).values()) == {2}


def test_replicas_do_not_share_a_host_for_a_rack_of_their_own() -> None:
    """Two pods of two brokers in one zone, and one pod in another."""
    hosts = {0: "pod-0", 1000: "pod-0", 1: "pod-1", 1001: "pod-1", 2: "pod-2", 1002: "pod-2"}
    racks = {id: "b" if host == "pod-2" else "a" for id, host in hosts.items()}
    planned = plan(topic(*[[id] for id in hosts]), list(hosts), racks, 3, hosts)
    assert all(len({hosts[id] for id in ids}) == 3 for ids in planned.values())
    pairs = plan(topic(*[[id] for id in hosts]), list(hosts), racks, 2, hosts)
    assert all({racks[id] for id in ids} == {"a", "b"} for ids in pairs.values())
    one_host = dict.fromkeys(hosts, "here")
    alone = plan(topic(*[[id] for id in hosts]), list(hosts), racks, 2)
    assert alone == plan(topic(*[[id] for id in hosts]), list(hosts), racks, 2, one_host)


def test_a_lower_factor_keeps_the_preferred_leader() -> None:
    planned = plan(topic([2, 1, 3], [3, 1, 2]), [1, 2, 3], None, 1)
    assert sorted(planned.values()) == [[2], [3]]


def test_too_few_brokers() -> None:
    with pytest.raises(ValueError, match=r"t-0 has 3 replicas, but only 2 brokers"):
        plan(topic([1, 2, 3]), [1, 2])


@given(
    st.integers(1, 6).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.lists(
                st.permutations(range(1, count + 1)).flatmap(
                    lambda ids: st.integers(1, len(ids)).map(lambda size: list(ids)[:size])
                ),
                min_size=1,
                max_size=12,
            ),
        )
    ),
    st.booleans(),
)
def test_every_plan_is_even_and_keeps_the_factor(
    drawn: tuple[int, list[list[int]]], grows: bool
) -> None:
    count, lists = drawn
    brokers = list(range(1, count + 1 + grows))
    current = topic(*lists)
    planned = plan(current, brokers)
    loads = Counter(dict.fromkeys(brokers, 0))
    for where, ids in planned.items():
        assert len(ids) == len(set(ids)) == len(current[where])
        loads.update(ids)
    assert max(loads.values()) - min(loads.values()) <= 1, (current, planned)
    assert plan(planned, brokers) == planned
