"""Records of `__remote_log_metadata`, as Kafka 4.3.1 writes them (KIP-405).

A value is a frame version, an API key and a version, each an unsigned varint, and a flexible body.
Kafka's records have no keys. Here a record has a key, so that compaction bounds the topic: topic
id, partition, segment id and the record's type. The started record and the last update of each
segment remain, and tombstones end both.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import FieldSpec, MessageSpec, parse_versions

#: The topic's name in Kafka.
TOPIC = "__remote_log_metadata"
FRAME_VERSION = 0x01
_KEY = struct.Struct(">16si16sB")
KEY_SIZE = _KEY.size
_ADDED, _UPDATED = 0, 1


class RemoteLogSegmentState(IntEnum):
    """The state of a remote segment, by Kafka's numbers."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


_STARTED, _FINISHED, _DELETING, _DELETED = RemoteLogSegmentState
#: The legal moves. A state may be written again, except the last.
MOVES = {
    _STARTED: (_STARTED, _FINISHED, _DELETING),
    _FINISHED: (_FINISHED, _DELETING),
    _DELETING: (_DELETING, _DELETED),
    _DELETED: (),
}


class RemoteLogSegmentId(NamedTuple):
    """A segment of a partition. Each attempt to copy it has another `segment_id`."""

    topic: str
    topic_id: UUID
    partition: int
    segment_id: UUID


class RemoteLogSegmentMetadata(NamedTuple):
    """RemoteLogSegmentMetadataRecord: a copy begins. Offsets are inclusive, times in epoch ms."""

    id: RemoteLogSegmentId
    base_offset: int
    end_offset: int
    broker_id: int
    max_timestamp: int
    event_timestamp: int
    leader_epochs: tuple[tuple[int, int], ...]
    log_size: int
    state: RemoteLogSegmentState
    txn_index_empty: bool


class RemoteLogSegmentUpdate(NamedTuple):
    """RemoteLogSegmentMetadataUpdateRecord: the segment has another state."""

    id: RemoteLogSegmentId
    broker_id: int
    event_timestamp: int
    custom: bytes | None
    state: RemoteLogSegmentState


_PARTITION = FieldSpec(
    "topic_id_partition",
    (FieldSpec("name", "string"), FieldSpec("id", "uuid"), FieldSpec("partition", "int32")),
    struct=True,
)
_ID = FieldSpec("segment", (_PARTITION, FieldSpec("id", "uuid")), struct=True)
_LAYOUTS = {
    _ADDED: MessageSpec(
        "RemoteLogSegmentMetadataRecord",
        "0",
        (
            _ID,
            FieldSpec("base_offset", "int64"),
            FieldSpec("end_offset", "int64"),
            FieldSpec("broker_id", "int32"),
            FieldSpec("max_timestamp", "int64"),
            FieldSpec("event_timestamp", "int64"),
            FieldSpec("leader_epochs", (FieldSpec("epoch", "int32"), FieldSpec("offset", "int64"))),
            FieldSpec("log_size", "int32"),
            FieldSpec("custom", "bytes", nullable="0+"),
            FieldSpec("state", "int8"),
            FieldSpec("txn_index_empty", "bool", tagged="0+", tag=0),
        ),
        flexible="0+",
    ),
    _UPDATED: MessageSpec(
        "RemoteLogSegmentMetadataUpdateRecord",
        "0",
        (
            _ID,
            FieldSpec("broker_id", "int32"),
            FieldSpec("event_timestamp", "int64"),
            FieldSpec("custom", "bytes", nullable="0+"),
            FieldSpec("state", "int8"),
        ),
        flexible="0+",
    ),
}


def encode_key(record: RemoteLogSegmentMetadata | RemoteLogSegmentUpdate) -> bytes:
    """Return the record's key in the topic."""
    kind = _ADDED if isinstance(record, RemoteLogSegmentMetadata) else _UPDATED
    return _pack_key(record.id, kind)


def build_tombstones(segment: RemoteLogSegmentId) -> list[tuple[bytes, None]]:
    """Return the (key, value) pairs that remove a segment from the compacted topic."""
    return [(_pack_key(segment, kind), None) for kind in (_ADDED, _UPDATED)]


def parse_key(key: bytes) -> tuple[UUID, int, UUID] | None:
    """Return topic id, partition and segment id of a record's key; None for a foreign key."""
    if len(key) != _KEY.size:
        return None
    topic_id, partition, segment_id, _ = _KEY.unpack(key)
    return UUID(bytes=topic_id), partition, UUID(bytes=segment_id)


def _pack_key(segment: RemoteLogSegmentId, kind: int) -> bytes:
    return _KEY.pack(segment.topic_id.bytes, segment.partition, segment.segment_id.bytes, kind)


def encode(record: RemoteLogSegmentMetadata | RemoteLogSegmentUpdate) -> bytes:
    """Return the record's value in the topic."""
    kind = _ADDED if isinstance(record, RemoteLogSegmentMetadata) else _UPDATED
    fields: dict[str, Any] = record._asdict()
    partition_fields = {
        "name": record.id.topic,
        "id": record.id.topic_id,
        "partition": record.id.partition,
    }
    fields["segment"] = {"topic_id_partition": partition_fields, "id": record.id.segment_id}
    if isinstance(record, RemoteLogSegmentMetadata):
        fields["leader_epochs"] = [
            {"epoch": e, "offset": offset} for e, offset in record.leader_epochs
        ]
    out = bytearray((FRAME_VERSION, kind, 0))
    compiler.get_writer(_LAYOUTS[kind].get_struct(0))(out, fields)
    return bytes(out)


