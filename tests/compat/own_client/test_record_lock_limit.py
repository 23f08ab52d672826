"""`share.partition.max.record.locks` with batches that are larger than the limit.

Apache Kafka acquires the last batch past the limit: whole with `batch_optimized`, and in further
fetches with `record_limit`. Shoal cuts the batch at the limit in both modes (ADR 61). Either way
every record is delivered once.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.client import SyncClient
from shoal.client.share.member import AcknowledgeType, AcquireMode
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.kafka import java_classes
from support.kafka.java_classes import SOURCES
from support.runs.conditions import ceiling, eventually, standstills
from support.workers.share_worker import Member

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.client.share.member import Acquisition, ShareSession
    from support.brokers.shared_servers import SharedKafka

LIMIT = 100
#: A member of a share group with the Java client.
JAVA_MEMBER = SOURCES / "ShareWorker.java"
#: Records of the batches of one partition.
SIZES = (1, 60, 550, 60, 1)
IN_FLIGHT = "kafka_server_SharePartitionMetrics_InFlightMessageCount"
SHORT_LOCKS = {"group.share.min.record.lock.duration.ms": "1000"}
ACCEPT = AcknowledgeType.ACCEPT
KINDS = {"accepted": ACCEPT, "released": AcknowledgeType.RELEASE}
#: Bound of the time from the end of a lock to the answer of a fetch that waits.
WOKEN_S = 0.5


@pytest.fixture(scope="module")
def short_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("locks") / "data", configs=SHORT_LOCKS).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


def limited(client: SyncClient, bootstrap: str, *sizes: int, **configs: Any) -> Queue:
    """A group with the limit, and a topic with batches of these sizes."""
    queue = Queue(client, bootstrap, share_partition_max_record_locks=str(LIMIT), **configs)
    for size in sizes:
        queue.produce(["x"] * size)
    return queue


def ranges(found: Acquisition) -> list[tuple[int, int]]:
    return [(r.first_offset, r.last_offset) for one in found for r in one.ranges]


def records(found: Acquisition) -> int:
    return sum(last - first + 1 for first, last in ranges(found))


async def acquire_without_settling(
    session: ShareSession, mode: AcquireMode, max_records: int
) -> list[Acquisition]:
    """Acquire until nothing comes."""
    held: list[Acquisition] = []
    while not held or held[-1].count:
        wait_ms = 300 if held else 15_000
        held.append(await session.acquire(max_records=max_records, max_wait_ms=wait_ms, mode=mode))
    return held[:-1]


async def drain(queue: Queue, mode: AcquireMode, max_records: int) -> tuple[int, list[int]]:
    """Acquire as much as the broker allows, and settle it, until all is delivered. Return the most
    records that were in flight, and the offsets in order of delivery."""
    most = 0
    seen: list[int] = []
    async with await queue.client.client.share(queue.group, [queue.topic]) as session:
        while len(seen) < sum(SIZES):
            held = await acquire_without_settling(session, mode, max_records)
            most = max(most, sum(map(records, held)))
            seen += [
                o for one in held for first, last in ranges(one) for o in range(first, last + 1)
            ]
            acks = [ack for found in held for one in found for ack in one.acknowledge(ACCEPT)]
            assert not await session.acknowledge(acks)
    return most, seen


@pytest.mark.nightly
@pytest.mark.java
@pytest.mark.timeout(300)
def test_kafka_exceeds_the_limit_and_shoal_does_not(
    kafka: SharedKafka, short_locks: ShoalProcess
) -> None:
    cases = [(mode, most) for mode in AcquireMode for most in (40, 500)]
    most: dict[str, list[int]] = {}
    for bootstrap in (kafka.bootstrap, short_locks.bootstrap):
        with SyncClient(bootstrap) as client:
            queues = [limited(client, bootstrap, *SIZES) for _ in cases]

            async def drained(queues: list[Queue] = queues) -> list[tuple[int, list[int]]]:
                found = [drain(q, *case) for q, case in zip(queues, cases, strict=True)]
                return list(await asyncio.gather(*found))

            found = client.run(drained())
        assert [seen for _, seen in found] == [list(range(sum(SIZES)))] * len(cases)
        most[bootstrap] = [in_flight for in_flight, _ in found]
    assert min(most[kafka.bootstrap]) > LIMIT
    assert most[short_locks.bootstrap] == [LIMIT] * len(cases)


@pytest.mark.parametrize("how", ["accepted", "released", "expired", "closed"])
@pytest.mark.parametrize("mode", AcquireMode)
def test_a_fetch_without_room_is_woken(
    short_locks: ShoalProcess, mode: AcquireMode, how: str
) -> None:
    """One member holds as many records as the limit allows while another one waits."""
    lock_ms = 1000 if how == "expired" else 30_000

    async def scene(queue: Queue) -> tuple[Acquisition, float]:
        share = queue.client.client.share
        async with await share(queue.group, [queue.topic]) as first:
            (found,) = await acquire_without_settling(first, mode, 500)
            locked = time.monotonic()
            assert found.count == LIMIT
            (held,) = found
            async with await share(queue.group, [queue.topic]) as second:
                waits = asyncio.create_task(second.acquire(max_wait_ms=20_000, mode=mode))
                await asyncio.wait([waits], timeout=0.3)
                assert not waits.done()
                ends = time.monotonic()
                if how == "closed":
                    await first.close()
                elif how == "expired":
                    ends = locked + lock_ms / 1000
                else:
                    await first.acknowledge(held.acknowledge(KINDS[how]))
                got = await waits
                return got, time.monotonic() - ends

    with SyncClient(short_locks.bootstrap) as client, standstills() as stood_still_s:
        queue = limited(
            client, short_locks.bootstrap, 1000, share_record_lock_duration_ms=str(lock_ms)
        )
        got, took_s = client.run(scene(queue))
        assert took_s < ceiling(WOKEN_S, stood_still_s()), took_s
    new = how == "accepted"
    assert ranges(got) == [(LIMIT, 2 * LIMIT - 1) if new else (0, LIMIT - 1)]


@pytest.mark.parametrize(
    ("is_java", "modes"),
    [
        (False, ["batch_optimized"]),
        pytest.param(
            True,
            ["batch_optimized", "record_limit"],
            marks=[pytest.mark.java, pytest.mark.nightly],
        ),
    ],
    ids=["librdkafka", "java"],
)
def test_real_clients_drain_a_batch_that_is_larger_than_the_limit(
    short_locks: ShoalProcess, is_java: bool, modes: list[str]
) -> None:
    """librdkafka, and at night Java's client in both modes, each in a group of its own."""
    java = java_classes.java(str(JAVA_MEMBER), heap="96m") if is_java else ()
    with SyncClient(short_locks.bootstrap) as client:
        queues = [limited(client, short_locks.bootstrap, 1000) for _ in modes]
        members = []
        most: dict[str, float] = {}
        try:
            for queue, mode in zip(queues, modes, strict=True):
                words = (queue.bootstrap, queue.group, queue.topic, "1", "1", "0")
                members.append(Member(*words, *([mode] if is_java else []), java=java))

            def is_drained() -> bool:
                for sample in short_locks.samples(IN_FLIGHT):
                    group = sample.labels["group"]
                    most[group] = max(most.get(group, 0), sample.value)
                return all(queue.lag == 0 for queue in queues)

            eventually(is_drained, timeout_s=180, what="every record is settled")
        finally:
            for member in members:
                member.stop()
    for queue, member in zip(queues, members, strict=True):
        seen = [event["where"][1] for event in member.events if event["e"] == "got"]
        assert seen == list(range(1000))
        assert 0 < most[queue.group] <= LIMIT
