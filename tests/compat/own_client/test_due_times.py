"""Metrics of records that are held back by a delay, a back-off, their key or a limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.share.member import AcknowledgeType, AcquireMode, ShareMembership
from shoal_operator.brokers.calls import Brokers
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
AFTER = "shoal.deliver.after"


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


@pytest.fixture
def queue(broker: ShoalProcess) -> Iterator[Queue]:
    with SyncClient(broker.bootstrap) as client:
        made = Queue(client, broker.bootstrap, share_delay_max_ms=str(24 * HOUR_MS))
        begin(made)
        yield made


def begin(queue: Queue) -> None:
    """Set the group's start offset as the operator does, without a member."""

    async def created() -> None:
        member = ShareMembership(queue.client.client.cluster, queue.group, [queue.topic], rack=None)
        await member.join()
        await member.leave()
        operator = Brokers(queue.bootstrap)
        await operator.set_share_offsets(queue.group, {(queue.topic, 0): 0})
        await operator.close()

    queue.client.run(created())


def samples(broker: ShoalProcess, queue: Queue, name: str) -> dict[str, float]:
    """Return the values of one of the group's metrics by the label `within`, empty without it."""
    found = broker.samples(f"shoal_share_partition_{name}", group=queue.group, topic=queue.topic)
    return {sample.labels.get("within", ""): sample.value for sample in found}


def delayed(queue: Queue, after_ms: int, count: int, key: bytes | None = None) -> None:
    queue.produce(range(count), headers=((AFTER, str(after_ms).encode()),), key=key)


def not_due(broker: ShoalProcess, queue: Queue, *expected: int) -> None:
    """Wait until these numbers of records are due later than now, 60 s and 600 s."""

    def counted() -> bool:
        found = samples(broker, queue, "not_due_records")
        assert [found.get(within) for within in ("0", "60", "600")] == list(expected), found
        return True

    eventually(counted)


@pytest.mark.usefixtures("start_broker")
def test_delays_are_counted_while_no_member_fetches(broker: ShoalProcess, queue: Queue) -> None:
    began = time.time()
    delayed(queue, HOUR_MS, 3)
    delayed(queue, 45_000, 2)
    queue.produce(range(4))
    not_due(broker, queue, 5, 3, 3)
    assert samples(broker, queue, "unavailable_records") == {"": 5}
    (due_s,) = samples(broker, queue, "next_due_timestamp_seconds").values()
    assert began + 44 < due_s < time.time() + 46
    # Records that are produced later are scanned too, as are those that a restart forgot.
    delayed(queue, 5 * MINUTE_MS, 1)
    not_due(broker, queue, 6, 4, 3)
    assert broker.stop() == 0
    broker.start()
    not_due(broker, queue, 6, 4, 3)
    assert samples(broker, queue, "unavailable_records") == {"": 6}
    assert queue.client.run(lag(queue)) == 10


async def lag(queue: Queue) -> int:
    found = await queue.client.client.admin.share_groups.offsets([queue.group])
    return sum(offset.lag for offset in expect(expect(found)[queue.group]).values())


def test_records_behind_a_delayed_one_of_their_key_are_not_due(
    broker: ShoalProcess, queue: Queue
) -> None:
    queue.configure(share_ordering="key")
    delayed(queue, HOUR_MS, 2, key=b"a")
    queue.produce(range(3), key=b"a")
    queue.produce(range(2), key=b"b")
    # The first record of b is available, and the second follows it: neither is due later.
    not_due(broker, queue, 5, 5, 5)
    assert samples(broker, queue, "unavailable_records") == {"": 6}


def test_what_no_limit_of_a_tenant_allows_is_counted_while_no_member_fetches(
    broker: ShoalProcess, queue: Queue
) -> None:
    """Otherwise an autoscaler starts consumers for a paused tenant, again and again."""
    tenants = {
        "share.fairness.by": "key",
        "share.tenant.max.in.flight": "2",
        "share.tenant.paused": "b",
    }
    queue.configure(share_delay_max_ms="0", **tenants)
    queue.produce(range(5), key=b"a")
    queue.produce(range(3), key=b"b")
    not_due(broker, queue, 6, 6, 6)
    assert samples(broker, queue, "unavailable_records") == {"": 6}


def test_back_off_is_counted(broker: ShoalProcess, queue: Queue) -> None:
    queue.configure(share_delay_max_ms="0", share_redelivery_backoff_max_ms=str(HOUR_MS))
    queue.produce(range(5))

    async def release() -> None:
        async with await queue.client.client.share(queue.group, [queue.topic]) as session:
            taken = 0
            while taken < 3:
                found = await session.acquire(max_records=3 - taken, mode=AcquireMode.RECORD_LIMIT)
                for acquired in found.acquired:
                    taken += acquired.count
                    late = acquired.acknowledge(AcknowledgeType.RELEASE, delay_ms=5 * MINUTE_MS)
                    await session.acknowledge([late] if not isinstance(late, list) else late)

    queue.client.run(release())
    not_due(broker, queue, 3, 3, 0)
    assert samples(broker, queue, "unavailable_records") == {"": 3}


def test_a_paused_group_has_nothing_available(broker: ShoalProcess, queue: Queue) -> None:
    queue.configure(share_delivery_paused="true")
    queue.produce(range(3))
    eventually(lambda: samples(broker, queue, "unavailable_records") == {"": 3})
