"""A node's data directory, made from what a partition, its metadata and its groups left in a
store."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.coordinator.contract import CoordinatorRecord
from shoal.coordinator.group import records as group_records
from shoal.coordinator.group.records import RecordType
from shoal.log.appends import AppendOrigin
from shoal.log.config import LogConfig
from shoal.log.directory import LogDirectory
from shoal.log.memory import MemoryStorage
from shoal.metadata.image import PartitionImage
from shoal.metadata.names import METADATA_TOPIC
from shoal.metadata.records import MetadataRecord, decode, encode
from shoal.quorum import snapshots, wire
from shoal.quorum.store import QuorumStore
from shoal.quorum.voters import ReplicaKey, Voter, VoterSet
from shoal.record.batch import iter_headers
from shoal.record.control import build_marker
from shoal.record.records import read_records
from shoal.server.tiered import restore, restored_metadata
from shoal.server.tiered.key_ring import KeyDirectory
from shoal.server.tiered.restore import RestoreRefused, RestoreTarget
from shoal.tiered import backup
from shoal.tiered.keys import format_manifest_key
from shoal.tiered.sealing import KeyUnavailable
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import BytesSource
from support.storage import object_stores
from support.storage.log_material import NOW_MS, batch
from support.storage.tiered_world import KEY_ID, TOPIC_ID, World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.log.log import Log

CLUSTER = "cluster"
OFFSETS_ID, PLAIN_ID = UUID(int=2), UUID(int=3)
MINUTE_MS = 60_000
TARGET = RestoreTarget("new", 1, [1])


def metadata() -> list[MetadataRecord]:
    def topic(name: str, topic_id: UUID) -> list[MetadataRecord]:
        registered = PartitionImage((1,), (1,), 1, 3, 4)
        fields = registered._asdict() | {"topic_id": topic_id, "partition_id": 0}
        return [
            MetadataRecord("TopicRecord", {"name": name, "topic_id": topic_id}),
            MetadataRecord("PartitionRecord", fields),
        ]

    config = {
        "resource_type": 2,
        "resource_name": "t",
        "name": "remote.storage.enable",
        "value": "true",
    }
    return [
        MetadataRecord("FeatureLevelRecord", {"name": "metadata.version", "feature_level": 30}),
        *topic("t", TOPIC_ID),
        *topic("plain", PLAIN_ID),
        *topic("__consumer_offsets", OFFSETS_ID),
        MetadataRecord("ConfigRecord", config),
    ]


def commit(topic: str, offset: int) -> tuple[bytes, bytes | None]:
    key = {"group": "g", "topic": topic, "partition": 0}
    value = {"offset": offset, "metadata": "", "commit_timestamp": 1}
    found = group_records.encode_record(RecordType.OFFSET_COMMIT, key, value)
    return found.key, found.value


class Lost:
    """A cluster with one broker that is gone. Its lease is a minute old."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.store = self.world.store
        self.random = random.Random(seed)
        self.key_directory = ""

    async def leave(self, *positions: tuple[str, int], offset: int = 40) -> None:
        self.store.now_ms = NOW_MS
        body = b"".join(backup.build_batches((None, encode(record)) for record in metadata()))
        fields = {"cluster_id": CLUSTER, "offset": offset, "written_ms": NOW_MS}
        await self._put(backup.format_metadata_key(CLUSTER), fields, body)
        body = b"".join(backup.build_batches(commit(*position) for position in positions))
        await self._put(
            backup.format_state_key(CLUSTER, "__consumer_offsets", 0), {"open": []}, body
        )
        await self.renew_lease()
        self.store.now_ms += MINUTE_MS

    async def renew_lease(self) -> None:
        await self.store.put(backup.format_lease_key(CLUSTER), BytesSource(json.dumps({}).encode()))

    async def _put(self, key: str, fields: dict[str, Any], body: bytes) -> None:
        sealer = self.world.sealing.make_sealer(backup.format_owner(key))
        await self.store.put(key, BytesSource(backup.encode(fields, body, sealer)))

    async def restore(
        self, target: RestoreTarget = TARGET, storage: MemoryStorage | None = None
    ) -> tuple[restore.RestoreReport, MemoryStorage]:
        storage = storage or MemoryStorage()
        random_id = lambda: UUID(int=self.random.getrandbits(128))  # noqa: E731
        ring = KeyDirectory(self.world.storage, self.key_directory)
        found = await restore.restore(self.store, storage, CLUSTER, target, random_id, ring)
        return found, storage


