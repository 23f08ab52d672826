"""Enqueue jobs: `Queue` on an event loop, `SyncQueue` anywhere, and both in a transaction.

Delays, priorities and ids are headers that the brokers read. A group needs `share.delay.max.ms` for
delays, and `share.priority.header=priority` for priorities; other groups ignore them, and their
workers warn of it (`ignored_headers`). A topic needs `shoal.deduplication.window.ms` for ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from shoal.client.client import Client, SyncClient
from shoal.client.net.cluster import TopicPartition
from shoal.client.produce.partitioner import choose_partition
from shoal.client.queues.cancellations import CancelReport, RecordMatch, cancel_matching
from shoal.client.queues.queue_settings import PRIORITY
from shoal.client.settings import Settings
from shoal.record.dedup_ids import DEDUP_ID
from shoal.worker.backoff import parse_seconds
from shoal.worker.payloads import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from shoal.client.produce.producer import Producer, RecordMetadata
    from shoal.worker.backoff import Duration
    from shoal.worker.jobs import Job
    from shoal.worker.payloads import Codec

#: The header of a delay in milliseconds, from the record's timestamp on (see the group config
#: `share.delay.max.ms`).
DELIVER_AFTER = "shoal.deliver.after"
#: The header that names the job whose result a record is.
JOB_ID = "shoal.job.id"

Key = bytes | str | None
Headers = "Mapping[str, bytes | str] | None"


def read_settings(settings: Settings | str | None) -> Settings:
    """Return settings as they are, of a bootstrap address, or of the environment."""
    if settings is None:
        return Settings.from_environment()
    return Settings.from_bootstrap(settings) if isinstance(settings, str) else settings


class Queue:
    """A topic to put jobs into. It connects with the first job; `close` flushes. It is open in one
    event loop at a time."""

    def __init__(
        self,
        topic: str,
        *,
        settings: Settings | str | None = None,
        codec: Codec | None = None,
        priority_header: str = PRIORITY,
        add_headers: Callable[[dict[str, bytes]], None] | None = None,
    ) -> None:
        """`settings` are a bootstrap address or `Settings`; by default the environment has them
        (`SHOAL_BOOTSTRAP_SERVERS`, ...). `add_headers` changes the headers of each job, as
        `tracing.inject_trace` does."""
        self.topic = topic
        self._settings = settings
        self._codec = codec
        self._priority_header = priority_header
        self._add_headers = add_headers
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def put(
        self,
        value: Any,
        *,
        key: Key = None,
        delay: Duration | None = None,
        priority: int | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        dedup_id: bytes | str | None = None,
    ) -> RecordMetadata:
        """Enqueue one job; return where it is stored. Raises `KafkaError` or `PayloadError`.

        A job with the `dedup_id` of an earlier one is not stored, within the topic's
        `shoal.deduplication.window.ms`: the result is where the first one is. A partition knows
        only its own ids. So the id chooses the partition if there is no key; if there is one, give
        jobs with the same id the same key.
        """
        producer = self._connect()
        record = self.make_record(value, key, delay, priority, headers, dedup_id)
        return await (await self.send(producer, record, dedup_id))

    async def put_many(
        self,
        values: Iterable[Any],
        *,
        key: Key | Callable[[Any], Key] = None,
        delay: Duration | None = None,
        priority: int | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        dedup_id: Callable[[Any], bytes | str | None] | None = None,
    ) -> list[RecordMetadata]:
        """Enqueue jobs in batches. `key` may be a function of the value, and `dedup_id` is one (see
        `put`). Raises the first error once all have been tried; some may be stored.

        Where a known job is stored is exact if all jobs of its batch are known.
        """
        producer = self._connect()
        futures = [
            await self.send(producer, record, id_of)
            for record, id_of in self.make_records(values, key, delay, priority, headers, dedup_id)
        ]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def cancel(
        self, id: str, *, group: str | None = None, dead_letter: bool = False
    ) -> CancelReport:
        """Cancel the jobs with this id (header `shoal.dedup.id`) for a share group, and return what
        became of them. `group` defaults to `SHOAL_GROUP_ID`.

        With `dead_letter`, each gets a dead letter. Reads the topic from the group's start on.
        Raises `KafkaError`, such as INVALID_REQUEST for a group that has not begun to read.
        """
        group = group or os.environ.get("SHOAL_GROUP_ID", "")
        if not group:
            raise ValueError("name the share group: cancel(id, group=...), or set SHOAL_GROUP_ID")
        self._connect()
        assert self._client is not None
        report, match = CancelReport(), RecordMatch.from_id(id)
        for partition in (await self._client.cluster.get_topic(self.topic)).partitions:
            await cancel_matching(
                self._client,
                group,
                TopicPartition(self.topic, partition.index),
                match,
                report,
                dead_letter=dead_letter,
            )
        return report

    @contextlib.asynccontextmanager
    async def transaction(self, transactional_id: str) -> AsyncIterator[Transaction]:
        """Enqueue the jobs of a block together, or none of them if an error leaves it."""
        self._connect()
        assert self._client is not None
        producer = await self._client.transactional_producer(transactional_id)
        try:
            async with producer.transaction():
                yield Transaction(self, producer)
        finally:
            await producer.close()

    async def close(self) -> None:
        """Wait until all jobs are stored, and disconnect."""
        client, producer = self._client, self._producer
        self._client = self._producer = self._loop = None
        if producer is not None:
            await producer.close()
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def make_record(
        self,
        value: Any,
        key: Key,
        delay: Duration | None,
        priority: int | None,
        headers: Mapping[str, bytes | str] | None,
        dedup_id: bytes | str | None = None,
    ) -> dict[str, Any]:
        """Return the arguments of `Producer.send`. Raises `ValueError` for another priority than 0
        to 9, and `PayloadError`."""
        encoded = {n: v.encode() if isinstance(v, str) else v for n, v in (headers or {}).items()}
        if delay is not None:
            encoded[DELIVER_AFTER] = str(round(parse_seconds(delay) * 1000)).encode()
        if priority is not None:
            if not 0 <= priority <= 9:
                raise ValueError(f"priority is {priority}; it is 0 to 9, and 9 comes first")
            encoded[self._priority_header] = str(priority).encode()
        if dedup_id is not None:
            encoded[DEDUP_ID] = _encode_text(dedup_id)
        if self._add_headers is not None:
            self._add_headers(encoded)
        return {
            "value": encode(value, self._codec),
            "key": key.encode() if isinstance(key, str) else key,
            "headers": tuple(encoded.items()),
        }

    def make_records(
        self,
        values: Iterable[Any],
        key: Key | Callable[[Any], Key],
        delay: Duration | None,
        priority: int | None,
        headers: Mapping[str, bytes | str] | None,
        dedup_id: Callable[[Any], bytes | str | None] | None,
    ) -> Iterator[tuple[dict[str, Any], bytes | str | None]]:
        """Yield the arguments of `Producer.send` for each value, with its id; see `make_record`."""
        for value in values:
            record_key = key(value) if callable(key) else key
            id_of = dedup_id(value) if dedup_id is not None else None
            yield self.make_record(value, record_key, delay, priority, headers, id_of), id_of

    async def send(
        self, producer: Producer, record: dict[str, Any], dedup_id: bytes | str | None
    ) -> asyncio.Future[RecordMetadata]:
        """Send a record of `make_record`: to the partition of its id if it has no key."""
        if dedup_id is not None and record["key"] is None:
            assert self._client is not None
            topic = await self._client.cluster.get_topic(self.topic)
            record["partition"] = choose_partition(_encode_text(dedup_id), len(topic.partitions))
        return await producer.send(self.topic, **record)

    def _connect(self) -> Producer:
        """Return the producer of the running event loop. Raises `RuntimeError` if the queue is open
        in another loop; what was open in a loop that is closed has ended with it."""
        loop = asyncio.get_running_loop()
        former = self._loop
        if former is not None and former is not loop and not former.is_closed():
            raise RuntimeError(
                f"the queue of topic {self.topic} is open in another event loop. Close it there"
                " first, make a Queue for each loop, or use a SyncQueue."
            )
        if self._producer is None or self._loop is not loop:
            self._client = Client(read_settings(self._settings))
            self._producer, self._loop = self._client.producer(), loop
        return self._producer


class Transaction:
    """The jobs of one transaction of a queue."""

    def __init__(self, queue: Queue, producer: Producer) -> None:
        self._queue = queue
        self._producer = producer

    async def put(
        self,
        value: Any,
        *,
        key: Key = None,
        delay: Duration | None = None,
        priority: int | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        dedup_id: bytes | str | None = None,
    ) -> None:
        """Enqueue a job with the transaction; see `Queue.put`. If it aborts, its ids are free."""
        record = self._queue.make_record(value, key, delay, priority, headers, dedup_id)
        await self._queue.send(self._producer, record, dedup_id)

    async def put_many(
        self,
        values: Iterable[Any],
        *,
        key: Key | Callable[[Any], Key] = None,
        delay: Duration | None = None,
        priority: int | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        dedup_id: Callable[[Any], bytes | str | None] | None = None,
    ) -> None:
        """Enqueue jobs with the transaction; see `Queue.put_many`."""
        make_records = self._queue.make_records
        for record, id_of in make_records(values, key, delay, priority, headers, dedup_id):
            await self._queue.send(self._producer, record, id_of)


class QueueOptions(TypedDict, total=False):
    """The keyword arguments of `Queue`."""

    settings: Settings | str | None
    codec: Codec | None
    priority_header: str
    add_headers: Callable[[dict[str, bytes]], None] | None


class PutOptions(TypedDict, total=False):
    """The keyword arguments of `Queue.put`."""

    key: Key
    delay: Duration | None
    priority: int | None
    headers: Mapping[str, bytes | str] | None
    dedup_id: bytes | str | None


class PutManyOptions(TypedDict, total=False):
    """The keyword arguments of `Queue.put_many`."""

    key: Key | Callable[[Any], Key]
    delay: Duration | None
    priority: int | None
    headers: Mapping[str, bytes | str] | None
    dedup_id: Callable[[Any], bytes | str | None] | None


class CancelOptions(TypedDict, total=False):
    """The keyword arguments of `Queue.cancel`."""

    group: str | None
    dead_letter: bool


class SyncQueue:
    """A `Queue` for programs without an event loop, such as a web application. Any thread may use
    it."""

    def __init__(self, topic: str, **options: Unpack[QueueOptions]) -> None:
        """The options are those of `Queue`."""
        self._queue = Queue(topic, **options)
        self._client: SyncClient | None = None
        #: Held while the client is made or closed: threads that come meanwhile wait.
        self._lock = threading.Lock()
        self._settings = options.get("settings")

    def put(self, value: Any, **options: Unpack[PutOptions]) -> RecordMetadata:
        """Enqueue one job; see `Queue.put`."""
        return self._connect().run(self._queue.put(value, **options))

    def put_many(
        self, values: Iterable[Any], **options: Unpack[PutManyOptions]
    ) -> list[RecordMetadata]:
        """Enqueue jobs in batches; see `Queue.put_many`."""
        return self._connect().run(self._queue.put_many(values, **options))

    def cancel(self, id: str, **options: Unpack[CancelOptions]) -> CancelReport:
        """Cancel the jobs with this id; see `Queue.cancel`."""
        return self._connect().run(self._queue.cancel(id, **options))

    @contextlib.contextmanager
    def transaction(self, transactional_id: str) -> Iterator[SyncTransaction]:
        """Enqueue the jobs of a block together, or none of them if an error leaves it."""
        client, transaction = self._connect(), self._queue.transaction(transactional_id)
        jobs = SyncTransaction(client, client.run(transaction.__aenter__()))
        try:
            yield jobs
        except BaseException as error:
            client.run(transaction.__aexit__(type(error), error, error.__traceback__))
            raise
        client.run(transaction.__aexit__(None, None, None))

    def close(self) -> None:
        """Wait until all jobs are stored, and disconnect."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                try:
                    client.run(self._queue.close())
                finally:
                    client.close()

    def __enter__(self) -> SyncQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> SyncClient:
        with self._lock:
            if self._client is None:
                self._client = SyncClient(read_settings(self._settings))
            return self._client


class SyncTransaction:
    """A `Transaction` of a `SyncQueue`, for one thread."""

    def __init__(self, client: SyncClient, transaction: Transaction) -> None:
        self._client = client
        self._transaction = transaction

    def put(self, value: Any, **options: Unpack[PutOptions]) -> None:
        """Enqueue a job with the transaction; see `Transaction.put`."""
        self._client.run(self._transaction.put(value, **options))

    def put_many(self, values: Iterable[Any], **options: Unpack[PutManyOptions]) -> None:
        """Enqueue jobs with the transaction; see `Transaction.put_many`."""
        self._client.run(self._transaction.put_many(values, **options))


def _encode_text(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def make_result(job: Job, result: Any, codec: Codec | None) -> dict[str, Any]:
    """Return the record of a job's result, as arguments of `Producer.send`."""
    return {
        "value": encode(result, codec),
        "key": job.key,
        "headers": ((JOB_ID, job.id.encode()),),
    }
