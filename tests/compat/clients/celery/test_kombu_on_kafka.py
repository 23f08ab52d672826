"""Kombu's transport on Apache Kafka: queues work, and the brokers do not delay."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

import kombu
import shoal.kombu

if TYPE_CHECKING:
    import pytest
    from support.brokers.shared_servers import SharedKafka

assert shoal.kombu.SERIALIZER


def test_messages_are_acknowledged_and_requeued(
    kafka: SharedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"queue_name_prefix": f"k-{uuid.uuid4().hex[:8]}."}
    url, seen = f"shoal://{kafka.bootstrap}", list[tuple[str, bool]]()

    def on_message(message: Any) -> None:
        seen.append((message.payload, message.delivery_info["redelivered"]))
        if message.payload == "again" and not message.delivery_info["redelivered"]:
            message.requeue()
        else:
            message.ack()

    queue = kombu.Queue("jobs", routing_key="jobs")
    with (
        caplog.at_level(logging.WARNING, "shoal.kombu"),
        kombu.Connection(url, transport_options=options, connect_timeout=30) as connection,
    ):
        with connection.channel() as channel:
            producer = kombu.Producer(channel)
            producer.publish("again", routing_key="jobs", declare=[queue])
            producer.publish("later", routing_key="jobs", headers={"eta": "2999-01-01T00:00:00"})
        with kombu.Consumer(connection.channel(), [queue], on_message=on_message):
            while len(seen) < 3:
                connection.drain_events(timeout=60)
    assert sorted(seen) == [("again", False), ("again", True), ("later", False)]
    assert "share.delay.max.ms" in caplog.text, "nothing says that ETAs wait in the worker"
