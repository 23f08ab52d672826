"""The clients of a simulated cluster: an idempotent producer, members of a consumer group, and an
observer of the group's offsets. `cluster_share_clients` has the clients of share groups. All use
`shoal.client` unchanged.

Each is a program on its own machine that starts again after an error, as real programs do. The
`Histories` record everything they see.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.consume.consumer import ConsumerMembership, GroupConsumer
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset
from shoal.client.consume.whole_partitions import WholePartitions
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.client.settings import Settings
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from sim.cluster_histories import ClassicHistory, Histories
from sim.cluster_logs_checker import LogsChecker
from sim.cluster_owners import Owners
from sim.cluster_shares import Record, ShareHistory
from sim.cluster_shares_checker import SharesChecker
from sim.transaction_rules import TransactionRules

if TYPE_CHECKING:
    from sim.cluster_brokers import BrokerMachine, SimCluster
    from sim.cluster_machine import Machine
    from sim.cluster_ordered import OrderedHistory
    from sim.cluster_queues import Queues
    from sim.cluster_ranges import RangesHistory
    from sim.cluster_streams import Application
    from sim.cluster_tenants import TenantsHistory
    from sim.cluster_unique import UniqueHistory

TOPIC, GROUP, SHARE_GROUP = "orders", "readers", "workers"
PARTITIONS = 2
DELIVERY_COUNT_LIMIT = 25
#: A commit that took this long may have been sent twice.
RETRIED_S = 0.08
Program = Callable[["Workload", Client, str], Awaitable[None]]


class Workload:
    """The clients of one cluster, and their tasks at present."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.kernel = cluster.kernel
        self.histories = Histories()
        self.topics = [TOPIC]
        self.partitions = [(TOPIC, index) for index in range(PARTITIONS)]
        self.logs = LogsChecker(cluster)
        self.shares = SharesChecker(cluster, self.logs)
        self.share = self.share_group(SHARE_GROUP, DELIVERY_COUNT_LIMIT, self.histories.saw)
        self.classic = ClassicHistory()
        self.transactions = TransactionRules()
        #: The part "queues", if the run has it.
        self.queues: Queues
        #: The part "streams", if the run has it.
        self.application: Application
        self.owners = Owners(self.kernel.fail)
        #: The part "ranges", if the run has it.
        self.ranges: RangesHistory
        #: The part "ordered", if the run has it.
        self.ordered: OrderedHistory
        #: The part "unique", if the run has it.
        self.unique: UniqueHistory
        #: The part "tenants", if the run has it.
        self.tenants: TenantsHistory
        #: Further checks of all brokers.
        self.looks: list[Callable[[], None]] = []
        #: Whether all of the output was read at the end.
        self.audited = False
        self.producing = True
        #: Whether members of the share group accept all records.
        self.draining = False
        self.prepared = False
        #: All records up to the log ends at the end of the run. Records that a producer has given
        #: up may still arrive later.
        self.final: dict[Record, bytes | None] | None = None
        self.ends: dict[tuple[str, int], int] = {}
        self.sent = 0
        #: Records that each producer waits for.
        self.under_way: dict[str, int] = {}
        self.random = random.Random(f"{self.kernel.seed} clients")
        self._programs: dict[Machine, Program] = {}

    def share_group(
        self,
        group: str,
        delivery_count_limit: int,
        saw: Callable[[Record, bytes | None, str], None],
    ) -> ShareHistory:
        """Create the history of a share group, which both checkers use."""
        history = ShareHistory(
            group,
            delivery_count_limit,
            self.histories.counts,
            saw,
            lambda record, member: self.shares.look_at(group, record, member),
        )
        self.shares.histories[group] = history
        return history

    def look(self) -> None:
        """Check all brokers. Raises `Violation`."""
        self.logs.look()
        self.shares.look()
        for look in self.looks:
            look()

    def run(self, name: str, program: Program) -> Machine:
        machine = self.cluster.client(name)
        self._programs[machine] = program
        self.boot(machine)
        return machine

    def boot(self, machine: Machine) -> None:
        """Start a client's program, for the first time or after a kill."""
        machine.boot().spawn(self._program(machine, self._programs[machine]))

    async def _program(self, machine: Machine, program: Program) -> None:
        """Run the program until it completes once."""
        name = machine.name
        settings = Settings.from_bootstrap(
            self.cluster.bootstrap,
            {
                "client.id": name,
                "request.timeout.ms": "3000",
                "default.api.timeout.ms": "10000",
                "socket.connection.setup.timeout.ms": "1500",
                "metadata.max.age.ms": "5000",
            },
        )
        while True:
            try:
                async with Client(settings, machine.environment()) as client:
                    await program(self, client, name)
                return
            except ClientError as error:
                self.kernel.trace(f"{name} starts again: {error}")
                await wait(0.3)

    @property
    def now(self) -> float:
        return self.kernel.now