def opened(storage: MemoryStorage) -> LogDirectory:
    directory = LogDirectory(storage, "new")
    directory.open(cluster_id="another", node_id=1, directory_id=UUID(int=9))
    return directory


def log_of(storage: MemoryStorage, topic: str, topic_id: UUID) -> Log:
    config = LogConfig(remote_storage_enable=topic == "t")
    return opened(storage).open_log(topic, 0, config, now_ms=NOW_MS, topic_id=topic_id)


def run(test: Callable[[Lost], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Lost())

    asyncio.run(main())


async def copied(lost: Lost) -> int:
    """Copy all closed segments; return the offset behind them."""
    lost.world.produce(20)
    await lost.world.run_pass()
    return lost.world.log.bases[-1]


def test_the_data_directory_of_a_node() -> None:
    async def test(lost: Lost) -> None:
        end = await copied(lost)
        await lost.leave(("t", end + 5), ("plain", 3))
        report, storage = await lost.restore()
        rows = [(row.topic, row.tiered, row.start, row.end) for row in report.partitions]
        assert rows == [("plain", False, 0, 0), ("t", True, 0, end)]
        directory = opened(storage)
        assert (directory.cluster_id, directory.clean, directory.stopped_epoch) == (
            CLUSTER,
            True,
            40,
        )
        assert directory.high_watermarks == {("t", 0): end, ("__consumer_offsets", 0): 2}
        directory.unlock()
        log = log_of(storage, "t", TOPIC_ID)
        assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, end, end)
        assert log.epochs.entries == [(0, 0)]
        assert found_positions(storage) == {"t": end, "plain": 0}
        image = found_image(storage)
        (partition,) = image.topics["t"].partitions
        assert (partition.leader, partition.isr) == (1, (1,))
        assert image.offset == 40

    run(test)


def test_a_controller_gets_the_metadata_of_the_brokers_and_no_partition() -> None:
    async def test(lost: Lost) -> None:
        end = await copied(lost)
        await lost.leave(("t", end))
        reports, found = [], {}
        for node in (1, 3):
            report, storage = await lost.restore(TARGET._replace(node_id=node))
            reports.append(report)
            folder = f"new/{METADATA_TOPIC}-0"
            names = [
                name
                for name in storage.list_directory("new")
                if storage.is_directory(f"new/{name}")
            ]
            files = {
                name: storage.read_file(f"{folder}/{name}")
                for name in storage.list_directory(folder)
            }
            found[node] = names, files
        assert reports[0] == reports[1]
        assert found[3][0] == [f"{METADATA_TOPIC}-0"] != found[1][0]
        assert found[3][1] == found[1][1]

    run(test)


def test_encrypted_objects_need_the_key_ring() -> None:
    async def test(lost: Lost) -> None:
        lost.world.add_key("k0")
        lost.world.configs |= {"shoal.remote.compression.type": "zstd", KEY_ID: "k0"}
        end = await copied(lost)
        await lost.leave(("t", end))
        with pytest.raises(KeyUnavailable, match="the key 'k0' is needed"):
            await lost.restore()
        assert backup.format_incarnation_key(CLUSTER) not in lost.store.objects
        lost.key_directory = "keys"
        report, storage = await lost.restore()
        assert [row.end for row in report.partitions] == [0, end]
        assert found_positions(storage) == {"t": end}
        assert log_of_again(storage, "t", TOPIC_ID).epochs.entries == [(0, 0)]

    run(test)


