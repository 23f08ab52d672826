"""StreamsGroupDescribe: streams groups with their topology, members and tasks (KIP-1071)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.server.handlers.groups.consumer_group_describe import describe_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

#: The message for a group with topics that the client may not describe.
HIDDEN = "The described group uses topics that the client is not authorized to describe."
#: The status of a wanted description of the topology (KIP-1331): no plugin stores any.
NOT_STORED = 1


def handle(
    broker: Broker, request: Request
) -> BodyOrFuture[responses.StreamsGroupDescribeResponse]:
    wanted = getattr(request.body, "include_topology_description", False)
    also = {"topology_description_status": NOT_STORED} if wanted else {}
    return describe_groups(
        broker, request, "streams", topics=_list_topics, hidden=HIDDEN, also=also
    )


def _list_topics(result: Mapping[str, Any]) -> set[str]:
    """The names of the topics in a described topology."""
    return {
        name
        for subtopology in (result.get("topology") or {"subtopologies": ()})["subtopologies"]
        for name in (
            *subtopology["source_topics"],
            *subtopology["repartition_sink_topics"],
            *(topic["name"] for topic in subtopology["repartition_source_topics"]),
            *(topic["name"] for topic in subtopology["state_changelog_topics"]),
        )
    }
