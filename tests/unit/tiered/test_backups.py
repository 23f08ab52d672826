"""The backups of a cluster in its bucket, and to whom the bucket belongs."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.log.memory import MemoryStorage
from shoal.metadata.controller import build_registration_record
from shoal.metadata.image import BrokerImage
from shoal.metadata.records import MetadataRecord, decode
from shoal.metadata.snapshot import build_records
from shoal.replication.partition import Partition, ReplicaFetch
from shoal.server.tiered import restored_metadata
from shoal.server.tiered.backups import INCARNATION, Backups, Lease
from shoal.server.tiered.key_ring import Sealing
from shoal.tiered import backup
from shoal.tiered.sealing import KeyUnavailable
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import BytesSource
from support.storage import object_stores
from support.storage.log_material import NOW_MS, open_log
from support.storage.object_stores import FaultyStore
from support.storage.tiered_world import KEY_DIRECTORY, KEY_ID, Clock

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage

CLUSTER = "cluster"
LEASE, STATE = (
    backup.format_lease_key(CLUSTER),
    backup.format_state_key(CLUSTER, "__consumer_offsets", 0),
)
METADATA = backup.format_metadata_key(CLUSTER)


class Lines:
    """A log that keeps its errors and warnings."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def error(self, line: str, **_: object) -> None:
        self.errors.append(line)

    def warning(self, line: str, **_: object) -> None:
        self.warnings.append(line)


class System:
    """The disk with the key ring, and randomness."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.random_bytes = random.Random(1).randbytes
        self.storage.make_directory("keys")
        for number, key_id in enumerate(("first", "second")):
            self.put_key(key_id, number)

    def put_key(self, key_id: str, number: int) -> None:
        text = base64.b64encode(bytes(range(number, number + 32)))
        self.storage.replace_file(f"keys/{key_id}", text, sync=True)


class Node:
    """What backups use of a node."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.system = System()
        self.config = {KEY_DIRECTORY: "keys", KEY_ID: ""}
        self.loop = asyncio.get_running_loop()
        self.clock = Clock()
        self.log = Lines()


class Cache:
    """A cache with one image."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image


def image(offset: int = 10, incarnation: str = "", key_id: str = "") -> MetadataImage:
    """Return the image of a cluster with the brokers 2 and 3."""
    records = [
        build_registration_record(BrokerImage(id, UUID(int=id), id, (), {}, fenced=False), id)
        for id in (3, 2)
    ]
    for name, value in ((INCARNATION, incarnation), (KEY_ID, key_id)):
        if value:
            fields = {"resource_type": 4, "resource_name": "", "name": name, "value": value}
            records.append(MetadataRecord("ConfigRecord", fields))
    return restored_metadata.build_image(records, offset)


def with_topics(offset: int, *ids: int) -> MetadataImage:
    """Return such an image with topics of these ids."""
    records = [*topics(*ids), *build_records(image())]
    return restored_metadata.build_image(records, offset)


def topics(*ids: int) -> list[MetadataRecord]:
    return [
        MetadataRecord("TopicRecord", {"name": f"t{id}", "topic_id": UUID(int=id)}) for id in ids
    ]


class Broker:
    """The lease and the backups of one broker, which leads a partition of `__consumer_offsets`."""

    def __init__(
        self, store: FaultyStore, id: int = 2, epoch: int = 5, replicas: tuple[int, ...] = ()
    ) -> None:
        self.node = Node(id)
        self.cache = Cache(image())
        self.log = open_log(MemoryStorage())
        if replicas:
            self.log.append_records([(b"a", b"old")], now_ms=NOW_MS, leader_epoch=epoch - 1)
        self.partition = Partition(
            "__consumer_offsets",
            UUID(int=1),
            0,
            self.log,
            node_id=id,
            leader_id=id,
            leader_epoch=epoch,
            isr=replicas or (id,),
            replicas=replicas or (id,),
        )
        node: Any = self.node
        cache: Any = self.cache
        partitions: Any = [self.partition]
        self.lease = Lease(node, cache, store, CLUSTER)
        self.sealing = Sealing(node, cache)
        self.backups = Backups(node, cache, partitions, store, self.sealing, self.lease, CLUSTER)

    def append(self, *pairs: tuple[bytes, bytes | None]) -> None:
        self.partition.append_records(pairs, now_ms=NOW_MS)


def puts(store: FaultyStore) -> list[str]:
    """Return the keys that were written since the last call."""
    found = [key for operation, key in store.calls if operation == "put"]
    store.calls.clear()
    return found


def test_the_broker_with_the_smallest_id_writes_the_lease() -> None:
    async def main() -> None:
        store = FaultyStore()
        for id, expected in ((2, [LEASE]), (3, [])):
            broker = Broker(store, id)
            await broker.lease.check()
            assert broker.lease.confirmed.is_set()
            assert puts(store) == expected

    asyncio.run(main())


def test_a_bucket_that_belongs_to_a_restored_cluster() -> None:
    async def main() -> None:
        store = FaultyStore()
        lost, restored = Broker(store), Broker(store)
        restored.cache.image = image(incarnation="new")
        await lost.lease.check()
        new = BytesSource(backup.encode_incarnation("new"))
        await store.put(backup.format_incarnation_key(CLUSTER), new)
        puts(store)
        for _ in range(2):
            await lost.lease.check()
        assert lost.lease.is_lost
        assert not lost.lease.confirmed.is_set()
        assert len(lost.node.log.errors) == 1
        assert puts(store) == []
        await restored.lease.check()
        assert not restored.lease.is_lost
        assert puts(store) == [LEASE]

    asyncio.run(main())


def test_a_garbled_incarnation_is_nobodys() -> None:
    """The bucket still belongs to the cluster, which reads it again."""

    async def main() -> None:
        store = FaultyStore()
        broker = Broker(store)
        broker.cache.image = image(incarnation="new")
        new = BytesSource(backup.encode_incarnation("new"))
        await store.put(backup.format_incarnation_key(CLUSTER), new)
        await broker.lease.check()
        store.choose = lambda operation, key: object_stores.GARBLED if operation == "get" else ""
        with pytest.raises(DamagedObject):
            await broker.lease.check()
        assert broker.lease.confirmed.is_set()
        assert not broker.lease.is_lost

    asyncio.run(main())


def test_what_has_changed_is_written() -> None:
    async def main() -> None:
        store = FaultyStore()
        broker = Broker(store)
        broker.append((b"a", b"1"), (b"b", b"1"))
        await broker.backups.run()
        assert puts(store) == [METADATA, STATE]
        await broker.backups.run()
        assert puts(store) == []
        broker.append((b"a", b"2"))
        await broker.backups.run()
        assert puts(store) == [STATE]
        found = backup.decode(store.objects[STATE])
        assert list(backup.read_pairs(found.body)) == [(b"b", b"1"), (b"a", b"2")]
        broker.cache.image = image(11)
        await broker.backups.run()
        assert puts(store) == [METADATA]
        found = backup.decode(store.objects[METADATA])
        kinds = [decode(value).kind for _, value in backup.read_pairs(found.body) if value]
        assert (kinds, found.fields["offset"]) == (["RegisterBrokerRecord"] * 2, 11)
        assert broker.backups.written_total == 4

    asyncio.run(main())


def opened(broker: Broker, store: FaultyStore, key: str) -> list[backup.Pair]:
    """Return the records of an object, which the broker's key ring opens."""
    found = backup.decode(store.objects[key])
    return list(backup.read_pairs(found.open_records(broker.sealing.keys, key)))


