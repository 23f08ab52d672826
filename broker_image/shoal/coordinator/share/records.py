"""The records of `__share_group_state` in Kafka's format: Kafka's own formatter prints them.

A snapshot has the whole state of one share partition; an update has the changes since. A null value
under a snapshot's key is a tombstone, which deletes the share partition's state. Unknown types
belong to newer brokers and are skipped on replay.

Groups with a retry back-off have one additional field: when records are available again. It is a
tag that Kafka's readers skip (KIP-482). Without it the bytes are Kafka's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.coordinator.contract import CoordinatorRecord
from shoal.coordinator.share import compiled
from shoal.coordinator.share.backoff import Delay
from shoal.log.uuids import format_uuid
from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import FieldSpec, MessageSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.share.states import StateBatch

_INT16 = struct.Struct(">h")
#: The id of no topic, which readers of messages give as None.
NO_TOPIC = UUID(int=0)
#: Keys come with every request of another broker. Long names of groups are not kept.
_KEYS_MAX, _GROUP_SIZE_MAX = 4096, 256
_VERSION = 0


class ShareRecordType(IntEnum):
    """The int16 that a key starts with."""

    SHARE_SNAPSHOT = 0
    SHARE_UPDATE = 1


@dataclass(frozen=True, slots=True)
class ShareKey:
    """The key of a share partition's state. `encoded` follows the record type in record keys. The
    hash of `coordinator_key` selects the partition of `__share_group_state` (KIP-932), as in
    FindCoordinator: group, topic id in Kafka's base 64, partition."""

    group_id: str
    topic_id: UUID
    partition: int
    encoded: bytes = field(init=False, compare=False, repr=False)
    coordinator_key: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        coordinator_key = f"{self.group_id}:{format_uuid(self.topic_id)}:{self.partition}"
        object.__setattr__(self, "coordinator_key", coordinator_key)
        out = bytearray()
        fields = {
            "group_id": self.group_id,
            "topic_id": self.topic_id,
            "partition": self.partition,
        }
        compiler.get_writer(_KEY.get_struct(_VERSION))(out, fields)
        object.__setattr__(self, "encoded", bytes(out))


def find_key(group_id: str, topic_id: UUID, partition: int) -> ShareKey:
    """Return the key of a share partition; the same object as before, if it is a recent one."""
    find = _find_recent_key if len(group_id) <= _GROUP_SIZE_MAX else ShareKey
    return find(group_id, topic_id, partition)


_find_recent_key = lru_cache(_KEYS_MAX)(ShareKey)

_KEY = MessageSpec(
    "ShareKey",
    "0",
    (
        FieldSpec("group_id", "string"),
        FieldSpec("topic_id", "uuid"),
        FieldSpec("partition", "int32"),
    ),
)
_COMPLETE = FieldSpec("delivery_complete_count", "int32", tagged="0+", tag=0, default=-1)
_STATE_BATCHES = FieldSpec(
    "state_batches",
    (
        FieldSpec("first_offset", "int64"),
        FieldSpec("last_offset", "int64"),
        FieldSpec("delivery_state", "int8"),
        FieldSpec("delivery_count", "int16"),
    ),
)
#: Far above Kafka's tags, which count up from 0.
_DELAYS = FieldSpec(
    "delays",
    (
        FieldSpec("first_offset", "int64"),
        FieldSpec("last_offset", "int64"),
        FieldSpec("delivery_count", "int16"),
        FieldSpec("available_timestamp", "int64"),
    ),
    tagged="0+",
    tag=1000,
    default=[],  # Decoded as this list object, which must not be changed.
)
_SNAPSHOT = MessageSpec(
    "ShareSnapshotValue",
    "0",
    (
        FieldSpec("snapshot_epoch", "int32"),
        FieldSpec("state_epoch", "int32"),
        FieldSpec("leader_epoch", "int32"),
        FieldSpec("start_offset", "int64"),
        _COMPLETE,
        FieldSpec("create_timestamp", "int64"),
        FieldSpec("write_timestamp", "int64"),
        _STATE_BATCHES,
        _DELAYS,
    ),
    flexible="0+",
)
_UPDATE = MessageSpec(
    "ShareUpdateValue",
    "0",
    (
        FieldSpec("snapshot_epoch", "int32"),
        FieldSpec("leader_epoch", "int32"),
        FieldSpec("start_offset", "int64"),
        _COMPLETE,
        _STATE_BATCHES,
        _DELAYS,
    ),
    flexible="0+",
)
_VALUES = {ShareRecordType.SHARE_SNAPSHOT: _SNAPSHOT, ShareRecordType.SHARE_UPDATE: _UPDATE}
# An update's value: version, epochs, start offset; then batches; then the tagged count. That of a
# snapshot has the epoch of the state too, and two timestamps.
_UPDATE_HEAD = struct.Struct(">hiiq")
_SNAPSHOT_HEAD = struct.Struct(">hiiiqqq")
_BATCH = struct.Struct(">qqbhB")
_UNTAGGED_BATCH = struct.Struct(">qqbhx")
_NO_TAGS = b"\x00"
#: One tag, the delivery complete count, of four bytes.
_COMPLETE_HEAD = b"\x01\x00\x04"


