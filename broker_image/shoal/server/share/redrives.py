"""Counts the redriven dead letters of each share group, from the ledger of redrives.

Clients redrive dead letters (`client.redrive`), and record it in a compacted topic. When its
metrics are requested, the leader of that topic begins to read what is new, a piece at a time in the
thread for large batches. So a request shows what the one before has read, and nothing until all was
read once: a counter that grows while it is read would look like redrives.

Users with WRITE on that topic decide what is in it. So this leaves out batches and values that no
client of ours writes, and more counts than `COUNTS_MAX`.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from shoal.log.errors import LogOffline, OffsetOutOfRange
from shoal.record.batch import CorruptBatch, iter_headers
from shoal.record.records import decompress_records, iter_spans, read_value
from shoal.server.metrics.registry import Samples, label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.record.batch import BatchHeader, Buffer
    from shoal.replication.partition import Partition
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.record_worker import RecordWorker
    from shoal.server.replication.partitions import Partitions

#: As in `client.redrive_ledger`, which is not imported: a broker needs no client.
LEDGER = "shoal-redrives"
#: Bytes of one piece of the log.
READ_BYTES = 64 << 10
#: A client writes a few records in a batch, each with the ranges of one partition as text.
BATCH_RECORDS_MAX, BATCH_BYTES_MAX = 1_000, 16 << 20
#: The size of a record's key, a topic id and a partition, and that of its counts as JSON. The
#: ranges before the counts may be long, and are not read.
KEY_BYTES_MAX, JSON_BYTES_MAX = 64, 64 << 10
_BEFORE_COUNTS = b',"redriven":'
#: Groups of all dead-letter partitions together.
COUNTS_MAX = 100_000

#: Counts by group, by the key of a record.
_Counts = dict[bytes, dict[str, int]]
_DECODER = json.JSONDecoder()


class Redrives:
    """What one broker has read of the ledger, while it leads it."""

    def __init__(
        self, worker: RecordWorker, partitions: Partitions, metrics: MetricRegistry
    ) -> None:
        self._worker = worker
        self._partitions = partitions
        self._ledger: _Ledger | None = None
        metrics.add(
            "shoal_share_group_redriven_total",
            "counter",
            "Dead letters of a group that were redriven.",
            self._collect_samples,
        )

    def _collect_samples(self) -> Samples:
        partition = self._partitions.find_by_name(LEDGER, 0)
        if partition is None or not partition.is_leader:
            self._ledger = None
            return []
        if self._ledger is None or not self._ledger.is_of(partition):
            self._ledger = _Ledger(self._worker, partition)
        self._ledger.read_on()
        return [(label(group=group), n) for group, n in self._ledger.get_totals().items()]


class _Ledger:
    """The part of the ledger that was read."""

    def __init__(self, worker: RecordWorker, partition: Partition) -> None:
        self._worker = worker
        self._partition = partition
        self._leader_epoch = partition.leader_epoch
        self._next_offset = 0
        self._is_reading = False
        #: Whether all was read once.
        self._is_known = False
        self._counts: _Counts = {}
        #: The number of all counts.
        self._size = 0

    def is_of(self, partition: Partition) -> bool:
        """Whether it was read from that partition, and none of it can be lost since."""
        is_same = partition is self._partition
        return is_same and not partition.has_lost_leadership_since(self._leader_epoch)

    def get_totals(self) -> Counter[str]:
        """Return the redriven letters by group; none until all was read once."""
        totals: Counter[str] = Counter()
        if self._is_known:
            for counts in self._counts.values():
                totals.update(counts)
        return totals

    def read_on(self) -> None:
        """Read what is new, unless that has begun."""
        if self._is_reading:
            return
        partition, log = self._partition, self._partition.log
        try:
            offset = max(self._next_offset, log.log_start_offset)
            data, next_offset = log.read(offset, READ_BYTES, max_offset=partition.high_watermark)
        except (OSError, LogOffline, CorruptBatch, OffsetOutOfRange):
            return  # The metric shows what was read so far. Others report failures of the log.
        if not data:
            self._is_known = True
            return
        entries: list[tuple[bytes, dict[str, int]]] = []
        self._is_reading = True
        self._next_offset = next_offset
        self._worker.run(lambda: entries.extend(parse(data)), lambda: self._on_read(entries))

    def _on_read(self, entries: list[tuple[bytes, dict[str, int]]]) -> None:
        self._is_reading = False
        for key, counts in entries:
            before = len(self._counts.pop(key, ()))
            size = self._size - before + len(counts)
            if counts and size <= COUNTS_MAX:
                self._counts[key] = counts
            else:
                size = self._size - before
            self._size = size
        self.read_on()


def parse(data: Buffer) -> list[tuple[bytes, dict[str, int]]]:
    """Return the keys and counts of the records in whole batches. Records that are none of ours
    are left out."""
    entries: list[tuple[bytes, dict[str, int]]] = []
    with suppress(CorruptBatch):
        for at, header in iter_headers(data):
            if _is_ours(header):
                with suppress(CorruptBatch):
                    entries += _parse_batch(data, at, header)
    return entries


def _parse_batch(
    data: Buffer, at: int, header: BatchHeader
) -> Iterator[tuple[bytes, dict[str, int]]]:
    body = decompress_records(data, at, header, bytes_max=BATCH_BYTES_MAX)
    for span in iter_spans(body, header.record_count):
        counts = _parse_counts(read_value(body, span))
        if counts is not None and 0 < span.key_size <= KEY_BYTES_MAX:
            yield body[span.key_at : span.key_at + span.key_size], counts


def _is_ours(header: BatchHeader) -> bool:
    """Whether a client may have written that batch."""
    return not header.is_control and header.record_count <= BATCH_RECORDS_MAX


def _parse_counts(value: bytes | None) -> dict[str, int] | None:
    """Return the redriven letters by group in a record's value; none if it was deleted, None if
    another client wrote it."""
    if value is None:
        return {}
    begin = value.find(_BEFORE_COUNTS) + len(_BEFORE_COUNTS)
    if begin < len(_BEFORE_COUNTS):
        return None
    text = value[begin : begin + JSON_BYTES_MAX].decode(errors="replace")
    try:
        counts, _ = _DECODER.raw_decode(text)
        return {str(group): int(n) for group, n in counts.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
