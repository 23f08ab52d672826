"""The largest requests that name what exists, made from the schemas, and what they name.

`large_requests` names nothing that exists, so a broker refuses each entry at once. Here each entry
means work: the topics have partitions with records, the groups have offsets, members or key ranges,
and there are transactional ids, producers and users. Few of them exist, so a request names each of
them again and again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.static.constants import EntityType
from shoal.protocol import codec, compiler, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.schema import Struct
from support.attacks.large_requests import Filler, Large, find_arrays
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from support.attacks.attackers import Target
    from support.brokers.wireclient import WireClient

#: The first topic has many partitions, of which the groups have offsets; the others have one.
TOPICS, PARTITIONS, GROUPS, IDS, USERS = 20, 500, 10, 50, 20
#: Fields with names of topics, groups, transactional ids and users, and where `name` is one.
_TOPICS = {"topic", "topic_name", "topic_names", "topics", "subscribed_topic_names"}
_GROUPS = {"group", "group_id", "group_ids", "groups", "groups_names", "coordinator_keys"}
_TRANSACTIONS = {"transactional_id", "transactional_ids"}
_USERS = {"user", "principal_name", "entity_name"}
_NAMES = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "user",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "user",
}
_PARTITIONS = {"partition", "partition_id", "partition_index", "partition_indexes", "partitions"}
_PARTITIONS |= {"index"}
_BROKERS = {"broker_id", "node_id", "replica_id", "brokers", "replicas", "broker_ids"}


class Existing(NamedTuple):
    """What exists on a broker, by name. The first topic has `PARTITIONS` partitions."""

    topics: list[str]
    topic_ids: list[UUID]
    groups: list[str]
    transactional_ids: list[str]
    producer_ids: list[int]
    users: list[str]

    def find(self, api: ApiKey, field: str) -> list[Any] | None:
        """Return what a field of a request may name, or None."""
        tables: tuple[tuple[set[str], list[Any]], ...] = (
            (_TOPICS, self.topics),
            (_GROUPS, self.groups),
            (_TRANSACTIONS, self.transactional_ids),
            ({"producer_id", "producer_ids", "producer_id_filters"}, self.producer_ids),
            (_USERS, self.users),
            (_BROKERS, [1]),
            (_PARTITIONS, list(range(PARTITIONS))),
        )
        for names, values in tables:
            if field in names:
                return values
        if field in ("name", "resource_name"):
            return self.users if _NAMES.get(api) == "user" else self.topics
        return None


class ExistingFiller(Filler):
    """Fills a request with names of what exists. The entries of the array at its path have one
    entry in each of their own arrays."""

    def __init__(self, api: ApiKey, path: tuple[str, ...], count: int, existing: Existing) -> None:
        super().__init__(path, count, is_deep=True)
        self._api, self._existing = api, existing

    def make_one(self, kind: str | Struct, name: str) -> Any:
        """Return the next name, id or number for a field, or None."""
        values: list[Any] | None = self._existing.find(self._api, name)
        if kind == "uuid" and name == "topic_id":
            values = self._existing.topic_ids
        if not values or isinstance(values[0], str) != (kind == "string"):
            return None
        self._number += 1
        return values[self._number % len(values)]


def count_arrays(layout: Struct) -> int:
    """Return the number of arrays in a struct."""
    return sum(1 for _ in find_arrays(layout))


def find_item(layout: Struct, path: tuple[str, ...]) -> Struct | None:
    """Return the struct of the entries of the array at `path`; None if they are none."""
    for name in path:
        kind = next(field.type for field in layout.fields if field.name == name)
        if not isinstance(kind, Struct):
            return None
        layout = kind
    return layout


def make_existing_requests(
    api: ApiKey, version: int, existing: Existing, entries: int
) -> Iterator[Large]:
    """Yield a request for each array of an API, with about `entries` entries."""
    layout = codec.build_struct(codec.load_entity(api, version, EntityType.request))
    for path in find_arrays(layout):
        item = find_item(layout, path)
        inside = 0 if item is None else count_arrays(item)
        count = (entries - layout_entries(layout)) // (1 + inside)
        frame = bytearray(frames.build_request_head(api, version, 1, "hostile"))
        filler = ExistingFiller(api, path, count, existing)
        compiler.get_writer(layout)(frame, filler.struct(layout))
        yield Large(".".join(path), bytes(frame))


def layout_entries(layout: Struct) -> int:
    """Return how many entries a request has beside the array that is filled, at most."""
    return count_arrays(layout) + 10


def prepare(target: Target) -> Existing:
    """Create what is not there, also where an earlier request has deleted it."""
    topics = [f"existing-{number}" for number in range(TOPICS)]
    groups = [f"existing-{number}" for number in range(GROUPS)]
    ids = [f"existing-{number}" for number in range(IDS)]
    users = [f"existing-{number}" for number in range(USERS)]
    with target.connect(patience_s=120.0) as client:
        for number, topic in enumerate(topics):
            with contextlib.suppress(AssertionError):  # It exists.
                client.create_topic(topic, 1 if number else PARTITIONS)
        asked = {"topics": [{"topic_id": None, "name": topic} for topic in topics]}

        def find_topics() -> list[UUID] | None:
            answered = client.call(ApiKey.METADATA, 12, asked).topics
            return None if any(t.error_code for t in answered) else [t.topic_id for t in answered]

        topic_ids = eventually(find_topics, what="all topics")
        for topic in topics[:2]:
            eventually(lambda topic=topic: not client.produce(topic, b"a" * 100).error_code)
        for group in groups[:-2]:
            commit(client, group, topics[0])
        share(client, groups[-1], topics[0])
        producer_ids = [begin(client, name, topics[0]) for name in ids]
        create_users(client, users)
    return Existing(topics, topic_ids, groups, ids, producer_ids, users)


def commit(client: WireClient, group: str, topic: str) -> None:
    """Commit an offset of each partition, unless a request before has left the group a member."""
    rows = [{"partition_index": n, "committed_offset": 0} for n in range(PARTITIONS)]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": rows}],
    }
    client.call(ApiKey.OFFSET_COMMIT, 8, body)


def share(client: WireClient, group: str, topic: str) -> None:
    """Let a share group have the start of each partition."""
    rows = [{"partition_index": n, "start_offset": 0} for n in range(PARTITIONS)]
    body = {"group_id": group, "topics": [{"topic_name": topic, "partitions": rows}]}
    client.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body)


def begin(client: WireClient, transactional_id: str, topic: str) -> int:
    """Begin a transaction with some partitions; return its producer id."""
    asked = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000}
    made = eventually(
        lambda: next(
            (a for a in [client.call(ApiKey.INIT_PRODUCER_ID, 4, asked)] if not a.error_code), None
        )
    )
    body = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": made.producer_id,
        "v3_and_below_producer_epoch": made.producer_epoch,
        "v3_and_below_topics": [{"name": topic, "partitions": list(range(20))}],
    }
    client.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, body)
    producer_id: int = made.producer_id
    return producer_id


def create_users(client: WireClient, users: list[str]) -> None:
    """Give users a SCRAM credential each."""
    rows = [
        {
            "name": user,
            "mechanism": 2,
            "iterations": 4096,
            "salt": b"s" * 16,
            "salted_password": b"p" * 64,
        }
        for user in users
    ]
    client.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": rows})
