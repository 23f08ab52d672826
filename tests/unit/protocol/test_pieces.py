"""Requests of many entries are handled in pieces, and their answers are joined."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.static.constants import EntityType
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.frames import RequestHeader
from shoal.protocol.produce import ProduceRequest, ProduceTopic
from shoal.protocol.schema import Struct
from shoal.record.records import build_batch
from shoal.server.handlers import HANDLERS
from shoal.server.network import large_answers, pieces
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


class Partitions(NamedTuple):
    has_deduplication: bool


class Context(NamedTuple):
    """What pieces look at in a broker."""

    partitions: Partitions


WITHOUT_IDS = Context(Partitions(False))


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


@dataclasses.dataclass
class Pages(Topic):
    in_flight_from: list[int]


@given(arrays, st.integers(2, 10))
def test_an_array_beside_another_is_cut_at_the_same_places(sizes: list[int], size: int) -> None:
    whole = [Pages(t.name, t.partitions, [n * 10 for n in t.partitions]) for t in topics(sizes)]
    for piece in pieces.cut(whole, ["partitions"], size):
        for part in piece.entries:
            assert list(part.in_flight_from) == [n * 10 for n in part.partitions]


def test_an_answer_is_not_joined_to_that_of_another_topic() -> None:
    """A handler may answer once for a topic that is in a piece twice; then another one is last."""
    whole = as_mappings([Topic("a", [1, 2]), Topic("b", [1])])
    pieces.join(whole, as_mappings([Topic("a", [3])]), ["partitions"], 1)
    assert whole == as_mappings([Topic("a", [1, 2]), Topic("b", [1]), Topic("a", [3])])


def as_mappings(entries: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the answer of a handler that repeats its request. Pieces have tuples as arrays."""
    return json.loads(json.dumps([dataclasses.asdict(entry) for entry in entries]))


def delete_groups(count: int, request_id: bytes = b"") -> Request:
    entity = codec.load_entity(ApiKey.DELETE_GROUPS, 2, EntityType.request)
    body = entity(groups_names=tuple(f"g{n}" for n in range(count)))
    header = RequestHeader(ApiKey.DELETE_GROUPS, 2, 1, "c", 0)
    return Request(header, body, PEER, size=8 * count, id=request_id)


def answer(api: Api, request: Request, context: object = WITHOUT_IDS) -> Any:
    """Return the body of the answer, and the number of turns that the handler got."""

    async def run() -> Any:
        answer: Any = pieces.handle(api, context, request)
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
        if HANDLERS[key].read is not None:
            continue  # Its names are those of its own reader.
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
    layout: Any = codec.build_struct(codec.load_entity(key, version, kind))
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


def make_request(key: int, version: int, body: dict[str, Any]) -> Request:
    data = codec.write_request(key, version, body)
    parsed = codec.read_request(key, version, memoryview(data))
    return Request(RequestHeader(key, version, 1, None, 0), parsed, PEER, 0, len(data))


def test_all_offsets_of_a_group_are_a_piece_and_are_answered_once() -> None:
    parts: list[list[str]] = []

    def handle(_: object, part: Request) -> Any:
        names = [group.group_id for group in part.body.groups]
        parts.append(names)
        return {"groups": [{"group_id": name} for name in names]}

    api = dataclasses.replace(HANDLERS[ApiKey.OFFSET_FETCH], handle=handle)
    groups: list[dict[str, Any]]
    groups = [{"group_id": f"g{n % 5}", "topics": None} for n in range(500)]
    topic = {"name": "t", "partition_indexes": [0]}
    groups += [{"group_id": "named", "topics": [topic]}] * 2
    request = make_request(ApiKey.OFFSET_FETCH, 8, {"groups": groups, "require_stable": False})
    body = answer(api, request)
    assert [group["group_id"] for group in body["groups"]] == [
        *(f"g{n}" for n in range(5)),
        "named",
        "named",
    ]
    assert max(sum(name != "named" for name in names) for names in parts) <= 2


def produce_to(partitions: int, acks: int) -> Request:
    batch = memoryview(b"batch")
    topics = [ProduceTopic("t", None, [(index, batch) for index in range(partitions)])]
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "c", 0)
    return Request(header, ProduceRequest(None, acks, 1, topics), PEER, size=100 * partitions)


