"""Members of librdkafka for the tests of share groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ShareConsumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.queues import Queue


@pytest.fixture
def join(queue: Queue) -> Iterator[Callable[[], ShareConsumer]]:
    """Start members; the remaining ones are closed at the end."""
    joined = []

    def member() -> ShareConsumer:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": queue.bootstrap,
                "group.id": queue.group,
                "share.acknowledgement.mode": "explicit",
            }
        )
        consumer.subscribe([queue.topic])
        joined.append(consumer)
        return consumer

    yield member
    for consumer in joined:
        consumer.close()
