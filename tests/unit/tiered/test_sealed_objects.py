"""Objects that are compressed and encrypted by chunk: what is written is read, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.log.memory import MemoryStorage
from shoal.log.remote import RemoteUnavailable
from shoal.metadata import broker_rules
from shoal.metadata.config_keys import ConfigError
from shoal.metadata.configs import BROKER, parse
from shoal.record.batch import assign
from shoal.record.records import build_batch
from shoal.server.config import InvalidConfig
from shoal.server.tiered.key_ring import KeyDirectory, Sealing
from shoal.tiered.sealing import TAG_BYTES, KeyUnavailable, Sealer, create_envelope
from shoal.tiered.segment_object import (
    DamagedObject,
    Footer,
    SealedSource,
    Section,
    build_tail,
    find_footer_bytes_needed,
    read_footer,
    scan,
)
from support.runs.seeding import SEED
from support.storage.log_material import NOW_MS
from support.storage.segment_material import (
    BATCHES,
    CHUNK_BYTES,
    SECTIONS,
    describe,
    log_of,
    object_of,
    reader,
)
from support.storage.tiered_world import (
    CLEAR_SEGMENTS,
    COMPRESSION,
    KEY,
    KEY_DIRECTORY,
    KEY_ID,
    Crash,
    World,
    scenario,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.tiered.segment_object import SegmentDescription

SEALS = st.sampled_from(["zstd", "encrypted", "both"])
KEYS = {"first": bytes(range(32)), "second": bytes(range(1, 33))}


class Ring:
    """Keys in a dict."""

    def __init__(self, keys: Mapping[str, bytes] = KEYS) -> None:
        self.keys = dict(keys)

    def get_secret(self, key_id: str) -> bytes:
        return self.keys[key_id]


def sealer(described: SegmentDescription, seals: str, key_id: str = "first") -> Sealer:
    compresses = seals in ("zstd", "both")
    if seals == "zstd":
        return Sealer(compresses=True)
    envelope, cipher = create_envelope(Ring(), key_id, described.owner, os.urandom)
    return Sealer(compresses=compresses, envelope=envelope, cipher=cipher)


def source_of(log: bytes, seals: str, sections=None) -> SealedSource:
    found = scan(reader(log), len(log), chunk_bytes=CHUNK_BYTES)
    described = describe(log, found)
    sealed = sealer(described, seals)
    return SealedSource(reader(log), described, found.chunks, sections or {}, sealed)


def sealed_object(log: bytes, seals: str, sections=None) -> bytes:
    source = source_of(log, seals, sections)
    data = b"".join(source.iter_chunks())
    assert len(data) == source.size
    assert data.endswith(source.footer)
    return data


def footer_of(data: bytes) -> Footer:
    return read_footer(data[-find_footer_bytes_needed(data) :])


def read_all(data: bytes) -> tuple[bytes, dict[Section, bytes]]:
    """Return the log and the sections, each part read by its range."""
    footer = footer_of(data)
    cipher = footer.open_cipher(Ring())
    log = bytearray()
    for number in range(len(footer.chunks)):
        start, end = footer.get_chunk_range(number)
        log += footer.open_chunk(number, data[start:end], cipher)
    sections = {}
    for kind in footer.sections:
        start, end = footer.get_section_range(kind)
        sections[kind] = bytes(footer.open_section(kind, data[start:end], cipher))
    return bytes(log), sections


@given(BATCHES, SECTIONS, st.integers(0, 2**40), SEALS)
def test_round_trip(batches, sections, base_offset, seals) -> None:
    log = log_of(batches, base_offset)
    data = sealed_object(log, seals, sections)
    assert read_all(data) == (log, sections)
    footer, plain = footer_of(data), footer_of(object_of(log, sections))
    assert footer.description == plain.description
    assert (footer.envelope is None) == (seals == "zstd")
    # Reads by offset and by time find the same chunks as in an object that is not sealed.
    assert [c[1:3] for c in footer.chunks] == [c[1:3] for c in plain.chunks]


@given(BATCHES, SECTIONS, SEALS, st.data())
def test_every_changed_byte_is_found(batches, sections, seals, data) -> None:
    whole = sealed_object(log_of(batches), seals, sections)
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedObject):
        read_all(bytes(damaged))


@given(BATCHES, SEALS, st.data())
def test_every_cut_is_found(batches, seals, data) -> None:
    whole = sealed_object(log_of(batches), seals)
    with pytest.raises(DamagedObject):
        read_all(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_an_object_that_is_not_sealed_has_the_bytes_of_earlier_releases() -> None:
    sections = {Section.OFFSET_INDEX: b"index", Section.LEADER_EPOCHS: b"0\n1\n1 0\n"}
    data = object_of(log_of([(3, 90, 7, 0), (2, 200, -1, 2), (1, 150, 2**40, 1)], 40), sections)
    digest = "83df37f32129767b8c189a7a8918fb660d31b8c087723f4979698e1ef772ef6e"
    assert hashlib.sha256(data).hexdigest() == digest
    assert not footer_of(data).is_sealed


def test_chunks_are_compressed_if_their_batches_are_not() -> None:
    plain = [build_batch([(NOW_MS, b"k", bytes(300), ())]) for _ in range(3)]
    packed = [build_batch([(NOW_MS, b"k", bytes(300), ())] * 9, compression="zstd")]
    log = bytearray()
    for offset, data in enumerate([*plain, *packed]):
        assign(data, 0, offset * 10, 3)
        log += data
    footer = footer_of(sealed_object(bytes(log), "zstd"))
    assert [chunk.codec for chunk in footer.chunks[:3]] == [4, 4, 4]
    assert footer.chunks[-1].codec == 0
    assert footer.chunks_end < len(log) / 3


def test_the_store_sees_neither_records_nor_keys() -> None:
    log = log_of([(1, 100, 5, 0)] * 8)
    data = sealed_object(log, "encrypted", {Section.PRODUCER_SNAPSHOT: b"secret producers"})
    assert bytes(50) in log
    for secret in (bytes(50), b"secret producers", *KEYS.values()):
        assert secret not in data
    footer = footer_of(data)
    envelope = footer.envelope
    assert envelope is not None
    assert envelope.key_id == "first"
    again = footer_of(sealed_object(log, "encrypted")).envelope
    assert again is not None
    assert again.data_key != envelope.data_key, "each object has a data key of its own"
    sizes = [end - start for start, end in map(footer.get_chunk_range, range(len(footer.chunks)))]
    assert sum(sizes) == len(log) + len(sizes) * TAG_BYTES


def test_a_part_at_another_place_is_refused() -> None:
    """A store may answer with another part of the object, whose checksum is right."""
    log = log_of([(1, 100, 5, 0)] * 8)
    data = sealed_object(log, "encrypted")
    footer = footer_of(data)
    assert len(footer.chunks) > 1
    first, second = footer.get_chunk_range(0), footer.get_chunk_range(1)
    swapped = footer._replace(
        chunks=(footer.chunks[0]._replace(crc=footer.chunks[1].crc), *footer.chunks[1:])
    )
    assert second.end - second.start == first.end - first.start
    with pytest.raises(DamagedObject, match=r"chunk 0 of segment.*it fails its authentication"):
        swapped.open_chunk(0, data[slice(*second)], footer.open_cipher(Ring()))


def test_an_envelope_fits_its_object_alone() -> None:
    footer = footer_of(sealed_object(log_of([(1, 10, 5, 0)]), "encrypted"))
    for moved in (
        footer._replace(description=footer.description._replace(partition=4)),
        footer._replace(description=footer.description._replace(cluster_id="other")),
    ):
        with pytest.raises(KeyUnavailable):
            moved.open_cipher(Ring())


def test_every_attempt_sends_the_same_bytes() -> None:
    log = bytearray(log_of([(2, 100, 5, 0)] * 6))
    source = source_of(bytes(log), "both")
    assert b"".join(source.iter_chunks()) == b"".join(source.iter_chunks())
    live = log
    found = scan(reader(live), len(log), chunk_bytes=CHUNK_BYTES)
    described = describe(bytes(log), found)
    source = SealedSource(reader(live), described, found.chunks, {}, sealer(described, "both"))
    list(source.iter_chunks())
    live[len(log) // 2] ^= 1
    with pytest.raises(OSError, match="of the segment have changed"):
        list(source.iter_chunks())


def ring(storage: MemoryStorage | None = None, **files: bytes) -> KeyDirectory:
    storage = MemoryStorage() if storage is None else storage
    storage.make_directory("keys")
    for name, data in files.items():
        storage.replace_file(f"keys/{name}", data, sync=True)
    return KeyDirectory(storage, "keys")


def test_keys_are_files() -> None:
    text = base64.b64encode(KEYS["first"])
    storage = MemoryStorage()
    keys = ring(storage, a=text, b=b"  " + text + b"\n")
    assert keys.get_secret("a") == keys.get_secret("b") == KEYS["first"]
    with pytest.raises(KeyUnavailable, match=r"'c' is missing in .*key\.directory.*keys/c\. Put"):
        keys.get_secret("c")
    storage.replace_file("keys/c", base64.b64encode(KEYS["second"]), sync=True)
    assert keys.get_secret("c") == KEYS["second"], "it is read when it is used"


@pytest.mark.parametrize("text", [b"", b"short", base64.b64encode(bytes(31)), b"\xff" * 44])
def test_an_invalid_key_names_the_remedy(text) -> None:
    with pytest.raises(
        KeyUnavailable, match=r"'a' in keys/a is invalid\. .*openssl rand -base64 32"
    ):
        ring(a=text).get_secret("a")


def test_an_id_of_a_key_is_no_path() -> None:
    """Ids come from the footers of objects, which others may write."""
    for name in ("../a", "/etc/passwd", "", ".a", "a/b"):
        with pytest.raises(KeyUnavailable, match="is not the id of a key"):
            ring().get_secret(name)
    with pytest.raises(ConfigError, match="letters, digits, dots"):
        parse(BROKER, {KEY_ID: "../a"})


def test_a_ring_that_is_needed_is_named() -> None:
    with pytest.raises(KeyUnavailable, match=r"'a' is needed.*Set .*key\.directory"):
        KeyDirectory(MemoryStorage(), "").get_secret("a")
    values = {key.name: key.default for key in BROKER.values()} | {KEY_ID: "a"}
    found = broker_rules.find_contradiction(values)
    assert found is not None
    assert f"set {KEY_DIRECTORY} to the directory" in found


def test_another_key_under_the_old_name_is_named() -> None:
    footer = footer_of(sealed_object(log_of([(1, 10, 5, 0)]), "encrypted"))
    with pytest.raises(
        KeyUnavailable,
        match=r"'first' in .* is not the one that encrypted segment",
    ):
        footer.open_cipher(Ring({"first": KEYS["second"]}))


def test_a_broker_does_not_start_without_its_key() -> None:
    async def run() -> None:
        world = World(1)
        node = world.node
        node.config = dict(node.config) | {KEY_ID: "2026"}
        cache: Any = None
        with pytest.raises(InvalidConfig, match=r"key\.id=2026: the key '2026' is missing"):
            Sealing(node, cache)
        world.add_key("2026")
        Sealing(node, cache)

    asyncio.run(run())


def sealed_world(seed: int, fault_rate: float = 0.0) -> World:
    """Return a world that compresses and encrypts."""
    world = World(seed, fault_rate)
    world.add_key("k0")
    world.configs |= {COMPRESSION: "zstd", KEY_ID: "k0"}
    return world


def key_ids(world: World) -> list[str]:
    """Return the keys of the objects in the store, in order of their offsets."""
    footers = [footer_of(world.store.objects[key]) for key in sorted(world.segment_keys())]
    return ["" if f.envelope is None else f.envelope.key_id for f in footers]


def test_keys_rotate_while_old_objects_stay_readable() -> None:
    async def run() -> None:
        world = World(2)
        world.produce(8)
        await world.run_pass()
        plain = len(world.segment_keys())
        world.configs |= {COMPRESSION: "zstd"}
        world.produce(8)
        await world.run_pass()
        for name in ("k1", "k2"):
            world.add_key(name)
            world.configs[KEY_ID] = name
            world.produce(8)
            await world.run_pass()
        found = key_ids(world)
        assert found[:plain] == [""] * plain
        assert list(dict.fromkeys(found)) == ["", "k1", "k2"]
        await world.read_all()
        await world.check_the_end()

    asyncio.run(run())


def test_without_its_key_a_segment_is_unreadable_until_the_key_is_back() -> None:
    async def run() -> None:
        world = sealed_world(3)
        world.produce(12)
        await world.run_pass()
        saved = world.storage.read_file("keys/k0")
        world.storage.remove("keys/k0")
        assert world.log.read(0, 500).data == b"", "the footer is read without a key"
        await world.arrived.wait()
        world.arrived.clear()
        assert world.log.read(0, 500).data == b""
        await world.arrived.wait()
        with pytest.raises(RemoteUnavailable, match="'k0' is missing"):
            world.log.read(0, 500)
        before = len(world.segment_keys())
        world.produce(8)
        with pytest.raises(KeyUnavailable, match="'k0' is missing"):
            await world.copier.run(world.partition)
        assert len(world.segment_keys()) == before
        world.storage.replace_file("keys/k0", saved, sync=True)
        await world.run_pass()
        await world.check_the_end()

    asyncio.run(run())


def forge(world: World, key: str) -> None:
    """Replace an object by one of the same size in the clear, with records of somebody else."""
    real = world.store.objects[key]
    described = footer_of(real).description
    log = bytearray()
    for offset in range(described.base_offset, described.end_offset + 1):
        data = build_batch([(NOW_MS, b"k", b"", ())])
        assign(data, 0, offset, 0)
        log += data
    found = scan(reader(log), len(log))
    end = build_tail(described._replace(log_size=len(log)), found.chunks, {})
    world.store.objects[key] = bytes(log).ljust(len(real) - len(end), b"\0") + end


async def read_fails(world: World, match: str) -> None:
    """Read the first record, which ends with an error that matches."""
    world.arrived.clear()
    assert world.log.read(0, 500).data == b""
    await world.arrived.wait()
    with pytest.raises(RemoteUnavailable, match=match):
        world.log.read(0, 500)


def test_an_encrypted_object_is_not_replaced_by_one_in_the_clear() -> None:
    """Also not once nothing is encrypted any more, and objects in the clear are accepted."""

    async def run() -> None:
        world = World(4)
        world.add_key("k0")
        world.configs[KEY_ID] = "k0"
        world.produce(12)
        await world.run_pass()
        key = min(world.segment_keys())
        saved = world.store.objects[key]
        forge(world, key)
        assert len(world.store.objects[key]) == len(saved)
        world.configs |= {KEY_ID: "", CLEAR_SEGMENTS: True}
        refused = f"{key} is not encrypted, and it was when it was copied"
        await read_fails(world, refused)
        first = next(iter(world.metadata.get_remote(KEY)))
        with pytest.raises(DamagedObject, match=refused):
            await world.reader.fetch_state_behind(first)
        world.store.objects[key] = saved
        world.node.clock.ms += 2_000
        await world.read_all()

    asyncio.run(run())


def test_objects_in_the_clear_that_only_the_bucket_knows_need_consent() -> None:
    """The manifest names them, and every writer of the bucket can write one that does. With a key
    they are refused: nothing of the cluster itself says that it has copied them in the clear."""

    async def run() -> None:
        world = World(5)
        world.produce(12)
        await world.run_pass()
        world.metadata.lose()
        world.start()
        await world.run_pass()
        await world.read_all()
        world.start()
        world.add_key("k0")
        world.configs[KEY_ID] = "k0"
        await read_fails(world, f"no metadata of this cluster.*{CLEAR_SEGMENTS}=true")
        world.configs[CLEAR_SEGMENTS] = True
        world.node.clock.ms += 2_000
        await world.read_all()
        await world.check_the_end()

    asyncio.run(run())


def test_a_crash_at_every_third_step() -> None:
    async def run(crash_at: int) -> bool:
        world = sealed_world(1)
        world.steps.crash_at = crash_at
        try:
            await scenario(world)
        except Crash:
            world.check_manifest()
            world.metadata.lose()
            world.start()
            await world.run_pass()
            await world.read_all()
            await world.check_the_end()
            return True
        return False

    crash_at = 1
    while asyncio.run(run(crash_at)):
        crash_at += 3
    assert crash_at > 20


@pytest.mark.parametrize("number", range(8))
def test_faults_and_rotations(number) -> None:
    """A put is repeated with the same bytes: the store of the test checks its size."""

    async def run() -> None:
        world = sealed_world(SEED + number, fault_rate=0.25)
        draw = random.Random(SEED + number)
        for round_ in range(5):
            if draw.random() < 0.5:
                name = f"k{round_}"
                world.add_key(name)
                world.configs[KEY_ID] = draw.choice([name, ""])
                world.configs[COMPRESSION] = draw.choice(["zstd", "uncompressed"])
            world.produce(draw.randint(0, 8))
            await world.run_pass()
            world.check_manifest()
            await world.read_all()
        await world.check_the_end()

    asyncio.run(run())
