"""StreamsGroupDescribe: streams groups with their topology, members and tasks (KIP-1071)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.server.handlers.consumer_group_describe import described

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request

#: The message for a group with topics that the client may not describe.
HIDDEN = "The described group uses topics that the client is not authorized to describe."


def handle(broker: Broker, request: Request) -> Answer:
    return described(broker, request, "streams", topics=_topics, hidden=HIDDEN)


def _topics(result: Mapping[str, Any]) -> set[str]:
    """The names of the topics in a described topology."""
    return {
        name
        for one in (result.get("topology") or {"subtopologies": ()})["subtopologies"]
        for name in (
            *one["source_topics"],
            *one["repartition_sink_topics"],
            *(topic["name"] for topic in one["repartition_source_topics"]),
            *(topic["name"] for topic in one["state_changelog_topics"]),
        )
    }
