"""Which brokers lag, and what a PodDisruptionBudget over brokers that do not lag guarantees."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from shoal.metadata import in_sync
from shoal.metadata.image import (
    BrokerImage,
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
    TopicImage,
)

Row = tuple[tuple[int, ...], tuple[int, ...], int]


def image_of(brokers: int, rows: list[Row], fenced: tuple[int, ...] = ()) -> MetadataImage:
    """Return a cluster with a topic for each row: replicas, ISR and min ISR."""
    topics, configs = {}, {}
    for number, (replicas, isr, least) in enumerate(rows):
        name = f"t{number}"
        partition = PartitionImage(replicas, isr, isr[0], 0, 0)
        topics[name] = TopicImage(name, UUID(int=number + 1), (partition,))
        configs[ConfigResourceType.TOPIC, name] = {"min.insync.replicas": str(least)}
    every = {
        id: BrokerImage(id, UUID(int=id), 1, (), {}, fenced=id in fenced) for id in range(brokers)
    }
    return MetadataImage(topics=topics, brokers=every, configs=configs)


def ready(image: MetadataImage) -> set[int]:
    lags = in_sync.find_lagging_brokers(image)
    return {id for id in image.active if in_sync.find_awaiting_partition(image, lags, id) is None}


ALL = (0, 1, 2)


def test_a_broker_lags_if_a_partition_needs_its_replica() -> None:
    assert in_sync.find_lagging_brokers(image_of(3, [(ALL, ALL, 2)])) == {}
    assert in_sync.find_lagging_brokers(image_of(3, [(ALL, ALL, 2), (ALL, (0, 2), 2)])) == {
        1: "t1-0"
    }
    assert in_sync.find_lagging_brokers(image_of(3, [(ALL, (2,), 2)])) == {0: "t0-0", 1: "t0-0"}


def test_a_partition_with_in_sync_replicas_to_spare_needs_none() -> None:
    assert in_sync.find_lagging_brokers(image_of(3, [(ALL, (0, 1), 1)])) == {}
    # Brokers 0 to 2 are in sync, and 3 is being added.
    assert in_sync.find_lagging_brokers(image_of(4, [((0, 1, 2, 3), ALL, 2)])) == {}


def test_waiting_for_a_partition_that_can_spare_no_replica_would_not_help() -> None:
    assert in_sync.find_lagging_brokers(image_of(3, [((0,), (0,), 1), ((0, 1), (0, 1), 2)])) == {}


def test_one_broker_stays_ready_for_clients() -> None:
    lacking: list[Row] = [(ALL, (1, 2), 2), (ALL, (0, 2), 2), (ALL, (0, 1), 2)]
    assert ready(image_of(3, lacking)) == {0}
    assert ready(image_of(3, lacking, fenced=(0,))) == {1}
    # Of two brokers, the unready one could be evicted.
    assert ready(image_of(2, [((0, 1), (1,), 1), ((0, 1), (0,), 1)])) == set()


@st.composite
def rows(draw: st.DrawFn, brokers: int) -> Row:
    replicas = draw(st.lists(st.sampled_from(range(brokers)), min_size=1, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    return tuple(replicas), tuple(isr), draw(st.integers(1, 3))


@given(st.data(), st.sampled_from([1, 3, 4, 5]))
def test_no_eviction_takes_a_partition_below_its_min_isr(data: st.DataObject, size: int) -> None:
    """The budget is maxUnavailable 1, with Kubernetes' default policy for unready pods."""
    given_rows = data.draw(st.lists(rows(size), max_size=5))
    image = image_of(size, given_rows)
    healthy = ready(image)
    assert healthy or size == 1, "clients find no broker"
    for broker in range(size):
        left = len(healthy) - (broker in healthy)
        if left < size - 1:
            continue
        for replicas, isr, least in given_rows:
            if broker in isr:
                spared = min(least, len(replicas) - 1)
                assert len(isr) - 1 >= spared, (broker, replicas, isr, least)
