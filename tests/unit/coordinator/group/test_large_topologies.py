"""Topologies of streams groups with many subtopologies or topics: what they cost is bounded, and
their internal topics have the partitions that Kafka's rounds through the subtopologies give."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from shoal.coordinator.group.streams import internal_topics
from shoal.coordinator.group.streams import topology as topologies
from shoal.coordinator.group.streams.internal_topics import (
    StatusCode,
    configure,
)
from shoal.coordinator.group.streams.topology import Subtopology, Topology
from shoal.coordinator.group.topics import TopicCatalog
from shoal.coordinator.java_order import sort_by_hash
from shoal.protocol.errors import ApiError
from support.runs.seeding import SEED
from support.streams.streams_groups import image_of, subtopology, topology

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Topics of the cluster and their numbers of partitions.
SOURCES = {"one": 1, "two": 2, "seven": 7}


class SentTopic(NamedTuple):
    topic_configs: tuple[str, ...]


class SentCopartitionGroup(NamedTuple):
    source_topics: tuple[int, ...]
    repartition_source_topics: tuple[int, ...]


class SentSubtopology(NamedTuple):
    """The arrays of a request."""

    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: tuple[SentTopic, ...]
    state_changelog_topics: tuple[SentTopic, ...]
    copartition_groups: tuple[SentCopartitionGroup, ...]


def make_internal(name: str, partitions: int = 0) -> dict[str, Any]:
    return {"name": name, "partitions": partitions, "replication_factor": 0, "topic_configs": ()}


def draw_topology(rng: random.Random) -> Topology:
    """Draw subtopologies that write and read each other's repartition topics, often in loops."""
    names = [f"r{number}" for number in range(rng.randint(1, 8))]
    fixed = {name: rng.choice((0, 0, 3, 5)) for name in names}
    drawn = []
    for number in rng.sample(range(1000), rng.randint(1, 8)):
        values = subtopology(str(number), rng.sample(list(SOURCES), rng.choice((0, 0, 1, 2))))
        values["repartition_sink_topics"] = rng.sample(names, rng.randint(0, len(names)))
        read = rng.sample(names, rng.randint(0, min(3, len(names))))
        values["repartition_source_topics"] = [make_internal(name, fixed[name]) for name in read]
        if values["source_topics"] or read:  # Others are refused for their own sake.
            drawn.append(values)
    return Topology.from_wire(topology(*drawn))


def decide_by_visits(topology: Topology) -> Mapping[str, int] | str:
    """Return the numbers of the repartition topics that are read, or the message of a refusal."""
    try:
        configured = configure(topology, TopicCatalog(image_of(SOURCES)))
    except ApiError as error:
        return error.message or ""
    return {
        topic.name: topic.partitions
        for of in configured.subtopologies.values()
        for topic in of.subtopology.repartition_source_topics
    }


def decide_in_rounds(topology: Topology) -> Mapping[str, int] | str:
    """Decide the numbers of repartition topics by going through all subtopologies again and again,
    as Kafka's InternalTopicManager does. Return the message if that fails."""
    read = [t for s in topology.in_hash_order for t in s.repartition_source_topics]
    counts = {topic.name: topic.partitions for topic in read if topic.partitions}
    is_pending, has_progress = True, True
    while is_pending and has_progress:
        is_pending = has_progress = False
        for visited in topology.in_hash_order:
            for name in visited.repartition_sink_topics:
                if name not in counts:
                    count = find_largest(visited, counts)
                    is_pending |= count is None
                    if count is not None:
                        counts[name], has_progress = count, True
    if is_pending:
        return "loops in the topology"
    if any(topic.name not in counts for topic in read):
        return "never used as a sink topic"
    return {topic.name: counts[topic.name] for topic in read}


def find_largest(visited: Subtopology, counts: Mapping[str, int]) -> int | None:
    known_counts = [SOURCES[name] for name in visited.source_topics]
    known_counts += [counts[t.name] for t in visited.repartition_source_topics if t.name in counts]
    return max(known_counts, default=None)


