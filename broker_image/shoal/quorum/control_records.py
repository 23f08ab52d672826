"""Control records of the quorum: leader changes, voter sets, snapshot headers and footers.

A control record's key is its version and type (`shoal.record.control`), its value one of Kafka's
messages: LeaderChangeMessage, SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord and
VotersRecord (KIP-595, KIP-630, KIP-853). Their first field is their version.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.protocol import compiler
from shoal.protocol.schema import FieldSpec, MessageSpec
from shoal.record.batch import Buffer, CorruptBatch
from shoal.record.control import ControlType
from shoal.record.records import build_batch, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_KEY = struct.Struct(">hh")
#: Far above a voters record with hundreds of voters.
_BATCH_BYTES_MAX = 1 << 20

_VERSION = FieldSpec("version", "int16")
_VOTER = (FieldSpec("voter_id", "int32"), FieldSpec("voter_directory_id", "uuid", "1+"))
_ENDPOINT = (FieldSpec("name", "string"), FieldSpec("host", "string"), FieldSpec("port", "uint16"))
_VERSION_RANGE = (
    FieldSpec("min_supported_version", "int16"),
    FieldSpec("max_supported_version", "int16"),
)

_LAYOUTS = {
    ControlType.LEADER_CHANGE: MessageSpec(
        "LeaderChangeMessage",
        "0-1",
        (
            _VERSION,
            FieldSpec("leader_id", "int32"),
            FieldSpec("voters", _VOTER),
            FieldSpec("granting_voters", _VOTER),
        ),
        flexible="0+",
    ),
    ControlType.SNAPSHOT_HEADER: MessageSpec(
        "SnapshotHeaderRecord",
        "0",
        (_VERSION, FieldSpec("last_contained_log_timestamp", "int64")),
        flexible="0+",
    ),
    ControlType.SNAPSHOT_FOOTER: MessageSpec(
        "SnapshotFooterRecord", "0", (_VERSION,), flexible="0+"
    ),
    ControlType.KRAFT_VERSION: MessageSpec(
        "KRaftVersionRecord", "0", (_VERSION, FieldSpec("kraft_version", "int16")), flexible="0+"
    ),
    ControlType.KRAFT_VOTERS: MessageSpec(
        "VotersRecord",
        "0",
        (
            _VERSION,
            FieldSpec(
                "voters",
                (
                    FieldSpec("voter_id", "int32"),
                    FieldSpec("voter_directory_id", "uuid"),
                    FieldSpec("endpoints", _ENDPOINT),
                    FieldSpec("kraft_version_feature", _VERSION_RANGE, struct=True),
                ),
            ),
        ),
        flexible="0+",
    ),
}


class ControlRecord(NamedTuple):
    """A control record and the fields of its value."""

    offset: int
    kind: ControlType
    fields: dict[str, Any]


def build_control_batch(
    records: Iterable[tuple[ControlType, dict[str, Any]]],
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
) -> bytearray:
    """Return a batch of control records for the log, in version 0 as in Kafka 4.3.1."""
    encoded = []
    for kind, fields in records:
        value = bytearray()
        compiler.get_writer(_LAYOUTS[kind].get_struct(0))(value, {**fields, "version": 0})
        encoded.append((timestamp_ms, _KEY.pack(0, kind), bytes(value), ()))
    return build_batch(encoded, base_offset=base_offset, control=True, leader_epoch=leader_epoch)


def read_control_batch(buf: Buffer, at: int = 0) -> Iterator[ControlRecord]:
    """Yield the control records of the quorum in the control batch at `at`; skip other kinds.

    Raises `CorruptBatch`, `WireError`.
    """
    for record in read_records(buf, at, bytes_max=_BATCH_BYTES_MAX):
        if record.key is None or len(record.key) < _KEY.size or record.value is None:
            raise CorruptBatch("a control record without a type or a value")
        _, kind = _KEY.unpack_from(record.key)
        layout = next((m for layout_kind, m in _LAYOUTS.items() if layout_kind == kind), None)
        if layout is None:
            continue
        version = int.from_bytes(record.value[:2], "big")
        try:
            reader = compiler.get_reader(layout.get_struct(version))
        except ValueError as error:
            raise CorruptBatch(str(error)) from None
        fields, _ = reader(memoryview(record.value), 0)
        yield ControlRecord(record.offset, ControlType(kind), fields)
