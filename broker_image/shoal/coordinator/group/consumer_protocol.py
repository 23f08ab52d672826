"""The messages that consumers of the classic protocol embed in JoinGroup and SyncGroup.

The broker reads and writes them when it assigns partitions to classic members of a consumer group
(KIP-848, "Upgrade and downgrade"). Sources: Kafka's `ConsumerProtocolSubscription` and
`ConsumerProtocolAssignment`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.group.assignment import Assignment, TopicIdPartition, grouped
from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import Column, Message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.coordinator.group.topics import Catalog

_VERSION = struct.Struct(">h")
_VERSION_MAX = 3
_SUBSCRIPTION = Message(
    "ConsumerProtocolSubscription",
    "0-3",
    (
        Column("topics", "[]string"),
        Column("user_data", "bytes", nullable="0+"),
        Column(
            "owned_partitions",
            (Column("topic", "string"), Column("partitions", "[]int32")),
            "1+",
        ),
        Column("generation_id", "int32", "2+", default=-1),
        Column("rack_id", "string", "3+", nullable="3+"),
    ),
)
_ASSIGNMENT = Message(
    "ConsumerProtocolAssignment",
    "0-3",
    (
        Column("assigned_partitions", (Column("topic", "string"), Column("partitions", "[]int32"))),
        Column("user_data", "bytes", nullable="0+"),
    ),
)


class Subscription(NamedTuple):
    topics: frozenset[str]
    #: (topic name, partition); none before version 1.
    owned: tuple[tuple[str, int], ...]
    rack_id: str | None


class CustomAssignment(WireError):
    """An assignment has user data of a custom assignor, which an upgrade would lose."""


def read_subscription(data: bytes) -> Subscription:
    """Read a subscription. Raises `WireError`. Later versions are read like the last known one."""
    value = _read(_SUBSCRIPTION, data)
    owned = value.get("owned_partitions") or ()
    return Subscription(
        frozenset(value["topics"]),
        tuple((t["topic"], p) for t in owned for p in t["partitions"]),
        value.get("rack_id"),
    )


def read_assignment(data: bytes, catalog: Catalog) -> Assignment:
    """The assignment of a classic member, without topics that do not exist. Raises `WireError`."""
    if not data:
        return {}
    value = _read(_ASSIGNMENT, data)
    if value["user_data"]:
        raise CustomAssignment("userData from a custom assignor would be lost")
    named = ((t["topic"], p) for t in value["assigned_partitions"] for p in t["partitions"])
    return grouped(by_id(named, catalog))


def write_assignment(assignment: Assignment, subscription: bytes, catalog: Catalog) -> bytes:
    """The bytes of an assignment, in the version of the member's `subscription`."""
    version = _version(subscription)
    named = [
        {"topic": name, "partitions": sorted(assignment[topic])}
        for topic in sorted(assignment)
        if (name := catalog.name_of(topic)) is not None
    ]
    out = bytearray(_VERSION.pack(version))
    value = {"assigned_partitions": named, "user_data": None}
    compiler.writer(_ASSIGNMENT.at(version))(out, value)
    return bytes(out)


def by_id(partitions: Iterable[tuple[str, int]], catalog: Catalog) -> list[TopicIdPartition]:
    """Convert partitions by topic name to partitions by topic id, if the topic exists."""
    return [(t, partition) for name, partition in partitions for t in catalog.ids_of((name,))]


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise WireError(f"a consumer protocol message of {len(data)} bytes")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise WireError(f"a consumer protocol message of version {version}")
    return min(version, _VERSION_MAX)


def _read(message: Message, data: bytes) -> dict[str, Any]:
    version = _version(data)
    value, _ = compiler.reader(message.at(version))(memoryview(data), _VERSION.size)
    return value
