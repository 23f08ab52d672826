"""A share group that is fair between tenants, in a simulated cluster: two with a backlog, one with
a rate, and quiet ones with a single record each. In half of the runs tenants have limits.

The rules of docs/queues.md:

* `tenant-limit`: members hold more records of a tenant than `share.tenant.max.in.flight`, in all
  share partitions of the topic, while no leaders changed for some seconds; or those of one broker
  are more than that at any time.
* `tenant-rate`: in some interval a tenant got more records than its rate, and a burst for the
  interval and for each change of leaders about then, which a rate that was lent may outlast.
* `tenant-starved`: while the record of a quiet tenant waited, its leader delivered more than
  `PASSED_MAX` records of those with a backlog.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.coordinator.share.states import ACQUIRED
from shoal.coordinator.share.tenant_loans import LEASE_MS
from shoal.protocol.errors import ErrorCode
from shoal.record.records import read_records
from shoal.server.share.leader import LeaderPhase
from sim.cluster_clients import DELIVERY_COUNT_LIMIT, PARTITIONS, Workload, wait
from sim.cluster_kernel import Violation
from sim.cluster_share_clients import Ways, Worker
from sim.cluster_shares import TICK_S, Delivery, Record

if TYPE_CHECKING:
    import asyncio

    from shoal.client.client import Client
    from shoal.record.batch import BatchHeader
    from shoal.server.broker import Broker

TOPIC, GROUP = "tenants", "clerks"
NOISY, METERED, QUIET = (b"noisy-a", b"noisy-b"), b"metered", b"quiet"
#: The limit of each tenant, and that of one of them; a multiple of the partitions.
LIMIT, LIMIT_OF_A = 8, 4
#: Deliveries a second to the metered tenant, and its burst.
RATE, BURST = 8.0, 4
#: Records of those with a backlog that may pass a quiet tenant's.
PASSED_MAX = 20
_BACKLOG = 150
#: How long a former leader may go on, as long as a broker's session.
_LATE_S = 3.0
#: How long a former leader may count what members held: a session, and a lock.
_HELD_LATE_S = 6.0
_CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": str(DELIVERY_COUNT_LIMIT),
    "share.record.lock.duration.ms": "2000",
    "share.fairness.by": "header:tenant",
}
_LIMITS = {
    "share.tenant.max.in.flight": str(LIMIT),
    "share.tenant.max.in.flight.overrides": f"{NOISY[0].decode()}:{LIMIT_OF_A}",
    "share.tenant.max.per.second.overrides": f"{METERED.decode()}:{RATE}",
    "share.tenant.max.per.second.burst": str(BURST),
}
_WAYS = Ways(left=0.05, batches=(1, 1, 5, 5, 20, 80))


class TenantsHistory:
    """What is known of the tenants' records, and the rules for their deliveries."""

    def __init__(self, load: Workload) -> None:
        self.load = load
        self.share = load.share_group(GROUP, DELIVERY_COUNT_LIMIT, self._saw)
        self.limited = random.Random(f"{load.kernel.seed} tenants").random() < 0.5
        self.prepared = self.is_through = False
        #: The tenants of committed records, and when their producer got the answer.
        self.tenant_of: dict[Record, bytes] = {}
        self.stored_s: dict[Record, float] = {}
        #: By broker: the partitions that it led at the last look.
        self._led: dict[Broker, int] = {}
        #: When the parts of brokers changed. A new one has a full bucket.
        self._changes_s: list[float] = []
        #: Whether a clock was wrong at some time.
        self._is_astray = False

    def on_batch(self, where: tuple[str, int], header: BatchHeader, data: bytes) -> None:
        """Note the tenants of a committed batch."""
        if where[0] == TOPIC and not header.is_control:
            for record in read_records(data):
                self.tenant_of[*where, record.offset] = dict(record.headers)["tenant"] or b""

    def _saw(self, record: Record, value: bytes | None, who: str) -> None:
        if self.tenant_of.get(record, value) != value:
            raise Violation("inconsistent-offsets", f"{record}: {value!r} to {who}")

    # On the brokers

    def look(self) -> None:
        """Check what members hold by brokers. Raises `Violation`."""
        machines = self.load.cluster.brokers.values()
        self._is_astray |= any(machine.clock_offset_s != 0 for machine in machines)
        total: Counter[bytes] = Counter()
        for machine, broker in self.load.cluster.running():
            topic = broker.image.topics.get(TOPIC)
            if topic is None:
                continue
            led = sum(partition.leader == machine.id for partition in topic.partitions)
            if led != self._led.get(broker, 0):
                self._changes_s.append(self.load.now)
                self._led[broker] = led
            held = self._count_held(broker)
            total += held
            if led:
                self._check_held(held, machine.name)
        since_s = self.load.now - _HELD_LATE_S
        if not self._is_astray and not any(at >= since_s for at in self._changes_s[-1:]):
            self._check_held(total, "all brokers")

    def _check_held(self, held: Counter[bytes], who: str) -> None:
        for name, count in held.items():
            if self.limited and count > (LIMIT_OF_A if name == NOISY[0] else LIMIT):
                raise Violation("tenant-limit", f"{count} of {name!r} by {who}")

    def _count_held(self, broker: Broker) -> Counter[bytes]:
        held: Counter[bytes] = Counter()
        for leader in broker.share.list_loaded(GROUP):
            if leader.phase is LeaderPhase.ACTIVE:
                runs, index = leader.share.runs, leader.key.partition
                for row, state in enumerate(runs.states):
                    if state == ACQUIRED:
                        offsets = range(runs.firsts[row], runs.get_last(row) + 1)
                        held.update(self.tenant_of.get((TOPIC, index, o), b"") for o in offsets)
        del held[b""]
        return held

    # At the end

    def finish(self) -> None:
        """Check the whole run. Raises `Violation`."""
        self.share.finish(self.tenant_of)
        found = [
            (record, delivery)
            for record, shared in self.share.records.items()
            for delivery in shared.deliveries
        ]
        if self.limited and not self._is_astray:
            self._check_rate([d for record, d in found if self.tenant_of[record] == METERED])
        passing: dict[object, list[Delivery]] = {}
        for record, delivery in found:
            if self.tenant_of[record] in NOISY and delivery.hold is not None:
                passing.setdefault(delivery.hold.leader, []).append(delivery)
        for record, shared in self.share.records.items():
            if self.tenant_of[record].startswith(QUIET) and shared.deliveries:
                self._check_passed(record, shared.deliveries[0], passing)

    def _check_rate(self, deliveries: list[Delivery]) -> None:
        """Check all intervals from the begin of a call to an answer."""
        deliveries.sort(key=lambda delivery: delivery.answered)
        for begin_s in {delivery.began for delivery in deliveries}:
            inside = [d.answered for d in deliveries if d.began >= begin_s]
            for count, answered_s in enumerate(inside, 1):
                first_s, last_s = begin_s - _LATE_S, answered_s + _LATE_S
                changes = sum(first_s <= at <= last_s for at in self._changes_s)
                may = BURST * (1 + changes) + RATE * (answered_s - begin_s + TICK_S)
                may += changes * RATE * LEASE_MS / 1000
                if count > may:
                    raise Violation(
                        "tenant-rate", f"{count} from {begin_s} to {answered_s}, at most {may:.1f}"
                    )

    def _check_passed(
        self, record: Record, first: Delivery, passing: dict[object, list[Delivery]]
    ) -> None:
        """Check how many records its leader delivered while one waited. The first that a member saw
        may not be the first delivery."""
        if first.hold is None or first.count > 1 or record not in self.stored_s:
            return
        since_s = self.stored_s[record]
        passed = sum(
            other.began > since_s and other.answered < first.began
            for other in passing.get(first.hold.leader, ())
        )
        self.share.counts["quiet"] += 1
        if passed > PASSED_MAX:
            raise Violation("tenant-starved", f"{passed} passed {record}, stored at {since_s}")


