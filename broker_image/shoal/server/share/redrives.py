"""Counts the redriven dead letters of each share group, from the ledger of redrives.

Clients redrive dead letters (`client.redrive`), and record it in a compacted topic. The leader of
that topic reads its new records when its metrics are requested.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from shoal.log.errors import LogOffline, OffsetOutOfRange
from shoal.record.batch import CorruptBatch, headers
from shoal.record.records import read_records
from shoal.server.metrics.registry import Samples, label

if TYPE_CHECKING:
    from shoal.replication.partition import Partition
    from shoal.server.metrics.registry import Metrics
    from shoal.server.replication.partitions import Partitions

#: As in `client.redrive_ledger`, which is not imported: a broker needs no client.
LEDGER = "shoal-redrives"
READ_BYTES = 1 << 20


class Redrives:
    """The part of the ledger that one broker has read."""

    def __init__(self, partitions: Partitions, metrics: Metrics) -> None:
        self._partitions = partitions
        self._partition: Partition | None = None
        self._next_offset = 0
        self._counts: dict[bytes, dict[str, int]] = {}
        metrics.add(
            "shoal_share_group_redriven_total",
            "counter",
            "Dead letters of a group that were redriven.",
            self._samples,
        )

    def _samples(self) -> Samples:
        partition = self._partitions.by_name(LEDGER, 0)
        if partition is None or not partition.is_leader:
            self._partition, self._counts = None, {}
            return []
        if partition is not self._partition:
            self._partition, self._next_offset, self._counts = partition, 0, {}
        try:
            self._read(partition)
        except (OSError, LogOffline, CorruptBatch, OffsetOutOfRange):
            pass  # The metric shows what was read so far. Others report failures of the log.
        groups: Counter[str] = Counter()
        for counts in self._counts.values():
            groups.update(counts)
        return [(label(group=group), n) for group, n in groups.items()]

    def _read(self, partition: Partition) -> None:
        log = partition.log
        while True:
            offset = max(self._next_offset, log.log_start_offset)
            data, next_offset = log.read(offset, READ_BYTES, max_offset=partition.high_watermark)
            if not data:
                return
            for at, header in headers(data):
                if header.is_control:
                    continue
                for record in read_records(data, at):
                    self._note(record.key, record.value)
            self._next_offset = next_offset

    def _note(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            return
        try:
            counts = {} if value is None else json.loads(value)["redriven"]
            self._counts[key] = {str(group): int(n) for group, n in counts.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # Not a record of ours.
