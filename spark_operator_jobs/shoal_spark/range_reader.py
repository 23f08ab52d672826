"""The executors' side: ranges of offsets in, Arrow record batches out.

It is stateless except for a client per cluster, which a Python worker keeps over all its tasks.
Only the offsets decide what it reads. It sends no request about the group or its locks.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError
from shoal.client.net.batches import CorruptRecords
from shoal.protocol.errors import ErrorCode
from shoal.protocol.reasons import FailureReason
from shoal.record.batch import BatchHeader, CorruptBatch, iter_headers

from shoal_spark.columns import ColumnBuffer
from shoal_spark.rack import read_pod_rack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from shoal.client.consume.fetcher import FetchedBatches

    from shoal_spark.options import ConnectionOptions, SourceOptions
    from shoal_spark.ranges import OffsetRange

log = logging.getLogger("shoal_spark")
#: Limits of one fetch in bytes; a larger batch is returned whole (KIP-74).
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 64 << 10, 4 << 20
_GONE = (
    ErrorCode.offset_out_of_range,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
)
_clients: dict[ConnectionOptions, SyncClient] = {}


def get_client(connection: ConnectionOptions) -> SyncClient:
    """Return this process's client of a cluster, which reads in the pod's rack."""
    connection = connection.with_rack(read_pod_rack())
    client = _clients.get(connection)
    if client is None:
        for superseded in [
            candidate for candidate in _clients if _is_superseded(candidate, connection)
        ]:
            _clients.pop(superseded).close()
        client = _clients[connection] = SyncClient(connection.settings)
    return client


def _is_superseded(connection: ConnectionOptions, by: ConnectionOptions) -> bool:
    """Whether two connections differ in their delegation tokens only."""
    return (
        bool(connection.token_id)
        and bool(by.token_id)
        and connection.without_login() == by.without_login()
    )


def read(options: SourceOptions, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these ranges in order; offsets without a record have none."""
    for partition, group in groupby(ranges, key=lambda r: (r.topic, r.partition)):
        reading = _Reading(options, *partition)
        columns = ColumnBuffer(
            *partition,
            with_headers=options.include_headers,
            with_errors=options.include_decode_errors,
        )
        for r in group:
            for chunk in reading.iterate_chunks(r):
                # The log start may be inside a batch.
                part = r._replace(first=max(r.first, chunk.first))
                for at, header in iter_headers(chunk.data):
                    if header.base_offset > r.last:
                        break
                    if not header.is_control and header.last_offset >= part.first:
                        reading.add_rows(columns, chunk.data, at, header, part)
                    if columns.is_full:
                        yield columns.take()
        if columns.offsets:
            yield columns.take()


class _Reading:
    """One partition of one task. Ranges come in order, and a fetched chunk may cover many."""

    def __init__(self, options: SourceOptions, topic: str, partition: int) -> None:
        self.options = options
        self.topic, self.partition = topic, partition
        self._client = get_client(options.connection)
        self._chunk: FetchedBatches | None = None

    def iterate_chunks(self, r: OffsetRange) -> Iterator[FetchedBatches]:
        """Yield the chunks with the offsets of a range; their batches may exceed it."""
        offset = r.first
        while offset <= r.last:
            chunk = self._chunk
            if chunk is None or not chunk.first <= offset < chunk.next_offset:
                chunk = self._chunk = self._fetch(offset, r)
                if chunk is None:
                    return
            yield chunk
            offset = chunk.next_offset

    def _fetch(self, offset: int, r: OffsetRange) -> FetchedBatches | None:
        """Return the chunk at `offset`; None if the rest of the range is lost and that is
        allowed."""
        size = r.size * (r.last - offset + 1) // r.length
        size = min(max(size, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
        try:
            return self._client.run(self._fetch_first(offset, r.last, size))
        except KafkaError as error:
            if error.code not in _GONE:
                raise
            if self.options.fail_on_data_loss:
                raise DataLoss(
                    f"rows of topic {self.topic!r} partition {self.partition}, offsets {offset} to "
                    f"{r.last}, are gone: {error}. Set failOnDataLoss to false to continue "
                    "without them"
                ) from None
            log.warning("%s-%d: offsets from %d are gone: %s", *r[:2], offset, error)
            start = self._client.run(self._fetch_log_start())
            if not offset < start <= r.last:
                return None
            return self._client.run(self._fetch_first(start, r.last, size))

    def add_rows(
        self, columns: ColumnBuffer, data: bytes, at: int, header: BatchHeader, r: OffsetRange
    ) -> None:
        """Add the rows of the batch at `at` that are in `r`. If it cannot be decoded, add rows with
        the reason, or none. Raises `DataLoss` for the latter, unless data loss is allowed."""
        try:
            columns.add(data, at, header, r)
        except (CorruptRecords, CorruptBatch) as error:
            self._report_undecodable(r, header, error)
            if self.options.include_decode_errors:
                columns.add_undecodable(header, r, describe_error(error))

    def _report_undecodable(self, r: OffsetRange, header: BatchHeader, error: Exception) -> None:
        first, last = max(r.first, header.base_offset), min(r.last, header.last_offset)
        text = (
            f"rows of topic {self.topic!r} partition {self.partition}, offsets {first} to {last}, "
            f"cannot be decoded: {error}"
        )
        if self.options.fail_on_data_loss and not self.options.include_decode_errors:
            raise DataLoss(
                f"{text}. Set includeDecodeErrors to true to reject them, or failOnDataLoss to "
                "false to continue without them"
            ) from None
        log.warning("%s", text)

    async def _fetch_first(self, offset: int, last: int, size: int) -> FetchedBatches:
        pieces = self._client.fetcher.fetch_range(
            self.topic, self.partition, offset, last, chunk_bytes=size
        )
        async for piece in pieces:
            return piece
        raise AssertionError(f"no chunk for offsets {offset} to {last}")

    async def _fetch_log_start(self) -> int:
        from shoal.client.admin.topics import OffsetSpec
        from shoal.client.net.cluster import TopicPartition

        partition = TopicPartition(self.topic, self.partition)
        result = (await self._client.admin.topics.offsets({partition: int(OffsetSpec.EARLIEST)}))[
            partition
        ]
        return -1 if isinstance(result, KafkaError) else result.offset


def describe_error(error: Exception) -> str:
    """Return an error as the reason of an outcome: its class, a colon, and its message."""
    reason = FailureReason.from_exception(error, trace=False)
    return f"{reason.exception_class}: {reason.message}"


class DataLoss(RuntimeError):
    """Rows of a batch are no longer in the log, and the options make the query fail."""