class ShareUpdate(NamedTuple):
    """The fields of an update. Start offset and count are -1 if they do not change."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: Sequence[StateBatch]
    delays: Sequence[Delay] = ()


class ShareSnapshot(NamedTuple):
    """The fields of a snapshot, in the order of the value."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    create_timestamp: int
    write_timestamp: int
    delivery_complete_count: int
    state_batches: Sequence[StateBatch]
    delays: Sequence[Delay] = ()


class DecodedShareRecord(NamedTuple):
    """A record as fields. `value` is None for a tombstone."""

    type: ShareRecordType
    key: ShareKey
    value: dict[str, Any] | None


def encode_key(kind: ShareRecordType, key: ShareKey) -> bytes:
    """Return the encoded key of a record."""
    return _INT16.pack(kind) + key.encoded


def encode_snapshot(
    key: ShareKey,
    *,
    snapshot_epoch: int,
    state_epoch: int,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    create_timestamp: int,
    write_timestamp: int,
    state_batches: Sequence[StateBatch],
    delays: Sequence[Delay] = (),
) -> CoordinatorRecord:
    """Return a snapshot record. Timestamps are epoch milliseconds. It is encoded by hand, since it
    may have tens of thousands of state batches."""
    record_key = encode_key(ShareRecordType.SHARE_SNAPSHOT, key)
    if not delays:
        epochs = (snapshot_epoch, state_epoch, leader_epoch)
        times = (create_timestamp, write_timestamp)
        out = bytearray(_SNAPSHOT_HEAD.pack(_VERSION, *epochs, start_offset, *times))
        _put_batches(out, state_batches, delivery_complete_count)
        return CoordinatorRecord(record_key, bytes(out))
    out = bytearray(_INT16.pack(_VERSION))
    fields = {
        "snapshot_epoch": snapshot_epoch,
        "state_epoch": state_epoch,
        "leader_epoch": leader_epoch,
        "start_offset": start_offset,
        "delivery_complete_count": delivery_complete_count,
        "create_timestamp": create_timestamp,
        "write_timestamp": write_timestamp,
        **_build_range_fields(state_batches, delays),
    }
    compiler.get_writer(_SNAPSHOT.get_struct(_VERSION))(out, fields)
    return CoordinatorRecord(record_key, bytes(out))


def encode_update(update: ShareUpdate) -> bytes:
    """Return the value of an update record. It is encoded by hand, since each acknowledgement
    writes one."""
    if update.delays:
        return _encode_update_with_delays(update)
    out = bytearray(_UPDATE_HEAD.pack(_VERSION, *update[:3]))
    _put_batches(out, update.state_batches, update.delivery_complete_count)
    return bytes(out)


def _put_batches(out: bytearray, batches: Sequence[StateBatch], complete: int) -> None:
    """Put state batches, and the tagged fields that follow in values without delays."""
    compiler.put_uvarint(out, len(batches) + 1)
    if compiled.native is not None and type(batches) is list:
        out += compiled.native.packed(batches)
    else:
        out += b"".join(starmap(_UNTAGGED_BATCH.pack, batches))
    out += _NO_TAGS if complete == -1 else _COMPLETE_HEAD + complete.to_bytes(4, "big")


def _encode_update_with_delays(update: ShareUpdate) -> bytes:
    out = bytearray(_INT16.pack(_VERSION))
    fields = update._asdict() | _build_range_fields(update.state_batches, update.delays)
    compiler.get_writer(_UPDATE.get_struct(_VERSION))(out, fields)
    return bytes(out)


def _build_range_fields(batches: Sequence[StateBatch], waits: Sequence[Delay]) -> dict[str, Any]:
    return {
        "state_batches": [
            {
                "first_offset": first,
                "last_offset": last,
                "delivery_state": state,
                "delivery_count": count,
            }
            for first, last, state, count in batches
        ],
        "delays": [
            {
                "first_offset": first,
                "last_offset": last,
                "delivery_count": count,
                "available_timestamp": due_ms,
            }
            for first, last, count, due_ms in waits
        ],
    }