def test_a_produce_to_many_partitions_is_handled_in_pieces() -> None:
    """The leaders that refusals name are those of all pieces."""
    sizes: list[int] = []
    size = pieces.WIDE_PRODUCE_MIN

    def handle(_: object, part: Request) -> Any:
        indexes = [index for index, _ in part.body.topics[0].partitions]
        sizes.append(len(indexes))
        if not part.body.acks:
            return None
        results = [{"index": index} for index in indexes]
        nodes = [{"node_id": 1}, {"node_id": len(sizes)}]
        return {
            "responses": [{"name": "t", "partition_responses": results}],
            "node_endpoints": nodes,
        }

    api = dataclasses.replace(HANDLERS[ApiKey.PRODUCE], handle=handle)
    body = answer(api, produce_to(2 * size, 1))
    assert max(sizes) < pieces.PIECE_ENTRIES_OF[ApiKey.PRODUCE]
    assert [result["index"] for result in body["responses"][0]["partition_responses"]] == [
        *range(2 * size)
    ]
    assert len(body["node_endpoints"]) == len(sizes)
    assert answer(api, produce_to(2 * size, 0)) is None
    sizes.clear()
    answer(api, produce_to(size - 1, 1))
    assert sizes == [size - 1]


def test_a_batch_of_many_records_is_a_piece_where_their_ids_are_looked_for() -> None:
    pieces_of_request: list[int] = []

    def handle(_: object, part: Request) -> Any:
        partitions = part.body.topics[0].partitions
        pieces_of_request.append(len(partitions))
        results = [{"index": index} for index, _ in partitions]
        return {"responses": [{"name": "t", "partition_responses": results}]}

    api = dataclasses.replace(HANDLERS[ApiKey.PRODUCE], handle=handle)
    batch = memoryview(bytes(build_batch([(1, None, b"", ())] * 9_000)))
    for has_deduplication, sizes in ((True, [1, 1, 1]), (False, [3])):
        pieces_of_request.clear()
        request = produce_to(3, 1)
        topics = [ProduceTopic("t", None, [(index, batch) for index in range(3)])]
        request.body = request.body._replace(topics=topics)
        request.size = 3 * len(batch)
        answer(api, request, Context(Partitions(has_deduplication)))
        assert pieces_of_request == sizes


def make_answer(key: int, version: int) -> tuple[dict[str, Any], list[str]]:
    """Return a body that has 50 entries in each of the arrays that may be long, and their path."""
    for _, path in pieces.TABLE[key]:
        if has(key, version, EntityType.response, path):
            layout = codec.build_struct(codec.load_entity(key, version, EntityType.response))
            return fill(layout, path), list(path)
    pytest.skip("this version has another array")


def fill(layout: Struct, path: Sequence[str]) -> dict[str, Any]:
    (kind,) = (field.type for field in layout.fields if field.name == path[0])
    assert isinstance(kind, Struct)
    if len(path) > 1:
        return {path[0]: [fill(kind, path[1:])] * 50}
    names = [field.name for field in kind.fields if field.type == "string" and not field.array]
    return {path[0]: [dict.fromkeys(names, f"v{n}") for n in range(50)]}


@pytest.mark.parametrize("key", [*pieces.HEAVY, ApiKey.LIST_OFFSETS, ApiKey.DELETE_GROUPS])
def test_large_answers_are_encoded_in_turns(key: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_answers, "ENTRIES_MIN", 50)
    monkeypatch.setattr(large_answers, "STEP_S", 0.0)
    for version in (HANDLERS[key].versions[0], HANDLERS[key].versions[-1]):
        body, path = make_answer(key, version)
        header = RequestHeader(key, version, 1, None, 0)
        turns = 0

        async def encode(
            header: RequestHeader = header, body: Any = body, path: list[str] = path
        ) -> Any:
            nonlocal turns
            encoding = asyncio.ensure_future(large_answers.encode_in_turns(header, body, path))
            while not encoding.done():
                turns += 1
                await asyncio.sleep(0)
            return encoding.result()

        encoded = asyncio.run(encode())
        assert b"".join(encoded) == codec.write_response(key, version, body)
        assert turns > 2
