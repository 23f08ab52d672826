"""A share group under load while members and the broker are killed, and a checker of deliveries.

Members are librdkafka's, each in a separate process (`share_worker`). After the last fault:

* every acknowledged record was delivered to a member, under its offset and with its value;
* a record whose accept or reject was confirmed is never delivered again, and confirmed only once;
* no member gets a record that another holds: a member holds its records until it commits, dies,
  its lock expires or the broker ends;
* a delivery has a higher count than each confirmed release before it, also over broker kills;
* while the broker lives, a delivery has a higher count than each earlier one;
* every record is settled in the end: the reported lag is 0.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from shoal.client.client import SyncClient
from support.brokers.queues import Queue
from support.runs.conditions import eventually
from support.workers.share_worker import Member, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess

MEMBERS, PARTITIONS, RECORDS = 4, 3, 4000
#: The seed determines the order: the broker is killed or restarted, a member killed or closed.
FAULTS = ["broker"] * 3 + ["restart"] + ["member"] * 3 + ["leave"] * 2
#: Acknowledgements that settle a record.
FINAL = ("ACCEPT", "REJECT")
LOCK_S = 15.0
CONFIGS = {"group.share.max.delivery.count.limit": "25", "group.share.delivery.count.limit": "10"}
Key = tuple[int, int]
#: Start and end of each outage of the broker.
Span = tuple[float, float]


class Delivery:
    """One record at one member: held from `begun` until `ended` at the latest."""

    __slots__ = ("acknowledgement", "begun", "confirmed", "count", "ended", "member")

    def __init__(self, member: Member, begun: float, count: int) -> None:
        self.member, self.begun, self.count = member, begun, count
        self.ended = min(member.died, begun + LOCK_S)
        self.acknowledgement = ""
        self.confirmed = float("inf")


def deliveries(members: list[Member]) -> tuple[dict[Key, list[Delivery]], dict[Key, str]]:
    """Return all deliveries of each record in their order, and each record's value."""
    found: dict[Key, list[Delivery]] = {}
    values: dict[Key, str] = {}
    for member in members:
        open_: dict[Key, Delivery] = {}
        acknowledgements: list[list[Any]] = []
        for event in member.events:
            if event["e"] == "got":
                key = (event["where"][0], event["where"][1])
                open_[key] = Delivery(member, event["t"], event["count"])
                found.setdefault(key, []).append(open_[key])
                assert values.setdefault(key, event["value"]) == event["value"]
            elif event["e"] == "begin":
                acknowledgements = event["acknowledgements"]
                for partition, offset, _, acknowledgement in acknowledgements:
                    one = open_[partition, offset]
                    one.acknowledgement, one.ended = acknowledgement, min(one.ended, event["t"])
            elif event["e"] == "end":
                for partition, offset, _, _ in acknowledgements:
                    if event["codes"].get(str(partition)) == 0:
                        open_[partition, offset].confirmed = event["t"]
    for some in found.values():
        some.sort(key=lambda one: one.begun)
    return found, values


def faults_of(key: Key, some: list[Delivery], downs: list[Span]) -> Iterator[str]:
    """Yield the errors in the deliveries of one record.

    Locks of a broker's former life are lost. A record may come to a member after the kill, from its
    client's buffer, so a delivery counts as of the former life until the new process is ready. The
    first delivery of the new one comes after that, since the client connects first: 30 to 800 ms
    later in twelve restarts.
    """
    final = [d for d in some if d.acknowledgement in FINAL and d.confirmed < float("inf")]
    if len(final) > 1:
        yield f"{key}: settled {len(final)} times"
    for i, later in enumerate(some):
        for earlier in some[:i]:
            if earlier in final and later.begun > earlier.confirmed:
                yield f"{key}: came again after its {earlier.acknowledgement} was confirmed"
            same_life = not any(earlier.begun < up and down < later.begun for down, up in downs)
            if same_life and earlier.ended > later.begun and earlier.member is not later.member:
                yield f"{key}: at two members at once, deliveries {earlier.count}, {later.count}"
            confirmed = earlier.acknowledgement == "RELEASE" and earlier.confirmed < later.begun
            if (same_life or confirmed) and later.count <= earlier.count:
                yield f"{key}: delivery {later.count} after {earlier.count}"


class Load:
    """An idempotent producer that continues through crashes."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: dict[Key, str] = {}
        self.failed: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 13,
                "reconnect.backoff.ms": 20,
                "log_level": 0,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": 60_000,
            }
        )
        self._thread = threading.Thread(target=self._run, args=(topic,))
        self._thread.start()

    def _run(self, topic: str) -> None:
        for number in range(RECORDS):
            value = f"job {number}"
            self._producer.produce(
                topic,
                value,
                partition=number % PARTITIONS,
                on_delivery=lambda error, message: self._delivered(error, message),
            )
            self._producer.poll(0.002)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged[message.partition(), message.offset()] = message.value().decode()

    def finish(self) -> None:
        self._thread.join()
        assert self._producer.flush(60) == 0
        assert not self.failed
        assert len(self.acknowledged) == RECORDS


def settled(members: list[Member]) -> int:
    """Count the records whose accept or reject was sent, approximately."""
    return len(
        {
            (partition, offset)
            for member in members
            for event in list(member.events)
            if event["e"] == "begin"
            for partition, offset, _, acknowledgement in event["acknowledgements"]
            if acknowledgement != "RELEASE"
        }
    )


@pytest.mark.timeout(240)
def test_a_share_group_through_kills(start_broker: Callable[..., ShoalProcess], seed: int) -> None:
    rng = random.Random(seed)
    broker = start_broker(configs=CONFIGS)
    downs: list[Span] = []
    with SyncClient(broker.bootstrap) as client:
        queue = Queue(client, broker.bootstrap, partitions=PARTITIONS)

        def join() -> Member:
            words = (broker.bootstrap, queue.group, queue.topic, str(rng.randrange(1 << 32)))
            return Member(*words)

        alive = [join() for _ in range(MEMBERS)]
        everybody = list(alive)
        load = Load(broker.bootstrap, queue.topic)
        try:
            for i, what in enumerate(rng.sample(FAULTS, len(FAULTS)), 1):
                goal = RECORDS * i // (len(FAULTS) + 1) - rng.randrange(200)
                eventually(lambda goal=goal: settled(everybody) >= goal, timeout_s=120)
                if what in ("broker", "restart"):
                    down = now()
                    broker.kill9() if what == "broker" else broker.stop()
                    broker.start()
                    downs.append((down, now()))
                else:
                    gone = alive.pop(rng.randrange(len(alive)))
                    gone.kill9() if what == "member" else gone.stop()
                    alive.append(join())
                    everybody.append(alive[-1])
            load.finish()
            eventually(lambda: settled(everybody) == RECORDS, timeout_s=120)
            queue.drained(60)
        finally:
            for member in alive:
                member.stop()
    check(everybody, load.acknowledged, downs)


def check(members: list[Member], acknowledged: dict[Key, str], downs: list[Span]) -> None:
    found, values = deliveries(members)
    assert values == acknowledged
    assert {o for p, o in acknowledged if p == 0} == set(range((RECORDS + 2) // PARTITIONS))
    wrong = [w for key, some in sorted(found.items()) for w in faults_of(key, some, downs)]
    assert not wrong, wrong[:10]
    unsettled = [
        key for key, some in found.items() if not any(d.acknowledgement in FINAL for d in some)
    ]
    assert not unsettled
    assert sum(map(len, found.values())) > RECORDS
