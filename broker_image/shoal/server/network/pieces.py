"""Reads and handles a request of many entries in pieces, each in a turn of the event loop of its
own.

A handler returns at once, so one call for 40,000 names would hold all other clients up for seconds,
and so would one for 200 names of 32,767 characters.
`TABLE` lists the APIs whose answer has an entry for each entry of the request. For these, the
handler is called with a part of the entries at a time, and the answers are joined. Handlers know
nothing of it. As in Kafka, such entries succeed or fail one by one. A duplicate is refused as one
in its piece; behind it, it finds what the first one did.

A request of one short name may have an answer of 10,000 entries, for instance all offsets of a
group. Such an entry weighs as much as many (`HEAVY`), and a request that repeats it gets the answer
once. A large answer is encoded in several turns, too.

The connection handles its next request after the last piece, so that the order of requests stays.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID, uuid5

from shoal.protocol.api import ApiKey
from shoal.record.batch import HEADER_SIZE, RECORD_COUNT_AT
from shoal.server.network.deferred import AWAITED
from shoal.server.network.large_answers import encode_in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shoal.protocol.produce import ProduceRequest
    from shoal.protocol.slices import Slices
    from shoal.server.network.api import Answer, Api, Body, Request

#: A request of this size or less is read at once. It has some thousand entries at most, which take
#: 20 ms.
READ_AT_ONCE_BYTES = 32 * 1024
#: Entries of a piece. The slowest handlers take 0.1 ms for each, and CreateTopics twice as long.
PIECE_ENTRIES = 500
PIECE_ENTRIES_OF: dict[int, int] = {
    ApiKey.CREATE_TOPICS: 200,
    # A file for each partition, or some if a segment is rolled.
    ApiKey.DELETE_RECORDS: 50,
    ApiKey.PRODUCE: 30,
    ApiKey.WRITE_TXN_MARKERS: 30,
    # All producers of each partition.
    ApiKey.DESCRIBE_PRODUCERS: 10,
}
#: As how many entries one counts that asks for all that a resource has, about 0.1 ms each: the
#: configs of a broker, the members of a group, or all offsets of a group.
HEAVY: dict[int, int] = {
    ApiKey.DESCRIBE_CONFIGS: 50,
    ApiKey.DESCRIBE_GROUPS: 50,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 50,
    ApiKey.SHARE_GROUP_DESCRIBE: 50,
    ApiKey.STREAMS_GROUP_DESCRIBE: 50,
    ApiKey.OFFSET_FETCH: 250,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 250,
}
#: Requests of these may be small and ask for much.
_ASK_FOR_MUCH = {*HEAVY, ApiKey.DESCRIBE_PRODUCERS}
#: An entry of these APIs that names topics asks for these alone.
_NAME_TOPICS = {ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS}
#: The characters of a name that count as one more entry: some work grows with them.
NAME_CHARS = 256
#: The records that count as one more entry of a produce, where their ids are looked for: 1 ms.
RECORDS_OF_ENTRY = 100
#: A produce with fewer entries is handled at once: it takes 3 ms, and 60 ms if it rolls segments.
WIDE_PRODUCE_MIN = 100
#: Smaller requests have no more entries than that, and no longer names.
REQUEST_BYTES_MIN = 1024
#: Larger requests may have names that are many entries' work.
REQUEST_BYTES_MAX = PIECE_ENTRIES * NAME_CHARS

#: The path of an array in a request, and of the corresponding one in the response, each from the
#: outer array to the inner one.
Paths = tuple[tuple[str, ...], tuple[str, ...]]


def _make_same_paths(*path: str) -> tuple[Paths, ...]:
    return ((path, path),)


def _split_paths(path: str, answer_path: str) -> Paths:
    return tuple(path.split(".")), tuple(answer_path.split("."))


_PARTITIONS = _make_same_paths("topics", "partitions")
_GROUPS = (_split_paths("group_ids", "groups"),)
_STATES = (_split_paths("topics.partitions", "results.partitions"),)
#: The arrays of each API. Those of earlier versions have other names.
TABLE: dict[int, tuple[Paths, ...]] = {
    ApiKey.PRODUCE: (_split_paths("topics.partitions", "responses.partition_responses"),),
    ApiKey.LIST_OFFSETS: _PARTITIONS,
    ApiKey.METADATA: _make_same_paths("topics"),
    ApiKey.OFFSET_COMMIT: _PARTITIONS,
    ApiKey.OFFSET_FETCH: (
        _split_paths("groups.topics.partition_indexes", "groups.topics.partitions"),
        _split_paths("topics.partition_indexes", "topics.partitions"),
    ),
    ApiKey.FIND_COORDINATOR: (_split_paths("coordinator_keys", "coordinators"),),
    ApiKey.DESCRIBE_GROUPS: _make_same_paths("groups"),
    ApiKey.CREATE_TOPICS: _make_same_paths("topics"),
    ApiKey.DELETE_TOPICS: (
        _split_paths("topics", "responses"),
        _split_paths("topic_names", "responses"),
    ),
    ApiKey.DELETE_RECORDS: _PARTITIONS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _PARTITIONS,
    ApiKey.ADD_PARTITIONS_TO_TXN: (_split_paths("transactions", "results_by_transaction"),),
    ApiKey.WRITE_TXN_MARKERS: (
        _split_paths("markers.topics.partition_indexes", "markers.topics.partitions"),
    ),
    ApiKey.TXN_OFFSET_COMMIT: _PARTITIONS,
    ApiKey.DESCRIBE_CONFIGS: (_split_paths("resources", "results"),),
    ApiKey.ALTER_CONFIGS: (_split_paths("resources", "responses"),),
    ApiKey.CREATE_PARTITIONS: (_split_paths("topics", "results"),),
    ApiKey.DELETE_GROUPS: (_split_paths("groups_names", "results"),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (_split_paths("resources", "responses"),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        _split_paths("topics.partitions", "responses.partitions"),
    ),
    ApiKey.OFFSET_DELETE: _PARTITIONS,
    ApiKey.DESCRIBE_PRODUCERS: (_split_paths("topics.partition_indexes", "topics.partitions"),),
    ApiKey.DESCRIBE_TRANSACTIONS: (_split_paths("transactional_ids", "transaction_states"),),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _GROUPS,
    ApiKey.SHARE_GROUP_DESCRIBE: _GROUPS,
    ApiKey.STREAMS_GROUP_DESCRIBE: _GROUPS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _STATES,
    ApiKey.READ_SHARE_GROUP_STATE: _STATES,
    ApiKey.WRITE_SHARE_GROUP_STATE: _STATES,
    ApiKey.DELETE_SHARE_GROUP_STATE: _STATES,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _STATES,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _make_same_paths("groups", "topics", "partitions"),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (_split_paths("topics.partitions", "responses.partitions"),),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (_split_paths("topics", "responses"),),
}


#: An array that has a value for each entry of another array.
BESIDE = {"partitions": "in_flight_from"}
#: What an entry of an answer is about.
SUBJECTS = ("group_id", "name", "topic_name", "topic", "topic_id")


class RequestPiece(NamedTuple):
    """Some entries of a request's array. `joins` is the number of arrays, from the outer one, in
    which the first entry continues the last one of the piece before."""

    entries: list[Any]
    joins: int


async def read(slices: Slices, request: Request, monotonic_ns: Callable[[], int]) -> None:
    """Read the body of a request, each slice in a turn of the event loop of its own. Raises
    `WireError`."""
    while True:
        begun_ns = monotonic_ns()
        try:
            next(slices)
        except StopIteration as end:
            request.body = end.value
            return
        finally:
            request.busy_ns += monotonic_ns() - begun_ns
        await asyncio.sleep(0)


def handle(api: Api, context: Any, request: Request) -> Answer:
    """Call an API's handler, in pieces if the request has many entries, or some that ask for
    much."""
    if request.size < REQUEST_BYTES_MIN and api.key not in _ASK_FOR_MUCH:
        return api.handle(context, request)
    if api.key is ApiKey.PRODUCE and not _is_wide(context, request.body):
        return api.handle(context, request)
    for path, answer_path in TABLE.get(api.key, ()):
        entries = getattr(request.body, path[0], None)
        size = PIECE_ENTRIES_OF.get(api.key, PIECE_ENTRIES)
        heavy = _find_heavy(api.key, entries) if entries else 0
        if entries and (
            request.size > REQUEST_BYTES_MAX
            or count_entries(entries, path[1:]) + heavy > size
            or (heavy and api.key in _NAME_TOPICS)
        ):
            request.is_in_pieces = True
            parts = _split_request(request, path, size)
            return asyncio.ensure_future(_handle_all(api, context, request, parts, answer_path))
        if api.key in _NAME_TOPICS and getattr(request.body, path[0], ()) is None:
            request.is_in_pieces = True  # All offsets of the one group of an early version.
            whole = [(request, 0)]
            return asyncio.ensure_future(_handle_all(api, context, request, whole, answer_path))
    return api.handle(context, request)


def _is_wide(context: Any, body: ProduceRequest) -> bool:
    """Whether a produce has many partitions, or many records where some topic looks for their ids.
    It takes 0.3 us for one of a single topic."""
    count = 0
    has_ids = context.partitions.has_deduplication
    for topic in body.topics:
        count += 1 + len(topic.partitions)
        if has_ids:
            count += sum(_count_records(data) for _, data in topic.partitions) // RECORDS_OF_ENTRY
    return count > WIDE_PRODUCE_MIN


def _count_records(data: memoryview | None) -> int:
    return 0 if data is None else int.from_bytes(data[RECORD_COUNT_AT:HEADER_SIZE], "big")


def _find_heavy(key: int, entries: Iterable[Any]) -> int:
    """Return what the entries weigh that ask for all that their resources have."""
    if key not in HEAVY:
        return 0
    return HEAVY[key] * sum(asks_for_all(key, entry) for entry in entries)


def asks_for_all(key: int, entry: Any) -> bool:
    """Whether an entry of a request gets all that the resource which it names has."""
    return key in HEAVY and (key not in _NAME_TOPICS or getattr(entry, "topics", ()) is None)


def _drop_repeated(key: int, entries: Iterable[Any]) -> list[Any]:
    """Return the entries without those that ask for the same as an earlier one."""
    if key == ApiKey.METADATA:
        return list({_get_topic(entry): entry for entry in entries}.values())
    return list(
        {
            repr(entry) if asks_for_all(key, entry) else number: entry
            for number, entry in enumerate(entries)
        }.values()
    )


def _get_topic(entry: Any) -> tuple[str | None, bytes | None]:
    """Return the topic that an entry of Metadata names."""
    topic_id = getattr(entry, "topic_id", None)
    return entry.name, topic_id and topic_id.bytes


def _split_request(
    request: Request, path: Sequence[str], size: int
) -> Iterator[tuple[Request, int]]:
    """Yield a request for each piece, and in how many arrays it continues the one before."""
    entries = getattr(request.body, path[0])
    key = request.header.api_key
    if key in HEAVY or key == ApiKey.METADATA:
        entries = _drop_repeated(key, entries)
    for number, piece in enumerate(cut(entries, path[1:], size, key)):
        body = replace_array(request.body, path[0], piece.entries)
        # An attempt that is sent again is cut in the same way.
        own_id = request.id and uuid5(UUID(bytes=request.id), str(number)).bytes
        yield dataclasses.replace(request, body=body, id=own_id), piece.joins


async def _handle_all(
    api: Api,
    context: Any,
    request: Request,
    parts: Iterable[tuple[Request, int]],
    path: Sequence[str],
) -> Body | None:
    """Call the handler for each part, join the answers, and encode them if they are large. `path`
    is the array in them."""
    answers: list[tuple[Any, int]] = []
    for part, joins in parts:
        answer: Any = api.handle(context, part)
        # A produce waits for its replicas once, and not for each piece.
        if isinstance(answer, AWAITED) and api.key is not ApiKey.PRODUCE:
            answer = await answer
        answers.append((answer, joins))
        await asyncio.sleep(0)
    joined: dict[str, Any] = {path[0]: []}
    silent = False
    for answer, joins in answers:
        if isinstance(answer, AWAITED):
            answer = await answer
        if answer is None:  # Produce with acks=0.
            silent = True
            continue
        assert isinstance(answer, Mapping), f"{api.key.name} answers a piece in bytes"
        entries = joined[path[0]]
        join(entries, list(answer.get(path[0]) or ()), path[1:], joins)
        failure = joined.get("error_code") or answer.get("error_code")
        nodes = (*joined.get("node_endpoints", ()), *answer.get("node_endpoints", ()))
        joined = {**answer, path[0]: entries}
        if failure:
            joined["error_code"] = failure
        if nodes:
            joined["node_endpoints"] = list({node["node_id"]: node for node in nodes}.values())
        await asyncio.sleep(0)
    if silent:
        return None
    return await encode_in_turns(request.header, joined, path)


def count_entries(entries: Sequence[Any], path: Sequence[str]) -> int:
    """Return the number of entries of an array and of the arrays at `path` in them."""
    count = len(entries)
    if path:
        for entry in entries:
            count += count_entries(getattr(entry, path[0], None) or (), path[1:])
    return count


def cut(
    entries: Sequence[Any], path: Sequence[str], size: int, key: int = -1
) -> Iterator[RequestPiece]:
    """Cut an array of a request of the API `key` into pieces of at most `size` entries. An entry
    with a long array at `path` is cut, too."""
    piece: list[Any] = []
    joins, room = 0, size
    for entry in entries:
        inner = (getattr(entry, path[0], None) or ()) if path else ()
        count = weigh(entry) + (_weigh_all(inner, path[1:]) if inner else 0)
        if asks_for_all(key, entry):
            count += HEAVY[key]
        if count > room and piece:
            yield RequestPiece(piece, joins)
            piece, joins, room = [], 0, size
        if count <= room or not inner:
            piece.append(entry)
            room -= count
            continue
        begin = 0
        for number, part in enumerate(cut(inner, path[1:], size - 1)):
            joins_part = 1 + part.joins if number else 0
            yield RequestPiece([_replace_part(entry, path[0], part.entries, begin)], joins_part)
            begin += len(part.entries)
    if piece:
        yield RequestPiece(piece, joins)


def _weigh_all(entries: Sequence[Any], path: Sequence[str]) -> int:
    return sum(map(weigh, entries)) if not path else count_entries(entries, path)


def weigh(entry: Any) -> int:
    """Return as how many entries one counts without the arrays in it: more than one if it has a
    long name, or many records."""
    if isinstance(entry, str):
        return 1 + len(entry) // NAME_CHARS
    if isinstance(entry, tuple) and isinstance(entry[-1], memoryview):
        return 1 + _count_records(entry[-1]) // RECORDS_OF_ENTRY
    names: Iterable[str] = getattr(entry, "__dataclass_fields__", ())
    names = names or getattr(entry, "__dict__", ())
    texts = (getattr(entry, name) for name in names)
    return 1 + sum(len(text) // NAME_CHARS for text in texts if isinstance(text, str))


def join(target: list[Any], part: list[Any], path: Sequence[str], joins: int) -> None:
    """Append the answer to a piece. Its first entry continues the last one if `joins` is above 0;
    then their inner arrays are joined in the same way. A handler that answers once for a topic
    which a request names twice has another one last."""
    if joins and target and part and path and _are_about_the_same(target[-1], part[0]):
        last, first = target[-1], part[0]
        inner = list(last.get(path[0]) or ())
        join(inner, list(first.get(path[0]) or ()), path[1:], joins - 1)
        target[-1] = {**last, path[0]: inner}
        part = part[1:]
    target += part


def _are_about_the_same(last: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    return all(last.get(subject) == first.get(subject) for subject in SUBJECTS)


def _replace_part(entry: Any, name: str, part: Sequence[Any], begin: int) -> Any:
    """Return an entry with a part of its array, and the same part of an array beside it."""
    beside = BESIDE.get(name, "")
    values = getattr(entry, beside, None)
    if values:
        entry = replace_array(entry, beside, values[begin : begin + len(part)])
    return replace_array(entry, name, part)


def replace_array(entity: Any, name: str, value: Sequence[Any]) -> Any:
    """Return an entity of the codec with another array."""
    if isinstance(entity, SimpleNamespace):
        return SimpleNamespace(**{**vars(entity), name: value})
    if isinstance(entity, tuple):
        return cast("Any", entity)._replace(**{name: value})
    return dataclasses.replace(entity, **{name: tuple(value)})
