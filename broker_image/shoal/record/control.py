"""Control records, which brokers write between data records (KIP-98, KIP-595).

Key: version i16, type i16. Value of an end-of-transaction marker: version i16, coordinator epoch
i32. A control batch holds one record. Applications never see it.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from shoal.record.batch import Buffer, CorruptBatch
from shoal.record.records import build_batch, read_records

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(NamedTuple):
    """How a transaction ended."""

    control_type: ControlType
    coordinator_epoch: int


def read_marker(buf: Buffer, at: int = 0) -> EndTransactionMarker | None:
    """Return the marker in the control batch at `at`; None for other control records, and for a
    batch that compaction has emptied. Raises `CorruptBatch`."""
    for record in read_records(buf, at, bytes_max=1 << 20):
        if record.key is None or len(record.key) < _KEY.size:
            raise CorruptBatch("a control record without a type")
        _, kind = _KEY.unpack_from(record.key)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        if record.value is None or len(record.value) < _MARKER.size:
            raise CorruptBatch("a transaction marker without a coordinator epoch")
        return EndTransactionMarker(ControlType(kind), _MARKER.unpack_from(record.value)[1])
    return None


def build_marker(
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytearray:
    """Build the control batch that ends a producer's transaction."""
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    record = (timestamp_ms, _KEY.pack(0, kind), _MARKER.pack(0, coordinator_epoch), ())
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
