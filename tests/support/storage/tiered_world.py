"""One leader of a tiered partition with a store that fails: its copier, its reader, its log."""

from __future__ import annotations

import asyncio
import base64
import random
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

from shoal.log.config import LogConfig
from shoal.log.memory import MemoryStorage
from shoal.log.remote import RemoteUnavailable
from shoal.record.batch import CorruptBatch, iter_headers
from shoal.record.records import read_records
from shoal.replication.partition import Partition
from shoal.server.metrics.tiered import RemoteMeters
from shoal.server.tiered.chunk_cache import ChunkCache
from shoal.server.tiered.cleaning import RemoteCleaning
from shoal.server.tiered.copier import Copier
from shoal.server.tiered.key_ring import Sealing
from shoal.server.tiered.manifests import LostLeadership
from shoal.server.tiered.metadata_topic import MetadataUnavailable
from shoal.server.tiered.quota import COPY, FETCH, TransferQuota
from shoal.server.tiered.reader import Downloads, PartitionReader
from shoal.server.tiered.retrying_store import CallLimits, RetryingStore
from shoal.tiered import manifest
from shoal.tiered.keys import format_manifest_key, parse_segment_id
from shoal.tiered.metadata_records import RemoteLogSegmentState, decode, parse_key
from shoal.tiered.remote_log import RemoteLog, pack
from shoal.tiered.sealing import KeyUnavailable
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import StoreError
from support.storage import object_stores
from support.storage.log_material import NOW_MS, batch, open_log
from support.storage.object_stores import FaultyStore

TOPIC_ID = UUID(int=1)
KEY = (TOPIC_ID, 0)
CONFIG = LogConfig(
    segment_bytes=700,
    remote_storage_enable=True,
    retention_ms=-1,
    local_retention_bytes=0,
    index_interval_bytes=100,
)
GRACE_MS = 10_000
UNLIMITED = (1 << 63) - 1
COMPRESSION = "shoal.remote.compression.type"
KEY_DIRECTORY = "shoal.remote.encryption.key.directory"
KEY_ID = "shoal.remote.encryption.key.id"
CLEAR_SEGMENTS = "shoal.remote.encryption.clear.segments.enable"
LIMITS = CallLimits(timeout_ms=5, backoff_ms=1, backoff_max_ms=1, attempts=2)
EXPECTED = (
    StoreError,
    MetadataUnavailable,
    DamagedObject,
    CorruptBatch,
    KeyUnavailable,
    OSError,
    LostLeadership,
)


class Crash(BaseException):
    """The process ends here."""


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms


class Disk:
    async def run(self, call: Any) -> Any:
        return call()


class Quiet:
    def warning(self, *_: object, **__: object) -> None: ...

    def error(self, *_: object, **__: object) -> None: ...


class Image:
    """The part of a metadata image that quotas and the sealing of objects read."""

    def __init__(self, broker_config: dict[str, Any]) -> None:
        self.broker_config = broker_config


class Images:
    """A cache with one image, whose configs a test may change."""

    def __init__(self, broker_config: dict[str, Any]) -> None:
        self.image = Image(broker_config)