async def prepare(load: Workload, client: Client, _name: str) -> None:
    """Create the topic, and set the group's configs."""
    error = (await client.admin.topics.create([NewTopic(TOPIC, PARTITIONS)]))[TOPIC]
    if isinstance(error, KafkaError) and error.code != ErrorCode.topic_already_exists:
        raise error
    group = ConfigResource(ConfigResourceType.GROUP, GROUP)
    configs = _CONFIGS | (_LIMITS if load.tenants.limited else {})
    changes = [ConfigChange(*item) for item in configs.items()]
    refused = (await client.admin.configs.alter({group: changes}))[group]
    if refused is not None:
        raise refused
    load.topics.append(TOPIC)
    load.tenants.prepared = True


async def produce(load: Workload, client: Client, name: str) -> None:
    """Send backlogs, and between them a record of a new tenant."""
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    tenants = load.tenants
    load.under_way[name] = 0

    def on_settled(future: asyncio.Future[Any]) -> None:
        load.under_way[name] -= 1
        if not future.cancelled() and future.exception() is None:
            found = future.result()
            tenants.stored_s[found.topic, found.partition, found.offset] = load.now

    backlog = _BACKLOG
    async with client.producer(delivery_timeout_ms=6_000) as producer:
        while load.producing:
            jobs = [tenant for tenant in NOISY for _ in range(backlog)]
            jobs += [METERED] * rng.choice((0, 0, 6))
            jobs.append(b"%s-%d" % (QUIET, int(load.now * 1000)))
            for tenant in jobs:
                load.under_way[name] += 1
                future = await producer.send(
                    TOPIC,
                    tenant,
                    headers=(("tenant", tenant),),
                    partition=rng.randrange(PARTITIONS),
                )
                future.add_done_callback(on_settled)
            backlog = rng.choice((0, 0, 0, 40))
            await wait(rng.uniform(0.2, 0.6))


async def work(load: Workload, client: Client, name: str) -> None:
    """A member of the group."""
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    await Worker(load, load.tenants.share, TOPIC, rng, _WAYS).work(client)


async def read_to_the_end(load: Workload, client: Client, name: str) -> None:
    """Wait until the group has finished."""
    places = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    while True:
        found = expect(expect(await client.admin.share_groups.offsets([GROUP]))[GROUP])
        lags = [getattr(found.get(where), "lag", -1) for where in places]
        if not any(lags):
            break
        load.kernel.trace(f"{name} waits for the lags {lags}")
        await wait(0.3)
    load.tenants.is_through = True
