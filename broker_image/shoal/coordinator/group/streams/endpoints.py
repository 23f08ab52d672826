"""The partitions that each instance of an application serves, for interactive queries.

Members with a user endpoint find in their heartbeat responses which instance has the state of a
task. The lists are complete, and are sent when the endpoint epoch of the member is behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.coordinator.group.streams.internal_topics import ConfiguredTopology
    from shoal.coordinator.group.streams.streams_group import StreamsGroupMember
    from shoal.coordinator.group.topics import TopicCatalog
    from shoal.protocol.responses import groups as responses


def to_wire(
    members: Iterable[StreamsGroupMember], configured: ConfiguredTopology, catalog: TopicCatalog
) -> list[responses.StreamsGroupHeartbeatEndpointToPartitions]:
    """The `PartitionsByUserEndpoint` of a heartbeat response."""
    return [
        {
            "user_endpoint": {
                "host": member.user_endpoint.host,
                "port": member.user_endpoint.port,
            },
            "active_partitions": _list_partitions(
                member.current.assigned.active, configured, catalog
            ),
            "standby_partitions": _list_partitions(
                member.current.assigned.standby, configured, catalog
            ),
        }
        for member in members
        if member.user_endpoint is not None
    ]


def _list_partitions(
    tasks: Mapping[str, Iterable[int]], configured: ConfiguredTopology, catalog: TopicCatalog
) -> list[responses.StreamsGroupHeartbeatTopicPartition]:
    """The partitions of source topics that the tasks read."""
    topic_partitions: list[responses.StreamsGroupHeartbeatTopicPartition] = []
    for subtopology_id in sorted(tasks):
        subtopology = configured.subtopologies.get(subtopology_id)
        for topic in () if subtopology is None else sorted(subtopology.subtopology.sources):
            count = catalog.count_partitions(topic) or 0
            partitions = [p for p in sorted(tasks[subtopology_id]) if p < count]
            if partitions:
                topic_partitions.append({"topic": topic, "partitions": partitions})
    return topic_partitions