async def wait(seconds: float) -> None:
    """Let simulated time pass."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()

    def pass_() -> None:
        if not passed.done():
            passed.set_result(None)

    loop.call_later(seconds, pass_)
    await passed


async def prepare(load: Workload, client: Client, _name: str) -> None:
    """Create the topic, and set the share group's configs."""
    count = len(load.cluster.brokers)
    while len((await client.admin.describe_cluster()).brokers) < count:
        await wait(0.1)
    made = await client.admin.topics.create([NewTopic(TOPIC, PARTITIONS)])
    error = made[TOPIC]
    if isinstance(error, KafkaError) and error.code != ErrorCode.topic_already_exists:
        raise error
    group = ConfigResource(ConfigResourceType.GROUP, SHARE_GROUP)
    changes = [
        ConfigChange("share.auto.offset.reset", "earliest"),
        ConfigChange("share.delivery.count.limit", str(DELIVERY_COUNT_LIMIT)),
        ConfigChange("share.record.lock.duration.ms", "2000"),
    ]
    for refused in (await client.admin.configs.alter({group: changes})).values():
        if refused is not None:
            raise refused
    load.prepared = True


async def produce(load: Workload, client: Client, name: str) -> None:
    """Produce records in small bursts; several requests may be in flight."""
    histories, rng = load.histories, load.random
    load.under_way[name] = 0

    def settled(value: bytes, future: asyncio.Future[Any]) -> None:
        load.under_way[name] -= 1
        if not future.cancelled() and future.exception() is None:
            found = future.result()
            histories.stored(value, (found.topic, found.partition, found.offset))

    async with client.producer(delivery_timeout_ms=6_000) as producer:
        while load.producing:
            for _ in range(rng.choice((1, 1, 2, 5))):
                load.sent += 1
                value = b"%s-%d" % (name.encode(), load.sent)
                key = None if rng.random() < 0.5 else b"%d" % rng.randrange(10)
                histories.sent.add(value)
                load.under_way[name] += 1
                future = await producer.send(TOPIC, value, key=key)
                future.add_done_callback(partial(settled, value))
            await wait(rng.uniform(0.01, 0.15))


class WatchedMembership(ConsumerMembership):
    """A member of a consumer group that records the partitions it is assigned."""

    def __init__(
        self, cluster: Cluster, load: Workload, group: str, owners: Owners, *, shares: bool = False
    ) -> None:
        super().__init__(cluster, group, [TOPIC], shares=shares)
        self._load = load
        self._owners = owners
        self._last_places: tuple[Any, ...] = ()

    def _places(self, assignment: Any) -> tuple[Any, ...]:
        """Return what a response assigns, as the rules name it."""
        return tuple(p for row in assignment.topic_partitions for p in row.partitions)

    async def _send(self, body: Mapping[str, Any]) -> Any:
        owners, sent = self._owners, self._load.now
        if body["member_epoch"] <= 0:
            owners.out(self.member_id)
        answer = await super()._send(body)
        if answer.error_code in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch):
            owners.out(self.member_id)
        elif not answer.error_code and answer.member_epoch > 0:
            if answer.assignment is not None:
                self._last_places = self._places(answer.assignment)
            owners.confirmed(
                self.member_id,
                answer.member_epoch,
                self._last_places,
                sent=sent,
                answered=self._load.now,
            )
        return answer


