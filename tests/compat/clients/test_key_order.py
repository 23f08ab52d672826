"""Key order, delay and priority as unmodified clients (librdkafka) see them, and the known pitfalls
of Pulsar's Key_Shared subscriptions."""

from __future__ import annotations

import os
import random
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from support.kafka import java_classes
from support.kafka.java_classes import SOURCES
from support.runs.conditions import ceiling, eventually, slowness
from support.workers.share_worker import Member

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.queues import Queue
    from support.brokers.servers import ShoalProcess

#: Java's member of a share group.
SOURCE = SOURCES / "ShareWorker.java"
#: Multiplier of the long run.
LONGER = int(os.environ.get("TESTS_KEY_ORDER_LONGER", "1"))
#: How long a record may be available while a member waits: one turn of the slowest client.
STUCK_S = 2.0
#: A poll of 0.3 s that took this long means that the member was stopped, not that it waited.
STANDSTILL_S = 1.0
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
KEY_ORDER = {"share.ordering": "key"}


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


def take(member: ShareConsumer, timeout_s: float = 20.0) -> list[Message]:
    """Return the records of the first non-empty poll."""
    taken: list[Message] = []

    def some() -> bool:
        taken.extend(member.poll(0.2))
        return bool(taken)

    eventually(some, timeout_s=timeout_s, what="records come")
    assert all(message.error() is None for message in taken)
    return taken


def settle(
    member: ShareConsumer, messages: list[Message], answer: AcknowledgeType = ACCEPT
) -> None:
    for message in messages:
        member.acknowledge(message, answer)
    assert not [e for e in member.commit_sync(10).values() if e is not None]


def values(messages: list[Message]) -> list[bytes]:
    return [message.value() for message in messages]


def gauge(broker: ShoalProcess, queue: Queue, name: str) -> float:
    labels = f'group="{queue.group}",topic="{queue.topic}",partition="0"'
    return broker.metric(f"shoal_share_partition_{name}{{{labels}}}")


def produce(queue: Queue, *records: str) -> None:
    """Produce records such as a1: the letter is the key."""
    for record in records:
        queue.produce([record], key=record[:1].encode())


