"""The internal topics of a topology: their numbers of partitions, and which of them are missing.

A repartition topic without a fixed number of partitions has as many as the largest source of the
subtopology that writes it, or as the topics with which it is co-partitioned. A changelog topic has
a partition for each task of its subtopology. `configure` is pure: it compares a topology with the
topics of one metadata image. The answers are those of Kafka 4.3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.group.streams.topology import (
    InternalTopic,
    Subtopology,
    Topology,
    invalid,
)
from shoal.coordinator.java_order import hash_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.coordinator.group.topics import Catalog

#: The most topics that a message names.
NAMED_MAX = 3


class StatusCode(IntEnum):
    """The codes of the `Status` of a heartbeat response."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(NamedTuple):
    """Why a group has no assignment, or what its members have to do."""

    code: StatusCode
    detail: str

    def on_wire(self) -> dict[str, Any]:
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
    missing: Mapping[str, InternalTopic] = field(default_factory=dict)
    problem: Status | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None


class _Unusable(Exception):
    """The topics that exist do not fit the topology."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configure(topology: Topology, catalog: Catalog) -> ConfiguredTopology:
    """Compare a topology with the topics that exist.

    Raises STREAMS_INVALID_TOPOLOGY if no topics could fit it.
    """
    try:
        _check_source_topics(topology, catalog)
        counts = _PartitionCounts(topology, catalog)
        counts.decide()
        configured = {
            s: _configured(topology.subtopologies[s], counts)
            for s in sorted(topology.subtopologies)
        }
        missing = _missing(configured.values(), catalog)
    except _Unusable as unusable:
        return ConfiguredTopology(topology.epoch, problem=unusable.status)
    problem = None
    if missing:
        names = (t.name for one in configured.values() for t in one.subtopology.internal_topics)
        named = _named([name for name in hash_order(names) if name in missing])
        problem = Status(
            StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {named}"
        )
    return ConfiguredTopology(topology.epoch, configured, missing, problem)


def _check_source_topics(topology: Topology, catalog: Catalog) -> None:
    missing = {
        name
        for one in topology.subtopologies.values()
        for name in one.source_topics
        if catalog.id_of(name) is None
    }
    if missing:
        raise _Unusable(
            StatusCode.MISSING_SOURCE_TOPICS,
            f"Source topics {_named(sorted(missing))} are missing.",
        )


def _configured(one: Subtopology, counts: _PartitionCounts) -> ConfiguredSubtopology:
    def decided(topic: InternalTopic) -> InternalTopic:
        return topic._replace(partitions=topic.partitions or counts.decided[topic.name])

    return ConfiguredSubtopology(
        one._replace(
            state_changelog_topics=tuple(map(decided, one.state_changelog_topics)),
            repartition_source_topics=tuple(map(decided, one.repartition_source_topics)),
        ),
        max(map(counts.of, one.sources)),
    )


def _missing(
    configured: Iterable[ConfiguredSubtopology], catalog: Catalog
) -> dict[str, InternalTopic]:
    wanted = {topic.name: topic for one in configured for topic in one.subtopology.internal_topics}
    missing = {}
    for name in sorted(wanted):
        found = catalog.partition_count(name)
        if found is None:
            missing[name] = wanted[name]
        elif found != wanted[name].partitions:
            raise _incorrect(
                f"Existing topic {name} has different number of partitions: expected "
                f"{wanted[name].partitions}, found {found}"
            )
    return missing


class _PartitionCounts:
    """The numbers of partitions of the topics of a topology. Those of topics that exist win over
    decided ones."""

    def __init__(self, topology: Topology, catalog: Catalog) -> None:
        self._topology, self._catalog = topology, catalog
        repartition = [
            topic for one in topology.in_hash_order for topic in one.repartition_source_topics
        ]
        #: Repartition topics whose number of partitions the application sets, and the others.
        self._fixed = {topic.name for topic in repartition if topic.partitions}
        self._flexible = {topic.name for topic in repartition if not topic.partitions}
        self.decided: dict[str, int] = {t.name: t.partitions for t in repartition if t.partitions}

    def of(self, name: str) -> int:
        found = self._catalog.partition_count(name)
        return self.decided[name] if found is None else found

    def decide(self) -> None:
        """Decide the numbers of all internal topics."""
        self._decide_repartition_topics()
        for one in self._topology.in_hash_order:
            for names in one.copartitioned():
                self._copartition(names)
        for one in self._topology.in_hash_order:
            if not one.sources:
                raise invalid(f"No source topics found for subtopology {one.subtopology_id}")
            tasks = max(map(self.of, one.sources))
            self.decided |= {topic.name: tasks for topic in one.state_changelog_topics}

    def _decide_repartition_topics(self) -> None:
        counts = dict(self.decided)
        pending = True
        while pending:
            pending = progress = False
            for one in self._topology.in_hash_order:
                for name in one.repartition_sink_topics:
                    if name in counts:
                        continue
                    count = self._largest_source(one, counts)
                    if count is None:
                        pending = True
                    else:
                        counts[name] = count
                        progress = True
            if pending and not progress:
                raise invalid(
                    "Failed to compute number of partitions for all repartition topics. There may "
                    "be loops in the topology that cannot be resolved."
                )
        if not self._flexible <= counts.keys():
            raise invalid(
                "Failed to compute number of partitions for all repartition topics, because a "
                "repartition source topic is never used as a sink topic."
            )
        self.decided = counts

    def _largest_source(self, one: Subtopology, counts: Mapping[str, int]) -> int | None:
        """The largest known number of partitions of the subtopology's sources."""
        known = [counts.get(topic.name) for topic in one.repartition_source_topics]
        known += map(self._catalog.partition_count, one.source_topics)
        return max((count for count in known if count is not None), default=None)

    def _copartition(self, names: frozenset[str]) -> None:
        """Give the repartition topics of a co-partition group the same number of partitions."""
        if not names:
            return
        repartition = {n: self.of(n) for n in sorted(names & (self._fixed | self._flexible))}
        others = {n: self.of(n) for n in sorted(names - repartition.keys())}
        if others:
            count = _same(others, others)
        elif self._fixed:
            # As in Kafka, all fixed topics of the topology are compared, also of other groups.
            count = _same({n: self.of(n) for n in sorted(self._fixed)}, repartition)
        else:
            count = max(repartition.values())
        for name, found in repartition.items():
            if name in self._fixed and found != count:
                raise _incorrect(
                    f"Number of partitions [{found}] of repartition topic [{name}] doesn't match "
                    f"number of partitions [{count}] of the source topic."
                )
            self.decided[name] = count


def _same(counts: Mapping[str, int], named: Mapping[str, int]) -> int:
    """The number that all `counts` equal. A refusal names the topics in `named`."""
    if len(set(counts.values())) > 1:
        topics = ", ".join(f"{name}={count}" for name, count in sorted(named.items()))
        raise _incorrect(
            f"Following topics do not have the same number of partitions: [{{{topics}}}]"
        )
    return next(iter(counts.values()))


def _incorrect(detail: str) -> _Unusable:
    return _Unusable(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def _named(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - NAMED_MAX
    text = ", ".join(names[:NAMED_MAX])
    return f"{text} and {more} additional topics" if more > 0 else text
