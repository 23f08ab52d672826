"""The manifest of a partition: one small object that lists its remote segments.

It has what `__remote_log_metadata` has on the finished segments of the partition, so the records of
that topic can be written again from it. The leader replaces it before a copy counts as finished,
and before it deletes objects. So every finished segment is in it, and every object that it names is
in the store. `leader_epoch` fences it: a leader never replaces the manifest of a later epoch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from crc32c import crc32c

from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import Column, Message
from shoal.tiered.remote_log import RemoteSegment
from shoal.tiered.segment_object import DamagedObject

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.record.batch import Buffer

#: CRC-32C of all that follows it, format version, magic.
_HEAD = struct.Struct(">IH6s")
#: Where the bytes begin that the CRC covers.
_CRC_END = 4
VERSION = 0
MAGIC = b"SHOALM"


class Manifest(NamedTuple):
    """The finished segments of a partition, as the leader of one epoch wrote them.

    `write_id` is another one for each write, so that a writer whose request failed can see whether
    it took effect. `revision` counts the writes.
    """

    cluster_id: str
    topic: str
    topic_id: UUID
    partition: int
    leader_epoch: int
    broker_id: int
    write_id: UUID
    revision: int
    written_ms: int
    log_start_offset: int
    segments: tuple[RemoteSegment, ...]


_LAYOUT = Message(
    "Manifest",
    "0",
    (
        Column("cluster_id", "string"),
        Column("topic", "string"),
        Column("topic_id", "uuid"),
        Column("partition", "int32"),
        Column("leader_epoch", "int32"),
        Column("broker_id", "int32"),
        Column("write_id", "uuid"),
        Column("revision", "int64"),
        Column("written_ms", "int64"),
        Column("log_start_offset", "int64"),
        Column(
            "segments",
            (
                Column("segment_id", "uuid"),
                Column("base_offset", "int64"),
                Column("end_offset", "int64"),
                Column("max_timestamp", "int64"),
                Column("log_size", "int64"),
                Column("object_size", "int64"),
                Column("footer_size", "int32"),
                Column("broker_id", "int32"),
                Column("txn_index_empty", "bool"),
                Column("leader_epochs", (Column("epoch", "int32"), Column("offset", "int64"))),
            ),
        ),
    ),
    flexible="0+",
).at(0)


def encode(manifest: Manifest) -> bytes:
    """Return the contents of the manifest's object."""
    fields: dict[str, Any] = manifest._asdict()
    fields["segments"] = [
        segment._asdict()
        | {"leader_epochs": [{"epoch": e, "offset": at} for e, at in segment.leader_epochs]}
        for segment in manifest.segments
    ]
    body = bytearray(_HEAD.pack(0, VERSION, MAGIC))
    compiler.writer(_LAYOUT)(body, fields)
    body[:_CRC_END] = crc32c(memoryview(body)[_CRC_END:]).to_bytes(_CRC_END, "big")
    return bytes(body)


def decode(data: Buffer) -> Manifest:
    """Parse the contents of a manifest's object. Raises `DamagedObject`."""
    if len(data) < _HEAD.size:
        raise DamagedObject(f"an object of {len(data)} bytes is not a manifest")
    crc, version, magic = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DamagedObject("the object is not a manifest")
    if version > VERSION:
        raise DamagedObject(
            f"the manifest has format {version} of a newer release; this release reads {VERSION}"
        )
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise DamagedObject("the manifest has a wrong checksum")
    try:
        fields, _ = compiler.reader(_LAYOUT)(memoryview(data), _HEAD.size)
    except (WireError, ValueError, TypeError) as error:
        raise DamagedObject(f"the manifest is invalid: {error}") from None
    segments = tuple(_segment(entry) for entry in fields["segments"])
    values = {name: fields[name] for name in Manifest._fields}
    return Manifest(**values | {"segments": segments})


def _segment(entry: Any) -> RemoteSegment:
    epochs = tuple((epoch["epoch"], epoch["offset"]) for epoch in entry["leader_epochs"])
    values = {name: entry[name] for name in RemoteSegment._fields}
    return RemoteSegment(**values | {"leader_epochs": epochs})
