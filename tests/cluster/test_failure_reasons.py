"""Reasons of failures through a change of leader: those of waiting records are soft state, and
those of dead letters are replicated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType as TheirType
from confluent_kafka import ShareConsumer
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.member import Acknowledgement, AcknowledgeType
from shoal.dead_letters.dead_letter_topics import read_dead_letters
from shoal.protocol.reasons import FailureReason
from support.brokers.clusters import CALM, ShoalCluster, running
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shoal.dead_letters.records import DeadLetter

DLQ = "errors.deadletterqueue"
BEFORE, AFTER = FailureReason("BeforeError", "b"), FailureReason("AfterError", "a", "line 7")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path, configs=CALM)) as started:
        yield started


def settle(queue: Queue, *outcomes: tuple[AcknowledgeType, FailureReason]) -> None:
    """Settle single records with a member of our client; the first is at offset 0."""

    async def run() -> None:
        session = await queue.client.client.share(queue.group, [queue.topic])
        held: set[int] = set()
        while len(held) < len(outcomes):
            for one in await session.acquire(max_records=len(outcomes), max_wait_ms=20_000):
                held |= {r.offset for r in one.records()}
        acks = [
            Acknowledgement(queue.topic, 0, offset, offset, kind, reason=why)
            for offset, (kind, why) in enumerate(outcomes)
            if offset in held
        ]
        assert await session.acknowledge(acks) == ()
        await session.close(undelivered=True)

    queue.client.run(run())


def reject_with_librdkafka(queue: Queue) -> None:
    """Reject what is left as an unmodified member."""
    member = ShareConsumer(
        {
            "bootstrap.servers": queue.bootstrap,
            "group.id": queue.group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    member.subscribe([queue.topic])

    def is_drained() -> bool:
        for message in member.poll(0.2):
            if message.error() is None:
                member.acknowledge(message, TheirType.REJECT)
        member.commit_sync(10)
        return queue.lag == 0

    eventually(is_drained, timeout_s=60, what="all are rejected")
    member.close()


def list_failures(queue: Queue) -> dict[int, str]:
    where = TopicPartition(queue.topic, 0)

    async def ask() -> dict[int, str]:
        found = await queue.client.client.admin.share_groups.in_flight(queue.group, {where: 0})
        return {
            offset: entry.failure
            for entry in expect(found)[where].entries
            for offset in range(entry.first_offset, entry.last_offset + 1)
        }

    def look() -> dict[int, str] | None:
        try:
            return queue.client.run(ask())
        except ClientError:  # The leader has just died.
            queue.client.client.cluster.forget_topic(queue.topic)
            return None

    return eventually(look, timeout_s=60, what="the records in flight are listed")


def list_letters(queue: Queue, topic: str) -> dict[int, DeadLetter]:
    async def read() -> dict[int, DeadLetter]:
        letters = read_dead_letters(queue.client.client, topic)
        return {letter.source_offset: letter async for letter in letters}

    return queue.client.run(read())


def test_a_topic_on_another_broker_that_takes_only_small_records_gets_no_reasons(
    cluster: ShoalCluster,
) -> None:
    """With six partitions and five of dead letters, at least one pair has different leaders."""
    with SyncClient(cluster.bootstrap) as client:
        queue = Queue(client, cluster.bootstrap, partitions=6, replicas=3)
        topic = f"dlq.{queue.topic}"
        configs = {f"{DLQ}.group.enable": "true", "max.message.bytes": "1500"}
        expect(client.run(client.admin.topics.create([NewTopic(topic, 5, 3, configs=configs)])))
        queue.configure(**{f"{DLQ}.topic.name": topic, f"{DLQ}.copy.record.enable": "true"})
        queue.produce(["x" * 500] * 6)
        large = FailureReason("E", "m", "x" * 6_000)

        async def reject_all() -> None:
            session = await client.client.share(queue.group, [queue.topic])
            left = 6
            while left:
                for one in await session.acquire(max_wait_ms=20_000):
                    acks = one.acknowledge(AcknowledgeType.REJECT, reason=large)
                    assert await session.acknowledge(acks) == ()
                    left -= one.count
            await session.close()

        client.run(reject_all())
        queue.drained()

        async def read() -> list[DeadLetter]:
            return [letter async for letter in read_dead_letters(client.client, topic)]

        letters = client.run(read())
        assert sorted(letter.source_partition for letter in letters) == [*range(6)]
        assert {letter.failure for letter in letters} == {FailureReason()}
        assert {letter.record.value for letter in letters} == {b"x" * 500}


def test_a_new_leader_has_no_reasons_and_dead_letters_keep_theirs(cluster: ShoalCluster) -> None:
    with SyncClient(cluster.bootstrap) as client:
        queue = Queue(client, cluster.bootstrap, replicas=3)
        topic = f"dlq.{queue.topic}"
        new = NewTopic(topic, 1, 3, configs={f"{DLQ}.group.enable": "true"})
        expect(client.run(client.admin.topics.create([new])))
        queue.configure(**{f"{DLQ}.topic.name": topic})
        queue.produce(["waits", "fails", "theirs"], batch=3)
        settle(queue, (AcknowledgeType.RELEASE, BEFORE), (AcknowledgeType.REJECT, BEFORE))
        eventually(lambda: 1 in list_letters(queue, topic), what="a dead letter is written")
        assert list_failures(queue)[0] == "BeforeError: b"
        leader = client.run(client.client.cluster.find_leader(queue.topic, 0))
        cluster.nodes[leader].kill9()
        assert eventually(lambda: list_failures(queue), timeout_s=60)[0] == ""
        settle(queue, (AcknowledgeType.REJECT, AFTER))
        reject_with_librdkafka(queue)
        eventually(lambda: len(list_letters(queue, topic)) == 3, what="all dead letters")
        letters = list_letters(queue, topic)
        assert [letters[offset].failure for offset in range(3)] == [
            AFTER,
            BEFORE,
            FailureReason(),
        ]
