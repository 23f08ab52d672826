"""A simulated cluster that is lost at any step, and restored from its bucket, which fails as well.

Producers, transactions, a consumer group and a share group with dead letters work on it. At one
request to the store all brokers lose their disks. Three nodes restore from what the store has then,
with its faults, and the cluster starts again. `check` has what must hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.client import Client
from shoal.client.consume.fetcher import Isolation
from shoal.client.errors import ClientError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.settings import Settings
from shoal.client.share.member import Acknowledgement, AcknowledgeType
from shoal.coordinator.contract import CoordinatorRecord
from shoal.coordinator.group import records as group_records
from shoal.metadata.names import METADATA_TOPIC
from shoal.server.tiered import restore, service
from shoal.server.tiered.key_ring import KeyDirectory
from shoal.server.tiered.retrying_store import CallLimits, RetryingStore
from shoal.tiered import backup
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import StoreError
from sim.cluster_brokers import CONFIGS as OF_CLUSTERS
from sim.cluster_clients import wait
from sim.scenes import Scene, scene
from support.storage import object_stores
from support.storage.object_stores import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from shoal.client.produce.transactional import TransactionalProducer
    from shoal.server.tiered.restore import PartitionReport, RestoreReport

CLUSTER = OF_CLUSTERS["shoal.cluster.id"]
WORK, LETTERS = "work", "dlq.work"
READERS, WORKERS = "readers", "workers"
OFFSETS = "__consumer_offsets"
CONFIGS = {
    "remote.log.storage.system.enable": "true",
    "shoal.remote.store.url": "memory:///",
    "shoal.remote.store.request.timeout.ms": "500",
    "shoal.remote.copy.interval.ms": "300",
    "shoal.remote.backup.interval.ms": "300",
    "shoal.remote.lease.interval.ms": "1000",
    "remote.log.manager.task.interval.ms": "150",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "log.retention.check.interval.ms": "300",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "0", "retention.ms": "-1"}
DLQ = "errors.deadletterqueue"
#: Requests to the store before the loss, at most.
STEPS = 150
FAULT_RATE = 0.1
LIMITS = CallLimits(timeout_ms=5, backoff_ms=1, backoff_max_ms=1, attempts=3)
#: How long the lost cluster must have been silent.
IDLE_MS = 60_000
#: Attempts of a node to restore. The store makes some of them fail.
ATTEMPTS = 50
OPEN, COMMITTING, COMMITTED, ABORTED = "open", "committing", "committed", "aborted"


class Model:
    """What the clients of the lost cluster know."""

    def __init__(self) -> None:
        #: Acknowledged records: the key at each offset.
        self.written: dict[int, bytes] = {}
        #: The state of each transaction, and the keys of its records.
        self.transactions: dict[int, str] = {}
        self.keys: dict[int, list[bytes]] = {}
        self.positions: list[int] = []
        self.rejected: set[int] = set()
        #: The first offset on the disk of a broker at the loss, the largest one, by topic.
        self.local_starts: dict[str, int] = {}
        #: The position of the group in the last backup; None without one.
        self.saved: int | None = None


class LostCluster:
    """One run: its store, its clients and its loss."""

    def __init__(self, cluster: Scene, store: FaultyStore, rng: random.Random) -> None:
        self.cluster, self.kernel, self.store = cluster, cluster.kernel, store
        self.random = rng
        self.model = Model()
        self.fault_rate = 0.0
        self.is_lost = False
        self._steps_left = self._clients = self._plain = 0
        store.choose = self._choose

    def _choose(self, _operation: str, _key: str) -> str:
        self.store.now_ms = max(self.store.now_ms, self.kernel.wall_time_ns() // 1_000_000)
        if self._steps_left:
            self._steps_left -= 1
            if not self._steps_left:
                # Before this request takes effect, soon after it, or later.
                self.kernel.after(self.random.choice((0.0, 0.0005, 0.02)), self._lose)
        return self.random.choice(object_stores.FAULTS) if self._fails() else ""

    def _fails(self) -> bool:
        return self.random.random() < self.fault_rate

    def _lose(self) -> None:
        """All processes end, and all disks are empty."""
        for topic in (WORK, LETTERS):
            partitions = [
                b.partitions.find_by_name(topic, 0) for _, b in self.cluster.cluster.running()
            ]
            starts = [p.log.local_start_offset for p in partitions if p is not None]
            self.model.local_starts[topic] = max(starts, default=0)
        self.model.saved = self._saved_position()
        for machine in self.cluster.cluster.brokers.values():
            machine.crash()
            machine.disk.remove_directory(machine.config.data_dir)
        for client in self.cluster.cluster.clients:
            client.kill()
        self.is_lost = True

    def _saved_position(self) -> int | None:
        """Return the group's position in the backup, if the metadata there has its topic."""
        if not self._names(OFFSETS):
            return None
        data = self.store.objects.get(backup.format_state_key(CLUSTER, OFFSETS, 0))
        found = None
        for key, value in backup.read_pairs(backup.decode(data).body) if data else ():
            decoded = None if key is None else group_records.decode(CoordinatorRecord(key, value))
            if decoded is not None and decoded.value is not None and "offset" in decoded.value:
                found = int(decoded.value["offset"])
        return found

    def _crash_one(self) -> None:
        """A broker is killed and starts again: leaders change, and uploads end in the middle."""
        if not self.is_lost:
            machine = self.random.choice(list(self.cluster.cluster.brokers.values()))
            machine.crash()
            machine.start()

    # Clients

    def client(self, program: Callable[[Client], Awaitable[None]]) -> list[bool]:
        """Run a client in a process of its own, again after an error that a crash explains. The
        result has an element once it has ended."""
        self._clients += 1
        machine = self.cluster.cluster.client(f"client-{self._clients}")
        done: list[bool] = []

        async def run() -> None:
            settings = Settings.from_bootstrap(self.cluster.cluster.bootstrap)
            while not done:
                with contextlib.suppress(ClientError):
                    async with Client(settings, machine.environment()) as client:
                        await program(client)
                    done.append(True)
                await wait(0.1)

        machine.boot().spawn(run())
        return done

    def finish(self, program: Callable[[Client], Awaitable[None]], what: str) -> None:
        """Run a client, and wait until it ends."""
        done = self.client(program)
        self.cluster.until(lambda: done, what)

    def live(self) -> None:
        """Create the topics and start the clients. Return once the cluster is lost."""
        for topic in (WORK, LETTERS):
            self.cluster.make_topic(topic, [1, 2, 3], configs=TIERED)
        self.finish(_configure, "the groups are configured")
        self.cluster.until(lambda: self._names(WORK) and self._names(LETTERS), "a backup")
        self._steps_left = self.random.randint(1, STEPS)
        self.fault_rate = self.random.choice((0.0, FAULT_RATE))
        for program in (self._produce, self._transact, self._commit, self._work):
            self.client(program)
        if self.random.random() < 0.4:
            self.kernel.after(self.random.uniform(0.1, 4.0), self._crash_one)
        self.cluster.until(lambda: self.is_lost, "the loss")

    def _names(self, topic: str) -> bool:
        """Whether the metadata in the last backup has a topic."""
        data = self.store.objects.get(backup.format_metadata_key(CLUSTER))
        return data is not None and topic.encode() in backup.decode(data).body

    async def _produce(self, client: Client) -> None:
        async with client.producer() as producer:
            while True:
                for _ in range(self.random.randint(1, 4)):
                    self._plain += 1
                    key = b"plain-%d" % self._plain
                    found = await (await producer.send(WORK, _value(key), key=key))
                    self.model.written[found.offset] = key
                await wait(self.random.uniform(0.05, 0.3))

    async def _transact(self, client: Client) -> None:
        model = self.model
        producer = await client.transactional_producer("t")
        while True:
            number = len(model.keys) + 1
            model.keys[number] = []
            await self._transaction(producer, number)
            await wait(self.random.uniform(0.05, 0.5))

    async def _transaction(self, producer: TransactionalProducer, number: int) -> None:
        model = self.model
        producer.begin()
        model.transactions[number] = OPEN
        for at in range(self.random.randint(1, 3)):
            key = b"transaction-%d-%d" % (number, at)
            model.keys[number].append(key)
            found = await (await producer.send(WORK, _value(key), key=key))
            model.written[found.offset] = key
            await wait(self.random.uniform(0.0, 0.6))
        if self.random.random() < 0.7:
            model.transactions[number] = COMMITTING
            await producer.commit()
            model.transactions[number] = COMMITTED
        else:
            # What was aborted, or is to be, may never be seen.
            model.transactions[number] = ABORTED
            await producer.abort()

    async def _commit(self, client: Client) -> None:
        where = TopicPartition(WORK, 0)
        while True:
            await wait(self.random.uniform(0.1, 0.4))
            position = max(self.model.written, default=0)
            self.model.positions.append(position)
            expect(await client.admin.groups.alter_offsets(READERS, {where: position}))

    async def _work(self, client: Client) -> None:
        async with await client.share(WORKERS, [WORK]) as session:
            while True:
                found = await session.acquire(max_records=5, max_wait_ms=200)
                for acquired in found:
                    offsets = [record.offset for record in acquired.records()]
                    await session.acknowledge(map(self._judged, offsets))

    def _judged(self, offset: int) -> Acknowledgement:
        kind = AcknowledgeType.ACCEPT
        if self.random.random() < 0.3:
            kind = AcknowledgeType.REJECT
            self.model.rejected.add(offset)
        return Acknowledgement(WORK, 0, offset, offset, kind)

    # The restore

    def restore(self) -> dict[str, PartitionReport]:
        """Make the data directories of all nodes, and start them. Return the report by topic."""
        self.store.now_ms += IDLE_MS
        reports = [asyncio.run(self._restored(id)) for id in self.cluster.cluster.brokers]
        assert all(report == reports[0] for report in reports), "nodes report differently"
        metadata = [self._metadata(id) for id in self.cluster.cluster.brokers]
        assert all(found == metadata[0] for found in metadata), "nodes have other metadata"
        self.fault_rate = 0.0
        for machine in self.cluster.cluster.brokers.values():
            machine.start()
        self.cluster.until(self.cluster.cluster.fully_replicated, "the restored cluster serves")
        return {row.topic: row for row in reports[0].partitions}

    def _metadata(self, id: int) -> bytes:
        """Return the snapshot of the cluster's metadata in a node's data directory."""
        machine = self.cluster.cluster.brokers[id]
        folder = f"{machine.config.data_dir}/{METADATA_TOPIC}-0"
        (name,) = [
            name for name in machine.disk.list_directory(folder) if name.endswith(".checkpoint")
        ]
        return machine.disk.read_file(f"{folder}/{name}")

    async def _restored(self, id: int) -> RestoreReport:
        """Repeat the restore of one node until the store allows it, as its user does."""
        machine = self.cluster.cluster.brokers[id]
        store = RetryingStore(self.store, LIMITS, self.random)
        target = restore.RestoreTarget(
            machine.config.data_dir, id, sorted(self.cluster.cluster.brokers)
        )
        random_id = lambda: UUID(int=self.random.getrandbits(128), version=4)  # noqa: E731
        ring = KeyDirectory(machine.disk, "")
        for _ in range(ATTEMPTS):
            try:
                return await restore.restore(store, machine.disk, CLUSTER, target, random_id, ring)
            except (StoreError, DamagedObject):
                machine.disk.remove_directory(target.data_dir)
        raise AssertionError(f"{ATTEMPTS} attempts failed")


