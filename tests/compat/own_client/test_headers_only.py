"""A share fetch without payload: an option for our own client that no other client can see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ShareConsumer
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import HEADERS_ONLY_FEATURE
from shoal.record.batch import HEADER_SIZE
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from shoal.client.share.member import Acquisition
    from support.brokers.queues import Queue
    from support.brokers.servers import ShoalProcess

RECORD = b"x" * 1000


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


def bytes_out(broker: ShoalProcess, queue: Queue) -> float:
    name = f'kafka_server_BrokerTopicMetrics_BytesOutPerSec_total{{topic="{queue.topic}"}}'
    return broker.metric(name)


def acquire(queue: Queue, *, payload: bool) -> Acquisition:
    async def acquired() -> Acquisition:
        session = await queue.client.client.share(queue.group, [queue.topic])
        async with session:
            for _ in range(20):
                found = await session.acquire(max_records=500, payload=payload)
                if found.count:
                    return found
        raise AssertionError("nothing came")

    return queue.client.run(acquired())


def test_the_payload_stays_at_the_broker(broker: ShoalProcess, queue: Queue) -> None:
    queue.produce([RECORD] * 500, batch=10)
    (whole,) = acquire(queue, payload=True)
    with_payload = bytes_out(broker, queue)
    (lean,) = acquire(queue, payload=False)
    without = bytes_out(broker, queue) - with_payload
    assert (lean.count, whole.count) == (500, 500)
    heads = list(lean.batches())
    assert heads == list(whole.batches())
    assert len(heads) == 50
    assert len(lean.data) == without == 50 * HEADER_SIZE
    assert with_payload / without > 150
    with pytest.raises(ValueError, match="without their payload"):
        next(lean.records())


def test_the_feature_is_named_to_our_client_alone(broker: ShoalProcess, queue: Queue) -> None:
    link = queue.client.run(queue.client.cluster.get_any_connection())
    assert HEADERS_ONLY_FEATURE in link.features
    for software in ("apache-kafka-java", "confluent-kafka-python", "librdkafka"):
        with WireClient(broker.bootstrap) as wire:
            api_versions = wire.call(
                ApiKey.API_VERSIONS,
                4,
                {"client_software_name": software, "client_software_version": "1"},
            )
            assert api_versions.error_code == 0
            assert HEADERS_ONLY_FEATURE not in [f.name for f in api_versions.supported_features]


@pytest.mark.parametrize("mode", [0x10, 0x11, 7])
def test_others_that_ask_for_it_are_refused_as_for_any_mode_that_is_none(
    broker: ShoalProcess, mode: int
) -> None:
    with WireClient(broker.bootstrap) as wire:
        body = {
            "group_id": "g",
            "member_id": "m",
            "share_session_epoch": 0,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 1,
            "batch_size": 1,
            "share_acquire_mode": mode,
            "is_renew_ack": False,
            "topics": [],
            "forgotten_topics_data": [],
        }
        answer = wire.call(ApiKey.SHARE_FETCH, 2, body)
    assert answer.error_code == ErrorCode.invalid_request
    assert answer.error_message == f"Unknown share acquire mode id: {mode}"


def test_other_clients_get_records_as_ever(queue: Queue) -> None:
    queue.produce(["one", "two"])
    member = ShareConsumer({"bootstrap.servers": queue.bootstrap, "group.id": queue.group})
    member.subscribe([queue.topic])
    values: list[bytes | None] = []

    def both_came() -> bool:
        values.extend(m.value() for m in member.poll(0.2))
        return len(values) == 2

    eventually(both_came)
    member.close()
    assert values == [b"one", b"two"]
