"""Handles a request of many entries in pieces, each in a turn of the event loop of its own.

A handler returns at once, so one call for 40,000 names would hold all other clients up for seconds,
and so would one for 200 names of 32,767 characters.
`TABLE` lists the APIs whose answer has an entry for each entry of the request. For these, the
handler is called with a part of the entries at a time, and the answers are joined. Handlers know
nothing of it. As in Kafka, such entries succeed or fail one by one. A duplicate is refused as one
in its piece; behind it, it finds what the first one did.

The connection handles its next request after the last piece, so that the order of requests stays.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid5

from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shoal.server.network.api import Answer, Api, Body, Request

#: Entries of a piece. The slowest handlers take 0.1 ms for each, and CreateTopics twice as long.
PIECE_ENTRIES = 500
PIECE_ENTRIES_OF: dict[int, int] = {ApiKey.CREATE_TOPICS: 200}
#: The characters of a name that count as one more entry: some work grows with them.
NAME_CHARS = 256
#: Smaller requests have no more entries than that, and no longer names.
REQUEST_BYTES_MIN = 1024
#: Larger requests may have names that are many entries' work.
REQUEST_BYTES_MAX = PIECE_ENTRIES * NAME_CHARS

#: The path of an array in a request, and of the corresponding one in the response, each from the
#: outer array to the inner one.
Paths = tuple[tuple[str, ...], tuple[str, ...]]


def _same(*path: str) -> tuple[Paths, ...]:
    return ((path, path),)


def _paths(path: str, answer_path: str) -> Paths:
    return tuple(path.split(".")), tuple(answer_path.split("."))


_PARTITIONS = _same("topics", "partitions")
_GROUPS = (_paths("group_ids", "groups"),)
_STATES = (_paths("topics.partitions", "results.partitions"),)
#: The arrays of each API. Those of earlier versions have other names.
TABLE: dict[int, tuple[Paths, ...]] = {
    ApiKey.LIST_OFFSETS: _PARTITIONS,
    ApiKey.METADATA: _same("topics"),
    ApiKey.OFFSET_COMMIT: _PARTITIONS,
    ApiKey.OFFSET_FETCH: (
        _paths("groups.topics.partition_indexes", "groups.topics.partitions"),
        _paths("topics.partition_indexes", "topics.partitions"),
    ),
    ApiKey.FIND_COORDINATOR: (_paths("coordinator_keys", "coordinators"),),
    ApiKey.DESCRIBE_GROUPS: _same("groups"),
    ApiKey.CREATE_TOPICS: _same("topics"),
    ApiKey.DELETE_TOPICS: (_paths("topics", "responses"), _paths("topic_names", "responses")),
    ApiKey.DELETE_RECORDS: _PARTITIONS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _PARTITIONS,
    ApiKey.ADD_PARTITIONS_TO_TXN: (_paths("transactions", "results_by_transaction"),),
    ApiKey.TXN_OFFSET_COMMIT: _PARTITIONS,
    ApiKey.DESCRIBE_CONFIGS: (_paths("resources", "results"),),
    ApiKey.ALTER_CONFIGS: (_paths("resources", "responses"),),
    ApiKey.CREATE_PARTITIONS: (_paths("topics", "results"),),
    ApiKey.DELETE_GROUPS: (_paths("groups_names", "results"),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (_paths("resources", "responses"),),
    ApiKey.OFFSET_DELETE: _PARTITIONS,
    ApiKey.DESCRIBE_PRODUCERS: (_paths("topics.partition_indexes", "topics.partitions"),),
    ApiKey.DESCRIBE_TRANSACTIONS: (_paths("transactional_ids", "transaction_states"),),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _GROUPS,
    ApiKey.SHARE_GROUP_DESCRIBE: _GROUPS,
    ApiKey.STREAMS_GROUP_DESCRIBE: _GROUPS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _STATES,
    ApiKey.READ_SHARE_GROUP_STATE: _STATES,
    ApiKey.WRITE_SHARE_GROUP_STATE: _STATES,
    ApiKey.DELETE_SHARE_GROUP_STATE: _STATES,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _STATES,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _same("groups", "topics", "partitions"),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (_paths("topics.partitions", "responses.partitions"),),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (_paths("topics", "responses"),),
}


class Piece(NamedTuple):
    """Some entries of a request's array. `joins` is the number of arrays, from the outer one, in
    which the first entry continues the last one of the piece before."""

    entries: list[Any]
    joins: int


def handle(api: Api, context: Any, request: Request) -> Answer:
    """Call an API's handler, in pieces if the request has many entries."""
    if request.size < REQUEST_BYTES_MIN:
        return api.handle(context, request)
    for path, answer_path in TABLE.get(api.key, ()):
        entries = getattr(request.body, path[0], None)
        size = PIECE_ENTRIES_OF.get(api.key, PIECE_ENTRIES)
        if entries and (
            request.size > REQUEST_BYTES_MAX or count_entries(entries, path[1:]) > size
        ):
            request.is_in_pieces = True
            parts = _parts(request, path, size)
            return asyncio.ensure_future(_handle_all(api, context, parts, answer_path))
    return api.handle(context, request)


