"""A producer: it collects records into batches and sends one batch at a time per partition.

One batch at a time keeps a partition's records in order through every retry. With idempotence
(KIP-98) each batch has a producer id and a sequence number, so a retry of a stored batch does not
store it twice. A batch that the producer gives up on may or may not be stored; the producer then
continues under a new id. `send` waits while the buffer is full. Its future completes when the
record is stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict

from shoal.client.errors import (
    STALE_METADATA,
    ClientError,
    KafkaError,
    RecordsRefused,
    RequestTimeout,
    is_transient,
)
from shoal.client.net import message_fields
from shoal.client.net.cluster import BACKOFF_MS, Cluster, TopicPartition
from shoal.client.produce.partitioner import choose_partition
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import advance_sequence
from shoal.record.records import build_batch

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Upper bound of a record's bytes in a batch besides key, value and headers.
RECORD_OVERHEAD = 32


class RecordMetadata(NamedTuple):
    """The position of a stored record; `offset` is -1 with acks=0."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchOptions(TypedDict, total=False):
    """How a producer collects records into batches, and for how long it tries to store them.

    `compression` is none, gzip, snappy, lz4 or zstd. A batch waits `linger_ms` for more records,
    and has at most `batch_bytes`. `send` waits while `buffer_bytes` wait to be stored. A record
    fails after `delivery_timeout_ms`; 0 uses the time of the client's settings.
    """

    compression: str
    linger_ms: int
    batch_bytes: int
    buffer_bytes: int
    delivery_timeout_ms: int


class ProducerOptions(BatchOptions, total=False):
    """The options of `Producer`. `acks` is 0, 1 or -1 (all); `idempotent` needs -1."""

    acks: int
    idempotent: bool | None


class _PendingRecord(NamedTuple):
    record: tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
    size: int
    future: asyncio.Future[RecordMetadata]


@dataclass(slots=True)
class _PartitionQueue:
    """Records that wait for one partition, and the task that sends them."""

    waiting: deque[_PendingRecord] = field(default_factory=deque)
    bytes: int = 0
    task: asyncio.Task[None] | None = None
    full: asyncio.Event = field(default_factory=asyncio.Event)
    producer: tuple[int, int] = (-1, -1)
    sequence: int = 0


