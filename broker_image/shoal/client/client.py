"""The client's entry points: `Client` for asyncio, `SyncClient` for programs without an event loop.

`SyncClient` runs an event loop in its own thread. Heartbeats continue while the program (a Spark
driver, a script) does other work. `put`, its producers and its share consumer block and return
results. It has the other parts of `Client`, too, and `run` makes a call on them:

    with SyncClient("localhost:9092") as client:
        client.put("tasks", b"resize cat.png")
        topics = client.run(client.cluster.read_all_topics())
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from shoal.client.admin.admin import Admin
from shoal.client.consume.fetcher import FetchedBatches, Fetcher, Isolation
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import ConnectionLost, Unreachable
from shoal.client.net.cluster import Cluster
from shoal.client.net.environment import HERE, Environment
from shoal.client.produce.producer import Producer
from shoal.client.produce.transactional import TIMEOUT_MS, TransactionalProducer
from shoal.client.settings import Settings
from shoal.client.share.member import ShareSession

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Coroutine, Mapping, Sequence
    from types import TracebackType

    from shoal.client.consume.consumer import GroupConsumer, IndividualCommit
    from shoal.client.consume.rebalance_listener import RebalanceListener
    from shoal.client.produce.producer import BatchOptions, ProducerOptions, RecordMetadata
    from shoal.client.share.consumer import ShareConsumer
    from shoal.client.synchronous import (
        SyncProducer,
        SyncShareConsumer,
        SyncTransactionalProducer,
    )

T = TypeVar("T")
Text = bytes | str


class Client:
    """All client operations on one cluster. Create it inside a running event loop.

    It connects with its first call. `async with`, or `close`, ends it.
    """

    # Consumers and blocking parts are imported when they are first used: most commands need none.

    def __init__(self, settings: Settings | str, environment: Environment = HERE) -> None:
        """`settings` are `Settings`, or addresses: `"host:9092,other:9092"`."""
        if isinstance(settings, str):
            settings = Settings.from_bootstrap(settings)
        self.cluster = Cluster(settings, environment)
        self.admin = Admin(self.cluster)
        self.fetcher = Fetcher(self.cluster)
        self._putter: Producer | None = None

    async def put(
        self,
        topic: str,
        value: Text | None,
        *,
        key: Text | None = None,
        headers: Mapping[str, Text] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Store one record, and return where. Text is encoded as UTF-8.

        Records with one key get to one partition, in their order. Many calls at once share batches.
        Raises `KafkaError` if the broker refuses the record, and `Unreachable` or `RequestTimeout`
        if it is not stored within `Settings.delivery_timeout_ms`.
        """
        if self._putter is None:
            self._putter = self.producer()
        future = await self._putter.send(
            topic,
            _encode(value),
            key=_encode(key),
            headers=[(name, _encode(content)) for name, content in (headers or {}).items()],
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        return await future

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """Return a producer, which collects records into batches."""
        return Producer(self.cluster, **options)

    async def transactional_producer(
        self,
        transactional_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        **options: Unpack[BatchOptions],
    ) -> TransactionalProducer:
        """Start a transactional producer; see `TransactionalProducer.start`."""
        return await TransactionalProducer.start(
            self.cluster, transactional_id, timeout_ms=timeout_ms, **options
        )

    async def share_consumer(
        self, group: str, topics: Sequence[str], *, rack: str | None = None
    ) -> ShareConsumer:
        """Join a share group, to process records one by one; see `ShareConsumer`.

        `rack` is where this client runs; by default `client.rack` of the settings. Logs and raises
        what `ShareSession.join` does.
        """
        from shoal.client.share.consumer import ShareConsumer

        return await ShareConsumer.join(self.cluster, group, topics, rack=rack)

    async def group_consumer(
        self,
        group: str,
        topics: Sequence[str],
        *,
        reset: Reset = Reset.LATEST,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        individual_commit: IndividualCommit | None = None,
        key_ranges: bool = False,
        listener: RebalanceListener | None = None,
        producer: TransactionalProducer | None = None,
        in_order: bool = False,
    ) -> GroupConsumer:
        """Join a consumer group, to read partitions in their order; see `GroupConsumer.join`."""
        from shoal.client.consume.consumer import GroupConsumer

        return await GroupConsumer.join(
            self.cluster,
            group,
            topics,
            reset=reset,
            isolation=isolation,
            individual_commit=individual_commit,
            key_ranges=key_ranges,
            listener=listener,
            producer=producer,
            in_order=in_order,
        )

    async def share(
        self, group: str, topics: Sequence[str], *, rack: str | None = None
    ) -> ShareSession:
        """Join a share group, to acquire ranges of offsets; see `ShareSession.join`."""
        return await ShareSession.join(self.cluster, group, topics, rack=rack)

    async def fetch_range(
        self,
        topic: str,
        partition: int,
        first: int,
        last: int,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> list[FetchedBatches]:
        """Return all of [first, last] in memory; `Fetcher.fetch_range` yields it in pieces."""
        return [
            fetched
            async for fetched in self.fetcher.fetch_range(
                topic, partition, first, last, isolation=isolation
            )
        ]

    async def close(self) -> None:
        """Wait until what `put` has sent is stored, and close the connections."""
        try:
            if self._putter is not None:
                await self._putter.close()
        finally:
            await self.cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncClient:
    """A `Client` for programs without an event loop. Any thread may use it, and several at once.

    `timeout_s` is in seconds; None waits as long as the client's own timeouts last. Create a client
    in each process: its thread does not survive a fork.
    """

    def __init__(
        self, bootstrap: str | Settings, properties: Mapping[str, str] | None = None
    ) -> None:
        """`bootstrap` are addresses, with client `properties` as in `Settings.from_bootstrap`, or
        `Settings`."""
        settings = (
            bootstrap
            if isinstance(bootstrap, Settings)
            else Settings.from_bootstrap(bootstrap, properties)
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="shoal-client", daemon=True
        )
        self._thread.start()
        self.client = self.run(self._make(settings))

    @staticmethod
    async def _make(settings: Settings) -> Client:
        return Client(settings)

    @property
    def cluster(self) -> Cluster:
        """Brokers, topics and connections. Its calls go through `run`."""
        return self.client.cluster

    @property
    def admin(self) -> Admin:
        """Calls on topics, groups, configs and so on. They go through `run`."""
        return self.client.admin

    @property
    def fetcher(self) -> Fetcher:
        """Reads of partitions from given offsets. Its calls go through `run`."""
        return self.client.fetcher

    def put(
        self,
        topic: str,
        value: Text | None,
        *,
        key: Text | None = None,
        headers: Mapping[str, Text] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> RecordMetadata:
        """Store one record, and return where; see `Client.put`. Raises what that raises, and
        `TimeoutError`: the record may be stored then."""
        call = self.client.put(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        return self.run(call, timeout_s)

    def producer(self, **options: Unpack[ProducerOptions]) -> SyncProducer:
        """Return a producer whose `send` returns where a record is stored."""
        from shoal.client.synchronous import SyncProducer

        return SyncProducer(self, self.run(self._make_producer(options)))

    async def _make_producer(self, options: ProducerOptions) -> Producer:
        return self.client.producer(**options)

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        **options: Unpack[BatchOptions],
    ) -> SyncTransactionalProducer:
        """Start a transactional producer; see `TransactionalProducer.start`."""
        from shoal.client.synchronous import SyncTransactionalProducer

        call = self.client.transactional_producer(
            transactional_id, timeout_ms=timeout_ms, **options
        )
        return SyncTransactionalProducer(self, self.run(call))

    def share_consumer(
        self,
        group: str,
        topics: Sequence[str],
        *,
        rack: str | None = None,
        timeout_s: float | None = None,
    ) -> SyncShareConsumer:
        """Join a share group; see `Client.share_consumer`."""
        from shoal.client.synchronous import SyncShareConsumer

        call = self.client.share_consumer(group, topics, rack=rack)
        return SyncShareConsumer(self, self.run(call, timeout_s))

    def share(
        self, group: str, topics: Sequence[str], *, rack: str | None = None
    ) -> Coroutine[Any, Any, ShareSession]:
        """Return the coroutine that joins a share group; pass it to `run`."""
        return self.client.share(group, topics, rack=rack)

    def fetch_range(
        self,
        topic: str,
        partition: int,
        first: int,
        last: int,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> list[FetchedBatches]:
        """Return the batches that hold [first, last]; see `Fetcher.fetch_range`."""
        return self.run(self.client.fetch_range(topic, partition, first, last, isolation=isolation))

    def run(self, call: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run one call of the client and return its result.

        Raises the call's own exception, `ConnectionLost` once this client is closed, and
        `TimeoutError`, which cancels the call.
        """
        if threading.current_thread() is self._thread:
            call.close()
            raise RuntimeError("await the call: this thread is the event loop's own")
        future = self.submit(call)
        try:
            return future.result(timeout_s)
        except Unreachable as error:
            # What the thread did says nothing about a wrong address.
            raise error.with_traceback(None) from None
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TimeoutError(f"no result within {timeout_s} s") from None
        except BaseException:
            future.cancel()
            raise

    def submit(self, call: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start one call without waiting for it."""
        if self._loop.is_closed():
            call.close()
            raise ConnectionLost("this client is closed")
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def close(self) -> None:
        """Wait until what was sent is stored, close the connections and end the thread. A second
        call does nothing."""
        if self._loop.is_closed():
            return
        try:
            self.run(self.client.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _encode(text: Text | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
