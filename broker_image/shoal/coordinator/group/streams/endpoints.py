"""The partitions that each instance of an application serves, for interactive queries.

Members with a user endpoint find in their heartbeat responses which instance has the state of a
task. The lists are complete, and are sent when the endpoint epoch of the member is behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.coordinator.group.streams.internal_topics import ConfiguredTopology
    from shoal.coordinator.group.streams.streams_group import Member
    from shoal.coordinator.group.topics import Catalog


def on_wire(
    members: Iterable[Member], configured: ConfiguredTopology, catalog: Catalog
) -> list[dict[str, Any]]:
    """The `PartitionsByUserEndpoint` of a heartbeat response."""
    return [
        {
            "user_endpoint": member.user_endpoint._asdict(),
            "active_partitions": _partitions(member.current.assigned.active, configured, catalog),
            "standby_partitions": _partitions(member.current.assigned.standby, configured, catalog),
        }
        for member in members
        if member.user_endpoint is not None
    ]


def _partitions(
    tasks: Mapping[str, Iterable[int]], configured: ConfiguredTopology, catalog: Catalog
) -> list[dict[str, Any]]:
    """The partitions of source topics that the tasks read."""
    found = []
    for subtopology_id in sorted(tasks):
        one = configured.subtopologies.get(subtopology_id)
        for topic in () if one is None else sorted(one.subtopology.sources):
            count = catalog.partition_count(topic) or 0
            partitions = [p for p in sorted(tasks[subtopology_id]) if p < count]
            if partitions:
                found.append({"topic": topic, "partitions": partitions})
    return found
