"""Releases with a delay, from our own client; against Kafka the client refuses them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from shoal.client.share.member import (
    Acknowledgement,
    AcknowledgeType,
    Acquisition,
    RejectedAcknowledgement,
    ShareSession,
)
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import RELEASE_DELAY_FEATURE
from support.brokers.queues import Queue
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

RELEASE = AcknowledgeType.RELEASE


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


def join(queue: Queue) -> ShareSession:
    return queue.client.run(queue.client.client.share(queue.group, [queue.topic]))


def leave(queue: Queue, session: ShareSession) -> None:
    queue.client.run(session.close())


def acquire(queue: Queue, session: ShareSession, wait_s: float = 20) -> Acquisition:
    return queue.client.run(session.acquire(max_wait_ms=int(wait_s * 1000)))


def release(
    queue: Queue, session: ShareSession, found: Acquisition, delay_ms: int
) -> tuple[RejectedAcknowledgement, ...]:
    acks = [ack for one in found for ack in one.acknowledge(RELEASE, delay_ms=delay_ms)]
    return queue.client.run(session.acknowledge(acks))


def test_a_release_waits_for_its_delay(queue: Queue) -> None:
    session = join(queue)
    for delay_ms in (1500, 0, 300):
        queue.produce([b"a"])
        found = acquire(queue, session)
        begun = time.monotonic()
        assert release(queue, session, found, delay_ms) == ()
        again = acquire(queue, session)
        # A clock of milliseconds may round down.
        assert time.monotonic() - begun >= delay_ms / 1000 - 0.002
        assert [r.delivery_count for one in again for r in one.ranges] == [2]
        acks = [ack for one in again for ack in one.acknowledge(AcknowledgeType.ACCEPT)]
        assert queue.client.run(session.acknowledge(acks)) == ()
    leave(queue, session)


def test_it_outweighs_the_groups_back_off(queue: Queue) -> None:
    queue.configure(share_redelivery_backoff_ms="60000", share_redelivery_backoff_max_ms="60000")
    queue.produce([b"a"])
    session = join(queue)
    assert release(queue, session, acquire(queue, session), 100) == ()
    assert acquire(queue, session).count == 1
    leave(queue, session)


@pytest.mark.usefixtures("start_broker")
def test_a_killed_broker_keeps_it(broker: ShoalProcess, queue: Queue) -> None:
    queue.produce([b"a", b"b"], batch=2)
    session = join(queue)
    found = acquire(queue, session)
    until = time.monotonic() + 12
    first = Acknowledgement(queue.topic, 0, 0, 0, RELEASE, 12_000)
    second = Acknowledgement(queue.topic, 0, 1, 1, RELEASE)
    assert found.count == 2
    assert queue.client.run(session.acknowledge([first, second])) == ()
    broker.kill9()
    broker.restart()
    other = join(queue)
    ranges = [r for one in acquire(queue, other) for r in one.ranges]
    assert [(r.first_offset, r.last_offset) for r in ranges] == [(1, 1)]
    ranges = [r for one in acquire(queue, other) for r in one.ranges]
    assert [(r.first_offset, r.delivery_count) for r in ranges] == [(0, 2)]
    assert time.monotonic() >= until - 0.1
    leave(queue, other)


def test_invalid_delays_are_refused_by_name(queue: Queue) -> None:
    queue.configure(share_redelivery_backoff_max_ms="5000")
    queue.produce([b"a"])
    session = join(queue)
    found = acquire(queue, session)
    (refusal,) = release(queue, session, found, 5001)
    assert "share.redelivery.backoff.max.ms" in str(refusal.error)
    accept = Acknowledgement(queue.topic, 0, 0, 0, AcknowledgeType.ACCEPT, 10)
    (refusal,) = queue.client.run(session.acknowledge([accept]))
    assert "Only a release can have a delay" in str(refusal.error)
    assert release(queue, session, found, 10) == ()  # The member still holds it.
    leave(queue, session)


@pytest.mark.java
def test_on_kafka_our_client_refuses_it_and_the_broker_passes_it_over(kafka: SharedKafka) -> None:
    with SyncClient(kafka.bootstrap) as client:
        queue = Queue(client, kafka.bootstrap)
        queue.produce([b"a"])
        session = join(queue)
        found = acquire(queue, session, 30)
        (refusal,) = release(queue, session, found, 60_000)
        assert "does not support delayed releases" in str(refusal.error)
        (node,) = session._nodes.values()
        assert RELEASE_DELAY_FEATURE not in node.link.features
        # Kafka applies the release and ignores the delay.
        topic_id = found.acquired[0].topic_id
        batch = {
            "first_offset": 0,
            "last_offset": 0,
            "acknowledge_types": [2],
            "release_delay_ms": 60_000,
        }
        partition = {"partition_index": 0, "acknowledgement_batches": [batch]}
        with WireClient(kafka.bootstrap) as wire:
            answer = wire.call(
                ApiKey.SHARE_ACKNOWLEDGE,
                1,
                {
                    "group_id": queue.group,
                    "member_id": session.member_id,
                    "share_session_epoch": node.epoch,
                    "topics": [{"topic_id": topic_id, "partitions": [partition]}],
                },
            )
        codes = (answer.error_code, answer.responses[0].partitions[0].error_code)
        assert codes == (ErrorCode.none, ErrorCode.none)
        node.step()
        (again,) = acquire(queue, session, 10).acquired
        assert again.ranges[0].delivery_count == 2
        leave(queue, session)
