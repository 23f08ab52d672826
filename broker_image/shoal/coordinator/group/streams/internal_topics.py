"""The internal topics of a topology: their numbers of partitions, and which of them are missing.

A repartition topic without a fixed number of partitions has as many as the largest source of the
subtopology that writes it, or as the topics with which it is co-partitioned. A changelog topic has
a partition for each task of its subtopology. `configure` is pure: it compares a topology with the
topics of one metadata image. The answers are those of Kafka 4.4.0.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.group.streams.topology import (
    StreamsInternalTopic,
    Subtopology,
    Topology,
    make_topology_error,
)
from shoal.coordinator.java_order import sort_by_hash

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shoal.coordinator.group.topics import TopicCatalog
    from shoal.protocol.responses import groups as responses

#: The most topics that a message names.
NAMED_MAX = 3
#: Tasks of a topology. Each subtopology may read the same topic of many partitions, so a request of
#: some kilobytes could ask for millions of tasks, each of which takes some 200 bytes while they are
#: assigned. With this many, the step that gives all of them to one member takes about 80 ms.
TASKS_MAX = 50_000


class StatusCode(IntEnum):
    """The codes of the `StreamsGroupStatus` of a heartbeat response."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class StreamsGroupStatus(NamedTuple):
    """Why a group has no assignment, or what its members have to do."""

    code: StatusCode
    detail: str

    def to_wire(self) -> responses.StreamsGroupHeartbeatStatus:
        return {"status_code": self.code, "status_detail": self.detail}


class ConfiguredSubtopology(NamedTuple):
    """A subtopology whose internal topics have numbers of partitions."""

    subtopology: Subtopology
    tasks: int


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """A topology that was compared with the topics that exist.

    With a `problem` the group is not ready, and has no tasks. `missing` has the internal topics
    that have to be created, by name. `subtopologies` is empty if a source topic is missing or a
    number of partitions is wrong.
    """

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] = field(default_factory=dict)
    missing: Mapping[str, StreamsInternalTopic] = field(default_factory=dict)
    problem: StreamsGroupStatus | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None