def test_a_backup_in_the_clear_is_refused_where_there_are_keys() -> None:
    """Somebody who may write to the bucket put one there, with a user who may do everything."""

    async def test(lost: Lost) -> None:
        await copied(lost)
        await lost.leave(("t", 1))
        lost.world.add_key("k0")
        lost.world.configs |= {KEY_ID: "k0"}
        lost.key_directory = "keys"
        careful = TARGET._replace(accepts_clear=False)
        state = backup.format_state_key(CLUSTER, "__consumer_offsets", 0)
        clear = lost.store.objects[state]
        for key in (backup.format_metadata_key(CLUSTER), state):
            storage = MemoryStorage()
            with pytest.raises(RestoreRefused, match=f"{key} is not encrypted") as refused:
                await lost.restore(careful, storage)
            assert refused.value.kind == "BackupInTheClear"
            assert storage.list_directory(".") == []
            await lost.leave(("t", 1))
            lost.store.objects[state] = clear
        await lost.restore()

    run(test)


@pytest.mark.parametrize("name", ["../../escaped", "..", ".", "a/b", "", "x" * 250, "ä"])
def test_a_topic_with_an_invalid_name_is_refused(name: str) -> None:
    """It would be a folder outside of the data directory."""
    fields = {"name": name, "topic_id": TOPIC_ID}
    with pytest.raises(DamagedObject, match="a topic with an invalid name"):
        restored_metadata.make_lost_cluster([MetadataRecord("TopicRecord", fields)], 0)


def found_positions(storage: MemoryStorage) -> dict[str, int]:
    log = log_of_again(storage, "__consumer_offsets", OFFSETS_ID)
    data = log.read(0, 1 << 20).data
    out = {}
    for at, _ in iter_headers(data):
        for record in read_records(data, at):
            decoded = group_records.decode(CoordinatorRecord(record.key or b"", record.value))
            assert decoded is not None
            assert decoded.value is not None
            out[decoded.key["topic"]] = decoded.value["offset"]
    return out


def log_of_again(storage: MemoryStorage, topic: str, topic_id: UUID) -> Log:
    """Open a log of a directory that another test object has locked."""
    storage.crash(lambda n: n - 1)
    return log_of(storage, topic, topic_id)


def found_image(storage: MemoryStorage) -> Any:
    folder = f"new/{METADATA_TOPIC}-0"
    (name,) = [name for name in storage.list_directory(folder) if name.endswith(".checkpoint")]
    assert snapshots.parse_file_name(name) == (41, 0)
    voters, batches = snapshots.read(storage.read_file(f"{folder}/{name}"))
    assert voters is None, "the configured ones apply"
    values = (value for data in batches for _, value in backup.read_pairs(data))
    records = [decode(value) for value in values if value is not None]
    return restored_metadata.build_image(records, 40)


def test_the_quorum_begins_with_the_configured_voters() -> None:
    """The first leader writes them to the log, as for a new cluster."""

    async def test(lost: Lost) -> None:
        await lost.leave()
        _, storage = await lost.restore()
        log = log_of(storage, METADATA_TOPIC, wire.TOPIC_ID)
        configured = VoterSet.from_voters([Voter(ReplicaKey(1), ())])
        store = QuorumStore(storage, log, configured)
        assert (store.voters.latest, store.voters.latest_offset) == (configured, -1)
        assert store.index.base == (41, 0)
        assert store.index.end_offset == 41

    run(test)