def test_backups_are_encrypted_if_objects_are() -> None:
    async def main() -> None:
        store = FaultyStore()
        broker = Broker(store)
        broker.append((b"a", b"a secret"))
        await broker.backups.run()
        assert b"a secret" in store.objects[STATE]
        # A key encrypts what is there already, as does the next one.
        for number, key_id in enumerate(("first", "second"), 11):
            puts(store)
            broker.cache.image = image(number, key_id=key_id)
            await broker.backups.run()
            assert puts(store) == [METADATA, STATE]
            for key in (METADATA, STATE):
                assert backup.decode(store.objects[key]).fields["sealed"]["key_id"] == key_id
            assert b"a secret" not in store.objects[STATE]
            assert b"ConfigRecord" not in store.objects[METADATA]
            assert opened(broker, store, STATE) == [(b"a", b"a secret")]
            kinds = {decode(value).kind for _, value in opened(broker, store, METADATA) if value}
            assert kinds == {"RegisterBrokerRecord", "ConfigRecord"}
        # Without a key, they are in the clear again.
        broker.cache.image = image(13)
        await broker.backups.run()
        assert b"a secret" in store.objects[STATE]
        assert "sealed" not in backup.decode(store.objects[METADATA]).fields

    asyncio.run(main())


def test_an_encrypted_backup_of_another_object_or_key() -> None:
    async def main() -> None:
        store = FaultyStore()
        broker = Broker(store)
        broker.cache.image = image(key_id="first")
        broker.append((b"a", b"1"))
        await broker.backups.run()
        sealed = backup.decode(store.objects[STATE])
        # The place of an object is part of what opens it.
        with pytest.raises(KeyUnavailable, match="not the one that encrypted the backup"):
            sealed.open_records(broker.sealing.keys, METADATA)
        garbled = sealed._replace(body=sealed.body[:-1] + bytes([sealed.body[-1] ^ 1]))
        with pytest.raises(DamagedObject, match="authentication"):
            garbled.open_records(broker.sealing.keys, STATE)
        headless = sealed._replace(fields={"sealed": {"key_id": "first"}})
        with pytest.raises(DamagedObject, match=f"the header of {STATE} is invalid"):
            headless.open_records(broker.sealing.keys, STATE)
        broker.node.system.put_key("first", 7)
        with pytest.raises(KeyUnavailable, match=f"encrypted the backup {STATE}"):
            sealed.open_records(broker.sealing.keys, STATE)

    asyncio.run(main())


