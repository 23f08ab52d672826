"""The manifest of a partition: one small object that lists its remote segments.

It has what `__remote_log_metadata` has on the finished segments of the partition, so the records of
that topic can be written again from it. The leader replaces it before a copy counts as finished,
and before it deletes objects. So every finished segment is in it, and every object that it names is
in the store. `leader_epoch` fences it: a leader never replaces the manifest of a later epoch.

It is written after each copy, so the segments are packed as `remote_log` has them in memory.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import FieldSpec, MessageSpec
from shoal.record.crc import crc32c
from shoal.tiered.remote_log import split_packed, unpack_all
from shoal.tiered.segment_object import DamagedObject

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.record.batch import Buffer
    from shoal.tiered.remote_log import RemoteSegment

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
    #: The segments, packed (`remote_log.pack`).
    packed: bytes
    #: Of a compacted topic: the offset up to which the keys were cleaned in all segments.
    cleaned_to: int = 0

    @property
    def segments(self) -> tuple[RemoteSegment, ...]:
        return tuple(unpack_all(self.packed))


_LAYOUT = MessageSpec(
    "Manifest",
    "0",
    (
        FieldSpec("cluster_id", "string"),
        FieldSpec("topic", "string"),
        FieldSpec("topic_id", "uuid"),
        FieldSpec("partition", "int32"),
        FieldSpec("leader_epoch", "int32"),
        FieldSpec("broker_id", "int32"),
        FieldSpec("write_id", "uuid"),
        FieldSpec("revision", "int64"),
        FieldSpec("written_ms", "int64"),
        FieldSpec("log_start_offset", "int64"),
        FieldSpec("packed", "bytes"),
        FieldSpec("cleaned_to", "int64", tagged="0+", tag=0),
    ),
    flexible="0+",
).get_struct(0)


def encode(manifest: Manifest) -> bytes:
    """Return the contents of the manifest's object."""
    body = bytearray(_HEAD.pack(0, VERSION, MAGIC))
    compiler.get_writer(_LAYOUT)(body, manifest._asdict())
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
        fields, _ = compiler.get_reader(_LAYOUT)(memoryview(data), _HEAD.size)
        values = {name: fields[name] for name in Manifest._fields}
        manifest = Manifest(**values | {"packed": bytes(fields["packed"])})
        for _ in split_packed(manifest.packed):
            pass
    except (WireError, ValueError, TypeError) as error:
        raise DamagedObject(f"the manifest is invalid: {error}") from None
    return manifest
