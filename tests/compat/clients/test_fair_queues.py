"""Fairness between tenants, and their limits, as unmodified members of librdkafka see them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from shoal.client.client import SyncClient
from support.brokers.queues import Queue
from support.kafka import java_classes
from support.kafka.java_classes import SOURCES
from support.runs.conditions import eventually
from support.workers.share_worker import Member
from support.workers.tenant_holds import count_most, list_holds

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess
    from support.kafka.kafka_tools import KafkaTools

BY_CUSTOMER = {"share.fairness.by": "header:customer"}


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


def produce(queue: Queue, customer: str, count: int) -> None:
    values = [f"{customer}{n}" for n in range(count)]
    queue.produce(values, headers=(("customer", customer.encode()),))


def take(member: ShareConsumer) -> list[Message]:
    """Return the records of the first poll that has some."""
    taken: list[Message] = []

    def some() -> bool:
        taken.extend(member.poll(0.2))
        return bool(taken)

    eventually(some, what="records come")
    assert all(message.error() is None for message in taken)
    return taken


def accept(member: ShareConsumer, messages: list[Message]) -> None:
    for message in messages:
        member.acknowledge(message, AcknowledgeType.ACCEPT)
    assert not [e for e in member.commit_sync(10).values() if e is not None]


def values(messages: list[Message]) -> list[str]:
    return [value.decode() for message in messages if (value := message.value()) is not None]


def test_a_quiet_tenant_passes_a_backlog_and_no_tenant_exceeds_its_limit(
    broker: ShoalProcess, queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    limits = {
        "share.tenant.max.in.flight": "2",
        "share.tenant.max.in.flight.overrides": "big:3",
    }
    queue.configure(**BY_CUSTOMER, **limits)
    produce(queue, "noisy", 300)
    produce(queue, "big", 5)
    produce(queue, "quiet", 1)
    first = join()
    held = take(first)
    assert values(held) == ["noisy0", "noisy1", "big0", "big1", "big2", "quiet0"]
    second = join()
    assert not second.poll(0.5)
    partition = f'group="{queue.group}",topic="{queue.topic}",partition="0"'
    name = "shoal_share_partition_behind_limit_records"
    assert broker.metric(f"{name}{{{partition}}}") == 300 - 2 + 5 - 3
    tenant = f'group="{queue.group}",tenant="noisy",state="in-flight"'
    assert broker.metric(f"shoal_share_group_tenant_records{{{tenant}}}") == 2
    accept(first, [held[0], held[2]])
    assert values(take(second)) == ["noisy2", "big3"]


def test_a_paused_tenant_waits_while_others_work(
    queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    queue.configure(**BY_CUSTOMER, **{"share.tenant.paused": "one"})
    produce(queue, "one", 2)
    produce(queue, "other", 2)
    member = join()
    came = take(member)
    assert values(came) == ["other0", "other1"]
    accept(member, came)
    queue.configure(**{"share.tenant.paused": ""})
    came = take(member)
    assert values(came) == ["one0", "one1"]
    accept(member, came)
    queue.drained()


def test_a_tenant_with_a_rate_goes_on_by_the_clock(
    queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    """Nothing else wakes the member: no record comes, and all that it has are settled."""
    limits = {"share.tenant.max.per.second": "5", "share.tenant.max.per.second.burst": "2"}
    queue.configure(**BY_CUSTOMER, **limits)
    produce(queue, "a", 5)
    member = join()
    polls: list[list[str]] = []
    while sum(map(len, polls)) < 5:
        came = take(member)
        accept(member, came)
        polls.append(values(came))
    assert len(polls[0]) == 2
    assert Counter(v for poll in polls for v in poll) == Counter(f"a{n}" for n in range(5))


def test_partitions_of_a_broker_share_a_limit(broker: ShoalProcess) -> None:
    """It is not divided: a tenant with work in one of eight partitions has all of it, and another
    partition may use all that the first gives back."""
    with SyncClient(broker.bootstrap) as client:
        queue = Queue(client, broker.bootstrap, partitions=8)
        queue.configure(**BY_CUSTOMER, **{"share.tenant.max.in.flight": "3"})
        queue.produce(range(4), partition=0, headers=(("customer", b"a"),))
        member = ShareConsumer(
            {
                "bootstrap.servers": queue.bootstrap,
                "group.id": queue.group,
                "share.acknowledgement.mode": "explicit",
            }
        )
        member.subscribe([queue.topic])
        got = take(member)
        assert len(got) == 3
        queue.produce(range(4), partition=7, headers=(("customer", b"a"),))
        accept(member, got)
        while len(got) < 8:
            came = take(member)
            assert len(came) <= 3
            accept(member, came)
            got += came
        member.close()
    assert Counter(message.partition() for message in got) == {0: 4, 7: 4}


@pytest.mark.java
def test_members_in_java_and_librdkafka_share_tenants_and_a_limit(queue: Queue) -> None:
    """A Java virtual machine starts: some seconds."""
    queue.configure(**{"share.fairness.by": "key", "share.tenant.max.in.flight": "3"})
    words = (queue.bootstrap, queue.group, queue.topic, "1", "10", "0.0")
    worker = java_classes.java(str(SOURCES / "ShareWorker.java"), heap="96m")
    members = [Member(*words, java=worker), Member(*words)]

    def work() -> bool:
        queue.produce(["first"] * 4, key=b"first")
        return all(member.got() for member in members)

    try:
        eventually(work, timeout_s=120, what="both have records")
        queue.drained(120)
        queue.produce(["noisy"] * 300, key=b"noisy")
        for number in range(20):
            queue.produce([f"quiet-{number}"], key=b"quiet-%d" % number)
        queue.drained(120)
    finally:
        for member in members:
            member.stop()
    holds = [hold for hold in list_holds(members) if hold.tenant != "first"]
    assert len({hold.place for hold in holds}) == 320
    assert count_most(holds)["noisy"] <= 3
    quiet = [at for at, hold in enumerate(holds) if hold.tenant != "noisy"]
    assert quiet[-1] < 200, "they passed the backlog"


@pytest.mark.java
def test_a_java_producer_repeats_ids_and_java_members_get_each_job_once(
    tools: KafkaTools, tools_broker: ShoalProcess
) -> None:
    """Three Java virtual machines start: some seconds. The producer is idempotent, and its second
    batch has known and new ids."""
    jobs = [f"shoal.dedup.id:job-{n},customer:{'noisy' if n else 'quiet'}|{n}" for n in range(8)]
    with SyncClient(tools_broker.bootstrap) as client:
        window = {"shoal.deduplication.window.ms": "3600000"}
        queue = Queue(client, tools_broker.bootstrap, topic_configs=window)
        queue.configure(**BY_CUSTOMER, **{"share.tenant.max.in.flight": "2"})
        parsing = ("--reader-property", "parse.headers=true")
        separator = ("--reader-property", "headers.delimiter=|")
        for batch in (jobs[:5], jobs):
            words = ("console-producer", "--topic", queue.topic, *parsing, *separator)
            assert tools.run(*words, stdin="\n".join(batch) + "\n") == ""
        reading = ("--topic", queue.topic, "--group", queue.group, "--max-messages", "8")
        said = tools.run("console-share-consumer", *reading, "--timeout-ms", "60000")
        assert sorted(said.split()[:8]) == [str(n) for n in range(8)]
        queue.drained()
