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

from shoal.coordinator.contract import CoordinatorRecord
from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import FieldSpec, MessageSpec, parse_versions

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


class DecodedGroupRecord(NamedTuple):
    """The fields of a record. `value` is None for a tombstone."""

    type: RecordType
    key: dict[str, Any]
    value: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Key and value of one record type, and the version in which values are written.

    The version is the one that Kafka 4.3 writes: older brokers and tools read it.
    """

    key: MessageSpec
    value: MessageSpec
    version: int = 0


def _make_columns(*names: str) -> tuple[FieldSpec, ...]:
    return tuple(FieldSpec(name, "string") for name in names)


def _make_key(*columns: FieldSpec) -> MessageSpec:
    return MessageSpec("Key", "0", columns)


def _make_value(*columns: FieldSpec, name: str = "Value") -> MessageSpec:
    return MessageSpec(name, "0", columns, flexible="0+")


_GROUP = _make_key(*_make_columns("group_id"))
_MEMBER = _make_key(*_make_columns("group_id", "member_id"))
_TOPIC_PARTITIONS = (FieldSpec("topic_id", "uuid"), FieldSpec("partitions", "[]int32"))
_OWNED = _TOPIC_PARTITIONS + (
    FieldSpec("assignment_epochs", "[]int32", nullable="0+", tagged="0+", tag=0),
)
#: Partitions that are shared by key ranges. Shoal's own, which Kafka ignores (`key_slots`).
_HASHES = (FieldSpec("first_hash", "int64"), FieldSpec("last_hash", "int64"))
_SHARED = (
    FieldSpec("topic_id", "uuid"),
    FieldSpec("partition", "int32"),
    FieldSpec("ranges", _HASHES),
)
_OWNED_SHARED = (*_SHARED, FieldSpec("assignment_epoch", "int32"))
_NAMED_PARTITIONS = (
    FieldSpec("topic_id", "uuid"),
    FieldSpec("topic_name", "string"),
    FieldSpec("partitions", "[]int32"),
)
_KEY_RANGE = (
    FieldSpec("first_hash", "int64"),
    FieldSpec("last_hash", "int64"),
    FieldSpec("position", "int64"),
    FieldSpec("finished", "bytes"),
    FieldSpec("gap_timestamp", "int64", default=-1),
)
_PARTITION = FieldSpec("partition", "int32")
_OFFSET_KEY = _make_key(*_make_columns("group", "topic"), _PARTITION)
_ASSIGNMENT_METADATA = _make_value(
    FieldSpec("assignment_epoch", "int32"),
    FieldSpec("assignment_timestamp", "int64", tagged="0+", tag=0),
)
_TARGET_MEMBER = _make_value(FieldSpec("topic_partitions", _TOPIC_PARTITIONS))
_CONSUMER_TARGET_MEMBER = _make_value(
    FieldSpec("topic_partitions", _TOPIC_PARTITIONS),
    FieldSpec("key_ranges", _SHARED, tagged="0+", tag=1000),
)

_CLASSIC_MEMBER = (
    FieldSpec("member_id", "string"),
    FieldSpec("group_instance_id", "string", "3+", nullable="3+"),
    FieldSpec("client_id", "string"),
    FieldSpec("client_host", "string"),
    FieldSpec("rebalance_timeout", "int32", "1+", default=-1),
    FieldSpec("session_timeout", "int32"),
    FieldSpec("subscription", "bytes"),
    FieldSpec("assignment", "bytes"),
)
_CLASSIC_PROTOCOLS = (
    FieldSpec("session_timeout_ms", "int32"),
    FieldSpec("supported_protocols", (FieldSpec("name", "string"), FieldSpec("metadata", "bytes"))),
)
_CONSUMER_MEMBER = _make_value(
    FieldSpec("instance_id", "string", nullable="0+"),
    FieldSpec("rack_id", "string", nullable="0+"),
    FieldSpec("client_id", "string"),
    FieldSpec("client_host", "string"),
    FieldSpec("subscribed_topic_names", "[]string"),
    FieldSpec("subscribed_topic_regex", "string", nullable="0+"),
    FieldSpec("rebalance_timeout_ms", "int32", default=-1),
    FieldSpec("server_assignor", "string", nullable="0+"),
    FieldSpec(
        "classic_member_metadata",
        _CLASSIC_PROTOCOLS,
        nullable="0+",
        tagged="0+",
        tag=0,
        struct=True,
    ),
    # Shoal's own: the version of the hash of a member that shares partitions by key ranges.
    FieldSpec("key_hash_version", "int8", tagged="0+", tag=1000),
)
_PARTITION_METADATA = _make_value(
    FieldSpec(
        "topics",
        (
            FieldSpec("topic_id", "uuid"),
            FieldSpec("topic_name", "string"),
            FieldSpec("num_partitions", "int32"),
            FieldSpec(
                "partition_metadata",
                (FieldSpec("partition", "int32"), FieldSpec("racks", "[]string")),
            ),
        ),
    )
)
_KEY_VALUES = (FieldSpec("key", "string"), FieldSpec("value", "string"))
_TASKS = (FieldSpec("subtopology_id", "string"), FieldSpec("partitions", "[]int32"))
_OWNED_TASKS = _TASKS + (
    FieldSpec("assignment_epochs", "[]int32", nullable="0+", tagged="0+", tag=0),
)
_TASK_ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")
_STREAMS_MEMBER = _make_value(
    FieldSpec("instance_id", "string", nullable="0+"),
    FieldSpec("rack_id", "string", nullable="0+"),
    *_make_columns("client_id", "client_host"),
    FieldSpec("rebalance_timeout_ms", "int32", default=-1),
    FieldSpec("topology_epoch", "int32"),
    FieldSpec("process_id", "string"),
    FieldSpec(
        "user_endpoint",
        (FieldSpec("host", "string"), FieldSpec("port", "uint16")),
        nullable="0+",
        struct=True,
    ),
    FieldSpec("client_tags", _KEY_VALUES),
)
_INTERNAL_TOPIC = (
    FieldSpec("name", "string"),
    FieldSpec("partitions", "int32"),
    FieldSpec("replication_factor", "int16"),
    FieldSpec("topic_configs", _KEY_VALUES),
)
_SUBTOPOLOGY = (
    FieldSpec("subtopology_id", "string"),
    FieldSpec("source_topics", "[]string"),
    FieldSpec("source_topic_regex", "[]string"),
    FieldSpec("state_changelog_topics", _INTERNAL_TOPIC),
    FieldSpec("repartition_sink_topics", "[]string"),
    FieldSpec("repartition_source_topics", _INTERNAL_TOPIC),
    FieldSpec(
        "copartition_groups",
        (
            FieldSpec("source_topics", "[]int16"),
            FieldSpec("source_topic_regex", "[]int16"),
            FieldSpec("repartition_source_topics", "[]int16"),
        ),
    ),
)

LAYOUTS: Mapping[RecordType, RecordLayout] = {
    RecordType.LEGACY_OFFSET_COMMIT: RecordLayout(
        _OFFSET_KEY,
        MessageSpec(
            "LegacyOffsetCommitValue",
            "0",
            (
                FieldSpec("offset", "int64"),
                FieldSpec("metadata", "string"),
                FieldSpec("commit_timestamp", "int64"),
            ),
        ),
    ),
    RecordType.OFFSET_COMMIT: RecordLayout(
        _OFFSET_KEY,
        MessageSpec(
            "OffsetCommitValue",
            "0-4",
            (
                FieldSpec("offset", "int64"),
                FieldSpec("leader_epoch", "int32", "3+", default=-1),
                FieldSpec("metadata", "string"),
                FieldSpec("commit_timestamp", "int64"),
                FieldSpec("expire_timestamp", "int64", "1", default=-1),
                FieldSpec("topic_id", "uuid", "4+", tagged="4+", tag=0),
                # Shoal's own, which Kafka ignores (`individual_commit`).
                FieldSpec("key_ranges", _KEY_RANGE, "4+", tagged="4+", tag=1000),
                # The offset of the record that replaced all key ranges last, if it is not this one;
                # -1 if there is none.
                FieldSpec("replaced_at", "int64", "4+", tagged="4+", tag=1001, default=THIS_RECORD),
            ),
            flexible="4+",
        ),
        version=4,
    ),
    RecordType.KEY_RANGES_IN_TRANSACTION: RecordLayout(
        _make_key(*_make_columns("group", "topic"), _PARTITION, FieldSpec("producer_id", "int64")),
        _make_value(
            FieldSpec("key_ranges", _KEY_RANGE),
            FieldSpec("leader_epoch", "int32"),
            FieldSpec("metadata", "string"),
            FieldSpec("commit_timestamp", "int64"),
            FieldSpec("topic_id", "uuid"),
        ),
    ),
    RecordType.GROUP_METADATA: RecordLayout(
        _make_key(*_make_columns("group")),
        MessageSpec(
            "GroupMetadataValue",
            "0-4",
            (
                FieldSpec("protocol_type", "string"),
                FieldSpec("generation", "int32"),
                FieldSpec("protocol", "string", nullable="0+"),
                FieldSpec("leader", "string", nullable="0+"),
                FieldSpec("current_state_timestamp", "int64", "2+", default=-1),
                FieldSpec("members", _CLASSIC_MEMBER),
            ),
            flexible="4+",
        ),
        version=3,
    ),
    RecordType.CONSUMER_GROUP_METADATA: RecordLayout(
        _GROUP,
        _make_value(
            FieldSpec("epoch", "int32"),
            FieldSpec("metadata_hash", "int64", tagged="0+", tag=0),
        ),
    ),
    RecordType.CONSUMER_GROUP_PARTITION_METADATA: RecordLayout(_GROUP, _PARTITION_METADATA),
    RecordType.CONSUMER_GROUP_MEMBER_METADATA: RecordLayout(_MEMBER, _CONSUMER_MEMBER),
    RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: RecordLayout(
        _GROUP, _ASSIGNMENT_METADATA
    ),
    RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: RecordLayout(
        _MEMBER, _CONSUMER_TARGET_MEMBER
    ),
    RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: RecordLayout(
        _MEMBER,
        _make_value(
            FieldSpec("member_epoch", "int32"),
            FieldSpec("previous_member_epoch", "int32"),
            FieldSpec("state", "int8"),
            FieldSpec("assigned_partitions", _OWNED),
            FieldSpec("partitions_pending_revocation", _OWNED),
            FieldSpec("assigned_key_ranges", _OWNED_SHARED, tagged="0+", tag=1000),
            FieldSpec("key_ranges_pending_revocation", _OWNED_SHARED, tagged="0+", tag=1001),
        ),
    ),
    RecordType.SHARE_GROUP_MEMBER_METADATA: RecordLayout(
        _MEMBER,
        _make_value(
            FieldSpec("rack_id", "string", nullable="0+"),
            FieldSpec("client_id", "string"),
            FieldSpec("client_host", "string"),
            FieldSpec("subscribed_topic_names", "[]string"),
        ),
    ),
    RecordType.SHARE_GROUP_METADATA: RecordLayout(
        _GROUP, _make_value(FieldSpec("epoch", "int32"), FieldSpec("metadata_hash", "int64"))
    ),
    RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA: RecordLayout(_GROUP, _ASSIGNMENT_METADATA),
    RecordType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER: RecordLayout(_MEMBER, _TARGET_MEMBER),
    RecordType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT: RecordLayout(
        _MEMBER,
        _make_value(
            FieldSpec("member_epoch", "int32"),
            FieldSpec("previous_member_epoch", "int32"),
            FieldSpec("state", "int8"),
            FieldSpec("assigned_partitions", _TOPIC_PARTITIONS),
        ),
    ),
    RecordType.SHARE_GROUP_STATE_PARTITION_METADATA: RecordLayout(
        _GROUP,
        _make_value(
            FieldSpec("initializing_topics", _NAMED_PARTITIONS),
            FieldSpec("initialized_topics", _NAMED_PARTITIONS),
            FieldSpec(
                "deleting_topics",
                (FieldSpec("topic_id", "uuid"), FieldSpec("topic_name", "string")),
            ),
        ),
    ),
    RecordType.CONSUMER_GROUP_REGULAR_EXPRESSION: RecordLayout(
        _make_key(*_make_columns("group_id", "regular_expression")),
        _make_value(
            FieldSpec("topics", "[]string"),
            FieldSpec("version", "int64"),
            FieldSpec("timestamp", "int64"),
        ),
    ),
    RecordType.STREAMS_GROUP_METADATA: RecordLayout(
        _GROUP,
        _make_value(
            FieldSpec("epoch", "int32"),
            FieldSpec("metadata_hash", "int64"),
            FieldSpec("validated_topology_epoch", "int32", tagged="0+", tag=0, default=-1),
            FieldSpec("last_assignment_configs", _KEY_VALUES, nullable="0+", tagged="0+", tag=1),
        ),
    ),
    RecordType.STREAMS_GROUP_MEMBER_METADATA: RecordLayout(_MEMBER, _STREAMS_MEMBER),
    RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA: RecordLayout(_GROUP, _ASSIGNMENT_METADATA),
    RecordType.STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER: RecordLayout(
        _MEMBER, _make_value(*(FieldSpec(role, _TASKS) for role in _TASK_ROLES))
    ),
    RecordType.STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT: RecordLayout(
        _MEMBER,
        _make_value(
            FieldSpec("member_epoch", "int32"),
            FieldSpec("previous_member_epoch", "int32"),
            FieldSpec("state", "int8"),
            *(FieldSpec(role, _OWNED_TASKS) for role in _TASK_ROLES),
            *(FieldSpec(f"{role}_pending_revocation", _OWNED_TASKS) for role in _TASK_ROLES),
        ),
    ),
    RecordType.STREAMS_GROUP_TOPOLOGY: RecordLayout(
        _GROUP,
        _make_value(FieldSpec("epoch", "int32"), FieldSpec("subtopologies", _SUBTOPOLOGY)),
    ),
}


@cache
def _get_writers(kind: RecordType, version: int) -> tuple[bytes, Writer, bytes, Writer]:
    """The first bytes of a key and of a value of that version, and the writers of the rest."""
    layout = LAYOUTS[kind]
    return (
        _INT16.pack(kind),
        compiler.get_writer(layout.key.get_struct(0)),
        _INT16.pack(version),
        compiler.get_writer(layout.value.get_struct(version)),
    )


@cache
def _get_key_reader(number: int) -> tuple[RecordType, Reader] | None:
    """The reader of keys of that type; None for an unknown type."""
    layout = LAYOUTS.get(number)  # type: ignore[call-overload]
    return (
        None
        if layout is None
        else (RecordType(number), compiler.get_reader(layout.key.get_struct(0)))
    )


@cache
def _get_value_reader(kind: RecordType, version: int) -> Reader | None:
    """The reader of values of that version; None for an unknown version."""
    message = LAYOUTS[kind].value
    is_known = version in parse_versions(message.versions)
    return compiler.get_reader(message.get_struct(version)) if is_known else None


def encode_record(
    kind: RecordType,
    key: Mapping[str, Any],
    value: Mapping[str, Any] | None,
    version: int | None = None,
) -> CoordinatorRecord:
    """Encode a record; without a `value` a tombstone."""
    if version is None:
        version = LAYOUTS[kind].version
    key_head, write_key, value_head, write_value = _get_writers(kind, version)
    head = bytearray(key_head)
    write_key(head, key)
    if value is None:
        return CoordinatorRecord(bytes(head), None)
    body = bytearray(value_head)
    write_value(body, value)
    return CoordinatorRecord(bytes(head), bytes(body))


def encode_tombstone(kind: RecordType, **key: Any) -> CoordinatorRecord:
    """Encode the tombstone of a key."""
    return encode_record(kind, key, None)


def decode(stored: CoordinatorRecord) -> DecodedGroupRecord | None:
    """Return the fields of a record; None for an unknown type or version.

    Raises `WireError` for bytes that do not fit the layout.
    """
    if len(stored.key) < 2:
        raise WireError(f"a record key of {len(stored.key)} bytes")
    reader = _get_key_reader(_INT16.unpack_from(stored.key)[0])
    if reader is None:
        return None
    kind, read_key = reader
    key, _ = read_key(memoryview(stored.key), 2)
    if stored.value is None:
        return DecodedGroupRecord(kind, key, None)
    if len(stored.value) < 2:
        raise WireError(f"a record value of {len(stored.value)} bytes")
    read_value = _get_value_reader(kind, _INT16.unpack_from(stored.value)[0])
    if read_value is None:
        return None
    value, _ = read_value(memoryview(stored.value), 2)
    return DecodedGroupRecord(kind, key, value)
