"""Deadlines, retries and bounded concurrency for an object store.

An attempt has a deadline, which grows with the size of its data. An attempt that fails with a
passing error is repeated after a pause that doubles, with jitter over its whole length, so that
brokers that were refused together do not return together. The last error is raised when the
attempts are used up; the caller decides when to try again.

Uploads and reads have separate limits of concurrency, so that copying never delays readers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shoal.tiered.store import ObjectMissing, StoreConflict, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from random import Random

    from shoal.record.batch import Buffer
    from shoal.tiered.store import ByteRange, ObjectInfo, ObjectSource, ObjectStore, ObjectVersion

T = TypeVar("T")


#: The operations, and those that move contents. Each is counted apart.
OPERATIONS = ("put", "get", "head", "list", "delete")
TRANSFERS = ("put", "get")


class CallLimits(NamedTuple):
    """How operations on the store are bounded."""

    #: Deadline of one attempt, for an object without contents.
    timeout_ms: int = 30_000
    #: Rate below which the deadline of a transfer ends it.
    bytes_per_s_min: int = 256 << 10
    #: Attempts of one operation.
    attempts: int = 4
    #: First pause between two attempts, and its maximum.
    backoff_ms: int = 100
    backoff_max_ms: int = 5_000
    #: Uploads, and other operations, at the same time.
    uploads: int = 4
    reads: int = 16


class RetryingStore:
    """An object store around another one."""

    def __init__(self, store: ObjectStore, limits: CallLimits, random: Random) -> None:
        self._store = store
        self._limits = limits
        self._random = random
        self._uploads = asyncio.Semaphore(limits.uploads)
        self._reads = asyncio.Semaphore(limits.reads)
        #: Attempts and failed attempts, by operation.
        self.attempts_total = dict.fromkeys(OPERATIONS, 0)
        self.failures_total = dict.fromkeys(OPERATIONS, 0)
        #: Bytes of contents that were sent and received, by operation.
        self.bytes_total = dict.fromkeys(TRANSFERS, 0)

    async def put(self, key: str, source: ObjectSource) -> None:
        async with self._uploads:
            await self._call("put", key, source.size, lambda: self._store.put(key, source))

    async def get(self, key: str) -> bytes:
        async with self._reads:
            return await self._call("get", key, 0, lambda: self._store.get(key))

    async def get_versioned(self, key: str) -> tuple[bytes, ObjectVersion]:
        async with self._reads:
            return await self._call("get", key, 0, lambda: self._store.get_versioned(key))

    async def put_if(
        self, key: str, source: ObjectSource, version: ObjectVersion | None
    ) -> ObjectVersion:
        async with self._uploads:
            return await self._call(
                "put", key, source.size, lambda: self._store.put_if(key, source, version)
            )

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        size = sum(end - start for start, end in ranges)
        async with self._reads:
            return await self._call("get", key, size, lambda: self._store.get_ranges(key, ranges))

    async def get_size(self, key: str) -> int:
        async with self._reads:
            return await self._call("head", key, 0, lambda: self._store.get_size(key))

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """A failed list begins again, so its result is complete or an error."""

        async def collect() -> list[ObjectInfo]:
            return [info async for info in self._store.list_objects(prefix)]

        async with self._reads:
            infos = await self._call("list", prefix, 0, collect)
        for info in infos:
            yield info

    async def list_children(self, prefix: str) -> Sequence[str]:
        async with self._reads:
            return await self._call("list", prefix, 0, lambda: self._store.list_children(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            async with self._reads:
                await self._call("delete", keys[0], 0, lambda: self._store.delete(keys))

    async def _call(
        self, operation: str, key: str, size: int, call: Callable[[], Awaitable[T]]
    ) -> T:
        limits = self._limits
        timeout_s = limits.timeout_ms / 1000 + size / limits.bytes_per_s_min
        pause_ms = limits.backoff_ms
        for attempt in range(limits.attempts):
            self.attempts_total[operation] += 1
            try:
                async with asyncio.timeout(timeout_s):
                    result = await call()
                if size:
                    self.bytes_total[operation] += size
                return result
            except TimeoutError:
                error: StoreError = StoreUnavailable(key, f"no answer within {timeout_s:.0f} s")
            except (ObjectMissing, StoreConflict):
                # The store has answered.
                raise
            except StoreError as failure:
                error = failure
            self.failures_total[operation] += 1
            if not error.retriable or attempt + 1 == limits.attempts:
                break
            await asyncio.sleep(self._random.uniform(0, pause_ms) / 1000)
            pause_ms = min(pause_ms * 2, limits.backoff_max_ms)
        raise error