async def _configure(client: Client) -> None:
    group = [
        ConfigChange("share.auto.offset.reset", "earliest"),
        ConfigChange(f"{DLQ}.topic.name", LETTERS),
    ]
    changes = {
        ConfigResource(ConfigResourceType.GROUP, WORKERS): group,
        ConfigResource(ConfigResourceType.TOPIC, LETTERS): [
            ConfigChange(f"{DLQ}.group.enable", "true")
        ],
    }
    expect(await client.admin.configs.alter(changes))


def _value(key: bytes) -> bytes:
    return b"value of %s" % key


# What must hold


async def _read(client: Client, row: PartitionReport, isolation: Isolation) -> dict[int, Any]:
    if row.start >= row.end:
        return {}
    first, last = row.start, row.end - 1
    found = await client.fetch_range(row.topic, 0, first, last, isolation=isolation)
    return {record.offset: record for fetched in found for record in fetched.records()}


def check(lost: LostCluster, rows: dict[str, PartitionReport]) -> None:
    """Check the restored cluster. Raises `AssertionError`."""
    model = lost.model
    for topic, start in model.local_starts.items():
        assert rows[topic].end >= start, f"{topic}: what left the disks does not come back"
        assert rows[topic].start == 0

    async def look(client: Client) -> None:
        row = rows[WORK]
        found = await _read(client, row, Isolation.READ_UNCOMMITTED)
        # Behind the records are the markers that abort open transactions.
        came_back = row.end - row.aborted
        for offset, key in model.written.items():
            if offset < came_back:
                assert offset in found, f"offset {offset} of {came_back} is not readable"
                record = found[offset]
                assert (record.key, record.value) == (key, _value(key))
        await _until_none_is_open(client, row)
        _check_transactions(model, await _read(client, row, Isolation.READ_COMMITTED), found)
        await _check_letters(client, rows[LETTERS], model)
        await _check_positions(client, row, model)

    lost.finish(look, "the records and the positions are checked")
    _continue(lost, rows[WORK].end)