@pytest.mark.usefixtures("start_broker")
def test_a_member_that_joins_gets_no_key_that_another_holds(
    broker: ShoalProcess, queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    """The broker logs once by what the order is computed."""
    queue.configure(**KEY_ORDER)
    produce(queue, "a1", "a2", "b1", "b2")
    first = join()
    held = take(first)
    assert values(held) == [b"a1", b"b1"]
    second = join()
    assert not second.poll(1.0)
    settle(first, held[:1])
    assert values(take(second)) == [b"a2"]

    def said() -> int:
        return sum("a group has key order" in line for line in broker.log)

    eventually(said)
    assert said() == 1


def test_a_member_that_leaves_hands_its_keys_over_from_where_they_stand(
    queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    queue.configure(**KEY_ORDER)
    produce(queue, "a1", "a2", "a3")
    first = join()
    settle(first, take(first))
    assert values(take(first)) == [b"a2"]
    second = join()
    first.close()
    for expected in (b"a2", b"a3"):
        came = take(second)
        assert values(came) == [expected]
        settle(second, came)
    queue.drained()


def test_a_released_record_holds_its_key_also_in_back_off(
    broker: ShoalProcess, queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    queue.configure(
        **KEY_ORDER,
        **{
            "share.redelivery.backoff.ms": "1500",
            "share.redelivery.backoff.jitter": "0",
        },
    )
    produce(queue, "a1", "a2", "a3", "b1")
    member = join()
    came = take(member)
    assert values(came) == [b"a1", b"b1"]
    before_release = time.monotonic()
    settle(member, came, RELEASE)
    other = join()
    assert gauge(broker, queue, "held_by_key_records") == 2
    came = take(other)
    assert time.monotonic() - before_release >= 1.5
    assert values(came) == [b"a1", b"b1"]
    settle(other, came)
    assert values(take(other)) == [b"a2"]


def test_a_hot_key_neither_blocks_others_nor_fills_the_window(
    broker: ShoalProcess, queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    """One held key has more records before the others than may be in flight."""
    queue.configure(**KEY_ORDER, **{"share.partition.max.record.locks": "100"})
    queue.produce(["hot"] * 5000, key=b"h")
    produce(queue, "a1")
    member = join()
    came = take(member)
    assert values(came) == [b"hot"]
    other = join()
    assert values(take(other)) == [b"a1"]
    assert gauge(broker, queue, "held_by_key_records") == 4999


def test_delayed_records_hold_their_key_and_block_no_other(
    broker: ShoalProcess, queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    queue.configure(**KEY_ORDER, **{"share.delay.max.ms": "60000"})
    delay_ms = int(3000 * slowness())
    before = time.monotonic()
    queue.produce(["a1"], key=b"a", headers=(("shoal.deliver.after", b"%d" % delay_ms),))
    produce(queue, "a2", "b1")
    member = join()
    came = take(member)
    assert values(came) == [b"b1"]
    assert gauge(broker, queue, "delayed_records") == 1
    settle(member, came)
    for expected in (b"a1", b"a2"):
        came = take(member, 60)
        assert time.monotonic() - before >= delay_ms / 1000 - 0.01
        assert values(came) == [expected]
        settle(member, came)
    queue.drained()


@pytest.mark.usefixtures("start_broker")
def test_a_killed_broker_keeps_the_order_of_keys_and_delays(
    broker: ShoalProcess, queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    queue.configure(**KEY_ORDER, **{"share.delay.max.ms": "60000"})
    produce(queue, "a1", "a2")
    before = time.monotonic()
    queue.produce(["b1"], key=b"b", headers=(("shoal.deliver.after", b"5000"),))
    member = join()
    settle(member, take(member), RELEASE)
    broker.kill9()
    broker.start()
    order: list[bytes | None] = []
    while len(order) < 3:
        came = take(member, 60)
        order += values(came)
        assert b"b1" not in values(came) or time.monotonic() - before >= 4.99
        settle(member, came)
    assert [value for value in order if value != b"b1"] == [b"a1", b"a2"]


def test_up_to_a_batch_of_one_key_goes_to_a_member_at_once(
    queue: Queue, join: Callable[[], ShareConsumer]
) -> None:
    queue.configure(**KEY_ORDER, **{"share.ordering.key.batch": "3"})
    queue.produce([f"a{n}" for n in range(5)], key=b"a", compression="lz4")
    member = join()
    came = take(member)
    assert values(came) == [b"a0", b"a1", b"a2"]
    settle(member, came)
    assert values(take(member)) == [b"a3", b"a4"]


def test_the_most_urgent_record_goes_first(queue: Queue) -> None:
    queue.configure(**{"share.priority.header": "urgency"})
    for value, urgency in (("low", b"1"), ("none", b"often"), ("high", b"9")):
        queue.produce([value] * 3, headers=(("urgency", urgency),), batch=1)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": queue.bootstrap,
            "group.id": queue.group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 3,
        }
    )
    consumer.subscribe([queue.topic])
    order: list[bytes | None] = []
    while len(order) < 9:
        came = take(consumer)
        order += values(came)
        settle(consumer, came)
    consumer.close()
    assert order == [b"high"] * 3 + [b"low"] * 3 + [b"none"] * 3


@pytest.mark.java
def test_members_that_release_and_are_killed_never_break_the_order_of_a_key(
    queue: Queue, seed: int
) -> None:
    """Six members, one of them in Java, release a quarter of the records; two die while they
    work."""
    run(queue, seed, members=5, java=1, keys=60, records=1500, kills=2)


@pytest.mark.java
@pytest.mark.nightly
@pytest.mark.timeout(900 * LONGER)
def test_sixteen_members_of_librdkafka_and_java_never_break_the_order_of_a_key(
    queue: Queue, seed: int
) -> None:
    """1,000 keys and random work. 5 % of the records are released, and 2 % of the polls of up to 20
    end with their member's death. 8 of 8,000 records, and `TESTS_KEY_ORDER_LONGER` times that."""
    records = 8000 * LONGER
    polls = records // 20
    kills = polls * 2 // 100
    run(queue, seed, members=14, java=2, keys=1000, records=records, kills=kills, released=0.05)


def run(
    queue: Queue,
    seed: int,
    *,
    members: int,
    java: int,
    keys: int,
    records: int,
    kills: int,
    released: float | None = None,
) -> None:
    """Each member works for a random time on a record. The kills are spread over the run."""
    queue.configure(**KEY_ORDER, **{"share.delivery.count.limit": "10"})
    queue.client.run(_send(queue, random.Random(seed).choices(range(keys), k=records)))
    words = (queue.bootstrap, queue.group, queue.topic)
    numbers = ("10",) if released is None else ("10", str(released))
    worker = java_classes.java(str(SOURCE), heap="96m")

    def start(number: int, *, is_java: bool) -> Member:
        return Member(*words, str(seed + number), *numbers, java=worker if is_java else ())

    is_java = [n < java for n in range(members + java)]
    running = [start(number, is_java=one) for number, one in enumerate(is_java)]
    dead = []
    try:
        for kill in range(kills):
            left = records * (kills - kill) // (kills + 1)
            patience_s = 240 * LONGER
            eventually(
                lambda n=left: 0 <= queue.lag <= n, timeout_s=patience_s, what="work continues"
            )
            running[0].kill9()
            dead.append(running.pop(0))
            running.append(start(100 + kill, is_java=is_java[kill % len(is_java)]))
        queue.drained(240 * LONGER)
    finally:
        for member in running:
            member.stop()
    everybody = [*dead, *running]
    check_order(everybody, records)
    if released is not None:
        check_nothing_was_stuck(everybody)


async def _send(queue: Queue, keys: list[int]) -> None:
    producer = queue.client.client.producer(linger_ms=0)
    sent = [
        await producer.send(queue.topic, f"{key}".encode(), key=f"k{key}".encode()) for key in keys
    ]
    for record in sent:
        await record


def check_order(members: list[Member], records: int) -> None:
    """Check that deliveries of a key never go back, and that no two members hold it at once."""
    deliveries: dict[str, list[tuple[float, float, int, int]]] = {}
    seen = set()
    for number, member in enumerate(members):
        held: dict[int, tuple[float, str]] = {}
        for event in member.events:
            if event["e"] == "got":
                held[event["where"][1]] = (event["t"], event["value"])
            elif event["e"] == "begin":
                for _, offset, _, _acknowledgement in event["acknowledgements"]:
                    since, key = held.pop(offset)
                    deliveries.setdefault(key, []).append((since, event["t"], offset, number))
                    seen.add(offset)
        for offset, (since, key) in held.items():  # The member died with them.
            deliveries.setdefault(key, []).append((since, min(since, member.died), offset, number))
    assert len(seen) == records
    for key, found in deliveries.items():
        found.sort()
        for one, other in pairwise(found):
            assert one[2] <= other[2], f"key {key}: {one} before {other}"
            assert one[1] <= other[0] or one[3] == other[3], f"key {key}: {one} with {other}"


def _collect_deliveries(
    member: Member,
    got: dict[str, list[tuple[float, int]]],
    accepted: dict[str, dict[int, float]],
) -> None:
    """Add to the deliveries of each key, and to the times when its offsets were accepted."""
    key_of: dict[int, str] = {}
    acknowledgements: list[tuple[int, int, int, str]] = []
    for event in member.events:
        if event["e"] == "got":
            key_of[event["where"][1]] = event["value"]
            got.setdefault(event["value"], []).append((event["t"], event["where"][1]))
        elif event["e"] == "begin":
            acknowledgements = event["acknowledgements"]
        elif event["e"] == "end" and not any(event["codes"].values()):
            for _, offset, _, kind in acknowledgements:
                if kind == "ACCEPT":
                    accepted.setdefault(key_of[offset], {})[offset] = event["t"]


def _waits(member: Member) -> list[tuple[float, float]]:
    """Return when the member waited for records: (begin, end) in seconds."""
    waits: list[tuple[float, float]] = []
    for event in member.events:
        if event["e"] == "idle" and event["t"] - event["since"] < STANDSTILL_S:
            if waits and event["since"] - waits[-1][1] < 0.01:  # The same wait continues.
                waits[-1] = (waits[-1][0], event["t"])
            else:
                waits.append((event["since"], event["t"]))
    return waits


def check_nothing_was_stuck(members: list[Member]) -> None:
    """Check that no record was available, with the record before it of its key accepted, while a
    member waited for records all that time and longer than a turn takes."""
    got: dict[str, list[tuple[float, int]]] = {}
    accepted: dict[str, dict[int, float]] = {}
    idle: list[tuple[float, float]] = []
    for member in members:
        _collect_deliveries(member, got, accepted)
        idle += _waits(member)
    patience_s = ceiling(STUCK_S)
    for key, deliveries in got.items():
        deliveries.sort()
        for (_, before), (came, offset) in pairwise(deliveries):
            free = accepted.get(key, {}).get(before)
            if free is None or offset == before or came - free < patience_s:
                continue
            stuck = [w for w in idle if min(w[1], came) - max(w[0], free) > patience_s]
            assert not stuck, f"{offset} of key {key} was free from {free} to {came}: {stuck}"