#: The usual value has one byte for each length, and no tagged fields but its last one. Then: topic
#: id, partition, tags, segment id, tags.
_USUAL_ID = struct.Struct(">16siB16sB")
#: Base and end offset, broker, largest and event timestamp, length of the leader epochs.
_USUAL_ADDED = struct.Struct(">qqiqqB")
#: Epoch, offset, tags.
_USUAL_EPOCH = struct.Struct(">iqB")
#: Log size, length of the custom metadata, state.
_USUAL_SIZE = struct.Struct(">iBb")
#: Broker, event timestamp, length of the custom metadata.
_USUAL_UPDATED = struct.Struct(">iqB")
_USUAL_END = struct.Struct(">bB")
_NO_INDEX = {b"\0": False, b"\x01\0\x01\0": False, b"\x01\0\x01\x01": True}
_STATES = dict(enumerate(RemoteLogSegmentState))


def decode_usual(value: bytes) -> RemoteLogSegmentMetadata | RemoteLogSegmentUpdate | None:
    """Parse a value as brokers write it, in two fifths of the time of `decode_by_layout`: a broker
    that starts reads two for each remote segment. Return None for any other value."""
    try:
        if value[0] != FRAME_VERSION or value[2] or not 0 < (size := value[3]) < 0x80:
            return None
        at = 3 + size
        topic_id, partition, no_tags, segment_id, none_either = _USUAL_ID.unpack_from(value, at)
        if no_tags or none_either:
            return None
        topic = value[4:at].decode()
        segment = RemoteLogSegmentId(
            topic, compiler.find_uuid(topic_id), partition, UUID(bytes=segment_id)
        )
        read = _decode_usual_update if value[1] == _UPDATED else _decode_usual_added
        return read(value, at + _USUAL_ID.size, segment) if value[1] <= _UPDATED else None
    except (IndexError, KeyError, UnicodeDecodeError, struct.error):
        return None


def _decode_usual_update(
    value: bytes, at: int, segment: RemoteLogSegmentId
) -> RemoteLogSegmentUpdate | None:
    broker_id, timestamp, size = _USUAL_UPDATED.unpack_from(value, at)
    at += _USUAL_UPDATED.size
    end = at + max(0, size - 1)
    state, tags = _USUAL_END.unpack_from(value, end)
    if size > 0x7F or tags or len(value) != end + _USUAL_END.size:
        return None
    return RemoteLogSegmentUpdate(
        segment, broker_id, timestamp, value[at:end] if size else None, _STATES[state]
    )


def _decode_usual_added(
    value: bytes, at: int, segment: RemoteLogSegmentId
) -> RemoteLogSegmentMetadata | None:
    base, last, broker_id, max_timestamp, timestamp, count = _USUAL_ADDED.unpack_from(value, at)
    at += _USUAL_ADDED.size
    end = at + (count - 1) * _USUAL_EPOCH.size
    if not 0 < count <= 0x7F or end > len(value):
        return None
    epochs = tuple(_USUAL_EPOCH.iter_unpack(value[at:end]))
    log_size, custom, state = _USUAL_SIZE.unpack_from(value, end)
    if custom > 1 or any(tags for _, _, tags in epochs):
        return None
    return RemoteLogSegmentMetadata(
        segment,
        base,
        last,
        broker_id,
        max_timestamp,
        timestamp,
        tuple((epoch, offset) for epoch, offset, _ in epochs),
        log_size,
        _STATES[state],
        _NO_INDEX[value[end + _USUAL_SIZE.size :]],
    )


def decode(value: bytes) -> RemoteLogSegmentMetadata | RemoteLogSegmentUpdate | None:
    """Parse a value of the topic. Return None for a record of another type or version, which other
    releases write. Raises `WireError` for invalid bytes."""
    return decode_usual(value) or decode_by_layout(value)


def decode_by_layout(value: bytes) -> RemoteLogSegmentMetadata | RemoteLogSegmentUpdate | None:
    """Parse any value, as `decode`."""
    buf = memoryview(value)
    try:
        frame, at = compiler.get_uvarint(buf, 0)
        kind, at = compiler.get_uvarint(buf, at)
        version, at = compiler.get_uvarint(buf, at)
    except IndexError:
        raise WireError(f"a remote log metadata record of {len(value)} bytes") from None
    message = _LAYOUTS.get(kind)
    if frame != FRAME_VERSION or message is None or version not in parse_versions(message.versions):
        return None
    fields, _ = compiler.get_reader(message.get_struct(version))(buf, at)
    try:
        return _build_record(kind, fields)
    except ValueError as error:
        raise WireError(f"an invalid remote log metadata record: {error}") from None


def _build_record(
    kind: int, fields: dict[str, Any]
) -> RemoteLogSegmentMetadata | RemoteLogSegmentUpdate:
    partition_fields, no_id = fields["segment"]["topic_id_partition"], UUID(int=0)
    segment = RemoteLogSegmentId(
        partition_fields["name"],
        partition_fields["id"] or no_id,
        partition_fields["partition"],
        fields["segment"]["id"] or no_id,
    )
    state = RemoteLogSegmentState(fields["state"])
    if kind == _UPDATED:
        return RemoteLogSegmentUpdate(
            segment, fields["broker_id"], fields["event_timestamp"], fields["custom"], state
        )
    return RemoteLogSegmentMetadata(
        segment,
        fields["base_offset"],
        fields["end_offset"],
        fields["broker_id"],
        fields["max_timestamp"],
        fields["event_timestamp"],
        tuple((entry["epoch"], entry["offset"]) for entry in fields["leader_epochs"]),
        fields["log_size"],
        state,
        fields["txn_index_empty"],
    )
