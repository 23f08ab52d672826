"""Creation of the internal topics of streams groups, in the background (KIP-1071).

The heartbeat that finds topics missing does not wait for them: a later one finds them. A topic that
could not be created is not requested again while its error is remembered, and members see the error
in their responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.topics import NewTopic
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Mapping

    from shoal.coordinator.group.streams.topology import InternalTopic
    from shoal.server.cluster.topic_creation import TopicCreation
    from shoal.server.node import Node

#: The most errors that are remembered.
ERRORS_MAX = 1_000


class _Failure(NamedTuple):
    message: str
    until_ms: int


class StreamsTopics:
    """Owns the names of the topics that are being created, and the errors of failed creations."""

    def __init__(self, node: Node, creation: TopicCreation) -> None:
        self._node = node
        self._creation = creation
        self._creating: set[str] = set()
        self._failures: dict[str, _Failure] = {}

    def create(self, topics: Mapping[str, InternalTopic], error_ttl_ms: int) -> None:
        """Create topics that are not being created yet, and have not failed recently. Errors are
        remembered for `error_ttl_ms`."""
        failed = self.errors(topics)
        wanted = [n for n in sorted(topics) if n not in self._creating and n not in failed]
        if not wanted:
            return
        self._creating.update(wanted)
        created = self._creation.create_topics([_new_topic(topics[name]) for name in wanted])
        created.add_done_callback(lambda done: self._created(wanted, done, error_ttl_ms))

    def errors(self, names: Collection[str]) -> dict[str, str]:
        """The remembered errors of these topics, by name."""
        now_ms = self._node.clock.now_ms()
        self._failures = {n: one for n, one in self._failures.items() if one.until_ms > now_ms}
        return {n: self._failures[n].message for n in sorted(names) if n in self._failures}

    def _created(
        self, names: list[str], done: asyncio.Future[list[dict[str, Any]]], error_ttl_ms: int
    ) -> None:
        self._creating.difference_update(names)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            failed = {
                result["name"]: _message(result) for result in done.result() if _has_failed(result)
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
                self._failures[name] = _Failure(message, until_ms)


def _has_failed(result: Mapping[str, Any]) -> bool:
    return result["error_code"] not in (ErrorCode.none, ErrorCode.topic_already_exists)


def _message(result: Mapping[str, Any]) -> str:
    return result["error_message"] or ErrorCode(result["error_code"]).name


def _new_topic(topic: InternalTopic) -> NewTopic:
    return NewTopic(
        topic.name, topic.partitions, topic.replication_factor or -1, configs=list(topic.configs)
    )
