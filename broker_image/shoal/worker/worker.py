"""`Worker`: the handlers of an application, and the loop that runs them.

worker = Worker("thumbnails")

@worker.handler("images", concurrency=8, timeout="5m", retries=5, backoff="1s..5m")
async def make_thumbnail(image: Image) -> None: ...

worker.run()                # or `shoal worker app:worker`
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.client.client import Client
from shoal.client.errors import Unreachable
from shoal.client.queues import reserved_groups
from shoal.client.share.acquired import SharedRecord
from shoal.schedules.runner import ScheduleRunner
from shoal.worker.backoff import Duration, parse_seconds
from shoal.worker.consumer import JobConsumer, run_until
from shoal.worker.cron import log_produced, make_cron
from shoal.worker.executors import make_executor
from shoal.worker.group_setup import prepare_group
from shoal.worker.handlers import (
    BACKOFF,
    CONCURRENCY,
    RETRIES,
    TIMEOUT,
    Executor,
    Handler,
    make_handler,
)
from shoal.worker.jobs import Delivery, Job
from shoal.worker.lanes import Middleware, wrap_in
from shoal.worker.metrics import HandlerMetrics
from shoal.worker.outcomes import Accepted, Outcome, decide
from shoal.worker.payloads import encode
from shoal.worker.queue import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.client.settings import Settings
    from shoal.schedules.runner import RunningSchedule
    from shoal.worker.payloads import Codec

F = TypeVar("F", bound="Callable[..., Any]")
log = logging.getLogger("shoal.worker")


class Worker:
    """Handlers of one share group. The brokers come from the environment by default."""

    def __init__(
        self,
        group: str = "",
        *,
        settings: Settings | str | None = None,
        shutdown_timeout: Duration = "30s",
    ) -> None:
        """`group` defaults to `SHOAL_GROUP_ID`. `settings` are a bootstrap address or `Settings`.
        Running jobs get `shutdown_timeout` when the worker stops."""
        self.group = group or os.environ.get("SHOAL_GROUP_ID", "")
        if not self.group:
            raise ValueError("name the share group: Worker('thumbnails'), or set SHOAL_GROUP_ID")
        if reserved_groups.is_reserved(self.group):
            raise ValueError(reserved_groups.format_refusal(self.group))
        self.handlers: list[Handler] = []
        self._settings = settings
        self._shutdown_timeout_s = parse_seconds(shutdown_timeout)
        self._middlewares: list[Middleware] = []
        self._crons: list[RunningSchedule] = []
        self._consumers: list[JobConsumer] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._stopping: asyncio.Event

    def handler(
        self,
        *topics: str,
        concurrency: int = CONCURRENCY,
        timeout: Duration = TIMEOUT,
        retries: int = RETRIES,
        backoff: Duration = BACKOFF,
        executor: Executor | None = None,
        batch: int | None = None,
        linger: Duration = "200ms",
        results: str = "",
        codec: Codec | None = None,
        prefetch: int | None = None,
    ) -> Callable[[F], F]:
        """Register a function for the records of topics; docs/worker.md explains the options.

        The function stays what it was, so you can call it. Raises `ValueError` or `TypeError`.
        """

        def register(function: F) -> F:
            made = make_handler(
                function,
                topics,
                concurrency=concurrency,
                timeout=timeout,
                retries=retries,
                backoff=backoff,
                executor=executor,
                batch=batch,
                linger=linger,
                results=results,
                codec=codec,
                prefetch=prefetch,
            )
            taken = {topic for handler in self.handlers for topic in handler.topics}
            if twice := taken.intersection(made.topics):
                raise ValueError(
                    f"topic {min(twice)} has a handler already. Each record goes to one handler;"
                    " use a worker with another group for a second one."
                )
            self.handlers.append(made)
            return function

        return register

    def cron(
        self,
        expression: str,
        *,
        tz: str = "Etc/UTC",
        value: Any = None,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        starting_deadline: Duration = "10m",
        jitter: Duration = 0,
    ) -> Callable[[F], F]:
        """Enqueue a job for a handler at the times of a cron expression of five fields:

        @worker.cron("0 3 * * *", tz="Europe/Berlin", value={"report": "sales"})
        @worker.handler("reports")
        async def make_report(about: dict[str, str]) -> None: ...

        `value` is the job, or a function that makes it from the tick, a `datetime` in UTC. Each
        process of the worker enqueues; a topic with `shoal.deduplication.window.ms` stores the job
        of a tick once, and a process that starts then also looks back by `starting_deadline`, after
        which a job is not enqueued any more. `jitter` is the longest delay of a job after its tick.
        Raises `ValueError`.
        """

        def register(function: F) -> F:
            handler = next((h for h in self.handlers if h.function is function), None)
            if handler is None:
                raise ValueError(
                    f"{function!r} is not a handler of this worker. Write @worker.cron above"
                    " @worker.handler."
                )
            self._crons.append(
                make_cron(
                    self.group,
                    handler,
                    expression,
                    tz=tz,
                    value=value,
                    key=key,
                    headers=headers,
                    starting_deadline=starting_deadline,
                    jitter=jitter,
                )
            )
            return function

        return register

    def middleware(self, function: Middleware) -> Middleware:
        """Register a function that runs around each job: `async def f(job, call)`, which awaits
        `call(job)` and returns its result. The first one is outermost."""
        self._middlewares.append(function)
        return function

    # Running

    def run(self) -> None:
        """Handle records until SIGTERM or SIGINT. A second signal ends the process at once. Raises
        what `serve` raises."""
        try:
            asyncio.run(self._run_with_signals())
        except Unreachable as error:
            # What the event loop did says nothing about a wrong address.
            raise error.with_traceback(None) from None

    async def _run_with_signals(self) -> None:
        self.stop_on_signals()
        await self.serve()

    def stop_on_signals(self) -> None:
        """Stop at the first SIGTERM or SIGINT, and end the process at the second one."""

        def on_signal() -> None:
            if self._is_stopping:
                log.warning("a second signal: ending at once. Locked records return to the group.")
                os._exit(1)
            log.info("stopping: running jobs get %g s", self._shutdown_timeout_s)
            self.stop()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)

    def stop(self) -> None:
        """Acquire no more records, let running jobs end, and return the others undelivered. Any
        thread may call it."""
        self._is_stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_consumers)

    def _stop_consumers(self) -> None:
        self._stopping.set()
        for consumer in self._consumers:
            consumer.stop()

    async def serve(self, client: Client | None = None) -> None:
        """Handle records until `stop`. Raises the error that ended a membership, such as a missing
        permission. A `client` that is given stays open."""
        if not self.handlers:
            raise ValueError(f"worker {self.group} has no handler: add one with @worker.handler")
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._consumers = []
        if self._is_stopping:
            self._stopping.set()
        own = client is None
        client = client or Client(read_settings(self._settings))
        try:
            preparing = prepare_group(client, self.group, self.handlers)
            facts = await run_until(self._stopping, preparing)
            if facts is None or self._is_stopping:
                return
            self._consumers = [
                JobConsumer(
                    client,
                    self.group,
                    facts,
                    handler,
                    HandlerMetrics(self.group, handler.name),
                    self._middlewares,
                    shutdown_timeout_s=self._shutdown_timeout_s,
                )
                for handler in self.handlers
            ]
            await self._run_consumers(ScheduleRunner(client, self._crons, log_produced))
        finally:
            self._is_stopping = False
            if own:
                await client.close()

    async def _run_consumers(self, crons: ScheduleRunner) -> None:
        """Run all handlers and cron jobs. If one cannot continue, the others end in order."""
        tasks = [asyncio.create_task(consumer.run()) for consumer in self._consumers]
        if self._crons:
            tasks.append(asyncio.create_task(crons.run(self._stopping)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self._stop_consumers()
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        for task in tasks:
            task.result()

    @property
    def is_ready(self) -> bool:
        """Whether all handlers are members of the group."""
        consumers = self._consumers
        return bool(consumers) and all(consumer.is_joined for consumer in consumers)

    @property
    def is_healthy(self) -> bool:
        """Whether every handler has a slot that is not taken by a function that never ends."""
        return all(consumer.is_healthy for consumer in self._consumers)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the counts of all handlers; see `metrics`."""
        return [consumer.snapshot() for consumer in self._consumers]

    # Without a broker

    def run_once(
        self,
        function: Callable[..., Any],
        value: Any,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        delivery_count: int = 1,
    ) -> Outcome:
        """Run a handler on one value, without a broker, and return its outcome. For tests; see
        `handle_once`, which a running event loop needs instead."""
        return asyncio.run(
            self.handle_once(
                function, value, key=key, headers=headers, delivery_count=delivery_count
            )
        )

    async def handle_once(
        self,
        function: Callable[..., Any],
        value: Any,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        delivery_count: int = 1,
    ) -> Outcome:
        """Run a handler on one value as a worker does: the value is encoded and decoded, and the
        middlewares run. Returns `Accepted`, `Released` or `Rejected`."""
        handler = next((h for h in self.handlers if h.function is function), None)
        if handler is None:
            raise ValueError(f"{function!r} is not a handler of this worker")
        record = SharedRecord(
            handler.topics[0],
            0,
            0,
            0,
            key,
            encode(value, handler.codec),
            tuple((headers or {}).items()),
            delivery_count,
        )
        deadline_s = time.monotonic() + handler.timeout_s
        delivery = Delivery.from_record(record, deadline_s, self.group)
        job: Job = Job(delivery, handler.timeout_s)
        executor = make_executor(handler)
        try:
            if handler.is_batch:
                handler.decode(job)
            call = wrap_in(self._middlewares, executor.start)
            async with asyncio.timeout(handler.timeout_s):
                result = await call([job] if handler.is_batch else job)
            if handler.is_batch and isinstance(result, list) and result[0] is not None:
                raise result[0]
        except Exception as error:
            return decide(
                error,
                delivery_count,
                retries=handler.retries,
                backoff=handler.backoff,
                random=Random(),
            )
        finally:
            executor.close()
        return Accepted(result)