class Producer:
    """A producer on a `Cluster`, which the caller closes. `await close()` flushes."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = -1,
        idempotent: bool | None = None,
        compression: str = "none",
        linger_ms: int = 5,
        batch_bytes: int = 256 << 10,
        buffer_bytes: int = 32 << 20,
        delivery_timeout_ms: int = 0,
    ) -> None:
        """Create a producer. `acks` is 0, 1 or -1 (all).

        Idempotence needs acks=-1 and is then on by default. A record fails after
        `delivery_timeout_ms`; 0 uses the client's settings.
        """
        self.cluster = cluster
        self._acks = acks
        self._idempotent = acks == -1 if idempotent is None else idempotent
        if self._idempotent and acks != -1:
            raise ValueError("an idempotent producer needs acks=all")
        self._compression = compression
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        delivery_timeout_ms = delivery_timeout_ms or cluster.settings.delivery_timeout_ms
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[TopicPartition, _PartitionQueue] = {}
        self._sticky: dict[str, int] = {}
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._flushing = 0
        #: Is set while batches may be sent; None if they always may.
        self._released: asyncio.Event | None = None
        #: The pause before a batch is sent again the first time.
        self._backoff_ms = BACKOFF_MS
        self._transactional_id: str | None = None
        self._identity: asyncio.Task[tuple[int, int]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue one record and return a future that completes when the record is stored.

        Raises `KafkaError` for a topic or partition that does not exist. The future fails with
        `KafkaError`, with `InvalidBatch` if only other records of its batch are invalid, or with
        the last network error when the delivery timeout is over.
        """
        topic_metadata = await self.cluster.get_topic(topic)
        count = len(topic_metadata.partitions)
        if partition is None:
            partition = (
                self._choose_sticky_partition(topic, count)
                if key is None
                else choose_partition(key, count)
            )
        topic_metadata.get_partition(partition)
        record = (
            self.cluster.environment.now_ms() if timestamp_ms is None else timestamp_ms,
            key,
            value,
            tuple(headers),
        )
        size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(content or b"") + 4 for name, content in record[3])
        while self._buffered_bytes and self._buffered_bytes + size > self._buffer_bytes:
            self._check_room()
            self._room.clear()
            await self._room.wait()
        self._check_open()
        pending = _PendingRecord(record, size, self._loop.create_future())
        self._buffered_bytes += size
        topic_partition = TopicPartition(topic, partition)
        lane = self._lanes.setdefault(topic_partition, _PartitionQueue())
        lane.waiting.append(pending)
        lane.bytes += size
        if lane.bytes >= self._batch_bytes:
            lane.full.set()
        if lane.task is None:
            lane.task = self._loop.create_task(self._drain(topic_partition, lane))
        return pending.future

    def _check_open(self) -> None:
        """Raise if no record may be queued now. A transactional producer needs a transaction."""

    def _check_room(self) -> None:
        """Raise if the full buffer gets no room. Otherwise `send` waits for it."""

    def _get_batch_error(self) -> ClientError | None:
        """Return the error of batches that need not be sent, as those of a failed transaction."""
        return None

    def _on_batch_abandoned(self, error: ClientError) -> None:  # noqa: ARG002
        """Continue after a batch that may or may not be stored."""
        if self._idempotent:
            self._identity = None

    def _choose_sticky_partition(self, topic: str, count: int) -> int:
        """Return the partition for records without a key: one batch to each in turn (KIP-480)."""
        return (
            self._sticky.setdefault(topic, self.cluster.environment.random.randrange(count)) % count
        )

    async def flush(self) -> None:
        """Wait until every queued record is stored or has failed, and callbacks of the futures
        have run. The futures have the errors.
        """
        self._flushing += 1
        try:
            while tasks := [lane.task for lane in self._lanes.values() if lane.task]:
                for lane in self._lanes.values():
                    lane.full.set()
                await asyncio.wait(tasks)
            # The last batch may have been settled in this turn of the loop.
            await asyncio.sleep(0)
        finally:
            self._flushing -= 1

    async def close(self) -> None:
        """Wait until every queued record is stored or has failed. The cluster stays open."""
        await self.flush()

    # Sending

    async def _drain(self, partition: TopicPartition, lane: _PartitionQueue) -> None:
        try:
            while lane.waiting:
                if self._released is not None:
                    await self._released.wait()
                if self._linger_s and not self._flushing and not lane.full.is_set():
                    try:
                        async with asyncio.timeout(self._linger_s):
                            await lane.full.wait()
                    except TimeoutError:
                        pass
                batch = self._take_batch(lane)
                self._sticky.pop(partition.topic, None)
                await self._deliver(partition, lane, batch)
        finally:
            lane.task = None

    def _take_batch(self, lane: _PartitionQueue) -> list[_PendingRecord]:
        batch = [lane.waiting.popleft()]
        size = batch[0].size
        while lane.waiting and size + lane.waiting[0].size <= self._batch_bytes:
            batch.append(lane.waiting.popleft())
            size += batch[-1].size
        lane.bytes -= size
        if lane.bytes < self._batch_bytes and not self._flushing:
            lane.full.clear()
        return batch

    async def _deliver(
        self, partition: TopicPartition, lane: _PartitionQueue, batch: list[_PendingRecord]
    ) -> None:
        deadline = self._loop.time() + self._delivery_timeout_s
        backoff = self.cluster.make_backoff(self._backoff_ms)
        data: bytearray | None = None
        error: ClientError
        while True:
            if (doom := self._get_batch_error()) is not None:
                self._settle(batch, doom)
                return
            try:
                if data is None:
                    data = await self._build(lane, batch)
                offset, append_time_ms = await self._produce(partition, data, deadline)
                break
            except ClientError as failed:
                error = failed
            if again := is_transient(error):
                await backoff.pause()
            if not again or self._loop.time() > deadline:
                self._on_batch_abandoned(error)
                self._settle(batch, error)
                return
        lane.sequence = advance_sequence(lane.sequence, len(batch))
        self._settle(batch, None, partition, offset, append_time_ms)

    def _settle(
        self,
        batch: list[_PendingRecord],
        error: ClientError | None,
        partition: TopicPartition = TopicPartition("", -1),
        offset: int = -1,
        append_time_ms: int = -1,
    ) -> None:
        for position, pending in enumerate(batch):
            self._buffered_bytes -= pending.size
            if pending.future.done():
                continue
            if error is not None:
                if isinstance(error, RecordsRefused):
                    pending.future.set_exception(error.get_error(position))
                else:
                    pending.future.set_exception(error)
                continue
            timestamp_ms = append_time_ms if append_time_ms >= 0 else pending.record[0]
            stored = -1 if offset < 0 else offset + position
            pending.future.set_result(RecordMetadata(*partition, stored, timestamp_ms))
        self._room.set()

    async def _build(self, lane: _PartitionQueue, batch: list[_PendingRecord]) -> bytearray:
        sequence = -1
        if self._idempotent:
            producer = await self._get_producer_identity()
            if producer != lane.producer:
                lane.producer, lane.sequence = producer, 0
            sequence = lane.sequence
        return build_batch(
            [pending.record for pending in batch],
            compression=self._compression,
            producer_id=lane.producer[0],
            producer_epoch=lane.producer[1],
            base_sequence=sequence,
            transactional=self._transactional_id is not None,
        )

    async def _get_producer_identity(self) -> tuple[int, int]:
        task = self._identity
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._identity = self._loop.create_task(self._init_producer_id())
        return await asyncio.shield(task)

    async def _init_producer_id(self) -> tuple[int, int]:
        body = {
            "transactional_id": None,
            "transaction_timeout_ms": 0,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self.cluster.ask(ApiKey.INIT_PRODUCER_ID, body)
        if answer.error_code:
            raise KafkaError(answer.error_code, "requesting a producer id")
        return answer.producer_id, answer.producer_epoch

    async def _produce(
        self, partition: TopicPartition, data: bytearray, deadline: float
    ) -> tuple[int, int]:
        """Send one batch to the leader; return its base offset and append time (-1 if unknown)."""
        topic = await self.cluster.get_topic(partition.topic)
        leader = await self.cluster.find_leader(*partition)
        left_ms = int((deadline - self._loop.time()) * 1000)
        if left_ms <= 0:
            raise RequestTimeout(f"a batch for {partition} was not stored in time")
        timeout_ms = min(left_ms, self.cluster.settings.request_timeout_ms)
        body: dict[str, Any] = {
            "transactional_id": self._transactional_id,
            "acks": self._acks,
            "timeout_ms": timeout_ms,
            "topic_data": [
                {
                    "name": partition.topic,
                    "topic_id": topic.topic_id,
                    "partition_data": [{"index": partition.partition, "records": data}],
                }
            ],
        }
        try:
            link = await self.cluster.get_connection(leader, "produce")
            answer = await link.request(
                ApiKey.PRODUCE, body, timeout_ms=timeout_ms, answered=self._acks != 0
            )
        except ClientError:
            self.cluster.forget_topic(partition.topic)
            raise
        if answer is None:
            return -1, -1
        entry = answer.responses[0].partition_responses[0]
        if entry.error_code == ErrorCode.duplicate_sequence_number:
            return entry.base_offset, -1
        if entry.error_code:
            if entry.error_code in STALE_METADATA:
                self.cluster.forget_topic(partition.topic)
            message = getattr(entry, "error_message", None) or f"producing to {partition}"
            if record_errors := getattr(entry, "record_errors", ()):
                errors = {e.batch_index: e.batch_index_error_message for e in record_errors}
                raise RecordsRefused(entry.error_code, message, errors)
            raise KafkaError(entry.error_code, message)
        return entry.base_offset, message_fields.to_epoch_ms(entry.log_append_time)