def test_visits_decide_as_rounds_do() -> None:
    rng = random.Random(SEED)
    outcomes: set[str] = set()
    for _ in range(1000):
        drawn = draw_topology(rng)
        expected, decided = decide_in_rounds(drawn), decide_by_visits(drawn)
        if isinstance(expected, str):
            assert expected in decided, drawn
            outcomes.add(expected)
        else:
            assert decided == expected, drawn
            outcomes.add("decided")
    assert len(outcomes) == 3, "each outcome is drawn"


def count_lookups(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many times numbers of partitions are looked up to configure a topology."""
    real, lookups = TopicCatalog.count_partitions, 0

    def count_partitions(self: TopicCatalog, name: str) -> int | None:
        nonlocal lookups
        lookups += 1
        return real(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(TopicCatalog, "count_partitions", count_partitions)
        configure(topology, TopicCatalog(image_of(SOURCES)))
    return lookups


def make_chain(count: int) -> Topology:
    """Each subtopology reads what the one before writes, in the order that is worst for rounds."""
    drawn: list[Any] = []
    for at, number in enumerate(reversed(sort_by_hash(map(str, range(count))))):
        values = subtopology(number, ["one"])
        values["repartition_source_topics"] = [make_internal(f"r{at - 1}")] if at else []
        values["source_topics"] = [] if at else ["one"]
        values["repartition_sink_topics"] = [f"r{at}"]
        drawn.append(values)
    return Topology.from_wire(topology(*drawn))


def make_wide(count: int) -> Topology:
    """One subtopology writes as many topics as it reads."""
    names = [f"r{number}" for number in range(count)]
    values = subtopology("0", ["one"] * count)
    values["repartition_source_topics"] = list(map(make_internal, names))
    values["repartition_sink_topics"] = names
    return Topology.from_wire(topology(values))


def make_copartitioned(count: int) -> Topology:
    """As many co-partition groups as topics whose number the application sets."""
    values = subtopology("0", ["one"])
    values["repartition_source_topics"] = [make_internal(f"r{n}", 1) for n in range(count)]
    values["copartition_groups"] = [
        {"source_topics": (), "source_topic_regex": (), "repartition_source_topics": (number,)}
        for number in range(count)
    ]
    return Topology.from_wire(topology(values))


@pytest.mark.parametrize("make", [make_chain, make_wide, make_copartitioned])
def test_lookups_grow_with_the_topology(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the topology needs twice the lookups, not four times."""
    few, many = (count_lookups(make(count), monkeypatch) for count in (50, 100))
    assert many < 2.5 * few


def test_a_group_has_a_limited_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subtopologies may all read the same topic, so a short request would ask for millions."""
    monkeypatch.setattr(internal_topics, "TASKS_MAX", 70)
    catalog = TopicCatalog(image_of(SOURCES))
    for count, is_ready in ((10, True), (11, False)):
        sent = topology(*(subtopology(str(n), ["seven"]) for n in range(count)))
        configured = configure(Topology.from_wire(sent), catalog)
        assert configured.is_ready == is_ready
    assert configured.problem is not None
    assert configured.problem.code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert "has 77 tasks" in configured.problem.detail
    assert not configured.missing, "nothing is created for it"


def test_a_topology_has_a_limited_size() -> None:
    """All its arrays count together."""
    topics = (SentTopic(("c",) * 2),) * 500
    copartitioned = SentCopartitionGroup((0,) * 9, (0,) * 90)
    sent = SentSubtopology(("one",) * 450, ("r",) * 449, topics, topics, (copartitioned,))
    topologies.check_size([sent])
    with pytest.raises(ApiError, match="has 4001 subtopologies"):
        topologies.check_size([sent._replace(source_topics=("one",) * 451)])
