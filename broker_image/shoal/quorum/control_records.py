"""Control records of the quorum: who leads, who votes, and where a snapshot begins and ends.

A control record's key is its version and type (`shoal.record.control`), its value one of Kafka's
messages: LeaderChangeMessage, SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord and
VotersRecord (KIP-595, KIP-630, KIP-853). Their first field is the version that they are in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from shoal.protocol import compiler
from shoal.protocol.schema import Column, Message
from shoal.record.batch import Buffer, CorruptBatch
from shoal.record.control import ControlType
from shoal.record.records import build_batch, read_records

_KEY = struct.Struct(">hh")
#: A voters record of hundreds of voters is far below this.
_BATCH_BYTES_MAX = 1 << 20

_VERSION = Column("version", "int16")
_VOTER = (Column("voter_id", "int32"), Column("voter_directory_id", "uuid", "1+"))
_ENDPOINT = (Column("name", "string"), Column("host", "string"), Column("port", "uint16"))
_VERSION_RANGE = (
    Column("min_supported_version", "int16"),
    Column("max_supported_version", "int16"),
)

_LAYOUTS = {
    ControlType.LEADER_CHANGE: Message(
        "LeaderChangeMessage",
        "0-1",
        (
            _VERSION,
            Column("leader_id", "int32"),
            Column("voters", _VOTER),
            Column("granting_voters", _VOTER),
        ),
        flexible="0+",
    ),
    ControlType.SNAPSHOT_HEADER: Message(
        "SnapshotHeaderRecord",
        "0",
        (_VERSION, Column("last_contained_log_timestamp", "int64")),
        flexible="0+",
    ),
    ControlType.SNAPSHOT_FOOTER: Message("SnapshotFooterRecord", "0", (_VERSION,), flexible="0+"),
    ControlType.KRAFT_VERSION: Message(
        "KRaftVersionRecord", "0", (_VERSION, Column("kraft_version", "int16")), flexible="0+"
    ),
    ControlType.KRAFT_VOTERS: Message(
        "VotersRecord",
        "0",
        (
            _VERSION,
            Column(
                "voters",
                (
                    Column("voter_id", "int32"),
                    Column("voter_directory_id", "uuid"),
                    Column("endpoints", _ENDPOINT),
                    Column("kraft_version_feature", _VERSION_RANGE, struct=True),
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
    """One batch of control records, as it stands in the log; in version 0, as Kafka 4.3.1 writes
    all of them."""
    encoded = []
    for kind, fields in records:
        value = bytearray()
        compiler.writer(_LAYOUTS[kind].at(0))(value, {**fields, "version": 0})
        encoded.append((timestamp_ms, _KEY.pack(0, kind), bytes(value), ()))
    return build_batch(encoded, base_offset=base_offset, control=True, leader_epoch=leader_epoch)


def read_control_batch(buf: Buffer, at: int = 0) -> Iterator[ControlRecord]:
    """The quorum's control records in the control batch at `at`; other kinds are passed over.

    Raises `CorruptBatch`, `WireError`.
    """
    for record in read_records(buf, at, bytes_max=_BATCH_BYTES_MAX):
        if record.key is None or len(record.key) < _KEY.size or record.value is None:
            raise CorruptBatch("a control record without a type or a value")
        _, kind = _KEY.unpack_from(record.key)
        layout = next((m for known, m in _LAYOUTS.items() if known == kind), None)
        if layout is None:
            continue
        version = int.from_bytes(record.value[:2], "big")
        try:
            reader = compiler.reader(layout.at(version))
        except ValueError as error:
            raise CorruptBatch(str(error)) from None
        fields, _ = reader(memoryview(record.value), 0)
        yield ControlRecord(record.offset, ControlType(kind), fields)
