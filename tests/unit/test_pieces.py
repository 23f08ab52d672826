"""Requests of many entries are handled in pieces, and their answers are joined."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.constants import EntityType
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.frames import RequestHeader
from shoal.protocol.schema import Struct
from shoal.server.handlers import HANDLERS
from shoal.server.network import pieces
from shoal.server.network.api import Api, Peer, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

PEER = Peer("127.0.0.1", 1, "PLAINTEXT", "User:ANONYMOUS", "1")
#: Sizes of the arrays in an array.
arrays = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@dataclasses.dataclass
class Topic:
    name: str
    partitions: list[int]


@dataclasses.dataclass
class Group:
    group_id: int
    topics: list[Topic]


def topics(sizes: list[int]) -> list[Topic]:
    return [Topic(f"t{n}", list(range(size))) for n, size in enumerate(sizes)]


@given(arrays, st.integers(2, 40))
def test_pieces_have_all_entries_and_are_bounded(sizes: list[int], size: int) -> None:
    whole: list[Any] = []
    for piece in pieces.cut(topics(sizes), ["partitions"], size):
        assert pieces.count_entries(piece.entries, ["partitions"]) <= size
        pieces.join(whole, as_mappings(piece.entries), ["partitions"], piece.joins)
    assert whole == as_mappings(topics(sizes))


@given(st.lists(arrays, min_size=1, max_size=4), st.integers(3, 40))
def test_three_arrays_deep(sizes: list[list[int]], size: int) -> None:
    groups = [Group(n, topics(found)) for n, found in enumerate(sizes)]
    whole: list[Any] = []
    for piece in pieces.cut(groups, ["topics", "partitions"], size):
        assert pieces.count_entries(piece.entries, ["topics", "partitions"]) <= size
        pieces.join(whole, as_mappings(piece.entries), ["topics", "partitions"], piece.joins)
    assert whole == as_mappings(groups)


def as_mappings(entries: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the answer of a handler that repeats its request. Pieces have tuples as arrays."""
    return json.loads(json.dumps([dataclasses.asdict(entry) for entry in entries]))


def delete_groups(count: int, request_id: bytes = b"") -> Request:
    entity = codec.entity(ApiKey.DELETE_GROUPS, 2, EntityType.request)
    body = entity(groups_names=tuple(f"g{n}" for n in range(count)))
    header = RequestHeader(ApiKey.DELETE_GROUPS, 2, 1, "c", 0)
    return Request(header, body, PEER, size=8 * count, id=request_id)


def answer(api: Api, request: Request) -> Any:
    """Return the body of the answer, and the number of turns that the handler got."""

    async def run() -> Any:
        answer: Any = pieces.handle(api, None, request)
        return await answer if isinstance(answer, asyncio.Future) else answer

    return asyncio.run(run())


def test_each_piece_has_a_turn_and_an_id_of_its_own() -> None:
    parts: list[Request] = []

    def handle(_: object, part: Request) -> Any:
        parts.append(part)
        results = [{"group_id": name, "error_code": 0} for name in part.body.groups_names]
        return {"throttle_time_ms": 0, "results": results}

    api = dataclasses.replace(HANDLERS[ApiKey.DELETE_GROUPS], handle=handle)
    count = 2 * pieces.PIECE_ENTRIES + 1
    for _ in range(2):
        request = delete_groups(count, bytes(16))
        body = answer(api, request)
        assert [one["group_id"] for one in body["results"]] == [f"g{n}" for n in range(count)]
        assert request.is_in_pieces
    assert len(parts) == 6
    ids = [part.id for part in parts]
    assert ids[:3] == ids[3:], "the same request again is cut in the same way"
    assert len(set(ids)) == 3
    small = delete_groups(pieces.PIECE_ENTRIES)
    answer(api, small)
    assert not small.is_in_pieces


def test_a_refusal_of_a_piece_refuses_the_request() -> None:
    calls: list[Request] = []

    def handle(_: object, part: Request) -> Any:
        calls.append(part)
        if len(calls) == 2:
            raise ApiError(ErrorCode.not_coordinator)
        return {"results": []}

    api = dataclasses.replace(HANDLERS[ApiKey.DELETE_GROUPS], handle=handle)
    with pytest.raises(ApiError):
        answer(api, delete_groups(10 * pieces.PIECE_ENTRIES))
    assert len(calls) == 2


def test_the_table_names_arrays_of_the_schemas() -> None:
    for key, alternatives in pieces.TABLE.items():
        versions = HANDLERS[key].versions
        for path, answer_path in alternatives:
            assert len(path) == len(answer_path)
            found = {
                (has(key, version, EntityType.request, path))
                and (has(key, version, EntityType.response, answer_path))
                for version in versions
            }
            assert True in found, f"{ApiKey(key).name}: {path} to {answer_path}"


def has(key: int, version: int, kind: codec.Kind, path: tuple[str, ...]) -> bool:
    layout: Any = codec.struct_of(codec.entity(key, version, kind))
    for name in path:
        if not isinstance(layout, Struct):
            return False
        field = next((f for f in layout.fields if f.name == name and f.array), None)
        if field is None:
            return False
        layout = field.type
    return True


@given(st.lists(st.sampled_from(["short", "x" * 32_767]), min_size=1, max_size=20))
def test_long_names_count_as_many_entries(names: list[str]) -> None:
    found = list(pieces.cut([Topic(name, []) for name in names], ["partitions"], 300))
    assert [topic.name for piece in found for topic in piece.entries] == names
    for piece in found:
        assert sum(len(topic.name) for topic in piece.entries) <= 300 * pieces.NAME_CHARS
    assert [piece.entries for piece in pieces.cut(names, (), 100)] == [
        part for part in _runs(names) if part
    ]


def _runs(names: list[str]) -> list[list[str]]:
    """Return runs of short names, and each long one alone, as far as it fills a piece."""
    runs: list[list[str]] = [[]]
    for name in names:
        if len(name) > 100 * pieces.NAME_CHARS:
            runs += [[name], []]
        else:
            runs[-1].append(name)
    return runs
