"""The manifest of a partition: its format, its fences, and what is rebuilt from it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

import pytest
from shoal.server.tiered.manifests import LostLeadership
from shoal.tiered import manifest
from shoal.tiered.keys import format_manifest_key, parse_segment_id, parse_topic
from shoal.tiered.manifest import Manifest
from shoal.tiered.metadata_records import RemoteLogSegmentState
from shoal.tiered.remote_log import Encryption, RemoteLog, RemoteSegment, pack
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import BytesSource, ObjectMissing, StoreUnavailable
from support.storage import object_stores
from support.storage.tiered_world import CONFIG, GRACE_MS, KEY, World

SEGMENT = RemoteSegment(UUID(int=7), 10, 19, 1234, 500, 700, 100, 3, False, ((0, 10), (2, 15)))
MANIFEST = Manifest(
    "cluster", "t", UUID(int=1), 4, 2, 3, UUID(int=9), 5, 1_700_000_000_000, 8, pack(SEGMENT)
)


def known(remote: RemoteLog) -> tuple[RemoteSegment, ...]:
    """Return the segments as the bucket has them, which does not say how they were copied."""
    return tuple(one._replace(encryption=Encryption.UNKNOWN) for one in remote)


def test_a_manifest_comes_back_as_it_was_written() -> None:
    assert manifest.decode(manifest.encode(MANIFEST)) == MANIFEST
    assert MANIFEST.segments == (SEGMENT,)
    segments = [SEGMENT._replace(segment_id=UUID(int=n + 1)) for n in range(1000)]
    many = MANIFEST._replace(packed=b"".join(map(pack, segments)))
    assert list(many.segments) == segments
    data = manifest.encode(many)
    assert manifest.decode(data) == many
    assert len(data) < 110_000, "about 100 bytes for each segment"


def test_every_changed_and_every_missing_byte_is_found() -> None:
    data = manifest.encode(MANIFEST)
    for at in range(len(data)):
        with pytest.raises(DamagedObject):
            manifest.decode(data[:at])
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(DamagedObject):
            manifest.decode(changed)


def test_a_segment_that_is_cut_off_is_found() -> None:
    whole = pack(SEGMENT)
    for size in range(1, len(whole)):
        data = manifest.encode(MANIFEST._replace(packed=whole + whole[:size]))
        with pytest.raises(DamagedObject, match="cut off"):
            manifest.decode(data)


def test_a_manifest_of_a_newer_release_is_named() -> None:
    data = bytearray(manifest.encode(MANIFEST))
    data[5] = manifest.VERSION + 1
    with pytest.raises(DamagedObject, match="format 1 of a newer release"):
        manifest.decode(data)


def test_the_topic_of_a_prefix() -> None:
    assert parse_topic("c/orders-2024-AAAAAAAAAAAAAAAAAAAAAQ") == ("orders-2024", UUID(int=1))
    for other in ("c/x", "c/-AAAAAAAAAAAAAAAAAAAAAQ", "c/orders", "c/", "a" * 30):
        assert parse_topic(other) is None


class Registered(NamedTuple):
    """This broker leads again, in a later epoch."""

    leader_epoch: int
    leader: int = 1
    partition_epoch: int = 9
    isr: tuple[int, ...] = (1,)
    replicas: tuple[int, ...] = (1,)


async def copied(seed: int = 1, count: int = 12) -> World:
    world = World(seed)
    world.produce(count)
    await world.run_pass()
    assert len(world.manifest().segments) >= 2
    return world


async def replace_manifest(world: World, leader_epoch: int) -> None:
    """Replace the manifest as the leader of another epoch does."""
    other = world.manifest()._replace(leader_epoch=leader_epoch, write_id=UUID(int=99))
    await world.store.put(format_manifest_key(world.prefix), BytesSource(manifest.encode(other)))


def test_a_deposed_leader_does_not_finish_its_copy() -> None:
    async def run() -> None:
        world = await copied()
        await replace_manifest(world, 5)
        before = world.manifest()
        finished = known(world.metadata.get_remote(KEY))
        world.produce(8)
        with pytest.raises(LostLeadership):
            await world.copier.run(world.partition)
        assert world.manifest() == before
        assert known(world.metadata.get_remote(KEY)) == finished
        assert world.metadata.get_remote(KEY).find_in_state(
            RemoteLogSegmentState.COPY_SEGMENT_STARTED
        )

    asyncio.run(run())


def test_a_deposed_leader_deletes_no_object() -> None:
    async def run() -> None:
        world = await copied()
        await replace_manifest(world, 5)
        world.log.advance_log_start(world.log.local_start_offset)
        before = world.segment_keys()
        with pytest.raises(LostLeadership):
            await world.copier.run(world.partition)
        assert world.segment_keys() == before

    asyncio.run(run())


def test_a_new_leader_fences_the_manifest_before_it_copies() -> None:
    async def run() -> None:
        world = await copied()
        revision = world.manifest().revision
        world.partition.register(Registered(3), world.node.clock.ms)
        await world.run_pass()
        found = world.manifest()
        assert (found.leader_epoch, found.revision) == (3, revision + 1)
        await world.run_pass()
        assert world.manifest() == found, "a pass without a change writes nothing"

    asyncio.run(run())


def test_a_new_leader_takes_over_the_log_start() -> None:
    """It may not have heard of the last one, and the objects below are deleted."""

    async def run() -> None:
        world = await copied(count=20)
        _, *others = world.metadata.get_remote(KEY)
        start = next(s for s in others if s.end_offset > s.base_offset).base_offset + 1
        world.log.advance_log_start(start)
        await world.run_pass()
        assert world.manifest().log_start_offset == start
        world.log.log_start_offset = 0
        world.partition.register(Registered(3), world.node.clock.ms)
        await world.run_pass()
        assert world.log.log_start_offset == start

    asyncio.run(run())


def test_an_earlier_epoch_in_between_is_overwritten() -> None:
    async def run() -> None:
        world = await copied()
        world.partition.register(Registered(3), world.node.clock.ms)
        await world.run_pass()
        await replace_manifest(world, 2)
        remote = world.metadata.get_remote(KEY)
        await world.copier.manifests.write(world.partition, world.prefix, remote)
        assert world.manifest().leader_epoch == 3
        assert world.manifest().segments == known(world.metadata.get_remote(KEY))

    asyncio.run(run())


@pytest.mark.parametrize("fault", [object_stores.LANDED, object_stores.HANG, object_stores.CUT])
def test_a_put_that_landed_is_recognized(fault) -> None:
    async def run() -> None:
        world = await copied()
        faults = [fault]

        def choose(operation: str, key: str) -> str:
            return faults.pop() if faults and (operation, key[-8:]) == ("put", "manifest") else ""

        world.store.choose = choose
        before = len(world.segment_keys())
        world.store.calls.clear()
        world.produce(8)
        await world.copier.run(world.partition)
        assert not faults
        assert world.manifest().segments == known(world.metadata.get_remote(KEY))
        copies = len(world.segment_keys()) - before
        puts = world.store.calls.count(("put", format_manifest_key(world.prefix)))
        assert puts == copies + 1, "one put was repeated"

    asyncio.run(run())


def test_a_put_that_may_have_landed_is_repeated_before_its_object_is_deleted() -> None:
    async def run() -> None:
        world = await copied()
        faults = [object_stores.UNAVAILABLE, object_stores.LANDED]

        def choose(operation: str, key: str) -> str:
            return faults.pop() if faults and (operation, key[-8:]) == ("put", "manifest") else ""

        world.store.choose = choose
        world.produce(8)
        with pytest.raises(StoreUnavailable):
            await world.copier.run(world.partition)
        named = {segment.segment_id for segment in world.manifest().segments}
        (unfinished,) = world.metadata.get_remote(KEY).find_in_state(
            RemoteLogSegmentState.COPY_SEGMENT_STARTED
        )
        assert unfinished.segment_id in named
        world.store.calls.clear()
        await world.copier.run(world.partition)
        put = world.store.calls.index(("put", format_manifest_key(world.prefix)))
        (deleted,) = [n for n, (call, _) in enumerate(world.store.calls) if call == "delete"]
        assert put < deleted
        await world.check_the_end()

    asyncio.run(run())


def test_lost_metadata_is_written_again_from_the_manifest() -> None:
    async def run() -> None:
        world = await copied()
        before = known(world.metadata.get_remote(KEY))
        world.metadata.lose()
        world.start()
        assert not len(world.metadata.get_remote(KEY))
        world.store.calls.clear()
        await world.copier.run(world.partition)
        assert known(world.metadata.get_remote(KEY)) == before
        assert world.log.log_start_offset == 0
        assert world.copier.reconciliation.segments_rebuilt_total == len(before)
        gets = [key for operation, key in world.store.calls if operation == "get"]
        assert gets == [format_manifest_key(world.prefix)], "no object was read"
        await world.check_the_end()

    asyncio.run(run())


def test_a_finished_copy_whose_last_record_was_lost_is_kept() -> None:
    async def run() -> None:
        world = await copied()
        before = known(world.metadata.get_remote(KEY))
        del world.metadata.records[-1]
        world.start()
        remote = world.metadata.get_remote(KEY)
        assert len(remote.find_in_state(RemoteLogSegmentState.COPY_SEGMENT_STARTED)) == 1
        await world.copier.run(world.partition)
        assert known(remote) == before
        await world.check_the_end()

    asyncio.run(run())


def test_an_object_of_the_manifest_that_is_missing_is_left_out() -> None:
    async def run() -> None:
        world = await copied()
        first, *others = known(world.metadata.get_remote(KEY))
        (key,) = [k for k in world.segment_keys() if f"/{0:020d}-" in k]
        del world.store.objects[key]
        world.metadata.lose()
        world.start()
        await world.run_pass()
        assert list(known(world.metadata.get_remote(KEY))) == others
        assert world.log.log_start_offset == first.end_offset + 1

    asyncio.run(run())


def test_lost_metadata_and_a_lost_manifest_are_written_again_from_the_objects() -> None:
    async def run() -> None:
        world = await copied()
        before = known(world.metadata.get_remote(KEY))
        del world.store.objects[format_manifest_key(world.prefix)]
        world.metadata.lose()
        world.start()
        # A damaged object is left out, and a foreign one.
        world.store.objects[f"{world.prefix}/notes"] = b"x"
        world.store.modified_ms[f"{world.prefix}/notes"] = 0
        await world.run_pass()
        assert known(world.metadata.get_remote(KEY)) == before
        assert world.manifest().segments == before
        del world.store.objects[f"{world.prefix}/notes"]
        await world.check_the_end()

    asyncio.run(run())


def test_the_log_start_does_not_move_over_records_that_may_be_in_another_bucket() -> None:
    async def run() -> None:
        world = await copied()
        kept = dict(world.store.objects)
        world.store.objects.clear()
        world.metadata.lose()
        world.start()
        with pytest.raises(ObjectMissing, match=r"shoal\.remote\.store\.url"):
            await world.copier.run(world.partition)
        assert world.log.log_start_offset == 0
        world.store.objects |= kept
        await world.run_pass()
        await world.read_all()

    asyncio.run(run())


def test_a_damaged_manifest_is_named_with_a_remedy() -> None:
    async def run() -> None:
        world = await copied()
        key = format_manifest_key(world.prefix)
        world.store.objects[key] = world.store.objects[key][:-1]
        world.start()
        with pytest.raises(DamagedObject, match=r"manifest: .*Delete this object"):
            await world.copier.run(world.partition)
        del world.store.objects[key]
        await world.check_the_end()

    asyncio.run(run())


def test_orphans_are_deleted_after_the_grace_period() -> None:
    async def run() -> None:
        world = await copied()
        orphan = f"{world.prefix}/{3:020d}-{'A' * 21}Q.segment"
        await world.store.put(orphan, BytesSource(b"x"))
        other = "cluster/t-AAAAAAAAAAAAAAAAAAAAAQ/1/manifest"
        await world.store.put(other, BytesSource(b"x"))
        world.store.modified_ms[orphan] = world.node.clock.ms
        await world.run_pass()
        assert orphan in world.store.objects
        assert [info.key for info in world.copier.reconciliation.audits[KEY].orphans] == [orphan]
        world.node.clock.ms += GRACE_MS
        await world.run_pass()
        assert orphan not in world.store.objects
        assert other in world.store.objects
        assert world.copier.reconciliation.audits[KEY].orphans == ()
        assert world.copier.reconciliation.orphans_deleted_total == 1
        await world.check_the_end()

    asyncio.run(run())


def test_objects_of_offsets_without_metadata_are_adopted_and_not_swept() -> None:
    async def run() -> None:
        world = await copied()
        before, remote = known(world.metadata.get_remote(KEY)), world.metadata.get_remote(KEY)
        objects = world.segment_keys()
        # The claim was made before the record was lost.
        remote.forget(before[0].segment_id)
        world.node.clock.ms += 2 * GRACE_MS
        await world.copier.reconciliation.sweep(world.partition, world.prefix)
        assert known(remote) == before
        assert world.segment_keys() == objects
        # One that is damaged cannot be adopted, and stays.
        remote.forget(before[0].segment_id)
        (key,) = [k for k in objects if parse_segment_id(k) == before[0].segment_id]
        world.store.objects[key] = world.store.objects[key][:-1]
        await world.copier.reconciliation.sweep(world.partition, world.prefix)
        assert known(remote) == before[1:]
        assert world.segment_keys() == objects
        assert [info.key for info in world.copier.reconciliation.audits[KEY].orphans] == [key]

    asyncio.run(run())


def test_an_orphan_is_kept_that_only_this_leader_has_on_its_disk_as_well() -> None:
    async def run() -> None:
        world = World(1)
        world.log.config = replace(CONFIG, local_retention_bytes=-1)
        world.produce(20)
        await world.run_pass()
        before = known(world.metadata.get_remote(KEY))
        assert len(before) > 2
        assert world.log.local_start_offset == 0
        objects = world.segment_keys()
        world.metadata.get_remote(KEY).forget(before[1].segment_id)
        world.node.clock.ms += 2 * GRACE_MS
        await world.copier.reconciliation.sweep(world.partition, world.prefix)
        assert world.segment_keys() == objects
        assert known(world.metadata.get_remote(KEY)) == before

    asyncio.run(run())


def test_a_missing_object_is_reported() -> None:
    async def run() -> None:
        world = await copied()
        (key,) = [k for k in world.segment_keys() if f"/{0:020d}-" in k]
        del world.store.objects[key]
        await world.run_pass()
        assert [s.base_offset for s in world.copier.reconciliation.audits[KEY].missing] == [0]

    asyncio.run(run())
