"""The records of `__consumer_offsets`, in Kafka's format, which Kafka's tools print.

A record's key is an int16 with the type of the record, then the fields of the key. Its value is an
int16 version, then the fields of that version (Kafka's `coordinator-key` schemas). A null value is
a tombstone. Types that are not in this table belong to other brokers. Replay ignores them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.contract import Record
from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import Column, Message, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.protocol.compiler import Reader, Writer

_INT16 = struct.Struct(">h")
#: The default of `replaced_at`.
THIS_RECORD = -2


class RecordType(IntEnum):
    """The type of a record: the int16 at the start of its key."""

    LEGACY_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    GROUP_METADATA = 2
    CONSUMER_GROUP_METADATA = 3
    CONSUMER_GROUP_PARTITION_METADATA = 4
    CONSUMER_GROUP_MEMBER_METADATA = 5
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = 6
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = 7
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = 8
    SHARE_GROUP_MEMBER_METADATA = 10
    SHARE_GROUP_METADATA = 11
    SHARE_GROUP_TARGET_ASSIGNMENT_METADATA = 12
    SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER = 13
    SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT = 14
    SHARE_GROUP_STATE_PARTITION_METADATA = 15
    CONSUMER_GROUP_REGULAR_EXPRESSION = 16
    STREAMS_GROUP_METADATA = 17
    STREAMS_GROUP_MEMBER_METADATA = 19
    STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA = 20
    STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER = 21
    STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT = 22
    STREAMS_GROUP_TOPOLOGY = 23
    #: Shoal's own, which Kafka and older brokers ignore (`pending_ranges`).
    KEY_RANGES_IN_TRANSACTION = 1000


class Decoded(NamedTuple):
    """The fields of a record. `value` is None for a tombstone."""

    type: RecordType
    key: dict[str, Any]
    value: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """Key and value of one record type, and the version in which values are written.

    The version is the one that Kafka 4.3 writes: older brokers and tools read it.
    """

    key: Message
    value: Message
    version: int = 0


def _names(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "string") for name in names)


def _key(*columns: Column) -> Message:
    return Message("Key", "0", columns)


def _value(*columns: Column, name: str = "Value") -> Message:
    return Message(name, "0", columns, flexible="0+")


_GROUP = _key(*_names("group_id"))
_MEMBER = _key(*_names("group_id", "member_id"))
_TOPIC_PARTITIONS = (Column("topic_id", "uuid"), Column("partitions", "[]int32"))
_OWNED = _TOPIC_PARTITIONS + (
    Column("assignment_epochs", "[]int32", nullable="0+", tagged="0+", tag=0),
)
#: Partitions that are shared by key ranges. Shoal's own, which Kafka ignores (`key_slots`).
_HASHES = (Column("first_hash", "int64"), Column("last_hash", "int64"))
_SHARED = (Column("topic_id", "uuid"), Column("partition", "int32"), Column("ranges", _HASHES))
_OWNED_SHARED = (*_SHARED, Column("assignment_epoch", "int32"))
_NAMED_PARTITIONS = (
    Column("topic_id", "uuid"),
    Column("topic_name", "string"),
    Column("partitions", "[]int32"),
)
_KEY_RANGE = (
    Column("first_hash", "int64"),
    Column("last_hash", "int64"),
    Column("position", "int64"),
    Column("finished", "bytes"),
    Column("gap_timestamp", "int64", default=-1),
)
_PARTITION = Column("partition", "int32")
_OFFSET_KEY = _key(*_names("group", "topic"), _PARTITION)
_ASSIGNMENT_METADATA = _value(
    Column("assignment_epoch", "int32"),
    Column("assignment_timestamp", "int64", tagged="0+", tag=0),
)
_TARGET_MEMBER = _value(Column("topic_partitions", _TOPIC_PARTITIONS))
_CONSUMER_TARGET_MEMBER = _value(
    Column("topic_partitions", _TOPIC_PARTITIONS),
    Column("key_ranges", _SHARED, tagged="0+", tag=1000),
)

_CLASSIC_MEMBER = (
    Column("member_id", "string"),
    Column("group_instance_id", "string", "3+", nullable="3+"),
    Column("client_id", "string"),
    Column("client_host", "string"),
    Column("rebalance_timeout", "int32", "1+", default=-1),
    Column("session_timeout", "int32"),
    Column("subscription", "bytes"),
    Column("assignment", "bytes"),
)
_CLASSIC_PROTOCOLS = (
    Column("session_timeout_ms", "int32"),
    Column("supported_protocols", (Column("name", "string"), Column("metadata", "bytes"))),
)
_CONSUMER_MEMBER = _value(
    Column("instance_id", "string", nullable="0+"),
    Column("rack_id", "string", nullable="0+"),
    Column("client_id", "string"),
    Column("client_host", "string"),
    Column("subscribed_topic_names", "[]string"),
    Column("subscribed_topic_regex", "string", nullable="0+"),
    Column("rebalance_timeout_ms", "int32", default=-1),
    Column("server_assignor", "string", nullable="0+"),
    Column(
        "classic_member_metadata",
        _CLASSIC_PROTOCOLS,
        nullable="0+",
        tagged="0+",
        tag=0,
        struct=True,
    ),
    # Shoal's own: the version of the hash of a member that shares partitions by key ranges.
    Column("key_hash_version", "int8", tagged="0+", tag=1000),
)
_PARTITION_METADATA = _value(
    Column(
        "topics",
        (
            Column("topic_id", "uuid"),
            Column("topic_name", "string"),
            Column("num_partitions", "int32"),
            Column(
                "partition_metadata",
                (Column("partition", "int32"), Column("racks", "[]string")),
            ),
        ),
    )
)
_KEY_VALUES = (Column("key", "string"), Column("value", "string"))
_TASKS = (Column("subtopology_id", "string"), Column("partitions", "[]int32"))
_OWNED_TASKS = _TASKS + (Column("assignment_epochs", "[]int32", nullable="0+", tagged="0+", tag=0),)
_TASK_ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")
_STREAMS_MEMBER = _value(
    Column("instance_id", "string", nullable="0+"),
    Column("rack_id", "string", nullable="0+"),
    *_names("client_id", "client_host"),
    Column("rebalance_timeout_ms", "int32", default=-1),
    Column("topology_epoch", "int32"),
    Column("process_id", "string"),
    Column(
        "user_endpoint",
        (Column("host", "string"), Column("port", "uint16")),
        nullable="0+",
        struct=True,
    ),
    Column("client_tags", _KEY_VALUES),
)
_INTERNAL_TOPIC = (
    Column("name", "string"),
    Column("partitions", "int32"),
    Column("replication_factor", "int16"),
    Column("topic_configs", _KEY_VALUES),
)
_SUBTOPOLOGY = (
    Column("subtopology_id", "string"),
    Column("source_topics", "[]string"),
    Column("source_topic_regex", "[]string"),
    Column("state_changelog_topics", _INTERNAL_TOPIC),
    Column("repartition_sink_topics", "[]string"),
    Column("repartition_source_topics", _INTERNAL_TOPIC),
    Column(
        "copartition_groups",
        (
            Column("source_topics", "[]int16"),
            Column("source_topic_regex", "[]int16"),
            Column("repartition_source_topics", "[]int16"),
        ),
    ),
)

LAYOUTS: Mapping[RecordType, Layout] = {
    RecordType.LEGACY_OFFSET_COMMIT: Layout(
        _OFFSET_KEY,
        Message(
            "LegacyOffsetCommitValue",
            "0",
            (
                Column("offset", "int64"),
                Column("metadata", "string"),
                Column("commit_timestamp", "int64"),
            ),
        ),
    ),
    RecordType.OFFSET_COMMIT: Layout(
        _OFFSET_KEY,
        Message(
            "OffsetCommitValue",
            "0-4",
            (
                Column("offset", "int64"),
                Column("leader_epoch", "int32", "3+", default=-1),
                Column("metadata", "string"),
                Column("commit_timestamp", "int64"),
                Column("expire_timestamp", "int64", "1", default=-1),
                Column("topic_id", "uuid", "4+", tagged="4+", tag=0),
                # Shoal's own, which Kafka ignores (`individual_commit`).
                Column("key_ranges", _KEY_RANGE, "4+", tagged="4+", tag=1000),
                # The offset of the record that replaced all key ranges last, if it is not this one;
                # -1 if there is none.
                Column("replaced_at", "int64", "4+", tagged="4+", tag=1001, default=THIS_RECORD),
            ),
            flexible="4+",
        ),
        version=4,
    ),
    RecordType.KEY_RANGES_IN_TRANSACTION: Layout(
        _key(*_names("group", "topic"), _PARTITION, Column("producer_id", "int64")),
        _value(
            Column("key_ranges", _KEY_RANGE),
            Column("leader_epoch", "int32"),
            Column("metadata", "string"),
            Column("commit_timestamp", "int64"),
            Column("topic_id", "uuid"),
        ),
    ),
    RecordType.GROUP_METADATA: Layout(
        _key(*_names("group")),
        Message(
            "GroupMetadataValue",
            "0-4",
            (
                Column("protocol_type", "string"),
                Column("generation", "int32"),
                Column("protocol", "string", nullable="0+"),
                Column("leader", "string", nullable="0+"),
                Column("current_state_timestamp", "int64", "2+", default=-1),
                Column("members", _CLASSIC_MEMBER),
            ),
            flexible="4+",
        ),
        version=3,
    ),
    RecordType.CONSUMER_GROUP_METADATA: Layout(
        _GROUP,
        _value(
            Column("epoch", "int32"),
            Column("metadata_hash", "int64", tagged="0+", tag=0),
        ),
    ),
    RecordType.CONSUMER_GROUP_PARTITION_METADATA: Layout(_GROUP, _PARTITION_METADATA),
    RecordType.CONSUMER_GROUP_MEMBER_METADATA: Layout(_MEMBER, _CONSUMER_MEMBER),
    RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: Layout(_GROUP, _ASSIGNMENT_METADATA),
    RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: Layout(_MEMBER, _CONSUMER_TARGET_MEMBER),
    RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: Layout(
        _MEMBER,
        _value(
            Column("member_epoch", "int32"),
            Column("previous_member_epoch", "int32"),
            Column("state", "int8"),
            Column("assigned_partitions", _OWNED),
            Column("partitions_pending_revocation", _OWNED),
            Column("assigned_key_ranges", _OWNED_SHARED, tagged="0+", tag=1000),
            Column("key_ranges_pending_revocation", _OWNED_SHARED, tagged="0+", tag=1001),
        ),
    ),
    RecordType.SHARE_GROUP_MEMBER_METADATA: Layout(
        _MEMBER,
        _value(
            Column("rack_id", "string", nullable="0+"),
            Column("client_id", "string"),
            Column("client_host", "string"),
            Column("subscribed_topic_names", "[]string"),
        ),
    ),
    RecordType.SHARE_GROUP_METADATA: Layout(
        _GROUP, _value(Column("epoch", "int32"), Column("metadata_hash", "int64"))
    ),
    RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA: Layout(_GROUP, _ASSIGNMENT_METADATA),
    RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER: Layout(_MEMBER, _TARGET_MEMBER),
    RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT: Layout(
        _MEMBER,
        _value(
            Column("member_epoch", "int32"),
            Column("previous_member_epoch", "int32"),
            Column("state", "int8"),
            Column("assigned_partitions", _TOPIC_PARTITIONS),
        ),
    ),
    RecordType.SHARE_GROUP_STATE_PARTITION_METADATA: Layout(
        _GROUP,
        _value(
            Column("initializing_topics", _NAMED_PARTITIONS),
            Column("initialized_topics", _NAMED_PARTITIONS),
            Column("deleting_topics", (Column("topic_id", "uuid"), Column("topic_name", "string"))),
        ),
    ),
    RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION: Layout(
        _key(*_names("group_id", "regular_expression")),
        _value(
            Column("topics", "[]string"),
            Column("version", "int64"),
            Column("timestamp", "int64"),
        ),
    ),
    RecordType.STREAMS_GROUP_METADATA: Layout(
        _GROUP,
        _value(
            Column("epoch", "int32"),
            Column("metadata_hash", "int64"),
            Column("validated_topology_epoch", "int32", tagged="0+", tag=0, default=-1),
            Column("last_assignment_configs", _KEY_VALUES, nullable="0+", tagged="0+", tag=1),
        ),
    ),
    RecordType.STREAMS_GROUP_MEMBER_METADATA: Layout(_MEMBER, _STREAMS_MEMBER),
    RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA: Layout(_GROUP, _ASSIGNMENT_METADATA),
    RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER: Layout(
        _MEMBER, _value(*(Column(role, _TASKS) for role in _TASK_ROLES))
    ),
    RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT: Layout(
        _MEMBER,
        _value(
            Column("member_epoch", "int32"),
            Column("previous_member_epoch", "int32"),
            Column("state", "int8"),
            *(Column(role, _OWNED_TASKS) for role in _TASK_ROLES),
            *(Column(f"{role}_pending_revocation", _OWNED_TASKS) for role in _TASK_ROLES),
        ),
    ),
    RecordType.STREAMS_GROUP_TOPOLOGY: Layout(
        _GROUP,
        _value(Column("epoch", "int32"), Column("subtopologies", _SUBTOPOLOGY)),
    ),
}


@cache
def _writers(kind: RecordType, version: int) -> tuple[bytes, Writer, bytes, Writer]:
    """The first bytes of a key and of a value of that version, and the writers of the rest."""
    layout = LAYOUTS[kind]
    return (
        _INT16.pack(kind),
        compiler.writer(layout.key.at(0)),
        _INT16.pack(version),
        compiler.writer(layout.value.at(version)),
    )


@cache
def _key_reader(number: int) -> tuple[RecordType, Reader] | None:
    """The reader of keys of that type; None for an unknown type."""
    layout = LAYOUTS.get(number)  # type: ignore[call-overload]
    return None if layout is None else (RecordType(number), compiler.reader(layout.key.at(0)))


@cache
def _value_reader(kind: RecordType, version: int) -> Reader | None:
    """The reader of values of that version; None for an unknown version."""
    message = LAYOUTS[kind].value
    known = version in versions(message.versions)
    return compiler.reader(message.at(version)) if known else None


def record(
    kind: RecordType,
    key: Mapping[str, Any],
    value: Mapping[str, Any] | None,
    version: int | None = None,
) -> Record:
    """Encode a record; without a `value` a tombstone."""
    if version is None:
        version = LAYOUTS[kind].version
    key_head, write_key, value_head, write_value = _writers(kind, version)
    head = bytearray(key_head)
    write_key(head, key)
    if value is None:
        return Record(bytes(head), None)
    body = bytearray(value_head)
    write_value(body, value)
    return Record(bytes(head), bytes(body))


def tombstone(kind: RecordType, **key: Any) -> Record:
    """Encode the tombstone of a key."""
    return record(kind, key, None)


def decode(stored: Record) -> Decoded | None:
    """Return the fields of a record; None for an unknown type or version.

    Raises `WireError` for bytes that do not fit the layout.
    """
    if len(stored.key) < 2:
        raise WireError(f"a record key of {len(stored.key)} bytes")
    known = _key_reader(_INT16.unpack_from(stored.key)[0])
    if known is None:
        return None
    kind, read_key = known
    key, _ = read_key(memoryview(stored.key), 2)
    if stored.value is None:
        return Decoded(kind, key, None)
    if len(stored.value) < 2:
        raise WireError(f"a record value of {len(stored.value)} bytes")
    read_value = _value_reader(kind, _INT16.unpack_from(stored.value)[0])
    if read_value is None:
        return None
    value, _ = read_value(memoryview(stored.value), 2)
    return Decoded(kind, key, value)