def test_open_transactions_are_aborted() -> None:
    async def test(lost: Lost) -> None:
        partition, world = lost.world.partition, lost.world
        world.values.append(b"")
        partition.append(batch(b"open", producer=(7, 2, 0), transactional=True), now_ms=NOW_MS)
        world.produce(10)
        marker = build_marker(
            committed=True,
            producer_id=7,
            producer_epoch=2,
            coordinator_epoch=0,
            timestamp_ms=NOW_MS,
        )
        partition.append(marker, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
        world.values.append(b"")
        await world.run_pass()
        end = world.log.bases[-1]
        assert 0 < end <= 11, "the marker is not copied"
        await lost.leave()
        report, storage = await lost.restore()
        assert [row.aborted for row in report.partitions] == [0, 1]
        log = log_of(storage, "t", TOPIC_ID)
        assert log.log_end_offset == end + 1
        assert log.find_last_stable_offset(end + 1) == end + 1
        (aborted,) = log.find_aborted_transactions(end, end + 1)
        assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (7, 0, end)

    run(test)


def test_without_a_manifest_the_objects_suffice() -> None:
    async def test(lost: Lost) -> None:
        end = await copied(lost)
        del lost.store.objects[format_manifest_key(lost.world.prefix)]
        await lost.leave()
        report, _ = await lost.restore()
        assert report.partitions[-1].end == end

    run(test)


def test_a_missing_object_is_reported() -> None:
    async def test(lost: Lost) -> None:
        end = await copied(lost)
        last = max(lost.world.segment_keys())
        del lost.store.objects[last]
        await lost.leave(("t", end))
        report, storage = await lost.restore()
        row = report.partitions[-1]
        assert (row.missing, row.end) == (1, int(last.rpartition("/")[2][:20]))
        assert found_positions(storage) == {"t": row.end}

    run(test)


def test_a_damaged_object_is_an_error() -> None:
    async def test(lost: Lost) -> None:
        await copied(lost)
        last = max(lost.world.segment_keys())
        damaged = bytearray(lost.store.objects[last])
        damaged[-40] ^= 1
        lost.store.objects[last] = bytes(damaged)
        await lost.leave()
        with pytest.raises(DamagedObject):
            await lost.restore()

    run(test)


def test_a_bucket_of_a_live_cluster_is_refused() -> None:
    async def test(lost: Lost) -> None:
        await copied(lost)
        await lost.leave()
        lost.store.now_ms -= 1
        with pytest.raises(RestoreRefused, match="is alive: it wrote its lease 60 s ago"):
            await lost.restore()
        lost.store.now_ms += 1
        assert not [key for key in lost.store.objects if "probe" in key]
        await lost.restore()

    run(test)


def test_the_nodes_of_a_restore_share_an_incarnation() -> None:
    async def test(lost: Lost) -> None:
        await copied(lost)
        await lost.leave()
        key = backup.format_incarnation_key(CLUSTER)
        images = []
        for node_id in (1, 2):
            target = TARGET._replace(node_id=node_id, brokers=[1, 2])
            lost.store.now_ms += 1_000
            _, storage = await lost.restore(target)
            images.append(found_image(storage))
        assert images[0] == images[1]
        first = lost.store.objects[key]
        # The restored cluster lives, and is lost as well.
        await lost.renew_lease()
        lost.store.now_ms += MINUTE_MS
        await lost.restore()
        assert lost.store.objects[key] != first

    run(test)


def test_a_garbled_incarnation_is_not_taken() -> None:
    """Otherwise the nodes of a cluster would come back with different metadata."""

    async def test(lost: Lost) -> None:
        await copied(lost)
        await lost.leave()
        lost.store.now_ms += 1_000
        await lost.restore()
        key = backup.format_incarnation_key(CLUSTER)
        lost.store.choose = lambda operation, at: object_stores.GARBLED if at == key else ""
        with pytest.raises(DamagedObject):
            await lost.restore(TARGET._replace(node_id=2, brokers=[1, 2]))

    run(test)


def test_what_is_refused() -> None:
    async def test(lost: Lost) -> None:
        with pytest.raises(RestoreRefused, match="no backup of cluster cluster"):
            await lost.restore()
        await lost.leave()
        with pytest.raises(RestoreRefused, match="has no topic unknown"):
            await lost.restore(TARGET._replace(topics=frozenset({"t", "unknown"})))
        report, storage = await lost.restore(TARGET._replace(topics=frozenset({"t"})))
        assert [row.topic for row in report.partitions] == ["t"]
        ring = KeyDirectory(storage, "")
        with pytest.raises(RestoreRefused, match="new is not empty"):
            await restore.restore(lost.store, storage, CLUSTER, TARGET, lambda: UUID(int=1), ring)

    run(test)
