"""Creation of the internal topics of streams groups, in the background (KIP-1071).

The heartbeat that finds topics missing does not wait for them: a later one finds them. A topic that
could not be created is not requested again while its error is remembered, and members see the error
in their responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.metadata.topics import NewTopic
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Mapping

    from shoal.coordinator.group.streams.topology import StreamsInternalTopic
    from shoal.protocol.responses import topics as responses
    from shoal.server.cluster.topic_creation import TopicCreation
    from shoal.server.node import Node

#: The most errors that are remembered.
ERRORS_MAX = 1_000


class _CreationFailure(NamedTuple):
    message: str
    until_ms: int


class StreamsTopics:
    """Owns the names of the topics that are being created, and the errors of failed creations."""

    def __init__(self, node: Node, creation: TopicCreation) -> None:
        self._node = node
        self._creation = creation
        self._creating: set[str] = set()
        self._failures: dict[str, _CreationFailure] = {}

    def create(self, topics: Mapping[str, StreamsInternalTopic], error_ttl_ms: int) -> None:
        """Create topics that are not being created yet, and have not failed recently. Errors are
        remembered for `error_ttl_ms`."""
        failed = self.get_errors(topics)
        names = [n for n in sorted(topics) if n not in self._creating and n not in failed]
        if not names:
            return
        self._creating.update(names)
        created = self._creation.create_topics([_make_new_topic(topics[name]) for name in names])
        created.add_done_callback(lambda done: self._on_created(names, done, error_ttl_ms))

    def get_errors(self, names: Collection[str]) -> dict[str, str]:
        """The remembered errors of these topics, by name."""
        now_ms = self._node.clock.now_ms()
        self._failures = {
            n: failure for n, failure in self._failures.items() if failure.until_ms > now_ms
        }
        return {n: self._failures[n].message for n in sorted(names) if n in self._failures}

    def _on_created(
        self,
        names: list[str],
        future: asyncio.Future[list[responses.CreateTopicsCreatableTopicResult]],
        error_ttl_ms: int,
    ) -> None:
        self._creating.difference_update(names)
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            failed = {
                result["name"]: _get_message(result)
                for result in future.result()
                if _has_failed(result)
            }
        elif isinstance(error, ApiError):
            failed = dict.fromkeys(names, error.message or error.code.name)
        else:
            raise error
        until_ms = self._node.clock.now_ms() + error_ttl_ms
        for name, message in failed.items():
            self._node.log.warning(
                "an internal topic of a streams group was not created", topic=name, error=message
            )
            if len(self._failures) < ERRORS_MAX:
                self._failures[name] = _CreationFailure(message, until_ms)


def _has_failed(result: responses.CreateTopicsCreatableTopicResult) -> bool:
    return result["error_code"] not in (ErrorCode.none, ErrorCode.topic_already_exists)


def _get_message(result: responses.CreateTopicsCreatableTopicResult) -> str:
    return result["error_message"] or ErrorCode(result["error_code"]).name


def _make_new_topic(topic: StreamsInternalTopic) -> NewTopic:
    return NewTopic(
        topic.name, topic.partitions, topic.replication_factor or -1, configs=list(topic.configs)
    )
