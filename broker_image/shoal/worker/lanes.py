"""The slots of a handler: each runs one job, or one batch, after the other.

A lane owns the deliveries that it runs. It asks its `Feed` for work and reports how that ended. It
is a task that lives as long as the worker, because a task for each job would cost as much as a
small job.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from shoal.worker.executors import make_executor
from shoal.worker.jobs import RUNNING, WAITING, Delivery, Job
from shoal.worker.outcomes import PayloadError
from shoal.worker.payloads import keep_bytes

if TYPE_CHECKING:
    from shoal.worker.handlers import Handler

#: The lane of this task or thread, whose deliveries the lines of the log name.
CURRENT_LANE: ContextVar[Lane | None] = ContextVar("shoal_lane", default=None)
#: A lane that has kept the event loop for this long lets others run, in seconds.
SLICE_S = 0.01
#: What runs a job, or the jobs of a batch.
Call = Callable[[Any], Awaitable[Any]]
#: A function around it: it gets the job and what to call.
Middleware = Callable[[Any, Call], Awaitable[Any]]


class LaneOwner(Protocol):
    """What a lane reports to."""

    def limit_time(self, delivery: Delivery) -> None: ...

    def on_success(self, delivery: Delivery, now_s: float) -> None: ...

    def on_failure(self, delivery: Delivery, error: BaseException, now_s: float) -> None: ...


class Feed:
    """Records that wait for a lane, in the order in which they were acquired."""

    def __init__(self) -> None:
        self.ready: deque[Delivery] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()

    def wake(self) -> None:
        """Wake as many idle lanes as there are records."""
        count = len(self.ready)
        while count and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def next(self) -> Delivery:
        """Return the next record that still waits; wait for one."""
        while True:
            while self.ready:
                delivery = self.ready.popleft()
                if delivery.state is WAITING:
                    return delivery
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self.wake()  # Another lane runs what this one was woken for.
                raise


class Lane:
    """One slot, and what runs in it."""

    def __init__(
        self,
        handler: Handler,
        feed: Feed,
        owner: LaneOwner,
        wrap: Callable[[Call], Call],
        *,
        limits_time: bool,
    ) -> None:
        """With `limits_time`, the owner shortens the time of each job."""
        self.handler = handler
        self.limits_time = limits_time
        self.executor = make_executor(handler)
        self.deliveries: list[Delivery] = []
        #: Why what runs must end now.
        self.stop_error: BaseException | None = None
        #: When a job that must end is given up, in seconds of the monotonic clock, and whether it
        #: was. Its records have an outcome then, and only the slot waits for it.
        self.abandon_at_s = float("inf")
        self.is_abandoned = False
        self.task: asyncio.Task[None] | None = None
        self._feed = feed
        self._owner = owner
        self._call = wrap(self.executor.start)

    @property
    def is_running(self) -> bool:
        return bool(self.deliveries)

    @property
    def deadline_s(self) -> float:
        return max((d.deadline_s for d in self.deliveries), default=float("inf"))

    def stop(self, error: BaseException, grace_s: float) -> None:
        """Tell what runs to end. `error` is what ended it, in place of its own outcome."""
        self.stop_error = error
        self.abandon_at_s = time.monotonic() + (grace_s if self.executor.may_stop else 0.0)
        for delivery in self.deliveries:
            delivery.cancelled = True
        if self.executor.may_stop and self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Run jobs until the task is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        CURRENT_LANE.set(self)
        try:
            await (self._run_batches(task) if self.handler.is_batch else self._run_jobs(task))
        finally:
            self.executor.close()

    async def _run_jobs(self, task: asyncio.Task[Any]) -> None:
        """Run one job after the other. This is the path of each small job, so it calls little, and
        resets what a job has changed only where others may look at it: before it waits."""
        ready, call = self._feed.ready, self._make_call()
        on_success, limits_time = self._owner.on_success, self.limits_time
        monotonic, timeout_s = time.monotonic, self.handler.timeout_s
        slice_s = now_s = monotonic()
        while True:
            if ready and now_s - slice_s < SLICE_S:
                delivery = ready.popleft()
                if delivery.state is not WAITING:
                    continue
            else:
                self.deliveries = []
                if ready:
                    await asyncio.sleep(0)
                delivery = await self._feed.next()
                slice_s = now_s = monotonic()
            delivery.state = RUNNING
            delivery.started_s = now_s
            delivery.deadline_s = now_s + timeout_s
            self.deliveries = [delivery]
            if limits_time:
                self._owner.limit_time(delivery)
            try:
                await call(delivery)
            except BaseException as raised:
                now_s = monotonic()
                self._owner.on_failure(delivery, self._read_error(task, raised), now_s)
            else:
                now_s = monotonic()
                on_success(delivery, now_s)
            if self.stop_error is not None or self.is_abandoned:
                self._forget_stop(task)

    def _make_call(self) -> Callable[[Delivery], Awaitable[Any]]:
        """Return the call of the handler for a delivery. A job that nobody sees is not made."""
        handler, call, timeout_s = self.handler, self._call, self.handler.timeout_s
        if call is self.executor.start and handler.arguments.order == ("payload",):
            if handler.executor == "async":
                function, decode = handler.function, handler.arguments.decode
                if decode is keep_bytes:
                    return lambda delivery: function(delivery.raw.value)
                return lambda delivery: function(decode(delivery.raw.value))
        return lambda delivery: call(Job(delivery, timeout_s))

    async def _run_batches(self, task: asyncio.Task[Any]) -> None:
        while True:
            await asyncio.sleep(0)
            jobs = self._begin(await self._gather())
            if not jobs:
                continue
            errors: list[BaseException | None]
            try:
                errors = read_batch_outcomes(await self._call(jobs), len(jobs))
            except BaseException as raised:
                errors = [self._read_error(task, raised)] * len(jobs)
            now_s = time.monotonic()
            for delivery, error in zip(self.deliveries, errors, strict=True):
                if error is None:
                    self._owner.on_success(delivery, now_s)
                else:
                    self._owner.on_failure(delivery, error, now_s)
            self.deliveries = []
            if self.stop_error is not None or self.is_abandoned:
                self._forget_stop(task)

    def _read_error(self, task: asyncio.Task[Any], raised: BaseException) -> BaseException:
        """Return why a job failed: what it was stopped for, or its own exception. Raises what ends
        the lane itself."""
        if isinstance(raised, asyncio.CancelledError):
            if self.stop_error is None and task.cancelling():
                raise raised
        elif not isinstance(raised, Exception):
            raise raised
        return self.stop_error or raised

    def _forget_stop(self, task: asyncio.Task[Any]) -> None:
        self.stop_error, self.abandon_at_s = None, float("inf")
        self.is_abandoned = False
        while task.cancelling():
            task.uncancel()

    async def _gather(self) -> list[Delivery]:
        """Return the records of a batch: wait for the first, and for others at most `linger`."""
        taken = [await self._feed.next()]
        try:
            async with asyncio.timeout(self.handler.linger_s):
                while len(taken) < self.handler.batch:
                    taken.append(await self._feed.next())
        except TimeoutError:
            pass
        return taken

    def _begin(self, taken: list[Delivery]) -> list[Job]:
        """Mark the records of a batch as running, and return the jobs whose payload can be decoded:
        each may fail for itself."""
        now_s, timeout_s = time.monotonic(), self.handler.timeout_s
        jobs: list[Job] = []
        deliveries = []
        for delivery in taken:
            if delivery.state is not WAITING:
                continue
            delivery.state = RUNNING
            delivery.started_s = now_s
            delivery.deadline_s = now_s + timeout_s
            if self.limits_time:
                self._owner.limit_time(delivery)
            job: Job = Job(delivery, timeout_s)
            try:
                self.handler.decode(job)
            except PayloadError as error:
                self._owner.on_failure(delivery, error, now_s)
            else:
                jobs.append(job)
                deliveries.append(delivery)
        self.deliveries = deliveries
        return jobs


def wrap_in(middlewares: list[Middleware], call: Call) -> Call:
    """Return a call inside all middlewares; the first one is outermost."""
    for middleware in reversed(middlewares):
        call = _wrap(middleware, call)
    return call


def _wrap(middleware: Middleware, call: Call) -> Call:
    async def around(work: Any) -> Any:
        # The innermost call may raise before it returns something to await.
        async def inner(work: Any = work) -> Any:
            return await call(work)

        return await middleware(work, inner)

    return around


def read_batch_outcomes(result: Any, count: int) -> list[BaseException | None]:
    """Return the error of each record of a batch, None for those that are accepted. Raises
    `TypeError` for another result than a list of them."""
    if result is None:
        return [None] * count
    if not isinstance(result, list) or len(result) != count:
        raise TypeError(
            f"a batch handler returned {type(result).__name__} for {count} records. Return None if"
            " all are finished, or a list with None, Retry(), Reject() or an exception for each."
        )
    for outcome in result:
        if outcome is not None and not isinstance(outcome, Exception):
            raise TypeError(f"a batch handler returned {outcome!r} for a record, not an outcome")
    return result
