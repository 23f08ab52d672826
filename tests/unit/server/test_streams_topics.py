"""The internal topics of a topology are created some at a time, up to those that fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import structlog
from shoal.coordinator.group.streams.topology import StreamsInternalTopic
from shoal.protocol.errors import ErrorCode
from shoal.server.coordinators.streams_topics import (
    CHUNK_PARTITIONS_MAX,
    CHUNK_TOPICS_MAX,
    StreamsTopics,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.metadata.topics import NewTopic
    from shoal.server.cluster.topic_creation import TopicCreation
    from shoal.server.node import Node


class FixedClock:
    def now_ms(self) -> int:
        return 1


class BareNode:
    """What the creation of topics needs of a broker."""

    clock, log = FixedClock(), structlog.get_logger()


class Controller:
    """Notes what it is asked for, and refuses some topics."""

    def __init__(self, refused: Sequence[str] = ()) -> None:
        self.requests: list[list[str]] = []
        self._refused = refused

    def create_topics(self, topics: Sequence[NewTopic]) -> asyncio.Future[list[dict[str, Any]]]:
        self.requests.append([topic.name for topic in topics])
        created = asyncio.get_running_loop().create_future()
        codes = {True: ErrorCode.policy_violation, False: ErrorCode.none}
        created.set_result(
            [
                {"name": t.name, "error_code": codes[t.name in self._refused], "error_message": ""}
                for t in topics
            ]
        )
        return created


async def create(controller: Controller, sizes: Sequence[int]) -> StreamsTopics:
    """Create topics of these numbers of partitions, and wait until the controller is at rest."""
    node, creation = cast("Node", BareNode()), cast("TopicCreation", controller)
    streams_topics = StreamsTopics(node, creation)
    names = [f"t{number:04}" for number in range(len(sizes))]
    topics = {n: StreamsInternalTopic(n, size, 1, ()) for n, size in zip(names, sizes, strict=True)}
    streams_topics.create(topics, 1000)
    streams_topics.create(topics, 1000)  # Nothing is asked for twice.
    before = -1
    while before < len(controller.requests):
        before = len(controller.requests)
        for _ in range(3):
            await asyncio.sleep(0)
    return streams_topics


def test_topics_are_created_some_at_a_time() -> None:
    for sizes, counts in (
        ([1] * (2 * CHUNK_TOPICS_MAX + 1), [CHUNK_TOPICS_MAX] * 2 + [1]),
        ([CHUNK_PARTITIONS_MAX // 2] * 3, [2, 1]),
        ([2 * CHUNK_PARTITIONS_MAX, 1], [1, 1]),
    ):
        controller = Controller()
        asyncio.run(create(controller, sizes))
        assert list(map(len, controller.requests)) == counts


def test_topics_behind_those_that_fail_wait_for_a_heartbeat() -> None:
    """It asks for them alone, so failures of many topics cost it no more than those of some."""
    controller = Controller(refused=["t0005"])

    async def create_twice() -> None:
        count = CHUNK_TOPICS_MAX + 10
        streams_topics = await create(controller, [1] * count)
        assert len(controller.requests) == 1
        assert list(streams_topics.get_errors(["t0004", "t0005"])) == ["t0005"]
        others = {n: StreamsInternalTopic(n, 1, 1, ()) for n in ("t0005", f"t{count - 1:04}")}
        streams_topics.create(others, 1000)
        assert controller.requests[1:] == [[f"t{count - 1:04}"]]

    asyncio.run(create_twice())