def test_a_backup_whose_key_is_missing_stays() -> None:
    """A broker that cannot read the backup does not know whose it is."""

    async def main() -> None:
        store = FaultyStore()
        first = Broker(store)
        first.cache.image = image(key_id="first")
        await first.backups.run()
        puts(store)
        second = Broker(store)
        second.cache.image = image(11)
        second.node.system.storage.remove("keys/first")
        await second.backups.run()
        assert puts(store) == []
        assert second.node.log.warnings == ["the backup was not read"]
        assert second.backups.failed_total == 1
        # Its own key is missing.
        first.node.system.storage.remove("keys/first")
        first.cache.image = image(12, key_id="first")
        await first.backups.run()
        assert puts(store) == []
        assert first.node.log.warnings == ["a backup was not written"]

    asyncio.run(main())


def test_only_one_broker_writes_the_metadata() -> None:
    async def main() -> None:
        store = FaultyStore()
        await Broker(store, 3).backups.run()
        assert puts(store) == [STATE]

    asyncio.run(main())


def test_an_earlier_leader_does_not_replace_a_backup() -> None:
    async def main() -> None:
        store = FaultyStore()
        newer, earlier = Broker(store, epoch=6), Broker(store, epoch=5)
        newer.append((b"a", b"new"))
        earlier.append((b"a", b"old"))
        await newer.backups.run()
        earlier.cache.image = image(9)
        await earlier.backups.run()
        found = backup.decode(store.objects[STATE])
        assert list(backup.read_pairs(found.body)) == [(b"a", b"new")]
        assert backup.decode(store.objects[METADATA]).fields["offset"] == 10

    asyncio.run(main())


def test_a_new_leader_waits_until_it_knows_what_is_committed() -> None:
    """It wrote an empty backup in place of the former leader's. If the cluster was lost then, all
    positions were lost with it."""

    async def main() -> None:
        store = FaultyStore()
        broker = Broker(store, replicas=(2, 3))
        assert broker.partition.high_watermark == 0
        await broker.backups.run()
        assert puts(store) == [METADATA]
        follower = ReplicaFetch(1, 4, 5, 0)
        broker.partition.fetch_for_follower(
            3, 1, follower, max_bytes=1_000, min_one=True, now_ms=NOW_MS
        )
        await broker.backups.run()
        assert puts(store) == [STATE]
        found = backup.decode(store.objects[STATE])
        assert list(backup.read_pairs(found.body)) == [(b"a", b"old")]

    asyncio.run(main())


def test_a_backup_that_fails_is_written_later() -> None:
    async def main() -> None:
        fault = "500"
        store = FaultyStore(lambda operation, _key: fault if operation == "put" else "")
        broker = Broker(store)
        await broker.backups.run()
        assert (broker.backups.failed_total, len(broker.node.log.warnings)) == (2, 2)
        fault = ""
        puts(store)
        await broker.backups.run()
        assert puts(store) == [METADATA, STATE]
        # A damaged object is replaced.
        store.objects[STATE] = b"damaged"
        broker.append((b"a", b"1"))
        await broker.backups.run()
        assert backup.decode(store.objects[STATE]).fields["high_watermark"] == 1

    asyncio.run(main())


def test_an_empty_cluster_leaves_the_backup_of_the_lost_one_with_its_id() -> None:
    """All disks are lost, and the brokers start again: only the bucket has the lost topics."""

    async def main() -> None:
        store = FaultyStore()
        before = Broker(store)
        before.cache.image = with_topics(100, 1, 2)
        before.append((b"key", b"old"))
        await before.backups.run()
        assert set(puts(store)) == {METADATA, STATE}
        for id in (2, 3):
            empty = Broker(store, id, epoch=9)
            empty.append((b"key", b"new"))
            for offset, of in ((50, ()), (500, (3,))):
                empty.cache.image = with_topics(offset, *of)
                await empty.backups.run()
            assert puts(store) == []
            assert empty.backups.failed_total == 2
            assert [line[:39] for line in empty.node.log.errors] == [
                "the bucket has the backup of a lost clu"
            ]
        # One with a topic in common is the same cluster, or was restored from the backup.
        restored = Broker(store, epoch=9)
        restored.cache.image = with_topics(500, 2, 3)
        restored.append((b"key", b"new"))
        await restored.backups.run()
        assert set(puts(store)) == {METADATA, STATE}

    asyncio.run(main())


def test_no_backup_is_written_while_the_store_cannot_be_read() -> None:
    async def main() -> None:
        store = FaultyStore()
        broker = Broker(store)
        store.choose = lambda operation, _: "500" if operation == "get" else ""
        await broker.backups.run()
        assert puts(store) == []
        assert broker.backups.failed_total == 1
        store.choose = lambda *_: ""
        await broker.backups.run()
        assert METADATA in puts(store)

    asyncio.run(main())