async def read_in_group(load: Workload, client: Client, name: str) -> None:
    """Run a member of the consumer group: poll, and commit now and then."""
    histories, rng = load.histories, load.random
    membership = WatchedMembership(client.cluster, load, GROUP, load.owners)
    await membership.join()
    partitions = WholePartitions(
        client.cluster, membership, reset=Reset.EARLIEST, isolation=Isolation.READ_UNCOMMITTED
    )
    async with GroupConsumer(client.cluster, membership, partitions) as consumer:
        while True:
            if consumer.membership.owned != consumer.membership.assignment:
                # Then `poll` commits too, without a report.
                histories.loose |= _positions(consumer).items()
            records = await consumer.poll(300)
            histories.polled(name, [(r.topic, r.partition, r.offset, r.value) for r in records])
            if rng.random() < 0.5 or load.draining:
                before, known = dict(histories.committed), partitions.committed
                moved = {
                    p: offset
                    for p, offset in _positions(consumer).items()
                    if known.get(TopicPartition(*p)) != offset
                }
                new = moved.items() - histories.loose
                histories.loose |= new
                sent = load.now
                await consumer.commit()
                if load.now - sent < RETRIED_S:
                    histories.loose -= new
                histories.offsets(name, before, moved)


def _positions(consumer: GroupConsumer) -> dict[tuple[str, int], int]:
    return {(p.topic, p.partition): offset for p, offset in consumer.positions.items()}


async def observe(load: Workload, client: Client, name: str) -> None:
    """Read the consumer group's offsets, as a tool would."""
    while True:
        await wait(load.random.uniform(0.3, 1.0))
        before = dict(load.histories.committed)
        found = expect(await client.admin.groups.offsets([GROUP], require_stable=True))[GROUP]
        now = {(p.topic, p.partition): o.offset for p, o in found.items()}
        load.histories.offsets(name, before, now)


async def read_all(load: Workload, client: Client, name: str) -> None:
    """Wait until both groups have read everything, then read everything as a consumer does."""
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    committed = load.histories.committed
    while True:
        group = expect(await client.admin.groups.offsets([GROUP]))[GROUP]
        share = expect(await client.admin.share_groups.offsets([SHARE_GROUP]))[SHARE_GROUP]
        ends = expect(await client.admin.topics.offsets(dict.fromkeys(partitions, -1)))
        lags = [getattr(share.get(p), "lag", -1) for p in partitions]
        behind = [
            p
            for p in partitions
            if p not in group or max(group[p].offset, committed.get(p, 0)) < ends[p].offset
        ]
        if not behind and not any(lags):
            break
        load.kernel.trace(f"{name} waits for {behind}, lags {lags}")
        await wait(0.3)
    final: dict[Record, bytes | None] = {}
    for where in partitions:
        last = ends[where].offset - 1
        if last < 0:
            continue
        async for fetched in client.fetcher.fetch_range(where.topic, where.partition, 0, last):
            for record in fetched.records():
                if record.offset <= last:
                    final[(where.topic, where.partition, record.offset)] = record.value
    load.final = final
    load.ends = {(p.topic, p.partition): end.offset for p, end in ends.items()}


def reassignment(topic: str, partition: int, replicas: list[int]) -> Program:
    """Move a partition to other brokers, or change its preferred leader."""

    async def change(_load: Workload, client: Client, _name: str) -> None:
        await client.admin.reassign({TopicPartition(topic, partition): replicas})

    return change


def voter(machine: BrokerMachine, *, added: bool) -> Program:
    """Remove a node from the quorum's voters, or add it, as a tool does."""

    async def change(load: Workload, client: Client, name: str) -> None:
        there = ErrorCode.duplicate_voter if added else ErrorCode.voter_not_found
        broker = machine.broker
        while broker is None or not machine.ready:
            await wait(0.2)
            broker = machine.broker
        fields: dict[str, Any] = {
            "cluster_id": broker.cluster_id,
            "voter_id": machine.id,
            "voter_directory_id": broker.directory.directory_id,
        }
        if added:
            listeners = [e._asdict() for e in broker.registration.get_quorum_endpoints()]
            fields |= {"timeout_ms": 2_000, "listeners": listeners, "ack_when_committed": True}
        key = ApiKey.ADD_RAFT_VOTER if added else ApiKey.REMOVE_RAFT_VOTER
        while True:
            code = ErrorCode((await client.cluster.ask(key, fields)).error_code)
            load.kernel.trace(f"{name}: {key.name} of {machine.name}: {code.name}")
            if code in (ErrorCode.none, there):
                return
            await wait(0.3)

    return change
