"""`KeyWorkers`: an async handler that runs for many keys of one group member at once.

Records of a key are handled one after the other, in offset order. Each partition has its own keys.
Records without a key are handled in any order. A record is finished when its handler returns, and
the member commits finished records individually (`consumer.IndividualCommit`).

Memory is bounded: at most `records_max` records and `bytes_max` bytes are in flight, which means
waiting or being handled. One poll of the consumer waits beside them, and is decoded as room
appears. A key with many records can fill that room; then other keys wait for it.

What ends the work, ends it cleanly. Before partitions or key ranges are given up, and after `stop`
or an error, records that wait are dropped, and the running handlers end and are committed. The next
owner gets the dropped records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Protocol

from shoal.client.consume.rebalance_listener import RebalanceListener
from shoal.client.errors import ClientError
from shoal.client.net.cluster import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from shoal.client.consume.consumer import Record
    from shoal.client.consume.rebalance_listener import Ranges

#: Keys that are handled at once.
KEYS_MAX = 100
#: Records and bytes in flight.
RECORDS_MAX, BYTES_MAX = 10_000, 64 << 20
#: Milliseconds for running handlers to end before their partition is given up, below the time that
#: a group allows (`REBALANCE_TIMEOUT_MS`).
DRAIN_MS = 30_000
#: Milliseconds that a poll waits for records, and between two looks at the group without a poll.
POLL_MS, TEND_MS = 200, 100
#: Bytes of a record besides key and value.
_RECORD_BYTES = 100

#: Topic, partition and key. A record without a key has its offset instead, and thus no order.
_Lane = tuple[str, int, bytes | int]


class WorkerConsumer(Protocol):
    """What `KeyWorkers` needs of `GroupConsumer`."""

    listeners: list[RebalanceListener]

    @property
    def commits_individually(self) -> bool: ...

    async def poll(self, max_wait_ms: int = POLL_MS) -> Iterator[Record]: ...

    async def tend(self) -> None: ...

    def finish(self, record: Record) -> None: ...

    async def commit(self) -> None: ...


class HandlerError(Exception):
    """The handler raised an exception, which is the cause. `record` is not finished."""

    def __init__(self, record: Record, error: BaseException) -> None:
        self.record = record
        partition = TopicPartition(record.topic, record.partition)
        key = "without a key" if record.key is None else f"with key {record.key!r}"
        super().__init__(
            f"the handler failed on the record at offset {record.offset} of {partition} {key}: "
            f"{error!r}. The record and later ones of its key are not finished; they are "
            "delivered again"
        )


class KeyWorkers(RebalanceListener):
    """Polls a member and owns the records in flight. `run` once; `stop` ends it."""

    def __init__(
        self,
        consumer: WorkerConsumer,
        handler: Callable[[Record], Awaitable[object]],
        *,
        keys_max: int = KEYS_MAX,
        records_max: int = RECORDS_MAX,
        bytes_max: int = BYTES_MAX,
        drain_ms: int = DRAIN_MS,
    ) -> None:
        """`consumer` is a `GroupConsumer` that joined with `individual_commit`. It is polled here
        and nowhere else. A handler that still runs `drain_ms` after its partition was revoked is
        cancelled. Raises `ValueError` for a limit below 1 or another kind of member.
        """
        if not consumer.commits_individually:
            raise ValueError("key workers finish records individually: join with individual_commit")
        limits = {"keys_max": keys_max, "records_max": records_max, "bytes_max": bytes_max}
        for name, limit in limits.items():
            if limit < 1:
                raise ValueError(f"{name} is {limit}; it is at least 1")
        self._consumer = consumer
        self._handler = handler
        self._keys_max = keys_max
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._drain_s = drain_ms / 1000
        #: Records that wait, by lane. A lane stays while one of its records is handled.
        self._lanes: dict[_Lane, deque[Record]] = {}
        #: Lanes with waiting records of which none is handled.
        self._ready: deque[_Lane] = deque()
        self._running: dict[_Lane, asyncio.Task[None]] = {}
        #: The polled record for which there is no room yet, and those after it.
        self._next: Record | None = None
        self._polled: Iterator[Record] = iter(())
        self._workers = 0
        self._group: asyncio.TaskGroup | None = None
        self._in_flight = self._in_flight_bytes = 0
        self._ending = False
        #: The first failure of the handler, and an error of the member.
        self._failure: HandlerError | None = None
        self._error: Exception | None = None
        #: Set when there is room for a poll, and when a handler ends that somebody may wait for.
        self._wake = asyncio.Event()
        self._draining = False

    @property
    def in_flight(self) -> int:
        """Number of records that wait or are handled."""
        return self._in_flight

    def stop(self) -> None:
        """End `run` after the handlers that are running. Records that wait are dropped."""
        self._ending = True
        self._wake.set()

    async def run(self) -> None:
        """Handle records until `stop` is called, an error occurs, or the caller is cancelled.

        Raises `HandlerError` after an exception of the handler, and what `GroupConsumer.poll`
        raises. All that was finished is committed before. A cancellation cancels the handlers and
        waits for their end; `GroupConsumer.close` then commits.
        """
        if self._group is not None:
            raise ValueError("run these workers once; create new ones to continue")
        self._group = asyncio.TaskGroup()
        # The handlers end before the application's own listener is called.
        self._consumer.listeners.insert(0, self)
        try:
            async with self._group:
                try:
                    await self._feed()
                except Exception as failed:  # The running handlers end before it is raised.
                    self._error = failed
                finally:
                    self._ending = True
        finally:
            self._consumer.listeners.remove(self)
            self._drop_all()
        error = self._failure or self._error
        try:
            await self._consumer.commit()
        except ClientError as failed:
            if error is None:
                raise
            error.add_note(f"then the commit of what was finished failed: {failed}")
        if error is not None:
            raise error

    # Records

    async def _feed(self) -> None:
        """Poll while at most half of the room is taken, so that workers do not wait for polls."""
        while not self._ending:
            if self._has_enough():
                await self._consumer.tend()
                if not self._ending and self._has_enough():
                    await self._pause(TEND_MS / 1000)
                continue
            self._polled = await self._consumer.poll(POLL_MS)
            self._advance()
            self._admit()

    async def _pause(self, seconds: float) -> None:
        """Wait for `_wake`, for at most this time."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _has_enough(self) -> bool:
        return self._next is not None or self._in_flight > self._records_max // 2

    def _advance(self) -> None:
        """Take the next polled record, which is decoded now."""
        try:
            self._next = next(self._polled, None)
        except Exception as error:  # A corrupt batch.
            self._next, self._polled = None, iter(())
            self._error = self._error or error
            self.stop()

    def _admit(self) -> None:
        """Move polled records into their lanes as long as there is room, and start workers."""
        lanes = self._lanes
        while (record := self._next) is not None and self._has_room(record):
            self._in_flight += 1
            self._in_flight_bytes += _estimate_size(record)
            name = _get_lane(record)
            lane = lanes.get(name)
            if lane is None:
                lanes[name] = lane = deque()
            if not lane and name not in self._running:
                self._ready.append(name)
            lane.append(record)
            self._advance()
        while self._workers < min(self._keys_max, len(self._ready) + len(self._running)):
            assert self._group is not None
            self._workers += 1
            self._group.create_task(self._work())

    def _has_room(self, record: Record) -> bool:
        """A record that is larger than `bytes_max` is in flight alone."""
        return not self._in_flight or (
            self._in_flight < self._records_max
            and self._in_flight_bytes + _estimate_size(record) <= self._bytes_max
        )

    def _release_room(self, record: Record) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= _estimate_size(record)

    # Workers

    async def _work(self) -> None:
        """Handle one ready record after the other; each lane gets its turn."""
        task = asyncio.current_task()
        assert task is not None
        try:
            while self._ready and not self._ending and not task.cancelling():
                name = self._ready.popleft()
                lane = self._lanes[name]
                record = lane.popleft()
                self._running[name] = task
                try:
                    await self._handle(record)
                finally:
                    self._on_handled(name, lane, record)
        finally:
            self._workers -= 1

    async def _handle(self, record: Record) -> None:
        try:
            await self._handler(record)
            self._consumer.finish(record)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._fail(record, error)
        except Exception as error:  # Any exception of the application.
            self._fail(record, error)

    def _on_handled(self, name: _Lane, lane: deque[Record], record: Record) -> None:
        del self._running[name]
        self._release_room(record)
        if lane:
            self._ready.append(name)
        else:
            del self._lanes[name]
        if self._next is not None and not self._ending:
            self._admit()
        if self._draining or self._ending or not self._has_enough():
            self._wake.set()

    def _fail(self, record: Record, error: BaseException) -> None:
        failure = HandlerError(record, error)
        failure.__cause__ = error
        if self._failure is None:
            self._failure = failure
        else:
            self._failure.add_note(f"also, {failure}")
        self.stop()

    # The group

    async def on_revoked(self, ranges: Ranges) -> None:
        """Drop what waits, and wait for the running handlers, for at most `drain_ms`."""
        self._drop(ranges)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._drain_s
        self._draining = True
        try:
            while self._find_tasks(ranges) and (left_s := deadline - loop.time()) > 0:
                await self._pause(left_s)
        finally:
            self._draining = False
        await self._cancel(ranges)

    async def on_lost(self, ranges: Ranges) -> None:
        """Drop what waits, and cancel the running handlers."""
        self._drop(ranges)
        await self._cancel(ranges)

    def _find_tasks(self, ranges: Ranges) -> list[asyncio.Task[None]]:
        """Return the tasks that handle records of ranges."""
        return [task for name, task in self._running.items() if _is_in(ranges, *name)]

    async def _cancel(self, ranges: Ranges) -> None:
        tasks = self._find_tasks(ranges)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._admit()  # The cancelled workers have ended.

    def _drop(self, ranges: Ranges) -> None:
        """Drop the records of ranges that wait."""
        self._polled = (record for record in self._polled if not _is_in(ranges, *_get_lane(record)))
        waiting = self._next
        if waiting is not None and _is_in(ranges, *_get_lane(waiting)):
            self._advance()
        for name, lane in list(self._lanes.items()):
            if _is_in(ranges, *name):
                self._drop_lane(name, lane)
        self._ready = deque(name for name in self._ready if name in self._lanes)

    def _drop_all(self) -> None:
        self._next, self._polled = None, iter(())
        self._ready.clear()
        for name, lane in list(self._lanes.items()):
            self._drop_lane(name, lane)

    def _drop_lane(self, name: _Lane, lane: deque[Record]) -> None:
        for record in lane:
            self._release_room(record)
        lane.clear()
        if name not in self._running:
            del self._lanes[name]


def _get_lane(record: Record) -> _Lane:
    key = record.offset if record.key is None else record.key
    return record.topic, record.partition, key


def _is_in(ranges: Ranges, topic: str, partition: int, key: bytes | int) -> bool:
    """Whether a lane belongs to one of the key ranges."""
    key_ranges = ranges.get(TopicPartition(topic, partition))
    if key_ranges is None:
        return False
    return (
        key_ranges.has_record(None, key) if isinstance(key, int) else key_ranges.has_record(key, 0)
    )


def _estimate_size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + _RECORD_BYTES
