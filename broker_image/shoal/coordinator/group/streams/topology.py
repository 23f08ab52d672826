"""The topology of a Kafka Streams application: its subtopologies and their topics (KIP-1071).

The first member of a group sets its topology. A subtopology reads source topics and repartition
topics, writes repartition topics, and keeps its state in changelog topics. Topics of one
co-partition group must have equal numbers of partitions. `internal_topics` decides the numbers of
partitions of repartition and changelog topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.java_order import sort_by_hash
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shoal.protocol.responses import groups as responses


#: Subtopologies, topics, configs of topics and entries of co-partition groups of a topology. Each
#: heartbeat of a group may compare all of them with the cluster's topics, which takes some 40 ms
#: for as many. A changelog topic with its usual configs counts as five.
ENTRIES_MAX = 4_000


class StreamsInternalTopic(NamedTuple):
    """A repartition or changelog topic.

    `partitions` is 0 until the number is decided, `replication_factor` is 0 for the default of the
    cluster.
    """

    name: str
    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> StreamsInternalTopic:
        configs = tuple((c["key"], c["value"]) for c in value["topic_configs"])
        return cls(value["name"], value["partitions"], value["replication_factor"], configs)

    def to_wire(self) -> responses.StreamsGroupDescribeTopicInfo:
        """The `TopicInfo` of a record or of StreamsGroupDescribe."""
        return {
            "name": self.name,
            "partitions": self.partitions,
            "replication_factor": self.replication_factor,
            "topic_configs": [{"key": k, "value": v} for k, v in self.configs],
        }


class CopartitionGroup(NamedTuple):
    """Indexes into the topics of the subtopology."""

    source_topics: tuple[int, ...]
    source_topic_regex: tuple[int, ...]
    repartition_source_topics: tuple[int, ...]


class Subtopology(NamedTuple):
    """The topics of one subtopology. `source_topic_regex` is always empty: Kafka 4.4.0 refuses
    regular expressions."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    source_topic_regex: tuple[str, ...]
    state_changelog_topics: tuple[StreamsInternalTopic, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: tuple[StreamsInternalTopic, ...]
    copartition_groups: tuple[CopartitionGroup, ...]

    @property
    def is_stateful(self) -> bool:
        return bool(self.state_changelog_topics)

    @property
    def sources(self) -> list[str]:
        """The topics that tasks read, each once."""
        repartition = (topic.name for topic in self.repartition_source_topics)
        return list(dict.fromkeys([*self.source_topics, *repartition]))

    @property
    def internal_topics(self) -> Iterator[StreamsInternalTopic]:
        yield from self.repartition_source_topics
        yield from self.state_changelog_topics

    def iterate_copartitions(self) -> Iterator[frozenset[str]]:
        """The names of the topics in each co-partition group."""
        for group in self.copartition_groups:
            sources = (self.source_topics[n] for n in group.source_topics)
            internal = (self.repartition_source_topics[n] for n in group.repartition_source_topics)
            yield frozenset([*sources, *(topic.name for topic in internal)])

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> Subtopology:
        return cls(
            value["subtopology_id"],
            tuple(value["source_topics"]),
            tuple(value["source_topic_regex"]),
            tuple(map(StreamsInternalTopic.from_wire, value["state_changelog_topics"])),
            tuple(value["repartition_sink_topics"]),
            tuple(map(StreamsInternalTopic.from_wire, value["repartition_source_topics"])),
            tuple(
                CopartitionGroup(
                    tuple(group["source_topics"]),
                    tuple(group["source_topic_regex"]),
                    tuple(group["repartition_source_topics"]),
                )
                for group in value["copartition_groups"]
            ),
        )

    def to_wire(self) -> dict[str, Any]:
        """The `Subtopology` of a record."""
        return {
            **self._asdict(),
            "state_changelog_topics": [topic.to_wire() for topic in self.state_changelog_topics],
            "repartition_source_topics": [t.to_wire() for t in self.repartition_source_topics],
            "copartition_groups": [group._asdict() for group in self.copartition_groups],
        }

    def describe(self) -> responses.StreamsGroupDescribeSubtopology:
        """The `Subtopology` of StreamsGroupDescribe. Topics are in order of name."""
        return {
            "subtopology_id": self.subtopology_id,
            "source_topics": sorted(self.source_topics),
            "repartition_sink_topics": sorted(self.repartition_sink_topics),
            "state_changelog_topics": [t.to_wire() for t in sorted(self.state_changelog_topics)],
            "repartition_source_topics": [
                t.to_wire() for t in sorted(self.repartition_source_topics)
            ],
        }


@dataclass(frozen=True)
class Topology:
    """The subtopologies of an application, by id, and the epoch that it gave this topology."""

    epoch: int
    subtopologies: Mapping[str, Subtopology]

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> Topology:
        """Read the topology of a record or a heartbeat."""
        subtopologies = map(Subtopology.from_wire, value["subtopologies"])
        return cls(
            value["epoch"],
            {subtopology.subtopology_id: subtopology for subtopology in subtopologies},
        )

    def to_wire(self) -> dict[str, Any]:
        """The value of the record."""
        return {
            "epoch": self.epoch,
            "subtopologies": [subtopology.to_wire() for subtopology in self.subtopologies.values()],
        }

    @cached_property
    def subtopology_of(self) -> Mapping[str, str]:
        """The subtopology that reads a topic, by the topic's name."""
        return {
            name: s for s, subtopology in self.subtopologies.items() for name in subtopology.sources
        }

    @cached_property
    def required_topics(self) -> frozenset[str]:
        """The names of all topics that tasks read, and of the changelog topics."""
        changelogs = (
            topic.name
            for subtopology in self.subtopologies.values()
            for topic in subtopology.state_changelog_topics
        )
        return frozenset([*self.subtopology_of, *changelogs])

    @cached_property
    def in_hash_order(self) -> list[Subtopology]:
        """The subtopologies in the order in which Kafka visits them. The number of partitions of a
        repartition topic may depend on it."""
        return [self.subtopologies[s] for s in sort_by_hash(self.subtopologies)]


def list_topic_names(subtopologies: Iterable[Any]) -> list[str]:
    """The names of all topics in the subtopologies of a heartbeat request, each once."""
    return list(
        dict.fromkeys(
            name
            for subtopology in subtopologies
            for name in (
                *subtopology.source_topics,
                *subtopology.repartition_sink_topics,
                *(topic.name for topic in subtopology.repartition_source_topics),
                *(topic.name for topic in subtopology.state_changelog_topics),
            )
        )
    )


def check_size(subtopologies: Iterable[Any]) -> None:
    """Raises STREAMS_INVALID_TOPOLOGY if the subtopologies of a heartbeat request are too many or
    too large."""
    entries = 0
    for subtopology in subtopologies:
        internal = (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
        entries += 1 + len(subtopology.source_topics) + len(subtopology.repartition_sink_topics)
        entries += len(internal) + sum(len(topic.topic_configs) for topic in internal)
        for group in subtopology.copartition_groups:
            entries += 1 + len(group.source_topics) + len(group.repartition_source_topics)
    if entries > ENTRIES_MAX:
        raise make_topology_error(
            f"The topology has {entries} subtopologies, topics, configs and entries of "
            f"co-partition groups, and may have {ENTRIES_MAX}. Divide the application."
        )


def check(value: Mapping[str, Any]) -> None:
    """Raises STREAMS_INVALID_TOPOLOGY for a topology of a heartbeat that contradicts itself."""
    seen_ids = set()
    for subtopology in value["subtopologies"]:
        for topic in subtopology["state_changelog_topics"]:
            if topic["partitions"] != 0:
                raise make_topology_error(
                    f"Changelog topic {topic['name']} must have an undefined partition count, but "
                    f"it is set to {topic['partitions']}."
                )
        subtopology_id = subtopology["subtopology_id"]
        if subtopology_id in seen_ids:
            raise make_topology_error(f"Subtopology {subtopology_id} occurs twice in the topology.")
        seen_ids.add(subtopology_id)
        for name in ("source_topics", "repartition_source_topics"):
            indexes = (n for group in subtopology["copartition_groups"] for n in group[name])
            if not all(0 <= n < len(subtopology[name]) for n in indexes):
                raise make_topology_error(
                    f"A co-partition group of subtopology {subtopology_id} has an index outside "
                    f"of its {name.replace('_', ' ')}."
                )


def make_topology_error(message: str) -> ApiError:
    return ApiError(ErrorCode.streams_invalid_topology, message)