async def _until_none_is_open(client: Client, row: PartitionReport) -> None:
    """Coordinators write the markers of transactions that were decided, soon after their start."""
    where, stable = TopicPartition(WORK, 0), -1
    for _ in range(100):
        asked = client.admin.topics.offsets({where: -1}, isolation=Isolation.READ_COMMITTED)
        stable = expect(await asked)[where].offset
        if stable >= row.end:
            return
        await wait(0.2)
    raise AssertionError(f"a transaction is open at {stable}, below {row.end}")


def _check_transactions(model: Model, seen: dict[int, Any], found: dict[int, Any]) -> None:
    """Nothing is seen that was not committed, and of each transaction all or nothing of what came
    back."""
    keys = {record.key for record in seen.values()}
    back = {record.key for record in found.values()}
    for number, state in model.transactions.items():
        mine = set(model.keys[number]) & back
        shown = mine & keys
        assert shown in (set(), mine), f"a part of transaction {number} is seen"
        assert not shown or state in (COMMITTING, COMMITTED), f"transaction {number} was {state}"
    plain = {key for key in back if key.startswith(b"plain")}
    assert plain <= keys, "records without a transaction are hidden"


async def _check_letters(client: Client, row: PartitionReport, model: Model) -> None:
    letters = await _read(client, row, Isolation.READ_UNCOMMITTED)
    assert sorted(letters) == list(range(row.start, row.end)), "a dead letter is not readable"
    for letter in letters.values():
        headers = dict(letter.headers)
        assert headers[f"__dlq.{'errors.topic'}"] == WORK.encode()
        assert int(headers[f"__dlq.{'errors.offset'}"]) in model.rejected


