"""Hostile requests: for any bytes, a parser returns a body or raises `WireError`, in bounded
memory. Every served API and version, from mutated requests and from noise; `make fuzz` has far
more of both."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.static.constants import EntityType
from shoal.protocol import codec, frames, length_check, produce, slices
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import WireError
from shoal.protocol.schema import Struct
from shoal.server.handlers import HANDLERS
from support.runs.example_counts import scale_examples

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEST = EntityType.request
#: Places in a message to which a test moves a damage.
PLACES = 60
SERVED = [(key, version) for key, row in sorted(HANDLERS.items()) for version in row.versions]


def example(rng: random.Random, struct: Struct, depth: int = 0) -> dict[str, object]:
    """Return a random body of that layout."""

    def one(kind: str | Struct) -> object:
        if isinstance(kind, Struct):
            return example(rng, kind, depth + 1)
        if kind == "string":
            return rng.choice(["", "topic", "x" * 130])
        if kind in ("bytes", "records"):
            return rng.randbytes(rng.choice([0, 5, 200]))
        if kind == "uuid":
            return None
        return False if kind == "bool" else rng.choice([0, 1, 100])

    body: dict[str, object] = {}
    for field in struct.fields:
        if field.array:
            body[field.name] = [one(field.type) for _ in range(rng.choice([0, 1, 2]))]
        else:
            body[field.name] = one(field.type)
    return body


def places(rng: random.Random, first: int, end: int) -> list[int]:
    """Return all places of a short message, and some of a long one."""
    return rng.sample(range(first, end), min(scale_examples(PLACES), end - first))


def parse(key: int, frame: bytearray) -> None:
    """Parse header and body, as dispatch does."""
    with contextlib.suppress(WireError):
        read(key, frame)


def read(key: int, frame: bytearray) -> None:
    """Parse header and body. Raises `WireError`."""
    row = HANDLERS[key]
    view = memoryview(frame)
    header = frames.read_request_header(view, row.versions)
    if header.api_version not in row.versions or header.api_key != key:
        return
    if row.read is not None:
        row.read(header.api_version, view, header.body_at)
    else:
        source = key, header.api_version, view.toreadonly(), header.body_at
        try:
            body = codec.read_request(*source)
        except WireError:
            with pytest.raises(WireError):
                slices.drain(codec.read_request_in_slices(*source))
            raise
        in_slices = slices.drain(codec.read_request_in_slices(*source))
        # With tags of ours that have their defaults, the one has attributes of plain values.
        if isinstance(in_slices, SimpleNamespace) == isinstance(body, SimpleNamespace):
            assert repr(in_slices) == repr(body)  # In which NaN equals itself.


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].key.name)
def test_mutated_requests(key: int, seed: int) -> None:
    for version in HANDLERS[key].versions:
        struct = codec.build_struct(codec.load_entity(key, version, REQUEST))
        for number in range(scale_examples(10)):
            rng = random.Random(f"{seed}.{key}.{version}.{number}")
            body = codec.write_request(key, version, example(rng, struct))
            frame = bytearray(frames.build_request_head(key, version, 1, "c") + body)
            parse(key, frame)
            for _ in range(rng.choice([1, 2, 8])):
                at = rng.randrange(4, len(frame))
                frame[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            parse(key, frame)
            parse(key, frame[: rng.randrange(len(frame))])


def with_a_null(struct: Struct) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield bodies with one null string, or null bytes, where the layout has none; and its name."""
    plain = {field.name: field.default for field in struct.fields if field.tag is None}
    for field in struct.fields:
        if isinstance(field.type, Struct) and field.tag is None:
            for name, inner in with_a_null(field.type):
                body = [inner] if field.array else inner
                yield f"{field.name}.{name}", {**plain, field.name: body}
        elif field.type in ("string", "bytes") and field.tag is None and not field.nullable:
            yield field.name, {**plain, field.name: [None] if field.array else None}


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].key.name)
def test_a_null_where_there_is_none_is_refused(key: int) -> None:
    """So no handler meets one: an HMAC of None was a traceback in the log."""
    accepted = []
    for version in HANDLERS[key].versions:
        for name, fields in with_a_null(
            codec.build_struct(codec.load_entity(key, version, REQUEST))
        ):
            body = codec.write_request(key, version, fields)
            with contextlib.suppress(WireError):
                read(key, bytearray(frames.build_request_head(key, version, 1, "c") + body))
                accepted.append((version, name))
    assert accepted == []


@settings(max_examples=scale_examples(300), deadline=None)
@given(st.sampled_from(SERVED), st.binary(max_size=300))
def test_noise(served: tuple[int, int], noise: bytes) -> None:
    key, version = served
    parse(key, bytearray(frames.build_request_head(key, version, 1, "c") + noise))


