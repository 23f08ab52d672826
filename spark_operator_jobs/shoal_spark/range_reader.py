"""The executors' side: ranges of offsets in, Arrow record batches out.

It is stateless except for a client per cluster, which a Python worker keeps over all its tasks.
Only the offsets decide what it reads. It sends no request about the group or its locks.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from shoal.client.batches import CorruptRecords
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import BatchHeader, CorruptBatch, headers

from shoal_spark.columns import Columns
from shoal_spark.rack import pod_rack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from shoal.client.fetcher import Fetched

    from shoal_spark.options import Connection, SourceOptions
    from shoal_spark.ranges import Range

log = logging.getLogger("shoal_spark")
#: Limits of one fetch in bytes; a larger batch is returned whole (KIP-74).
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 64 << 10, 4 << 20
_GONE = (
    ErrorCode.offset_out_of_range,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
)
_clients: dict[Connection, SyncClient] = {}


def client(connection: Connection) -> SyncClient:
    """Return this process's client of a cluster, which reads in the pod's rack."""
    connection = connection.with_rack(pod_rack())
    found = _clients.get(connection)
    if found is None:
        for other in [one for one in _clients if _is_superseded(one, connection)]:
            _clients.pop(other).close()
        found = _clients[connection] = SyncClient(connection.settings)
    return found


def _is_superseded(one: Connection, by: Connection) -> bool:
    """Whether two connections differ in their delegation tokens only."""
    return bool(one.token_id) and bool(by.token_id) and one.without_login() == by.without_login()


def read(options: SourceOptions, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these ranges in order; offsets without a record have none."""
    for where, group in groupby(ranges, key=lambda r: (r.topic, r.partition)):
        reading = _Reading(options, *where)
        columns = Columns(*where, with_headers=options.include_headers)
        for r in group:
            for chunk in reading.chunks(r):
                # The log start may be inside a batch.
                part = r._replace(first=max(r.first, chunk.first))
                for at, header in headers(chunk.data):
                    if header.base_offset > r.last:
                        break
                    if not header.is_control and header.last_offset >= part.first:
                        try:
                            columns.add(chunk.data, at, header, part)
                        except (CorruptRecords, CorruptBatch) as error:
                            reading.undecodable(part, header, error)
                    if columns.full:
                        yield columns.take()
        if columns.offsets:
            yield columns.take()


class _Reading:
    """One partition of one task. Ranges come in order, and a fetched chunk may cover many."""

    def __init__(self, options: SourceOptions, topic: str, partition: int) -> None:
        self.options = options
        self.topic, self.partition = topic, partition
        self._client = client(options.connection)
        self._chunk: Fetched | None = None

    def chunks(self, r: Range) -> Iterator[Fetched]:
        """Yield the chunks with the offsets of a range; their batches may exceed it."""
        at = r.first
        while at <= r.last:
            chunk = self._chunk
            if chunk is None or not chunk.first <= at < chunk.next_offset:
                chunk = self._chunk = self._fetch(at, r)
                if chunk is None:
                    return
            yield chunk
            at = chunk.next_offset

    def _fetch(self, at: int, r: Range) -> Fetched | None:
        """Return the chunk at `at`; None if the rest of the range is lost and that is allowed."""
        size = r.size * (r.last - at + 1) // r.length
        size = min(max(size, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
        try:
            return self._client.run(self._first(at, r.last, size))
        except KafkaError as error:
            if error.code not in _GONE:
                raise
            if self.options.fail_on_data_loss:
                raise DataLoss(
                    f"rows of topic {self.topic!r} partition {self.partition}, offsets {at} to "
                    f"{r.last}, are gone: {error}. Set failOnDataLoss to false to continue "
                    "without them"
                ) from None
            log.warning("%s-%d: offsets from %d are gone: %s", *r[:2], at, error)
            start = self._client.run(self._log_start())
            if not at < start <= r.last:
                return None
            return self._client.run(self._first(start, r.last, size))

    def undecodable(self, r: Range, header: BatchHeader, error: Exception) -> None:
        """Handle an unreadable batch: raise `DataLoss` unless data loss is allowed."""
        first, last = max(r.first, header.base_offset), min(r.last, header.last_offset)
        text = (
            f"rows of topic {self.topic!r} partition {self.partition}, offsets {first} to {last}, "
            f"cannot be decoded: {error}"
        )
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{text}. Set failOnDataLoss to false to continue without them"
            ) from None
        log.warning("%s", text)

    async def _first(self, at: int, last: int, size: int) -> Fetched:
        pieces = self._client.fetcher.range(self.topic, self.partition, at, last, chunk_bytes=size)
        async for piece in pieces:
            return piece
        raise AssertionError(f"no chunk for offsets {at} to {last}")

    async def _log_start(self) -> int:
        from shoal.client.cluster import TopicPartition
        from shoal.client.topics import OffsetSpec

        where = TopicPartition(self.topic, self.partition)
        found = (await self._client.admin.topics.offsets({where: int(OffsetSpec.EARLIEST)}))[where]
        return -1 if isinstance(found, KafkaError) else found.offset


class DataLoss(RuntimeError):
    """Rows of a batch are no longer in the log, and the options make the query fail."""