def read_update(value: bytes) -> ShareUpdate | None:
    """Return the fields of an update, or None for an unknown version or invalid bytes.

    Values of `encode_update` are decoded by hand; others by the layout.
    """
    if len(value) > _UPDATE_HEAD.size:
        version, snapshot_epoch, leader_epoch, start_offset = _UPDATE_HEAD.unpack_from(value)
        size, begin = value[_UPDATE_HEAD.size], _UPDATE_HEAD.size + 1
        if size > 0x7F:  # A varint of two bytes, or one for the layout.
            second = value[begin] if begin < len(value) else 0x80
            size, begin = (size & 0x7F | second << 7 if second <= 0x7F else 0), begin + 1
        if version == _VERSION and (rest := _read_batches(value, begin, size)) is not None:
            return ShareUpdate(snapshot_epoch, leader_epoch, start_offset, *rest)
    fields = _read_value(ShareRecordType.SHARE_UPDATE, value)
    if fields is None:
        return None
    return ShareUpdate(
        fields["snapshot_epoch"],
        fields["leader_epoch"],
        fields["start_offset"],
        fields["delivery_complete_count"],
        read_state_batches(fields),
        read_delays(fields),
    )


def read_snapshot(value: bytes) -> ShareSnapshot | None:
    """Return the fields of a snapshot, or None for an unknown version or invalid bytes.

    Values without delays are decoded by hand; others by the layout.
    """
    try:
        version, *head = _SNAPSHOT_HEAD.unpack_from(value)
        size, begin = compiler.get_uvarint(memoryview(value), _SNAPSHOT_HEAD.size)
    except (struct.error, IndexError, WireError):
        return None
    if version == _VERSION and (rest := _read_batches(value, begin, size)) is not None:
        return ShareSnapshot._make((*head, *rest, ()))
    fields = _read_value(ShareRecordType.SHARE_SNAPSHOT, value)
    if fields is None:
        return None
    decoded = (read_state_batches(fields), read_delays(fields))
    return ShareSnapshot._make((*(fields[name] for name in ShareSnapshot._fields[:-2]), *decoded))


def _read_batches(value: bytes, begin: int, size: int) -> tuple[int, list[StateBatch]] | None:
    """Return the delivery complete count, and what `_put_batches` has put from `begin` on behind
    this size; None for anything else."""
    end = begin + _BATCH.size * (size - 1)
    tags = value[end:]
    has_count = tags[:3] == _COMPLETE_HEAD and len(tags) == 7
    if not size or not (has_count or tags == _NO_TAGS):
        return None
    batches = list(_BATCH.iter_unpack(value[begin:end]))
    if any(batch[4] for batch in batches):
        return None
    complete = int.from_bytes(tags[3:], "big", signed=True) if has_count else -1
    return complete, [batch[:4] for batch in batches]


def encode_tombstone(key: ShareKey) -> CoordinatorRecord:
    """Return the record that deletes a share partition's state."""
    return CoordinatorRecord(encode_key(ShareRecordType.SHARE_SNAPSHOT, key), None)


def decode(record: CoordinatorRecord) -> DecodedShareRecord | None:
    """Return the fields of a record, or None for an unknown type or version, or invalid bytes."""
    key = decode_key(record.key)
    if key is None:
        return None
    kind = ShareRecordType(_INT16.unpack_from(record.key)[0])
    if record.value is None:
        return DecodedShareRecord(kind, key, None)
    value = _read_value(kind, record.value)
    return None if value is None else DecodedShareRecord(kind, key, value)


def decode_key(data: bytes) -> ShareKey | None:
    """Return the share partition of a record's key, or None for an unknown type or invalid
    bytes."""
    try:
        ShareRecordType(_INT16.unpack_from(data)[0])
        fields, _ = compiler.get_reader(_KEY.get_struct(_VERSION))(memoryview(data), _INT16.size)
    except (ValueError, struct.error, WireError):
        return None
    return ShareKey(fields["group_id"], fields["topic_id"] or NO_TOPIC, fields["partition"])


def _read_value(kind: ShareRecordType, value: bytes) -> dict[str, Any] | None:
    try:
        if _INT16.unpack_from(value)[0] != _VERSION:
            return None
        layout = compiler.get_reader(_VALUES[kind].get_struct(_VERSION))
        return layout(memoryview(value), _INT16.size)[0]
    except (struct.error, WireError):
        return None


def read_state_batches(value: Mapping[str, Any]) -> list[StateBatch]:
    """Return the state batches of a decoded value."""
    return [
        Delay(x["first_offset"], x["last_offset"], x["delivery_state"], x["delivery_count"])
        for x in value["state_batches"]
    ]


def read_delays(value: Mapping[str, Any]) -> tuple[Delay, ...]:
    """Return the delays of a decoded value."""
    return tuple(
        Delay(x["first_offset"], x["last_offset"], x["delivery_count"], x["available_timestamp"])
        for x in value["delays"]
    )