@settings(max_examples=scale_examples(300), deadline=None)
@given(st.sampled_from(list(range(3, 14))), st.binary(max_size=300))
def test_noise_as_produce(version: int, noise: bytes) -> None:
    try:
        produce.read(version, memoryview(noise), 0)
    except WireError:
        pass


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff"])
def test_announced_arrays_cost_no_memory(count: bytes) -> None:
    """A count of millions wherever a count is possible, without bytes after it."""
    tracemalloc.start()
    try:
        for key, version in SERVED:
            head = frames.build_request_head(key, version, 1, "c")
            for before in range(0, 40, 16):
                parse(key, bytearray(head + bytes(before) + count))
                parse(key, bytearray(head + b"\x01" * before + count))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].key.name)
def test_unknown_tagged_fields_are_ignored(key: int) -> None:
    """KIP-482: an older broker ignores tags that a newer client adds."""
    for version in HANDLERS[key].versions:
        if not codec.is_flexible(key, version):
            continue
        struct = codec.build_struct(codec.load_entity(key, version, REQUEST))
        # Non-nullable fields are given, tagged ones left out: the last byte is the tag count.
        fields = {f.name: f.default for f in struct.fields if f.tag is None}
        body = codec.write_request(key, version, fields)
        assert body[-1] == 0
        tagged = bytes(body[:-1]) + b"\x01\x8f\x4e\x03abc"
        row = HANDLERS[key]
        # A Fetch with such a tag has the type of the general codec (`test_fetch_codec`).
        if row.read is not None and key != ApiKey.FETCH:
            read = row.read
            assert read(version, memoryview(tagged), 0) == read(version, memoryview(body), 0)
        else:
            plain = codec.read_request(key, version, bytes(body))
            assert codec.read_request(key, version, tagged) == plain


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].key.name)
def test_an_array_may_announce_any_length(key: int, seed: int) -> None:
    """Two billion entries, announced at any place of a request: kio would reserve memory for them
    and end the process (first seen with 34 GB for AlterPartitionReassignments)."""
    rng = random.Random(f"{seed}.{key}")
    for version in HANDLERS[key].versions:
        claim = b"\xff\xff\xff\xff\x07" if codec.is_flexible(key, version) else b"\x7f\xff\xff\xff"
        layout = codec.build_struct(codec.load_entity(key, version, REQUEST))
        body = codec.write_request(key, version, example(rng, layout))
        frame = bytearray(frames.build_request_head(key, version, 1, "c") + body)
        for at in places(rng, 8, len(frame)):
            parse(key, frame[:at] + claim + frame[at + len(claim) :])


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].key.name)
def test_skimming_ends_where_the_message_does(key: int) -> None:
    rng = random.Random(key)
    for version in HANDLERS[key].versions:
        layout = codec.build_struct(codec.load_entity(key, version, REQUEST))
        for _ in range(scale_examples(5)):
            body = codec.write_request(key, version, example(rng, layout))
            assert length_check.compile_check(layout)(body, 0, 10_000)[0] == len(body)
            if body:
                with pytest.raises(WireError):
                    length_check.compile_check(layout)(body[:-1], 0, 10_000)


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].key.name)
def test_a_response_may_announce_any_length(key: int, seed: int) -> None:
    """Our client also does not trust a broker's lengths."""
    rng = random.Random(f"{seed}.{key}")
    for version in HANDLERS[key].versions:
        layout = codec.build_struct(codec.load_entity(key, version, EntityType.response))
        body = codec.write_response(key, version, example(rng, layout))
        claim = b"\xff\xff\xff\xff\x07" if layout.flexible else b"\x7f\xff\xff\xff"
        assert codec.read_response(key, version, bytes(body)) is not None
        for at in places(rng, 0, len(body)):
            try:
                codec.read_response(key, version, bytes(body[:at] + claim + body[at + 5 :]))
            except WireError:
                pass


def test_a_struct_is_null_by_minus_one_alone() -> None:
    """Kafka writes 1 or -1. With 0 the parser read bytes that were not checked before, and a length
    of 57 GB in them ended the process."""
    key, version = ApiKey.CONSUMER_GROUP_HEARTBEAT, 0
    topic_id = UUID(int=1)
    topic = {"topic_id": topic_id, "partitions": (1, 2, 3)}
    body = codec.write_response(key, version, {"assignment": {"topic_partitions": (topic,)}})
    at = body.index(b"\x01\x02" + topic_id.bytes)
    check = length_check.compile_check(
        codec.build_struct(codec.load_entity(key, version, EntityType.response))
    )
    others = []
    for marker in range(255):
        data = bytes(body[:at]) + bytes([marker]) + bytes(body[at + 1 :])
        end = check(data, 0, 100)[0]
        found = codec.read_response(key, version, data).assignment.topic_partitions[0].partitions
        if (end, found) != (len(data), (1, 2, 3)):
            others.append((marker, end, found))
    assert others == []