async def _check_positions(client: Client, row: PartitionReport, model: Model) -> None:
    where = TopicPartition(WORK, 0)
    groups = expect(await client.admin.groups.offsets([READERS]))[READERS]
    position = groups[where].offset if where in groups else None
    saved = None if model.saved is None else min(model.saved, row.end)
    assert position == saved, f"the position is {position}, and {saved} was saved"
    shares = expect(await client.admin.share_groups.offsets([WORKERS]))[WORKERS]
    if where in shares:
        assert expect({where: shares[where]})[where].start_offset <= row.end, (
            "the share group is past the log"
        )
    end = expect(await client.admin.topics.offsets({where: -1}))[where].offset
    async with await client.share(WORKERS, [WORK]) as session:
        async with client.producer() as new:
            stored = await (await new.send(WORK, _value(b"new"), key=b"new"))
        assert stored.offset >= end >= row.end
        taken: set[int] = set()
        while stored.offset not in taken:
            for acquired in await session.acquire(max_records=100, max_wait_ms=500):
                offsets = [record.offset for record in acquired.records()]
                taken.update(offsets)
                await session.acknowledge(
                    [Acknowledgement(WORK, 0, at, at, AcknowledgeType.ACCEPT) for at in offsets]
                )


def _continue(lost: LostCluster, end: int) -> None:
    """The restored cluster copies on, and its brokers agree."""

    def copied() -> bool:
        starts = [
            lost.cluster.partition(WORK, 0, id).log.local_start_offset
            for id in lost.cluster.cluster.brokers
        ]
        return min(starts) > end

    lost.cluster.until(copied, "the restored cluster copies")


@contextlib.contextmanager
def lost_cluster(seed: int) -> Iterator[LostCluster]:
    """A cluster that has lived and is lost."""
    rng = random.Random(seed)
    store = FaultyStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "make_store", lambda config: store)
        with scene(seed, configs=CONFIGS) as cluster:
            lost = LostCluster(cluster, store, rng)
            lost.live()
            yield lost


def simulate(seed: int) -> Model:
    """Run one seed. Raises `AssertionError` if a rule is violated."""
    with lost_cluster(seed) as lost:
        check(lost, lost.restore())
        return lost.model