class _UnusableTopicsError(Exception):
    """The topics that exist do not fit the topology."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = StreamsGroupStatus(code, detail)


def configure(topology: Topology, catalog: TopicCatalog) -> ConfiguredTopology:
    """Compare a topology with the topics that exist.

    Raises STREAMS_INVALID_TOPOLOGY if no topics could fit it.
    """
    try:
        _check_source_topics(topology, catalog)
        counts = _PartitionCounts(topology, catalog)
        counts.decide()
        configured = {
            s: _configure_subtopology(topology.subtopologies[s], counts)
            for s in sorted(topology.subtopologies)
        }
        _check_tasks(configured.values())
        missing = _find_missing(configured.values(), catalog)
    except _UnusableTopicsError as unusable:
        return ConfiguredTopology(topology.epoch, problem=unusable.status)
    problem = None
    if missing:
        names = (
            t.name
            for subtopology in configured.values()
            for t in subtopology.subtopology.internal_topics
        )
        topic_list = _format_names([name for name in sort_by_hash(names) if name in missing])
        problem = StreamsGroupStatus(
            StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {topic_list}"
        )
    return ConfiguredTopology(topology.epoch, configured, missing, problem)


def _check_source_topics(topology: Topology, catalog: TopicCatalog) -> None:
    missing = {
        name
        for subtopology in topology.subtopologies.values()
        for name in subtopology.source_topics
        if catalog.get_id(name) is None
    }
    if missing:
        raise _UnusableTopicsError(
            StatusCode.MISSING_SOURCE_TOPICS,
            f"Source topics {_format_names(sorted(missing))} are missing.",
        )


def _configure_subtopology(
    subtopology: Subtopology, counts: _PartitionCounts
) -> ConfiguredSubtopology:
    def set_count(topic: StreamsInternalTopic) -> StreamsInternalTopic:
        return topic._replace(partitions=topic.partitions or counts.decided[topic.name])

    return ConfiguredSubtopology(
        subtopology._replace(
            state_changelog_topics=tuple(map(set_count, subtopology.state_changelog_topics)),
            repartition_source_topics=tuple(map(set_count, subtopology.repartition_source_topics)),
        ),
        max(map(counts.get_count, subtopology.sources)),
    )


def _check_tasks(configured: Iterable[ConfiguredSubtopology]) -> None:
    tasks = sum(subtopology.tasks for subtopology in configured)
    if tasks > TASKS_MAX:
        raise _make_incorrect_error(
            f"The topology has {tasks} tasks, and a group may have {TASKS_MAX}. Use source topics "
            "of fewer partitions, or divide the application."
        )


def _find_missing(
    configured: Iterable[ConfiguredSubtopology], catalog: TopicCatalog
) -> dict[str, StreamsInternalTopic]:
    topics = {
        topic.name: topic
        for subtopology in configured
        for topic in subtopology.subtopology.internal_topics
    }
    missing = {}
    for name in sorted(topics):
        count = catalog.count_partitions(name)
        if count is None:
            missing[name] = topics[name]
        elif count != topics[name].partitions:
            raise _make_incorrect_error(
                f"Existing topic {name} has different number of partitions: expected "
                f"{topics[name].partitions}, found {count}"
            )
    return missing


class _PartitionCounts:
    """The numbers of partitions of the topics of a topology. Those of topics that exist win over
    decided ones."""

    def __init__(self, topology: Topology, catalog: TopicCatalog) -> None:
        self._topology, self._catalog = topology, catalog
        repartition = [
            topic
            for subtopology in topology.in_hash_order
            for topic in subtopology.repartition_source_topics
        ]
        #: Repartition topics whose number of partitions the application sets, and the others.
        self._fixed = {topic.name for topic in repartition if topic.partitions}
        self._flexible = {topic.name for topic in repartition if not topic.partitions}
        self._repartition = self._fixed | self._flexible
        self.decided: dict[str, int] = {t.name: t.partitions for t in repartition if t.partitions}

    def get_count(self, name: str) -> int:
        count = self._catalog.count_partitions(name)
        return self.decided[name] if count is None else count

    @cached_property
    def _fixed_counts(self) -> set[int]:
        """The numbers of all fixed topics. No co-partition group changes one of them."""
        return {self.get_count(name) for name in self._fixed}

    def decide(self) -> None:
        """Decide the numbers of all internal topics."""
        self._decide_repartition_topics()
        for subtopology in self._topology.in_hash_order:
            for names in subtopology.iterate_copartitions():
                self._copartition(names)
        for subtopology in self._topology.in_hash_order:
            if not subtopology.sources:
                raise make_topology_error(
                    f"No source topics found for subtopology {subtopology.subtopology_id}"
                )
            tasks = max(map(self.get_count, subtopology.sources))
            self.decided |= {topic.name: tasks for topic in subtopology.state_changelog_topics}

    def _decide_repartition_topics(self) -> None:
        """Decide as Kafka does: in rounds through the subtopologies in the order of their hashes.
        One decides the numbers of its sinks when it comes to its turn with a source whose number is
        known. A subtopology is visited when that is so, instead of in each round."""
        counts = dict(self.decided)
        order = self._topology.in_hash_order
        readers: dict[str, list[int]] = {}
        for index, subtopology in enumerate(order):
            for topic in subtopology.repartition_source_topics:
                readers.setdefault(topic.name, []).append(index)
        begun = [
            self._find_largest_source(subtopology, counts) is not None for subtopology in order
        ]
        #: Pairs of a round and the index of a subtopology.
        visits = [(0, index) for index, has_count in enumerate(begun) if has_count]
        while visits:
            turn, index = heapq.heappop(visits)
            count = self._find_largest_source(order[index], counts)
            assert count is not None
            for name in order[index].repartition_sink_topics:
                if name in counts:
                    continue
                counts[name] = count
                for reader in readers.get(name, ()):
                    if not begun[reader]:
                        begun[reader] = True
                        heapq.heappush(visits, (turn + (reader <= index), reader))
        if any(
            name not in counts
            for subtopology in order
            for name in subtopology.repartition_sink_topics
        ):
            raise make_topology_error(
                "Failed to compute number of partitions for all repartition topics. There may "
                "be loops in the topology that cannot be resolved."
            )
        if not self._flexible <= counts.keys():
            raise make_topology_error(
                "Failed to compute number of partitions for all repartition topics, because a "
                "repartition source topic is never used as a sink topic."
            )
        self.decided = counts

    def _find_largest_source(
        self, subtopology: Subtopology, counts: Mapping[str, int]
    ) -> int | None:
        """The largest known number of partitions of the subtopology's sources."""
        source_counts = [counts.get(topic.name) for topic in subtopology.repartition_source_topics]
        source_counts += map(self._catalog.count_partitions, subtopology.source_topics)
        return max((count for count in source_counts if count is not None), default=None)

    def _copartition(self, names: frozenset[str]) -> None:
        """Give the repartition topics of a co-partition group the same number of partitions."""
        if not names:
            return
        repartition = {n: self.get_count(n) for n in sorted(names & self._repartition)}
        other_counts = {n: self.get_count(n) for n in sorted(names - repartition.keys())}
        if other_counts:
            count = _get_common_count(set(other_counts.values()), other_counts)
        elif self._fixed:
            # As in Kafka, all fixed topics of the topology are compared, also of other groups.
            count = _get_common_count(self._fixed_counts, repartition)
        else:
            count = max(repartition.values())
        for name, own_count in repartition.items():
            if name in self._fixed and own_count != count:
                raise _make_incorrect_error(
                    f"Number of partitions [{own_count}] of repartition topic [{name}] doesn't "
                    f"match number of partitions [{count}] of the source topic."
                )
            self.decided[name] = count


def _get_common_count(counts: Collection[int], named_counts: Mapping[str, int]) -> int:
    """The number in `counts` if it is the only one. A refusal names the topics in
    `named_counts`."""
    if len(counts) > 1:
        topics = ", ".join(f"{name}={count}" for name, count in sorted(named_counts.items()))
        raise _make_incorrect_error(
            f"Following topics do not have the same number of partitions: [{{{topics}}}]"
        )
    return next(iter(counts))


def _make_incorrect_error(detail: str) -> _UnusableTopicsError:
    return _UnusableTopicsError(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def _format_names(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - NAMED_MAX
    text = ", ".join(names[:NAMED_MAX])
    return f"{text} and {more} additional topics" if more > 0 else text
