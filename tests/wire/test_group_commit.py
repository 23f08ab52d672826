"""The group-commit option on a real broker: responses wait for the disk, and share its syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess


def test_requests_share_syncs(start_broker: Callable[..., ShoalProcess]) -> None:
    broker = start_broker(configs={"shoal.log.flush.group.commit": "true"})
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", b"a").error_code == 0
        assert broker.metric("shoal_disk_sync_rounds_total") == 1
        assert client.produce("t", b"a", acks=1).error_code == 0
        assert broker.metric("shoal_disk_sync_rounds_total") == 2
        batch = bytes(build_batch([(1, None, b"v", ())]))
        data = [{"index": 0, "records": batch}]
        body = {
            "acks": -1,
            "timeout_ms": 10_000,
            "topic_data": [{"name": "t", "partition_data": data}],
        }
        sent = [client.send(ApiKey.PRODUCE, 9, body) for _ in range(500)]
        for number, correlation_id in enumerate(sent):
            answered, answer = client.receive(ApiKey.PRODUCE, 9)
            row = answer.responses[0].partition_responses[0]
            assert (answered, row.error_code, row.base_offset) == (correlation_id, 0, number + 2)
        assert broker.metric("shoal_disk_sync_rounds_total") < 250


def test_the_topic_decides_over_the_broker(broker: ShoalProcess) -> None:
    with WireClient(broker.bootstrap) as client:
        client.create_topic("plain")
        client.create_topic("safe", shoal_flush_group_commit="true")
        client.create_topic("each", flush_messages="1")
        for topic, rounds in (("plain", 0), ("safe", 1), ("each", 2)):
            assert client.produce(topic, b"v").error_code == 0
            assert broker.metric("shoal_disk_sync_rounds_total") == rounds
