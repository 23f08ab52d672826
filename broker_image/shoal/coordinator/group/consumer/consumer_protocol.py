"""The messages that consumers of the classic protocol embed in JoinGroup and SyncGroup.

The broker reads and writes them when it assigns partitions to classic members of a consumer group
(KIP-848, "Upgrade and downgrade"). Sources: Kafka's `ConsumerProtocolSubscription` and
`ConsumerProtocolAssignment`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.group.assignment import Assignment, TopicIdPartition, group_by_topic
from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import FieldSpec, MessageSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.coordinator.group.topics import TopicCatalog

_VERSION = struct.Struct(">h")
_VERSION_MAX = 3
_SUBSCRIPTION = MessageSpec(
    "ConsumerProtocolSubscription",
    "0-3",
    (
        FieldSpec("topics", "[]string"),
        FieldSpec("user_data", "bytes", nullable="0+"),
        FieldSpec(
            "owned_partitions",
            (FieldSpec("topic", "string"), FieldSpec("partitions", "[]int32")),
            "1+",
        ),
        FieldSpec("generation_id", "int32", "2+", default=-1),
        FieldSpec("rack_id", "string", "3+", nullable="3+"),
    ),
)
_ASSIGNMENT = MessageSpec(
    "ConsumerProtocolAssignment",
    "0-3",
    (
        FieldSpec(
            "assigned_partitions",
            (FieldSpec("topic", "string"), FieldSpec("partitions", "[]int32")),
        ),
        FieldSpec("user_data", "bytes", nullable="0+"),
    ),
)


class ConsumerProtocolSubscription(NamedTuple):
    topics: frozenset[str]
    #: (topic name, partition); none before version 1.
    owned: tuple[tuple[str, int], ...]
    rack_id: str | None


class CustomAssignorError(WireError):
    """An assignment has user data of a custom assignor, which an upgrade would lose."""


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Read a subscription. Raises `WireError`. Later versions are read like the last known one."""
    value = _read(_SUBSCRIPTION, data)
    owned = value.get("owned_partitions") or ()
    return ConsumerProtocolSubscription(
        frozenset(value["topics"]),
        tuple((t["topic"], p) for t in owned for p in t["partitions"]),
        value.get("rack_id"),
    )


def read_assignment(data: bytes, catalog: TopicCatalog) -> Assignment:
    """The assignment of a classic member, without topics that do not exist. Raises `WireError`."""
    if not data:
        return {}
    value = _read(_ASSIGNMENT, data)
    if value["user_data"]:
        raise CustomAssignorError("userData from a custom assignor would be lost")
    named_partitions = (
        (t["topic"], p) for t in value["assigned_partitions"] for p in t["partitions"]
    )
    return group_by_topic(resolve_topic_ids(named_partitions, catalog))


def write_assignment(assignment: Assignment, subscription: bytes, catalog: TopicCatalog) -> bytes:
    """The bytes of an assignment, in the version of the member's `subscription`."""
    version = _read_version(subscription)
    topics = [
        {"topic": name, "partitions": sorted(assignment[topic])}
        for topic in sorted(assignment)
        if (name := catalog.get_name(topic)) is not None
    ]
    out = bytearray(_VERSION.pack(version))
    value = {"assigned_partitions": topics, "user_data": None}
    compiler.get_writer(_ASSIGNMENT.get_struct(version))(out, value)
    return bytes(out)


def resolve_topic_ids(
    partitions: Iterable[tuple[str, int]], catalog: TopicCatalog
) -> list[TopicIdPartition]:
    """Convert partitions by topic name to partitions by topic id, if the topic exists."""
    return [(t, partition) for name, partition in partitions for t in catalog.get_ids((name,))]


def _read_version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise WireError(f"a consumer protocol message of {len(data)} bytes")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise WireError(f"a consumer protocol message of version {version}")
    return min(version, _VERSION_MAX)


def _read(message: MessageSpec, data: bytes) -> dict[str, Any]:
    version = _read_version(data)
    value, _ = compiler.get_reader(message.get_struct(version))(memoryview(data), _VERSION.size)
    return value
