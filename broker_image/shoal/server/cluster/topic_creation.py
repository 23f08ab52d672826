"""Topics that this broker creates itself: internal topics, and topics that clients name first."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from shoal.metadata.topics import NewTopic, build_internal_topic, create_topics
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.protocol.responses import topics as responses
    from shoal.server.cluster.controller_channel import ControllerChannel
    from shoal.server.cluster.metadata_log import MetadataLog
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

#: How long this broker waits until its image has the topics that the controller created.
IMAGE_TIMEOUT_S = 5.0


class NamedTopic(Protocol):
    """An internal topic, by its name."""

    @property
    def name(self) -> str: ...


class TopicCreation:
    """Creates topics through the active controller. It owns no state."""

    def __init__(
        self, node: Node, cache: MetadataCache, metadata: MetadataLog, channel: ControllerChannel
    ) -> None:
        self._node = node
        self._cache = cache
        self._metadata = metadata
        self._channel = channel

    async def create_internal_topic(self, topic: NamedTopic) -> None:
        """Create the topic of a coordinator. Raises `ApiError` if it cannot be created."""
        (result,) = await self.create_topics([build_internal_topic(self._cache.image, topic.name)])
        if result["error_code"] not in (ErrorCode.none, ErrorCode.topic_already_exists):
            self._node.log.error("an internal topic was not made", topic=topic.name, **result)
            raise ApiError(ErrorCode.coordinator_not_available, result["error_message"])

    def create_topics(
        self, topics: Sequence[NewTopic]
    ) -> asyncio.Future[list[responses.CreateTopicsCreatableTopicResult]]:
        """Create topics.

        The future is the rows of CreateTopics, once this broker's image has the new topics. It
        fails with `ApiError`.
        """
        if self._metadata.is_active:
            return self._metadata.submit(
                lambda image: create_topics(image, topics, new_id=self._node.make_random_id)
            )
        return asyncio.ensure_future(self._request(topics))

    async def _request(
        self, topics: Sequence[NewTopic]
    ) -> list[responses.CreateTopicsCreatableTopicResult]:
        """Create topics through the controller on another node."""
        fields = {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                    "assignments": (),
                    "configs": [{"name": n, "value": v} for n, v in topic.configs],
                }
                for topic in topics
            ],
            "timeout_ms": self._node.config["request.timeout.ms"],
            "validate_only": False,
        }
        answer = await self._channel.request(ApiKey.CREATE_TOPICS, fields)
        results: list[responses.CreateTopicsCreatableTopicResult] = [
            {
                "name": result.name,
                "error_code": ErrorCode(result.error_code),
                "error_message": result.error_message,
            }
            for result in answer.topics
        ]
        created = {result["name"] for result in results if result["error_code"] is ErrorCode.none}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IMAGE_TIMEOUT_S):
                await self._cache.wait_until(lambda image: created <= image.topics.keys())
        return results
