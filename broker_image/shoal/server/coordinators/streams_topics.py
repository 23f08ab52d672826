"""Creation of the internal topics of streams groups, in the background (KIP-1071).

The heartbeat that finds topics missing does not wait for them: a later one finds them. A topic that
could not be created is not requested again while its error is remembered, and members see the error
in their responses.

A topology may have thousands of topics. They are created some at a time, so that others are served
in between, up to the first ones that fail. A later heartbeat asks for the rest again.
"""

from __future__ import annotations

from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple

from shoal.metadata.topics import NewTopic
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Mapping, Sequence

    from shoal.coordinator.group.streams.topology import StreamsInternalTopic
    from shoal.protocol.responses import topics as responses
    from shoal.server.cluster.topic_creation import TopicCreation
    from shoal.server.node import Node

    _Creation = asyncio.Future[list[responses.CreateTopicsCreatableTopicResult]]

#: The most errors that are remembered.
ERRORS_MAX = 1_000
#: The most topics and partitions that are created at once, in about 30 ms.
CHUNK_TOPICS_MAX, CHUNK_PARTITIONS_MAX = 100, 2_000


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
        if names:
            self._creating.update(names)
            self._create([topics[name] for name in names], error_ttl_ms)

    def _create(self, topics: Sequence[StreamsInternalTopic], error_ttl_ms: int) -> None:
        """Create the first ones of some topics, and then the others, until some fail."""
        count = _count_chunk(topics)
        created = self._creation.create_topics([_make_new_topic(t) for t in topics[:count]])
        created.add_done_callback(
            lambda done: self._on_created(topics[:count], topics[count:], done, error_ttl_ms)
        )

    def get_errors(self, names: Collection[str]) -> dict[str, str]:
        """The remembered errors of these topics, by name."""
        now_ms = self._node.clock.now_ms()
        self._failures = {
            n: failure for n, failure in self._failures.items() if failure.until_ms > now_ms
        }
        return {n: self._failures[n].message for n in sorted(names) if n in self._failures}

    def _on_created(
        self,
        topics: Sequence[StreamsInternalTopic],
        others: Sequence[StreamsInternalTopic],
        future: _Creation,
        error_ttl_ms: int,
    ) -> None:
        self._creating.difference_update(topic.name for topic in (*topics, *others))
        if future.cancelled():
            return
        failed = _find_failed([topic.name for topic in topics], future)
        self._note_failures(failed, self._node.clock.now_ms() + error_ttl_ms)
        if others and not failed:
            self._creating.update(topic.name for topic in others)
            self._create(others, error_ttl_ms)

    def _note_failures(self, failed: Mapping[str, str], until_ms: int) -> None:
        for name, message in failed.items():
            if len(self._failures) < ERRORS_MAX:
                self._failures[name] = _CreationFailure(message, until_ms)
        for name, message in islice(failed.items(), 1):
            self._node.log.warning(
                "internal topics of a streams group were not created",
                topics=len(failed),
                first=name,
                error=message,
            )


def _count_chunk(topics: Sequence[StreamsInternalTopic]) -> int:
    """Return how many of the first topics are created at once, at least one."""
    partitions = accumulate(topic.partitions for topic in topics[:CHUNK_TOPICS_MAX])
    return max(1, sum(1 for total in partitions if total <= CHUNK_PARTITIONS_MAX))


def _find_failed(names: Sequence[str], future: _Creation) -> dict[str, str]:
    """Return why topics were not created, by name. Raises what is no `ApiError`."""
    error = future.exception()
    if error is None:
        return {
            result["name"]: _get_message(result)
            for result in future.result()
            if _has_failed(result)
        }
    if isinstance(error, ApiError):
        return dict.fromkeys(names, error.message or error.code.name)
    raise error


def _has_failed(result: responses.CreateTopicsCreatableTopicResult) -> bool:
    return result["error_code"] not in (ErrorCode.none, ErrorCode.topic_already_exists)


def _get_message(result: responses.CreateTopicsCreatableTopicResult) -> str:
    return result["error_message"] or ErrorCode(result["error_code"]).name


def _make_new_topic(topic: StreamsInternalTopic) -> NewTopic:
    return NewTopic(
        topic.name, topic.partitions, topic.replication_factor or -1, configs=list(topic.configs)
    )