def _parts(request: Request, path: Sequence[str], size: int) -> Iterator[tuple[Request, int]]:
    """Yield a request for each piece, and in how many arrays it continues the one before."""
    entries = getattr(request.body, path[0])
    for number, piece in enumerate(cut(entries, path[1:], size)):
        body = replace_array(request.body, path[0], piece.entries)
        # An attempt that is sent again is cut in the same way.
        own_id = request.id and uuid5(UUID(bytes=request.id), str(number)).bytes
        yield dataclasses.replace(request, body=body, id=own_id), piece.joins


async def _handle_all(
    api: Api, context: Any, parts: Iterable[tuple[Request, int]], path: Sequence[str]
) -> Body:
    """Call the handler for each part, and join the answers. `path` is the array in them."""
    whole: dict[str, Any] = {path[0]: []}
    for part, joins in parts:
        answer: Any = api.handle(context, part)
        if not isinstance(answer, Mapping):
            answer = await answer
        assert isinstance(answer, Mapping), f"{api.key.name} answers a piece in bytes"
        entries = whole[path[0]]
        join(entries, list(answer.get(path[0]) or ()), path[1:], joins)
        failure = whole.get("error_code") or answer.get("error_code")
        whole = {**answer, path[0]: entries}
        if failure:
            whole["error_code"] = failure
        await asyncio.sleep(0)
    return whole


def count_entries(entries: Sequence[Any], path: Sequence[str]) -> int:
    """Return the number of entries of an array and of the arrays at `path` in them."""
    count = len(entries)
    if path:
        for entry in entries:
            count += count_entries(getattr(entry, path[0], None) or (), path[1:])
    return count


def cut(entries: Sequence[Any], path: Sequence[str], size: int) -> Iterator[Piece]:
    """Cut an array into pieces of at most `size` entries. An entry with a long array at `path` is
    cut, too."""
    piece: list[Any] = []
    joins, left = 0, size
    for entry in entries:
        inner = (getattr(entry, path[0], None) or ()) if path else ()
        count = weigh(entry) + (count_entries(inner, path[1:]) if inner else 0)
        if count > left and piece:
            yield Piece(piece, joins)
            piece, joins, left = [], 0, size
        if count <= left or not inner:
            piece.append(entry)
            left -= count
            continue
        parts = cut(inner, path[1:], size - 1)
        for number, part in enumerate(parts):
            joins_part = 1 + part.joins if number else 0
            yield Piece([replace_array(entry, path[0], part.entries)], joins_part)
    if piece:
        yield Piece(piece, joins)


def weigh(entry: Any) -> int:
    """Return as how many entries one counts without the arrays in it: more than one if it has a
    long name."""
    if isinstance(entry, str):
        return 1 + len(entry) // NAME_CHARS
    names: Iterable[str] = getattr(entry, "__dataclass_fields__", ())
    names = names or getattr(entry, "__dict__", ())
    texts = (getattr(entry, name) for name in names)
    return 1 + sum(len(text) // NAME_CHARS for text in texts if isinstance(text, str))


def join(whole: list[Any], part: list[Any], path: Sequence[str], joins: int) -> None:
    """Append the answer to a piece. Its first entry continues the last one if `joins` is above 0;
    then their inner arrays are joined in the same way."""
    if joins and whole and part and path:
        last, first = whole[-1], part[0]
        inner = list(last.get(path[0]) or ())
        join(inner, list(first.get(path[0]) or ()), path[1:], joins - 1)
        whole[-1] = {**last, path[0]: inner}
        part = part[1:]
    whole += part


def replace_array(entity: Any, name: str, value: Sequence[Any]) -> Any:
    """Return an entity of the codec with another array."""
    if isinstance(entity, SimpleNamespace):
        return SimpleNamespace(**{**vars(entity), name: value})
    return dataclasses.replace(entity, **{name: tuple(value)})