class Node:
    """What the parts of tiered storage use of a node."""

    id = 1
    config = MappingProxyType(
        {
            "shoal.remote.orphan.check.interval.ms": 1,
            "shoal.remote.orphan.grace.ms": GRACE_MS,
            "remote.log.manager.copy.quota.window.num": 2,
            "remote.log.manager.copy.quota.window.size.seconds": 1,
            "remote.log.manager.fetch.quota.window.num": 2,
            "remote.log.manager.fetch.quota.window.size.seconds": 1,
            KEY_DIRECTORY: "keys",
            KEY_ID: "",
        }
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, storage: MemoryStorage
    ) -> None:
        self.loop = loop
        self.system = SimpleNamespace(storage=storage, random_bytes=rng.randbytes)
        self.clock = Clock()
        self.disk = Disk()
        self.log = Quiet()
        self._random = rng

    def make_random_id(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


class Metadata:
    """The metadata topic, as the list of records that survive a crash."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.records: list[tuple[bytes, bytes | None]] = []
        self._remote = RemoteLog()

    def lose(self) -> None:
        """Lose all records, as if all replicas had lost their disks."""
        self.records.clear()

    def restart(self) -> None:
        self._remote = RemoteLog()
        for record in self.records:
            self._replay(*record)

    def is_loaded(self, _key: object) -> bool:
        return True

    def get_remote(self, _key: object) -> RemoteLog:
        return self._remote

    async def append(self, _key: object, records: list[tuple[bytes, bytes | None]]) -> None:
        self._steps.step()
        if self._steps.fails():
            raise MetadataUnavailable("not written")
        self.records += records
        for record in records:
            self._replay(*record)
        self._steps.step()
        if self._steps.fails():
            raise MetadataUnavailable("written, and no answer")

    def _replay(self, key: bytes, value: bytes | None) -> None:
        where = parse_key(key)
        assert where is not None
        if value is None:
            self._remote.forget(where[2])
            return
        record = decode(value)
        assert record is not None
        self._remote.replay(record)


class Steps:
    """Decides where the process crashes, and what fails."""

    def __init__(self, rng: random.Random, fault_rate: float) -> None:
        self._random = rng
        self.fault_rate = fault_rate
        self.crash_at = -1
        self.count = 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.crash_at:
            raise Crash

    def fails(self) -> bool:
        return self._random.random() < self.fault_rate

    def choose(self, _operation: str, _key: str) -> str:
        self.step()
        return self._random.choice(object_stores.FAULTS) if self.fails() else ""


class World:
    """One leader with its log, and the store."""

    def __init__(self, seed: int, fault_rate: float = 0.0, config: LogConfig = CONFIG) -> None:
        self.random = random.Random(seed)
        self.steps = Steps(self.random, fault_rate)
        self.store = FaultyStore(self.steps.choose)
        self.metadata = Metadata(self.steps)
        self.storage = MemoryStorage()
        self.storage.make_directory("keys")
        self.log = open_log(self.storage, config)
        self.partition = Partition(
            "t",
            TOPIC_ID,
            0,
            self.log,
            node_id=1,
            leader_id=1,
            leader_epoch=0,
            isr=(1,),
            replicas=(1,),
        )
        self.values: list[bytes] = []
        #: Configs of the broker that may change while it runs.
        self.configs: dict[str, Any] = {
            COMPRESSION: "uncompressed",
            KEY_ID: "",
            CLEAR_SEGMENTS: False,
            "log.cleaner.dedupe.buffer.size": 1 << 20,
        }
        self.configs |= {
            f"remote.log.manager.{side}.max.bytes.per.second": UNLIMITED for side in (COPY, FETCH)
        }
        self.start()

    def start(self) -> None:
        """Start the process, again after a crash."""
        node: Any = Node(asyncio.get_running_loop(), self.random, self.storage)
        store = RetryingStore(self.store, LIMITS, self.random)
        cache = ChunkCache(self.storage, "data", 4000)
        cache.open()
        self.metadata.restart()
        metadata: Any = self.metadata
        image: Any = Images(self.configs)
        self.meters = RemoteMeters()
        self.copy_quota, self.fetch_quota = (
            TransferQuota(node, image, side) for side in (COPY, FETCH)
        )
        self.sealing = Sealing(node, image)
        self.copier = Copier(
            node, store, metadata, cache, "cluster", self.meters, self.copy_quota, self.sealing
        )
        self.arrived = asyncio.Event()
        self.downloads = Downloads(node, store, cache, self.fetch_quota, self.sealing)
        self.reader = PartitionReader(
            self.downloads,
            self.log,
            self.metadata.get_remote(KEY),
            self.copier.get_prefix(self.partition),
            is_loaded=lambda: True,
            changed=self.arrived.set,
            meter=self.meters.get_meter("t"),
        )
        quotas = self.copy_quota, self.fetch_quota
        self.cleaning = RemoteCleaning(node, image, self.copier, quotas, "data/cleaning")
        self.cleaning.open()
        self.log.remote = self.reader
        self.node = node

    def add_key(self, name: str) -> None:
        """Put a key into the ring."""
        key = base64.b64encode(self.random.randbytes(32))
        self.storage.replace_file(f"keys/{name}", key + b"\n", sync=True)

    def produce(self, count: int) -> None:
        for _ in range(count):
            value = self.random.randbytes(self.random.randint(1, 300))
            self.values.append(value)
            self.partition.append(batch(value), now_ms=NOW_MS)

    async def run_pass(self) -> None:
        """Run a pass, and what retention removes from the disk. Faults end a pass early."""
        self.store.now_ms = self.node.clock.ms
        try:
            await self.copier.run(self.partition)
            await self.cleaning.run(self.partition, self.reader, self.metadata.get_remote(KEY))
        except EXPECTED:
            pass
        self.log.tick_retention(NOW_MS, high_watermark=self.partition.high_watermark)

    async def read_all(self) -> None:
        """Read every record, while the store works, and compare."""
        self.steps.fault_rate, rate = 0.0, self.steps.fault_rate
        assert await self.read(1_000) == self.log.log_end_offset
        self.steps.fault_rate = rate

    async def read(self, tries: int) -> int:
        """Read on from the log start and compare, as far as that many tries reach. Return the
        offset behind the last record."""
        at = self.log.log_start_offset
        for _ in range(tries):
            if at >= self.log.log_end_offset:
                break
            self.arrived.clear()
            try:
                data, next_offset = self.log.read(at, 500)
            except RemoteUnavailable:
                self.node.clock.ms += 2_000
                continue
            if not data:
                await self.arrived.wait()
                continue
            for position, _ in iter_headers(data):
                for record in read_records(data, position):
                    if record.offset >= at:
                        assert record.value == self.values[record.offset]
            assert next_offset > at
            at = next_offset
        return at

    def segment_keys(self) -> list[str]:
        return [key for key in self.store.objects if key.endswith(".segment")]

    @property
    def prefix(self) -> str:
        return self.copier.get_prefix(self.partition)

    def manifest(self) -> manifest.Manifest:
        return manifest.decode(self.store.objects[format_manifest_key(self.prefix)])

    def check_manifest(self) -> None:
        """At any time the manifest has each finished segment, and names only objects that exist."""
        remote = self.metadata.get_remote(KEY)
        if format_manifest_key(self.prefix) in self.store.objects:
            named = {segment.segment_id for segment in self.manifest().segments}
        else:
            named = set()
        assert {segment.segment_id for segment in remote} <= named
        assert named <= {parse_segment_id(key) for key in self.segment_keys()}

    async def check_the_end(self) -> None:
        """Without faults, two passes leave nothing to do, and no object without its record."""
        self.steps.fault_rate, self.steps.crash_at = 0.0, -1
        for _ in range(2):
            await self.run_pass()
        # A restart set the clock back.
        self.node.clock.ms = max(self.store.modified_ms.values(), default=NOW_MS) + GRACE_MS
        await self.run_pass()
        remote = self.metadata.get_remote(KEY)
        for state in (
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        ):
            assert not remote.find_in_state(state)
        ids = {segment.segment_id for segment in remote}
        assert {parse_segment_id(key) for key in self.segment_keys()} == ids
        assert len(self.segment_keys()) == len(ids)
        if format_manifest_key(self.prefix) in self.store.objects:
            found = self.manifest()
            assert sorted(map(pack, found.segments)) == sorted(map(pack, remote))
            assert found.log_start_offset == self.log.log_start_offset
        else:
            assert not ids
        assert len(self.log.segments) == 1
        await self.read_all()


async def scenario(world: World) -> None:
    """Produce, copy, delete from the start, and copy more."""
    world.produce(8)
    await world.run_pass()
    world.produce(8)
    await world.run_pass()
    world.log.advance_log_start(min(6, world.partition.high_watermark))
    await world.run_pass()


def crash_everywhere(*, lost: bool, first: int = 1, each: int = 1) -> int:
    """Run the scenario with a crash at each step in turn, and check the world after each. With
    `lost`, the crash takes all metadata with it. Return the number of steps.

    `first` and `each` leave steps out: the crashes are at the first one, and from there on at each
    so many."""

    async def run(crash_at: int) -> bool:
        world = World(1)
        world.steps.crash_at = crash_at
        crashed = False
        try:
            await scenario(world)
        except Crash:
            crashed = True
            world.check_manifest()
            if lost:
                world.metadata.lose()
            world.start()
            await world.run_pass()
            assert world.log.log_start_offset in (0, 6), "retention removes nothing"
            await world.read_all()
        if len(world.values) < 16:
            world.produce(8)
        await world.check_the_end()
        return crashed

    crash_at = first
    while asyncio.run(run(crash_at)):
        crash_at += each
    return crash_at
