"""Bodies with many entries: they are read in slices, and the entries of all arrays count together,
also where an API has a parser of its own."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from kio.static.constants import EntityType
from shoal.protocol import codec, frames, share, slices
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import WireError
from shoal.server.handlers import HANDLERS
from support.attacks.large_requests import Filler, find_arrays, make_large_requests

if TYPE_CHECKING:
    from shoal.protocol.schema import Struct

#: APIs whose entries are read at once: Produce has half as many as others, and takes 3 us for each;
#: ACLs have few.
AT_ONCE = {ApiKey.PRODUCE, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS}
SHARED = {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE}
OWN_PARSERS = sorted(key for key, row in HANDLERS.items() if row.read is not None)


def name_of(key: int) -> str:
    return ApiKey(key).name


@pytest.mark.parametrize("key", sorted(set(HANDLERS) - AT_ONCE), ids=name_of)
def test_each_array_is_read_in_slices(key: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (slices, share):
        monkeypatch.setattr(module, "SLICE_ENTRIES", 10)
    row = HANDLERS[key]
    version = row.versions[-1]
    for large in make_large_requests(ApiKey(key), version, entries=60):
        at = frames.read_request_header(large.frame, row.versions).body_at
        read = row.read_in_slices
        view = memoryview(large.frame)
        parts = (
            codec.read_request_in_slices(key, version, view, at)
            if read is None
            else read(version, view, at)
        )
        count = 0
        while True:
            try:
                next(parts)
            except StopIteration:
                break
            count += 1
        # Alike acknowledgements, and numbers, are read by one call for all.
        is_at_once = ".acknowledge" in large.path or large.path.startswith("forgotten")
        assert count >= 5 or (is_at_once and key in SHARED), large.path


def find_nested_arrays(layout: Struct) -> list[tuple[str, ...]]:
    """Return the paths of arrays in entries of an outer array."""
    paths = sorted(find_arrays(layout))
    return [inner for outer, inner in pairwise(paths) if inner[: len(outer)] == outer]


def build_frame(key: int, version: int, body: dict[str, Any]) -> bytes:
    frame = bytearray(frames.build_request_head(ApiKey(key), version, 1, "c"))
    codec.get_writer(key, version, EntityType.request)(frame, body)
    return bytes(frame)


def read(key: int, frame: bytes | bytearray) -> None:
    row = HANDLERS[key]
    assert row.read is not None
    header = frames.read_request_header(frame, row.versions)
    row.read(header.api_version, memoryview(frame), header.body_at)


@pytest.mark.parametrize("key", OWN_PARSERS, ids=name_of)
def test_entries_of_all_arrays_count_together(key: int) -> None:
    """60 topics with 19,000 partitions each once took a share acknowledgement 1.6 s."""
    version = HANDLERS[key].versions[-1]
    layout = codec.build_struct(codec.load_entity(key, version, EntityType.request))
    most = codec.find_max_entries(key)
    for path in find_nested_arrays(layout):
        if not {"acknowledgement_batches", "forgotten_topics_data"}.isdisjoint(path):
            continue  # What is read at once has a limit of its own.
        body = Filler(path, most // 3 + 10).struct(layout)
        for count, is_admitted in ((2, True), (3, False)):
            outer = body[path[0]] * count
            frame = build_frame(key, version, {**body, path[0]: outer})
            if is_admitted:
                read(key, frame)
            else:
                with pytest.raises(WireError):
                    read(key, frame)


@pytest.mark.parametrize(
    ("key", "ends"),
    [
        (ApiKey.PRODUCE, (-3, -2, -1)),
        (ApiKey.SHARE_ACKNOWLEDGE, (-3, -2, -1)),
        (ApiKey.SHARE_FETCH, (-4, -3, -1)),  # Between them are the topics that leave the session.
    ],
    ids=["produce", "share acknowledge", "share fetch"],
)
def test_unknown_tags_count_as_entries(key: ApiKey, ends: tuple[int, ...]) -> None:
    """A produce of 20 MB with 10,000 tags for each partition once took 2 s. `ends` are the places
    of the tags of a partition, of its topic and of the request."""
    version = HANDLERS[key].versions[-1]
    layout = codec.build_struct(codec.load_entity(key, version, EntityType.request))
    outer = "topic_data" if key is ApiKey.PRODUCE else "topics"
    inner = "partition_data" if key is ApiKey.PRODUCE else "partitions"
    whole = build_frame(key, version, Filler((outer, inner), 1).struct(layout))
    tags = b"\xd8\x36" + b"\xf0\x2e\0" * 7_000
    for count, is_admitted in ((2, True), (3, False)):
        frame = bytearray(whole)
        for end in sorted(ends[:count], reverse=True):
            at = len(whole) + end
            assert not frame[at], "a struct without tags"
            frame[at : at + 1] = tags
        if is_admitted:
            read(key, frame)
        else:
            with pytest.raises(WireError):
                read(key, frame)
