"""Record batches as fetches return them: decoded on demand, without control batches.

`AbortedTransactions` filters the records that a read_committed consumer must not see. A fetch
response names each aborted transaction by producer and first offset. The control marker in the log
ends it (KIP-98).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from shoal.record.batch import BatchHeader as BatchHeader
from shoal.record.batch import Buffer, check_crc, iter_headers
from shoal.record.control import ControlType, read_marker
from shoal.record.records import Record, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Isolation(IntEnum):
    """Kafka's isolation levels."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class CorruptRecords(ValueError):
    """A fetched batch whose CRC is wrong: damaged on disk or in transit."""


class AbortedTransactions:
    """Decide, batch by batch in offset order, which batches belong to an aborted transaction."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted`: pairs of producer id and first offset, in any order."""
        self._upcoming = sorted(aborted, key=lambda pair: pair[1])
        self._open: dict[int, int] = {}

    def should_hide(self, data: Buffer, position: int, header: BatchHeader) -> bool:
        while self._upcoming and self._upcoming[0][1] <= header.last_offset:
            producer_id, first_offset = self._upcoming.pop(0)
            self._open[producer_id] = first_offset
        if header.is_control:
            marker = read_marker(data, position)
            if marker is not None and marker.control_type == ControlType.ABORT:
                self._open.pop(header.producer_id, None)
            return True
        return header.is_transactional and header.producer_id in self._open


def decode(
    data: Buffer,
    *,
    first: int = 0,
    last: int | None = None,
    aborted: AbortedTransactions | None = None,
) -> Iterator[Record]:
    """Yield the records of all whole batches in `data` whose offsets are in [first, last].

    Raises `CorruptRecords` for a wrong CRC, and `shoal.record.batch.CorruptBatch` for bytes that
    are not a batch.
    """
    for position, header in iter_headers(data):
        hidden = (
            aborted.should_hide(data, position, header)
            if aborted is not None
            else header.is_control
        )
        if hidden or header.last_offset < first:
            continue
        if last is not None and header.base_offset > last:
            return
        if not check_crc(data, position, header):
            raise CorruptRecords(f"the batch at offset {header.base_offset} has a wrong CRC")
        for record in read_records(data, position):
            if record.offset < first:
                continue
            if last is not None and record.offset > last:
                return
            yield record
