"""The layout of a record batch header of magic 2: each field, its type and its offset.

`batch` reads and writes headers by it. `shoal.compile` defines `C_CONSTANTS` as macros
for the C sources, so that no offset is written twice. This file imports nothing of the project, so
that the compiler script can run it alone. Source: Kafka's documentation, "Record Batch".
"""

from __future__ import annotations

import struct

#: Field names in wire order, with their types as `struct` names them. Numbers are big-endian.
FIELDS = (
    ("base_offset", "q"),
    ("batch_length", "i"),
    ("leader_epoch", "i"),
    ("magic", "b"),
    ("crc", "I"),
    ("attributes", "h"),
    ("last_offset_delta", "i"),
    ("base_timestamp", "q"),
    ("max_timestamp", "q"),
    ("producer_id", "q"),
    ("producer_epoch", "h"),
    ("base_sequence", "i"),
    ("record_count", "i"),
)
FORMAT = ">" + "".join(kind for _, kind in FIELDS)
#: Bytes of a header.
HEADER_SIZE = struct.calcsize(FORMAT)
#: The position of each field in the header, in bytes.
OFFSETS = {
    name: struct.calcsize(">" + "".join(kind for _, kind in FIELDS[:at]))
    for at, (name, _) in enumerate(FIELDS)
}


def build_format(*names: str) -> str:
    """Return the `struct` format of some fields, from the first to the last of them.

    `names` are in wire order. The format skips the bytes of the fields between them.
    """
    kinds, position, out = dict(FIELDS), OFFSETS[names[0]], ">"
    for name in names:
        gap = OFFSETS[name] - position
        out += f"{gap}x{kinds[name]}" if gap else kinds[name]
        position = OFFSETS[name] + struct.calcsize(">" + kinds[name])
    return out


#: Bytes before the part that batch_length counts.
OVERHEAD = OFFSETS["leader_epoch"]
#: The first byte that the CRC covers.
CRC_FROM = OFFSETS["attributes"]

MAGIC = 2
COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

#: Macros of the C sources. `BATCH_ATTRIBUTES_LOW_AT` is the byte with all known attributes.
C_CONSTANTS = {
    **{
        f"BATCH_{name.removeprefix('batch_').upper()}_AT": offset
        for name, offset in OFFSETS.items()
    },
    "BATCH_ATTRIBUTES_LOW_AT": OFFSETS["attributes"] + 1,
    "BATCH_HEADER_SIZE": HEADER_SIZE,
    "BATCH_OVERHEAD": OVERHEAD,
    "BATCH_CRC_FROM": CRC_FROM,
    "BATCH_MAGIC": MAGIC,
    "BATCH_COMPRESSION_MASK": COMPRESSION_MASK,
    "BATCH_CONTROL_BIT": CONTROL_BIT,
    "BATCH_LOG_APPEND_TIME_BIT": LOG_APPEND_TIME_BIT,
    "BATCH_TRANSACTIONAL_BIT": TRANSACTIONAL_BIT,
}
