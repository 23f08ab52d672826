"""The client's entry points: `Client` for asyncio, `SyncClient` for programs without an event loop.

`SyncClient` runs an event loop in its own thread. Heartbeats continue while the program (a Spark
driver, a script) does other work. It has the same parts as `Client`; `run` runs a call on them:

    with SyncClient("localhost:9092") as client:
        session = client.run(client.share("orders", ["tasks"]))
        found = client.run(session.acquire(max_records=100))
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.client.admin import Admin
from shoal.client.cluster import Cluster
from shoal.client.environment import HERE, Environment
from shoal.client.fetcher import Fetched, Fetcher, Isolation
from shoal.client.producer import Producer
from shoal.client.settings import Settings
from shoal.client.share import ShareSession
from shoal.client.transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from types import TracebackType

T = TypeVar("T")


class Client:
    """All client operations on one cluster. Create it inside a running event loop."""

    def __init__(self, settings: Settings | str, environment: Environment = HERE) -> None:
        if isinstance(settings, str):
            settings = Settings.of(settings)
        self.cluster = Cluster(settings, environment)
        self.admin = Admin(self.cluster)
        self.fetcher = Fetcher(self.cluster)

    async def share(
        self, group: str, topics: Sequence[str], *, rack: str | None = None
    ) -> ShareSession:
        """Join a share group; see `ShareSession.join`."""
        return await ShareSession.join(self.cluster, group, topics, rack=rack)

    def producer(self, **options: Any) -> Producer:
        """Return a producer; see `Producer` for the options."""
        return Producer(self.cluster, **options)

    async def transactional_producer(
        self, transactional_id: str, **options: Any
    ) -> TransactionalProducer:
        """Start a transactional producer; see `TransactionalProducer.start`."""
        return await TransactionalProducer.start(self.cluster, transactional_id, **options)

    async def fetch_range(
        self,
        topic: str,
        partition: int,
        first: int,
        last: int,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> list[Fetched]:
        """Return all of [first, last] in memory; `Fetcher.range` yields it in pieces."""
        return [
            fetched
            async for fetched in self.fetcher.range(
                topic, partition, first, last, isolation=isolation
            )
        ]

    async def close(self) -> None:
        await self.cluster.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncClient:
    """A `Client` that runs in a thread. Any thread except the loop's own may call `run`."""

    def __init__(
        self, bootstrap: str | Settings, properties: Mapping[str, str] | None = None
    ) -> None:
        settings = (
            bootstrap if isinstance(bootstrap, Settings) else Settings.of(bootstrap, properties)
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
        return self.client.cluster

    @property
    def admin(self) -> Admin:
        return self.client.admin

    @property
    def fetcher(self) -> Fetcher:
        return self.client.fetcher

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
    ) -> list[Fetched]:
        """Return the batches that hold [first, last]; see `Fetcher.range`."""
        return self.run(self.client.fetch_range(topic, partition, first, last, isolation=isolation))

    def run(self, call: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run one call of the client and return its result.

        Raises the call's own exception. A `TimeoutError` cancels the call.
        """
        future = self.submit(call)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"no result within {timeout_s} s") from None
        except BaseException:
            future.cancel()
            raise

    def submit(self, call: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start one call without waiting for it."""
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def close(self) -> None:
        """Close the connections and end the thread. A second call does nothing."""
        if self._loop.is_closed():
            return
        self.run(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
